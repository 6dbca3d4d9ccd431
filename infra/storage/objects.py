"""ObjectStore: stores files and long texts, in a folder (`LocalObjects`) or in a bucket (`s3.py`).

An *object* is a sequence of bytes under a name. It never changes: other bytes get another name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from sayso.infra.storage.files import make_private, sync, write_atomically

#: Seconds after which `ObjectStore.put` must renew the date of a stored object. Renewing it each
#: time would upload the object to a bucket each time.
DATE_SECONDS = 3600
#: Two hexadecimal digits, which spread the objects over folders, and a file name.
_NAME = re.compile(r"[0-9a-f]{2}/[0-9a-z.-]{1,150}")


class StoreUnavailable(OSError):
    """Raised when a bucket cannot be used now: it does not answer, or it refuses.

    The message is safe to log.
    """

    def __init__(self, says: str, cure: str = "") -> None:
        message = says
        if cure:
            message = f"{says}: {cure}"
        super().__init__(message)
        #: What is wrong.
        self.says = says
        #: What an operator can do, "" if that is not known.
        self.cure = cure

    @property
    def reason(self) -> str:
        """Return the message: what is wrong, and the cure if it is known."""
        return str(self)


class StoreSilent(StoreUnavailable):
    """Raised when the bucket does not answer at all."""


class StoreRefused(StoreUnavailable):
    """Raised when the bucket, its region or the credentials are wrong: waiting does not help."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """What a store knows of one object."""

    name: str
    #: In bytes.
    size: int
    #: When it was stored last, in Unix seconds.
    modified_at: float


class ObjectStore(Protocol):
    """Stores bytes under names, in a folder or in a bucket.

    A name is `ab/...` in lower case, where `ab` are two hexadecimal digits. Objects with equal names
    have equal bytes. One instance serves a whole process, from any thread. All methods raise
    OSError, and KeyError for an invalid name.
    """

    #: Whether each call is a request over the network. A file that is opened there has no `seek`.
    is_remote: bool

    def put(self, name: str, content: bytes | Path) -> bool:
        """Store an object whole or not at all, durably, and return whether it is new.

        `content` is the bytes, or the path of a file with them, which may be moved: it must be on
        the same disk as a store that has one. Afterwards the date of the object is at most
        DATE_SECONDS ago.
        """

    def open(self, name: str, start: int = 0) -> BinaryIO:
        """Open an object at the byte `start`, to be read once from there.

        Raises KeyError if there is none.
        """

    def stat(self, name: str) -> StoredObject | None:
        """Return the size and the date of an object; None if there is none."""

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        """Yield the objects whose names begin with the prefix, which is "" or begins with `ab/`."""

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects. A name without an object is no error."""


def check_name(name: str) -> str:
    """Return a name of an object.

    Raises KeyError for any other text: it must not become part of a path.
    """
    if not _NAME.fullmatch(name):
        raise KeyError(name)
    return name


def size_of(content: bytes | Path) -> int:
    """Return the size of bytes, or of a file, in bytes. Raises OSError."""
    if isinstance(content, bytes):
        return len(content)
    return content.stat().st_size


def sweep(objects: ObjectStore, keep_seconds: float, now: float) -> int:
    """Delete the objects that were not stored again for `keep_seconds`.

    `now` is in Unix seconds. Return how many were deleted. Raises OSError.
    """
    oldest = now - keep_seconds - DATE_SECONDS
    count = 0
    for each in objects.list():
        if each.modified_at < oldest:
            # It may have been stored again since the list was made.
            current = objects.stat(each.name)
            if current and current.modified_at < oldest:
                objects.delete([each.name])
                count += 1
    return count


class LocalObjects:
    """The ObjectStore in the files of one folder. Processes of several machines may share it."""

    is_remote = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, name: str, content: bytes | Path) -> bool:
        """Write a file whole or not at all, even if the power fails. A file at a path is moved."""
        path = self._path(name)
        if self._renew(path, size_of(content)):
            # The process that wrote it may not have synced the folder yet.
            sync(path.parent)
            return False
        if isinstance(content, bytes):
            write_atomically(path, content)
        else:
            sync(content)
            make_private(path.parent)
            content.replace(path)
            sync(path.parent)
        return True

    def open(self, name: str, start: int = 0) -> BinaryIO:
        """Open a file."""
        try:
            file = self._path(name).open("rb")
        except FileNotFoundError:
            raise KeyError(name) from None
        file.seek(start)
        return file

    def stat(self, name: str) -> StoredObject | None:
        """Return size and date of a file."""
        try:
            status = self._path(name).stat()
        except FileNotFoundError:
            return None
        return StoredObject(name, status.st_size, status.st_mtime)

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        """Yield the files, also those that a killed process left half written."""
        folder, _, beginning = prefix.rpartition("/")
        folder = folder or "[0-9a-f][0-9a-f]"
        for path in list(self._folder.glob(f"{folder}/{beginning}*")):
            try:
                status = path.stat()
            except FileNotFoundError:
                # Another worker is removing it.
                continue
            yield StoredObject(f"{path.parent.name}/{path.name}", status.st_size, status.st_mtime)

    def delete(self, names: Iterable[str]) -> None:
        """Remove files."""
        for name in names:
            self._path(name).unlink(missing_ok=True)

    def _renew(self, path: Path, size: int) -> bool:
        """Set the date of a file to now, if it has this size. Return whether it has."""
        try:
            if path.stat().st_size != size:
                return False
            os.utime(path)
        except FileNotFoundError:
            return False
        return True

    def _path(self, name: str) -> Path:
        """Return the path of an object. Raises KeyError for an invalid name."""
        folder, _, file = name.partition("/")
        # A killed process leaves a half-written file with such a name, which `sweep` removes.
        if file.startswith(".") and "/" not in file:
            check_name(f"{folder}/x")
            return self._folder / folder / file
        return self._folder / check_name(name)
