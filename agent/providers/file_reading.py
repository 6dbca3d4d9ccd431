"""FileReading: reads the files of a conversation for a request to a model.

A model that cannot read a file gets a line with its name instead. A request holds the bytes of its
files in memory, so all requests of an event loop share one limit.
"""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from weakref import WeakKeyDictionary

from sayso.agent.messages import Message, Picture, Role
from sayso.agent.tools.screening import fenced, inert
from sayso.channels.media_store import settle_type
from sayso.channels.types import Media
from sayso.infra.concurrency import call_in_thread, call_in_tool_thread

log = logging.getLogger(__name__)
#: Returns the bytes of a file.
LoadMedia = Callable[[Media], bytes]
#: How many characters of a text file a model is sent.
MAX_TEXT_CHARS = 20_000
#: How many characters of a file's name a model is sent.
MAX_NAME_CHARS = 120
#: How many bytes of users' files all requests of an event loop may hold at a time. Each byte takes
#: about five bytes of memory: raw, in base64 and in the request body. 40 users who send 12 MB each
#: cost a worker about 95 MB over idle.
MAX_BYTES_AT_ONCE = 12_000_000
#: Why a model does not get a file, where the files of its request would be too large together.
NO_ROOM = "there is no room for it beside newer files"
#: How long converting a voice message may take, in seconds.
CONVERT_SECONDS = 20.0
#: Types of text that do not begin with text/.
_TEXT_TYPES = frozenset(
    f"application/{subtype}" for subtype in ("json", "csv", "xml", "yaml", "x-yaml", "x-ndjson")
)
#: Other spellings of MIME types -> the usual one.
_SPELLINGS = {
    "image/jpg": "image/jpeg",
    "audio/mp3": "audio/mpeg",
    "audio/x-wav": "audio/wav",
    "audio/wave": "audio/wav",
    "audio/opus": "audio/ogg",
    "application/ogg": "audio/ogg",
}
#: Types that are verified by the first bytes of a file. Vendors refuse a request with a file of
#: another type than its declared one, and as the file stays in the transcript, every later request
#: too.
_VERIFIABLE = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf"})
#: What a model reads in place of a tool's image that it is not sent.
_UNSEEN = "[you cannot see the image]"
#: The type that voice messages are converted to for models that accept it.
_CONVERTED_TYPE = "audio/mpeg"


@dataclass(frozen=True, slots=True)
class Binary:
    """A file that is sent as such."""

    data: bytes
    mime_type: str


@dataclass(frozen=True, slots=True)
class MessageWithFiles:
    """A message of a conversation with its files, as the model gets them."""

    message: Message
    #: Each file as a file, or as a text: that of a text file, or a line with the file's name.
    files: tuple[str | Binary, ...] = ()


