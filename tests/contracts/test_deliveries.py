"""Deliveries: what both outboxes promise about pace, receipts, the dead, and what waits."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf

import pytest

from sayso.channels.types import Button, Conversation, Delivery, Reply
from sayso.pending.turns.change import Timer, TurnChange
from sayso.pending.turns.queued import LeaseLost
from sayso.workers.outbox import KEEP_HELD_SECONDS, LATE_SECONDS, NotRepeatable
from tests.contracts.rigs import CHAT, RedisRig, turn
from tests.contracts.test_conversations import lease, look, propose, shown

HALL = Conversation("chat", "hall")


def saying(*replies: Reply) -> TurnChange:
    """A turn that says so much."""
    return TurnChange(replies=tuple((reply, "") for reply in replies or (Reply("hi"),)))


def said(rig, *replies: Reply):
    """A turn was answered: its lease and the first reply."""
    rig.accept(turn())
    held, work = lease(rig)
    return held, rig.mailbox.commit(held, work, saying(*replies))


def said_in_hall(rig):
    """The same in another conversation of the channel."""
    rig.mailbox.accept(replace(turn(), conversation=HALL))
    held, work = rig.mailbox.lease(HALL.id, "h1")
    return held, rig.mailbox.commit(held, work, saying())


def texts(rig, held, reply) -> list[str]:
    """All that goes out."""
    sent = []
    while reply:
        sent.append(reply.delivery(held).reply.text)
        reply = rig.outbox.mark_delivered(held, reply, receipt="m")
    return sent


def states(rig) -> list[str]:
    """What became of the room's deliveries."""
    return [fate.state for fate in rig.deliveries.statuses(CHAT.id)[0]]


def bury(rig, *, end="dead", doubtful=False) -> str:
    """A reply is given up: its id."""
    held, reply = said(rig)
    if doubtful:
        rig.outbox.postpone(held, reply, 1, "suspect")
        rig.pass_time(2)
        held, reply = lease(rig, "w2")
    rig.outbox.mark_delivered(held, reply, dead="Refused: blocked", end=end)
    rig.mailbox.release(held)
    return f"{CHAT.id}#{reply.number}"


def test_dead_reply_is_put_back_once(rig):
    """However often it is asked for: the same new delivery, at the end of its outbox, and somebody comes for it."""
    dead = bury(rig)
    assert rig.deliveries.retry(dead) == rig.deliveries.retry(dead) == f"{CHAT.id}#2"
    rig.pass_time(6)
    assert (rig.overdue(), rig.dead(), states(rig)) == ([CHAT.id], 0, ["retried"])
    held, again = lease(rig, "w3")
    assert (again.delivery(held).reply.text, again.attempt, again.suspect) == ("hi", 1, False)
    assert rig.outbox.mark_delivered(held, again, receipt="m") is None


@pytest.mark.parametrize("doubtful", [{"doubtful": True}, {"end": "doubtful"}])
def test_dead_reply_that_may_have_arrived_is_put_back_marked(rig, doubtful):
    """Whether an earlier try fell silent or the last one."""
    dead = bury(rig, **doubtful)
    assert rig.deliveries.undelivered("dead")[0].doubtful
    rig.deliveries.retry(dead)
    assert lease(rig, "w3")[1].suspect


def test_question_is_not_put_back(rig):
    """Its action ended with it: nobody could answer it any more."""
    rig.accept(turn("delete"))
    held, work = lease(rig)
    rig.outbox.mark_delivered(held, rig.mailbox.commit(held, work, propose(rig)[0]), dead="Refused: blocked")
    with pytest.raises(NotRepeatable, match="asked for a yes"):
        rig.deliveries.retry(f"{CHAT.id}#1")
    assert rig.dead() == 1


def test_reply_that_arrived_after_all_is_not_put_back(rig):
    """The platform's word came after we gave up."""
    dead = bury(rig, end="doubtful")
    assert rig.deliveries.report(dead, "m1", "delivered") == "delivered"
    for _ in range(2):
        with pytest.raises(NotRepeatable, match="was sent"):
            rig.deliveries.retry(dead)


def test_dead_edit_is_put_back_as_a_message_of_its_own(rig):
    """What it was to change is far above by now."""
    held, reply = said(rig, Reply("done", edits="m7"))
    rig.outbox.mark_delivered(held, reply, dead="Refused: gone")
    rig.deliveries.retry(f"{CHAT.id}#1")
    assert rig.mailbox.release(held).delivery(held).reply == Reply("done")


