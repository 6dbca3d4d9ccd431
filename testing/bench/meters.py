"""Measure processes, Redis and the disk during a step of the benchmark, and find what limits it.

A step is a while in which a number of people write at once. The system has parts: web and worker
processes, Redis, and this command. The part that is never idle limits the step: it uses a
processor, waits for one, or waits for its disk. If every part is idle at times, the limit is the
time that each command to Redis takes, or how many turns are worked on at once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import NamedTuple

from redis import Redis
from redis.exceptions import RedisError

from sayso.channels.setup import is_loopback
from sayso.testing.simulation.processes import children_of

#: The share from which on a part is busy: a process of one processor, a machine of all its
#: processors, a disk of the time.
BUSY = 0.85
#: From this share of the places on, they are the limit: a turn holds its place for a while after
#: the reply, so more are taken than are counted.
MOST_PLACES = 0.5
#: If a write to Redis takes so many seconds longer than a command that writes nothing, it waits for
#: a slow disk.
SLOW_WRITE_SECONDS = 0.001
#: Pause between two looks at the state of Redis, in seconds.
LOOK_SECONDS = 0.01
#: How often the probe of the disk writes, and how many bytes each time.
WRITES = 50
WRITE_BYTES = 4096
#: The number of round trips of the probe of Redis.
ROUND_TRIPS = 200
#: Where Linux shows what control groups may use.
CGROUPS = Path("/sys/fs/cgroup")
#: Where Linux shows which control groups this process is in.
OWN_CGROUPS = Path("/proc/self/cgroup")
#: How long each probe of Redis lasts at most, in seconds.
PROBE_SECONDS = 2.0
#: The names of the parts of the system.
WEB = "web"
WORKER = "worker"
REDIS = "redis"
BENCH = "bench"


@dataclass(frozen=True, slots=True)
class Usage:
    """What one step used. A share of 1 is one processor during the whole step.

    Maps are by part: `WEB`, `WORKER`, `REDIS`, `BENCH`.
    """

    #: The processor time of each part, as a share.
    cpu: Mapping[str, float]
    #: The number of processes of each part.
    processes: Mapping[str, int]
    #: How many processors this machine lets us use.
    processors: float
    #: The busy share of all processors of the machine, from 0 to 1; None if unknown.
    machine: float | None = None
    #: The share of the time in which Redis waited for its disk; None if unknown.
    disk_wait: float | None = None
    #: The time in which the threads of each part wanted a processor and got none, as a share. None
    #: if unknown. If Redis is missing in it, Redis runs on another machine.
    waiting: Mapping[str, float] | None = None

    @property
    def own_share(self) -> float:
        """The share of our processors that the parts on this machine use."""
        redis_is_elsewhere = self.waiting is not None and REDIS not in self.waiting
        used = 0.0
        for part, share in self.cpu.items():
            if part != REDIS or not redis_is_elsewhere:
                used += share
        return used / self.processors

    def cpu_of_one(self, part: str) -> float:
        """Return the processor time of one process of a part, as a share; 0 if it is unknown."""
        return self.cpu.get(part, 0.0) / self._count(part)

    def waiting_of_one(self, part: str) -> float:
        """Return how long one process of a part waited for a processor, as a share.

        Return 0 if it is unknown.
        """
        if self.waiting is None:
            return 0.0
        return self.waiting.get(part, 0.0) / self._count(part)

    def _count(self, part: str) -> int:
        return max(1, self.processes.get(part, 1))


@dataclass(frozen=True, slots=True)
class Places:
    """How many turns or webhooks can be worked on at once. Each one takes a place."""

    #: The setting that limits them.
    setting: str
    #: The number of places of all processes together.
    count: int
    #: How many of them were taken on average.
    taken_count: float


@dataclass(frozen=True, slots=True)
class RedisTimes:
    """How long commands to Redis take, in seconds."""

    #: A command that does nothing.
    round_trip: float
    #: A command that writes.
    write: float


@dataclass(frozen=True, slots=True)
class Limit:
    """What limited a step: the name of the part, and a sentence with the cure."""

    name: str
    advice: str


#: The parts that can be busy all the time, and what helps then.
_CURES = (
    (REDIS, "one processor runs all its commands: give it a faster one"),
    (WORKER, "start more with `sayso worker --processes N`, here or on another machine"),
    (WEB, "start more with `sayso web --processes N`, here or on another machine"),
    (BENCH, "this command cannot send more: the system takes more than this"),
)


def limit_of(usage: Usage, places: Places, redis: RedisTimes) -> Limit:
    """Return what limited a step in which more load brought no more throughput.

    `redis` are the times of commands before any load.
    """
    machine = usage.machine or 0.0
    own_share = usage.own_share
    # On a busy machine, processors that count as idle for us may be used by others.
    has_most_of_machine = machine >= BUSY and own_share >= machine / 2
    if own_share >= BUSY or has_most_of_machine:
        parts = ", ".join(f"{part} {share:.0%}" for part, share in usage.cpu.items())
        return Limit(
            "processors of this machine",
            f"all {usage.processors:g} that we may use are busy (of one: {parts}); "
            "use more of them, or machines",
        )

    for part, cure in _CURES:
        cpu = usage.cpu_of_one(part)
        waiting = usage.waiting_of_one(part)
        disk = 0.0
        if part == REDIS and usage.disk_wait is not None:
            disk = usage.disk_wait
        if cpu + waiting + disk < BUSY:
            continue
        if disk >= max(cpu, waiting):
            return Limit(
                "disk of Redis",
                f"Redis waits for its disk {disk:.0%} of the time: put it on a faster one",
            )
        if cpu + disk >= BUSY:
            return Limit(f"{part} CPU", f"{cpu:.0%} of a processor for each process; {cure}")
        if machine >= BUSY:
            return _other_programs(usage, f", while {part} waits for one")

    # Without the waiting times, a busy machine that is not busy with us is the best guess.
    if machine >= BUSY and usage.waiting is None:
        return _other_programs(usage)
    return _limit_of_idle(usage, places, redis)


def _other_programs(usage: Usage, waiting_part: str = "") -> Limit:
    share = max(0.0, (usage.machine or 0.0) - usage.own_share)
    return Limit(
        "other programs on this machine",
        f"they take {share:.0%} of all processors{waiting_part}: measure again without them",
    )


def _limit_of_idle(usage: Usage, places: Places, redis: RedisTimes) -> Limit:
    """Return the limit of a step in which no part was busy all the time."""
    write = _ms(redis.write)
    slow_write = max(2 * redis.round_trip, redis.round_trip + SLOW_WRITE_SECONDS)
    # On another machine the disk cannot be watched, but slow writes give it away.
    if usage.disk_wait is None and redis.write >= slow_write:
        round_trip = _ms(redis.round_trip)
        return Limit(
            "disk of Redis",
            f"a write takes {write}, and a command that writes nothing {round_trip}: "
            "put Redis on a faster disk",
        )
    if places.taken_count >= MOST_PLACES * places.count:
        return Limit(
            places.setting,
            f"all {places.count} places are taken and wait for Redis, {write} a write: "
            "raise it, or bring Redis nearer",
        )
    return Limit(
        "round trips to Redis", f"nothing is busy, and each takes {write}: bring Redis nearer"
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms"


def fsync_seconds(folder: Path) -> float:
    """Return the median time until a small write is on the disk of a folder. Raises OSError."""
    seconds = []
    file = folder / "probe"
    with file.open("wb", buffering=0) as probe:
        for _ in range(WRITES):
            started = time.perf_counter()
            probe.write(bytes(WRITE_BYTES))
            os.fsync(probe.fileno())
            seconds.append(time.perf_counter() - started)
    file.unlink()
    return median(seconds)


def redis_times(client: Redis, key: str) -> RedisTimes:
    """Return the median times of a command that does nothing, and of one that writes `key`.

    Raises RedisError.
    """
    round_trip = _median_seconds(client.ping)
    write = _median_seconds(lambda: client.set(key, "1", ex=60))
    return RedisTimes(round_trip, write)


def _median_seconds(call: Callable[[], object]) -> float:
    """Return the median time of a call, made up to ROUND_TRIPS times, at least once."""
    seconds: list[float] = []
    deadline = time.perf_counter() + PROBE_SECONDS
    while len(seconds) < ROUND_TRIPS and (not seconds or time.perf_counter() < deadline):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return median(seconds)


def redis_pid(client: Redis) -> int:
    """Return the process id of a Redis on this machine, 0 for any other. Raises RedisError."""
    options = client.connection_pool.connection_kwargs
    host = options.get("host", "")
    is_local = "path" in options or host == "localhost" or is_loopback(host)
    if not is_local:
        return 0
    pid = int(client.info("server").get("process_id", 0))
    # In a container Redis has another id than here, which may be that of another program.
    try:
        command = Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return 0
    return pid if command.startswith(("redis", "valkey")) else 0


@dataclass(slots=True)
class Meter:
    """Measures one step after the other: `start`, `look` every LOOK_SECONDS, and `stop`.

    Redis tells its own processor time, so it may be on another machine.
    """

    #: Returns the process ids of webs and workers, by part. Their children count with them.
    pids: Callable[[], Mapping[str, Sequence[int]]]
    client: Redis
    #: The process id of Redis; 0 if it is on another machine.
    redis_pid: int
    _started: float = 0.0
    #: What the parts had used when the step began: processor time and waiting time, in seconds.
    _cpu_before: dict[str, float] = field(default_factory=dict)
    _waits_before: dict[str, float] | None = None
    _ticks_before: _Ticks | None = None
    #: Whether Redis waited for its disk, at each look.
    _disk_waits: list[bool] = field(default_factory=list)

    def start(self) -> None:
        """Begin to measure a step."""
        self._cpu_before = self._cpu()
        self._waits_before = self._waits()
        self._ticks_before = _machine_ticks()
        self._disk_waits = []
        self._started = time.perf_counter()

    def look(self) -> None:
        """Note whether Redis waits for its disk now."""
        state = _state(self.redis_pid)
        if state:
            self._disk_waits.append(state == "D")

    def stop(self) -> Usage:
        """Return what was used since `start`."""
        seconds = time.perf_counter() - self._started
        cpu = self._cpu()
        disk_wait = None
        if self._disk_waits:
            disk_wait = sum(self._disk_waits) / len(self._disk_waits)
        return Usage(
            cpu={part: (cpu[part] - self._cpu_before.get(part, 0.0)) / seconds for part in cpu},
            processes={
                part: sum(_count_leaves(pid) for pid in pids) for part, pids in self.pids().items()
            },
            processors=usable_processors(),
            machine=self._machine_share(),
            disk_wait=disk_wait,
            waiting=self._waiting_shares(seconds),
        )

    def _machine_share(self) -> float | None:
        """Return the busy share of all processors since `start`, None if it is unknown."""
        before = self._ticks_before
        now = _machine_ticks()
        if now is None or before is None or now.total <= before.total:
            return None
        return (now.busy - before.busy) / (now.total - before.total)

    def _waiting_shares(self, seconds: float) -> dict[str, float] | None:
        """Return the share of the time in which each part waited for a processor."""
        waits = self._waits()
        if waits is None:
            return None
        before = self._waits_before or {}
        # Threads that ended take their waiting time with them, so a sum may shrink.
        return {part: max(0.0, waits[part] - before.get(part, 0.0)) / seconds for part in waits}

    def _cpu(self) -> dict[str, float]:
        """Return the processor seconds that each part has used so far."""
        used = {part: sum(map(cpu_seconds, pids)) for part, pids in self.pids().items()}
        # A Redis may not let this command read its INFO.
        with suppress(RedisError, KeyError):
            info = self.client.info("cpu")
            used[REDIS] = float(info["used_cpu_user"]) + float(info["used_cpu_sys"])
        used[BENCH] = time.process_time()
        return used

    def _waits(self) -> dict[str, float] | None:
        """Return the seconds in which each part has waited for a processor so far.

        Return None where the system does not tell.
        """
        if not Path("/proc/self/schedstat").exists():
            return None
        waits = {part: sum(map(waiting_seconds, pids)) for part, pids in self.pids().items()}
        if self.redis_pid:
            waits[REDIS] = waiting_seconds(self.redis_pid)
        waits[BENCH] = _own_waiting_seconds(os.getpid())
        return waits


def cpu_seconds(pid: int) -> float:
    """Return the processor seconds of a process and its children so far; 0 if it is gone.

    Children that have ended count, if the process has waited for them.
    """
    try:
        fields = _stat_fields(pid)
        children = children_of(pid)
    except OSError:
        return 0.0
    # utime, stime, cutime and cstime of proc(5).
    ticks = sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK") + sum(map(cpu_seconds, children))


def waiting_seconds(pid: int) -> float:
    """Return the seconds in which a process and its children wanted a processor and got none.

    Return 0 if the process is gone.
    """
    try:
        children = children_of(pid)
    except OSError:
        return 0.0
    return _own_waiting_seconds(pid) + sum(map(waiting_seconds, children))


def _own_waiting_seconds(pid: int) -> float:
    """Return the seconds in which the threads of one process wanted a processor and got none.

    Threads that have ended do not count.
    """
    nanoseconds = 0
    for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with suppress(OSError):  # the thread has ended
            nanoseconds += int(file.read_text().split()[1])
    return nanoseconds / 1e9


def _count_leaves(pid: int) -> int:
    """Return how many processes do the work of a process: its children, or itself without any.

    A parent that forked workers only watches them.
    """
    try:
        children = children_of(pid)
    except OSError:
        return 0
    if not children:
        return 1
    return sum(map(_count_leaves, children)) or 1


def _state(pid: int) -> str:
    """Return the state of a process as a letter of proc(5); "" if it is unknown, or `pid` is 0.

    "D" is waiting for a disk.
    """
    if not pid:
        return ""
    try:
        return _stat_fields(pid)[0]
    except OSError:
        return ""


def _stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name of the program. Raises OSError."""
    # The name is in brackets, and may contain brackets and spaces.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def usable_processors(cgroups: Path = CGROUPS, own: Path = OWN_CGROUPS) -> float:
    """Return how many processors of this machine this process may use.

    A container or a systemd unit may be allowed a part of one.
    """
    count = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))

    # Inside a container its own group is the root, in version 2 and 1 of control groups.
    folders = [cgroups, cgroups / "cpu"]
    with suppress(OSError):
        for line in own.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers or "cpu" in controllers.split(","):
                folders.append(cgroups / controllers / path.lstrip("/"))
    quotas = [_quota(folder) for folder in folders]
    return min([float(count), *(quota for quota in quotas if quota)])


def _quota(folder: Path) -> float:
    """Return how many processors a control group may use; 0 for any number."""
    version_2 = folder / "cpu.max"
    try:
        if version_2.exists():
            quota, period = version_2.read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text()
            period = (folder / "cpu.cfs_period_us").read_text()
        return max(0.0, int(quota) / int(period))  # version 1 has -1 for any number
    except (OSError, ValueError):  # version 2 has "max" for any number
        return 0.0


class _Ticks(NamedTuple):
    """Processor time of a whole machine so far, in clock ticks."""

    busy: int
    total: int


def _machine_ticks() -> _Ticks | None:
    """Return the processor time of this machine so far, None where it is unknown."""
    try:
        first_line = Path("/proc/stat").read_text().splitlines()[0]
        user, nice, system, idle, iowait, *rest = map(int, first_line.split()[1:9])
    except (OSError, ValueError):
        return None
    busy = user + nice + system + sum(rest)
    return _Ticks(busy, busy + idle + iowait)
