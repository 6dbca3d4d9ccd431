"""Files: what a model is shown of the files in a transcript. What it cannot take is named in words, never dropped."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import subprocess
from codecs import getincrementaldecoder
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

from sayso.agent.messages import Message, Picture, Role
from sayso.agent.tools.screening import fenced, inert
from sayso.channels.media import settle_type
from sayso.channels.types import Media
from sayso.pending.concurrency import in_thread, offload

log = logging.getLogger(__name__)

#: The bytes of a file, wherever they are kept.
LoadMedia = Callable[[Media], bytes]

#: Characters of a text file that a model is shown, and of a file's name.
MAX_TEXT_CHARS, MAX_NAME_CHARS = 20_000, 80
#: Bytes of people's files that all requests to models have in memory at a time. Each byte is there about five times: as
#: it is, in base64 and in what is sent. 40 people who send 12 MB each cost a worker about 95 MB over idle.
MAX_BYTES_AT_ONCE = 12_000_000
#: What a model hears of a file for which its request has no room.
NO_ROOM = "there is no room for it beside newer files"
#: Seconds that a voice message may take to be converted.
CONVERT_SECONDS = 20.0

#: Text that is not called text/*.
_TEXT_TYPES = frozenset(f"application/{kind}" for kind in ("json", "csv", "xml", "yaml", "x-yaml", "x-ndjson"))
#: How else a type is spelled.
_SPELLINGS = {
    "image/jpg": "image/jpeg",
    "audio/mp3": "audio/mpeg",
    "audio/x-wav": "audio/wav",
    "audio/wave": "audio/wav",
    "audio/opus": "audio/ogg",
    "application/ogg": "audio/ogg",
}
#: Types whose first bytes are known. Vendors refuse a request, and each one after it, for a file that is not its type.
_PROVEN = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf"})
#: What a model is told of an image of a tool that it does not see.
_UNSEEN = "[you cannot see the image]"
#: What voice is converted to, where a model hears that.
_CONVERTED = "audio/mpeg"


@dataclass(frozen=True, slots=True)
class Binary:
    """A file that is sent as it is."""

    data: bytes
    mime_type: str


@dataclass(frozen=True, slots=True)
class Shown:
    """A message, and its files as the model gets them: in words, or as they are."""

    message: Message
    files: tuple[str | Binary, ...] = ()


@dataclass(frozen=True, slots=True)
class FileReading:
    """Reads files for one request to a model that accepts these MIME types, up to so many bytes each and together."""

    load: LoadMedia | None
    accepts: Collection[str]
    max_bytes: int
    max_request_bytes: int

    async def of(self, messages: Sequence[Message]) -> list[Shown]:
        """Every message with its files, of which the newest come first where not all fit. Nothing is raised: a file
        that cannot be had is named.
        """
        shown, room = list[Shown](), self.max_request_bytes
        for message in reversed(messages):
            files = list[str | Binary]()
            for media in message.media:
                file = await self._file(message, media, room)
                room -= len(file.data) if isinstance(file, Binary) else 0
                files.append(file)
            for picture in message.pictures:
                image = await self._picture(picture, room)
                room -= len(image.data) if isinstance(image, Binary) else 0
                files.append(image)
            shown.append(Shown(message, tuple(files)))
        return shown[::-1]

    async def _picture(self, picture: Picture, room: int) -> str | Binary:
        """Return an image of a tool as it is, or why the model cannot see it."""
        data = picture.data or (await self._bytes(picture.media) if picture.media else None)
        kind = _proven(data) if data else ""
        if not data or kind not in self.accepts or len(data) > min(self.max_bytes, room):
            return _UNSEEN
        return Binary(data, kind)

    @asynccontextmanager
    async def holding(self, messages: Sequence[Message]) -> AsyncIterator[list[Shown]]:
        """Read the files of a request, as `of` does, and count their bytes until the request is over.

        All requests of one event loop have MAX_BYTES_AT_ONCE together, and wait for each other's files.
        """
        async with _room().taken(self._bytes_of(messages)):
            yield await self.of(messages)

    def _bytes_of(self, messages: Sequence[Message]) -> int:
        """Return how many bytes of files a request has in memory at most."""
        files = [media for message in messages if message.role is Role.USER for media in message.media]
        return sum(media.size for media in files if self._is_of_use(_kind(media)) and not self._is_too_large(media))

    def _is_too_large(self, media: Media) -> bool:
        return media.size > self.max_bytes and not _is_text(_kind(media))

    async def _file(self, message: Message, media: Media, room: int) -> str | Binary:
        if message.role is not Role.USER:  # it was made here, and its reader has it
            return f"[file {_named(media)}]"
        kind = _kind(media)
        if not self._is_of_use(kind):
            return _words(media, _cannot(kind))
        if self._is_too_large(media):
            return _words(media, f"it has {media.size} bytes, more than can be shown")
        if media.size > room and not _is_text(kind):
            return _words(media, NO_ROOM)
        data = await self._bytes(media)
        if not data:
            return _words(media, "it could not be loaded" if data is None else "it is empty")
        if len(data) > self.max_bytes and not _is_text(kind):
            return _words(media, f"it has {len(data)} bytes, more than can be shown")
        proven = _proven(data)
        if kind in _PROVEN and not proven:
            return _words(media, "it is damaged, or not what it is called")
        kind = proven or kind
        if _is_text(kind):
            return _text(media, data)
        if kind in self.accepts:
            return Binary(data, kind) if len(data) <= room else _words(media, NO_ROOM)
        return await self._converted(media, data, room) if self._is_convertible(kind) else _words(media, _cannot(kind))

    def _is_of_use(self, kind: str) -> bool:
        return _is_text(kind) or kind in self.accepts or self._is_convertible(kind)

    def _is_convertible(self, kind: str) -> bool:
        return kind.startswith("audio/") and _CONVERTED in self.accepts and shutil.which("ffmpeg") is not None

    async def _bytes(self, media: Media) -> bytes | None:
        load = self.load
        if load is None:
            return None
        try:
            return await offload(lambda: load(media))
        except Exception as exc:  # noqa: BLE001  # whoever keeps files may fail in any way, and the turn goes on
            log.warning("provider.file_not_loaded reason=%s type=%s", type(exc).__name__, _kind(media))
            return None

    async def _converted(self, media: Media, data: bytes, room: int) -> str | Binary:
        converted = await in_thread(lambda: as_mp3(data))
        if not converted:
            return _words(media, _cannot("audio/"))
        return Binary(converted, _CONVERTED) if len(converted) <= room else _words(media, NO_ROOM)


class _Room:
    """The bytes of files that all requests of one event loop may have in memory. Who came first is served first."""

    def __init__(self) -> None:
        self._free = MAX_BYTES_AT_ONCE
        self._first = asyncio.Lock()
        self._freed = asyncio.Event()

    @asynccontextmanager
    async def taken(self, size: int) -> AsyncIterator[None]:
        """Take so many bytes while this lasts, all there are where that is more."""
        size = min(size, MAX_BYTES_AT_ONCE)
        if not size:
            yield
            return
        async with self._first:
            while self._free < size:
                self._freed.clear()
                await self._freed.wait()
            self._free -= size
        try:
            yield
        finally:
            self._free += size
            self._freed.set()


_rooms: WeakKeyDictionary[asyncio.AbstractEventLoop, _Room] = WeakKeyDictionary()


def _room() -> _Room:
    return _rooms.setdefault(asyncio.get_running_loop(), _Room())


def named_only(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with their files named in words, all but those of text: the vendor refused one of them."""
    return [_named_only(message) if message.media or message.pictures else message for message in messages]


