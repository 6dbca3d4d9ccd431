"""`sayso audit` about actions that other people decide: votes are listed, requests do not clutter."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from sayso.channels.base import AddressClosed
from sayso.ops.cli.main import main
from sayso.pending.approval_rule import ApprovalPlace
from sayso.pending.audit.collector import AuditCollector
from sayso.pending.audit.ledger import FILE, AuditLedger
from tests.agent.channel.shop import ANA, GROUP, MANAGERS, Shop
from tests.pending.state_log import KEY, SIGNER

TWO = replace(MANAGERS, need=2)
HOUR = 3600.0


@pytest.fixture
def audit(tmp_path: Path, monkeypatch) -> Callable[..., Any]:
    """Return a function that collects what a shop did, and runs `sayso audit`."""
    monkeypatch.setenv("SAYSO_SECRET_KEYS", KEY)
    monkeypatch.delenv("SAYSO_CONFIG", raising=False)
    monkeypatch.delenv("REDIS_URL", raising=False)

    def run(shop: Shop, *args: str) -> str:
        AuditCollector(shop.rig.client, AuditLedger(tmp_path / FILE, SIGNER)).collect()
        result = CliRunner().invoke(main, ["audit", *args, "--data", str(tmp_path)])
        assert result.exit_code == 0, result.output
        return result.output

    return run


def rows(output: str) -> list[tuple[str, str]]:
    """Return the event and the last column of each line of `show`."""
    return [
        (line.split()[3], line.partition("Refund 30 EUR")[2].strip())
        for line in output.splitlines()
    ]


def test_vote_and_requests_stand_with_their_action(audit):
    """Each person who was asked has one line, which says how that ended."""
    shop = Shop(30)
    shop.ask()
    shop.tap("bea", shop.request("bea")[0])
    action_id = shop.home_action().action_id
    output = audit(shop, "show")
    assert {line.split()[2] for line in output.splitlines()} == {action_id}
    told = rows(output)
    assert ("asked", "asked bea on team, ended: answered yes") in told
    assert ("asked", "asked cem on team, ended: decided elsewhere") in told
    assert ("voted", "bea said yes by tap on team") in told
    events = [event for event, _ in told if event != "asked"]
    assert events == ["armed", "shown", "voted", "claimed", "started", "done"]
    assert rows(audit(shop, "show", "--action", action_id)) == told


def test_log_with_votes_verifies(audit):
    """Two votes, and the second one decides."""
    shop = Shop(30, rule=TWO)
    shop.ask()
    shop.tap("bea", shop.request("bea")[0])
    shop.tap("cem", shop.request("cem")[0])
    assert "0 faults: the chain holds" in audit(shop, "verify", "--offline", "--whole")


def test_json_names_the_vote(audit):
    """A program reads who, how and which message."""
    shop = Shop(30)
    shop.ask()
    message = shop.message_of("bea")
    shop.say("bea", "no", replied_to=message)
    action_id = shop.home_action().action_id
    entries = json.loads(audit(shop, "show", "--json"))
    (voted,) = [each for each in entries if each["event"] == "voted"]
    assert voted["action_id"] == action_id
    assert voted["vote"] | {"request_id": ""} == {
        "person": "bea",
        "user_id": "bea",
        "channel": "team",
        "answer": "no",
        "form": "words",
        "question_message_id": message,
        "request_id": "",
    }
    requests = [each["request"] for each in entries if "request" in each]
    assert {(each["asked"], each["on"], each["ended"]) for each in requests} == {
        ("bea", "team", "answered no"),
        ("cem", "team", "decided elsewhere"),
    }
    assert {each["request_of"] for each in requests} == {action_id}


def test_list_of_a_person_has_their_requests_and_votes(audit):
    """And nothing else of the action."""
    shop = Shop(30)
    shop.ask()
    shop.tap("bea", shop.request("bea")[0])
    assert rows(audit(shop, "show", "--user", "bea")) == [
        ("asked", "asked bea on team, ended: answered yes"),
        ("voted", "bea said yes by tap on team"),
    ]


def test_open_requests_wait(audit):
    """One in a group names no person."""
    shop = Shop(30, rule=replace(MANAGERS, on=ApprovalPlace("team", "C1")))
    shop.ask()
    assert ("asked", "asked a group on team: waits") in rows(audit(shop, "show"))
    shop.tap("bea", shop.request("C1")[0], GROUP, in_group=True)
    assert ("asked", "asked a group on team, ended: answered yes") in rows(audit(shop, "show"))


def test_request_that_did_not_arrive(audit):
    """The line of the person says so."""
    shop = Shop(30)
    shop.team.errors = [AddressClosed("blocked")]
    shop.ask()
    ends = sorted(
        text.rpartition("team")[2] for event, text in rows(audit(shop, "show")) if event == "asked"
    )
    assert ends == [", ended: not delivered", ": waits"]


def test_requests_of_an_action_that_was_withdrawn_or_expired(audit):
    """Both are told apart from a decision."""
    shop = Shop(30, 30, rule=replace(MANAGERS, within_seconds=HOUR))
    shop.ask()
    shop.hear(ANA, "ana", tap=shop.notice_button().data)
    shop.work()
    assert ("asked", "asked bea on team, ended: withdrawn") in rows(audit(shop, "show"))
    shop.ask()
    shop.later(HOUR + 5)
    assert ("asked", "asked bea on team, ended: expired") in rows(audit(shop, "show"))


def test_export_names_nobody(audit):
    """A vote is in the export as an event of the action, without its person."""
    shop = Shop(30)
    shop.ask()
    shop.tap("bea", shop.request("bea")[0], event="tap-1")
    texts = [json.loads(line)["text"] for line in audit(shop, "export").splitlines()]
    (voted,) = [json.loads(text) for text in texts if '"voted"' in text]
    assert (voted["pid"], voted["by"]) == (shop.home_action().action_id, "tap-1")
    assert [text for text in texts if '"bea"' in text] == []
