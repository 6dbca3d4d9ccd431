"""ToolContext: artifacts, files, timers, proposals in ONE context variable (10 today)."""

from __future__ import annotations

import hashlib
import inspect
import mimetypes
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

from sayso.agent.tools.errors import LEAVES, ToolError, ToolExecutionError
from sayso.channels.i18n.invisible import readable
from sayso.channels.i18n.texts import Texts, texts_for
from sayso.channels.media import MAX_BYTES
from sayso.channels.types import Media, storable
from sayso.pending.concurrency import installed
from sayso.pending.context import with_context
from sayso.pending.proposals import current_context
from sayso.pending.turns.change import MAX_TIMERS, Timer

#: The MIME type of bytes that nobody named.
UNKNOWN_MIME_TYPE = "application/octet-stream"


#: Bytes of one artifact: what the media store takes.
MAX_ARTIFACT_BYTES = MAX_BYTES


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file made by a tool: at a URL, or as the bytes in `data`, which the run's caller puts in the media store.

    `sha256` and `size` tell which file it was after the URL is gone. `data` stays out of repr and `to_dict`; so does
    `kept`, the file in the media store once it is there. One that is `shown` is an image that the model looks at, too.
    """

    url: str = ""
    mime_type: str = UNKNOWN_MIME_TYPE
    filename: str = ""
    sha256: str = ""
    size: int = 0
    role: str = "primary"
    retention: str = ""
    shown: bool = False
    data: bytes | None = field(default=None, repr=False, compare=False)
    kept: Media | None = field(default=None, repr=False, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the bytes, JSON-ready."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name not in ("data", "kept")}


#: A path may have a colon, too, and on Windows begins with one letter and it.
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


#: What a URL cannot hold, and what Python's own reader of URLs passes over.
_UNPRINTED = re.compile(r"[\x00-\x20\x7f]")


_collector: ContextVar[list[Artifact] | None] = ContextVar("sayso_artifacts", default=None)


def collect_artifacts() -> AbstractContextManager[list[Artifact]]:
    """Collect what `emit_artifact` makes in this context, in the tasks and in the threads started from it."""
    return installed(_collector, [])


class ArtifactsOfACall:
    """What is made inside reaches the run only when nothing is raised: a call that failed leaves no file behind, and
    one that is made again leaves it once.

    No `contextmanager`, which would take as long as checking the arguments.
    """

    __slots__ = ("_outer", "_token")

    def __enter__(self) -> None:
        self._outer = _collector.get()
        if self._outer is not None:
            self._token = _collector.set([])

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._outer is None:
            return
        made = _collector.get() or []
        _collector.reset(self._token)
        if kind is None:
            self._outer += made


def emit_artifact(
    source: str | Path | bytes | bytearray | memoryview | None = None,
    *,
    url: str | None = None,
    path: str | Path | None = None,
    data: bytes | bytearray | memoryview | None = None,
    mime_type: str | None = None,
    filename: str = "",
    sha256: str = "",
    size: int = 0,
    role: str = "primary",
    retention: str = "",
    shown: bool = False,
) -> Artifact:
    """Hand a file to the user from inside a tool: exactly one of its URL, its path or its bytes.

    The `source` may be any of them: text with a scheme is a URL, other text a path. Files and bytes go through the
    media store; their `sha256` and `size` (bytes) are computed, and for a URL they are taken as given. A call that
    fails delivers none. Outside a run nothing collects it; the Artifact comes back all the same (seed: Artifacts).
    Raises ValueError for anything but one source, for a URL that no platform can fetch, and for a file that is not
    there or has more than MAX_ARTIFACT_BYTES. An image that is `shown` is seen by the model in this run, if it can see.
    """
    if sum(each is not None for each in (source, url, path, data)) != 1:
        raise ValueError("emit_artifact needs exactly one of url, path= or data=")
    if isinstance(source, bytes | bytearray | memoryview):
        data = source
    elif isinstance(source, Path) or (isinstance(source, str) and not _SCHEME.match(source)):
        path = source
    elif source is not None:
        url = source
    place = _place(url) if url is not None else ""
    if path is not None:
        data, filename = _read(Path(path)), filename or Path(path).name
    data = None if data is None else bytes(data)  # a copy: the tool may go on with its own
    if data is not None and len(data) > MAX_ARTIFACT_BYTES:
        raise ValueError(f"{filename or 'artifact'!r} has {len(data)} bytes: at most {MAX_ARTIFACT_BYTES} can be sent")
    if data is not None:  # what we can count ourselves we do not take on trust
        sha256, size = hashlib.sha256(data).hexdigest(), len(data)
    mime_type = mime_type or mimetypes.guess_type(filename or place)[0] or UNKNOWN_MIME_TYPE
    artifact = Artifact(url or "", mime_type, filename, sha256, size, role, retention, shown, data)
    collected = _collector.get()
    if collected is not None:
        collected.append(artifact)
    return artifact


def _place(url: str) -> str:
    """The path of a URL, which is what names its kind. Raises ValueError for one that no platform can fetch."""
    try:
        parts = urlsplit(url)
        can_be_fetched = parts.scheme in ("http", "https") and parts.hostname and not _UNPRINTED.search(url)
    except ValueError:  # brackets that hold no address
        can_be_fetched = False
    if not can_be_fetched:
        raise ValueError(f"no platform can fetch {url!r}: give an https URL, or the file itself with path= or data=")
    return parts.path


def _read(path: Path) -> bytes:
    if "\0" in str(path):
        raise ValueError(f"cannot read the artifact {str(path)!r}: no path holds a NUL character")
    try:
        if path.stat().st_size > MAX_ARTIFACT_BYTES:
            raise ValueError(f"{path.name!r} has {path.stat().st_size} bytes: at most {MAX_ARTIFACT_BYTES} can be sent")
        return path.read_bytes()
    except OSError as exc:
        raise ValueError(f"cannot read the artifact {str(path)!r} ({exc.strerror}): check the path") from exc


#: Says what to inject now: a mapping or None, or a context manager or generator of one, closed after the call. It may
#: have one ToolContext parameter.
Injector = Callable[..., Any]


class Injected(Mapping[str, Any]):
    """Values by name that nobody can change, and that no log and no record shows."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"<injected: {', '.join(self._values) or 'nothing'}>"

    def __copy__(self) -> Injected:
        return self

    def __deepcopy__(self, _: Any) -> Injected:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("what is injected into a tool cannot be pickled: it may be secret")


