"""What the code of a running tool can use besides its arguments.

A tool may send files (`emit_artifact`), read the files that the user sent (`received_file`), offer
answers as buttons (`offer_choices`), and send messages later (`scheduling.py`). Each of these is a
plain function that a tool imports and calls.

The functions find their data in the ToolEnvironment. It extends the CallContext of
`sayso.pending.call_context`, which is one context variable: the run sets it for each call of a
tool, and the tasks and threads that the tool starts inherit it. Outside a run its fields are None.
"""

from __future__ import annotations

import hashlib
import mimetypes
import re
import unicodedata
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import urlsplit

from sayso.agent.messages import TextReference
from sayso.agent.tools.errors import ToolError
from sayso.agent.tools.timers import TimerChange, TurnTimers
from sayso.channels.i18n.invisible import readable
from sayso.channels.inbound_limits import MAX_FILE_BYTES
from sayso.channels.types import Media
from sayso.infra.storage.spooled import SpooledBytes
from sayso.pending.call_context import CallContext, call_context, own_context

#: The MIME type of bytes of unknown type.
UNKNOWN_MIME_TYPE = "application/octet-stream"
#: Largest artifact, in bytes: the limit of the media store, which is that of received files.
MAX_ARTIFACT_BYTES = MAX_FILE_BYTES
#: Most labels of one offer of choices. A button carries the index of its label as one digit.
MAX_CHOICES = 10
#: Longest label, in characters. Platforms shorten longer ones, or show them as a list.
MAX_LABEL_CHARS = 60
#: Most file names that the error for an unknown name lists.
MAX_LISTED_FILES = 20


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file that a tool sends: at a `url`, or as its `content`.

    The caller of the run puts the content in the media store, from where it is delivered. From then
    on the file has its `media` instead.
    """

    #: Where the platform fetches the file; "" for a file that has `content` or `media`.
    url: str = ""
    mime_type: str = UNKNOWN_MIME_TYPE
    filename: str = ""
    #: The digest in hex, which still identifies the file when the URL is gone; "" if unknown.
    sha256: str = ""
    #: In bytes; 0 if unknown.
    size: int = 0
    #: What the file is for, as the tool calls it. Sayso does not use it; a program reads it in
    #: `AgentResult.artifacts`.
    role: str = "primary"
    #: How long to store the file, as the tool calls it; "" for nothing said. Sayso does not use it
    #: either.
    retention: str = ""
    #: Whether the model sees the file too, if it is an image.
    shown: bool = False
    #: The bytes; None for a file at a URL or in the media store. They are left out of `to_dict`.
    content: SpooledBytes | None = field(default=None, repr=False, compare=False)
    #: The file in the media store; None until it is stored. It is left out of `to_dict`.
    media: Media | None = field(default=None, repr=False, compare=False)

    @property
    def data(self) -> bytes | None:
        """The bytes, read anew each time.

        None for a file at a URL, and for a file in the media store.
        """
        if self.content:
            return self.content.read()
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return all fields except `content` and `media`, ready for JSON."""
        return {
            each.name: getattr(self, each.name)
            for each in fields(self)
            if each.name not in ("content", "media")
        }


@dataclass(frozen=True, slots=True)
class ReceivedFile:
    """A file that the user of this turn sent in this conversation."""

    #: Pictures and voice messages come without a name. Sayso makes one of their type and content.
    filename: str
    mime_type: str
    #: In bytes.
    size: int
    #: The SHA-256 of the bytes in hex, which is the id of the file in the media store.
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
#: Loads a long text that the history only refers to; None if it is not stored any more.
TextLoader = Callable[[TextReference], Awaitable[str | None]]


class LongResult(NamedTuple):
    """A tool's result in full. The model was only shown its beginning and its end."""

    tool_name: str
    #: The whole text.
    text: str
    #: How many tokens of it the model may read at once.
    max_tokens: int


#: Finds a shortened result of the run by its id. Raises ToolError with words for the model.
ResultFinder = Callable[[str], Awaitable[LongResult]]


class FileNotReceived(ToolError, ValueError):
    """Raised for a file that the user did not send, or that was deleted.

    The text names the files that there are, or says that the file must be sent again.
    """


