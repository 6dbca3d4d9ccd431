"""Crew: the worker processes of a machine, forked by one parent that replaces whoever dies, known by process id."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from random import Random

from config.up import Child


class Crew:
    """`registered` says which process ids RQ knows workers by: one that is still starting is none yet."""

    def __init__(self, parent: Child, registered: Callable[[], set[int]]) -> None:
        self.parent = parent
        self._registered = registered
        self._leaving: set[int] = set()

    def at_work(self) -> set[int]:
        """Those that have started and live."""
        return {pid for pid in self._registered() if pid and _lives(pid)} - self._leaving

    @property
    def leaving(self) -> set[int]:
        """Those told to stop that still live."""
        self._leaving = {pid for pid in self._leaving if _lives(pid)}
        return self._leaving

    def kill(self, pid: int) -> None:
        """End one without warning."""
        _signal(pid, signal.SIGKILL)

    def kill_parent(self) -> None:
        """End the parent without warning: all of them stop, and others are started by `tend`."""
        if self.parent.process is not None:
            self.parent.process.kill()
            self.parent.process.wait()

    def tell_to_stop(self, pid: int) -> None:
        """SIGTERM, to one."""
        _signal(pid, signal.SIGTERM)
        self._leaving.add(pid)

    def tend(self) -> int:
        """Start the parent again when it ended. Returns how often that was."""
        if self.parent.is_alive():
            return 0
        self.parent.start()
        return 1


def pick(pids: set[int], chance: Random) -> int:
    """One of them, 0 when there is none."""
    return chance.choice(sorted(pids)) if pids else 0


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _signal(pid: int, number: int) -> None:
    if _lives(pid):
        os.kill(pid, number)
