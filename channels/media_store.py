"""The media store: inbound and outbound files, with quotas and signed links."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import threading
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryFile
from typing import Any, BinaryIO, NamedTuple, TypeVar, cast

from itsdangerous import BadData, TimestampSigner, URLSafeTimedSerializer

from sayso.channels.base import MediaStore, Refused, Unreachable
from sayso.channels.inbound_limits import MAX_FILE_BYTES
from sayso.channels.types import Media, one_line
from sayso.infra.ids import random_id
from sayso.infra.storage.files import make_private, remove_older
from sayso.infra.storage.objects import LocalObjects, ObjectStore, StoreUnavailable, sweep

T = TypeVar("T")

#: How long a file is stored after it was last received or sent, in seconds: a week,
#: as long as a console shows it.
KEEP_SECONDS = 7 * 24 * 3600
#: The life of a link, in seconds. Twilio downloads within minutes; a leaked link should die soon.
MAX_LINK_SECONDS = 3600
#: By how many seconds the clocks of the machines that make and open a link may differ.
LEEWAY_SECONDS = 60
#: The type of a file whose bytes fit no known type: browsers download it and run nothing.
UNKNOWN_TYPE = "application/octet-stream"
#: Folders beside those of the files: files that are still being received,
#: and marks that name the sender of a file.
ARRIVING = "arriving"
OWNERS = "owners"
#: The smallest size with which a file counts, in bytes: one block of the disk,
#: so that many tiny files count too.
BLOCK_BYTES = 4096
#: How long the measured size of all files is used, in seconds: in a folder, and in a bucket, where
#: each thousand files cost a request. Files of this process are counted at once.
MEASURE_SECONDS = 10.0
BUCKET_MEASURE_SECONDS = 300.0
#: How many bytes of a file are read at a time.
_READ_BYTES = 256 * 1024
_MIB = 1024 * 1024
_REF = re.compile(r"[0-9a-f]{64}")
_OWNER = re.compile(r"[0-9a-f]{20}")
_MIME_TYPE = re.compile(r"[a-z]{1,20}/[a-z0-9.+-]{1,100}")
#: Bytes at the start of a file that prove its type.
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
#: The type of an ISO file by its brand, for pictures.
_BRANDS = {
    b"avif": "image/avif",
    b"heic": "image/heic",
    b"heix": "image/heic",
    b"mif1": "image/heic",
}
#: Containers that hold several types: the declared type is used if it starts with one of these.
_CONTAINERS: dict[str, tuple[str, ...]] = {
    "audio/ogg": ("audio/ogg", "video/ogg", "audio/opus"),
    "video/webm": ("video/webm", "audio/webm", "video/x-matroska", "audio/x-matroska"),
    "video/mp4": (
        "video/mp4",
        "audio/mp4",
        "audio/x-m4a",
        "audio/aac",
        "video/quicktime",
        "video/3gpp",
        "audio/3gpp",
    ),
    "application/zip": (
        "application/vnd.openxmlformats-officedocument.",
        "application/vnd.oasis.opendocument.",
        "application/epub+zip",
    ),
}
#: Types without magic bytes that are safe to show as text. HTML and SVG can hold scripts,
#: so they are not listed.
_TEXT_TYPES = frozenset(
    {"text/plain", "text/csv", "text/markdown", "text/calendar", "text/vcard", "application/json"}
)


class TooLarge(Exception):
    """Raised for a file that is larger than MAX_FILE_BYTES."""


class MediaGone(Exception):
    """Raised when a link has expired or its file was removed."""


class BadToken(Exception):
    """Raised for a link that this bot did not sign."""


class NoRoom(Exception):
    """Raised when a file would exceed the limit of all files, or the reserve of the disk."""


class QuotaExceeded(NoRoom):
    """Raised when a person's files would exceed the limit of one person."""


class LinkedFile(NamedTuple):
    """The file of a link, with the type and the name that the link contains."""

    ref: str
    size: int
    mime_type: str
    filename: str