def test_dead_edit_that_nobody_misses_is_not_put_back(rig):
    """It took buttons from a message that is there already."""
    held, reply = said(rig, Reply("Delete it?", edits="m7", optional=True))
    rig.outbox.mark_delivered(held, reply, dead="Refused: gone")
    with pytest.raises(NotRepeatable, match="nothing is missing"):
        rig.deliveries.retry(f"{CHAT.id}#1")


@pytest.mark.parametrize("name", ["chat:none#1", "no id", "#", "chat:x#y"])
def test_what_is_not_dead_is_not_put_back(rig, name):
    """Nor anything that is no delivery."""
    with pytest.raises(NotRepeatable):
        rig.deliveries.retry(name)


def test_old_progress_that_is_put_back_replaces_nothing(rig):
    """It comes after the newer one."""
    held, reply = said(rig, Reply("10 %", collapse="p"))
    rig.outbox.mark_delivered(held, reply, dead="Refused: blocked")
    rig.accept(turn())
    reply = rig.mailbox.commit(held, rig.mailbox.release(held), saying(Reply("x"), Reply("20 %", collapse="p")))
    rig.deliveries.retry(f"{CHAT.id}#1")
    assert texts(rig, held, reply) == ["x", "20 %", "10 %"]


def test_dead_reply_keeps_what_an_operator_needs(rig):
    """Why, when, after how many tries, and its words."""
    held, reply = said(rig, Reply("hi", (Button("Yes", "y"),)))
    rig.outbox.mark_delivered(held, reply, dead="Refused: blocked")
    (fate,) = rig.deliveries.undelivered("dead")
    assert (fate.id, fate.reason, fate.tries, fate.text) == (f"{CHAT.id}#1", "Refused: blocked", 1, "hi")
    assert fate.at > 1_700_000_000


def test_closed_address_is_marked_until_its_person_writes(rig):
    """Blocked, and then heard of again: the mark is gone."""
    bury(rig, end="closed")
    assert rig.deliveries.statuses(CHAT.id)[1] == "Refused: blocked"
    rig.accept(turn())
    assert rig.deliveries.statuses(CHAT.id)[1] == ""


def test_closed_address_is_told_to_whoever_would_send_there(rig):
    """Nobody wrote since: nothing more is sent there, until somebody does."""
    bury(rig, end="closed")
    rig.deliveries.retry(f"{CHAT.id}#1")
    held, reply = lease(rig, "w2")
    assert (reply.closed, rig.mailbox.release(held, hand_over=True)) == ("Refused: blocked", None)
    rig.accept(turn())
    assert lease(rig, "w3")[1].closed == ""


def test_address_that_was_closed_for_a_forwarded_reply_is_tried_again(rig):
    """Nobody ever wrote there: nobody could reopen it by writing."""
    rig.outbox.forward(Delivery("chat:x#1", CHAT, Reply("hi")))
    held, reply = lease(rig)
    rig.outbox.mark_delivered(held, reply, dead="AddressClosed: no member", end="closed")
    rig.outbox.forward(Delivery("chat:x#2", CHAT, Reply("hi")))
    assert rig.mailbox.release(held).closed == ""


def test_platform_says_that_an_address_closed_and_opened(rig):
    """platforms.md 2.4: the bot was blocked, and let in again: nobody has to try."""
    rig.deliveries.close(CHAT.id, "blocked")
    held, reply = said(rig)
    assert (reply.closed, rig.deliveries.statuses(CHAT.id)[1]) == ("", "")  # somebody wrote since
    for reason in ("blocked", ""):
        rig.deliveries.close(CHAT.id, reason)
        assert (rig.mailbox.release(held).closed, rig.deliveries.statuses(CHAT.id)[1]) == (reason, reason)


def test_what_is_said_late_of_an_address_is_not_believed_of_whoever_just_wrote(rig):
    """platforms.md 1.3: a callback tells of a message sent earlier; its person may have come back meanwhile."""
    held, reply = said(rig)
    rig.deliveries.close(CHAT.id, "gone", late=True)
    assert rig.mailbox.release(held).closed == ""
    rig.outbox.mark_delivered(held, reply, receipt="m1")
    rig.pass_time(LATE_SECONDS + 1)
    rig.deliveries.close(CHAT.id, "gone", late=True)
    assert rig.deliveries.statuses(CHAT.id)[1] == "gone"


