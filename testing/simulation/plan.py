"""Plan, matrix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

#: What can be killed.
FaultTarget = Literal["worker", "machine", "web", "redis"]


#: What can be full.
Room = Literal["memory", "disk"]


ROOMS: tuple[Room, ...] = get_args(Room)


#: Seconds between two kills when none are given.
KILL_SECONDS: Mapping[FaultTarget, float] = {"worker": 1.0, "machine": 40.0, "web": 15.0, "redis": 10.0}


#: Seconds between two pauses, and between two rolling restarts.
PAUSE_SECONDS, RESTART_SECONDS = 10.0, 20.0


#: Seconds that Redis is away in an outage, and between two times that it has no room, when none are given.
OUTAGE_SECONDS, FULL_SECONDS = 300.0, 15.0


#: Seconds by which clocks are wrong.
SKEW_SECONDS = 3600.0


#: How probable it is that the reply to a command is lost with its connection.
CUT_CHANCE = 0.005


#: Milliseconds by which a reply of Redis is late at most.
SLOW_MS = 5.0


#: How probable it is that a webhook is delivered again, up to four times, and that such a repeat is late.
REDELIVER_CHANCE, LATE_CHANCE = 0.3, 1.0


#: Seconds by which it is late at most.
LATE_SECONDS = 20.0


#: Others in the conversation who tap and type a yes to each question, when no number is given.
STRANGERS = 4


#: The stories that ship.
STORIES = Path(__file__).parent / "stories.yaml"


#: Figures that say nothing without the size they were measured at.
_SIZED = ("speed", "size")


@dataclass(frozen=True, slots=True)
class Plan:
    """One simulation. Pauses between faults are in seconds, 0 for never; chances are between 0 and 1.

    On one machine all processes share a data folder; on several `machines` the workers of each have their own.
    `figures` says what is promised beside: speed, what Redis keeps of a conversation, or how soon all goes on.
    `least` is how often what the report counts must have happened, or the run was too small.
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
    full: Mapping[Room, float] = field(default_factory=dict)
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
        """Whether something stands between the processes and Redis."""
        return self.cut > 0 or self.slow_ms > 0

    @property
    def statuses(self) -> set[int]:
        """What webhooks may hear: 200; 503 where Redis cannot answer; 0, nothing, where webs are ended."""
        without_redis = "redis" in self.kill or self.outage or self.full or self.cut
        without_web = "web" in self.kill or self.restart
        return {200, *([503] if without_redis else []), *([0] if without_web else [])}

    def described(self) -> str:
        """The faults in words; "none" for a quiet day."""
        words = [f"kill {part} every {seconds:g} s" for part, seconds in self.kill.items()]
        words += [f"pause a worker every {self.pause:g} s"] if self.pause else []
        words += [f"rolling restart every {self.restart:g} s"] if self.restart else []
        words += [f"Redis away for {self.outage:g} s, with{'out' * (not self.spool)} a spool"] if self.outage else []
        words += [f"no {room} left every {seconds:g} s" for room, seconds in self.full.items()]
        words += [f"webs' clocks wrong by {self.skew:+g} s, workers' by that either way"] if self.skew else []
        words += [f"questions open for {self.window:g} s"] if self.window else []
        words += [f"{self.cut:.1%} of Redis's replies lost"] if self.cut else []
        words += [f"Redis up to {self.slow_ms:g} ms late"] if self.slow_ms else []
        words += [f"{self.redeliver:.0%} delivered 2-5 times{self._late()}"] if self.redeliver else []
        words += [f"{self.machines} machines of workers"] if self.machines > 1 else []
        words += [f"{self.webs} webs"] if self.webs > 1 else []
        words += (
            [f"{self.rate:g} turns a second, {self.conversations:,} conversations"] if self.figures in _SIZED else []
        )
        words += [f"{self.strangers} strangers answer, too"] if self.strangers else []
        words += ["platforms fail 45 % of sends"] if self.flaky_platforms else []
        return "; ".join(words) or "none"

    def _late(self) -> str:
        share = "" if self.shuffle == 1 else f"{self.shuffle:.0%} of it "
        return f", {share}up to {self.late:g} s late" if self.shuffle else ""


#: Stories in which a late yes could find somebody else's question.
CONFIRMING = ("pays, then refuses the next", "says yes twice", "taps twice", "changes the subject")