@dataclass
class ToolEnvironment(CallContext):
    """What a running tool hands over besides its result, and what it can look up.

    A list collects what the tool hands over. A field that is None is not available to the code that
    runs now. The fields are set at the beginning of a block `with own_context(ToolEnvironment)`:
    it copies the environment of the code around it, and the block has the copy.
    """

    #: Collects the files that the tool sends.
    artifacts: list[Artifact] | None = None
    #: Where files wait for the media store. None: in the system's folder for temporary files.
    spool_folder: Path | None = None
    #: Collects the answers that the tool offers as buttons.
    choices: list[str] | None = None
    #: Lists the files that the user sent.
    received_files: FileListing | None = None
    #: The scheduled messages of the conversation.
    timers: TurnTimers | None = None
    #: Collects what the tool changes in `timers`.
    timer_changes: list[TimerChange] | None = None
    #: Collects the kinds of prompt injection that were found in the outputs of tools.
    suspicions: list[str] | None = None
    #: Whose memory the tools read and write, such as that of one user in one chat. "": a memory that
    #: all runs of the agent share. None: no scope says whose it would be, so nothing is written.
    memory_scope: str | None = None
    #: Loads the whole of a long text of the user's conversation, which is stored in a file.
    load_text: TextLoader | None = None
    #: Finds the shortened results of the run, so that the model can read on in them.
    find_result: ResultFinder | None = None
    #: Whether the run that called the tool can wait for a decision about a call.
    may_pause: bool = False


#: The environment of code that no run has called.
_OUTSIDE = ToolEnvironment()


def tool_environment() -> ToolEnvironment:
    """Return the environment of the code that runs now; an empty one outside of a run."""
    context = call_context()
    if isinstance(context, ToolEnvironment):
        return context
    return _OUTSIDE


@contextmanager
def collect_artifacts() -> Iterator[list[Artifact]]:
    """Collect the files that `emit_artifact` makes in this block.

    Tasks and threads that are started in the block count too.
    """
    with own_context(ToolEnvironment) as own:
        own.artifacts = []
        yield own.artifacts


@contextmanager
def collect_choices() -> Iterator[list[str]]:
    """Collect the labels that `offer_choices` offers in this block.

    Tasks and threads that are started in the block count too.
    """
    with own_context(ToolEnvironment) as own:
        own.choices = []
        yield own.choices


def scope_digest(scope: str) -> str:
    """Return a stable name of a memory scope (`ToolEnvironment.memory_scope`) for keys and logs.

    It has 32 hex digits, which do not reveal the scope.
    """
    # A scope may hold lone surrogates: it contains ids that a platform or a program chose.
    return hashlib.sha256(scope.encode("utf-8", "surrogatepass")).hexdigest()[:32]


class ArtifactsOfCall:
    """A block that passes the artifacts made in it to the run, unless the block raises.

    So a call that failed leaves no file behind, and a call that is repeated leaves its file once.
    Outside a run it does nothing. It is not a `contextmanager`, since that would take as long as
    checking the arguments.
    """

    __slots__ = ("_artifacts_of_call", "_artifacts_of_run", "_context")

    def __enter__(self) -> None:
        self._artifacts_of_run = tool_environment().artifacts
        if self._artifacts_of_run is None:
            return
        self._artifacts_of_call: list[Artifact] = []
        self._context = own_context(ToolEnvironment)
        own = self._context.__enter__()
        own.artifacts = self._artifacts_of_call

    def __exit__(self, kind: type[BaseException] | None, *exc_info: object) -> None:
        if self._artifacts_of_run is None:
            return
        self._context.__exit__(kind, *exc_info)
        if kind is None:
            self._artifacts_of_run.extend(self._artifacts_of_call)


