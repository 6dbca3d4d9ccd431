"""Prefork: many processes that do one thing, forked from a parent that has loaded it all, and replaced when they die.

A process that is killed is back after a fork instead of a start, and all share the memory of what was loaded.
"""

from __future__ import annotations

import gc
import logging
import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from sayso.config.embedded import die_with_parent

log = logging.getLogger(__name__)

#: One that dies within so many seconds of its fork died quickly; its successor waits, longer each time.
QUICK_SECONDS = 1.0
#: The longest wait, in seconds.
MAX_PAUSE_SECONDS = 5.0
_HEARD = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)


def prefork(count: int) -> None:
    """Return in each of `count` forked processes. The parent stays here until a signal ends it and them.

    Call it before there are threads or connections. The parent raises SystemExit: with 0 after SIGTERM or SIGINT, else
    with the code of the first process that gave up by itself.
    """
    parent = _Parent(count)
    if not parent.is_child:
        raise SystemExit(parent.code)


class _Parent:
    """The parent, until it is over; or, with `is_child`, one that was forked off."""

    def __init__(self, count: int) -> None:
        self.is_child, self.code = False, 0
        self._count = count
        self._children: dict[int, float] = {}
        self._quick = 0
        self._stopping = False
        gc.freeze()  # a collection would touch, and so copy, what is shared
        self._reads, self._writes = os.pipe()
        for end in (self._reads, self._writes):
            os.set_blocking(end, False)
        for number in _HEARD:
            signal.signal(number, _note)
        signal.set_wakeup_fd(self._writes, warn_on_full_buffer=False)
        self._keep()

    def _keep(self) -> None:
        while self._children or not self._stopping:
            while len(self._children) < self._count and not self._stopping:
                self._fork()
                if self.is_child:
                    return
            self._heed(self._listen(None))

    def _fork(self) -> None:
        parent = os.getpid()
        with _deaf():
            pid = os.fork()
            if pid:
                self._children[pid] = time.monotonic()
                return
            self.is_child = True
            signal.set_wakeup_fd(-1)
            for number in _HEARD:
                signal.signal(number, signal.SIG_DFL)
            for end in (self._reads, self._writes):
                os.close(end)
            os.setpgid(0, 0)  # Ctrl-C reaches it through its parent only
            die_with_parent()
            if os.getppid() != parent:
                os._exit(0)

    def _listen(self, seconds: float | None) -> bytes:
        """The signals that came, waiting for so long."""
        select.select([self._reads], [], [], seconds)
        try:
            return os.read(self._reads, 512)
        except BlockingIOError:
            return b""

    def _heed(self, heard: bytes) -> None:
        for number in heard:
            if number in (signal.SIGTERM, signal.SIGINT):
                self._stop()
        for pid, status in _ended():
            self._lost(pid, os.waitstatus_to_exitcode(status))

    def _stop(self) -> None:
        """Tell all to stop; told again, they do it at once."""
        self._stopping = True
        for pid in self._children:
            os.kill(pid, signal.SIGTERM)

    def _lost(self, pid: int, code: int) -> None:
        lived = time.monotonic() - self._children.pop(pid)
        if self._stopping:
            return
        if code > 0:
            self.code = code
            self._stop()
            return
        log.warning("prefork.died", extra={"pid": pid, "code": code, "seconds": round(lived, 1)})
        self._quick = self._quick + 1 if lived < QUICK_SECONDS else 0
        if self._quick > 1:
            self._heed(self._listen(min(MAX_PAUSE_SECONDS, 0.1 * 2**self._quick)))


def _ended() -> Iterator[tuple[int, int]]:
    """Children that ended and were not waited for, and how."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        yield pid, status


@contextmanager
def _deaf() -> Iterator[None]:
    """Signals wait meanwhile: one that meets a child with its parent's handlers would be lost."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HEARD)


def _note(_: int, __: FrameType | None) -> None:
    """What came is read from the pipe."""