#: Stories in which a question is asked, and others than who was asked could answer it.
ASKING = (
    "taps five times at once",
    "pays by typing",
    "pays by tapping",
    "pays, then refuses the next",
    "refuses by tapping",
    "changes the subject",
)


#: Stories in which time counts: decisions that are made while the question is open, and after it.
TIMELY = (
    "types yes too late",
    "taps too late",
    "pays by typing",
    "pays by tapping",
    "small talk",
    "a question that takes a while",
    "a file",
)


#: Stories of one turn, after which five in six conversations wait for nothing and one for a yes.
IDLE = (*["says one thing"] * 5, "asks and leaves")


_KILLS = KILL_SECONDS


_REPEATS: Mapping[str, Any] = {"redeliver": REDELIVER_CHANCE, "shuffle": LATE_CHANCE}


_TIMELY: Mapping[str, Any] = {"webs": 2, "window": 12.0, "only": TIMELY}


#: Everything at once, but for the orderly restarts and the platforms' own troubles.
EVERYTHING: Mapping[str, Any] = {
    "kill": {"worker": _KILLS["worker"], "redis": _KILLS["redis"]},
    "pause": PAUSE_SECONDS,
    "cut": CUT_CHANCE,
    **_REPEATS,
}


#: What each row breaks, by its name.
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


#: Slow enough for the rarest faults to happen in 1,000 turns.
_STEADY: Mapping[str, Any] = {"rate": 20.0}


#: The size of a row where none is given: minutes at most.
SIZES: Mapping[str, Mapping[str, Any]] = {
    "load": {"rate": 100.0, "minutes": 1.0, "turns": 60_000, "conversations": 500},
    "outage": {"outage": 60.0},
    "spool": {"outage": 60.0},
    "machines": {"rate": 40.0, "turns": 2400, "workers": 4},
    **dict.fromkeys(("redis", "storage", "memory", "disk", "pauses", "restarts", "everything"), _STEADY),
}


#: The full size: of every row, and what is special in some.
FULL_SIZE: Mapping[str, Any] = {"turns": 20_000, "conversations": 500, "workers": 4}


_KILLED: Mapping[str, Any] = {"turns": 30_000, "rate": 45.0, "workers": 3}


_AWAY: Mapping[str, Any] = {
    "outage": OUTAGE_SECONDS, "turns": 10_000, "conversations": 1000, "least": {"acts in the outage": 1000},
}  # fmt: skip


_LOADED: Mapping[str, Any] = {"rate": 100.0, "minutes": 10.0, "turns": 60_000}


FULL_SIZES: Mapping[str, Mapping[str, Any]] = {
    "load": _LOADED,
    "workers": {**_KILLED, "least": {"confirmed": 5000, "workers killed": 500}},
    "redis": {**_KILLED, "least": {"confirmed": 5000, "workers killed": 500, "redis killed": 50}},
    "storage": {"rate": 45.0, "turns": 30_000, "least": {"redis killed": 50}},
    "apart": {**_KILLED, "least": {"confirmed": 5000, "workers killed": 500}},
    "machines": {"rate": 40.0, "minutes": 10.0, "turns": 60_000, "least": {"machines killed": 10}},
    "outage": _AWAY,
    "spool": _AWAY,
    "pauses": {"pause": 3.0, "workers": 9, "rate": 40.0, "minutes": 11.0, "turns": 60_000, "least": {"pauses": 200}},
    "replies": {"cut": 0.08, "turns": 40_000, "least": {"lost replies": 10_000}},
    "restarts": {**_LOADED, "least": {"workers restarted": 80}},
    "deliveries": {"turns": 36_000, "late": 600.0, "least": {"deliveries": 100_000}},
    "yes": {"turns": 12_000, "least": {"confirmed": 1000}},
    "strangers": {"turns": 80_000, "strangers": 45, "only": ASKING[:1], "least": {"confirmed": 1000}},
    "everything": {"rate": 35.0},
}


def planned(row: str, given: Plan, *, full_size: bool = False) -> Plan:
    """The plan of one row, at the size that was given, else at its own."""
    every, own = (FULL_SIZE, FULL_SIZES) if full_size else ({}, SIZES)
    return replace(given, **{**_left(every, given), **ROWS[row], **_left(own.get(row, {}), given)})


def _left(size: Mapping[str, Any], given: Plan) -> dict[str, Any]:
    """What of a size was not given."""
    usual = Plan()
    return {name: value for name, value in size.items() if getattr(given, name) == getattr(usual, name)}