def test_what_is_said_late_of_an_address_is_not_believed_while_a_turn_waits(rig):
    """However long it waits."""
    rig.accept(turn())
    rig.pass_time(LATE_SECONDS + 1)
    rig.deliveries.close(CHAT.id, "gone", late=True)
    assert rig.deliveries.statuses(CHAT.id)[1] == ""


def test_whoever_was_not_let_in_has_written_all_the_same(rig):
    """What is said to a stranger, or to one who is refused, answers them within the 24 hours."""
    assert rig.mailbox.notify(replace(turn(), ephemeral=True), Reply("your code is 1234"))
    _, reply = lease(rig)
    assert reply.silence == pytest.approx(0, abs=2)
    assert Reply.from_json(json.loads(reply.text)["reply"]).only_for == "ana", "as what they wrote was"


def test_held_reply_is_tried_again_once_somebody_wrote_who_was_refused(rig):
    """They wrote, so that the window is open, and no mark of a closed address is true any more."""
    on_hold(rig)
    rig.pass_time(2 * 24 * 3600)
    rig.deliveries.close(CHAT.id, "blocked")
    assert rig.mailbox.notify(turn(), Reply("too fast"))
    rig.pass_time(6)
    assert rig.overdue() == [CHAT.id]
    held, reply = lease(rig, "w2")
    assert (reply.held, reply.closed, reply.silence) == (None, "", pytest.approx(6, abs=2))
    assert (texts(rig, held, reply), rig.deliveries.undelivered("held")) == (["hi", "too fast"], [])


def test_address_closes_to_nobody_whose_turn_waits(rig):
    """They wrote while the reply was on its way, or while its platform told: the answer to that is tried."""
    held, reply = said(rig)
    rig.accept(turn("back"))
    work = rig.outbox.mark_delivered(held, reply, dead="AddressClosed: blocked", end="closed")
    rig.deliveries.close(CHAT.id, "blocked")
    assert rig.mailbox.commit(held, work, saying()).closed == ""


@pytest.mark.parametrize("action_id", ["Abc", "-bc"])
def test_question_of_a_channel_that_is_down_is_kept_for_as_long_as_it_waits(redis_client, action_id: str):
    """Its operator may need more than the two days for which a record is kept. An id may begin with a hyphen."""
    rig = RedisRig(redis_client)
    rig.accept(turn())
    held, work = lease(rig)
    reply = rig.mailbox.commit(held, work, propose(rig, pending_action_id=action_id)[0])
    for _ in range(2):
        rig.outbox.postpone(held, reply, 60, "down")
        rig.pass_time(61)
        held, reply = lease(rig, "w2")
    kept = [redis_client.ttl(key) for key in redis_client.scan_iter(f"{rig.shard}:pending:*")]
    assert kept
    assert min(kept) > KEEP_HELD_SECONDS


def test_address_that_nobody_knows_is_not_kept(redis_client):
    """Whoever is told of all chats that throw the bot out must not keep something for ever of each."""
    RedisRig(redis_client).deliveries.close(CHAT.id, "kicked")
    assert not [key for key in redis_client.scan_iter() if "lane" in key]


def test_channel_that_is_down_is_silent_and_blames_no_reply(rig):
    """Nobody's try counts, and other conversations of it wait too; then this one is the first."""
    held, reply = said(rig)
    rig.outbox.postpone(held, reply, 60, "down")
    assert said_in_hall(rig)[1].wait == pytest.approx(60, abs=2)
    rig.pass_time(30)
    assert rig.mailbox.lease(CHAT.id, "early") is None
    rig.pass_time(31)
    assert rig.overdue()[:1] == [CHAT.id]
    again = lease(rig, "w2")[1]
    assert (again.attempt, again.suspect, again.wait or 0.0) == (1, False, 0.0)


def on_hold(rig, *replies: Reply):
    """A reply whose person must write first."""
    held, reply = said(rig, *replies)
    rig.outbox.postpone(held, reply, 2, "held", "WindowClosed: 24 hours")
    return reply


def test_held_reply_wakes_nobody_until_somebody_writes(rig):
    """Then it is tried again at once, before the turn that came in is worked on."""
    on_hold(rig)
    rig.pass_time(6 * 24 * 3600)
    assert rig.overdue() == []
    rig.accept(turn("back"))
    rig.pass_time(6)
    assert rig.overdue() == [CHAT.id]
    held, reply = lease(rig, "w2")
    assert (reply.held, reply.attempt, reply.suspect) == (None, 1, False)
    assert rig.outbox.mark_delivered(held, reply, receipt="m").turn.text == "back"


