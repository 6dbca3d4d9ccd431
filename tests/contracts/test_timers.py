"""Timers: each rings once and in time, whatever happens to workers, and delays no message."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest

from sayso.channels.types import Reply
from sayso.pending.repository import ActionResult, Claim
from sayso.pending.stored_limits import MAX_TIMERS
from sayso.pending.turn_changes import Timer, Transition, TurnChange, TurnReply, outbox_entry
from sayso.pending.turns import QueuedReply, QueuedTurn, StaleTurn
from sayso.workers.sender import GivenUp, Sent
from tests.contracts.rigs import CHAT, Rig, turn
from tests.contracts.test_admission import Crowded
from tests.contracts.test_conversations import lease, look, propose

HOUR, DAY = 3600.0, 86_400.0


def timer(seconds: float, name: str = "1", text: str = "Stretch") -> Timer:
    """Return a timer that rings in this many seconds."""
    return Timer(name, round(time.time() + seconds, 3), text, "ana's scope", "stretch")


def commit(rig, change: TurnChange, token: str = "w1"):
    """Commit a turn with this change; return its lease and the next item."""
    rig.accept(turn())
    held, work = lease(rig, token)
    return held, rig.mailbox.commit(held, work, change)


def set_timers(rig, *timers: Timer) -> None:
    """Commit a turn that sets these timers, and release the conversation."""
    held, work = commit(rig, TurnChange(timers=timers))
    assert (work, rig.mailbox.release(held)) == (None, None)


def said(rig, token: str = "w2") -> list[str]:
    """Send everything that waits; return the texts."""
    held, work = lease(rig, token)
    texts = []
    while isinstance(work, QueuedReply):
        texts.append(work.delivery(held).reply.text)
        work = rig.outbox.mark_delivered(held, work, Sent("m"))
    rig.mailbox.release(held, hand_over=True)
    return texts


def asked(rig, **fields):
    """Deliver a question with an expiry notice; return the lease, the action and the next item."""
    rig.accept(turn("delete"))
    held, work = lease(rig)
    change, action = propose(rig, **fields)
    arm = replace(change.new_actions[0], notice=outbox_entry(CHAT, Reply("Nobody answered")))
    reply = rig.mailbox.commit(held, work, replace(change, new_actions=(arm,)))
    return held, action, rig.outbox.mark_delivered(held, reply, Sent("m1"))


def test_timer_rings_once(rig):
    """It is not due before its time. Then it wakes the conversation, is sent once and leaves no trace."""
    set_timers(rig, timer(HOUR))
    rig.pass_time(HOUR - 10)
    assert rig.overdue() == []
    rig.pass_time(11)
    assert (rig.overdue(), rig.overdue()) == ([CHAT.id], [])
    assert said(rig) == ["Stretch"]
    rig.pass_time(DAY)
    assert rig.overdue() == []


def test_two_reapers_ring_a_timer_once(rig):
    """The second finds it gone: ringing and deleting are one step."""
    set_timers(rig, timer(HOUR))
    rig.pass_time(HOUR + 1)
    rig.overdue()
    rig.pass_time(6)  # no worker came: the wake-up is repeated, the reminder is not
    assert rig.overdue() == [CHAT.id]
    assert said(rig) == ["Stretch"]


def test_worker_killed_between_ring_and_sending_loses_nothing(rig):
    """The text is in the outbox, and the next worker sends it like any reply."""
    set_timers(rig, timer(HOUR))
    rig.pass_time(HOUR + 1)
    rig.overdue()
    lease(rig, "killed")
    rig.end_lease()
    assert rig.overdue() == [CHAT.id]
    assert said(rig, "w3") == ["Stretch"]


def test_message_is_answered_at_once_although_a_timer_waits(rig):
    """A timer tomorrow does not mean that a worker comes now."""
    set_timers(rig, timer(DAY))
    rig.accept(turn("hello"))
    rig.pass_time(6)  # longer than a wake-up takes to be repeated
    assert rig.overdue() == [CHAT.id]
    assert lease(rig, "w2")[1].turn.text == "hello"


def test_message_beside_a_timer_of_this_moment_is_answered_at_once(rig):
    """A timer that rings in a few seconds, or has rung, does not mean so either."""
    set_timers(rig, timer(HOUR))
    rig.pass_time(HOUR + 1)
    rig.accept(turn("hello"))
    rig.pass_time(6)
    assert rig.overdue() == [CHAT.id]
    held, work = lease(rig, "w2")
    assert work.delivery(held).reply.text == "Stretch"
    assert rig.outbox.mark_delivered(held, work, Sent("m")).turn.text == "hello"


def test_new_message_does_not_wake_a_parked_conversation_with_a_timer(rig):
    """The platform asked to wait, whatever else the conversation is due for."""
    set_timers(rig, timer(DAY))
    held, reply = commit(rig, TurnChange(replies=(TurnReply(Reply("hi")),)), "w2")
    rig.outbox.postpone(held, reply, 30)
    rig.accept(turn())
    rig.pass_time(20)
    assert rig.overdue() == []


def test_message_to_a_leased_conversation_wakes_no_worker(rig):
    """The holder looks for new turns before it releases the lease."""
    held, work = commit(rig, TurnChange())
    assert work is None
    rig.accept(turn("hello"))
    rig.pass_time(6)
    assert rig.overdue() == []
    assert rig.mailbox.release(held).turn.text == "hello"


def test_messages_do_not_delay_a_wake_up(rig):
    """The wake-up was lost, and the person keeps writing."""
    set_timers(rig, timer(DAY))
    rig.accept(turn("a"))
    rig.pass_time(4)
    rig.accept(turn("b"))
    rig.pass_time(2)
    assert rig.overdue() == [CHAT.id]


def test_conversation_with_only_a_timer_does_not_count_as_work(make_rig):
    """A timer for tomorrow takes no place from other conversations."""
    limits = Crowded()
    object.__setattr__(limits, "conversations", 1)
    rig = make_rig(limits=limits)
    set_timers(rig, timer(DAY))
    assert rig.accept(turn()).outcome == "new"


def test_timer_is_there_after_other_turns(rig):
    """Every turn that releases the conversation leaves it due for the timer."""
    set_timers(rig, timer(HOUR))
    held, _ = commit(rig, TurnChange(), "w2")
    rig.mailbox.release(held)
    rig.pass_time(HOUR + 1)
    assert rig.overdue() == [CHAT.id]


def test_timer_rings_in_a_leased_conversation(rig):
    """The holder gets it when it releases the lease, and sends it."""
    set_timers(rig, timer(1))
    held, _ = commit(rig, TurnChange(), "w2")
    rig.pass_time(2)
    assert rig.overdue() == []
    assert rig.mailbox.release(held).delivery(held).reply.text == "Stretch"


def test_timer_rings_when_a_busy_conversation_is_handed_over(rig):
    """People who never stop writing get it too, before their next answer."""
    set_timers(rig, timer(1))
    rig.accept(turn("a"))
    held, _ = lease(rig, "w2")
    rig.pass_time(2)
    rig.mailbox.release(held, hand_over=True)
    assert said(rig, "w3") == ["Stretch"]


def test_timer_of_the_past_rings_at_once(rig):
    """The tool that set it was slow. The text is sent when the turn is done."""
    held, _ = commit(rig, TurnChange(timers=(timer(-HOUR),)))
    assert rig.mailbox.release(held).delivery(held).reply.text == "Stretch"


def test_timers_ring_in_the_order_of_their_times(rig):
    """The order in which they were set does not matter."""
    set_timers(rig, timer(20, "1", "B"), timer(10, "2", "A"), timer(HOUR, "3", "C"))
    rig.pass_time(30)
    rig.overdue()
    assert said(rig) == ["A", "B"]
    rig.pass_time(HOUR)
    assert rig.overdue() == [CHAT.id]
    assert said(rig) == ["C"]


def test_clock_that_is_set_back_rings_nothing_twice(rig):
    """A timer that rang is gone; another one waits until its time comes again."""
    set_timers(rig, timer(HOUR, "1", "A"), timer(2 * HOUR, "2", "B"))
    rig.pass_time(HOUR + 1)
    assert rig.overdue() == [CHAT.id]
    rig.pass_time(-HOUR)
    assert said(rig) == ["A"]
    rig.pass_time(HOUR + 30)
    rig.overdue()
    assert said(rig, "w3") == []
    rig.pass_time(HOUR)
    assert rig.overdue() == [CHAT.id]
    assert said(rig, "w4") == ["B"]


def test_cancelled_timer_does_not_ring(rig):
    """Cancelled just before its time, it is gone, and the conversation is not due for it."""
    set_timers(rig, timer(HOUR))
    held, _ = commit(rig, TurnChange(cancelled_timers=("1", "never set")), "w2")
    rig.mailbox.release(held)
    rig.pass_time(HOUR + 1)
    assert rig.overdue() == []


def test_timer_cancelled_after_it_rang_is_still_sent(rig):
    """A text in the outbox is on its way."""
    set_timers(rig, timer(1))
    rig.accept(turn())
    held, work = lease(rig, "w2")
    rig.pass_time(20)
    assert rig.overdue() == [CHAT.id]
    reply = rig.mailbox.commit(held, work, TurnChange(cancelled_timers=("1",)))
    assert reply.delivery(held).reply.text == "Stretch"


def test_commit_sent_twice_sets_a_timer_once(rig):
    """This holds even if the timer rang in between."""
    rig.accept(turn())
    held, work = lease(rig)
    change = TurnChange(timers=(timer(-1),))
    rig.mailbox.commit(held, work, change)
    reply = rig.mailbox.release(held)
    rig.mailbox.commit(held, work, change)
    assert rig.outbox.mark_delivered(held, reply, Sent("m")) is None
    assert rig.mailbox.release(held) is None
    rig.pass_time(HOUR)
    assert rig.overdue() == []


def test_commit_that_is_refused_sets_no_timer(rig):
    """The commit stores everything or nothing."""
    held, action, _ = asked(rig)
    rig.accept(turn("b"))
    work = rig.mailbox.release(held)
    with pytest.raises(StaleTurn):
        rig.mailbox.commit(held, work, replace(propose(rig)[0], timers=(timer(-1),)))
    rig.mailbox.commit(held, work, TurnChange())
    assert (rig.mailbox.release(held), look(rig).action_id) == (None, action.pending_action_id)


def test_timer_over_the_limit_is_refused_with_its_turn(rig):
    """A conversation has MAX_TIMERS at most; a cancelled one makes room."""
    set_timers(rig, *(timer(HOUR, str(number)) for number in range(MAX_TIMERS)))
    rig.accept(turn())
    held, work = lease(rig, "w2")
    with pytest.raises(StaleTurn):
        rig.mailbox.commit(held, work, TurnChange(timers=(timer(HOUR, "more"),)))
    rig.mailbox.commit(
        held, work, TurnChange(timers=(timer(HOUR, "more"),), cancelled_timers=("7",))
    )


def test_turn_knows_the_timers_of_its_conversation(rig):
    """The turn lists them by their times."""
    late, soon = timer(DAY, "1"), timer(HOUR, "2", "Ünïcode: {braces} 'quotes'")
    set_timers(rig, late, soon)
    rig.accept(turn())
    _, work = lease(rig, "w2")
    assert isinstance(work, QueuedTurn)
    assert work.timers == (soon, late)


def test_unanswered_question_ends_and_says_so(rig):
    """When its window closes, once, with an entry in the audit log. A later yes does nothing."""
    held, action, _ = asked(rig)
    assert rig.mailbox.release(held) is None
    rig.pass_time(50)
    assert rig.overdue() == []
    rig.pass_time(20)
    assert rig.overdue() == [CHAT.id]
    assert said(rig) == ["Nobody answered"]
    assert (look(rig).state, rig.audit()[-1]["event"]) == ("expired", "expired")
    rig.accept(turn("yes", event="late"))
    held, work = lease(rig, "w3")
    claim = Claim(turn().scope, action.pending_action_id, "late", "text", held, work.seq)
    assert rig.repository.claim(claim, look(rig))[0] == "other"


def test_yes_in_time_counts_although_the_window_closed_since(rig):
    """The yes waited while its worker was dead, so the expiry waits for it."""
    held, action, _ = asked(rig)
    yes = turn("yes")
    rig.accept(yes)
    rig.pass_time(100)
    assert rig.overdue() == [CHAT.id]
    held, work = lease(rig, "w2")
    claim = Claim(yes.scope, action.pending_action_id, yes.event_id, "text", held, work.seq)
    assert rig.repository.claim(claim, look(rig))[0] == "mine"
    rig.repository.start(claim, look(rig), "try")
    assert rig.mailbox.commit(held, work, TurnChange()) is None
    assert rig.mailbox.release(held) is None  # and no word of an end


def test_question_whose_form_is_open_gets_more_time(rig):
    """Ten minutes from then on. Its end comes later, too, and once."""
    held, action, _ = asked(rig)
    assert rig.mailbox.release(held) is None
    rig.pass_time(50)
    opened = rig.repository.open_form(CHAT.id, action.pending_action_id)
    assert round(opened.expires_at - opened.loaded_at) == 600
    rig.pass_time(120)
    rig.overdue()
    assert said(rig) == []
    assert (look(rig).state, look(rig).is_window_closed) == ("shown", False)
    rig.pass_time(500)
    rig.overdue()
    assert said(rig) == ["Nobody answered"]
    assert look(rig).state == "expired"


def test_form_of_a_closed_question_gives_no_time(rig):
    """Its window is over, although the end was not told yet."""
    held, action, _ = asked(rig)
    rig.mailbox.release(held)
    rig.pass_time(70)
    assert rig.repository.open_form(CHAT.id, action.pending_action_id).is_window_closed
    assert rig.repository.open_form(CHAT.id, "A" * 22) is None
    assert rig.repository.open_form("chat:elsewhere", action.pending_action_id) is None


def test_end_of_a_window_waits_for_the_turn_that_is_worked_on_and_no_longer(rig):
    """The turn decided nothing, and the notice follows it."""
    held, _, _ = asked(rig)
    rig.accept(turn("b", user="bob"))
    work = rig.mailbox.release(held)
    rig.pass_time(100)
    assert rig.mailbox.commit(held, work, TurnChange()) is None
    assert rig.mailbox.release(held).delivery(held).reply.text == "Nobody answered"


def closing(rig, receipt: str = "m1", **notices: str) -> list[tuple[str, str]]:
    """Let a delivered question expire; return each text that is sent then, and the message it replaces."""
    rig.accept(turn("delete"))
    held, work = lease(rig)
    change, _ = propose(rig)
    ending = outbox_entry(CHAT, Reply("Exp\u00edred \U0001f600", optional=True, language="es"))
    arm = replace(change.new_actions[0], ending=ending, **notices)
    reply = rig.mailbox.commit(held, work, replace(change, new_actions=(arm,)))
    assert rig.outbox.mark_delivered(held, reply, Sent(receipt)) is None
    rig.mailbox.release(held)
    rig.pass_time(61)
    rig.overdue()
    return replies(rig)


def replies(rig) -> list[tuple[str, str]]:
    """Return each waiting text and the message that it replaces."""
    held, work = lease(rig, "w2")
    found = []
    while isinstance(work, QueuedReply):
        reply = work.delivery(held).reply
        assert (reply.optional, reply.language) == ((True, "es") if reply.edits else (False, ""))
        found.append((reply.text, reply.edits))
        work = rig.outbox.mark_delivered(held, work, Sent("m"))
    rig.mailbox.release(held, hand_over=True)
    return found


def test_unanswered_question_is_closed_where_it_was_asked(rig):
    """Without a notice the message is only edited, and the window is over."""
    assert closing(rig) == [("Exp\u00edred \U0001f600", "m1")]
    assert (look(rig).state, rig.audit()[-1]["event"]) == ("expired", "expired")
    assert rig.overdue() == []


def test_unanswered_question_is_closed_before_its_notice(rig):
    """The buttons go before the notice comes."""
    notice = outbox_entry(CHAT, Reply("Nobody answered"))
    assert closing(rig, notice=notice) == [
        ("Exp\u00edred \U0001f600", "m1"),
        ("Nobody answered", ""),
    ]


def test_question_without_a_known_message_is_not_closed(rig):
    """The notice is sent all the same."""
    assert closing(rig, "", notice=outbox_entry(CHAT, Reply("Nobody answered"))) == [
        ("Nobody answered", "")
    ]


def test_message_that_asked_is_named_exactly(rig):
    """This holds for any id that a platform gives."""
    assert [edits for _, edits in closing(rig, 'odd"\\\u00e9/')] == ['odd"\\\u00e9/']


def test_turn_beside_the_end_of_a_question_knows_the_timers(rig):
    """The timer of an expiry without a notice is not listed."""
    rig.accept(turn("delete"))
    held, work = lease(rig)
    change, _ = propose(rig)
    arm = replace(change.new_actions[0], ending=outbox_entry(CHAT, Reply("Expired", optional=True)))
    rig.outbox.mark_delivered(
        held, rig.mailbox.commit(held, work, replace(change, new_actions=(arm,))), Sent("m1")
    )
    rig.accept(turn("b", user="bob"))
    work = rig.mailbox.release(held)
    assert [(timer.text, timer.user) for timer in work.timers] == [("", "")]


def test_decided_question_leaves_no_timer(rig):
    """No worker is woken for a timer that has nothing to send."""
    held, action, _ = asked(rig)
    rig.accept(turn("no"))
    work = rig.mailbox.release(held)
    rig.mailbox.commit(
        held,
        work,
        TurnChange(transition=Transition(action.pending_action_id, ("shown",), "cancelled")),
    )
    rig.mailbox.release(held)
    rig.accept(turn("next"))
    assert lease(rig, "w2")[1].timers == ()


@pytest.mark.parametrize("to", ["cancelled", "expired"])
def test_question_that_was_answered_has_no_notice(rig, to: str):
    """This holds for every decision."""
    held, action, _ = asked(rig)
    rig.accept(turn("no"))
    work = rig.mailbox.release(held)
    rig.mailbox.commit(
        held, work, TurnChange(transition=Transition(action.pending_action_id, ("shown",), to))
    )
    rig.mailbox.release(held)
    rig.pass_time(100)
    rig.overdue()
    assert said(rig) == []


def test_only_the_newest_question_has_a_notice(rig):
    """One action waits in a scope at a time; the replaced one sends no notice."""
    held, first, _ = asked(rig)
    rig.accept(turn("another"))
    work = rig.mailbox.release(held)
    change, _ = propose(rig)
    arm = replace(
        change.new_actions[0], notice=outbox_entry(CHAT, Reply("Nobody answered the second"))
    )
    drop = Transition(first.pending_action_id, ("shown",), "cancelled")
    rig.outbox.mark_delivered(
        held,
        rig.mailbox.commit(held, work, replace(change, new_actions=(arm,), transition=drop)),
        Sent("m"),
    )
    rig.accept(turn(user="bob"))
    assert len(rig.mailbox.release(held).timers) == 1
    rig.mailbox.release(held, hand_over=True)
    rig.pass_time(100)
    held, work = lease(rig, "w2")
    rig.mailbox.commit(held, work, TurnChange())
    rig.mailbox.release(held, hand_over=True)
    assert (said(rig, "w3"), look(rig).state) == (["Nobody answered the second"], "expired")


def test_question_that_was_never_delivered_has_no_notice(rig):
    """Its window never opened."""
    rig.accept(turn("delete"))
    held, work = lease(rig)
    change, _ = propose(rig)
    arm = replace(change.new_actions[0], notice=outbox_entry(CHAT, Reply("Nobody answered")))
    rig.outbox.mark_delivered(
        held,
        rig.mailbox.commit(held, work, replace(change, new_actions=(arm,))),
        GivenUp("blocked"),
    )
    rig.mailbox.release(held)
    rig.pass_time(100)
    assert rig.overdue() == []


def test_late_outcome_is_sent_although_a_timer_waits(rig):
    """A correction that no turn commits wakes a worker at once."""
    held, action, _ = asked(rig)
    rig.accept(turn("yes", event="y"))
    work = rig.mailbox.release(held)
    claim = Claim(turn().scope, action.pending_action_id, "y", "text", held, work.seq)
    rig.repository.claim(claim, look(rig))
    rig.repository.start(claim, look(rig), "try")
    rig.mailbox.commit(
        held, work, TurnChange(timers=(timer(DAY),))
    )  # ends what it did not settle: unknown
    rig.mailbox.release(held)
    rig.repository.finish(
        claim, "try", ActionResult("done", "done", "", outbox_entry(CHAT, Reply("It was done")))
    )
    assert rig.overdue() == [CHAT.id]
    assert said(rig) == ["It was done"]


def test_timer_outlives_the_keys_of_an_idle_conversation(redis_client):
    """A timer may be further away than the TTL of an idle conversation."""
    rig = Rig(redis_client)
    set_timers(rig, timer(300 * DAY))
    kept = [redis_client.pttl(f"{rig.shard}:{key}:{CHAT.id}") / 1000 for key in ("timers", "timer")]
    assert min(kept) > 320 * DAY
    redis_client.delete(f"{rig.shard}:conversation:{CHAT.id}")
    redis_client.zincrby(f"{rig.shard}:due", -round(301 * DAY * 1000), CHAT.id)
    redis_client.zincrby(f"{rig.shard}:timers:{CHAT.id}", -round(301 * DAY * 1000), "1")
    assert rig.overdue() == [CHAT.id]
    assert said(rig) == ["Stretch"]


def test_timer_leaves_no_keys_after_it_rang(redis_client):
    """Both its keys are gone, and the outbox that took its text expires."""
    rig = Rig(redis_client)
    set_timers(rig, timer(1))
    rig.pass_time(2)
    rig.overdue()
    assert not list(redis_client.scan_iter(f"{rig.shard}:timer*"))
    assert redis_client.pttl(f"{rig.shard}:outbox:{CHAT.id}") > 0
    assert json.loads(redis_client.lindex(f"{rig.shard}:outbox:{CHAT.id}", 0).split(" ", 2)[2])[
        "to"
    ] == [
        "chat",
        "room",
        "",
    ]
