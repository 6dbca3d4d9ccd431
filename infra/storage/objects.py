"""ObjectStore: stores files and long texts, in a folder (`LocalObjects`) or in a bucket (`s3.py`)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from sayso.infra.storage.files import make_private, sync, write_atomically

#: Seconds for which `ObjectStore.put` need not renew the date of a stored object.
#: It saves uploads to a bucket.
DATE_SECONDS = 3600
_NAME = re.compile(r"[0-9a-f]{2}/[0-9a-z.-]{1,150}")


class StoreUnavailable(OSError):
    """Raised when a bucket cannot be used now: it does not answer, or it refuses.

    The message is safe to log.
    """

    def __init__(self, says: str, cure: str = "") -> None:
        super().__init__(f"{says}: {cure}" if cure else says)
        self.says = says
        self.cure = cure

    @property
    def reason(self) -> str:
        """The message: what is wrong, and the cure if it is known."""
        return str(self)


class StoreSilent(StoreUnavailable):
    """Raised when the bucket does not answer at all."""


class StoreRefused(StoreUnavailable):
    """Raised when the bucket, its region or the credentials are wrong,
    so that waiting does not help.
    """


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object in a store: its size in bytes, and when it was stored, in Unix seconds."""

    name: str
    size: int
    modified_at: float


class ObjectStore(Protocol):
    """Stores bytes under names.

    A name is `ab/...` in lower case. Objects with equal names have equal bytes.

    One instance serves a whole process, from any thread. All methods raise OSError,
    and KeyError for an invalid name.
    """

    #: Whether each call is a request over the network. A file that is opened there has no `seek`.
    is_remote: bool

    def put(self, name: str, content: bytes | Path) -> bool:
        """Store an object whole or not at all, durably, and date it now,
        or at most DATE_SECONDS ago.

        A file at a path may be moved; it is on the disk of a store that has one.
        Return whether the object is new.
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


def sweep(objects: ObjectStore, keep_seconds: float, now: float) -> int:
    """Delete the objects that were not stored for `keep_seconds`.

    Return how many. Raises OSError.
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
    """Objects in the files of one folder. The processes of several machines may share it."""

    is_remote = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, name: str, content: bytes | Path) -> bool:
        """Write a file whole or not at all, even if the power fails. A file at a path is moved."""
        path = self._path(name)
        if isinstance(content, bytes):
            size = len(content)
        else:
            size = content.stat().st_size
        if self._is_renewed(path, size):
            sync(path.parent)  # the process that wrote it may not have done so yet
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
            found = self._path(name).stat()
        except FileNotFoundError:
            return None
        return StoredObject(name, found.st_size, found.st_mtime)

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        """Yield the files, also those that a killed process left half written."""
        folder, _, beginning = prefix.rpartition("/")
        for path in list(self._folder.glob(f"{folder or '[0-9a-f][0-9a-f]'}/{beginning}*")):
            try:
                found = path.stat()
            except FileNotFoundError:  # another worker is removing it
                continue
            yield StoredObject(f"{path.parent.name}/{path.name}", found.st_size, found.st_mtime)

    def delete(self, names: Iterable[str]) -> None:
        """Remove files."""
        for name in names:
            self._path(name).unlink(missing_ok=True)

    def _is_renewed(self, path: Path, size: int) -> bool:
        """Set the date of a file to now, if it has this size. Return whether it has."""
        try:
            if path.stat().st_size != size:
                return False
            os.utime(path)
        except FileNotFoundError:
            return False
        return True

    def _path(self, name: str) -> Path:
        folder, _, file = name.partition("/")
        if file.startswith(".") and "/" not in file:  # what a killed process left is swept
            check_name(f"{folder}/x")
            return self._folder / folder / file
        return self._folder / check_name(name)
