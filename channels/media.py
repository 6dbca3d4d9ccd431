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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from itsdangerous import BadData, TimestampSigner, URLSafeTimedSerializer

from channels.disk import remove_older, write_atomically
from channels.types import Media

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

_REF = re.compile(r"[0-9a-f]{64}")
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

    def put(self, data: bytes, *, mime_type: str, filename: str = "") -> Media:
        """Keep the bytes under their content."""
        ref = hashlib.sha256(data).hexdigest()
        self._files[ref] = data
        return Media(ref, mime_type, _label(filename), len(data), stored=True)

    def read(self, ref: str) -> bytes:
        """The kept bytes. Raises KeyError for any other."""
        return self._files[ref]


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
    ) -> None:
        if not keys:
            raise ValueError("keys is empty: give at least one secret to sign media links with")
        if not 0 < max_age_seconds <= MAX_LINK_SECONDS:
            raise ValueError(f"max_age_seconds is {max_age_seconds!r}: use 1 to {MAX_LINK_SECONDS}")
        self._folder = folder
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

    def put(self, data: bytes, *, mime_type: str, filename: str = "") -> Media:
        """Keep the bytes under a name of our own, typed by what they are. Raises TooLarge."""
        if len(data) > MAX_BYTES:
            raise TooLarge(f"{filename!r} has {len(data)} bytes: send at most {MAX_BYTES}")
        ref = hashlib.sha256(data).hexdigest()
        path = self._path(ref)
        if path.exists():
            os.utime(path)  # young again, for whoever removes old files
        else:
            write_atomically(path, data)
        kept_type = settle_type(data, mime_type)
        return Media(ref=ref, mime_type=kept_type, filename=_label(filename), size=len(data), stored=True)

    def read(self, ref: str) -> bytes:
        """The stored bytes. Raises KeyError when the file is gone, or never was."""
        try:
            return self._path(ref).read_bytes()
        except FileNotFoundError:
            raise KeyError(ref) from None

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
        return remove_older(self._folder.glob("*/*"), self._clock() - KEEP_SECONDS)

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
    plain = declared.partition(";")[0].strip().lower()
    proven = _sniff(data)
    if proven:
        return plain if _MIME_TYPE.fullmatch(plain) and plain.startswith(_CONTAINERS.get(proven, ())) else proven
    return plain if plain in _TEXT_TYPES and _is_text(data) else UNKNOWN_TYPE


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
