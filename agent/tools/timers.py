"""Timers: the messages that Sayso will send later, as the tools of one turn see and change them.

The functions that a tool calls, such as `schedule_reply`, are in `scheduling.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from sayso.agent.tools.errors import ToolError
from sayso.channels.types import storable
from sayso.pending.stored_limits import MAX_TIMERS
from sayso.pending.turn_changes import Timer

#: How far ahead a message can be scheduled, in seconds.
HORIZON_SECONDS = 400 * 86_400.0
#: Longest scheduled text, in characters: it fits in one message of every platform.
MAX_TIMER_CHARS = 500


class SchedulingError(ToolError):
    """Raised when a message cannot be scheduled; the text says why, in words for the user."""


@dataclass(frozen=True, slots=True)
class TimerChange:
    """One change that a tool call made to the timers of a conversation.

    The journal of the turn stores it, so that a worker that repeats the turn after a crash makes
    the same change without calling the tool again.
    """

    #: The timer that was added; None if one was cancelled.
    timer: Timer | None = None
    #: The id of the timer that was cancelled; "" if one was added.
    cancelled_id: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the change as JSON-ready data."""
        if self.timer:
            return {"timer": asdict(self.timer)}
        return {"cancelled_id": self.cancelled_id}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TimerChange:
        """Return the change that `to_dict` wrote. Raises KeyError or TypeError on anything else."""
        if "timer" in data:
            return cls(Timer(**data["timer"]))
        return cls(cancelled_id=str(data["cancelled_id"]))


@dataclass(slots=True)
class TurnTimers:
    """The timers of a conversation, as the tools of one turn see and change them.

    Lives as long as the turn. Nothing is stored here: `added` and `cancelled` are stored when the
    turn is committed, so a turn that fails changes no timer. A lock guards the lists, because the
    tools of one model answer run in several threads.
    """

    #: The user of this turn. Members of a group cannot see or cancel each other's timers.
    user: str
    #: When the turn was received, in Unix seconds by the server's clock. It is here, like the
    #: language, because a tool that schedules something needs both.
    now: float
    #: The language of the user, as a code such as "en". The texts of reminders are in it.
    language: str
    #: The timers that the conversation had at the beginning of the turn, of all its users.
    waiting: tuple[Timer, ...] = ()
    #: The timers that this turn adds.
    added: list[Timer] = field(default_factory=list)
    #: The ids of those in `waiting` that this turn cancels.
    cancelled: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, text: str, at: float, note: str) -> Timer:
        """Add a timer that says `text` at `at` (Unix seconds), and return it.

        `note` is what the timer is about, for lists of timers. Raises SchedulingError.
        """
        with self._lock:
            if at <= self.now:
                raise SchedulingError("That time is in the past.")
            if at > self.now + HORIZON_SECONDS:
                raise SchedulingError(
                    f"That is too far ahead: at most {HORIZON_SECONDS / 86_400:g} days."
                )
            if len(text) > MAX_TIMER_CHARS:
                raise SchedulingError(f"That is too long: at most {MAX_TIMER_CHARS} characters.")
            if len(self.waiting) + len(self.added) - len(self.cancelled) >= MAX_TIMERS:
                raise SchedulingError(
                    f"{MAX_TIMERS} reminders are waiting here already: cancel one first."
                )

            timer = Timer(
                id=self._next_id(),
                at=round(at, 3),  # in milliseconds, as Redis stores it
                text=storable(text),
                user=self.user,
                note=storable(note),
                language=self.language,
            )
            self.added.append(timer)
            return timer

    def _next_id(self) -> str:
        """Return the next free id. The caller holds the lock.

        Ids are small numbers, because people and models type them.
        """
        known = (*self.waiting, *self.added)
        numbers = [int(timer.id) for timer in known if timer.id.isdecimal()]
        return str(max(numbers, default=0) + 1)

    def timers_of_user(self) -> list[Timer]:
        """Return the timers of this turn's user, the next one first."""
        with self._lock:
            remaining = self._remaining_of_user()
        return sorted(remaining, key=lambda timer: timer.at)

    def _remaining_of_user(self) -> list[Timer]:
        """Return the timers of this turn's user that are not cancelled. The caller holds the lock."""
        of_user = [timer for timer in (*self.waiting, *self.added) if timer.user == self.user]
        return [timer for timer in of_user if timer.id not in self.cancelled]

    def cancel(self, timer_id: str) -> Timer | None:
        """Cancel a timer of this turn's user and return it; None if they have none of that id."""
        with self._lock:
            timers = self._remaining_of_user()
            timer = next((each for each in timers if each.id == timer_id), None)
            if timer is None:
                return None
            if timer in self.added:
                self.added.remove(timer)
            else:
                self.cancelled.append(timer_id)
            return timer

    def restore(self, change: TimerChange) -> None:
        """Make a change again that an earlier attempt at this turn made before its worker died.

        Nothing is checked: the change passed the checks of that attempt. If it were refused now,
        such as for a time that has passed meanwhile, the model's answer would promise a timer that
        does not exist.
        """
        if change.timer is None:
            self.cancel(change.cancelled_id)
            return
        with self._lock:
            self.added.append(change.timer)
