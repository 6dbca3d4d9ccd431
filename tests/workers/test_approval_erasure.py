"""Erasure of a person who asked others or decided: what other people's records hold of them goes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from sayso.channels.base import AddressClosed
from sayso.channels.types import Conversation, Reply, Scope
from sayso.pending.approval_rule import ApprovalPlace
from sayso.pending.approvals.requests import REQUEST_KIND
from sayso.pending.audit.collector import AuditCollector
from sayso.pending.audit.ledger import FILE, AuditLedger
from sayso.pending.audit.verify import verify
from sayso.pending.forwarding import ForwardedReply
from sayso.pending.sharded_scripts import shard_of
from sayso.workers.erasure import ErasedPerson, Erasure
from tests.agent.channel.shop import ANA, GROUP, MANAGERS, Shop
from tests.agent.channel.test_approvals import code_of
from tests.pending.state_log import KEY, SIGNER

PREFIX = "sayso:"
TWO = replace(MANAGERS, need=2)
BEA = Conversation("team", "bea")
CEM = Conversation("team", "cem")


@pytest.fixture
def ledger(tmp_path: Path) -> AuditLedger:
    """Return a new ledger."""
    return AuditLedger(tmp_path / FILE, SIGNER)


def collect(shop: Shop, ledger: AuditLedger) -> None:
    """Move the audit entries into the ledger, as a worker does: an erasure waits for that."""
    AuditCollector(shop.rig.client, ledger).collect()


def erase(shop: Shop, ledger: AuditLedger, user: str, channel: str = "team") -> int:
    """Erase a person from Redis and the ledger. Return how many entries of Redis."""
    collect(shop, ledger)
    shop.rig.end_lease()
    users = frozenset({Scope(user, GROUP).id})
    erasure = Erasure(shop.rig.client, PREFIX, sleep=lambda _: None)
    count = erasure.erase(ErasedPerson(channel, users))
    ledger.erase(user, at=9_000)
    return count


def fields(shop: Shop, name: str, *, kind: str = "") -> list[str]:
    """Return a field of all stored actions that have it, of one kind."""
    found = []
    for key in shop.rig.client.scan_iter(f"{PREFIX}*:pending:*"):
        value = shop.rig.client.hget(key, name)
        if value and (not kind or shop.rig.client.hget(key, "kind") == kind):
            found.append(value)
    return found


def lists(shop: Shop, kind: str) -> str:
    """Return all entries of one kind of list."""
    client = shop.rig.client
    return str([client.lrange(key, 0, -1) for key in client.scan_iter(f"{PREFIX}*:{kind}*")])


def test_votes_and_requests_of_a_decider_go(ledger):
    """The action keeps those of others. Nobody reads a name or a reason any more."""
    shop = Shop(30, rule=replace(TWO, denials=2))
    shop.ask()
    shop.say("bea", f"no {code_of(shop, 'bea')} bea-thinks-so")
    shop.tap("cem", shop.request("cem")[1])
    assert "bea-thinks-so" in str(fields(shop, "outcome_text"))
    assert erase(shop, ledger, "bea") > 0

    (votes,) = fields(shop, "votes")
    assert [json.loads(line)["user_id"] for line in votes.splitlines()] == ["cem"]
    (requests,) = fields(shop, "requests")
    assert [each["person"] for each in json.loads(requests)] == ["cem"]
    assert "bea" not in str(fields(shop, "outcome_text"))
    assert len(fields(shop, "record", kind=REQUEST_KIND)) == 1


def test_ledger_forgets_a_decider_and_still_verifies(ledger):
    """The vote stays an entry of the chain, and the reason in the outcome goes."""
    shop = Shop(30)
    shop.ask()
    shop.say("bea", f"no {code_of(shop, 'bea')} bea-thinks-so", event="tap-1")
    action_id = shop.home_action().action_id
    erase(shop, ledger, "bea")
    kept = str([each for each in ledger.bodies().values() if each.user != "bea"])
    assert "bea-thinks-so" not in kept
    assert "bea said" not in kept
    body = ledger.bodies(action_id)[action_id]
    assert body.known_votes == ()
    assert "tap-1" in (body.votes or "")
    assert body.preview == "Refund 30 EUR"
    report = verify([ledger.path], [KEY], whole=True)
    assert [str(fault) for fault in report.faults] == []


def test_requests_about_the_actions_of_an_asker_go(ledger):
    """The records of those who were asked hold the preview and the name of the asker."""
    shop = Shop(30)
    shop.ask()
    assert len(fields(shop, "record", kind=REQUEST_KIND)) == 2
    erase(shop, ledger, "ana", "shop")
    assert fields(shop, "record") == []
    assert shop.rig.client.keys(f"{PREFIX}*:waiting_for_others") == []
    assert [each for each in ledger.bodies().values() if each.record] == []
    shop.tap("bea", shop.request("bea")[0])
    assert shop.refunds == []


def test_person_of_another_channel_with_the_same_id_stays(ledger):
    """ana of the team is another person than ana of the shop."""
    shop = Shop(30)
    shop.ask()
    shop.tap("bea", shop.request("bea")[0])
    before = sorted(fields(shop, "record"))
    erase(shop, ledger, "ana", "team")
    erase(shop, ledger, "bea", "shop")
    assert sorted(fields(shop, "record")) == before
    assert len(fields(shop, "votes")) == 1


def test_vote_on_its_way_goes(ledger):
    """It waits in the conversation of the action, or in the group where its person answered."""
    shop = Shop(30, rule=replace(MANAGERS, on=ApprovalPlace("team", "C1")))
    shop.ask()
    shop.hear(GROUP, "cem", "hello")
    shop.work(GROUP)
    shop.hear(GROUP, "bea", tap=shop.request("C1")[0].data, in_group=True)
    shop.work(GROUP)
    assert '\\"user_id\\": \\"bea\\"' in lists(shop, "inbox:").replace("\\\\", "\\")
    erase(shop, ledger, "bea")
    assert "bea" not in lists(shop, "inbox:")
    shop.work()
    assert shop.refunds == []


def test_undelivered_request_of_an_asker_goes(ledger):
    """The list for operators has its text."""
    shop = Shop(30)
    shop.team.errors = [AddressClosed("blocked")]
    shop.ask()
    assert "Refund 30 EUR" in lists(shop, "dead")
    erase(shop, ledger, "ana", "shop")
    assert "Refund 30 EUR" not in lists(shop, "dead")


def test_request_of_an_asker_that_waits_to_be_sent_goes(ledger):
    """It is in the conversation of the person who is asked."""
    shop = Shop(30)
    shop.hear(ANA, "ana", "refund please")
    shop.work(ANA)
    assert "Refund 30 EUR" in lists(shop, "outbox")
    erase(shop, ledger, "ana", "shop")
    assert "Refund 30 EUR" not in lists(shop, "outbox")


def test_what_waits_to_be_handed_to_a_decider_goes(ledger):
    """It is still in the conversation of the asker."""
    shop = Shop(30)
    shop.ask()
    outbox = f"{PREFIX}{{{shard_of(ANA.id)}}}:outbox:{ANA.id}"
    for to in (BEA, CEM):
        entry = ForwardedReply(to, Reply(f"for {to.chat}")).entry()
        shop.rig.client.rpush(outbox, f"9 {{}} {entry}")
    erase(shop, ledger, "bea")
    assert "for bea" not in lists(shop, "outbox")
    assert "for cem" in lists(shop, "outbox")


def test_timers_of_an_asker_in_a_group_go(ledger):
    """They bring turns of the asker. The others of the group keep their history."""
    shop = Shop(30, lines=["hi"])
    group = replace(ANA, chat="family")
    shop.places.add(group)
    for user, text in (("ana", "refund please"), ("ben", "hello")):
        shop.hear(group, user, text, in_group=True)
        shop.work()
    assert shop.rig.client.keys(f"{PREFIX}*:timer:{group.id}") != []
    erase(shop, ledger, "ana", "shop")
    assert shop.rig.client.keys(f"{PREFIX}*:timer:{group.id}") == []
    assert shop.rig.client.keys(f"{PREFIX}*:history:{group.id}:{Scope('ben', group).id}") != []
