"""The media store: the files that people send and that tools make.

A platform's file is copied here once, so that it outlives the platform's link. A file is named by
the SHA-256 of its content, its `ref`: a file that two people send is stored once. Three things
belong to a file:

* a mark for each person who sent it, or for whom a tool made it. By the marks the person's limit is
  counted, and the person's files are found when the person is erased;
* a signed link that expires, for platforms that download what they show;
* a date, renewed each time the file is stored again. `sweep` removes files that are too old.
"""

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
from sayso.channels.types import Media, without_invisible
from sayso.infra.ids import random_id
from sayso.infra.storage.files import make_private, remove_older
from sayso.infra.storage.objects import LocalObjects, ObjectStore, StoreUnavailable
from sayso.infra.storage.objects import sweep as sweep_objects

T = TypeVar("T")

#: How long a file is stored after it last came from a person or a tool, in seconds: a week.
KEEP_SECONDS = 7 * 24 * 3600
#: How long a link works, in seconds. Twilio downloads within minutes, and a leaked link should stop
#: working soon.
MAX_LINK_SECONDS = 3600
#: By how many seconds the clocks of the machines that make and open a link may differ.
LEEWAY_SECONDS = 60
#: The type of a file whose bytes fit no known type: browsers download it and run nothing.
UNKNOWN_TYPE = "application/octet-stream"
#: The name of the spool folder, beside the folders of the files. Files that are still being
#: received are in it.
SPOOL_FOLDER = "arriving"
#: The folder of the marks, which say who sent a file.
OWNERS = "owners"
#: The smallest size with which a file counts, in bytes: one block of the disk, so that many tiny
#: files count too.
BLOCK_BYTES = 4096
#: How long the measured size of all files in a folder is used, in seconds. Files that this process
#: stores meanwhile are added to it.
MEASURE_SECONDS = 10.0
#: The same for a bucket, where measuring costs a request for each thousand files.
BUCKET_MEASURE_SECONDS = 300.0
#: The longest name of a file in a link and in a `Media`, in characters.
MAX_FILENAME_CHARS = 120
#: The longest ending that stays when a name is cut, in characters. A longer one is a sentence.
MAX_ENDING_CHARS = 10
#: How many bytes at the start of a file are enough to recognize its type.
_HEAD_BYTES = 64
#: How many bytes of a file are read at a time.
_READ_BYTES = 256 * 1024
_MIB = 1024 * 1024
_REF = re.compile(r"[0-9a-f]{64}")
_OWNER = re.compile(r"[0-9a-f]{20}")
#: The name of a mark's object.
_MARK = re.compile(r"[0-9a-f]{2}/([0-9a-f]{20})\.([0-9]+)-([0-9a-f]{64})")
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
    # Office documents before 2007. Installers begin with the same bytes, so alone they prove
    # nothing: see _CONTAINERS.
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", UNKNOWN_TYPE),
)
#: The type of a RIFF file by its form type, which is bytes 8 to 12.
_RIFF = {b"WEBP": "image/webp", b"WAVE": "audio/wav"}
#: The type of an ISO media file (MP4, HEIC, AVIF) by its brand, which is bytes 8 to 12. Only those
#: of pictures: any other brand is video or sound.
_BRANDS = {
    b"avif": "image/avif",
    b"heic": "image/heic",
    b"heix": "image/heic",
    b"mif1": "image/heic",
}
#: Containers that hold several types: the declared type is used if it starts with one of these.
#: Most are whole types. One that ends with "." is the beginning of many, such as Office documents.
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
    UNKNOWN_TYPE: (
        "application/msword",
        "application/vnd.ms-excel",
        "application/vnd.ms-powerpoint",
    ),
}
#: Types without magic bytes that are safe to show as text. HTML and SVG can hold scripts, so they
#: are not listed.
_TEXT_TYPES = frozenset(
    {"text/plain", "text/csv", "text/markdown", "text/calendar", "text/vcard", "application/json"}
)


class TooLarge(Exception):
    """Raised for a file that is larger than MAX_FILE_BYTES."""


