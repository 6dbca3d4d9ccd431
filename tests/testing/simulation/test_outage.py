"""Redis outages and full storage: they begin and end on time, and the report judges them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from redis.exceptions import RedisError

from sayso.testing.simulation.faults import (
    FULL_SECONDS,
    OUTAGE_BEGINS_SECONDS,
    PROCESSES_ENDED,
    Faults,
    FullStorage,
    Outage,
    OutageRecord,
)
from sayso.testing.simulation.judge import SimulationResult
from sayso.testing.simulation.profile import Profile
from sayso.testing.simulation.report import DRAINED_SECONDS, SimulationReport


@dataclass
class Server:
    """A fake Redis that records the calls on it. A test ends it when its disk is full."""

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
    """Return an outage that was planned at second 0, without a web to query."""
    return Outage(server, (), seconds, 0.0)


def test_redis_outage_happens_once_and_lasts_as_planned() -> None:
    """The outage begins when all people are active, and ends by the clock."""
    server = Server()
    away = outage(server, 300.0)
    steps = []
    for now in (
        0.0,
        OUTAGE_BEGINS_SECONDS,
        OUTAGE_BEGINS_SECONDS + 299,
        OUTAGE_BEGINS_SECONDS + 300,
        OUTAGE_BEGINS_SECONDS + 900,
    ):
        away.update(now)
        steps.append((list(server.done), away.is_on, away.is_ahead))
    before, during, after = (
        ([], False, True),
        (["killed"], True, True),
        (["killed", "started"], False, False),
    )
    assert steps == [before, during, during, after, after]


def test_profile_without_an_outage_has_none_ahead() -> None:
    """Such a profile ends when its people are done."""
    assert not outage(Server(), 0.0).is_ahead


def test_redis_that_ends_on_a_full_disk_is_restarted_until_there_is_room() -> None:
    """It restarts each second, without room until the fault ends."""
    server = Server()
    full = FullStorage(server)  # type: ignore[arg-type]
    assert full.begin("disk", 0.0)
    server.alive = False
    for now in (0.1, 0.2, FULL_SECONDS):
        full.update(now)
    assert server.done == ["disk full", "started", "disk full", "room"]
    assert (full.deaths, full.is_on) == (1, False)


def test_outage_that_begins_on_a_full_disk_is_not_cut_short() -> None:
    """Redis starts once, when the outage is over: a second server would write to the same files."""
    server = Server()
    workers = SimpleNamespace(note_workers=set)
    bot: Any = SimpleNamespace(redis=server, addresses=(), workers=workers, restart_ended=lambda: 0)
    faults = Faults(bot, Profile(outage_seconds=300), Random(1), 0.0)
    assert faults._full.begin("disk", OUTAGE_BEGINS_SECONDS - 1)

    begins = OUTAGE_BEGINS_SECONDS
    for now in (begins, begins + 0.5, begins + FULL_SECONDS, begins + 300, begins + 301):
        faults.update(now)
    assert server.done == ["disk full", "killed", "started", "room"]
    assert not faults.is_timed_fault_pending


def test_full_memory_does_not_begin_while_redis_is_down() -> None:
    """The fault did not happen, and is not counted."""
    server = Server(alive=False)
    assert not FullStorage(server).begin("memory", 0.0)  # type: ignore[arg-type]


def report(profile: Profile, away: OutageRecord, **faults: int) -> SimulationReport:
    """Return the report of a run without findings by people."""
    return SimulationReport(profile, SimulationResult(), 0, Counter(faults), outage=away)


@pytest.mark.parametrize(
    ("profile", "statuses", "broken"),
    [
        (Profile(outage_seconds=9), {503: 7}, []),
        (Profile(outage_seconds=9), {503: 7, 200: 1}, ["HTTP 200 while Redis was away: 1"]),
        (Profile(outage_seconds=9, spool=True), {200: 7}, []),
        (
            Profile(outage_seconds=9, spool=True),
            {200: 7, 503: 1},
            ["HTTP 503 while Redis was away: 1"],
        ),
    ],
)
def test_webhooks_during_an_outage_are_accepted_only_with_a_spool(
    profile: Profile, statuses: dict[int, int], broken: list[str]
) -> None:
    """200 promises an answer, and 503 asks for a repetition."""
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
def test_missing_answers_need_killed_webs_and_503_needs_an_unavailable_redis(
    profile: Profile, allowed: set[int]
) -> None:
    """Any other status is a broken promise, and so is a 503 without Retry-After."""
    heard = Counter((0, 200, 302, 500, 503))
    odd = ", ".join(f"{status or 'no answer'} 1" for status in sorted(set(heard) - allowed))
    assert SimulationReport(profile, SimulationResult(), 9, http=heard).broken == [
        f"webhooks: {odd}"
    ]
    assert SimulationReport(profile, SimulationResult(), 9, without_retry_after=2).broken == [
        "HTTP 503 without Retry-After: 2"
    ]


def test_process_that_ended_without_a_kill_breaks_a_promise() -> None:
    """Where only Redis was out of room, other processes must not end."""
    assert report(
        Profile(full_every={"disk": 9.0}), OutageRecord(), **{PROCESSES_ENDED: 1}
    ).broken == ["processes that ended for want of Redis: 1"]


def test_planned_fault_that_never_happened_is_a_finding() -> None:
    """A run without a lost, cut, repeated or failed message shows nothing."""
    profile = Profile(
        outage_seconds=9, lost_replies=0.1, repeated_webhooks=0.1, failing_platforms=True
    )
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


def test_outage_allows_one_unknown_outcome_for_each_waiting_act() -> None:
    """One "cannot tell" is allowed for each act that waited when the outage began."""
    found = SimulationResult(
        answered=[(1.0, 2.0), (1.0, 12.0), (6.0, 12.0)], endings=Counter(unknown=2)
    )
    profile, away = Profile(outage_seconds=9), OutageRecord(5.0, 10.0)
    assert SimulationReport(profile, found, interruptions=0, outage=away).exceeded == [
        "unknown: 2, and only 1 hits"
    ]
    assert SimulationReport(profile, found, interruptions=1, outage=away).exceeded == []


def test_slowly_drained_spool_exceeds_its_limit() -> None:
    """The time counts from Redis's return to the last check with waiting messages."""
    away = OutageRecord(1.0, 10.0, 10.0 + DRAINED_SECONDS + 1)
    assert report(Profile(outage_seconds=9, spool=True), away).exceeded == [
        "spool: empty 61 s after Redis was back"
    ]