@dataclass(frozen=True, slots=True)
class FileReading:
    """Reads the files of one request."""

    #: Returns the bytes of a file. None: no file can be loaded.
    load: LoadMedia | None
    #: The MIME types that the model takes as files.
    accepts: Collection[str]
    #: The most bytes of one file.
    max_bytes: int
    #: The most bytes of all files together.
    max_request_bytes: int

    @asynccontextmanager
    async def holding(self, messages: Sequence[Message]) -> AsyncIterator[list[MessageWithFiles]]:
        """Yield what `read` returns, and hold memory for the files until the block ends.

        All requests of one event loop share MAX_BYTES_AT_ONCE. A request waits until enough of it
        is free.
        """
        size = 0
        for message in messages:
            if message.role is Role.USER:
                size += sum(map(self._bytes_to_load, message.media))
        # A file without a size counts as nothing here: it is checked once it is loaded.
        memory = _memory_by_loop.setdefault(asyncio.get_running_loop(), _SharedMemory())
        async with memory.reserved(size):
            yield await self.read(messages)

    async def read(self, messages: Sequence[Message]) -> list[MessageWithFiles]:
        """Return every message with its files.

        If not all files fit, the newest are taken. Raise nothing.
        """
        results = list[MessageWithFiles]()
        room = self.max_request_bytes
        for message in reversed(messages):
            files = list[str | Binary]()
            sources: tuple[Media | Picture, ...] = (*message.media, *message.pictures)
            for source in sources:
                if isinstance(source, Media):
                    file = await self._file(message, source, room)
                else:
                    file = await self._picture(source, room)
                if isinstance(file, Binary):
                    room -= len(file.data)
                files.append(file)
            results.append(MessageWithFiles(message, tuple(files)))
        return results[::-1]

    def _bytes_to_load(self, media: Media) -> int:
        """Return how many bytes of a user's file are loaded, as the platform names its size."""
        mime_type = _mime_type_of(media)
        if not self._is_readable(mime_type):
            return 0
        # A model reads only the beginning of a large text file, but all of the file is loaded.
        if media.size > self.max_bytes and not _is_text(mime_type):
            return 0
        return media.size

    def _refusal(self, size: int, room: int) -> str:
        """Return why a file of this size is not sent, "" if it is sent.

        `room` is how many bytes the request has left.
        """
        if size > self.max_bytes:
            return f"it has {size} bytes, more than can be shown"
        if size > room:
            return NO_ROOM
        return ""

    async def _picture(self, picture: Picture, room: int) -> str | Binary:
        """Return an image that a tool made, or a text which says that the model cannot see it."""
        data = picture.data
        if not data and picture.media:
            data = await self._bytes(picture.media) or b""
        mime_type = _verified_type(data)
        is_sent = mime_type in self.accepts and len(data) <= min(self.max_bytes, room)
        if not is_sent:
            return _UNSEEN
        return Binary(data, mime_type)

    async def _file(self, message: Message, media: Media, room: int) -> str | Binary:
        """Return the file, the text of a text file, or a text that says why it is not sent."""
        # A tool has made it and the user was shown it, so the model only needs its name.
        if message.role is not Role.USER:
            return f"[file {_quoted_name(media)}]"

        # What its declared type and size can tell is checked before the file is loaded.
        mime_type = _mime_type_of(media)
        if not self._is_readable(mime_type):
            return _not_shown(media, _cannot(mime_type))
        if not _is_text(mime_type):
            refusal = self._refusal(media.size, room)
            if refusal:
                return _not_shown(media, refusal)

        data = await self._bytes(media)
        if data is None:
            return _not_shown(media, "it could not be loaded")
        if not data:
            return _not_shown(media, "it is empty")
        verified = _verified_type(data)
        if mime_type in _VERIFIABLE and not verified:
            return _not_shown(media, "it is damaged, or not what it is called")
        mime_type = verified or mime_type
        if _is_text(mime_type):
            return _text_of_file(media, data)

        if mime_type not in self.accepts:
            mp3 = None
            if self._is_convertible(mime_type):
                mp3 = await call_in_tool_thread(partial(as_mp3, data))
            if not mp3:
                return _not_shown(media, _cannot(mime_type))
            data = mp3
            mime_type = _CONVERTED_TYPE

        refusal = self._refusal(len(data), room)
        if refusal:
            return _not_shown(media, refusal)
        return Binary(data, mime_type)

    def _is_readable(self, mime_type: str) -> bool:
        """Return whether the model can get files of this MIME type, in some form."""
        return _is_text(mime_type) or mime_type in self.accepts or self._is_convertible(mime_type)

    def _is_convertible(self, mime_type: str) -> bool:
        """Return whether ffmpeg can convert files of this MIME type for the model."""
        return (
            mime_type.startswith("audio/")
            and _CONVERTED_TYPE in self.accepts
            and shutil.which("ffmpeg") is not None
        )

    async def _bytes(self, media: Media) -> bytes | None:
        """Return the bytes of a file, None if it cannot be loaded."""
        load = self.load
        if load is None:
            return None
        try:
            return await call_in_thread(lambda: load(media))
        except Exception as exc:  # the turn goes on without the file
            log.warning(
                "provider.file_not_loaded reason=%s type=%s",
                type(exc).__name__,
                _mime_type_of(media),
            )
            return None


class _SharedMemory:
    """The memory for files that the requests of one event loop share. They are served in order."""

    def __init__(self) -> None:
        #: How many bytes are free.
        self._free = MAX_BYTES_AT_ONCE
        #: Held by the request that waits for memory, so that no smaller one overtakes it.
        self._queue = asyncio.Lock()
        #: Set when a request has given its memory back.
        self._freed = asyncio.Event()

    @asynccontextmanager
    async def reserved(self, size: int) -> AsyncIterator[None]:
        """Wait until `size` bytes are free, and hold them until the block ends.

        A request for more than all bytes gets all of them.
        """
        size = min(size, MAX_BYTES_AT_ONCE)
        if not size:
            yield
            return
        async with self._queue:
            while self._free < size:
                self._freed.clear()
                await self._freed.wait()
            self._free -= size
        try:
            yield
        finally:
            self._free += size
            self._freed.set()


