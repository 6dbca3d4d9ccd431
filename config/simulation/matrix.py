"""Matrix: the rows of the table that docs/failures.md publishes, each a plan of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from config.simulation import plan
from config.simulation.plan import Plan

#: Stories in which a late yes could find somebody else's question.
CONFIRMING = ("pays, then refuses the next", "says yes twice", "taps twice", "changes the subject")

_KILLS = plan.KILL_SECONDS
_REPEATS: Mapping[str, Any] = {"redeliver": plan.REDELIVER_CHANCE, "shuffle": True}
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
    "workers": {"kill": {"worker": _KILLS["worker"]}},
    "redis": {"kill": {"worker": _KILLS["worker"], "redis": _KILLS["redis"]}},
    "web": {"kill": {"web": _KILLS["web"] / 3}},
    "pauses": {"pause": plan.PAUSE_SECONDS},
    "replies": {"cut": 4 * plan.CUT_CHANCE, "slow_ms": plan.SLOW_MS},
    "restarts": {"restart": plan.RESTART_SECONDS},
    "platforms": {"flaky_platforms": True},
    "repeats": dict(_REPEATS),
    "yes": {"redeliver": 1.0, "shuffle": True, "only": CONFIRMING},
    "everything": EVERYTHING,
}


def planned(row: str, given: Plan) -> Plan:
    """The plan of one row, at the size that was given."""
    return replace(given, **ROWS[row])
