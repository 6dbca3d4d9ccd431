"""Timer book: how a tool, in the middle of a turn, has something said to its user later."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from typing import Any

from sayso.agent.tools.errors import ToolError
from sayso.channels.types import storable
from sayso.pending.texts import Texts, speak
from sayso.workers.installed import installed
from sayso.workers.lane import MAX_TIMERS, Timer

#: Seconds ahead that something can be said at most.
HORIZON_SECONDS = 400 * 86_400.0
#: Why nothing can be scheduled outside of a channel's run, nor by what runs after a yes.
NO_BOOK = "Nothing can be said later here: that needs a channel, and a tool that its policy allows without a yes."
#: Characters of what is said later: it fits in one message of every platform.
MAX_TIMER_CHARS = 500


class SchedulingError(ToolError):
    """Raised when something cannot be said later; the text says why, in words for the user."""


@dataclass(frozen=True, slots=True)
class TimerChange:
    """One thing that a call did to the timers: set one, or silenced the one of that id."""

    timer: Timer | None = None
    silenced: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The change as JSON-ready data."""
        return {"timer": asdict(self.timer)} if self.timer else {"silenced": self.silenced}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TimerChange:
        """The change that `to_dict` wrote. Raises KeyError or TypeError on anything else."""
        return cls(Timer(**data["timer"])) if "timer" in data else cls(silenced=str(data["silenced"]))


@dataclass(slots=True)
class TimerBook:
    """One turn's timers: those its conversation has, and what changes about them when the turn is committed.

    `now` is when the turn was received, by the server's clock. Tools of one answer run in threads of their own.
    """

    user: str
    now: float
    language: str
    waiting: tuple[Timer, ...] = ()
    added: list[Timer] = field(default_factory=list)
    silenced: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, text: str, at: float, note: str) -> Timer:
        """Another timer. Raises SchedulingError."""
        with self._lock:
            self._check(text, at)
            timer = Timer(self._next_id(), round(at, 3), storable(text), self.user, storable(note), self.language)
            self.added.append(timer)
            _note(TimerChange(timer))
            return timer

    def own(self) -> list[Timer]:
        """The timers of this turn's user, the next one first."""
        with self._lock:
            mine = [timer for timer in (*self.waiting, *self.added) if timer.user == self.user]
            return sorted((timer for timer in mine if timer.id not in self.silenced), key=lambda timer: timer.at)

    def silence(self, timer_id: str) -> Timer | None:
        """Take one of the user's own back. None when there is none of that name."""
        found = next((timer for timer in self.own() if timer.id == timer_id), None)
        if found is None:
            return None
        with self._lock:
            if found in self.added:
                self.added.remove(found)
            else:
                self.silenced.append(timer_id)
            _note(TimerChange(silenced=timer_id))
        return found

    def restore(self, change: TimerChange) -> None:
        """Do again what an earlier attempt at this turn did."""
        if change.timer is None:
            self.silence(change.silenced)
        else:
            self.added.append(change.timer)

    def _check(self, text: str, at: float) -> None:
        if at <= self.now:
            raise SchedulingError("That time is over.")
        if at > self.now + HORIZON_SECONDS:
            raise SchedulingError(f"That is too far away: {HORIZON_SECONDS / 86_400:g} days ahead is the most.")
        if len(text) > MAX_TIMER_CHARS:
            raise SchedulingError(f"That is too long: {MAX_TIMER_CHARS} characters are the most.")
        if len(self.waiting) + len(self.added) - len(self.silenced) >= MAX_TIMERS:
            raise SchedulingError(f"{MAX_TIMERS} reminders are waiting here already: cancel one first.")

    def _next_id(self) -> str:
        numbers = [int(timer.id) for timer in (*self.waiting, *self.added) if timer.id.isdecimal()]
        return str(max(numbers, default=0) + 1)


_book: ContextVar[TimerBook | None] = ContextVar("sayso_timers", default=None)
_made: ContextVar[list[TimerChange] | None] = ContextVar("sayso_timers_made", default=None)


def timer_book(book: TimerBook | None) -> AbstractContextManager[TimerBook | None]:
    """Install the book that tools write in, for the length of one turn; None where nothing can be said later."""
    return installed(_book, book)


def collect_timers() -> AbstractContextManager[list[TimerChange]]:
    """Collect what is done to the timers in this context, in the tasks and in the threads started from it."""
    return installed(_made, [])


def restore_timers(changes: Iterable[TimerChange]) -> None:
    """Do again what an earlier attempt at this turn did. Where nothing can be said later this is a no-op."""
    book = _book.get()
    for change in changes if book else ():
        book.restore(change)  # type: ignore[union-attr]  # there is a book, or nothing to go through


def schedule_reply(text: str, at: float, *, note: str = "") -> Timer:
    """Say `text` in this conversation at `at`, in Unix seconds, once; `note` is what `scheduled` lists it by.

    It is set when the turn is committed, and not at all when the turn is not. Raises SchedulingError when it is in the
    past or too far away, too long, one too many, or when nobody could say it.
    """
    return _open_book().add(text, at, note or text)


def remind(text: str, at: float) -> Timer:
    """Remind the user of `text` at `at`, in their language. Raises SchedulingError like `schedule_reply`."""
    book = _open_book()
    return book.add(speak(book.language).reminder(text), at, text)


def scheduled() -> list[Timer]:
    """What will be said to this user in this conversation, the next one first. Raises SchedulingError."""
    return _open_book().own()


def cancel_scheduled(timer_id: str) -> Timer | None:
    """Take one of them back; None when this user has none of that id. Raises SchedulingError."""
    return _open_book().silence(timer_id)


def time_of_turn() -> float:
    """When the user said what is worked on, in Unix seconds by the server's clock. Raises SchedulingError."""
    return _open_book().now


def words_of_turn() -> Texts:
    """How to speak to this user. Raises SchedulingError."""
    return speak(_open_book().language)


def _note(change: TimerChange) -> None:
    made = _made.get()
    if made is not None:
        made.append(change)


def _open_book() -> TimerBook:
    book = _book.get()
    if book is None:
        raise SchedulingError(NO_BOOK)
    return book