class HiddenArguments:
    """What is injected into one tool: `fixed` values, and what its author's injector returns at each call.

    A name that was injected once, and what is `unfillable` by a model, stays hidden for as long as the program lives:
    an injector that leaves a name out does not hand it to the model.
    """

    def __init__(
        self, tool_name: str, fixed: Mapping[str, Any], injector: Injector | None, unfillable: Collection[str] = ()
    ) -> None:
        self._tool_name = tool_name
        self._fixed = dict(fixed)
        self._injector = injector
        self._hidden = {*fixed, *unfillable}
        self._asked = injector is None

    def hidden(self) -> frozenset[str]:
        """The names that no model fills; the first time, the injector is asked. Raises ToolExecutionError."""
        if not self._asked:
            self.values()
        return frozenset(self._hidden)

    def values(self) -> dict[str, Any]:
        """Return what is injected now, and close it at once. Raises ToolExecutionError like `opened`."""
        with self.opened() as values:
            return values

    @contextmanager
    def opened(self) -> Iterator[dict[str, Any]]:
        """Yield what is injected now; what the injector opened is closed afterwards.

        An injector returns a mapping or None, or a context manager that yields one; a generator function that yields
        one is taken for a context manager. One with a ToolContext parameter is told who speaks. Raises
        ToolExecutionError when it fails, or returns something else. An error of the tool that the context manager
        swallows is raised all the same: a failed call is never taken for one that is done.
        """
        if self._injector is None:
            yield self._fixed
            return
        failure: BaseException | None = None
        with ExitStack() as stack:
            try:
                returned = self._injector(**with_context(self._injector, current_context))
                manager = _manager_of(returned)
                if manager is not None:
                    returned = stack.enter_context(manager)
                current = {} if returned is None else dict(returned) if isinstance(returned, Mapping) else None
            except (Exception, *LEAVES) as exc:
                raise ToolExecutionError(
                    f"the config_injector of {self._tool_name!r} failed: {type(exc).__name__}: {exc}",
                    tool_name=self._tool_name, error=exc,
                ) from exc  # fmt: skip
            if current is None or not all(isinstance(name, str) for name in current):
                if inspect.iscoroutine(returned):
                    returned.close()  # which nobody waits for
                raise ToolExecutionError(
                    f"the config_injector of {self._tool_name!r} returned a {type(returned).__name__}: "
                    "return a dict of names and values, or None",
                    tool_name=self._tool_name,
                )
            self._hidden.update(current)
            self._asked = True
            try:
                yield {**self._fixed, **current}
            except BaseException as exc:
                failure = exc
                raise
        if failure is not None:
            raise failure


