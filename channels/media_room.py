"""Media room: how many bytes of files one person and all people may keep, and how much of the disk stays free."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

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
