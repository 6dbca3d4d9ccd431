"""`sayso trace` about actions that other people decide: any id leads to the whole story."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from sayso.channels.base import AddressClosed
from sayso.channels.types import Conversation, digest
from sayso.ops.checks.story import MessageStory, answers
from sayso.ops.checks.trace import Tracer
from sayso.ops.cli.trace import _lines
from sayso.pending.approval_rule import ApprovalEscalation, ApprovalPlace, Deciders
from sayso.pending.audit.collector import AuditCollector
from sayso.pending.audit.ledger import FILE, AuditLedger
from tests.agent.channel.shop import ANA, GROUP, MANAGERS, Shop
from tests.agent.channel.test_approvals import code_of
from tests.pending.state_log import SIGNER

TWO = replace(MANAGERS, need=2)
HOUR = 3600.0
PREFIX = "sayso:"
BEA = Conversation("team", "bea")


@pytest.fixture
def trace(tmp_path: Path) -> Callable[..., MessageStory]:
    """Return a function that returns the only story of an id."""
    ledger = AuditLedger(tmp_path / FILE, SIGNER)

    def story(shop: Shop, wanted: str, *, with_redis: bool = True, **options: Any) -> MessageStory:
        AuditCollector(shop.rig.client, ledger).collect()
        client = shop.rig.client if with_redis else None
        scripts = shop.rig.scripts if with_redis else None
        tracer = Tracer(client, scripts, ledger, prefix=PREFIX, **options)
        (found,) = tracer.stories(wanted)
        return found

    return story


def approved(shop: Shop) -> str:
    """Let bea and cem agree, and return the id of the action."""
    shop.hear(ANA, "ana", "refund please", event="ask-1")
    shop.work()
    shop.rig.pass_time(1)
    shop.tap("bea", shop.request("bea")[0], event="tap-1")
    shop.rig.pass_time(1)
    shop.hear(Conversation("team", "cem"), "cem", f"yes {code_of(shop, 'cem')}", event="words-1")
    shop.work()
    return shop.home_action().action_id


def says(story: MessageStory) -> list[str]:
    """Return who confirmed the action, in sentences."""
    return answers(story)["confirmed_by"]


def request_of(story: MessageStory, place: Conversation) -> Any:
    """Return the request in a conversation."""
    (action,) = story.actions
    (request,) = [each for each in action.requests if each.conversation == place.id]
    return request


def test_story_has_requests_votes_and_outcome(trace):
    """Who was asked where, what each said how, and what ran."""
    shop = Shop(30, rule=TWO)
    action_id = approved(shop)
    story = trace(shop, action_id)
    (action,) = story.actions
    assert (action.need, action.outcome, action.newest) == (2, "approved", "done")
    assert [event.event for event in action.events] == [
        "armed",
        "shown",
        "voted",
        "voted",
        "claimed",
        "started",
        "done",
    ]
    assert [(each.answer, each.form, each.by) for each in action.votes] == [
        ("yes", "tap", digest("tap-1")),
        ("yes", "words", digest("words-1")),
    ]
    assert all(each.counted_at for each in action.votes)
    request = request_of(story, BEA)
    assert request.ended == "answered yes"
    assert request.closed_at >= action.votes[-1].at
    assert (request.reply.state, request.reply.receipt) == ("sent", shop.message_of("bea"))
    assert says(story)[0] == f"{action_id} (refund): other people agreed. It is done now."


def test_every_id_leads_to_the_same_story(trace):
    """The asker's message, an answer, the messages of both, a request, and audit entries."""
    shop = Shop(30, rule=TWO)
    action_id = approved(shop)
    story = trace(shop, action_id)
    request = request_of(story, BEA)
    vote = story.actions[0].votes[0]
    ids = ["ask-1", digest("ask-1"), "tap-1", digest("tap-1"), "words-1", vote.turn]
    ids += [request.request_id, request.reply.id, BEA.id, f"{ANA.id}@1"]
    for wanted in ids:
        found = trace(shop, wanted)
        assert found.conversation == ANA.id, wanted
        assert [each.action_id for each in found.actions] == [action_id], wanted
        assert set(found.turns) == set(story.turns), wanted


def test_turns_of_all_conversations_stand_in_the_order_of_time(trace):
    """Those that nobody sent here say why they came in."""
    shop = Shop(30, rule=TWO)
    story = trace(shop, approved(shop))
    places = [turn.id.partition("@")[0] for turn in story.turns]
    assert places[:2] == [ANA.id, BEA.id]
    assert sorted(places) == sorted([ANA.id] * 3 + [BEA.id, Conversation("team", "cem").id])
    causes = [turn.cause for turn in story.turns if turn.cause]
    assert len(causes) == 2
    assert all(cause.startswith("the answer to request ") for cause in causes)
    not_answered = answers(story)["not_answered"]
    assert any("is an answer, which was counted for action" in each for each in not_answered)


def test_nothing_personal_is_printed_unless_asked_for(trace):
    """No name, no words, no reason, and no event id of the platform."""
    shop = Shop(30)
    shop.ask()
    shop.say("bea", f"no {code_of(shop, 'bea')} much too much", event="secret-event")
    action_id = shop.home_action().action_id
    hidden = str(trace(shop, action_id)) + "\n".join(_lines(trace(shop, action_id)))
    personal = ("'bea'", "bea said", "Ana", "too much", "Refund 30", "secret-event")
    assert [each for each in personal if each in hidden] == []
    shown = "\n".join(_lines(trace(shop, action_id, show_texts=True)))
    assert re.search(r"request \w+ to bea in team:\w+: answered no, closed at 20", shown)
    assert "reason: much too much" in shown
    assert "of bea in words" in shown


