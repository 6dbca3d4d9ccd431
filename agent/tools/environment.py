"""What the code of a running tool can reach: files to send and received, choices, and timers.

All of it is in the ToolEnvironment, which adds fields to the CallContext of
`sayso.pending.call_context`. Tasks and threads that are started inside a block inherit it.
"""

from __future__ import annotations

import hashlib
import mimetypes
import re
import threading
import unicodedata
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar
from urllib.parse import urlsplit

from sayso.agent.messages import KeptText
from sayso.agent.tools.errors import ToolError
from sayso.channels.i18n.invisible import readable
from sayso.channels.i18n.texts import Texts, texts_for
from sayso.channels.inbound_limits import MAX_FILE_BYTES
from sayso.channels.types import Media, storable
from sayso.infra.storage.spooled import SpooledBytes
from sayso.pending.call_context import CallContext, call_context, own_context
from sayso.pending.limits import MAX_TIMERS
from sayso.pending.turns import Timer

#: The MIME type of bytes of unknown type.
UNKNOWN_MIME_TYPE = "application/octet-stream"
#: Largest artifact, in bytes: the limit of the media store.
MAX_ARTIFACT_BYTES = MAX_FILE_BYTES
#: Most labels of one offer. A button carries the index of its label as one digit.
MAX_CHOICES = 10
#: Longest label, in characters. Platforms shorten longer ones, or show them as a list.
MAX_LABEL_CHARS = 60
#: Most file names that the error for an unknown name lists.
MAX_LISTED_FILES = 20
#: How far ahead a message can be scheduled, in seconds.
HORIZON_SECONDS = 400 * 86_400.0
#: Longest scheduled text, in characters: it fits in one message of every platform.
MAX_TIMER_CHARS = 500
#: The error text outside of a channel's run, and for tools that run after a confirmation.
CANNOT_SCHEDULE = "Nothing can be scheduled here: that needs a channel, and a tool that its policy allows without a confirmation."
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file that a tool made: at a URL, or as its `content`.

    The caller of the run puts the content in the media store.
    """

    url: str = ""
    mime_type: str = UNKNOWN_MIME_TYPE
    filename: str = ""
    #: The digest by which the file can still be identified when the URL is gone; "" if unknown.
    sha256: str = ""
    #: In bytes.
    size: int = 0
    role: str = "primary"
    retention: str = ""
    #: Whether the model sees the file too, if it is an image.
    shown: bool = False
    #: The bytes, None for a file at a URL. They stay out of `to_dict`.
    content: SpooledBytes | None = field(default=None, repr=False, compare=False)
    #: The file in the media store, once it is stored. It stays out of `to_dict`.
    kept: Media | None = field(default=None, repr=False, compare=False)

    @property
    def data(self) -> bytes | None:
        """The bytes, read anew each time.

        None for a URL, and for a file that is in the media store.
        """
        if self.content:
            return self.content.read()
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return all fields except the bytes and the stored file, JSON-ready."""
        return {
            each.name: getattr(self, each.name)
            for each in fields(self)
            if each.name not in ("content", "kept")
        }


@dataclass(frozen=True, slots=True)
class ReceivedFile:
    """A file that the user of this turn sent in this conversation."""

    #: Pictures and voice messages come without a name: theirs is built from type and content.
    filename: str
    mime_type: str
    #: In bytes.
    size: int
    #: The SHA-256 of the bytes.
    ref: str
    #: Returns the bytes of a file by its `ref`. Raises KeyError if they were deleted.
    load: Callable[[str], bytes] = field(repr=False, compare=False)

    def read(self) -> bytes:
        """Return the bytes. Raises FileNotReceived for a file that was deleted after a week."""
        try:
            return self.load(self.ref)
        except KeyError:
            problem = f"file {self.filename!r} was deleted after a week: it must be sent again"
            raise FileNotReceived(problem) from None


