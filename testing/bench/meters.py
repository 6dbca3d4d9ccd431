"""Meter: measures processes, Redis and the disk during a step of the benchmark,
and finds which of them limits it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from redis import Redis
from redis.exceptions import RedisError

from sayso.channels.setup import is_loopback
from sayso.testing.simulation.processes import children_of

#: A process that uses this share of a processor is busy; so is a machine, of all its processors,
#: and a disk.
BUSY = 0.85
#: All places count as taken from this share on: a turn holds its place for a while after the reply.
MOST_PLACES = 0.5
#: A write to Redis that takes so many seconds longer than a command that
#: writes nothing waits for a slow disk.
SLOW_WRITE_SECONDS = 0.001
#: How often the state of Redis is looked at, in seconds.
LOOK_SECONDS = 0.01
#: Writes of the probe of the disk, and bytes of each; round trips of the probe of Redis.
WRITES = 50
WRITE_BYTES = 4096
ROUND_TRIPS = 200
#: Where Linux shows what control groups may use, and which are those of this process.
CGROUPS = Path("/sys/fs/cgroup")
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
    """What one step used. A share of 1 is one processor during the whole step."""

    #: `cpu` has the share of each part, `processes` the number of its processes.
    cpu: Mapping[str, float]
    processes: Mapping[str, int]
    processors: float
    #: The busy share of all its processors, `processors` how many of them we may use.
    machine: float | None = None
    disk_wait: float | None = None
    #: `waiting` has the share of the time in which a part's threads wanted a processor and got
    #: none, `disk_wait` that in which Redis waited for its disk. None is unknown.
    waiting: Mapping[str, float] | None = None

    @property
    def ours(self) -> float:
        """The busy share of our processors that is ours.

        A Redis whose waiting is unknown runs on another machine.
        """
        is_elsewhere = self.waiting is not None and REDIS not in self.waiting
        return (
            sum(share for name, share in self.cpu.items() if name != REDIS or not is_elsewhere)
            / self.processors
        )

    def of_one(self, shares: Mapping[str, float] | None, name: str) -> float:
        """Return a part's share for each of its processes, 0 if it is unknown."""
        return (shares or {}).get(name, 0.0) / max(1, self.processes.get(name, 1))


@dataclass(frozen=True, slots=True)
class Places:
    """How many turns or webhooks are worked on at once: the name of the setting, its sum,
    and how many were taken.
    """

    name: str
    count: int
    taken: float


@dataclass(frozen=True, slots=True)
class RedisTimes:
    """The seconds of a command that does nothing, and of one that writes."""

    round_trip: float
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

    That is the part that was never idle: it used a processor, wanted one, or waited for its disk.
    """
    machine = usage.machine or 0.0
    if usage.ours >= BUSY or (machine >= BUSY and usage.ours >= machine / 2):
        parts = ", ".join(f"{name} {share:.0%}" for name, share in usage.cpu.items())
        advice = f"all {usage.processors:g} that we may use are busy (of one: {parts}); use more of them, or machines"
        return Limit("processors of this machine", advice)
    for name, cure in _CURES:
        share = usage.of_one(usage.cpu, name)
        waiting = usage.of_one(usage.waiting, name)
        if name == REDIS:
            disk = usage.disk_wait or 0.0
        else:
            disk = 0.0
        if share + waiting + disk < BUSY:
            continue
        if disk >= max(share, waiting):
            return Limit(
                "disk of Redis",
                f"Redis waits for its disk {disk:.0%} of the time: put it on a faster one",
            )
        if share + disk >= BUSY:
            return Limit(f"{name} CPU", f"{share:.0%} of a processor for each process; {cure}")
        if machine >= BUSY:
            return _others(usage, f", while {name} waits for one")
    if machine >= BUSY and usage.waiting is None:
        return _others(usage)
    return _limit_of_idle(usage, places, redis)


def _others(usage: Usage, waits: str = "") -> Limit:
    share = max(0.0, (usage.machine or 0.0) - usage.ours)
    advice = f"they take {share:.0%} of all processors{waits}: measure again without them"
    return Limit("other programs on this machine", advice)


def _limit_of_idle(usage: Usage, places: Places, redis: RedisTimes) -> Limit:
    """Return the limit of a step in which no part was busy all the time."""
    if usage.disk_wait is None and redis.write >= max(
        2 * redis.round_trip, redis.round_trip + SLOW_WRITE_SECONDS
    ):
        times = f"{_ms(redis.write)}, and a command that writes nothing {_ms(redis.round_trip)}"
        return Limit("disk of Redis", f"a write takes {times}: put Redis on a faster disk")
    if places.taken >= MOST_PLACES * places.count:
        advice = f"all {places.count} places are taken and wait for Redis, {_ms(redis.write)} a write: raise it, or"
        return Limit(places.name, f"{advice} bring Redis nearer")
    return Limit(
        "round trips to Redis",
        f"nothing is busy, and each takes {_ms(redis.write)}: bring Redis nearer",
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms"


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which a share of the values is; 0 without values."""
    ordered = sorted(values)
    if ordered:
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
    return 0.0


def fsync_seconds(folder: Path) -> float:
    """Return the median time in which a small write is on the disk of a folder. Raises OSError."""
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
    return RedisTimes(
        _median_seconds(client.ping), _median_seconds(lambda: client.set(key, "1", ex=60))
    )


def _median_seconds(call: Callable[[], object]) -> float:
    seconds = list[float]()
    latest = time.perf_counter() + PROBE_SECONDS
    while len(seconds) < ROUND_TRIPS and (not seconds or time.perf_counter() < latest):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return median(seconds)