def test_no_of_one_person_is_told(trace):
    """The story says who refused with which message."""
    shop = Shop(30)
    shop.ask()
    shop.tap("bea", shop.request("bea")[1], event="tap-no")
    story = trace(shop, "tap-no", show_texts=True)
    assert story.actions[0].outcome == "denied"
    result, vote, other = says(story)
    assert result.endswith("(refund): other people refused.")
    assert vote.startswith("bea said no to request ")
    assert "by tap at 20" in vote
    assert f"with message {digest('tap-no')} ({BEA.id}@1)" in vote
    assert other.endswith(": decided elsewhere.")


def test_answer_that_does_not_count_is_in_the_story(trace):
    """A stranger in the group has tapped, and the action waits."""
    shop = Shop(30, rule=replace(MANAGERS, on=ApprovalPlace("team", "C1")))
    shop.ask()
    shop.tap("dan", shop.request("C1")[0], GROUP, in_group=True, event="stranger")
    story = trace(shop, "stranger")
    assert story.conversation == ANA.id
    sentences = says(story)
    assert sentences[0].endswith("it waits for other people: 0 of 1 agree so far.")
    assert any(
        each.startswith(f"{GROUP.id}@1 answered request ") and "did not count" in each
        for each in sentences
    )


def test_answer_that_waits_leads_to_the_story(trace):
    """No worker has taken it yet, in the conversation of its person or of the action."""
    shop = Shop(30)
    shop.ask()
    action_id = shop.home_action().action_id
    shop.hear(BEA, "bea", tap=shop.request("bea")[0].data, event="waits")
    story = trace(shop, "waits")
    assert [each.action_id for each in story.actions] == [action_id]
    waiting = [turn for turn in story.turns if turn.status == "waits"]
    assert [turn.id for turn in waiting] == [f"{BEA.id}@1"]
    assert f"{BEA.id}@1 is next in its conversation." in " ".join(answers(story)["not_answered"])


def test_request_that_did_not_arrive(trace):
    """The story has the platform's reason, and the others still decide."""
    shop = Shop(30)
    shop.team.errors = [AddressClosed("blocked")]
    shop.ask()
    story = trace(shop, shop.home_action().action_id)
    ended = {each.ended for each in story.actions[0].requests}
    assert ended == {"not delivered", "waits"}
    (lost,) = [each for each in story.actions[0].requests if each.ended == "not delivered"]
    assert (lost.reply.state, lost.reply.reason) == ("dead", "AddressClosed: blocked")
    assert any(each.cause.endswith("did not arrive") for each in story.turns)
    assert any("was given up: AddressClosed" in each for each in answers(story)["not_answered"])
    assert trace(shop, lost.reply.id).conversation == ANA.id


def test_reminder_escalation_and_end(trace):
    """Each is a turn that says what it is."""
    rule = replace(
        MANAGERS,
        within_seconds=4 * HOUR,
        reminder_seconds=HOUR,
        escalation=ApprovalEscalation(2 * HOUR, Deciders("people", ("dan",))),
    )
    shop = Shop(30, rule=rule)
    shop.ask()
    for _ in range(4):
        shop.later(HOUR + 5)
    story = trace(shop, shop.home_action().action_id)
    assert [turn.cause for turn in story.turns if turn.cause] == [
        "those who have not answered are reminded",
        "further people are asked",
        "the time to decide is over",
    ]
    dan = request_of(story, Conversation("team", "dan"))
    assert (dan.is_escalation, dan.ended) == (True, "expired")
    assert says(story)[0].endswith("it expired: 0 of 1 had agreed.")


def test_withdrawn_action(trace):
    """The asker took it back."""
    shop = Shop(30)
    shop.ask()
    shop.hear(ANA, "ana", tap=shop.notice_button().data)
    shop.work()
    story = trace(shop, shop.home_action().action_id)
    assert story.actions[0].outcome == "withdrawn"
    assert {each.ended for each in story.actions[0].requests} == {"withdrawn"}


def test_story_is_read_from_the_ledger_without_redis(trace):
    """The turns are gone; who was asked, the votes and the states are not."""
    shop = Shop(30, rule=TWO)
    action_id = approved(shop)
    trace(shop, action_id)
    for wanted in (action_id, "tap-1", digest("words-1")):
        story = trace(shop, wanted, with_redis=False)
        (action,) = story.actions
        assert (action.action_id, action.outcome) == (action_id, "approved")
        assert [each.answer for each in action.votes] == ["yes", "yes"]
        assert {each.ended for each in action.requests} == {"answered yes"}


def test_json_has_the_story(trace):
    """Everything in it is plain data."""
    shop = Shop(30)
    shop.ask()
    shop.tap("bea", shop.request("bea")[0])
    story = json.loads(json.dumps(asdict(trace(shop, shop.home_action().action_id))))
    assert len(story["actions"][0]["requests"]) == 2
    assert story["actions"][0]["votes"][0]["answer"] == "yes"
