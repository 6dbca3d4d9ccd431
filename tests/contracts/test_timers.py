"""Timers: each rings once, in time, whoever holds the lane or died with it, and holds no message up."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest

from sayso.channels.types import Reply
from sayso.pending.repository import ActionResult, Claim
from sayso.pending.turns.change import MAX_TIMERS, Timer, Transition, TurnChange, outbox_entry
from sayso.pending.turns.queued import QueuedReply, QueuedTurn, StaleTurn
from tests.contracts.rigs import CHAT, RedisRig, turn
from tests.contracts.test_admission import Crowded
from tests.contracts.test_conversations import lease, look, propose

HOUR, DAY = 3600.0, 86_400.0


def timer(seconds: float, name: str = "1", text: str = "Stretch") -> Timer:
    """A timer that rings in so many seconds."""
    return Timer(name, round(time.time() + seconds, 3), text, "ana's scope", "stretch")


def commit(rig, change: TurnChange, token: str = "w1"):
    """A turn that changes this. Returns its lease and what is next."""
    rig.accept(turn())
    held, work = lease(rig, token)
    return held, rig.mailbox.commit(held, work, change)


def set_timers(rig, *timers: Timer) -> None:
    """A turn that sets these, and lets the lane go."""
    held, work = commit(rig, TurnChange(timers=timers))
    assert (work, rig.mailbox.release(held)) == (None, None)


def said(rig, token: str = "w2") -> list[str]:
    """Everything that is to be sent, sent."""
    held, work = lease(rig, token)
    texts = []
    while isinstance(work, QueuedReply):
        texts.append(work.delivery(held).reply.text)
        work = rig.outbox.mark_delivered(held, work, receipt="m")
    rig.mailbox.release(held, hand_over=True)
    return texts


def asked(rig, **fields):
    """A question whose end is to be told, delivered. Returns the lease, the action, and what is next."""
    rig.accept(turn("delete"))
    held, work = lease(rig)
    change, action = propose(rig, **fields)
    arm = replace(change.new_actions[0], notice=outbox_entry(CHAT, Reply("Nobody answered")))
    reply = rig.mailbox.commit(held, work, replace(change, new_actions=(arm,)))
    return held, action, rig.outbox.mark_delivered(held, reply, receipt="m1")


def test_timer_rings_once(rig):
    """It is not due before its time, wakes the lane then, is said once, and leaves nothing behind."""
    set_timers(rig, timer(HOUR))
    rig.pass_time(HOUR - 10)
    assert rig.overdue() == []
    rig.pass_time(11)
    assert (rig.overdue(), rig.overdue()) == ([CHAT.id], [])
    assert said(rig) == ["Stretch"]
    rig.pass_time(DAY)
    assert rig.overdue() == []


def test_two_reapers_ring_a_timer_once(rig):
    """The second finds it gone: ringing and forgetting are one step."""
    set_timers(rig, timer(HOUR))
    rig.pass_time(HOUR + 1)
    rig.overdue()
    rig.pass_time(6)  # nobody came: the wake-up is repeated, the reminder is not
    assert rig.overdue() == [CHAT.id]
    assert said(rig) == ["Stretch"]


def test_worker_killed_between_ring_and_sending_loses_nothing(rig):
    """What rang is in the outbox, and is carried by the next worker like any reply."""
    set_timers(rig, timer(HOUR))
    rig.pass_time(HOUR + 1)
    rig.overdue()
    lease(rig, "killed")
    rig.end_lease()
    assert rig.overdue() == [CHAT.id]
    assert said(rig, "w3") == ["Stretch"]


def test_message_is_answered_at_once_although_a_timer_waits(rig):
    """A timer tomorrow is no sign that somebody is coming now."""
    set_timers(rig, timer(DAY))
    rig.accept(turn("hello"))
    rig.pass_time(6)  # longer than a wake-up takes to be repeated
    assert rig.overdue() == [CHAT.id]
    assert lease(rig, "w2")[1].turn.text == "hello"


def test_message_beside_a_timer_of_this_moment_is_answered_at_once(rig):
    """Nor is one that rings in a few seconds, or rang already."""
    set_timers(rig, timer(HOUR))
    rig.pass_time(HOUR + 1)
    rig.accept(turn("hello"))
    rig.pass_time(6)
    assert rig.overdue() == [CHAT.id]
    held, work = lease(rig, "w2")
    assert work.delivery(held).reply.text == "Stretch"
    assert rig.outbox.mark_delivered(held, work, receipt="m").turn.text == "hello"


def test_new_message_does_not_hurry_a_parked_lane_with_a_timer(rig):
    """The platform asked to wait, whatever else the lane is due for."""
    set_timers(rig, timer(DAY))
    held, reply = commit(rig, TurnChange(replies=((Reply("hi"), ""),)), "w2")
    rig.outbox.postpone(held, reply, 30)
    rig.accept(turn())
    rig.pass_time(20)
    assert rig.overdue() == []


def test_message_to_a_lane_that_is_held_wakes_nobody(rig):
    """Its holder looks before it lets go."""
    held, work = commit(rig, TurnChange())
    assert work is None
    rig.accept(turn("hello"))
    rig.pass_time(6)
    assert rig.overdue() == []
    assert rig.mailbox.release(held).turn.text == "hello"


def test_messages_do_not_put_a_wake_up_off(rig):
    """However often somebody writes whose wake-up was lost."""
    set_timers(rig, timer(DAY))
    rig.accept(turn("a"))
    rig.pass_time(4)
    rig.accept(turn("b"))
    rig.pass_time(2)
    assert rig.overdue() == [CHAT.id]


def test_conversation_that_only_has_a_timer_is_no_crowd(make_rig):
    """What waits for tomorrow is no work that keeps others out."""
    limits = Crowded()
    object.__setattr__(limits, "conversations", 1)
    rig = make_rig(limits=limits)
    set_timers(rig, timer(DAY))
    assert rig.accept(turn()).outcome == "new"


def test_timer_is_there_after_other_turns(rig):
    """Every turn that lets the lane go leaves it due for the timer."""
    set_timers(rig, timer(HOUR))
    held, _ = commit(rig, TurnChange(), "w2")
    rig.mailbox.release(held)
    rig.pass_time(HOUR + 1)
    assert rig.overdue() == [CHAT.id]


def test_timer_rings_in_a_lane_that_is_held(rig):
    """Its holder hears of it when it lets go, and sends it."""
    set_timers(rig, timer(1))
    held, _ = commit(rig, TurnChange(), "w2")
    rig.pass_time(2)
    assert rig.overdue() == []
    assert rig.mailbox.release(held).delivery(held).reply.text == "Stretch"


def test_timer_rings_when_a_busy_lane_is_handed_over(rig):
    """People who never stop writing hear it too, before their next answer."""
    set_timers(rig, timer(1))
    rig.accept(turn("a"))
    held, _ = lease(rig, "w2")
    rig.pass_time(2)
    rig.mailbox.release(held, hand_over=True)
    assert said(rig, "w3") == ["Stretch"]


def test_timer_of_the_past_rings_at_once(rig):
    """Whoever set it was slow: it is said when the turn is done."""
    held, _ = commit(rig, TurnChange(timers=(timer(-HOUR),)))
    assert rig.mailbox.release(held).delivery(held).reply.text == "Stretch"


def test_timers_ring_in_their_order(rig):
    """However they were set."""
    set_timers(rig, timer(20, "1", "B"), timer(10, "2", "A"), timer(HOUR, "3", "C"))
    rig.pass_time(30)
    rig.overdue()
    assert said(rig) == ["A", "B"]
    rig.pass_time(HOUR)
    assert rig.overdue() == [CHAT.id]
    assert said(rig) == ["C"]


def test_clock_that_is_set_back_rings_nothing_twice(rig):
    """What rang is gone; what did not waits for its time to come again."""
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


def test_silenced_timer_does_not_ring(rig):
    """Cancelled just before its time, it is gone, and the lane is not due for it."""
    set_timers(rig, timer(HOUR))
    held, _ = commit(rig, TurnChange(silenced=("1", "never set")), "w2")
    rig.mailbox.release(held)
    rig.pass_time(HOUR + 1)
    assert rig.overdue() == []


def test_timer_silenced_after_it_rang_is_said_all_the_same(rig):
    """What is in the outbox is on its way."""
    set_timers(rig, timer(1))
    rig.accept(turn())
    held, work = lease(rig, "w2")
    rig.pass_time(20)
    assert rig.overdue() == [CHAT.id]
    reply = rig.mailbox.commit(held, work, TurnChange(silenced=("1",)))
    assert reply.delivery(held).reply.text == "Stretch"


def test_commit_sent_twice_sets_a_timer_once(rig):
    """Also when it rang in between."""
    rig.accept(turn())
    held, work = lease(rig)
    change = TurnChange(timers=(timer(-1),))
    rig.mailbox.commit(held, work, change)
    reply = rig.mailbox.release(held)
    rig.mailbox.commit(held, work, change)
    assert rig.outbox.mark_delivered(held, reply, receipt="m") is None
    assert rig.mailbox.release(held) is None
    rig.pass_time(HOUR)
    assert rig.overdue() == []


def test_commit_that_is_refused_sets_no_timer(rig):
    """All or nothing."""
    held, action, _ = asked(rig)
    rig.accept(turn("b"))
    work = rig.mailbox.release(held)
    with pytest.raises(StaleTurn):
        rig.mailbox.commit(held, work, replace(propose(rig)[0], timers=(timer(-1),)))
    rig.mailbox.commit(held, work, TurnChange())
    assert (rig.mailbox.release(held), look(rig).pid) == (None, action.pending_action_id)


def test_one_timer_too_many_is_refused_with_its_turn(rig):
    """A conversation has MAX_TIMERS; one that is silenced makes room."""
    set_timers(rig, *(timer(HOUR, str(number)) for number in range(MAX_TIMERS)))
    rig.accept(turn())
    held, work = lease(rig, "w2")
    with pytest.raises(StaleTurn):
        rig.mailbox.commit(held, work, TurnChange(timers=(timer(HOUR, "more"),)))
    rig.mailbox.commit(held, work, TurnChange(timers=(timer(HOUR, "more"),), silenced=("7",)))


def test_turn_knows_the_timers_of_its_conversation(rig):
    """The next one first, as they were set."""
    late, soon = timer(DAY, "1"), timer(HOUR, "2", "Ünïcode: {braces} 'quotes'")
    set_timers(rig, late, soon)
    rig.accept(turn())
    _, work = lease(rig, "w2")
    assert isinstance(work, QueuedTurn)
    assert work.timers == (soon, late)


def test_unanswered_question_ends_and_says_so(rig):
    """When its window closes, once, with an entry in the audit log and no yes to come."""
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
    """It waited while its worker was dead: the end of the window waits for it."""
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


def test_end_of_a_window_waits_for_the_turn_that_is_worked_on_and_no_longer(rig):
    """A turn that decided nothing: the notice follows it."""
    held, _, _ = asked(rig)
    rig.accept(turn("b", user="bob"))
    work = rig.mailbox.release(held)
    rig.pass_time(100)
    assert rig.mailbox.commit(held, work, TurnChange()) is None
    assert rig.mailbox.release(held).delivery(held).reply.text == "Nobody answered"


def closing(rig, receipt: str = "m1", **notices: str) -> list[tuple[str, str]]:
    """A question nobody answers, delivered as this message: what is said at its end, and in the place of what."""
    rig.accept(turn("delete"))
    held, work = lease(rig)
    change, _ = propose(rig)
    ending = outbox_entry(CHAT, Reply("Exp\u00edred \U0001f600", optional=True, language="es"))
    arm = replace(change.new_actions[0], ending=ending, **notices)
    reply = rig.mailbox.commit(held, work, replace(change, new_actions=(arm,)))
    assert rig.outbox.mark_delivered(held, reply, receipt=receipt) is None
    rig.mailbox.release(held)
    rig.pass_time(61)
    rig.overdue()
    return replies(rig)


def replies(rig) -> list[tuple[str, str]]:
    """All that is to be sent, and in the place of what."""
    held, work = lease(rig, "w2")
    found = []
    while isinstance(work, QueuedReply):
        reply = work.delivery(held).reply
        assert (reply.optional, reply.language) == ((True, "es") if reply.edits else (False, ""))
        found.append((reply.text, reply.edits))
        work = rig.outbox.mark_delivered(held, work, receipt="m")
    rig.mailbox.release(held, hand_over=True)
    return found


def test_unanswered_question_is_closed_where_it_was_asked(rig):
    """Silently, where nothing else is to be said; its window is over then."""
    assert closing(rig) == [("Exp\u00edred \U0001f600", "m1")]
    assert (look(rig).state, rig.audit()[-1]["event"]) == ("expired", "expired")
    assert rig.overdue() == []


def test_unanswered_question_is_closed_before_that_is_told(rig):
    """The buttons go first."""
    notice = outbox_entry(CHAT, Reply("Nobody answered"))
    assert closing(rig, notice=notice) == [("Exp\u00edred \U0001f600", "m1"), ("Nobody answered", "")]


def test_question_nobody_knows_the_message_of_is_not_closed(rig):
    """What is told of its end is told."""
    assert closing(rig, "", notice=outbox_entry(CHAT, Reply("Nobody answered"))) == [("Nobody answered", "")]


def test_message_that_asked_is_named_exactly(rig):
    """Whatever its platform calls it."""
    assert [edits for _, edits in closing(rig, 'odd"\\\u00e9/')] == ['odd"\\\u00e9/']


def test_turn_beside_the_end_of_a_question_knows_the_timers(rig):
    """One that has nothing to say but the end is none of anybody's."""
    rig.accept(turn("delete"))
    held, work = lease(rig)
    change, _ = propose(rig)
    arm = replace(change.new_actions[0], ending=outbox_entry(CHAT, Reply("Expired", optional=True)))
    rig.outbox.mark_delivered(held, rig.mailbox.commit(held, work, replace(change, new_actions=(arm,))), receipt="m1")
    rig.accept(turn("b", user="bob"))
    work = rig.mailbox.release(held)
    assert [(timer.text, timer.user) for timer in work.timers] == [("", "")]