def test_held_reply_is_due_when_nobody_wrote_for_a_week(rig):
    """It says for how long it has waited: whoever comes gives it up."""
    on_hold(rig)
    rig.pass_time(KEEP_HELD_SECONDS + 1)
    assert rig.overdue() == [CHAT.id]
    held, reply = lease(rig, "w2")
    assert reply.held >= KEEP_HELD_SECONDS
    assert rig.outbox.mark_delivered(held, reply, dead="WindowClosed", let_go=True) is None
    assert (rig.deliveries.undelivered("held"), rig.dead()) == ([], 1)


def test_reply_held_again_waits_no_longer_for_it(rig):
    """Whoever came for another reason found it held, and for how long, and does not make it doubtful."""
    on_hold(rig)
    rig.pass_time(3600)
    held, reply = lease(rig, "w2")
    assert reply.held == pytest.approx(3600, abs=60)
    rig.end_lease()
    held, reply = lease(rig, "w3")
    rig.outbox.postpone(held, reply, 0, "held")
    assert not reply.suspect
    assert rig.overdue() == []
    rig.pass_time(KEEP_HELD_SECONDS - 3600)
    assert rig.overdue() == [CHAT.id]


def test_reply_is_not_held_where_a_turn_waits(rig):
    """It came in meanwhile, or the platform contradicts itself: it is tried again soon, and that counts."""
    held, reply = said(rig)
    rig.accept(turn())
    rig.outbox.postpone(held, reply, 2, "held", "WindowClosed: 24 hours")
    assert rig.mailbox.lease(CHAT.id, "early") is None
    rig.pass_time(3)
    assert (rig.overdue(), rig.deliveries.undelivered("held")) == ([CHAT.id], [])
    assert lease(rig, "w2")[1].attempt == 2


def test_held_reply_is_shown_to_the_operator_while_it_waits(rig):
    """In the list and with its conversation, with the reason; once somebody writes it does not wait any more."""
    reply = on_hold(rig)
    (fate,), _ = rig.deliveries.statuses(CHAT.id)
    assert (fate.id, fate.state, fate.reason) == (f"{CHAT.id}#{reply.number}", "held", "WindowClosed: 24 hours")
    assert rig.deliveries.undelivered("held") == [fate]
    rig.accept(turn())
    assert (rig.deliveries.statuses(CHAT.id)[0], rig.deliveries.undelivered("held")) == ([], [])


def test_timer_rings_beside_a_held_reply(rig):
    """Somebody comes for it, and the reply stays held."""
    rig.accept(turn())
    held, work = lease(rig)
    change = replace(saying(), timers=(Timer("t", work.received_at + 60, "ring"),))
    reply = rig.mailbox.commit(held, work, change)
    rig.outbox.postpone(held, reply, 2, "held", "WindowClosed: 24 hours")
    rig.pass_time(61)
    assert rig.overdue() == [CHAT.id]
    held, reply = lease(rig, "w2")
    assert (reply.number, reply.held is not None) == (1, True)
    rig.outbox.postpone(held, reply, 0, "held")
    rig.pass_time(3600)
    assert rig.overdue() == []


def test_held_question_stays_open_to_be_shown(rig):
    """Its window opens when it is shown at last, however much later."""
    rig.accept(turn("delete"))
    held, work = lease(rig)
    change, _ = propose(rig)
    rig.outbox.postpone(held, rig.mailbox.commit(held, work, change), 2, "held", "WindowClosed")
    rig.pass_time(3 * 24 * 3600)
    assert look(rig).state == "armed"
    rig.accept(turn())
    held, reply = lease(rig, "w2")
    rig.outbox.mark_delivered(held, reply, receipt="m")
    assert look(rig).state == "shown"


@pytest.mark.parametrize(("waited", "silence"), [(0, 100), (50, 150)])
def test_delivery_knows_since_when_nobody_wrote(rig, waited, silence):
    """platforms.md 1.3: by the server's clock; what waited elsewhere was written so much earlier."""
    rig.mailbox.accept(turn(), waited_seconds=waited)
    held, work = lease(rig)
    rig.mailbox.commit(held, work, saying())
    rig.mailbox.release(held, hand_over=True)
    rig.pass_time(100)
    held, reply = lease(rig, "w2")
    assert reply.delivery(held).silence == pytest.approx(silence, abs=5)


