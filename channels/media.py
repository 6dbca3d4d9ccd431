"""MediaStore, LocalMediaStore, atomic file writes."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import re
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, BinaryIO, NamedTuple

from itsdangerous import BadData, TimestampSigner, URLSafeTimedSerializer

from sayso.channels.types import Media

#: What is mounted where, as Linux tells a process.
MOUNTS = Path("/proc/self/mountinfo")


#: File systems that several machines share, by the names that Linux has for them.
NETWORK_FILE_SYSTEMS = frozenset(
    [
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "9p",
        "afs",
        "ceph",
        "glusterfs",
        "lustre",
        "beegfs",
        "gpfs",
        "gfs2",
        "ocfs2",
        "fuse.sshfs",
        "fuse.glusterfs",
        "fuse.ceph",
        "fuse.s3fs",
        "fuse.gcsfuse",
        "fuse.rclone",
        "fuse.juicefs",
    ]
)


def write_atomically(path: Path, data: bytes) -> None:
    """All the bytes or no file, even if the power fails in between; only our own user reads it. Raises OSError."""
    make_private(path.parent)
    with NamedTemporaryFile(dir=path.parent, prefix=".", delete=False) as temporary:
        try:
            temporary.write(data)
            temporary.flush()
            os.fsync(temporary.fileno())
            Path(temporary.name).replace(path)
        except BaseException:
            Path(temporary.name).unlink(missing_ok=True)
            raise
    sync_folder(path.parent)


class NotLocal(Exception):
    """Raised for a folder on a network file system, where it must be on a disk of this machine."""


def check_local(folder: Path, *, mounts: Path | None = None) -> None:
    """Refuse a folder, there yet or not, that lies on a network file system. Raises NotLocal.

    SQLite's write-ahead log is shared memory: machines that share the file do not see each other's. Told on Linux only.
    """
    kind = _file_system_of(folder.resolve(), mounts or MOUNTS)
    if kind in NETWORK_FILE_SYSTEMS:
        raise NotLocal(f"{folder} is on a network file system ({kind!r})")


def _file_system_of(folder: Path, mounts: Path) -> str:
    """The type of the file system that is mounted nearest above a folder, "" where nobody can tell."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ""
    kinds = dict[Path, str]()
    for line in lines:  # of several mounts at one place the last one counts
        before, _, after = line.partition(" - ")
        place = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), before.split()[4])
        kinds[Path(place)] = after.split()[0]
    return next((kinds[each] for each in (folder, *folder.parents) if each in kinds), "")


def make_private(folder: Path) -> Path:
    """Create a folder, and those above it that are missing, for our own user alone; return it. Raises OSError."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)
    return folder


def make_tree_private(folder: Path) -> None:
    """Create a data folder, and take from all in it what others than our own user may. Raises OSError.

    Hidden folders in it are left alone, as is a folder that everybody shares, such as /tmp.
    """
    make_private(folder)
    if folder.stat().st_mode & stat.S_ISVTX:
        return
    _take_from_others(folder)
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in (*folders, *files):
            _take_from_others(Path(parent, name))


def _take_from_others(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError, PermissionError):  # removed by another process, or somebody else's
        mode = path.lstat().st_mode
        if mode & 0o077 and (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            path.chmod(stat.S_IMODE(mode) & ~0o077)


def sync_folder(folder: Path) -> None:
    """The names in a folder are on disk when this returns. Raises OSError."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_older(files: Iterable[Path], oldest: float) -> int:
    """Remove the files that were last changed before `oldest`, in Unix seconds. Returns how many went."""
    old = [path for path in files if _changed_at(path) < oldest]
    for path in old:
        path.unlink(missing_ok=True)
    return len(old)


def _changed_at(path: Path) -> float:
    """When the file was stored last; now, for one that another worker is removing."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return math.inf


#: The smallest size a file counts with, in bytes: a block of the disk, so that many tiny files count too.
BLOCK_BYTES = 4096


#: How long the measured size of the whole folder is believed, in seconds. Own additions are counted at once.
MEASURE_SECONDS = 10.0


_MIB = 1024 * 1024


class NoRoom(Exception):
    """Raised when a file would fill what is left for all people, or the reserve of the disk."""


class QuotaExceeded(NoRoom):
    """Raised when a person's files would fill more than one person may keep."""


@dataclass(frozen=True)
class MediaLimits:
    """Limits of the media store. The larger of the two reserves stays free on the disk."""

    per_person_bytes: int = 250 * _MIB
    total_bytes: int = 10 * 1024 * _MIB
    reserve_bytes: int = 256 * _MIB
    reserve_percent: float = 5.0


class MediaRoom:
    """Decides whether a file may be kept. One per media store, used from any thread."""

    def __init__(
        self, folder: Path, limits: MediaLimits, *, disk_usage: Callable[[Path], tuple[int, int, int]] | None = None
    ) -> None:
        self._folder, self._limits = folder, limits
        self._disk_usage = disk_usage or shutil.disk_usage
        self._lock = threading.Lock()
        self._in_flight = 0
        self._total, self._measured_at = 0, float("-inf")

    @contextmanager
    def claim(self, size: int) -> Iterator[None]:
        """Count `size` bytes as taken from the disk while a file of this size arrives. Raises NoRoom."""
        with self._lock:
            self._check(size)
            self._in_flight += size
        try:
            yield
        finally:
            with self._lock:
                self._in_flight -= size

    def full(self) -> str:
        """Return why not even a small file may be kept, "" when it may."""
        with self._lock:
            try:
                self._check(0)
            except NoRoom as exc:
                return str(exc)
        return ""

    def check_person(self, kept_bytes: int, size: int) -> None:
        """Check that a person who keeps `kept_bytes` may keep `size` more. Raises QuotaExceeded."""
        allowed = self._limits.per_person_bytes
        if kept_bytes + counted(size) > allowed:
            raise QuotaExceeded(f"this person's files have {kept_bytes} bytes of {allowed}: {size} more do not fit")

    def add(self, size: int) -> None:
        """Count a file that was kept."""
        with self._lock:
            self._total += counted(size)

    def _check(self, size: int) -> None:
        self._measure()
        if self._total + self._in_flight + counted(size) > self._limits.total_bytes:
            raise NoRoom(f"all files have {self._total} bytes of {self._limits.total_bytes}: {size} more do not fit")
        disk, _, free = self._disk_usage(self._folder)
        reserve = max(self._limits.reserve_bytes, int(disk * self._limits.reserve_percent / 100))
        if free - self._in_flight - size < reserve:
            raise NoRoom(f"the disk has {free} bytes free, of which {reserve} stay free: {size} more do not fit")

    def _measure(self) -> None:
        if time.monotonic() - self._measured_at > MEASURE_SECONDS:
            self._total = sum(counted(size_of(path)) for path in self._folder.glob("[0-9a-f][0-9a-f]/*"))
            self._measured_at = time.monotonic()


def counted(size: int) -> int:
    """Return what a file of this size counts with."""
    return max(size, BLOCK_BYTES)


def size_of(path: Path) -> int:
    """Return the size of a file, 0 for one that was removed."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


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
