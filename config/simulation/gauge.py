"""Gauge: how much memory a machine's processes hold, and Redis for each conversation, from outside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sayso.config.simulation.machine import Machine

#: Seconds after which processes have imported what they need and met everybody: memory is compared from there on.
WARM_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Memory:
    """What was measured. `processes` are name, MB when warm and MB at the end, of those that lived so long."""

    processes: Sequence[tuple[str, float, float]] = ()
    redis_bytes_each: float = 0.0

    @property
    def grown_mb(self) -> float:
        """By how much the process grew that grew most."""
        return max((end - warm for _, warm, end in self.processes), default=0.0)


@dataclass(slots=True)
class Gauge:
    """Lives as long as its machine. Tell it the time now and then, and the end."""

    machine: Machine
    began: float
    redis_bytes: int = 0
    warm: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.redis_bytes = self.machine.redis.used_bytes()

    def tend(self, now: float) -> None:
        """Look once, when everything is warm and Redis can say who works."""
        if not self.warm and now >= self.began + WARM_SECONDS and self.machine.crew.at_work():
            self.warm = {pid: _resident_mb(pid) for _, pid in self._processes()}

    def read(self, conversations: int) -> Memory:
        """What is known at the end. Raises RedisError."""
        lived = [(name, pid) for name, pid in self._processes() if pid in self.warm]
        processes = [(name, self.warm[pid], _resident_mb(pid)) for name, pid in lived]
        return Memory(processes, (self.machine.redis.used_bytes() - self.redis_bytes) / conversations)

    def _processes(self) -> list[tuple[str, int]]:
        webs = [("web", web.process.pid) for web in self.machine.webs if web.process]
        return [*webs, *(("worker", pid) for pid in sorted(self.machine.crew.at_work()))]


def _resident_mb(pid: int) -> float:
    """The memory that a process holds; 0 for one that has just ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024 if "VmRSS:" in status else 0.0
