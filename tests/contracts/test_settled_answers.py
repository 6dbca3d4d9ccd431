"""Which yes or no of a person was settled last, while its outcome is the last thing that the bot said."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sayso.channels.types import Delivery, Media, Reply
from sayso.pending.stored_limits import REPEAT_MS
from sayso.pending.turn_changes import SettledAnswer, TurnChange, TurnReply
from sayso.pending.turns import QueuedReply
from sayso.workers.sender import GivenUp, Sent
from tests.contracts.rigs import CHAT, turn
from tests.contracts.test_conversations import lease
from tests.contracts.test_last_message import say

YES = SettledAnswer("confirm", "p1", "pt")
OUTCOME = TurnReply(Reply("Done."))
FILE = TurnReply(Reply(media=Media("ref", "image/png", stored=True)))
CLOSED = TurnReply(Reply("✅ Yes", edits="m0", optional=True))


def tell(rig, *replies, ends=(), settles=YES, **fields) -> None:
    """Answer ana's yes with these replies, and end their delivery so; a reply without an end is sent."""
    rig.accept(turn("yes"))
    held, work = lease(rig, "w")
    work = rig.mailbox.commit(held, work, TurnChange(replies=replies, settles=settles, **fields))
    ends = list(ends)
    while isinstance(work, QueuedReply):
        work = rig.outbox.mark_delivered(
            held, work, ends.pop(0) if ends else Sent(f"m{work.number}", 100.0)
        )
    rig.mailbox.release(held)


def last_answer(rig, user: str = "ana") -> SettledAnswer | None:
    """Return the last answer as the next turn of a person reads it."""
    rig.accept(turn("yes", user=user))
    held, work = lease(rig, "reader")
    rig.mailbox.commit(held, work, TurnChange())
    rig.mailbox.release(held)
    return work.last_answer


def test_answer_is_known_while_its_outcome_is_the_last_message(rig):
    """Any number of turns without a reply may follow."""
    tell(rig, CLOSED, OUTCOME, FILE)
    assert last_answer(rig) == last_answer(rig) == YES


def test_answer_that_a_model_has_followed_is_known_as_such(rig):
    """A yes in words may answer the model then, a tap on the question cannot."""
    followed = replace(YES, words_follow=True)
    tell(rig, OUTCOME, settles=followed)
    assert last_answer(rig) == followed


def test_answer_of_another_person_is_none(rig):
    """In a group, bob's yes repeats nothing of ana's."""
    tell(rig, OUTCOME)
    assert last_answer(rig, "bob") is None


def test_turn_without_a_settled_answer_has_none(rig):
    """Its reply is an ordinary answer."""
    say(rig, OUTCOME, user="ana")
    assert last_answer(rig) is None


@pytest.mark.parametrize("user", ["ana", "bob"])
def test_answer_is_forgotten_after_another_reply(rig, user):
    """A yes may be meant for that one, also if it answers another person."""
    tell(rig, OUTCOME)
    say(rig, TurnReply(Reply("And the other one?")), user=user)
    assert last_answer(rig) is None


def test_answer_is_forgotten_after_a_message_of_an_app(rig):
    """It comes through the outbox of another conversation, and may still wait."""
    tell(rig, OUTCOME)
    rig.outbox.forward(Delivery("other#1", CHAT, Reply("Shall I?")))
    held, work = lease(rig, "w2")
    rig.outbox.mark_delivered(held, work, Sent("m9"))
    rig.mailbox.release(held)
    assert last_answer(rig) is None


@pytest.mark.parametrize("end", [GivenUp("gone"), GivenUp("gone", "doubtful")])
def test_answer_is_unknown_unless_all_of_its_outcome_was_sent(rig, end):
    """The person may not know what happened."""
    tell(rig, OUTCOME, FILE, ends=[Sent("m1"), end])
    assert last_answer(rig) is None
    tell(rig, OUTCOME, FILE, ends=[end])
    assert last_answer(rig) is None


def test_edit_that_is_left_out_does_not_matter(rig):
    """The outcome stands in the message below it."""
    tell(rig, CLOSED, OUTCOME, ends=[GivenUp("cannot be edited")])
    assert last_answer(rig) == YES


def test_answer_is_unknown_once_the_platform_reports_that_its_outcome_failed(rig):
    """WhatsApp reports it after it took the message."""
    tell(rig, OUTCOME)
    rig.deliveries.report(f"{CHAT.id}#1", "m1", "failed")
    assert last_answer(rig) is None


def test_answer_is_known_after_the_platform_reports_that_its_outcome_arrived(rig):
    """Delivered and read are more than sent."""
    tell(rig, OUTCOME)
    for news in ("delivered", "read"):
        rig.deliveries.report(f"{CHAT.id}#1", "m1", news)
        assert last_answer(rig) == YES


def test_answer_is_known_for_a_while(rig):
    """Later the same word answers something else."""
    tell(rig, OUTCOME)
    rig.pass_time(REPEAT_MS / 1000 - 5)
    assert last_answer(rig) == YES
    rig.pass_time(6)
    assert last_answer(rig) is None


def test_answer_without_a_reply_leaves_the_earlier_one(rig):
    """Where a message costs money, the answer to a repeated tap may be no message at all."""
    tell(rig, OUTCOME)
    tell(rig)
    assert last_answer(rig) == YES
