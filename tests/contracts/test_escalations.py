"""Escalations: an unanswered question alerts the operators once, in their own conversation, and delays no other."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from sayso.channels.types import Conversation, Delivery, Reply
from sayso.pending.action import PendingAction
from sayso.pending.repository import Claim, sign_action
from sayso.pending.stored_limits import MAX_FORWARDED_WAITING
from sayso.pending.turn_changes import Transition, TurnChange, TurnReply, outbox_entry
from sayso.pending.turns import CHOICE_KIND, QueuedReply
from sayso.workers.sender import GivenUp, Sent
from tests.contracts.rigs import CHAT, Rig, turn
from tests.contracts.test_conversations import lease, look, propose
from tests.contracts.test_timers import HOUR, said, set_timers, timer

OPS = Conversation("ops", "C123")
#: Seconds after which operators are alarmed here; the window of a question is 60.
AFTER = 30


def alarmed(
    rig, *, after: float = AFTER, notice: str = "", alarm: str = "Look there"
) -> TurnChange:
    """Return a question with an alarm for the operators."""
    change, _ = propose(rig)
    entry = outbox_entry(OPS, Reply(alarm), forward=True)
    notice = outbox_entry(CHAT, Reply(notice)) if notice else ""
    return replace(
        change,
        new_actions=(
            replace(change.new_actions[0], alarm=entry, alarm_after_ms=after * 1000, notice=notice),
        ),
    )


def asked(rig, **options):
    """Deliver such a question and release the conversation."""
    rig.accept(turn("delete"))
    held, work = lease(rig)
    rig.outbox.mark_delivered(
        held, rig.mailbox.commit(held, work, alarmed(rig, **options)), Sent("m1")
    )
    assert rig.mailbox.release(held) is None


def later(rig, seconds: float, token: str = "later") -> list[str]:
    """Return the texts that are due after this many seconds, in order."""
    rig.pass_time(seconds)
    return said(rig, token) if rig.overdue() else []


def to_chat(number: int = 7, text: str = "Look there") -> Delivery:
    """Return a delivery of another conversation that is addressed to this one."""
    return Delivery(f"wa:0123456789abcdef0123#{number}", CHAT, Reply(text, language="de"))


def test_unanswered_question_alarms_once(rig):
    """The alarm comes at its time and never again."""
    asked(rig)
    assert later(rig, AFTER - 10) == []
    assert later(rig, 20) == ["Look there"]
    assert (later(rig, HOUR), look(rig).state) == ([], "shown")


def test_two_reapers_alarm_once(rig):
    """The second only repeats the unanswered wake-up."""
    asked(rig)
    rig.pass_time(AFTER + 1)
    assert rig.overdue() == [CHAT.id]
    assert later(rig, 6) == ["Look there"]


def test_alarm_rings_for_a_worker_that_holds_the_lease(rig):
    """A release that is sent twice brings the alarm once."""
    asked(rig)
    rig.accept(turn(user="bob"))
    held, work = lease(rig, "w2")
    rig.pass_time(AFTER + 1)
    rig.mailbox.commit(held, work, TurnChange())
    reply = rig.mailbox.release(held)
    assert rig.mailbox.release(held) == reply
    assert rig.outbox.mark_delivered(held, reply, Sent("ops#1")) is None


@pytest.mark.parametrize("to", ["cancelled", "expired"])
def test_decided_question_brings_no_alarm(rig, to: str):
    """This holds for every decision."""
    asked(rig)
    rig.accept(turn("no"))
    held, work = lease(rig, "w2")
    rig.mailbox.commit(
        held, work, TurnChange(transition=Transition(look(rig).action_id, ("shown",), to))
    )
    rig.mailbox.release(held)
    assert later(rig, HOUR) == []


def test_answer_that_waits_for_its_worker_prevents_the_alarm(rig):
    """The answer came just in time. The alarm waits until it is processed and is dropped then."""
    asked(rig)
    yes = turn("yes")
    rig.accept(yes)
    rig.pass_time(AFTER + 1)
    assert rig.overdue() == [CHAT.id]
    held, work = lease(rig, "w2")
    claim = Claim(yes.scope, look(rig).action_id, yes.event_id, "text", held, work.seq)
    assert rig.repository.claim(claim, look(rig))[0] == "mine"
    rig.repository.start(claim, look(rig), "try")
    assert rig.mailbox.commit(held, work, TurnChange()) is None
    assert rig.mailbox.release(held) is None


@pytest.mark.parametrize("after", [60, 300])
def test_window_that_closes_first_alarms_together_with_its_end(rig, after: int):
    """The operators are told before the person, and the question ends all the same."""
    asked(rig, after=after, notice="Nobody answered")
    assert later(rig, 50) == []
    assert later(rig, 20) == ["Look there", "Nobody answered"]
    assert look(rig).state == "expired"


def test_alarm_and_end_that_are_late_keep_their_order(rig):
    """All processes were down for an hour."""
    asked(rig, notice="Nobody answered")
    assert later(rig, HOUR) == ["Look there", "Nobody answered"]


def test_alarm_goes_out_before_the_end(rig):
    """Each comes at its own time."""
    asked(rig, notice="Nobody answered")
    assert (later(rig, AFTER + 1), later(rig, AFTER, "w3")) == (["Look there"], ["Nobody answered"])


def test_only_the_newest_question_has_an_alarm(rig):
    """One action waits in a scope at a time."""
    asked(rig)
    rig.accept(turn("another"))
    held, work = lease(rig, "w2")
    rig.pass_time(20)
    drop = Transition(look(rig).action_id, ("shown",), "cancelled")
    reply = rig.mailbox.commit(
        held, work, replace(alarmed(rig, alarm="Look at the second"), transition=drop)
    )
    rig.outbox.mark_delivered(held, reply, Sent("m2"))
    rig.mailbox.release(held)
    assert (later(rig, 20), later(rig, 11)) == ([], ["Look at the second"])


def test_question_that_was_never_delivered_brings_no_alarm(rig):
    """The person was not asked. The list of dead deliveries shows the question."""
    rig.accept(turn("delete"))
    held, work = lease(rig)
    rig.outbox.mark_delivered(
        held, rig.mailbox.commit(held, work, alarmed(rig)), GivenUp("blocked")
    )
    rig.mailbox.release(held)
    assert later(rig, HOUR) == []


def test_forwarded_reply_is_never_doubtful(rig):
    """A worker died with it. It is forwarded once, neither marked nor listed as a possible repetition."""
    asked(rig)
    rig.pass_time(AFTER + 1)
    rig.overdue()
    lease(rig, "killed")
    rig.end_lease()
    held, reply = lease(rig, "w3")
    assert (reply.is_forwarded, reply.is_doubtful) == (True, False)
    rig.outbox.mark_delivered(held, reply, Sent("ops:1#1"))
    fates, _ = rig.deliveries.statuses(CHAT.id)
    assert (fates[-1].state, fates[-1].receipt, rig.deliveries.undelivered("ambiguous")) == (
        "sent",
        "ops:1#1",
        [],
    )


def test_forwarded_reply_ignores_the_rate_limit_of_this_channel(rig):
    """It is not sent on this channel, so it takes no slot there."""
    asked(rig)
    rig.accept(turn())
    held, work = lease(rig, "w2")
    reply = rig.mailbox.commit(held, work, TurnChange(replies=(TurnReply(Reply("hi")),)))
    assert rig.outbox.book_slot(held, reply, 0.01) == 0  # the next slot is in 100 s
    rig.outbox.mark_delivered(held, reply, Sent("m"))
    rig.pass_time(AFTER + 1)
    forwarded = rig.mailbox.release(held)
    assert (forwarded.is_forwarded, forwarded.wait_seconds) == (True, None)


def test_forward_is_made_once(rig):
    """A repeated call returns the first result. One worker is woken."""
    first = rig.outbox.forward(to_chat())
    assert (first, rig.outbox.forward(to_chat())) == (f"{CHAT.id}#1", first)
    rig.pass_time(6)
    assert rig.overdue() == [CHAT.id]
    held, reply = lease(rig)
    assert reply.delivery(held) == Delivery(
        first, CHAT, Reply("Look there", language="de"), silence=inf
    )
    assert (reply.is_forwarded, rig.outbox.mark_delivered(held, reply, Sent("m"))) == (False, None)
    assert rig.outbox.forward(to_chat()) == first
    assert rig.mailbox.release(held) is None


def test_forwards_of_two_deliveries_are_two(rig):
    """They keep their order."""
    rig.outbox.forward(to_chat(7, "A"))
    rig.outbox.forward(to_chat(8, "B"))
    assert said(rig) == ["A", "B"]


def test_forward_into_a_leased_conversation_is_sent_by_the_holder(rig):
    """The holder looks for new items before it releases the lease."""
    rig.accept(turn())
    held, work = lease(rig)
    rig.mailbox.commit(held, work, TurnChange())
    rig.outbox.forward(to_chat())
    assert rig.mailbox.release(held).delivery(held).reply.text == "Look there"


def test_forward_does_not_wake_a_parked_conversation(rig):
    """The operators' platform asked to wait."""
    rig.accept(turn())
    held, work = lease(rig)
    reply = rig.mailbox.commit(held, work, TurnChange(replies=(TurnReply(Reply("hi")),)))
    rig.outbox.postpone(held, reply, 30)
    rig.outbox.forward(to_chat())
    rig.pass_time(20)
    assert rig.overdue() == []
    assert later(rig, 11) == ["hi", "Look there"]


