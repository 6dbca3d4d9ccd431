"""A Redis that lost data or was restored, while others decide: nothing runs, and everybody is told."""

from __future__ import annotations

import pytest

from sayso.ops.server.migration import inspect
from sayso.ops.server.snapshot import read_snapshot, yield_and_count
from sayso.pending.sharded_scripts import SHARDS, shard_of
from sayso.workers.data_loss.resume import halt, resume
from sayso.workers.data_loss.watermarks import HaltReason
from tests.agent.channel.shop import ANA, Shop

PREFIX = "sayso:"


@pytest.fixture
def resumed() -> Shop:
    """Return a shop in which a question to two managers was closed by a resume."""
    shop = Shop(30)
    shop.ask()
    halt(shop.rig.client, dict.fromkeys(range(SHARDS), HaltReason("", 0, 0)))
    assert resume(shop.rig.client) is not None
    return shop


def test_late_yes_runs_nothing(resumed):
    """The person who answers is told, and nothing waits any more."""
    told_before = len(resumed.texts_to("bea"))
    resumed.tap("bea", resumed.request("bea")[0])
    assert resumed.refunds == []
    assert len(resumed.texts_to("bea")) > told_before
    assert resumed.home_action().state == "unknown"
    assert resumed.rig.client.keys(f"{PREFIX}*:waiting_for_others") == []


def test_asker_is_told_and_those_who_were_asked_are_not(resumed):
    """Only the action has an address to which the end of its question is told."""
    shard = shard_of(ANA.id)
    closed = resumed.rig.client.keys(f"{PREFIX}*:closed_questions")
    assert closed == [f"{PREFIX}{{{shard}}}:closed_questions"]
    assert resumed.rig.client.lrange(closed[0], 0, -1) == [resumed.home_action().action_id]


def test_end_of_the_time_after_a_resume_changes_nothing(resumed):
    """Its timer still rings."""
    resumed.later(90_000)
    assert resumed.refunds == []
    assert resumed.home_action().state == "unknown"


def test_backup_and_migration_know_the_keys(tmp_path):
    """A backup copies them, and counts the action as one open question. Each record has a version."""
    shop = Shop(30)
    shop.ask()
    counts: dict[str, int] = {}
    with read_snapshot(shop.rig.client, tmp_path / "copy", prefix=PREFIX) as keys:
        names = [key.name for key in yield_and_count(keys, counts)]
    for kind in (":received_requests:", ":waiting_for_others", ":pending:"):
        assert any(kind in name for name in names), kind
    assert counts["open_actions"] == 1
    state = inspect(shop.rig.client, "bot", prefix=PREFIX)
    assert state.records[("actions", 1)] == 3
    assert state.unreadable == 0
