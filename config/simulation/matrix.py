"""Matrix: the rows of the table that docs/failures.md publishes, each a plan of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sayso.config.simulation import plan
from sayso.config.simulation.plan import Plan

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

_KILLS = plan.KILL_SECONDS
_REPEATS: Mapping[str, Any] = {"redeliver": plan.REDELIVER_CHANCE, "shuffle": plan.LATE_CHANCE}
_TIMELY: Mapping[str, Any] = {"webs": 2, "window": 12.0, "only": TIMELY}
#: Everything at once, but for the orderly restarts and the platforms' own troubles.
EVERYTHING: Mapping[str, Any] = {
    "kill": {"worker": _KILLS["worker"], "redis": _KILLS["redis"]},
    "pause": plan.PAUSE_SECONDS,
    "cut": plan.CUT_CHANCE,
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
    "memory": {"full": {"memory": plan.FULL_SECONDS}},
    "disk": {"full": {"disk": plan.FULL_SECONDS}},
    "ahead": {"skew": plan.SKEW_SECONDS, **_TIMELY},
    "behind": {"skew": -plan.SKEW_SECONDS, **_TIMELY},
    "pauses": {"pause": plan.PAUSE_SECONDS},
    "replies": {"cut": 4 * plan.CUT_CHANCE, "slow_ms": plan.SLOW_MS},
    "restarts": {"restart": plan.RESTART_SECONDS},
    "platforms": {"flaky_platforms": True},
    "repeats": dict(_REPEATS),
    "deliveries": {"redeliver": 0.8, "shuffle": 0.3, "webs": 2},
    "yes": {"redeliver": 1.0, "shuffle": 1.0, "only": CONFIRMING},
    "strangers": {"strangers": plan.STRANGERS, "webs": 2, "only": ASKING},
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
    "outage": plan.OUTAGE_SECONDS, "turns": 10_000, "conversations": 1000, "least": {"acts in the outage": 1000},
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