def test_forward_wakes_a_conversation_that_only_has_a_timer(rig):
    """A timer tomorrow does not mean that a worker comes now."""
    set_timers(rig, timer(HOUR))
    rig.outbox.forward(to_chat())
    assert later(rig, 6) == ["Look there"]


def test_forwards_to_a_dead_channel_of_the_operators_are_bounded(rig):
    """A forward over the limit is refused, not lost in silence. An accepted one is recognized when it is repeated."""
    ids = [rig.outbox.forward(to_chat(number)) for number in range(MAX_FORWARDED_WAITING + 1)]
    assert (ids[-2], ids[-1]) == (f"{CHAT.id}#{MAX_FORWARDED_WAITING}", "")
    assert rig.outbox.forward(to_chat(0)) == ids[0]


def test_forward_does_not_bring_the_bot_into_a_group(rig):
    """The bot ignores the members' messages until one names it."""
    rig.outbox.forward(to_chat())
    assert rig.accept(turn("lunch?", addressed=False)).outcome == "ignored"
    assert rig.accept(turn("@bot hello")).outcome == "new"
    assert rig.accept(turn("and?", addressed=False)).outcome == "new"


def test_operators_have_a_conversation_of_their_own(rig):
    """A forward lies in their outbox and not in this one."""
    there = rig.outbox.forward(replace(to_chat(), conversation=OPS))
    held, reply = rig.mailbox.lease(OPS.id, "w1")
    assert (there, reply.delivery(held).id) == (f"{OPS.id}#1", f"{OPS.id}#1")
    assert isinstance(reply, QueuedReply)
    assert rig.mailbox.lease(CHAT.id, "w1") is None