#: Lists the files of the current user, oldest first.
FileListing = Callable[[], Sequence[ReceivedFile]]
#: Loads a stored text; None if it is not there any more.
TextLoader = Callable[[KeptText], Awaitable[str | None]]


class LongResult(NamedTuple):
    """A result that was shortened for the model."""

    tool_name: str
    #: The whole text.
    text: str
    #: How much of it the model may read at once.
    max_tokens: int


#: Finds a result of the run by its id. Raises ToolError with words for the model.
ResultFinder = Callable[[str], Awaitable[LongResult]]


class FileNotReceived(ToolError, ValueError):
    """Raised when the user sent no such file. The text says which files there are."""


class SchedulingError(ToolError):
    """Raised when a message cannot be scheduled; the text says why, in words for the user."""


@dataclass(frozen=True, slots=True)
class TimerChange:
    """One change that a tool call made to the timers.

    `timer` was added, or the timer of the id `cancelled` was removed.
    """

    timer: Timer | None = None
    cancelled: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the change as JSON-ready data."""
        if self.timer:
            return {"timer": asdict(self.timer)}
        return {"cancelled": self.cancelled}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TimerChange:
        """Return the change that `to_dict` wrote. Raises KeyError or TypeError on anything else."""
        if "timer" in data:
            return cls(Timer(**data["timer"]))
        return cls(cancelled=str(data["cancelled"]))


@dataclass
class ToolEnvironment(CallContext):
    """What running tools hand over, and what they can look up. None: not available here."""

    #: Collects the files that tools make.
    artifacts: list[Artifact] | None = None
    #: Where files wait for the media store. None: in the system's folder for temporary files.
    spool_folder: Path | None = None
    #: Collects the answers that tools offer as buttons.
    choices: list[str] | None = None
    #: Lists the files that the user sent.
    received_files: FileListing | None = None
    #: The scheduled messages of the conversation.
    timers: TurnTimers | None = None
    #: Collects what tools change in the timers.
    timer_changes: list[TimerChange] | None = None
    #: Kinds of prompt injection found in the outputs of tools.
    suspicions: list[str] | None = None
    #: The scope of the memory that the tools read and write. "" is a memory without an owner.
    memory_scope: str | None = None
    #: Loads the texts of the user's conversation that are stored in files.
    load_text: TextLoader | None = None
    #: Finds the results that the run may read on. None outside of runs.
    find_result: ResultFinder | None = None
    #: Whether the run that called the tool can wait for a decision about a call.
    pauses: bool = False


_OUTSIDE = ToolEnvironment()


def tool_environment() -> ToolEnvironment:
    """Return the environment of the code that runs now."""
    context = call_context()
    if isinstance(context, ToolEnvironment):
        return context
    return _OUTSIDE


@contextmanager
def collect_artifacts() -> Iterator[list[Artifact]]:
    """Collect what `emit_artifact` makes in this block, including tasks and threads started in it."""
    with own_context(ToolEnvironment) as own:
        own.artifacts = []
        yield own.artifacts


@contextmanager
def collect_choices() -> Iterator[list[str]]:
    """Collect what `offer_choices` offers in this block, including tasks and threads started in it."""
    with own_context(ToolEnvironment) as own:
        own.choices = []
        yield own.choices


def scope_digest(scope: str) -> str:
    """Return a stable name of a memory scope for keys, logs and spans.

    It has 32 hex digits, which do not reveal the scope.
    """
    return hashlib.sha256(scope.encode("utf-8", "surrogatepass")).hexdigest()[:32]


class ArtifactsOfCall:
    """Passes the artifacts made in this block to the run, unless the block raises.

    So a call that failed leaves no file behind, and a call that is repeated leaves its file once.
    Not a `contextmanager`, which would take as long as checking the arguments.
    """

    __slots__ = ("_block", "_outer", "_own")

    def __enter__(self) -> None:
        self._outer = tool_environment().artifacts
        if self._outer is not None:
            self._own: list[Artifact] = []
            self._block = own_context(ToolEnvironment)
            self._block.__enter__().artifacts = self._own

    def __exit__(self, kind: type[BaseException] | None, *exc_info: object) -> None:
        if self._outer is None:
            return
        self._block.__exit__(kind, *exc_info)
        if kind is None:
            self._outer += self._own


#: The scheme of a URL: at least two letters, since a path on Windows
#: begins with one letter and a colon.
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
#: Characters that no URL holds, but `urlsplit` ignores.
_UNPRINTABLE = re.compile(r"[\x00-\x20\x7f]")


def emit_artifact(
    source: str | Path | bytes | bytearray | memoryview,
    *,
    mime_type: str | None = None,
    filename: str = "",
    sha256: str = "",
    size: int = 0,
    role: str = "primary",
    retention: str = "",
    shown: bool = False,
) -> Artifact:
    """Send a file to the user from inside a tool: its URL, its path or its bytes.

    Text with a scheme is a URL, other text a path. Files and bytes are copied at once, to the disk
    if they are large, and go through the media store; their `sha256` and `size` (bytes) are
    computed. For a URL they are taken as given. A large file is best given as a path: it is never
    in memory as a whole. A call that fails delivers no file. Outside a run nothing is sent; the
    Artifact is returned all the same. With `shown`, a model that accepts images
    sees the image in this run.

    Raises ValueError for a URL that no platform can fetch, and for a file that does not exist, has
    more than MAX_ARTIFACT_BYTES, or for which the disk has no room.
    """
    url = ""
    url_path = ""
    content = None
    if isinstance(source, bytes | bytearray | memoryview):
        content = _copied_bytes(source, filename)
    elif isinstance(source, str) and _SCHEME.match(source):
        url = source
        url_path = _url_path(source)
    else:
        path = Path(source)
        content = _copied_file(path)
        filename = filename or path.name
    if content is not None:
        sha256 = content.sha256
        size = content.size

    mime_type = mime_type or mimetypes.guess_type(filename or url_path)[0] or UNKNOWN_MIME_TYPE
    artifact = Artifact(url, mime_type, filename, sha256, size, role, retention, shown, content)
    collected = tool_environment().artifacts
    if collected is not None:
        collected.append(artifact)
    return artifact


def _url_path(url: str) -> str:
    """Return the path of a URL, which may tell the MIME type.

    Raises ValueError if no platform can fetch it.
    """
    try:
        parts = urlsplit(url)
        can_be_fetched = (
            parts.scheme in ("http", "https") and parts.hostname and not _UNPRINTABLE.search(url)
        )
    except ValueError:  # brackets around something that is no IPv6 address
        can_be_fetched = False
    if not can_be_fetched:
        raise ValueError(
            f"no platform can fetch {url!r}: give an https URL, or the file itself as a Path or bytes"
        )
    return parts.path


def _copied_bytes(source: bytes | bytearray | memoryview, filename: str) -> SpooledBytes:
    """Return a copy: the tool may change its own. Raises ValueError."""
    with memoryview(source) as view:
        if view.nbytes > MAX_ARTIFACT_BYTES:
            raise ValueError(_too_large(filename or "artifact", view.nbytes))
        return _spooled(
            source if isinstance(source, bytes) else view.tobytes(), filename or "artifact"
        )


def _copied_file(path: Path) -> SpooledBytes:
    """Return a copy: the tool may remove its file. Raises ValueError."""
    if "\0" in str(path):
        raise ValueError(f"cannot read the artifact {str(path)!r}: no path holds a NUL character")
    try:
        size = path.stat().st_size
        if size > MAX_ARTIFACT_BYTES:
            raise ValueError(_too_large(path.name, size))
        with path.open("rb") as file:
            content = _spooled(file, path.name)
    except OSError as exc:
        raise ValueError(
            f"cannot read the artifact {str(path)!r} ({exc.strerror}): check the path"
        ) from exc
    if content.size > MAX_ARTIFACT_BYTES:  # it has grown, or has no size, as a device
        raise ValueError(_too_large(path.name, content.size))
    return content


def _spooled(source: bytes | BinaryIO, name: str) -> SpooledBytes:
    folder = tool_environment().spool_folder
    try:
        return SpooledBytes(source, folder=folder, most=MAX_ARTIFACT_BYTES)
    except OSError as exc:
        raise ValueError(f"{name!r} cannot be kept until it is sent: {exc.strerror}") from exc


def _too_large(name: str, size: int) -> str:
    return f"{name!r} has {size} bytes: at most {MAX_ARTIFACT_BYTES} can be sent"


def offer_choices(*labels: str) -> None:
    """Offer the user of the current turn these answers, as buttons under the reply.

    A tap on a button is a message of the user with the label as text; it never confirms anything. A
    second offer in the same turn replaces the first. On platforms without buttons the labels are
    listed. Outside a run this does nothing.

    Raises ValueError for no label or more than MAX_CHOICES, for two equal labels, and for a label
    that is empty or has more than MAX_LABEL_CHARS; TypeError for a label that is no text, such as a
    list of labels.
    """
    for label in labels:
        if not isinstance(label, str):
            raise TypeError(
                f"choice {label!r} is no text: give each label by itself, as in offer_choices(*labels)"
            )
    choices = [" ".join(readable(label).split()) for label in labels]
    if not 1 <= len(choices) <= MAX_CHOICES:
        raise ValueError(f"{len(choices)} choices cannot be offered: give 1 to {MAX_CHOICES}")
    for label in choices:
        if not 1 <= len(label) <= MAX_LABEL_CHARS:
            raise ValueError(
                f"choice {label!r} has {len(label)} characters: a button has 1 to {MAX_LABEL_CHARS}"
            )
    if len({label.casefold() for label in choices}) < len(choices):
        raise ValueError(f"choices {choices!r} contain a duplicate: make every label different")
    offered = tool_environment().choices
    if offered is not None:
        offered[:] = choices


def received_files() -> tuple[ReceivedFile, ...]:
    """Return the files that the user of this turn sent in this conversation, oldest first.

    Only those that the history remembers.

    In a group, files of other members are left out. Outside of a channel's turn there are none.
    """
    listing = tool_environment().received_files
    if listing is None:
        return ()
    return tuple(listing())


def received_file(name: str = "") -> ReceivedFile:
    """Return the last file of this name that the user sent; without a name, the last file of all.

    Case is ignored; and, if no file has exactly this name, all but letters and digits, since the
    model reads names with other brackets and without invisible characters.

    A tool that runs after a confirmation finds the files that were there when it was proposed: a
    file that arrives in between cancels the question, as any other message does. Raises
    FileNotReceived, a ToolError and a ValueError.
    """
    files = received_files()
    matches = [each for each in files if not name or each.filename.casefold() == name.casefold()]
    if not matches:
        letters = _letters_of(name)
        matches = [each for each in files if letters and _letters_of(each.filename) == letters]
    if matches:
        return matches[-1]
    available = "no file was sent in this conversation yet"
    if files:
        names = [each.filename for each in files[-MAX_LISTED_FILES:]]
        available = f"there are {names!r}"
    if not name:
        raise FileNotReceived(available)
    raise FileNotReceived(f"file {name!r} was not sent: {available}")


def _letters_of(name: str) -> str:
    """Return the letters and digits of a name in lower case.

    An accent may be a character of its own in some names.
    """
    return "".join(filter(str.isalnum, unicodedata.normalize("NFC", name).casefold()))


@dataclass(slots=True)
class TurnTimers:
    """The timers of one turn.

    They are those of its conversation, and the changes that are stored when the turn is committed.

    `now` is when the turn was received, by the server's clock, in Unix seconds. Locked, because the
    tools of one answer run in threads of their own.
    """

    user: str
    now: float
    language: str
    waiting: tuple[Timer, ...] = ()
    added: list[Timer] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, text: str, at: float, note: str) -> Timer:
        """Add a timer that says `text` at `at` (Unix seconds). Raises SchedulingError."""
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
            numbers = [
                int(timer.id) for timer in (*self.waiting, *self.added) if timer.id.isdecimal()
            ]
            timer_id = str(max(numbers, default=0) + 1)
            timer = Timer(
                timer_id, round(at, 3), storable(text), self.user, storable(note), self.language
            )
            self.added.append(timer)
            _record(TimerChange(timer))
            return timer

    def own(self) -> list[Timer]:
        """Return the timers of this turn's user, the next one first."""
        with self._lock:
            own = [timer for timer in (*self.waiting, *self.added) if timer.user == self.user]
            return sorted(
                (timer for timer in own if timer.id not in self.cancelled),
                key=lambda timer: timer.at,
            )

    def cancel(self, timer_id: str) -> Timer | None:
        """Cancel a timer of this turn's user and return it; None if there is none of that id."""
        timer = next((each for each in self.own() if each.id == timer_id), None)
        if timer is None:
            return None
        with self._lock:
            if timer in self.added:
                self.added.remove(timer)
            else:
                self.cancelled.append(timer_id)
            _record(TimerChange(cancelled=timer_id))
        return timer

    def restore(self, change: TimerChange) -> None:
        """Repeat a change that an earlier attempt at this turn made."""
        if change.timer is None:
            self.cancel(change.cancelled)
        else:
            self.added.append(change.timer)