class MediaFiles:
    """Files in an object store, named by their SHA-256.

    One instance serves a whole process, from any thread.

    * `files`: the store of the contents. The `ref` of a file is its name there.
    * `marks`: holds empty objects whose names say who sent which file, and its size.
    * `arriving`: a folder of this machine for files that are still being received.
    * `keys`: the first one signs links and all of them verify links, so that a key can be retired
      while its links are still in use.
    * `public_url`: what the URLs of links begin with.
    * `clock`: the clock of the store, which dates files, in Unix seconds.
    * `link_clock`: a clock that all machines share, which dates links; by default `clock`.
    * `limits`: by default MediaLimits().
    """

    def __init__(
        self,
        files: ObjectStore,
        marks: ObjectStore,
        arriving: Path,
        *,
        keys: Sequence[str],
        public_url: str,
        clock: Callable[[], float] = time.time,
        link_clock: Callable[[], float] | None = None,
        limits: MediaLimits | None = None,
    ) -> None:
        if not keys:
            raise ValueError("keys is empty: give at least one secret to sign media links with")
        self._files = files
        self._marks = marks
        self._arriving = arriving
        self._room = MediaRoom(files, arriving.parent, limits or MediaLimits())
        self._public_url = public_url.rstrip("/")
        self._clock = clock
        self._link_clock = link_clock or clock
        self._links = URLSafeTimedSerializer(
            list(reversed(keys)),  # itsdangerous signs with the last key
            salt="sayso.media",
            signer=_ClockedSigner,
            signer_kwargs={"clock": self._link_clock},
        )

    @property
    def is_remote(self) -> bool:
        """Whether files come over the network."""
        return self._files.is_remote

    @property
    def spool_folder(self) -> Path:
        """The folder of files that are still being received. It may be missing."""
        return self._arriving

    def full(self) -> str:
        """Return why no file can be stored now, "" if one can. Raises OSError."""
        for folder in (make_private(self._arriving.parent), self._arriving):
            if folder.exists() and not os.access(folder, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
        if self.is_remote:
            self._files.stat(_name("0" * 64))  # the measured size may be minutes old
        return self._room.full()

    def put(
        self, content: bytes | BinaryIO, *, mime_type: str, filename: str = "", owner: str = ""
    ) -> Media:
        """Store bytes, or a file from its beginning. The content decides the type.

        `owner` is a person's name as `sayso.channels.types.owner_of` makes it, "" for none. Raises
        TooLarge, NoRoom and OSError.
        """
        source = BytesIO(content) if isinstance(content, bytes) else content
        size = source.seek(0, os.SEEK_END)
        source.seek(0)
        with self.receiving(owner, size) as file:
            shutil.copyfileobj(source, file, _READ_BYTES)
            return self.keep(file, mime_type=mime_type, filename=filename, owner=owner)

    @contextmanager
    def receiving(self, owner: str, size: int = 0) -> Iterator[BinaryIO]:
        """Open a file for bytes that arrive in parts, to be stored by `keep`; else it is removed.

        `owner` is a person's name as `sayso.channels.types.owner_of` makes it, "" for none. `size`
        is the announced size in bytes, 0 if unknown. Raises TooLarge, NoRoom and OSError.
        """
        if size > MAX_FILE_BYTES:
            raise TooLarge(f"the file has {size} bytes: send at most {MAX_FILE_BYTES}")
        if owner:
            self._room.check_person(sum(self._files_of(owner).values()), size)
        make_private(self._arriving)
        with (
            self._room.claim(size or MAX_FILE_BYTES),
            NamedTemporaryFile(dir=self._arriving, delete=False) as file,
        ):
            try:
                yield cast("BinaryIO", file)
            finally:
                Path(file.name).unlink(missing_ok=True)

    def keep(self, file: BinaryIO, *, mime_type: str, filename: str = "", owner: str = "") -> Media:
        """Store what was written to a file of `receiving`. Raises TooLarge, NoRoom and OSError."""
        file.flush()
        file.seek(0)
        digest = hashlib.sha256()
        size = 0
        head = b""
        is_text = True
        while block := file.read(_READ_BYTES):
            digest.update(block)
            if not head:
                head = block[:64]
            size += len(block)
            is_text = is_text and _is_text(block)
        if size > MAX_FILE_BYTES:
            raise TooLarge(f"{filename!r} has {size} bytes: send at most {MAX_FILE_BYTES}")
        ref = digest.hexdigest()
        if owner:
            own = self._files_of(owner)
            if ref not in own:
                self._room.check_person(sum(own.values()), size)
            self._marks.put(f"{_beginning(owner)}.{size}-{ref}", b"")
        if self._files.put(_name(ref), Path(file.name)):
            self._room.add(size)
        return Media(
            ref,
            _proven_type(head, mime_type, is_text=is_text),
            file_label(filename),
            size,
            stored=True,
        )

    def read(self, ref: str) -> bytes:
        """Return the stored bytes. Raises KeyError for an unknown or removed file, and OSError."""
        with self.open(ref) as file:
            return file.read()

    def open(self, ref: str, start: int = 0) -> BinaryIO:
        """Open a stored file at the byte `start`.

        Raises KeyError for an unknown or removed file, and OSError.
        """
        return self._files.open(_name(ref), start)

    def erase(self, owner: str) -> int:
        """Remove the files that only this person sent, and return their number. Raises OSError.

        Marks go last: if this fails half way, they tell the next call what is left.
        """
        marks = {each.name for each in self._marks.list(_beginning(owner))}
        if marks:
            others = {_ref_of(each.name) for each in self._marks.list() if each.name not in marks}
        else:
            others = set()
        own = {ref for ref in map(_ref_of, marks) if ref not in others}
        self._files.delete(map(_name, own))
        self._marks.delete(marks)
        return len(own)

    def url(self, ref: str, *, filename: str, mime_type: str) -> str:
        """Return a signed link that expires.

        Two links to one file differ, so that a link says nothing of others.
        """
        token = self._links.dumps([ref, mime_type, file_label(filename), random_id(8)])
        return f"{self._public_url}/media/{token}"

    def open_token(self, token: str) -> LinkedFile:
        """Return the file of a link. Raises MediaGone, BadToken and OSError."""
        try:
            (ref, mime_type, filename, _), signed_at = self._links.loads(
                token, return_timestamp=True
            )
        except BadData as exc:
            raise BadToken("this link is not one of ours: ask the bot for the file again") from exc
        age = int(self._link_clock()) - signed_at.timestamp()
        # Itsdangerous would refuse a link from 1 s ahead.
        if not -LEEWAY_SECONDS <= age <= MAX_LINK_SECONDS:
            raise MediaGone("this link has expired: ask the bot for the file again")
        stored = self._files.stat(_name(ref))
        if stored is None:
            raise MediaGone("this file was removed: ask the bot for it again")
        return LinkedFile(ref, stored.size, mime_type, filename)

    def sweep(self) -> int:
        """Remove the files that were not stored again for KEEP_SECONDS, and return their number.

        Raises OSError.
        """
        remove_older(self._arriving.glob("*"), self._clock() - KEEP_SECONDS)
        sweep(self._marks, KEEP_SECONDS, self._clock())
        return sweep(self._files, KEEP_SECONDS, self._clock())

    def _files_of(self, owner: str) -> dict[str, int]:
        """Return the counted bytes of each file of a person."""
        marks = (each.name.partition("-") for each in self._marks.list(_beginning(owner)))
        return {ref: _counted_size(int(head.partition(".")[2] or 0)) for head, _, ref in marks}


class LocalMediaStore(MediaFiles):
    """Files in one folder."""

    def __init__(self, folder: Path, **options: Any) -> None:
        """Take what MediaFiles takes by name."""
        files = LocalObjects(folder)
        marks = LocalObjects(folder / OWNERS)
        super().__init__(files, marks, folder / ARRIVING, **options)


def _beginning(owner: str) -> str:
    """Return how the marks of a person begin.

    A mark is `<owner>.<size>-<ref>`. Two people may send the same file.
    """
    if not _OWNER.fullmatch(owner):
        raise KeyError(owner)
    return f"{owner[:2]}/{owner}"


def _name(ref: str) -> str:
    """Return the name of a file in its store."""
    if not _REF.fullmatch(ref):
        raise KeyError(ref)
    return f"{ref[:2]}/{ref}"


def file_to_send(get: Callable[[str], T], ref: str) -> T:
    """Return an outgoing file of a media store, as `get` gives it: its bytes, or open.

    Raises Refused if the file was removed, and Unreachable if the store cannot be read now.
    """
    try:
        return get(ref)
    except KeyError:
        raise Refused("the file to send is gone from the media store") from None
    except OSError as exc:
        if isinstance(exc, StoreUnavailable):
            reason = exc.reason
        else:
            reason = type(exc).__name__
        raise Unreachable(f"the file to send cannot be read: {reason}") from exc


def open_on_disk(store: MediaStore, ref: str) -> BinaryIO:
    """Open a stored file on a disk of this machine.

    It is sent in parts, and is never whole in memory.

    A file of a bucket is copied first: a platform must hear how long the file is.
    Raises KeyError and OSError.
    """
    file = store.open(ref)
    if file.seekable():
        return file
    with file:
        folder = None
        if store.spool_folder:
            folder = make_private(store.spool_folder)
        copy = cast("BinaryIO", TemporaryFile(dir=folder))  # noqa: SIM115  # its reader closes it
        shutil.copyfileobj(file, copy, _READ_BYTES)
    copy.seek(0)
    return copy


def size_of(file: BinaryIO) -> int:
    """Return the size of a file that can be read from any place, in bytes.

    It is read from its beginning afterwards.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    return size


def settle_type(content: bytes | BinaryIO, declared: str) -> str:
    """Return the type that the bytes, or those of a file, prove.

    It is the declared one if they cannot tell, else UNKNOWN_TYPE.
    """
    if isinstance(content, bytes):
        return _proven_type(content, declared, is_text=_is_text(content))
    content.seek(0)
    head = content.read(_READ_BYTES)
    block = head
    while block and _is_text(block):
        block = content.read(_READ_BYTES)
    # All blocks were text if the last one is empty: the end of the file.
    return _proven_type(head, declared, is_text=not block)


def _proven_type(head: bytes, declared: str, *, is_text: bool) -> str:
    plain = declared.partition(";")[0].strip().lower()
    proven = _type_by_magic(head)
    if proven:
        if _MIME_TYPE.fullmatch(plain) and plain.startswith(_CONTAINERS.get(proven, ())):
            return plain
        return proven
    return plain if plain in _TEXT_TYPES and is_text else UNKNOWN_TYPE


def _type_by_magic(data: bytes) -> str:
    for magic, mime_type in _MAGIC:
        if data.startswith(magic):
            return mime_type
    if data[:4] == b"RIFF":
        return _RIFF.get(data[8:12], "")
    if data[4:8] == b"ftyp":
        return _BRANDS.get(data[8:12], "video/mp4")
    if data[:2] in (b"\xff\xfb", b"\xff\xf3", b"\xff\xf2"):
        return "audio/mpeg"
    return ""


def _is_text(data: bytes) -> bool:
    """Return whether no byte is NUL.

    That tells text from binary, in whatever encoding a spreadsheet uses.
    """
    return b"\0" not in data


def _ref_of(mark: str) -> str:
    return mark.partition("-")[2]


def file_label(filename: str) -> str:
    """Return a sender's file name without folders and control characters.

    It is cut to 120 characters, before its ending. Spaces of other kinds, such as the narrow one
    that macOS writes into the names of screenshots, become usual ones.
    """
    name = re.split(r"[/\\]", filename)[-1]
    spaced = "".join(" " if unicodedata.category(char) == "Zs" else char for char in name)
    printable = one_line(spaced)
    stem, dot, ending = printable.rpartition(".")
    if len(printable) <= 120 or len(ending) > 10:
        return printable[:120]
    return stem[: 119 - len(ending)] + dot + ending


class _ClockedSigner(TimestampSigner):
    """A TimestampSigner that reads a given clock."""

    def __init__(self, *args: Any, clock: Callable[[], float], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._clock = clock

    def get_timestamp(self) -> int:
        return int(self._clock())


@dataclass(frozen=True)
class MediaLimits:
    """Limits of the media store. The larger of the two reserves stays free on the disk."""

    per_person_bytes: int = 250 * _MIB
    total_bytes: int = 10 * 1024 * _MIB
    reserve_bytes: int = 256 * _MIB
    reserve_percent: float = 5.0


class MediaRoom:
    """Decides whether a file can be stored. One per media store, used from any thread.

    `disk` is a folder of the disk on which files arrive.
    """

    def __init__(self, files: ObjectStore, disk: Path, limits: MediaLimits) -> None:
        self._files = files
        self._disk = disk
        self._limits = limits
        if files.is_remote:
            self._measure_seconds = BUCKET_MEASURE_SECONDS
        else:
            self._measure_seconds = MEASURE_SECONDS
        self._lock = threading.Lock()
        self._in_flight = 0
        self._total = 0
        self._measured_at = float("-inf")

    @contextmanager
    def claim(self, size: int) -> Iterator[None]:
        """Count `size` bytes as taken while a file of this size is received.

        Raises NoRoom and OSError.
        """
        with self._lock:
            self._check(size)
            self._in_flight += size
        try:
            yield
        finally:
            with self._lock:
                self._in_flight -= size

    def full(self) -> str:
        """Return why not even a small file can be stored, "" if one can. Raises OSError."""
        with self._lock:
            try:
                self._check(0)
            except NoRoom as exc:
                return str(exc)
        return ""

    def check_person(self, stored_bytes: int, size: int) -> None:
        """Check that a person with `stored_bytes` may store `size` bytes more.

        Raises QuotaExceeded.
        """
        allowed = self._limits.per_person_bytes
        if stored_bytes + _counted_size(size) > allowed:
            raise QuotaExceeded(
                f"this person's files have {stored_bytes} bytes of {allowed}: {size} more do not fit"
            )

    def add(self, size: int) -> None:
        """Count a file that was stored."""
        with self._lock:
            self._total += _counted_size(size)

    def _check(self, size: int) -> None:
        if time.monotonic() - self._measured_at > self._measure_seconds:
            self._total = sum(_counted_size(each.size) for each in self._files.list())
            self._measured_at = time.monotonic()
        if size:
            rest = f"{size} more do not fit"
        else:
            rest = "no file can be stored"
        if self._total + self._in_flight + _counted_size(size) > self._limits.total_bytes:
            raise NoRoom(
                f"all files have {self._total} bytes of {self._limits.total_bytes}: {rest}"
            )
        disk, _, free = shutil.disk_usage(self._disk)
        reserve = max(self._limits.reserve_bytes, int(disk * self._limits.reserve_percent / 100))
        if free - self._in_flight - size < reserve:
            raise NoRoom(f"the disk has {free} bytes free, and {reserve} must stay free: {rest}")


def _counted_size(size: int) -> int:
    return max(size, BLOCK_BYTES)
