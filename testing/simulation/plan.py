"""What a simulation does: its faults and its size, and the rows of the matrix in docs/explanation/failures.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

#: What can be killed.
FaultTarget = Literal["worker", "machine", "web", "redis"]
#: What can run full.
StorageKind = Literal["memory", "disk"]
STORAGE_KINDS: tuple[StorageKind, ...] = get_args(StorageKind)
#: Default seconds between two kills.
KILL_SECONDS: Mapping[FaultTarget, float] = {"worker": 1.0, "machine": 40.0, "web": 15.0, "redis": 10.0}
#: Default seconds between two pauses, and between two rolling restarts.
PAUSE_SECONDS, RESTART_SECONDS = 10.0, 20.0
#: Default length of an outage, and default time between two full storages, in seconds.
OUTAGE_SECONDS, FULL_SECONDS = 300.0, 15.0
#: By how much clocks are wrong, in seconds.
SKEW_SECONDS = 3600.0
#: Default chance that the reply to a command is lost with its connection.
CUT_CHANCE = 0.005
#: Default of the longest delay of a Redis reply, in milliseconds.
SLOW_MS = 5.0
#: Default chance that a webhook is delivered again, up to four times, and that such a repeat is late.
REDELIVER_CHANCE, LATE_CHANCE = 0.3, 1.0
#: Default of the longest delay of a repeat, in seconds.
LATE_SECONDS = 20.0
#: Default number of strangers in a conversation who tap and type a yes to each question.
STRANGERS = 4
#: The stories that ship.
STORIES = Path(__file__).parent / "stories.yaml"
#: Measurements that are only meaningful with the size of the run.
_SIZED = ("speed", "size")
#: Stories in which a late yes could meet a later question.
CONFIRMING = ("pays, then refuses the next", "says yes twice", "taps twice", "changes the subject")
#: Stories with a question that strangers could answer.
ASKING = (
    "taps five times at once",
    "pays by typing",
    "pays by tapping",
    "pays, then refuses the next",
    "refuses by tapping",
    "changes the subject",
)
#: Stories with decisions before and after a question closes.
TIMELY = (
    "types yes too late",
    "taps too late",
    "pays by typing",
    "pays by tapping",
    "small talk",
    "a question that takes a while",
    "a file",
)
#: Stories of one turn. Afterwards one in six conversations waits for a yes.
IDLE = (*["says one thing"] * 5, "asks and leaves")
_KILLS = KILL_SECONDS
_REPEATS: Mapping[str, Any] = {"redeliver": REDELIVER_CHANCE, "shuffle": LATE_CHANCE}
_TIMELY: Mapping[str, Any] = {"webs": 2, "window": 12.0, "only": TIMELY}
#: All faults at once, except orderly restarts and failing platforms.
EVERYTHING: Mapping[str, Any] = {
    "kill": {"worker": _KILLS["worker"], "redis": _KILLS["redis"]},
    "pause": PAUSE_SECONDS,
    "cut": CUT_CHANCE,
    **_REPEATS,
}
#: The faults of each row of the matrix.
ROWS: Mapping[str, Mapping[str, Any]] = {
    "nothing": {},
    "load": {"figures": "speed"},
    "idle": {"figures": "size", "rate": 100.0, "minutes": 0.0, "turns": 12_000, "conversations": 12_000, "only": IDLE},
    "workers": {"kill": {"worker": _KILLS["worker"]}},
    "redis": {"kill": {"worker": _KILLS["worker"], "redis": _KILLS["redis"]}},
    "storage": {"kill": {"redis": _KILLS["redis"]}, "figures": "recovery"},
    "apart": {"machines": 2, "kill": {"worker": _KILLS["worker"]}},
    "machines": {
        "machines": 2,
        "kill": {"machine": _KILLS["machine"]},
        "model_ms": (200.0, 1000.0),
        "figures": "recovery",
    },
    "web": {"kill": {"web": _KILLS["web"] / 3}},
    "outage": {},
    "spool": {"spool": True, "webs": 2},
    "memory": {"full": {"memory": FULL_SECONDS}},
    "disk": {"full": {"disk": FULL_SECONDS}},
    "ahead": {"skew": SKEW_SECONDS, **_TIMELY},
    "behind": {"skew": -SKEW_SECONDS, **_TIMELY},
    "pauses": {"pause": PAUSE_SECONDS},
    "replies": {"cut": 4 * CUT_CHANCE, "slow_ms": SLOW_MS},
    "restarts": {"restart": RESTART_SECONDS},
    "platforms": {"flaky_platforms": True},
    "repeats": dict(_REPEATS),
    "deliveries": {"redeliver": 0.8, "shuffle": 0.3, "webs": 2},
    "yes": {"redeliver": 1.0, "shuffle": 1.0, "only": CONFIRMING},
    "strangers": {"strangers": STRANGERS, "webs": 2, "only": ASKING},
    "everything": EVERYTHING,
}
#: Slow enough that even rare faults happen within 1,000 turns.
_STEADY: Mapping[str, Any] = {"rate": 20.0}
#: The default size of rows that need one: minutes at most.
SIZES: Mapping[str, Mapping[str, Any]] = {
    "load": {"rate": 100.0, "minutes": 1.0, "turns": 60_000, "conversations": 500},
    "outage": {"outage": 60.0},
    "spool": {"outage": 60.0},
    "machines": {"rate": 40.0, "turns": 2400, "workers": 4},
    **dict.fromkeys(("redis", "storage", "memory", "disk", "pauses", "restarts", "everything"), _STEADY),
}
#: The full size of every row, and below what differs in some.
FULL_SIZE: Mapping[str, Any] = {"turns": 20_000, "conversations": 500, "workers": 4}
_MANY_KILLS: Mapping[str, Any] = {"turns": 30_000, "rate": 45.0, "workers": 3}
_OUTAGE: Mapping[str, Any] = {
    "outage": OUTAGE_SECONDS, "turns": 10_000, "conversations": 1000, "least": {"acts in the outage": 1000},
}  # fmt: skip
_HIGH_LOAD: Mapping[str, Any] = {"rate": 100.0, "minutes": 10.0, "turns": 60_000}
FULL_SIZES: Mapping[str, Mapping[str, Any]] = {
    "load": _HIGH_LOAD,
    "workers": {**_MANY_KILLS, "least": {"confirmed": 5000, "workers killed": 500}},
    "redis": {**_MANY_KILLS, "least": {"confirmed": 5000, "workers killed": 500, "redis killed": 50}},
    "storage": {"rate": 45.0, "turns": 30_000, "least": {"redis killed": 50}},
    "apart": {**_MANY_KILLS, "least": {"confirmed": 5000, "workers killed": 500}},
    "machines": {"rate": 40.0, "minutes": 10.0, "turns": 60_000, "least": {"machines killed": 10}},
    "outage": _OUTAGE,
    "spool": _OUTAGE,
    "pauses": {"pause": 3.0, "workers": 9, "rate": 40.0, "minutes": 11.0, "turns": 60_000, "least": {"pauses": 200}},
    "replies": {"cut": 0.08, "turns": 40_000, "least": {"lost replies": 10_000}},
    "restarts": {**_HIGH_LOAD, "least": {"workers restarted": 80}},
    "deliveries": {"turns": 36_000, "late": 600.0, "least": {"deliveries": 100_000}},
    "yes": {"turns": 12_000, "least": {"confirmed": 1000}},
    "strangers": {"turns": 80_000, "strangers": 45, "only": ASKING[:1], "least": {"confirmed": 1000}},
    "everything": {"rate": 35.0},
}


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of one simulation. Times between faults are in seconds, 0 for never; chances are between 0 and 1.

    On one machine all processes share a data folder; with several `machines`, the workers of each have their own.
    `figures` says what else is measured against a promise: speed, the size of a conversation in Redis, or recovery.
    `least` holds the smallest counts of the report with which the run is large enough.
    """

    turns: int = 1000
    conversations: int = 50
    workers: int = 3
    machines: int = 1
    webs: int = 1
    strangers: int = 0
    minutes: float = 0.0
    rate: float = 0.0
    seed: int = 0
    model_ms: tuple[float, float] = (20.0, 200.0)
    kill: Mapping[FaultTarget, float] = field(default_factory=dict)
    pause: float = 0.0
    restart: float = 0.0
    outage: float = 0.0
    spool: bool = False
    full: Mapping[StorageKind, float] = field(default_factory=dict)
    skew: float = 0.0
    window: float = 0.0
    cut: float = 0.0
    slow_ms: float = 0.0
    redeliver: float = 0.0
    shuffle: float = 0.0
    late: float = LATE_SECONDS
    flaky_platforms: bool = False
    stories: Path = STORIES
    only: tuple[str, ...] = ()
    config: Path | None = None
    figures: Literal["", "speed", "size", "recovery"] = ""
    least: Mapping[str, int] = field(default_factory=dict)

    @property
    def through_proxy(self) -> bool:
        """Whether a proxy stands between the processes and Redis."""
        return self.cut > 0 or self.slow_ms > 0

    @property
    def statuses(self) -> set[int]:
        """The allowed responses to webhooks: 200; 503 if Redis may be away; 0 (none) if webs are killed."""
        without_redis = "redis" in self.kill or self.outage or self.full or self.cut
        without_web = "web" in self.kill or self.restart
        return {200, *([503] if without_redis else []), *([0] if without_web else [])}

    def description(self) -> str:
        """Return the faults in words; "none" if there are none."""
        faults = [f"kill {part} every {seconds:g} s" for part, seconds in self.kill.items()]
        faults += [f"pause a worker every {self.pause:g} s"] if self.pause else []
        faults += [f"rolling restart every {self.restart:g} s"] if self.restart else []
        faults += [f"Redis away for {self.outage:g} s, with{'out' * (not self.spool)} a spool"] if self.outage else []
        faults += [f"no {storage} left every {seconds:g} s" for storage, seconds in self.full.items()]
        faults += [f"webs' clocks wrong by {self.skew:+g} s, workers' by that either way"] if self.skew else []
        faults += [f"questions open for {self.window:g} s"] if self.window else []
        faults += [f"{self.cut:.1%} of Redis's replies lost"] if self.cut else []
        faults += [f"Redis up to {self.slow_ms:g} ms late"] if self.slow_ms else []
        faults += [f"{self.redeliver:.0%} delivered 2-5 times{self._late()}"] if self.redeliver else []
        faults += [f"{self.machines} machines of workers"] if self.machines > 1 else []
        faults += [f"{self.webs} webs"] if self.webs > 1 else []
        faults += (
            [f"{self.rate:g} turns a second, {self.conversations:,} conversations"] if self.figures in _SIZED else []
        )
        faults += [f"{self.strangers} strangers answer, too"] if self.strangers else []
        faults += ["platforms fail 45 % of sends"] if self.flaky_platforms else []
        return "; ".join(faults) or "none"

    def _late(self) -> str:
        share = "" if self.shuffle == 1 else f"{self.shuffle:.0%} of it "
        return f", {share}up to {self.late:g} s late" if self.shuffle else ""


def plan_of_row(row: str, given: Plan, *, full_size: bool = False) -> Plan:
    """Return the plan of one row. Its size is the given one, else its own."""
    common, own = (FULL_SIZE, FULL_SIZES) if full_size else ({}, SIZES)
    return replace(given, **{**_not_given(common, given), **ROWS[row], **_not_given(own.get(row, {}), given)})


def _not_given(size: Mapping[str, Any], given: Plan) -> dict[str, Any]:
    """Return the parts of a size that the given plan leaves at their defaults."""
    defaults = Plan()
    return {name: value for name, value in size.items() if getattr(given, name) == getattr(defaults, name)}