def _manager_of(returned: Any) -> AbstractContextManager[Any] | None:
    """Return the context manager that an injector returned, or that its generator is; None for anything else."""
    if inspect.isgenerator(returned):
        return contextmanager(lambda: returned)()
    return returned if isinstance(returned, AbstractContextManager) else None


#: Labels of one offer: more are no choice but a list, and a button says which one it is by one digit.
MAX_CHOICES = 10


#: Characters of a label. Platforms show long ones in fewer, or as a list.
MAX_LABEL_CHARS = 60


_offered: ContextVar[list[str] | None] = ContextVar("sayso_choices", default=None)


def collect_choices() -> AbstractContextManager[list[str]]:
    """Collect what is offered in this context, in the tasks and in the threads started from it."""
    return installed(_offered, [])


def offer_choices(*labels: str) -> None:
    """Offer the user of the current turn these answers, as buttons under its reply.

    A tap on one is a message of theirs that says the label; it never confirms anything. What was offered before in the
    same turn is replaced. Where there are no buttons the labels are listed. Outside a run this is a no-op.

    Raises ValueError for none or more than MAX_CHOICES, for two alike, and for a label that is empty or has more than
    MAX_LABEL_CHARS.
    """
    seen = [" ".join(readable(label).split()) for label in labels]
    if not 1 <= len(seen) <= MAX_CHOICES:
        raise ValueError(f"{len(seen)} choices cannot be offered: give 1 to {MAX_CHOICES}")
    for label in seen:
        if not 1 <= len(label) <= MAX_LABEL_CHARS:
            raise ValueError(f"choice {label!r} has {len(label)} characters: a button has 1 to {MAX_LABEL_CHARS}")
    if len({label.casefold() for label in seen}) < len(seen):
        raise ValueError(f"choices {seen!r} hold one twice: nobody could tell them apart")
    offered = _offered.get()
    if offered is not None:
        offered[:] = seen


#: Names that are told to whoever asks for one that was not sent.
MAX_NAMES = 20


@dataclass(frozen=True, slots=True)
class ReceivedFile:
    """A file that the person of this turn sent in this conversation. `ref` is the SHA-256 of its `size` bytes.

    A picture or a voice message comes without a name: its `filename` is made of its type and its content.
    """

    filename: str
    mime_type: str
    size: int
    ref: str
    load: Callable[[str], bytes] = field(repr=False, compare=False)

    def read(self) -> bytes:
        """Its bytes. Raises ValueError for one that is not kept any more: each is, for a week."""
        try:
            return self.load(self.ref)
        except KeyError:
            raise ValueError(f"file {self.filename!r} is not kept any more: it must be sent again") from None


#: Lists the files of whoever speaks, oldest first.
Listing = Callable[[], Sequence[ReceivedFile]]


_listing: ContextVar[Listing | None] = ContextVar("sayso_received", default=None)


def handing(listing: Listing) -> AbstractContextManager[Listing]:
    """For as long as this lasts, these are what was sent: also in tasks and threads that are started from here."""
    return installed(_listing, listing)


def received_files() -> tuple[ReceivedFile, ...]:
    """The files that the person of this turn sent in this conversation, as far as it is remembered, oldest first.

    Nobody else's, in a group either. Outside of a channel's turn there are none.
    """
    listing = _listing.get()
    return () if listing is None else tuple(listing())


def received_file(name: str = "") -> ReceivedFile:
    """The file of this name that the person sent last, in upper or lower case; without a name, the last one of all.

    What runs after a yes finds what was there when it was proposed: a file that comes in between makes the question
    void, as any other message does. Raises ValueError, in words for the model, when there is none.
    """
    files = received_files()
    found = [each for each in files if not name or each.filename.casefold() == name.casefold()]
    if found:
        return found[-1]
    names = [each.filename for each in files[-MAX_NAMES:]]
    there = f"there are {names!r}" if names else "no file was sent in this conversation yet"
    raise ValueError(f"file {name!r} was not sent: {there}" if name else there)


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
    return book.add(texts_for(book.language).reminder(text), at, text)


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
    return texts_for(_open_book().language)


def _note(change: TimerChange) -> None:
    made = _made.get()
    if made is not None:
        made.append(change)


def _open_book() -> TimerBook:
    book = _book.get()
    if book is None:
        raise SchedulingError(NO_BOOK)
    return book
