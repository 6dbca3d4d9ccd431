"""Everything broken at once, on real processes: nothing lost, doubled, out of order, untold or untrue."""

from __future__ import annotations

import os
import secrets
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sayso.testing.simulation.plan import EVERYTHING, Plan
from sayso.testing.simulation.report import SimulationReport, table
from sayso.testing.simulation.run import Simulation

#: Minutes in which people begin something new: one in CI, a third of one elsewhere.
MINUTES = 1.0 if os.environ.get("CI") else 1 / 3
#: Minutes of restarts: half of one shows seven rounds of them.
RESTART_MINUTES = min(MINUTES / 2, 0.5)
KILLS = {"worker": 1.0, "redis": 10.0, "web": 15.0}
#: Turns at most. With a worker killed each second, so few replies are no measure of one repeat in a thousand: the
#: judge then allows what the faults explain.
TURNS = 8_000


def run_plan(plan: Plan, data: Path) -> SimulationReport:
    """What came of a plan; said aloud for whoever watches with -s."""
    report = Simulation(plan, data, say).run()
    for line in [table([report]), *report.details(), *unkept(report)]:
        say(line)
    return report


def unkept(report: SimulationReport) -> list[str]:
    """All that a run has to answer for: broken promises, where, and what cost more, or happened less, than it may."""
    return [*report.broken, *report.evidence(), *report.exceeded]


def say(line: str) -> None:
    """Tell whoever watches."""
    sys.stderr.write(f"{line}\n")


@pytest.mark.timeout(600)
def test_with_everything_broken_at_once_every_promise_holds(tmp_path: Path) -> None:
    """Kills, pauses, lost replies of Redis, repeated and late webhooks; judged by diaries, chats and effects alone."""
    plan = Plan(turns=TURNS, conversations=40, workers=4, minutes=MINUTES, seed=secrets.randbelow(1_000_000))
    report = run_plan(replace(plan, **{**EVERYTHING, "kill": KILLS}), tmp_path)
    assert unkept(report) == []
    assert report.result.confirmed > 0  # so people were asked, said yes and were told: there was something to judge
    assert all(report.faults[fault] for fault in ("workers killed", "redis killed", "web killed", "pauses"))
    assert report.lost_replies > 0
    assert report.deliveries_repeated > 0


@pytest.mark.timeout(300)
def test_strangers_wrong_clocks_and_redis_away_change_nothing(tmp_path: Path) -> None:
    """Two webs an hour ahead with a spool, workers an hour ahead and behind, and others who answer in a group."""
    plan = Plan(
        turns=TURNS, conversations=30, workers=2, webs=2, minutes=1 / 4, rate=40.0,
        skew=3600.0, strangers=2, redeliver=0.3, outage=5.0, spool=True,
    )  # fmt: skip
    report = run_plan(plan, tmp_path)
    assert unkept(report) == []
    assert report.faults["outages"] == 1
    assert report.away.statuses[200] >= 1
    assert report.deliveries_repeated > 0


@pytest.mark.timeout(300)
def test_a_rolling_restart_loses_nothing_and_leaves_nothing_unknown(tmp_path: Path) -> None:
    """SIGTERM to every worker and the web, one after the other: turns in progress are finished first."""
    plan = Plan(turns=TURNS, conversations=30, workers=2, minutes=RESTART_MINUTES, restart=4.0)
    report = run_plan(plan, tmp_path)
    assert unkept(report) == []
    assert (report.unknown, report.result.repeated) == (0, 0)
    assert report.faults["workers restarted"] >= 2
    assert report.faults["web restarted"] >= 1
