"""Crew: the worker processes of a machine, forked by parents that replace whoever dies, known by process id."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from sayso.config.up import Child


class Crew:
    """`registered` says which process ids RQ knows workers by: one that is still starting is none yet."""

    def __init__(self, parents: Sequence[Child], registered: Callable[[], set[int]]) -> None:
        self.parents = list(parents)
        self._registered = registered
        self._leaving: set[int] = set()
        self._seen: set[int] = set()
        self._told: set[int] = set()

    def at_work(self) -> set[int]:
        """Those that have started and live."""
        living = {pid for pid in self._registered() if pid and _lives(pid)}
        self._seen |= living
        return living - self._leaving

    @property
    def leaving(self) -> set[int]:
        """Those told to stop that still live."""
        self._leaving = {pid for pid in self._leaving if _lives(pid)}
        return self._leaving

    def kill(self, pid: int) -> None:
        """End one without warning."""
        self._told.add(pid)
        _signal(pid, signal.SIGKILL)

    def kill_parent(self, chance: Random) -> None:
        """End a parent without warning: what it forked stops, and `tend` starts it again."""
        self._told |= self._seen
        parent = chance.choice(self.parents)
        if parent.process is not None:
            parent.process.kill()
            parent.process.wait()

    def kill_all(self, parent: Child) -> int:
        """End a parent and what it forked at once, without warning. Returns how many it had."""
        if parent.process is None:
            return 0
        _signal(parent.process.pid, signal.SIGSTOP)  # it forks nobody meanwhile
        forked = _children(parent.process.pid)
        for pid in forked:
            self.kill(pid)
        parent.process.kill()
        parent.process.wait()
        return len(forked)

    def tell_to_stop(self, pid: int) -> None:
        """SIGTERM, to one."""
        self._told.add(pid)
        _signal(pid, signal.SIGTERM)
        self._leaving.add(pid)

    def tend(self) -> int:
        """Start again the parents that ended. Returns how many did, and workers that nobody had told to end."""
        ended = [parent for parent in self.parents if not parent.is_alive()]
        for parent in ended:
            parent.start()
        gone = {pid for pid in self._seen - self._told if not _lives(pid)}
        self._told |= gone
        return len(ended) + len(gone)


def pick(pids: set[int], chance: Random) -> int:
    """One of them, 0 when there is none."""
    return chance.choice(sorted(pids)) if pids else 0


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _signal(pid: int, number: int) -> None:
    if _lives(pid):
        os.kill(pid, number)
