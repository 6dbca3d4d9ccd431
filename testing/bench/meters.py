"""Meter: measures processes, Redis and the disk during a step of the benchmark, and finds which of them limits it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from redis import Redis
from redis.exceptions import RedisError

#: A process that uses this share of a processor is busy; so is a machine, of all its processors, and a disk.
BUSY = 0.85
#: How often the state of Redis is looked at, in seconds.
LOOK_SECONDS = 0.01
#: Writes of the probe of the disk, and bytes of each; round trips of the probe of Redis.
WRITES, WRITE_BYTES, ROUND_TRIPS = 50, 4096, 200
#: The names of the parts of the system.
WEB, WORKER, REDIS, BENCH = "web", "worker", "redis", "bench"


@dataclass(frozen=True, slots=True)
class Usage:
    """What one step used. A share of 1 is one processor during the whole step.

    `cpu` has the share of each part, `processes` the number of its processes. `machine` is the busy share of all
    `processors`. `disk_wait` is the share of the time in which Redis waited for its disk. None is unknown.
    """

    cpu: Mapping[str, float]
    processes: Mapping[str, int]
    processors: int
    machine: float | None = None
    disk_wait: float | None = None


@dataclass(frozen=True, slots=True)
class Limit:
    """What limited a step: the name of the part, and a sentence with the cure."""

    name: str
    advice: str


def limit_of(usage: Usage, concurrency: int) -> Limit:
    """Return what limited a step in which more load brought no more throughput."""
    ours = sum(usage.cpu.values()) / usage.processors
    if usage.machine is not None and usage.machine >= BUSY:
        if ours < usage.machine / 2:
            advice = (
                f"they take {usage.machine - ours:.0%} of all {usage.processors} processors: measure again without them"
            )
            return Limit("other programs on this machine", advice)
        parts = ", ".join(f"{name} {share:.0%}" for name, share in usage.cpu.items())
        advice = (
            f"all {usage.processors} processors are busy (of one processor: {parts}); use more of them, or machines"
        )
        return Limit("processors of this machine", advice)
    for name, advice in (
        (REDIS, "one processor runs all its commands: give it a faster one"),
        (WORKER, "start more with `sayso worker --processes N`, here or on another machine"),
        (WEB, "start more with `sayso web --processes N`, here or on another machine"),
        (BENCH, "this command cannot send more: the system takes more than this"),
    ):
        share = usage.cpu.get(name, 0.0) / max(1, usage.processes.get(name, 1))
        if share >= BUSY:
            return Limit(f"{name} CPU", f"{share:.0%} of a processor for each process; {advice}")
    if usage.disk_wait is not None and usage.disk_wait >= 0.5:
        advice = f"Redis waits for its disk {usage.disk_wait:.0%} of the time: put it on a faster one"
        return Limit("disk of Redis", advice)
    advice = (
        f"nothing is busy: turns wait for round trips to Redis, or for one of the {concurrency} places of "
        "`workers.concurrency`"
    )
    return Limit("round trips to Redis", advice)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which a share of the values is; 0 without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


def fsync_seconds(folder: Path) -> float:
    """Return the median time in which a small write is on the disk of a folder. Raises OSError."""
    seconds, file = [], folder / "probe"
    with file.open("wb", buffering=0) as probe:
        for _ in range(WRITES):
            started = time.perf_counter()
            probe.write(bytes(WRITE_BYTES))
            os.fsync(probe.fileno())
            seconds.append(time.perf_counter() - started)
    file.unlink()
    return median(seconds)


def round_trip_seconds(client: Redis) -> float:
    """Return the median time of a command that does nothing. Raises RedisError."""
    seconds = []
    for _ in range(ROUND_TRIPS):
        started = time.perf_counter()
        client.ping()
        seconds.append(time.perf_counter() - started)
    return median(seconds)


@dataclass(slots=True)
class Meter:
    """Measures one step from `start` to `stop`. `look` is called often in between.

    `pids` returns the processes of each part, whose children count with them. Redis tells its own processor time, so it
    may be on another machine; `redis_pid` is 0 then.
    """

    pids: Callable[[], Mapping[str, Sequence[int]]]
    client: Redis
    redis_pid: int
    _started: float = 0.0
    _before: dict[str, float] = field(default_factory=dict)
    _machine: tuple[float, float] | None = None
    _looks: list[bool] = field(default_factory=list)

    def start(self) -> None:
        """Begin."""
        self._before, self._machine, self._looks = self._cpu(), _machine_ticks(), []
        self._started = time.perf_counter()

    def look(self) -> None:
        """Note whether Redis waits for its disk now."""
        if state := _state(self.redis_pid):
            self._looks.append(state == "D")

    def stop(self) -> Usage:
        """Return what was used since `start`."""
        seconds, after, machine = time.perf_counter() - self._started, self._cpu(), _machine_ticks()
        share = None
        if machine and self._machine and machine[1] > self._machine[1]:
            share = (machine[0] - self._machine[0]) / (machine[1] - self._machine[1])
        return Usage(
            {name: (used - self._before.get(name, 0.0)) / seconds for name, used in after.items()},
            {name: sum(map(_leaves, pids)) for name, pids in self.pids().items()},
            os.cpu_count() or 1,
            share,
            sum(self._looks) / len(self._looks) if self._looks else None,
        )

    def _cpu(self) -> dict[str, float]:
        used = {name: sum(map(cpu_seconds, pids)) for name, pids in self.pids().items()}
        try:
            info = self.client.info("cpu")
            used[REDIS] = float(info["used_cpu_user"]) + float(info["used_cpu_sys"])
        except (RedisError, KeyError):  # one that hides its INFO
            pass
        return {**used, BENCH: time.process_time()}


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds used so far by a process, its children, and those it has reaped; 0 if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = _children(pid)
    except OSError:
        return 0.0
    ticks = sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK") + sum(map(cpu_seconds, children))


def _leaves(pid: int) -> int:
    """Return how many processes do the work of a process: its children, or itself if it has none."""
    try:
        children = _children(pid)
    except OSError:
        return 0
    return sum(map(_leaves, children)) or 1


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _state(pid: int) -> str:
    """Return the state of a process, as Linux names it; "" if it is unknown."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] if pid else ""
    except OSError:
        return ""


def _machine_ticks() -> tuple[float, float] | None:
    """Return the busy time and all time of all processors; None where it is unknown."""
    try:
        ticks = [int(each) for each in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    return float(sum(ticks) - ticks[3] - ticks[4]), float(sum(ticks))