class MediaGone(Exception):
    """Raised for a link that has expired, or whose file was removed."""


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
    """The media store over an object store: a folder or a bucket.

    One instance serves a whole process, from any thread.

    * `files`: the store of the contents. An object's name contains the `ref` of its file.
    * `marks`: the store of the marks: empty objects whose names say who sent which file, and how
      large it is. See `_Mark`.
    * `spool_folder`: a folder of this machine for files that are still being received.
    * `keys`: secrets, at least one. The first one signs links and all of them verify links, so that
      a key can be retired while its links are still in use.
    * `public_url`: what the URLs of links begin with.
    * `clock`: returns the time from which `sweep` counts how old a file is, in Unix seconds. The
      date of a file comes from the clock of its disk or bucket.
    * `link_clock`: returns the time by which links expire, in Unix seconds; by default `clock`. The
      machine that opens a link may be another one than the machine that made it, so this should be
      a clock that all machines share.
    * `limits`: by default MediaLimits().

    Raises ValueError for empty `keys`.
    """

    def __init__(
        self,
        files: ObjectStore,
        marks: ObjectStore,
        spool_folder: Path,
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
        self._spool_folder = spool_folder
        self._room = MediaRoom(files, spool_folder.parent, limits or MediaLimits())
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
        """The folder of files that are still being received. It is created when it is needed."""
        return self._spool_folder

    def why_full(self) -> str:
        """Return why no file can be stored now, "" if one can.

        Raises OSError if the folder or the bucket cannot be used.
        """
        make_private(self._spool_folder.parent)
        for folder in (self._spool_folder.parent, self._spool_folder):
            if folder.exists() and not os.access(folder, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
        if self.is_remote:
            # `_room` may use a size that was measured minutes ago, without a request. Any request
            # proves that the bucket still answers, also one about a file that does not exist.
            self._files.stat(_object_name("0" * 64))
        return self._room.why_full()

    def put(
        self, content: bytes | BinaryIO, *, mime_type: str, filename: str = "", owner: str = ""
    ) -> Media:
        """Store bytes, or a file from its beginning.

        * `mime_type`: the type that the sender declares. The content decides where it can be
          recognized.
        * `owner`: a person's name as `sayso.channels.types.owner_of` makes it, "" for none.

        Raises TooLarge, NoRoom and OSError.
        """
        source = BytesIO(content) if isinstance(content, bytes) else content
        with self.receive(owner, size_of(source)) as file:
            shutil.copyfileobj(source, file, _READ_BYTES)
            return self.save_received(file, mime_type=mime_type, filename=filename, owner=owner)

    @contextmanager
    def receive(self, owner: str, size: int = 0) -> Iterator[BinaryIO]:
        """Open a file for bytes that arrive in parts. The file is removed at the end of the block.

        Call `save_received` in the block to store what was written.

        * `owner`: a person's name as `sayso.channels.types.owner_of` makes it, "" for none.
        * `size`: the announced size in bytes, 0 if unknown.

        Raises TooLarge, NoRoom and OSError.
        """
        if size > MAX_FILE_BYTES:
            raise TooLarge(f"the file has {size} bytes: send at most {MAX_FILE_BYTES}")
        if owner:
            # Only the content will show whether the person sent this file before, so it counts as
            # a new one.
            self._room.check_person(sum(self._sizes_of(owner).values()), size)

        make_private(self._spool_folder)
        # A file of unknown size may become as large as allowed.
        reserved = size or MAX_FILE_BYTES
        with (
            self._room.reserve(reserved),
            NamedTemporaryFile(dir=self._spool_folder, delete=False) as file,
        ):
            try:
                yield cast("BinaryIO", file)
            finally:
                # Storing the file may have moved it away. With `delete=True` the missing file would
                # be an error here.
                Path(file.name).unlink(missing_ok=True)

    def save_received(
        self, file: BinaryIO, *, mime_type: str, filename: str = "", owner: str = ""
    ) -> Media:
        """Store what was written to a file of `receive`. The parameters are those of `put`.

        Raises TooLarge, NoRoom and OSError.
        """
        file.flush()
        file.seek(0)
        digest = hashlib.sha256()
        size = 0
        head = b""
        is_text = True
        while block := file.read(_READ_BYTES):
            digest.update(block)
            if not head:
                head = block[:_HEAD_BYTES]
            size += len(block)
            is_text = is_text and _is_text(block)
        if size > MAX_FILE_BYTES:
            raise TooLarge(f"{filename!r} has {size} bytes: send at most {MAX_FILE_BYTES}")

        ref = digest.hexdigest()
        if owner:
            sizes = self._sizes_of(owner)
            # A file that the person sent before takes no more room.
            if ref not in sizes:
                self._room.check_person(sum(sizes.values()), size)
            # Before the file: an erasure finds the files of a person by their marks alone. If the
            # file then cannot be stored, the mark stays: a bucket that gave no answer may have it.
            self._marks.put(_Mark(owner, size, ref).object_name, b"")

        is_new = self._files.put(_object_name(ref), Path(file.name))
        if is_new:
            self._room.add(size)

        settled_type = _settled_type(head, mime_type, is_text=is_text)
        return Media(ref, settled_type, file_label(filename), size, stored=True)

    def read(self, ref: str) -> bytes:
        """Return the stored bytes. Raises KeyError for an unknown or removed file, and OSError."""
        with self.open(ref) as file:
            return file.read()

    def open(self, ref: str, start: int = 0) -> BinaryIO:
        """Open a stored file at the byte `start`.

        Raises KeyError for an unknown or removed file, and OSError.
        """
        return self._files.open(_object_name(ref), start)

    def erase(self, owner: str) -> int:
        """Remove the files that only this person sent, and return their number.

        `owner` is a person's name as `sayso.channels.types.owner_of` makes it. Raises OSError.
        """
        own_marks = self._marks_of(owner)
        if not own_marks:
            return 0

        own_refs = {mark.ref for mark in own_marks}
        for mark in self._list_marks():
            if mark.owner != owner:
                own_refs.discard(mark.ref)

        # The marks last: if the store fails half way, they say what the next call has to remove.
        self._files.delete(map(_object_name, own_refs))
        self._marks.delete(mark.object_name for mark in own_marks)
        return len(own_refs)

    def url(self, ref: str, *, filename: str, mime_type: str) -> str:
        """Return a signed link to a file. It expires after MAX_LINK_SECONDS.

        A random part makes each link different, also two that are made in the same second. So two
        people never get the same link.
        """
        token = self._links.dumps([ref, mime_type, file_label(filename), random_id(8)])
        return f"{self._public_url}/media/{token}"

    def open_token(self, token: str) -> LinkedFile:
        """Return the file of a link, by the last part of its URL.

        Raises MediaGone, BadToken and OSError.
        """
        try:
            content, signed_at = self._links.loads(token, return_timestamp=True)
        except BadData as exc:
            raise BadToken("this link is not one of ours: ask the bot for the file again") from exc
        ref, mime_type, filename, _ = content

        # Not by `max_age` of itsdangerous: it refuses a link whose machine's clock is 1 s ahead.
        age = int(self._link_clock()) - signed_at.timestamp()
        if not -LEEWAY_SECONDS <= age <= MAX_LINK_SECONDS:
            raise MediaGone("this link has expired: ask the bot for the file again")

        stored = self._files.stat(_object_name(ref))
        if stored is None:
            raise MediaGone("this file was removed: ask the bot for it again")
        return LinkedFile(ref, stored.size, mime_type, filename)

    def sweep(self) -> int:
        """Remove the files that were not stored again for KEEP_SECONDS, and return their number.

        Raises OSError.
        """
        # These were left behind by processes that were killed.
        remove_older(self._spool_folder.glob("*"), self._clock() - KEEP_SECONDS)
        sweep_objects(self._marks, KEEP_SECONDS, self._clock())
        return sweep_objects(self._files, KEEP_SECONDS, self._clock())

    def _marks_of(self, owner: str) -> list[_Mark]:
        """Return the marks of a person. Raises KeyError for an invalid `owner`."""
        return list(self._list_marks(_owner_prefix(owner)))

    def _list_marks(self, prefix: str = "") -> Iterator[_Mark]:
        """Yield the marks whose objects' names begin with `prefix`, all for ""."""
        for each in self._marks.list(prefix):
            # A bucket may hold objects of other programs.
            match = _MARK.fullmatch(each.name)
            if match:
                yield _Mark(match[1], int(match[2]), match[3])

    def _sizes_of(self, owner: str) -> dict[str, int]:
        """Return the bytes that each file of a person counts, by its `ref`."""
        return {mark.ref: _counted_size(mark.size) for mark in self._marks_of(owner)}


class LocalMediaStore(MediaFiles):
    """The media store in one folder of this machine."""

    def __init__(self, folder: Path, **options: Any) -> None:
        """Take what MediaFiles takes by name."""
        # All of it is in one folder. The store of the files sees only the subfolders whose names
        # are two hexadecimal digits, so neither the marks nor the files that are being received.
        files = LocalObjects(folder)
        marks = LocalObjects(folder / OWNERS)
        super().__init__(files, marks, folder / SPOOL_FOLDER, **options)


class _Mark(NamedTuple):
    """The mark that a person sent a file. Two people who send the same file have a mark each.

    A file that a tool made for a person has their mark, too. A mark is an empty object. Its name
    holds everything, so that listing the marks is enough.
    """

    owner: str
    #: The size of the file in bytes.
    size: int
    ref: str

    @property
    def object_name(self) -> str:
        """The name of the mark's object: `<first 2 digits of owner>/<owner>.<size>-<ref>`."""
        return f"{_owner_prefix(self.owner)}.{self.size}-{self.ref}"


def _owner_prefix(owner: str) -> str:
    """Return how the names of a person's marks begin. Raises KeyError for an invalid `owner`."""
    if not _OWNER.fullmatch(owner):
        raise KeyError(owner)
    return f"{owner[:2]}/{owner}"


def _object_name(ref: str) -> str:
    """Return the name of a file's object. Raises KeyError for an invalid `ref`."""
    if not _REF.fullmatch(ref):
        raise KeyError(ref)
    return f"{ref[:2]}/{ref}"


def file_to_send(get: Callable[[str], T], ref: str) -> T:
    """Return `get(ref)`, with the errors of a media store as errors of sending.

    `get` reads or opens a stored file: `MediaFiles.read`, or
    `functools.partial(open_on_disk, store)`. Raises Refused if the file was removed, and
    Unreachable if the store cannot be read now.
    """
    try:
        return get(ref)
    except KeyError:
        raise Refused("the file to send is gone from the media store") from None
    except OSError as exc:
        # Only the message of StoreUnavailable is safe to log: others name a path.
        reason = type(exc).__name__
        if isinstance(exc, StoreUnavailable):
            reason = exc.reason
        raise Unreachable(f"the file to send cannot be read: {reason}") from exc


def open_on_disk(store: MediaStore, ref: str) -> BinaryIO:
    """Open a stored file so that it can be sent in parts and is never whole in memory.

    A file of a bucket is copied to a temporary file first: its stream has no `seek`, and a platform
    must know the size of a file before it comes. The caller closes the file. Raises KeyError and
    OSError.
    """
    file = store.open(ref)
    if file.seekable():
        return file

    folder = None
    if store.spool_folder:
        folder = make_private(store.spool_folder)
    with file:
        copy = cast("BinaryIO", TemporaryFile(dir=folder))  # noqa: SIM115  # the caller closes it
        shutil.copyfileobj(file, copy, _READ_BYTES)
    copy.seek(0)
    return copy


def size_of(file: BinaryIO) -> int:
    """Return the size of a seekable file in bytes, and go back to its beginning."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    return size


def settle_type(content: bytes | BinaryIO, declared: str) -> str:
    """Return the MIME type of bytes, or of a file.

    It is the type that the content proves, else the declared one if it is a type of harmless text
    and the content is text, else UNKNOWN_TYPE. Afterwards a file is somewhere behind its beginning.
    """
    if isinstance(content, bytes):
        return _settled_type(content, declared, is_text=_is_text(content))

    content.seek(0)
    head = content.read(_READ_BYTES)
    block = head
    while block and _is_text(block):
        block = content.read(_READ_BYTES)
    # All blocks were text if the last one is empty: the end of the file.
    return _settled_type(head, declared, is_text=not block)


def _settled_type(head: bytes, declared: str, *, is_text: bool) -> str:
    """Return the type as `settle_type` does, by the first bytes of a file."""
    # Without parameters, such as "; charset=utf-8".
    declared_type = declared.partition(";")[0].strip().lower()
    proven_type = _type_by_magic(head)
    if proven_type:
        # An Ogg file may be sound or video: the sender knows better than its first bytes. For a
        # type that is no container there are no variants, so the declared type never counts.
        variants = _CONTAINERS.get(proven_type, ())
        if _MIME_TYPE.fullmatch(declared_type) and declared_type.startswith(variants):
            return declared_type
        return proven_type

    if is_text and declared_type in _TEXT_TYPES:
        return declared_type
    return UNKNOWN_TYPE


def _type_by_magic(data: bytes) -> str:
    """Return the type or container that the first bytes of a file prove, "" if they prove none."""
    for magic, mime_type in _MAGIC:
        if data.startswith(magic):
            return mime_type
    if data[:4] == b"RIFF":
        return _RIFF.get(data[8:12], "")
    if data[4:8] == b"ftyp":
        return _BRANDS.get(data[8:12], "video/mp4")
    # MP3 without an ID3 tag.
    if data[:2] in (b"\xff\xfb", b"\xff\xf3", b"\xff\xf2"):
        return "audio/mpeg"
    # AAC outside a container (ADTS), which people send over WhatsApp.
    if data[:2] in (b"\xff\xf1", b"\xff\xf9"):
        return "audio/aac"
    return ""


def _is_text(data: bytes) -> bool:
    """Return whether bytes are text: no byte is NUL.

    A stricter test, such as for UTF-8, would refuse text in the old encodings of spreadsheets.
    """
    return b"\0" not in data


def file_label(filename: str) -> str:
    """Return a sender's file name without folders and control characters.

    A name of more than MAX_FILENAME_CHARS is cut before its ending. Spaces of other kinds, such as
    the narrow one that macOS writes into the names of screenshots, become usual ones.
    """
    name = re.split(r"[/\\]", filename)[-1]
    spaced = "".join(" " if unicodedata.category(char) == "Zs" else char for char in name)
    printable = without_invisible(spaced)
    if len(printable) <= MAX_FILENAME_CHARS:
        return printable

    stem, _, ending = printable.rpartition(".")
    if len(ending) > MAX_ENDING_CHARS:
        return printable[:MAX_FILENAME_CHARS]
    stem_chars = MAX_FILENAME_CHARS - len(f".{ending}")
    return f"{stem[:stem_chars]}.{ending}"


class _ClockedSigner(TimestampSigner):
    """A TimestampSigner that reads a given clock."""

    def __init__(self, *args: Any, clock: Callable[[], float], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._clock = clock

    def get_timestamp(self) -> int:
        """Return the time of the clock, in whole Unix seconds."""
        return int(self._clock())


@dataclass(frozen=True)
class MediaLimits:
    """Limits of the media store."""

    #: The most bytes of the files that one person sent.
    per_person_bytes: int = 250 * _MIB
    #: The most bytes of all files.
    total_bytes: int = 10 * 1024 * _MIB
    #: How many bytes stay free on the disk, at least.
    reserve_bytes: int = 256 * _MIB
    #: Which share of the whole disk stays free, at least. The larger of the two counts.
    reserve_percent: float = 5.0


class MediaRoom:
    """Decides whether there is room for a file. One per media store, used from any thread.

    `files` is the store whose size is measured. `disk` is a folder of the disk on which files
    arrive, also those for a bucket.
    """

    def __init__(self, files: ObjectStore, disk: Path, limits: MediaLimits) -> None:
        self._files = files
        self._disk = disk
        self._limits = limits
        #: How long the measured size of all files is used.
        self._measure_seconds = MEASURE_SECONDS
        if files.is_remote:
            self._measure_seconds = BUCKET_MEASURE_SECONDS
        self._lock = threading.Lock()
        #: Bytes of the files that are being received now.
        self._reserved_bytes = 0
        #: Counted bytes of all files: as measured, and what this process has stored since.
        self._total_bytes = 0
        self._measured_at = float("-inf")

    @contextmanager
    def reserve(self, size: int) -> Iterator[None]:
        """Count `size` bytes as taken for this block, in which a file of this size is received.

        Without it, many files that arrive at once would each find the same room. Raises NoRoom and
        OSError.
        """
        with self._lock:
            self._check(size)
            self._reserved_bytes += size
        try:
            yield
        finally:
            with self._lock:
                self._reserved_bytes -= size

    def why_full(self) -> str:
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
        limit = self._limits.per_person_bytes
        if stored_bytes + _counted_size(size) > limit:
            raise QuotaExceeded(
                f"this person's files have {stored_bytes} bytes of {limit}: {size} more do not fit"
            )

    def add(self, size: int) -> None:
        """Count a file that was stored."""
        with self._lock:
            self._total_bytes += _counted_size(size)

    def _check(self, size: int) -> None:
        """Check that `size` bytes fit; 0 for the smallest file. Raises NoRoom and OSError."""
        if time.monotonic() - self._measured_at > self._measure_seconds:
            self._total_bytes = sum(_counted_size(each.size) for each in self._files.list())
            self._measured_at = time.monotonic()

        consequence = "no file can be stored"
        if size:
            consequence = f"{size} more do not fit"

        total = self._total_bytes
        limit = self._limits.total_bytes
        if total + self._reserved_bytes + _counted_size(size) > limit:
            raise NoRoom(f"all files have {total} bytes of {limit}: {consequence}")

        disk = shutil.disk_usage(self._disk)
        share = int(disk.total * self._limits.reserve_percent / 100)
        reserve = max(self._limits.reserve_bytes, share)
        # What has arrived of the reserved files is counted twice, since it is not free on the disk
        # either. That errs on the safe side.
        if disk.free - self._reserved_bytes - size < reserve:
            raise NoRoom(
                f"the disk has {disk.free} bytes free, and {reserve} must stay free: {consequence}"
            )


def _counted_size(size: int) -> int:
    """Return the bytes that a file of this size counts: at least one block of the disk."""
    return max(size, BLOCK_BYTES)
