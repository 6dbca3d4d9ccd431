"""Media stores: files kept by their content, served through links that expire.

MediaError
├── TooLarge    more bytes than a chat platform would take
├── MediaGone   a link that was good once: answer 410
└── BadToken    a link we never made: answer 404
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, BinaryIO, NamedTuple

from itsdangerous import BadData, TimestampSigner, URLSafeTimedSerializer

from sayso.channels.disk import make_private, remove_older, sync_folder
from sayso.channels.media_room import MediaLimits, MediaRoom, counted, size_of
from sayso.channels.types import Media

#: The largest file kept, in bytes.
MAX_BYTES = 25 * 1024 * 1024
#: Seconds a file is kept after it was stored last: a week, as long as a console shows it.
KEEP_SECONDS = 7 * 24 * 3600
#: The longest a link may live, in seconds. Twilio fetches within minutes; a leaked link should die soon.
MAX_LINK_SECONDS = 3600
#: Seconds by which the clocks of who makes a link and of who opens it may differ.
LEEWAY_SECONDS = 60
#: What a file is called once its bytes fit no type we know: browsers download it and run nothing.
UNKNOWN_TYPE = "application/octet-stream"

#: Folders in the store beside those of the files: of files that are arriving, and of the marks that say whose one is.
ARRIVING, OWNERS = "arriving", "owners"
#: Bytes of a file that are read at a time.
_READ_BYTES = 256 * 1024

_REF = re.compile(r"[0-9a-f]{64}")
_OWNER = re.compile(r"[0-9a-f]{20}")
_MIME_TYPE = re.compile(r"[a-z]{1,20}/[a-z0-9.+-]{1,100}")

#: Bytes at the start of a file that settle its type.
_MAGIC: tuple[tuple[bytes, str], ...] = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
    (b"OggS", "audio/ogg"),
    (b"ID3", "audio/mpeg"),
    (b"#!AMR", "audio/amr"),
    (b"PK\x03\x04", "application/zip"),
    (b"\x1aE\xdf\xa3", "video/webm"),
    (b"fLaC", "audio/flac"),
)
#: The form types inside a RIFF file.
_RIFF = {b"WEBP": "image/webp", b"WAVE": "audio/wav"}
#: What an ISO file is by its brand, where it is a picture.
_BRANDS = {b"avif": "image/avif", b"heic": "image/heic", b"heix": "image/heic", b"mif1": "image/heic"}
#: Containers hold more than one type: the declared one stands when it starts with one of these.
_CONTAINERS: dict[str, tuple[str, ...]] = {
    "audio/ogg": ("audio/ogg", "video/ogg", "audio/opus"),
    "video/webm": ("video/webm", "audio/webm", "video/x-matroska", "audio/x-matroska"),
    "video/mp4": ("video/mp4", "audio/mp4", "audio/x-m4a", "audio/aac", "video/quicktime", "video/3gpp", "audio/3gpp"),
    "application/zip": (
        "application/vnd.openxmlformats-officedocument.",
        "application/vnd.oasis.opendocument.",
        "application/epub+zip",
    ),
}
#: Types without magic bytes that are safe to show as text. HTML and SVG are missing on purpose: they can hold scripts.
_TEXT_TYPES = frozenset({"text/plain", "text/csv", "text/markdown", "text/calendar", "text/vcard", "application/json"})


class MediaError(Exception):
    """Base of what the media store raises."""


class TooLarge(MediaError):
    """Raised when a file is larger than the store keeps."""


class MediaGone(MediaError):
    """Raised when a link has expired or its file was removed."""


class BadToken(MediaError):
    """Raised when a link was not signed by us."""


class MemoryMediaStore:
    """Files in this process's memory, for as long as one conversation in it lasts. No platform can fetch them."""

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}

    def put(self, data: bytes, *, mime_type: str, filename: str = "", owner: str = "") -> Media:
        """Keep the bytes under their content."""
        ref = hashlib.sha256(data).hexdigest()
        self._files[ref] = data
        return Media(ref, mime_type, _label(filename), len(data), stored=True)

    def read(self, ref: str) -> bytes:
        """The kept bytes. Raises KeyError for any other."""
        return self._files[ref]

    def open(self, ref: str) -> BinaryIO:
        """Open a kept file. Raises KeyError for any other."""
        return BytesIO(self._files[ref])