def test_silence_begins_with_the_last_that_was_written(rig):
    """A turn that waited elsewhere for long does not make it longer."""
    rig.accept(turn())
    rig.mailbox.accept(turn(), waited_seconds=3600)
    held, work = lease(rig)
    assert rig.mailbox.commit(held, work, saying()).silence == pytest.approx(0, abs=5)


def test_where_nobody_ever_wrote_it_is_silent_for_ever(rig):
    """Others forward there."""
    rig.outbox.forward(Delivery("chat:x#1", CHAT, Reply("hi")))
    assert lease(rig)[1].silence == inf


def test_lane_of_an_older_version_does_not_know_its_silence(redis_client):
    """It was not written down before."""
    rig = RedisRig(redis_client)
    rig.accept(turn())
    redis_client.hdel(f"{rig.shard}:lane:{CHAT.id}", "heard")
    held, work = lease(rig)
    assert rig.mailbox.commit(held, work, saying()).silence == -1


def test_held_question_outlives_its_record(redis_client):
    """The record is kept for two days, the reply for a week: the question must not lose its action meanwhile."""
    rig = RedisRig(redis_client)
    rig.accept(turn("delete"))
    held, work = lease(rig)
    change, action = propose(rig)
    rig.outbox.postpone(held, rig.mailbox.commit(held, work, change), 2, "held", "WindowClosed")
    names = (f"pending:{action.pending_action_id}", f"live:{CHAT.id}:{work.user}")
    assert all(redis_client.ttl(f"{rig.shard}:{name}") > KEEP_HELD_SECONDS for name in names)


def test_receipt_is_kept_with_the_delivery(rig):
    """Under its number, with the tries it took."""
    held, reply = said(rig)
    rig.outbox.mark_delivered(held, reply, receipt="m1")
    (fate,), _ = rig.deliveries.statuses(CHAT.id)
    assert (fate.id, fate.state, fate.receipt, fate.tries) == (f"{CHAT.id}#1", "sent", "m1", 1)


def test_only_the_last_deliveries_are_kept(rig):
    """Fifty of a conversation."""
    texts(rig, *said(rig, *(Reply(str(number)) for number in range(60))))
    fates, _ = rig.deliveries.statuses(CHAT.id)
    assert [fate.id.rpartition("#")[2] for fate in fates] == [str(number) for number in range(11, 61)]


def test_later_failure_turns_sent_into_failed(rig):
    """Twilio took it and could not deliver it: the operator sees that, once."""
    held, reply = said(rig)
    rig.outbox.mark_delivered(held, reply, receipt="m1")
    for _ in range(2):
        assert rig.deliveries.report(f"{CHAT.id}#1", "m1", "undelivered", "error 63016") == "failed"
    (fate,) = rig.deliveries.undelivered("failed")
    assert (fate.id, fate.reason, states(rig)) == (f"{CHAT.id}#1", "error 63016", ["failed"])


def test_reports_count_in_any_order(rig):
    """platforms.md 1.1: read before delivered before sent: read it is."""
    held, reply = said(rig)
    rig.outbox.mark_delivered(held, reply, receipt="m1")
    kept = [rig.deliveries.report(f"{CHAT.id}#1", "m1", status) for status in ("read", "delivered", "sent", "odd")]
    assert (kept, states(rig)) == (["read", "read", "read", ""], ["read"])


@pytest.mark.parametrize(("first", "second"), [("failed", "delivered"), ("delivered", "failed")])
def test_of_one_sent_twice_the_copy_that_arrived_counts(rig, first, second):
    """The other copy's failure takes nothing away."""
    held, reply = said(rig)
    rig.outbox.mark_delivered(held, reply, receipt="m1")
    copies = ("m1", "m2") if first == "failed" else ("m2", "m1")
    rig.deliveries.report(f"{CHAT.id}#1", copies[0], first)
    assert rig.deliveries.report(f"{CHAT.id}#1", copies[1], second) == "delivered"


def test_copy_that_is_sent_behind_the_failure_of_another_counts(rig):
    """A worker died after it had sent one, which failed; of the second its platform tells by itself."""
    held, reply = said(rig)
    rig.deliveries.report(f"{CHAT.id}#1", "m1", "failed")
    rig.outbox.mark_delivered(held, reply, receipt="m2")
    assert states(rig) == ["sent"]
    assert rig.deliveries.report(f"{CHAT.id}#1", "m2", "failed") == "failed"