def test_decided_question_leaves_no_timer(rig):
    """Nobody is woken for what has nothing to say any more."""
    held, action, _ = asked(rig)
    rig.accept(turn("no"))
    work = rig.mailbox.release(held)
    rig.mailbox.commit(held, work, TurnChange(transition=Transition(action.pending_action_id, ("shown",), "cancelled")))
    rig.mailbox.release(held)
    rig.accept(turn("next"))
    assert lease(rig, "w2")[1].timers == ()


@pytest.mark.parametrize("to", ["cancelled", "expired"])
def test_question_that_was_answered_has_no_notice(rig, to: str):
    """Whatever was decided."""
    held, action, _ = asked(rig)
    rig.accept(turn("no"))
    work = rig.mailbox.release(held)
    rig.mailbox.commit(held, work, TurnChange(transition=Transition(action.pending_action_id, ("shown",), to)))
    rig.mailbox.release(held)
    rig.pass_time(100)
    rig.overdue()
    assert said(rig) == []


def test_next_question_takes_the_notice_over(rig):
    """Of a scope one action waits at a time: the one that was dropped has nothing to say."""
    held, first, _ = asked(rig)
    rig.accept(turn("another"))
    work = rig.mailbox.release(held)
    change, _ = propose(rig)
    arm = replace(change.new_actions[0], notice=outbox_entry(CHAT, Reply("Nobody answered the second")))
    drop = Transition(first.pending_action_id, ("shown",), "cancelled")
    rig.outbox.mark_delivered(
        held, rig.mailbox.commit(held, work, replace(change, new_actions=(arm,), transition=drop)), receipt="m"
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
    rig.outbox.mark_delivered(held, rig.mailbox.commit(held, work, replace(change, new_actions=(arm,))), dead="blocked")
    rig.mailbox.release(held)
    rig.pass_time(100)
    assert rig.overdue() == []


def test_late_truth_is_told_although_a_timer_waits(rig):
    """A correction that no turn commits brings somebody now."""
    held, action, _ = asked(rig)
    rig.accept(turn("yes", event="y"))
    work = rig.mailbox.release(held)
    claim = Claim(turn().scope, action.pending_action_id, "y", "text", held, work.seq)
    rig.repository.claim(claim, look(rig))
    rig.repository.start(claim, look(rig), "try")
    rig.mailbox.commit(held, work, TurnChange(timers=(timer(DAY),)))  # ends what it did not settle: unknown
    rig.mailbox.release(held)
    rig.repository.finish(claim, "try", ActionResult("done", "done", "", outbox_entry(CHAT, Reply("It was done"))))
    assert rig.overdue() == [CHAT.id]
    assert said(rig) == ["It was done"]


def test_lane_forgotten_before_its_timer_still_rings(redis_client):
    """A timer may be further away than an idle lane is kept."""
    rig = RedisRig(redis_client)
    set_timers(rig, timer(300 * DAY))
    kept = [redis_client.pttl(f"{rig.shard}:{key}:{CHAT.id}") / 1000 for key in ("timers", "timer")]
    assert min(kept) > 320 * DAY
    redis_client.delete(f"{rig.shard}:lane:{CHAT.id}")
    redis_client.zincrby(f"{rig.shard}:due", -round(301 * DAY * 1000), CHAT.id)
    redis_client.zincrby(f"{rig.shard}:timers:{CHAT.id}", -round(301 * DAY * 1000), "1")
    assert rig.overdue() == [CHAT.id]
    assert said(rig) == ["Stretch"]


def test_nothing_is_left_when_a_timer_has_rung(redis_client):
    """Both its keys are gone, and the outbox it rang into expires."""
    rig = RedisRig(redis_client)
    set_timers(rig, timer(1))
    rig.pass_time(2)
    rig.overdue()
    assert not list(redis_client.scan_iter(f"{rig.shard}:timer*"))
    assert redis_client.pttl(f"{rig.shard}:out:{CHAT.id}") > 0
    assert json.loads(redis_client.lindex(f"{rig.shard}:out:{CHAT.id}", 0).split(" ", 2)[2])["to"] == [
        "chat",
        "room",
        "",
    ]
