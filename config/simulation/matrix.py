"""Matrix: the rows of the table that docs/failures.md publishes, each a plan of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from config.simulation import plan
from config.simulation.plan import Plan

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


#: The size of a row where none is given.
SIZES: Mapping[str, Mapping[str, Any]] = {
    "load": {"rate": 100.0, "minutes": 10.0, "turns": 60_000, "conversations": 500},
    "outage": {"outage": plan.OUTAGE_SECONDS},
    "spool": {"outage": plan.OUTAGE_SECONDS},
}


def planned(row: str, given: Plan) -> Plan:
    """The plan of one row, at the size that was given."""
    usual = Plan()
    size = {name: value for name, value in SIZES.get(row, {}).items() if getattr(given, name) == getattr(usual, name)}
    return replace(given, **size, **ROWS[row])