def test_report_may_come_before_the_worker_says_sent(rig):
    """platforms.md 1.1: webhooks are fast: nothing that was reported is overwritten."""
    held, reply = said(rig)
    assert rig.deliveries.report(f"{CHAT.id}#1", "m1", "delivered") == "delivered"
    rig.outbox.mark_delivered(held, reply, receipt="m1")
    assert states(rig) == ["delivered"]


def test_report_of_an_unknown_delivery_is_dropped(rig):
    """A number that was never said, or too long ago."""
    said(rig)
    assert [rig.deliveries.report(f"{CHAT.id}#{number}", "m", "failed") for number in (2, 99)] == ["", ""]
    assert rig.deliveries.undelivered("failed") == []


def test_ambiguous_reply_that_the_platform_reported_has_arrived(rig):
    """Its answer was lost, its status came: the next holder has the receipt and need not send it again."""
    held, reply = said(rig)
    rig.outbox.postpone(held, reply, 5, "suspect")
    rig.deliveries.report(f"{CHAT.id}#1", "m1", "sent")
    rig.pass_time(6)
    held, again = lease(rig, "w2")
    assert (again.suspect, again.receipt) == (True, "m1")
    rig.outbox.mark_delivered(held, again, receipt=again.receipt)
    assert (states(rig), rig.deliveries.undelivered("ambiguous")) == (["sent"], [])


def test_reply_sent_after_a_doubtful_try_is_ambiguous(rig):
    """The operator can see who may have read something twice."""
    held, reply = said(rig)
    rig.outbox.postpone(held, reply, 1, "suspect")
    rig.pass_time(2)
    held, again = lease(rig, "w2")
    rig.outbox.mark_delivered(held, again, receipt="m2")
    (fate,) = rig.deliveries.undelivered("ambiguous")
    assert (fate.tries, again.receipt, states(rig)) == (2, "", ["ambiguous"])


def test_platform_that_asks_to_wait_silences_its_whole_channel(rig):
    """Other conversations hear it before they try; the one that was told goes first."""
    held, reply = said(rig)
    rig.outbox.postpone(held, reply, 30, "limited")
    assert 29 < said_in_hall(rig)[1].wait <= 30.1
    rig.pass_time(31)
    assert lease(rig, "w2")[1].wait in (0, None)


def test_dead_reply_may_silence_its_channel_too(rig):
    """Its last try heard that the platform wants a pause: the next reply waits."""
    held, reply = said(rig, Reply("1"), Reply("2"))
    following = rig.outbox.mark_delivered(held, reply, dead="RateLimited: 30 s", end="limited", gap=30)
    assert 29 < following.wait <= 30.1


def test_shorter_wait_does_not_cut_a_longer_one(rig):
    """Two answers of a platform that crossed."""
    (held, reply), (hall, other) = said(rig), said_in_hall(rig)
    rig.outbox.postpone(hall, other, 30, "limited")
    rig.outbox.postpone(held, reply, 1, "limited")
    rig.pass_time(2)
    assert 27 < lease(rig, "w2")[1].wait <= 28.1


def test_channel_sends_at_its_pace(rig):
    """platforms.md 1.4: one in ten seconds: conversations get slots one after the other, each reply only one."""
    (room, first), (hall, second) = said(rig), said_in_hall(rig)
    assert (first.wait, rig.outbox.book_slot(room, first, 0.1)) == (None, 0)
    waits = [rig.outbox.book_slot(hall, second, 0.1) for _ in range(2)]
    assert all(8 < wait <= 10 for wait in waits)
    rig.accept(turn())
    work = rig.outbox.mark_delivered(room, first, receipt="m")
    assert 18 < rig.mailbox.commit(room, work, saying()).wait <= 20


def test_waiting_for_its_turn_is_no_try(rig):
    """The lane is let go, and the slot is kept."""
    room, first = said(rig, Reply("1"), Reply("2"))
    rig.outbox.book_slot(room, first, 0.1)
    second = rig.outbox.mark_delivered(room, first, receipt="m")
    rig.outbox.postpone(room, second, second.wait, "paced")
    assert rig.mailbox.lease(CHAT.id, "early") is None
    rig.pass_time(11)
    later = lease(rig, "w2")[1]
    assert (later.attempt, later.wait, later.suspect) == (1, 0, False)


