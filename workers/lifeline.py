"""Lifeline: a file that each worker keeps locked, by which others on its machine know that it died.

The kernel lets the lock go when the process ends, however it ends, and never before: a worker that is stopped, slow or
cut off from Redis keeps it. So what a dead one held can be taken over at once, long before its leases end; other
machines wait for these.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

#: The folder of them in the data folder.
ALIVE = "alive"
#: What tells one run of a machine from every other: a folder may be shared, and a lock says nothing across machines.
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
#: Files that another machine, or this one before its last start, left behind are kept for so many seconds: a week.
KEEP_SECONDS = 7 * 24 * 3600


class Lifeline:
    """One worker's file in a folder of all, from `hold` to the end of its process. `group` is what it works for.

    `name` is new for each process, of letters, digits, - and _.
    """

    def __init__(self, folder: Path, group: str = "") -> None:
        self.name = secrets.token_urlsafe(8)
        self._folder = folder
        self._ours = f"{_this_run()}.{group}."
        self._file = -1

    def hold(self) -> None:
        """From now on others can see that we live. Raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._sweep()
        path = self._path(self.name)
        made = path.with_name(f".{path.name}")  # under its own name it is locked from the first moment
        self._file = os.open(made, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX)
        made.rename(path)

    def leave(self) -> None:
        """Nothing is held any more: there will be nothing to bury."""
        self._path(self.name).unlink(missing_ok=True)

    def bury(self, settle: Callable[[str], object]) -> list[str]:
        """Call `settle` with the name of each worker of this machine and group that died, and forget it.

        Raises what `settle` raises: its dead stay known. Returns the names.
        """
        buried = []
        for path in self._folder.glob(f"{self._ours}*"):
            name = path.name.removeprefix(self._ours)
            with _lock_of_the_dead(path) as dead:
                if dead and name != self.name:
                    settle(name)
                    path.unlink(missing_ok=True)
                    buried.append(name)
        return buried

    def _path(self, name: str) -> Path:
        return self._folder / f"{self._ours}{name}"

    def _sweep(self) -> None:
        """Remove what nobody of this run of this machine will ever look at."""
        for path in self._folder.iterdir():
            with contextlib.suppress(OSError):
                foreign = not path.name.startswith(self._ours.split(".", 1)[0])
                if foreign and time.time() - path.stat().st_mtime > KEEP_SECONDS:
                    path.unlink()


def _this_run() -> str:
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return platform.node().replace(".", "-")


@contextmanager
def _lock_of_the_dead(path: Path) -> Iterator[bool]:
    """Whether nobody holds the file's lock; then we do, so that no two of us bury the same one at a time."""
    try:
        file = os.open(path, os.O_RDWR)
    except OSError:  # buried meanwhile
        yield False
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(file)