def _record(change: TimerChange) -> None:
    changes = tool_environment().timer_changes
    if changes is not None:
        changes.append(change)


def restore_timers(changes: Iterable[TimerChange]) -> None:
    """Repeat changes that an earlier attempt at this turn made.

    Does nothing where nothing can be scheduled.
    """
    timers = tool_environment().timers
    if timers is not None:
        for change in changes:
            timers.restore(change)


def schedule_reply(text: str, at: float, *, note: str = "") -> Timer:
    """Say `text` in this conversation at `at` (Unix seconds), once; `scheduled` lists it by `note`.

    The text is shown literally, unless it is `Markdown`.

    The text is marked as scheduled, in the user's language, so that it cannot pass for a question
    of the bot. The timer is set when the turn is committed; a turn that fails sets none. Raises
    SchedulingError if the time is in the past or too far ahead, if the text is too long, if the
    conversation has too many timers, and outside of a turn.
    """
    timers = _timers()
    return timers.add(texts_for(timers.language).scheduled(text), at, note or text)


def remind(text: str, at: float) -> Timer:
    """Remind the user of `text` at `at` (Unix seconds), in their language.

    Raises SchedulingError.
    """
    timers = _timers()
    return timers.add(texts_for(timers.language).reminder(text), at, text)


def scheduled() -> list[Timer]:
    """Return this user's timers in this conversation, the next one first.

    Raises SchedulingError.
    """
    return _timers().own()


def cancel_scheduled(timer_id: str) -> Timer | None:
    """Cancel one of this user's timers and return it; None if there is none of that id.

    Raises SchedulingError.
    """
    return _timers().cancel(timer_id)


def time_of_turn() -> float:
    """Return when the user's message was received, in Unix seconds by the server's clock.

    Raises SchedulingError.
    """
    return _timers().now


def texts_of_turn() -> Texts:
    """Return Sayso's texts in the language of this user. Raises SchedulingError."""
    return texts_for(_timers().language)


def _timers() -> TurnTimers:
    timers = tool_environment().timers
    if timers is None:
        raise SchedulingError(CANNOT_SCHEDULE)
    return timers