def test_pace_is_fenced(rig):
    """Who lost the lane books nothing."""
    old, reply = said(rig)
    rig.end_lease()
    lease(rig, "w2")
    with pytest.raises(LeaseLost):
        rig.outbox.book_slot(old, reply, 1)


def test_chat_is_ahead_of_its_pace_after_each_reply(rig):
    """platforms.md 2.4: by as many seconds as its replies brought, less those that passed."""
    room, first = said(rig, Reply("1"), Reply("2"), Reply("3"))
    second = rig.outbox.mark_delivered(room, first, receipt="m", gap=20)
    third = rig.outbox.mark_delivered(room, second, receipt="m", gap=20)
    assert first.ahead == 0
    assert 18 < second.ahead <= 20
    assert 38 < third.ahead <= 40


def test_only_the_newest_of_a_kind_waits(rig):
    """In the place of the one it replaces; others stay, and so does the order."""
    progress = [Reply(f"{percent} %", collapse="p") for percent in (10, 20, 30)]
    held, first = said(rig, Reply("a"), progress[0], Reply("b"), *progress[1:], Reply("z", collapse="q"))
    assert texts(rig, held, first) == ["a", "30 %", "b", "z"]


@pytest.mark.parametrize("why", ["being sent", "may have arrived"])
def test_what_may_be_out_is_not_replaced(rig, why):
    """The newer one follows it."""
    rig.accept(turn())
    rig.accept(turn())
    held, work = lease(rig)
    reply = rig.mailbox.commit(held, work, saying(Reply("10 %", collapse="p")))
    if why == "may have arrived":
        rig.outbox.postpone(held, reply, 1, "suspect")
        rig.pass_time(2)
        held, reply = lease(rig, "w2")
    rig.mailbox.commit(held, replace(work, seq=2), saying(Reply("20 %", collapse="p"), Reply("30 %", collapse="p")))
    assert texts(rig, held, reply) == ["10 %", "30 %"]


def test_question_never_collapses(rig):
    """What previews an action must arrive: it neither replaces nor is replaced."""
    rig.accept(turn("delete"))
    held, work = lease(rig)
    change, action = propose(rig)
    question = (Reply("Delete it?", collapse="p"), action.pending_action_id)
    others = ((Reply("1", collapse="p"), ""), (Reply("2", collapse="p"), ""))
    reply = rig.mailbox.commit(held, work, replace(change, replies=(others[0], question, others[1])))
    assert texts(rig, held, reply) == ["2", "Delete it?"]


@pytest.mark.parametrize("key", ['a"b', "a b", "x" * 65, "é"])
def test_what_replies_collapse_with_is_a_plain_word(key):
    """It is compared as it is written."""
    with pytest.raises(ValueError, match="collapse"):
        Reply("x", collapse=key)


def test_which_reply_asked_is_forgotten_with_its_delivery(redis_client):
    """Whatever becomes of those behind it: a conversation that goes on for years keeps no list of its questions."""
    rig = RedisRig(redis_client)
    held, _ = shown(rig)
    assert redis_client.hexists(f"{rig.shard}:lane:{CHAT.id}", "asks:1")
    rig.accept(turn("more"))
    reply = rig.mailbox.commit(held, rig.mailbox.release(held), saying(*(Reply(str(at)) for at in range(50))))
    while reply:
        reply = rig.outbox.mark_delivered(held, reply, dead="Refused: blocked")
    assert not redis_client.hexists(f"{rig.shard}:lane:{CHAT.id}", "asks:1")


@pytest.mark.parametrize("is_reported_first", [False, True])
def test_why_a_reply_is_no_answer_stays_with_its_delivery(rig, *, is_reported_first):
    """The cause of a model's failure, whatever the platform reports later, or sooner."""
    held, reply = said(rig, Reply("The language model is too busy.", cause="kind=busy status=429"))
    if is_reported_first:
        rig.deliveries.report(f"{CHAT.id}#1", "m", "delivered")
    rig.outbox.mark_delivered(held, reply, receipt="m")
    rig.deliveries.report(f"{CHAT.id}#1", "m", "delivered")
    rig.deliveries.report(f"{CHAT.id}#1", "m", "read")
    (fate,) = rig.deliveries.statuses(CHAT.id)[0]
    assert (fate.state, fate.reason) == ("read", "kind=busy status=429")