class LocalMediaStore:
    """Files in one folder, named by their SHA-256. One instance serves a whole process, from any thread.

    `keys[0]` signs links and all keys verify them, so that a key can be retired without breaking links under way.
    `link_clock` is one that who makes links shares with who opens them; `clock` is the machine's, as that of its files.
    """

    def __init__(
        self,
        folder: Path,
        *,
        keys: Sequence[str],
        public_url: str,
        max_age_seconds: int = MAX_LINK_SECONDS,
        clock: Callable[[], float] = time.time,
        link_clock: Callable[[], float] | None = None,
        limits: MediaLimits | None = None,
    ) -> None:
        if not keys:
            raise ValueError("keys is empty: give at least one secret to sign media links with")
        if not 0 < max_age_seconds <= MAX_LINK_SECONDS:
            raise ValueError(f"max_age_seconds is {max_age_seconds!r}: use 1 to {MAX_LINK_SECONDS}")
        self._folder = folder
        self._room = MediaRoom(folder, limits or MediaLimits())
        self._public_url = public_url.rstrip("/")
        self._max_age_seconds = max_age_seconds
        self._clock = clock
        self._link_clock = link_clock or clock
        self._links = URLSafeTimedSerializer(
            list(reversed(keys)),  # itsdangerous signs with the last
            salt="sayso.media",
            signer=_ClockedSigner,
            signer_kwargs={"clock": self._link_clock},
        )

    def full(self) -> str:
        """Return why no file may be kept now, "" when one may. Raises OSError."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self._room.full()

    def put(self, data: bytes, *, mime_type: str, filename: str = "", owner: str = "") -> Media:
        """Keep the bytes under a name of our own, typed by what they are. Raises TooLarge, NoRoom and OSError."""
        with self.receiving(owner, len(data)) as file:
            file.write(data)
            return self.keep(file, mime_type=mime_type, filename=filename, owner=owner)

    @contextmanager
    def receiving(self, owner: str, size: int = 0) -> Iterator[BinaryIO]:
        """Open a file for bytes that arrive bit by bit, for `keep`. One that is not kept is removed.

        `owner` is a person as `sayso.channels.types.owner_of` names them, "" for nobody; `size` is the announced
        size, 0 when unknown. Raises TooLarge, NoRoom and OSError.
        """
        if size > MAX_BYTES:
            raise TooLarge(f"the file has {size} bytes: send at most {MAX_BYTES}")
        if owner:
            self._room.check_person(self._kept_bytes(owner), size)
        arriving = make_private(self._folder / ARRIVING)
        with self._room.claim(size or MAX_BYTES), NamedTemporaryFile(dir=arriving, delete=False) as file:
            try:
                yield file  # type: ignore[misc]  # a wrapper with all methods of a binary file
            finally:
                Path(file.name).unlink(missing_ok=True)

    def keep(self, file: BinaryIO, *, mime_type: str, filename: str = "", owner: str = "") -> Media:
        """Keep what was written to a file of `receiving`, typed by its bytes. Raises TooLarge, NoRoom and OSError."""
        content = _read_through(file)
        if content.size > MAX_BYTES:
            raise TooLarge(f"{filename!r} has {content.size} bytes: send at most {MAX_BYTES}")
        path = self._path(content.ref)
        if owner:
            self._own(owner, content)
        if path.exists():
            os.utime(path)  # young again, for whoever removes old files
        else:
            os.fsync(file.fileno())
            make_private(path.parent)
            Path(file.name).replace(path)
            sync_folder(path.parent)
            self._room.add(content.size)
        kept_type = _settle(content.head, mime_type, is_text=content.is_text)
        return Media(content.ref, kept_type, _label(filename), content.size, stored=True)

    def read(self, ref: str) -> bytes:
        """The stored bytes. Raises KeyError when the file is gone, or never was."""
        with self.open(ref) as file:
            return file.read()

    def open(self, ref: str) -> BinaryIO:
        """Open a stored file. Raises KeyError when it is gone, or never was."""
        try:
            return self._path(ref).open("rb")
        except FileNotFoundError:
            raise KeyError(ref) from None

    def erase(self, owner: str) -> int:
        """Remove the files that this person alone sent. Returns how many. Raises OSError."""
        marks = self._marks(owner)
        for mark in marks:
            mark.unlink(missing_ok=True)
        others = {mark.name.partition("-")[2] for mark in self._folder.glob(f"{OWNERS}/*/*")}
        own = [self._path(ref) for ref in (mark.name.partition("-")[2] for mark in marks) if ref not in others]
        for path in own:
            path.unlink(missing_ok=True)
        return len(own)

    def _own(self, owner: str, content: _Content) -> None:
        """Note whose file this is. Raises QuotaExceeded when the person may keep no more."""
        mark = self._mark(owner, content.ref)
        if not mark.exists():
            self._room.check_person(self._kept_bytes(owner), content.size)
            make_private(mark.parent)
        mark.touch(mode=0o600)

    def _kept_bytes(self, owner: str) -> int:
        paths = (self._path(mark.name.partition("-")[2]) for mark in self._marks(owner))
        return sum(counted(size_of(path)) for path in paths)

    def _marks(self, owner: str) -> list[Path]:
        return list(self._mark(owner, "").parent.glob(f"{owner}-*"))

    def _mark(self, owner: str, ref: str) -> Path:
        """Where an empty file says that a person sent a file: two people may send the same one."""
        if not _OWNER.fullmatch(owner):
            raise KeyError(owner)
        return self._folder / OWNERS / owner[:2] / f"{owner}-{ref}"

    def url(self, ref: str, *, filename: str, mime_type: str) -> str:
        """A signed, unguessable, expiring link. Two links to one file differ: holding one tells nothing of others."""
        token = self._links.dumps([ref, mime_type, _label(filename), os.urandom(8).hex()])
        return f"{self._public_url}/media/{token}"

    def open_token(self, token: str) -> tuple[Path, str, str]:
        """The file, MIME type and file name behind a link. Raises MediaGone or BadToken."""
        ref, mime_type, filename = self._read_token(token)
        path = self._path(ref)
        if not path.is_file():
            raise MediaGone("this file was removed: ask the bot for it again")
        return path, mime_type, filename

    def sweep(self) -> int:
        """Remove what nobody stored again for KEEP_SECONDS. Returns how many files went."""
        oldest = self._clock() - KEEP_SECONDS
        remove_older(self._folder.glob(f"{OWNERS}/*/*"), oldest)
        remove_older(self._folder.glob(f"{ARRIVING}/*"), oldest)
        return remove_older(self._folder.glob("[0-9a-f][0-9a-f]/*"), oldest)

    def _read_token(self, token: str) -> tuple[str, str, str]:
        try:
            (ref, mime_type, filename, _), made = self._links.loads(token, return_timestamp=True)
        except BadData as exc:
            raise BadToken("this link is not one of ours: ask the bot for the file again") from exc
        age = int(self._link_clock()) - made.timestamp()
        if not -LEEWAY_SECONDS <= age <= self._max_age_seconds:  # its library refuses what is a second from the future
            raise MediaGone("this link has expired: ask the bot for the file again")
        return ref, mime_type, filename

    def _path(self, ref: str) -> Path:
        if not _REF.fullmatch(ref):
            raise KeyError(ref)
        return self._folder / ref[:2] / ref


def settle_type(data: bytes, declared: str) -> str:
    """The type the bytes prove; the declared one only where they cannot tell, else `UNKNOWN_TYPE`."""
    return _settle(data, declared, is_text=_is_text(data))


def _settle(head: bytes, declared: str, *, is_text: bool) -> str:
    plain = declared.partition(";")[0].strip().lower()
    proven = _sniff(head)
    if proven:
        return plain if _MIME_TYPE.fullmatch(plain) and plain.startswith(_CONTAINERS.get(proven, ())) else proven
    return plain if plain in _TEXT_TYPES and is_text else UNKNOWN_TYPE


class _Content(NamedTuple):
    """What a file holds, without its bytes: SHA-256, size, the first bytes, and whether no byte is NUL."""

    ref: str
    size: int
    head: bytes
    is_text: bool


def _read_through(file: BinaryIO) -> _Content:
    """Read a file once, a block at a time. Raises OSError."""
    file.flush()
    file.seek(0)
    digest, size, head, is_text = hashlib.sha256(), 0, b"", True
    while block := file.read(_READ_BYTES):
        digest.update(block)
        head, size, is_text = head or block[:64], size + len(block), is_text and _is_text(block)
    return _Content(digest.hexdigest(), size, head, is_text)


def _sniff(data: bytes) -> str:
    for magic, mime_type in _MAGIC:
        if data.startswith(magic):
            return mime_type
    if data[:4] == b"RIFF":
        return _RIFF.get(data[8:12], "")
    if data[4:8] == b"ftyp":
        return _BRANDS.get(data[8:12], "video/mp4")
    return "audio/mpeg" if data[:2] in (b"\xff\xfb", b"\xff\xf3", b"\xff\xf2") else ""


def _is_text(data: bytes) -> bool:
    """Whether no byte is NUL: enough to tell text from binary, in whatever encoding a spreadsheet chose."""
    return b"\0" not in data


def _label(filename: str) -> str:
    """The sender's file name as a mere label: no folders, no control characters, no more than 120 characters."""
    name = re.split(r"[/\\]", filename)[-1]
    printable = "".join(char for char in name if char.isprintable())
    stem, dot, ending = printable.rpartition(".")
    if len(printable) <= 120 or len(ending) > 10:
        return printable[:120]
    return stem[: 119 - len(ending)] + dot + ending


class _ClockedSigner(TimestampSigner):
    """A TimestampSigner that asks a given clock."""

    def __init__(self, *args: Any, clock: Callable[[], float], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._clock = clock

    def get_timestamp(self) -> int:
        return int(self._clock())