#: The shared memory of each event loop, as long as the loop exists.
_memory_by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, _SharedMemory] = WeakKeyDictionary()


def without_files(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with a line of text in place of each file that is not text.

    Such messages are sent after a vendor has refused one of the files.
    """
    changed = []
    for message in messages:
        removed_files = []
        if message.role is Role.USER:
            removed_files = [media for media in message.media if not _is_text(_mime_type_of(media))]
        notes = [_not_shown(media, "it could not be shown to you") for media in removed_files]
        if message.pictures:
            notes.append(_UNSEEN)
        if not notes:
            changed.append(message)
            continue

        content = "\n".join(filter(None, [message.content, *notes]))
        remaining_files = tuple(media for media in message.media if media not in removed_files)
        changed.append(replace(message, content=content, media=remaining_files, pictures=()))
    return changed


def as_mp3(data: bytes) -> bytes | None:
    """Return audio as MP3, or None if ffmpeg cannot read it."""
    # Without this list of protocols, ffmpeg would open the files and URLs of a
    # playlist sent as a voice message.
    command = [
        "ffmpeg",
        "-v",
        "quiet",
        "-protocol_whitelist",
        "pipe",
        "-i",
        "pipe:0",
        "-f",
        "mp3",
        "pipe:1",
    ]
    try:
        process = subprocess.run(  # noqa: S603
            command, input=data, capture_output=True, timeout=CONVERT_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError) as exc:
        log.warning("provider.voice_not_converted reason=%s", type(exc).__name__)
        return None
    return process.stdout or None


def _text_of_file(media: Media, data: bytes) -> str:
    """Return the beginning of a text file in a fence, below its name."""
    # A character has at most four bytes. To decode the whole file could take four times its bytes.
    text = data[: 4 * MAX_TEXT_CHARS].decode("utf-8", "replace")
    is_cut = len(text) > MAX_TEXT_CHARS or len(data) > 4 * MAX_TEXT_CHARS
    part = ""
    if is_cut:
        part = f", its first {MAX_TEXT_CHARS} characters of {len(data)} bytes"
    return f"[file {_quoted_name(media)}{part}]\n{fenced(text[:MAX_TEXT_CHARS])}"


def _mime_type_of(media: Media) -> str:
    """Return the MIME type without parameters, in its usual spelling."""
    mime_type = media.mime_type.partition(";")[0].strip().lower()
    return _SPELLINGS.get(mime_type, mime_type)


def _verified_type(data: bytes) -> str:
    """Return the type that the first bytes of a file show, if it is in _VERIFIABLE, else ""."""
    if b"%PDF-" in data[:1024]:  # PDF readers ignore bytes before it
        return "application/pdf"
    mime_type = settle_type(data, "")
    return mime_type if mime_type in _VERIFIABLE else ""


def _is_text(mime_type: str) -> bool:
    """Return whether files of this MIME type are text."""
    return mime_type.startswith("text/") or mime_type in _TEXT_TYPES


def _cannot(mime_type: str) -> str:
    """Return why a model does not get a file of this MIME type."""
    if mime_type.startswith("audio/"):
        return (
            "it is sound, which you cannot hear: give its name to a tool that reads sound, "
            "or ask for text instead"
        )
    return "you cannot see files of this type"


def _not_shown(media: Media, why: str) -> str:
    """Return the line that a model reads in place of a user's file."""
    return f"[file {_quoted_name(media)} was sent, but {why}]"


def _quoted_name(media: Media) -> str:
    """Return name and type of a file, quoted and without brackets.

    A user chooses the name. It must not read as an instruction, nor end the line in brackets that
    it stands in.
    """
    filename = inert(media.filename)[:MAX_NAME_CHARS] or "without a name"
    mime_type = inert(_mime_type_of(media))[:MAX_NAME_CHARS]
    quoted_name = f"{json.dumps(filename, ensure_ascii=False)} ({mime_type})"
    return quoted_name.replace("[", "(").replace("]", ")")
