"""Redis away, or without room: begun, mended and told of when it is time, and judged."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from redis.exceptions import RedisError

from sayso.testing.simulation.faults import BEGIN_SECONDS, FULL_SECONDS, FullStorage, Outage, OutageRecord
from sayso.testing.simulation.judge import SimulationResult
from sayso.testing.simulation.profile import Profile
from sayso.testing.simulation.report import DRAINED_SECONDS, SimulationReport


@dataclass
class Server:
    """A Redis of which only is known what was done to it. It ends itself when its disk is full."""

    done: list[str] = field(default_factory=list)
    alive: bool = True

    def is_alive(self) -> bool:
        return self.alive

    def kill(self) -> None:
        self.alive = False
        self.done.append("killed")

    def restart(self) -> None:
        self.alive = True
        self.done.append("started")

    def limit_memory(self) -> None:
        if not self.alive:
            raise RedisError
        self.done.append("memory full")

    def limit_disk(self) -> None:
        self.done.append("disk full")

    def unlimit(self) -> None:
        self.done.append("room")


def outage(server: Any, seconds: float) -> Outage:
    """One that is planned at second 0, without a web to ask."""
    return Outage(server, (), seconds, 0.0)


def test_redis_is_away_once_and_for_as_long_as_it_was_told() -> None:
    """It begins when everybody talks, and ends by the clock, whoever is still there."""
    server = Server()
    away = outage(server, 300.0)
    steps = []
    for now in (0.0, BEGIN_SECONDS, BEGIN_SECONDS + 299, BEGIN_SECONDS + 300, BEGIN_SECONDS + 900):
        away.update(now)
        steps.append((list(server.done), away.is_on, away.is_ahead))
    before, during, after = ([], False, True), (["killed"], True, True), (["killed", "started"], False, False)
    assert steps == [before, during, during, after, after]


def test_without_an_outage_nothing_is_ahead() -> None:
    """A profile without one ends when its people are done."""
    assert not outage(Server(), 0.0).is_ahead


def test_what_ends_for_want_of_disk_is_started_again_until_there_is_room() -> None:
    """Each second, without room as long as the fault lasts."""
    server = Server()
    full = FullStorage(server)  # type: ignore[arg-type]
    assert full.begin("disk", 0.0)
    server.alive = False
    for now in (0.1, 0.2, FULL_SECONDS):
        full.update(now)
    assert server.done == ["disk full", "started", "disk full", "room"]
    assert (full.deaths, full.is_on) == (1, False)


def test_no_memory_is_taken_from_what_is_away() -> None:
    """The fault then did not happen, and is not counted as one."""
    server = Server(alive=False)
    assert not FullStorage(server).begin("memory", 0.0)  # type: ignore[arg-type]


def report(profile: Profile, away: OutageRecord, **faults: int) -> SimulationReport:
    """One in which people noticed nothing."""
    return SimulationReport(profile, SimulationResult(), 0, Counter(faults), outage=away)


@pytest.mark.parametrize(
    ("profile", "statuses", "broken"),
    [
        (Profile(outage_seconds=9), {503: 7}, []),
        (Profile(outage_seconds=9), {503: 7, 200: 1}, ["HTTP 200 while Redis was away: 1"]),
        (Profile(outage_seconds=9, spool=True), {200: 7}, []),
        (Profile(outage_seconds=9, spool=True), {200: 7, 503: 1}, ["HTTP 503 while Redis was away: 1"]),
    ],
)
def test_without_redis_webhooks_are_taken_only_by_a_spool(
    profile: Profile, statuses: dict[int, int], broken: list[str]
) -> None:
    """200 is a promise, and 503 asks to come again."""
    assert report(profile, OutageRecord(1.0, 10.0, statuses=Counter(statuses))).broken == broken


@pytest.mark.parametrize(
    ("profile", "allowed"),
    [
        (Profile(), {200}),
        (Profile(pause_every=10, kill_every={"worker": 1}), {200}),
        (Profile(kill_every={"redis": 10}), {200, 503}),
        (Profile(full_every={"disk": 9}), {200, 503}),
        (Profile(lost_replies=0.02), {200, 503}),
        (Profile(kill_every={"web": 5}), {0, 200}),
        (Profile(restart_every=20), {0, 200}),
    ],
)
def test_no_answer_is_of_killed_webs_and_503_of_a_redis_that_cannot_answer(profile: Profile, allowed: set[int]) -> None:
    """Whatever else a webhook hears is a broken promise, and so is a 503 that does not say when to come again."""
    heard = Counter((0, 200, 302, 500, 503))
    odd = ", ".join(f"{status or 'no answer'} 1" for status in sorted(set(heard) - allowed))
    assert SimulationReport(profile, SimulationResult(), 9, http=heard).broken == [f"webhooks: {odd}"]
    assert SimulationReport(profile, SimulationResult(), 9, without_retry_after=2).broken == [
        "HTTP 503 without Retry-After: 2"
    ]


def test_what_must_be_started_again_has_not_recovered() -> None:
    """A process that ended although nobody killed it is a broken promise where only Redis was without room."""
    assert report(Profile(full_every={"disk": 9.0}), OutageRecord(), ended=1).broken == [
        "processes that ended for want of Redis: 1"
    ]


def test_a_fault_that_was_planned_and_never_happened_is_a_finding() -> None:
    """A run in which nothing was lost, cut, repeated or failed shows nothing, whatever it was called."""
    profile = Profile(outage_seconds=9, lost_replies=0.1, repeated_webhooks=0.1, failing_platforms=True)
    missing = [
        line.partition(":")[0]
        for line in SimulationReport(profile, SimulationResult(), 0, never_done=["pause"]).exceeded
    ]
    assert missing == ["pause", "outage", "lost replies", "repeated webhooks", "failing platforms"]
    happened = SimulationReport(
        profile,
        SimulationResult(),
        9,
        outage=OutageRecord(1.0, 2.0),
        lost_replies=1,
        deliveries_repeated=1,
        failed_sends=Counter(drop=1),
    )
    assert happened.exceeded == []


def test_an_outage_may_cost_what_was_under_way_when_it_began() -> None:
    """One word of "cannot tell" for each act that then waited for its answer, and no more."""
    found = SimulationResult(answered=[(1.0, 2.0), (1.0, 12.0), (6.0, 12.0)], endings=Counter(unknown=2))
    profile, away = Profile(outage_seconds=9), OutageRecord(5.0, 10.0)
    assert SimulationReport(profile, found, hits=0, outage=away).exceeded == ["unknown: 2, and only 1 hits"]
    assert SimulationReport(profile, found, hits=1, outage=away).exceeded == []


def test_a_spool_that_drains_too_slowly_is_above_its_bound() -> None:
    """Seconds from Redis's return to the last look at which messages waited."""
    away = OutageRecord(1.0, 10.0, 10.0 + DRAINED_SECONDS + 1)
    assert report(Profile(outage_seconds=9, spool=True), away).exceeded == ["spool: empty 61 s after Redis was back"]