def redis_pid(client: Redis) -> int:
    """Return the process id of a Redis on this machine, 0 for any other. Raises RedisError."""
    options = client.connection_pool.connection_kwargs
    if (
        "path" not in options
        and options.get("host") != "localhost"
        and not is_loopback(options.get("host", ""))
    ):
        return 0
    pid = int(client.info("server").get("process_id", 0))
    try:  # in a container it has another id
        command = Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return 0
    return pid if command.startswith(("redis", "valkey")) else 0


@dataclass(slots=True)
class Meter:
    """Measures one step from `start` to `stop`. `look` is called often in between.

    `pids` returns the processes of each part, whose children count with them. Redis tells its own
    processor time, so it may be on another machine; `redis_pid` is 0 then.
    """

    pids: Callable[[], Mapping[str, Sequence[int]]]
    client: Redis
    redis_pid: int
    _started: float = 0.0
    _before: dict[str, float] = field(default_factory=dict)
    _waited: dict[str, float] | None = None
    _machine: tuple[float, float] | None = None
    _looks: list[bool] = field(default_factory=list)

    def start(self) -> None:
        """Begin."""
        self._before, self._waited, self._machine, self._looks = (
            self._cpu(),
            self._waits(),
            _machine_ticks(),
            [],
        )
        self._started = time.perf_counter()

    def look(self) -> None:
        """Note whether Redis waits for its disk now."""
        if state := _state(self.redis_pid):
            self._looks.append(state == "D")

    def stop(self) -> Usage:
        """Return what was used since `start`."""
        seconds = time.perf_counter() - self._started
        after = self._cpu()
        waits = self._waits()
        machine = _machine_ticks()
        share = None
        if machine and self._machine and machine[1] > self._machine[1]:
            share = (machine[0] - self._machine[0]) / (machine[1] - self._machine[1])
        return Usage(
            {name: (used - self._before.get(name, 0.0)) / seconds for name, used in after.items()},
            {name: sum(map(_leaves, pids)) for name, pids in self.pids().items()},
            usable_processors(),
            share,
            sum(self._looks) / len(self._looks) if self._looks else None,
            waits
            and {
                name: max(0.0, waits[name] - (self._waited or {}).get(name, 0.0)) / seconds
                for name in waits
            },
        )

    def _cpu(self) -> dict[str, float]:
        used = {name: sum(map(cpu_seconds, pids)) for name, pids in self.pids().items()}
        try:
            info = self.client.info("cpu")
            used[REDIS] = float(info["used_cpu_user"]) + float(info["used_cpu_sys"])
        except (RedisError, KeyError):  # one that hides its INFO
            pass
        return {**used, BENCH: time.process_time()}

    def _waits(self) -> dict[str, float] | None:
        """Return the seconds in which each part has waited for a processor so far;
        None where it is unknown.
        """
        if not Path("/proc/self/schedstat").exists():
            return None
        pids = {**self.pids(), **({REDIS: [self.redis_pid]} if self.redis_pid else {})}
        waits = {name: sum(map(waiting_seconds, each)) for name, each in pids.items()}
        return {**waits, BENCH: _own_waiting_seconds(os.getpid())}


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds used so far by a process, its children, and those it has reaped;
    0 if it is gone.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = children_of(pid)
    except OSError:
        return 0.0
    ticks = sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK") + sum(map(cpu_seconds, children))


def waiting_seconds(pid: int) -> float:
    """Return the seconds in which a process and its children could run and got no processor;
    0 if it is gone.
    """
    try:
        children = children_of(pid)
    except OSError:
        return 0.0
    return _own_waiting_seconds(pid) + sum(map(waiting_seconds, children))


def _own_waiting_seconds(pid: int) -> float:
    """Return the seconds in which the threads of one process got no processor;
    those that ended do not count.
    """
    nanoseconds = 0
    for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with suppress(OSError):  # the thread has ended
            nanoseconds += int(file.read_text().split()[1])
    return nanoseconds / 1e9


def _leaves(pid: int) -> int:
    """Return how many processes do the work of a process: its children, or itself if it has none."""
    try:
        children = children_of(pid)
    except OSError:
        return 0
    return sum(map(_leaves, children)) or 1


def _state(pid: int) -> str:
    """Return the state of a process, as Linux names it; "" if it is unknown."""
    try:
        if pid:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return ""
    except OSError:
        return ""


def usable_processors(cgroups: Path = CGROUPS, own: Path = OWN_CGROUPS) -> float:
    """Return how many processors of this machine this process may use:
    a container or unit may have a part of one.
    """
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    # What a container sees of its own group, in versions 2 and 1.
    folders = [
        cgroups,
        cgroups / "cpu",
    ]
    with suppress(OSError):
        for line in own.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers or "cpu" in controllers.split(","):
                folders.append(cgroups / controllers / path.lstrip("/"))
    return min([float(count), *filter(None, map(_quota, folders))])


def _quota(folder: Path) -> float:
    """Return the processors that a control group may use, 0 for any number."""
    try:
        if (file := folder / "cpu.max").exists():
            quota, period = file.read_text().split()
        else:
            quota, period = (
                (folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period")
            )
        return max(0.0, int(quota) / int(period))
    except (OSError, ValueError):  # "max"
        return 0.0


def _machine_ticks() -> tuple[float, float] | None:
    """Return the busy time and all time of all processors; None where it is unknown."""
    try:
        ticks = [int(each) for each in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    return float(sum(ticks) - ticks[3] - ticks[4]), float(sum(ticks))