def _named_only(message: Message) -> Message:
    refused = [each for each in message.media if message.role is Role.USER and not _is_text(_kind(each))]
    words = [_words(each, "it could not be shown to you") for each in refused] + [_UNSEEN] * bool(message.pictures)
    kept = tuple(each for each in message.media if each not in refused)
    return replace(message, content="\n".join(filter(None, [message.content, *words])), media=kept, pictures=())


def as_mp3(data: bytes) -> bytes | None:
    """A sound as MP3; None where ffmpeg does not know it."""
    # Without its list of protocols, a playlist that calls itself a voice message would have ffmpeg open files and URLs.
    command = ["ffmpeg", "-v", "quiet", "-protocol_whitelist", "pipe", "-i", "pipe:0", "-f", "mp3", "pipe:1"]
    try:
        done = subprocess.run(command, input=data, capture_output=True, timeout=CONVERT_SECONDS, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError) as exc:
        log.warning("provider.voice_not_converted reason=%s", type(exc).__name__)
        return None
    return done.stdout or None


def _kind(media: Media) -> str:
    """The MIME type without parameters, in its usual spelling."""
    kind = media.mime_type.partition(";")[0].strip().lower()
    return _SPELLINGS.get(kind, kind)


def _proven(data: bytes) -> str:
    """The type that the first bytes prove; "" where they prove none of those that can be proven."""
    if b"%PDF-" in data[:1024]:  # readers forgive what stands before it
        return "application/pdf"
    kind = settle_type(data, "")
    return kind if kind in _PROVEN else ""


def _is_text(kind: str) -> bool:
    return kind.startswith("text/") or kind in _TEXT_TYPES


def _text(media: Media, data: bytes) -> str:
    text = data[: 4 * MAX_TEXT_CHARS].decode("utf-8", "replace")  # decoded, all of it could take four times its bytes
    is_cut = len(text) > MAX_TEXT_CHARS or len(data) > 4 * MAX_TEXT_CHARS
    cut = f", its first {MAX_TEXT_CHARS} of {_length(data)} characters" if is_cut else ""
    return f"[file {_named(media)}{cut}]\n{fenced(text[:MAX_TEXT_CHARS])}"


def _length(data: bytes) -> int:
    """Return the number of characters of a text."""
    decoder = getincrementaldecoder("utf-8")("replace")
    blocks = (data[at : at + 65_536] for at in range(0, len(data), 65_536))
    return sum(len(decoder.decode(block)) for block in blocks) + len(decoder.decode(b"", final=True))


def _cannot(kind: str) -> str:
    if kind.startswith("audio/"):
        return "it is sound, which you cannot hear: give its name to a tool that reads sound, or ask for text instead"
    return "you cannot see files of this type"


def _words(media: Media, why: str) -> str:
    return f"[file {_named(media)} was sent, but {why}]"


def _named(media: Media) -> str:
    """Name and type, quoted: people choose a file's name, and must not speak through it."""
    name = json.dumps(inert(media.filename)[:MAX_NAME_CHARS] or "without a name", ensure_ascii=False)
    return f"{name} ({inert(_kind(media))[:MAX_NAME_CHARS]})".replace("[", "(").replace("]", ")")