#: The scheme of a URL: at least two letters, since a path on Windows begins with one letter and a
#: colon.
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
    """Send a file to the user from inside a tool. Outside a run nothing is sent.

    Files and bytes are copied at once, to the disk if they are large, and go through the media
    store. A large file is best given as a path: it is never in memory as a whole. A call that fails
    delivers no file.

    Args:
        source: The bytes, a path, or text. Text with a scheme is a URL, other text a path.
        mime_type: None to guess it from the filename or the URL.
        filename: The name that the user sees; "" for the name of the path.
        sha256: The digest of the file at a URL, in hex. It is computed for files and bytes.
        size: The size of the file at a URL, in bytes. It is computed for files and bytes.
        role: What the file is for, for a program that reads the Artifact. Sayso does not use it.
        retention: How long to store it, for the same program.
        shown: Whether a model that accepts images sees the image in this run.

    Returns the Artifact, also outside a run. Raises ValueError for a URL that no platform can
    fetch, and for a file that does not exist, has more than MAX_ARTIFACT_BYTES, or for which the
    disk has no room.
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

    if not mime_type:
        guessed_type, _ = mimetypes.guess_type(filename or url_path)
        mime_type = guessed_type or UNKNOWN_MIME_TYPE
    artifact = Artifact(
        url=url,
        mime_type=mime_type,
        filename=filename,
        sha256=sha256,
        size=size,
        role=role,
        retention=retention,
        shown=shown,
        content=content,
    )
    artifacts = tool_environment().artifacts
    if artifacts is not None:
        artifacts.append(artifact)
    return artifact


def _url_path(url: str) -> str:
    """Return the path of a URL, whose ending may tell the MIME type.

    Raises ValueError for a URL that no platform can fetch.
    """
    try:
        parts = urlsplit(url)
        is_web_address = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:  # brackets around something other than an IPv6 address
        is_web_address = False
    if not is_web_address or _UNPRINTABLE.search(url):
        raise ValueError(
            f"no platform can fetch {url!r}: "
            "give an https URL, or the file itself as a Path or bytes"
        )
    return parts.path


def _copied_bytes(source: bytes | bytearray | memoryview, filename: str) -> SpooledBytes:
    """Return a copy of the bytes, since the tool may change its own. Raises ValueError."""
    name = filename or "artifact"
    with memoryview(source) as view:
        # Before any copy is made. A view may have items of several bytes, so `len` would be wrong.
        if view.nbytes > MAX_ARTIFACT_BYTES:
            raise ValueError(_too_large(name, view.nbytes))
        unchangeable = source if isinstance(source, bytes) else view.tobytes()
    return _spooled(unchangeable, name)


def _copied_file(path: Path) -> SpooledBytes:
    """Return a copy of the file, since the tool may remove it. Raises ValueError."""
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
    # It has grown meanwhile, or it is a device, which has no size. SpooledBytes stops reading one
    # byte beyond the limit.
    if content.size > MAX_ARTIFACT_BYTES:
        raise ValueError(_too_large(path.name, content.size))
    return content


def _spooled(source: bytes | BinaryIO, name: str) -> SpooledBytes:
    """Return a copy that waits for the media store. Raises ValueError if the disk has no room.

    Of a source that is too large, the copy has one byte more than MAX_ARTIFACT_BYTES.
    """
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

    Raises ValueError for no label or more than MAX_CHOICES, for two labels that differ in case
    alone, and for a label that is empty or has more than MAX_LABEL_CHARS; TypeError for a label
    that is no text, such as a list of labels.
    """
    for label in labels:
        if not isinstance(label, str):
            raise TypeError(
                f"choice {label!r} is no text: "
                "give each label by itself, as in offer_choices(*labels)"
            )

    # A label is shown on one line, and its invisible characters as codes: two labels must not look
    # alike and mean different things.
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

    choices_of_turn = tool_environment().choices
    if choices_of_turn is not None:
        choices_of_turn[:] = choices


def received_files() -> tuple[ReceivedFile, ...]:
    """Return the files that the user of this turn sent in this conversation, oldest first.

    These are the files in the messages that the stored history still holds. In a group, files of
    other members are left out. Outside of a channel's turn there are none.
    """
    listing = tool_environment().received_files
    if listing is None:
        return ()
    return tuple(listing())


def received_file(name: str = "") -> ReceivedFile:
    """Return the last file of this name that the user sent; without a name, the last file of all.

    Upper and lower case are the same. If no file has the name, names that have the same letters and
    digits match: a model reads names with other brackets and without invisible characters, and asks
    for them so.

    A tool that runs after a confirmation finds the files that were there when it was proposed: a
    file that arrives in between cancels the question, as any other message does.

    Raises FileNotReceived, which is a ToolError and a ValueError.
    """
    files = received_files()
    if not files:
        available = "no file was sent in this conversation yet"
    else:
        names = [each.filename for each in files[-MAX_LISTED_FILES:]]
        available = f"there are {names!r}"

    if not name:
        if not files:
            raise FileNotReceived(available)
        return files[-1]

    matches = [each for each in files if each.filename.casefold() == name.casefold()]
    letters = _letters_of(name)
    if not matches and letters:
        matches = [each for each in files if _letters_of(each.filename) == letters]
    if not matches:
        raise FileNotReceived(f"file {name!r} was not sent: {available}")
    return matches[-1]


def _letters_of(name: str) -> str:
    """Return the letters and digits of a name in lower case."""
    # Some systems write an accent as a separate character, which is no letter and would be lost.
    composed = unicodedata.normalize("NFC", name)
    return "".join(filter(str.isalnum, composed.casefold()))
