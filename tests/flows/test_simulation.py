"""All faults at once, on real processes: nothing lost, doubled, out of order, unreported or untrue."""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

import pytest

from sayso.testing.simulation.profile import Profile, load_profiles
from sayso.testing.simulation.report import SimulationReport, table
from sayso.testing.simulation.run import Simulation

#: Seconds in which people start new requests. Each second a worker is killed.
SECONDS = 30.0 if os.environ.get("CI") else 20.0
#: Seconds of restarts, which begin every four seconds.
RESTART_SECONDS = SECONDS / 2
#: Without a limit, people use all processors for as long as a simulation runs. Faults come by the clock, so more turns
#: would meet no more of them. `make failures` has more of both.
TURNS_PER_SECOND = 20.0
KILLS = {"worker": 1.0, "redis": 10.0, "web": 15.0}
#: Turns at most. With a worker killed each second, so few replies cannot show a rate of one repeat in a thousand: the
#: judge then allows the repeats that the faults explain.
TURNS = 8_000


def run_profile(profile: Profile, data: Path) -> SimulationReport:
    """Run a profile, print its report and return it."""
    report = Simulation(profile, data, say).run()
    for line in [table([report]), *report.details(), *unkept(report)]:
        say(line)
    return report


def unkept(report: SimulationReport) -> list[str]:
    """Return the broken promises of a run, and the limits on cost or amount that it missed."""
    return [*report.broken, *report.evidence(), *report.exceeded]


def say(line: str) -> None:
    """Print to stderr; pytest shows it with -s."""
    sys.stderr.write(f"{line}\n")


@pytest.mark.timeout(600)
def test_every_promise_holds_with_all_faults_at_once(tmp_path: Path) -> None:
    """Kills, pauses, lost replies of Redis, repeated and late webhooks; judged by diaries, chats and effects alone."""
    size = {
        "turns": TURNS,
        "conversations": 40,
        "workers": 4,
        "seconds": SECONDS,
        "turns_per_second": TURNS_PER_SECOND,
    }
    seed = secrets.randbelow(1_000_000)
    (profile,) = load_profiles("everything", **size, kill_every=KILLS, seed=seed)
    report = run_profile(profile, tmp_path)
    assert unkept(report) == []
    assert (
        report.result.confirmed > 0
    )  # so people confirmed actions and got outcomes: there was something to judge
    assert report.result.requests > 0  # and requests of several steps went on
    assert all(
        report.faults[fault] for fault in ("workers killed", "redis killed", "web killed", "pauses")
    )
    assert report.lost_replies > 0
    assert report.deliveries_repeated > 0


@pytest.mark.timeout(300)
def test_every_promise_holds_with_strangers_wrong_clocks_and_a_redis_outage(tmp_path: Path) -> None:
    """Two webs with a spool are an hour ahead, workers an hour ahead and behind, and strangers answer in a group."""
    profile = Profile(
        turns=TURNS, conversations=30, workers=2, webs=2, seconds=15.0, turns_per_second=40.0,
        clock_skew=3600.0, strangers=2, repeated_webhooks=0.3, outage_seconds=5.0, spool=True,
    )  # fmt: skip
    report = run_profile(profile, tmp_path)
    assert unkept(report) == []
    assert report.faults["outages"] == 1
    assert report.outage.statuses[200] >= 1
    assert report.deliveries_repeated > 0


@pytest.mark.timeout(300)
def test_rolling_restart_loses_no_turn_and_leaves_no_outcome_unknown(tmp_path: Path) -> None:
    """SIGTERM reaches every worker and the web, one after the other: turns in progress are finished first."""
    profile = Profile(
        turns=TURNS,
        conversations=30,
        workers=2,
        seconds=RESTART_SECONDS,
        restart_every=4.0,
        turns_per_second=TURNS_PER_SECOND,
    )
    report = run_profile(profile, tmp_path)
    assert unkept(report) == []
    assert (report.unknown, report.result.repeated) == (0, 0)
    assert report.faults["workers restarted"] >= 2
    assert report.faults["web restarted"] >= 1