def test_forward_is_remembered_for_a_week(redis_client):
    """That is longer than the pause of any dead worker between its two steps, and not for ever."""
    rig = Rig(redis_client)
    rig.outbox.forward(to_chat())
    (key,) = redis_client.scan_iter(f"{rig.shard}:forwarded:*")
    assert 6 * 86_400 < redis_client.ttl(key) <= 7 * 86_400


def waits(rig) -> bool:
    """Return whether any question of the conversation waits for an answer."""
    return rig.mailbox.waits_for_answer(CHAT.id)


def test_conversation_waits_from_the_moment_a_question_is_shown_to_its_answer(rig):
    """An armed question waits for nothing yet. Another person's turn leaves it open."""
    rig.accept(turn("delete"))
    held, work = lease(rig)
    question = rig.mailbox.commit(held, work, alarmed(rig, notice="too late"))
    assert not waits(rig)
    rig.outbox.mark_delivered(held, question, Sent("m1"))
    rig.mailbox.release(held)
    rig.accept(turn(user="bob"))
    held, work = lease(rig, "w2")
    rig.mailbox.commit(held, work, TurnChange())
    assert waits(rig)
    rig.mailbox.release(held)
    rig.accept(turn("no"))
    held, work = lease(rig, "w3")
    rig.mailbox.commit(
        held, work, TurnChange(transition=Transition(look(rig).action_id, ("shown",), "cancelled"))
    )
    assert not waits(rig)


def test_conversation_waits_no_longer_than_its_question(rig):
    """The end of its time is an end, also before a worker tells it."""
    asked(rig, notice="too late")
    assert waits(rig)
    rig.pass_time(61)
    assert not waits(rig)
    assert later(rig, 1)[-1] == "too late"
    assert not waits(rig)


def test_offered_choices_wait_for_nothing(rig):
    """A person may take one, or say something else."""
    rig.accept(turn("delete"))
    held, work = lease(rig)
    offer = PendingAction(
        user_id="ana", kind=CHOICE_KIND, preview="A / B", channel_id="chat", conversation_id="room"
    )
    signed = sign_action(offer, rig.store.signer, user=turn().scope.id)
    change = TurnChange(
        replies=(TurnReply.question(Reply("A or B?"), offer.pending_action_id),),
        new_actions=(replace(signed, notice=outbox_entry(CHAT, Reply("too late"))),),
    )
    question = rig.mailbox.commit(held, work, change)
    rig.outbox.mark_delivered(held, question, Sent("m1"))
    assert not waits(rig)
