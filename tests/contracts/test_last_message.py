"""Which message of the bot was the last one when a turn came in: its question, or something else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sayso.channels.types import Delivery, Media, Reply
from sayso.pending.turn_changes import TurnChange, TurnReply
from sayso.pending.turns import LeaseLost, QueuedReply
from sayso.workers.sender import GivenUp, Sent
from tests.contracts.rigs import CHAT, turn
from tests.contracts.test_conversations import lease, look, propose

FILE = Reply(media=Media("ref", "image/png", stored=True))


def deliver(rig, held, work, receipt: str = "m") -> None:
    """Send everything that waits."""
    while isinstance(work, QueuedReply):
        work = rig.outbox.mark_delivered(held, work, Sent(receipt, 100.0))


def say(rig, *replies, user: str = "bob", token: str = "w", **fields) -> None:
    """Answer a turn of this user with these replies, and send them."""
    rig.accept(turn(user=user))
    held, work = lease(rig, token)
    deliver(rig, held, rig.mailbox.commit(held, work, TurnChange(replies=replies, **fields)))
    rig.mailbox.release(held)


def ask(rig, *after) -> str:
    """Ask ana something, in one turn with the replies `after` it; return the action's id."""
    change, action = propose(rig)
    say(rig, *change.replies, *after, user="ana", new_actions=change.new_actions)
    return action.pending_action_id


def is_last(rig) -> bool:
    """Return whether the question is the last message to a turn of ana's that comes in now."""
    seq = rig.accept(turn("yes")).seq
    held, work = lease(rig, "reader")
    while work.turn.user_id != "ana" or work.seq != seq:
        work = rig.mailbox.commit(held, work, TurnChange())
    last = work.open_action.was_last_message(work.seq)
    rig.mailbox.commit(held, work, TurnChange())
    rig.mailbox.release(held)
    return last


def test_question_is_the_last_message(rig):
    """Nothing was said after it."""
    ask(rig)
    assert is_last(rig)


def test_any_other_reply_follows_the_question(rig):
    """Whoever it answers, the person has read it below the question."""
    ask(rig)
    say(rig, TurnReply(Reply("Send the cat picture?")))
    assert not is_last(rig)


def test_question_to_another_member_follows_the_question(rig):
    """A yes may answer that one."""
    ask(rig)
    change, _ = propose(rig, user="bob")
    say(rig, *change.replies, new_actions=change.new_actions)
    assert not is_last(rig)


def test_draft_for_another_member_follows_the_question(rig):
    """It is shown before its reply, and a yes below it may be meant for it."""
    ask(rig)
    rig.accept(turn(user="bob"))
    held, work = lease(rig, "w2")
    rig.mailbox.follow_question(held)
    rig.accept(turn("yes"))
    work = rig.mailbox.commit(held, work, TurnChange())
    assert not work.open_action.was_last_message(work.seq)


def test_worker_without_the_lease_follows_nothing(rig):
    """Another worker answers by then."""
    ask(rig)
    rig.accept(turn(user="bob"))
    held, _ = lease(rig, "w2")
    rig.end_lease()
    lease(rig, "w3")
    with pytest.raises(LeaseLost):
        rig.mailbox.follow_question(held)


def test_reply_of_an_app_follows_the_question(rig):
    """It comes through the outbox of another conversation."""
    ask(rig)
    rig.outbox.forward(Delivery("other#1", CHAT, Reply("Send the cat picture?")))
    held, work = lease(rig, "w2")
    deliver(rig, held, work)
    rig.mailbox.release(held)
    assert not is_last(rig)


def test_reply_that_may_have_arrived_follows_the_question(rig):
    """It is not known whether the person has read it."""
    ask(rig)
    rig.accept(turn(user="bob"))
    held, work = lease(rig, "w2")
    reply = rig.mailbox.commit(held, work, TurnChange(replies=(TurnReply(Reply("Shall I?")),)))
    rig.outbox.mark_delivered(held, reply, GivenUp("gone", "doubtful"))
    rig.mailbox.release(held)
    assert not is_last(rig)


def test_what_follows_in_the_turn_of_the_question_belongs_to_it(rig):
    """A file that is sent after the question does not cost the yes."""
    ask(rig, TurnReply(FILE), TurnReply(Reply("The file above shows it.")))
    assert is_last(rig)


def test_repetition_of_the_question_is_the_last_message(rig):
    """It shows the question again, below what was said in between."""
    pid = ask(rig)
    say(rig, TurnReply(Reply("Shall I?")))
    say(rig, TurnReply.about_question(Reply("Which? Delete it?"), pid), user="ana")
    assert is_last(rig)


def test_yes_from_before_the_repetition_is_early(rig):
    """It may answer what was said in between, so the repetition counts as the moment of asking."""
    pid = ask(rig)
    before = look(rig)
    say(rig, TurnReply(Reply("Shall I?")))
    say(rig, TurnReply.about_question(Reply("Which? Delete it?"), pid), user="ana")
    after = look(rig)
    assert (before.last_seen_seq, after.last_seen_seq, after.written_at) == (1, 3, 100.0)


def test_repetition_directly_after_the_question_changes_nothing(rig):
    """A yes that came in between answers the question."""
    pid = ask(rig)
    say(rig, TurnReply.about_question(Reply("Yes or no? Delete it?"), pid), user="ana")
    assert (look(rig).last_seen_seq, look(rig).followed_after_seq) == (1, 0)


def test_turn_that_came_in_before_the_other_reply_was_sent_follows_the_question(rig):
    """Its person cannot have read that reply."""
    ask(rig)
    rig.accept(turn(user="bob"))
    rig.accept(turn("yes"))
    held, work = lease(rig, "w2")
    reply = rig.mailbox.commit(held, work, TurnChange(replies=(TurnReply(Reply("Shall I?")),)))
    work = rig.outbox.mark_delivered(held, reply, Sent("m"))
    assert work.open_action.was_last_message(work.seq)
    assert not work.open_action.was_last_message(work.seq + 1)


@pytest.mark.parametrize(
    ("reply", "last"),
    [
        (Reply("Expired: an older question", edits="m0", optional=True), True),
        (Reply("The answer", edits="draft"), False),
        (Reply("That button is not yours.", only_for="bob"), True),
        (Reply("Here is your list.", only_for="ana"), False),
    ],
)
def test_reply_that_its_person_does_not_read_as_a_message_follows_nothing(rig, reply, last):
    """An edit of an older message and a message to another member stand nowhere below the question."""
    ask(rig)
    say(rig, TurnReply(reply))
    assert is_last(rig) is last


def test_action_that_was_shown_without_the_outbox_is_the_last_message(rig):
    """Its program showed it, after everything that was said here before."""
    first = ask(rig)
    say(rig, TurnReply(Reply("Shall I?")))
    change, _ = propose(rig, user="bob")
    rig.repository.change(CHAT.id, replace(change, replies=()))
    (stored,) = rig.repository.load(CHAT.id, (first,))
    bob = rig.repository.load_open(CHAT.id, turn(user="bob").scope.id)
    assert (stored.followed_after_seq, bob.followed_after_seq) == (2, 0)
    say(rig, TurnReply(Reply("Shall I?")), user="ana")
    assert rig.repository.load_open(CHAT.id, turn(user="bob").scope.id).followed_after_seq == 3
