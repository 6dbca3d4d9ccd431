"""The commit of a deciding turn appends the turn in which the agent goes on, once for each action."""

from __future__ import annotations

from dataclasses import replace

from sayso.agent.channel.context import continuation_turn
from sayso.channels.types import Reply
from sayso.pending.turn_changes import TurnChange, TurnReply
from sayso.workers.deliveries import LATE_SECONDS
from sayso.workers.sender import GivenUp
from tests.contracts.rigs import CHAT, turn
from tests.contracts.test_conversations import lease, shown


def decided(rig, *, tells_outcome=False):
    """Return a lease, the turn that decides, and its change with a continuation."""
    held, action = shown(rig)
    yes = turn("yes")
    rig.accept(yes)
    work = rig.mailbox.release(held)
    following = continuation_turn(yes, action.pending_action_id, tells_outcome=tells_outcome)
    return held, work, TurnChange(continuation=following)


def test_continuation_is_the_next_turn_and_knows_its_action(rig):
    """It has the stored action, and nothing of the message that decided."""
    held, work, change = decided(rig)
    queued = rig.mailbox.commit(held, work, change)
    assert (queued.turn.kind, queued.turn.text, queued.turn.asks_model) == (
        "continuation",
        "",
        True,
    )
    assert queued.tapped_action.action_id == queued.turn.continues == change.continuation.continues
    assert queued.seq == work.seq + 1


def test_action_has_one_continuation(rig):
    """Another turn that tells the same outcome appends none."""
    held, work, change = decided(rig)
    queued = rig.mailbox.commit(held, work, change)
    assert rig.mailbox.commit(held, queued, TurnChange(continuation=change.continuation)) is None


def test_commit_whose_answer_was_lost_appends_no_second_continuation(rig):
    """The repeated call returns the same turn."""
    held, work, change = decided(rig)
    first = rig.mailbox.commit(held, work, change)
    again = rig.mailbox.commit(held, work, change)
    assert (first.seq, first.turn) == (again.seq, again.turn)


def test_continuation_comes_after_the_turns_that_wait(rig):
    """Turns keep the order of their numbers, and are not merged with it."""
    held, work, change = decided(rig)
    rig.accept(turn("and another thing"))
    following = rig.mailbox.commit(held, work, change)
    assert (following.turn.text, following.following) == ("and another thing", ())
    assert rig.mailbox.commit(held, following, TurnChange()).turn.kind == "continuation"


def test_continuation_of_a_person_who_said_stop_asks_no_model(rig):
    """The /stop came in while the effect took place. Only the outcome is left to tell."""
    held, work, change = decided(rig, tells_outcome=True)
    rig.accept(turn("/stop"))
    stop = rig.mailbox.commit(held, work, change)
    queued = rig.mailbox.commit(held, stop, TurnChange())
    assert (queued.turn.asks_model, queued.turn.tells_outcome) == (False, True)


def test_continuation_survives_the_death_of_its_worker(rig):
    """It waits in the mailbox as any turn does."""
    held, work, change = decided(rig)
    rig.mailbox.commit(held, work, change)
    rig.end_lease()
    _, queued = lease(rig, "w2")
    assert (queued.turn.kind, queued.attempt) == ("continuation", 2)


def told(rig):
    """Commit a decision with its outcome as a reply, before the continuation. Return the lease and the reply."""
    held, work, change = decided(rig)
    return held, rig.mailbox.commit(
        held, work, replace(change, replies=(TurnReply(Reply("done")),))
    )


def test_outcome_is_held_until_the_person_writes_although_a_continuation_waits(rig):
    """The agent's own turn says nothing of whether the person can be written to."""
    held, reply = told(rig)
    rig.outbox.postpone(held, reply, 2, "held", "WindowClosed: 24 hours")
    assert [each.state for each in rig.deliveries.undelivered("held")] == ["held"]


def test_person_who_left_after_the_decision_has_a_closed_address(rig):
    """The refusal of the outcome counts, although a continuation waits: its reply is not sent."""
    held, reply = told(rig)
    queued = rig.outbox.mark_delivered(held, reply, GivenUp("Refused: opted out", end="opted_out"))
    following = rig.mailbox.commit(
        held, queued, TurnChange(replies=(TurnReply(Reply("the rest")),))
    )
    assert following.closed_reason == "Refused: opted out"


def test_late_report_closes_the_address_while_a_continuation_waits(rig):
    """No message of the person waits, and they have not written lately."""
    told(rig)
    rig.pass_time(LATE_SECONDS + 1)
    rig.deliveries.close(CHAT.id, "gone", late=True)
    assert rig.deliveries.statuses(CHAT.id)[1] == "gone"
