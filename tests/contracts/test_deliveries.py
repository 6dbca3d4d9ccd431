"""Deliveries: what every outbox promises about rate limits, receipts, dead and held replies."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf

import pytest

from sayso.channels.types import Button, Conversation, Delivery, Reply
from sayso.pending.stored_limits import KEEP_CONVERSATION_MS, KEEP_HELD_MS, KEEP_OPT_OUT_MS
from sayso.pending.turn_changes import Timer, TurnChange, TurnReply
from sayso.pending.turns import LeaseLost
from sayso.workers.deliveries import LATE_SECONDS, NotRepeatable
from sayso.workers.sender import GivenUp, Sent
from tests.contracts.rigs import CHAT, Rig, turn
from tests.contracts.test_conversations import lease, look, propose, shown

HALL = Conversation("chat", "hall")


def saying(*replies: Reply) -> TurnChange:
    """Return the change of a turn with these replies."""
    return TurnChange(replies=tuple(TurnReply(reply) for reply in replies or (Reply("hi"),)))


def said(rig, *replies: Reply):
    """Answer a turn; return its lease and the first reply."""
    rig.accept(turn())
    held, work = lease(rig)
    return held, rig.mailbox.commit(held, work, saying(*replies))


def said_in_hall(rig):
    """Answer a turn in another conversation of the channel."""
    rig.mailbox.accept(replace(turn(), conversation=HALL))
    held, work = rig.mailbox.lease(HALL.id, "h1")
    return held, rig.mailbox.commit(held, work, saying())


def texts(rig, held, reply) -> list[str]:
    """Send all replies; return their texts."""
    sent = []
    while reply:
        sent.append(reply.delivery(held).reply.text)
        reply = rig.outbox.mark_delivered(held, reply, Sent("m"))
    return sent


def states(rig) -> list[str]:
    """Return the states of the conversation's deliveries."""
    return [fate.state for fate in rig.deliveries.statuses(CHAT.id)[0]]


def bury(rig, *, end="dead", doubtful=False) -> str:
    """Give a reply up; return its id."""
    held, reply = said(rig)
    if doubtful:
        rig.outbox.postpone(held, reply, 1, "suspect")
        rig.pass_time(2)
        held, reply = lease(rig, "w2")
    rig.outbox.mark_delivered(held, reply, GivenUp("Refused: blocked", end=end))
    rig.mailbox.release(held)
    return f"{CHAT.id}#{reply.number}"


def test_dead_reply_is_resent_once(rig):
    """Repeated calls return the same new delivery, at the end of the outbox, and wake a worker."""
    dead = bury(rig)
    assert rig.deliveries.retry(dead) == rig.deliveries.retry(dead) == f"{CHAT.id}#2"
    rig.pass_time(6)
    assert (rig.overdue(), rig.dead(), states(rig)) == ([CHAT.id], 0, ["retried"])
    held, again = lease(rig, "w3")
    assert (again.delivery(held).reply.text, again.attempt, again.is_doubtful) == ("hi", 1, False)
    assert rig.outbox.mark_delivered(held, again, Sent("m")) is None


@pytest.mark.parametrize("doubtful", [{"doubtful": True}, {"end": "doubtful"}])
def test_dead_reply_that_may_have_arrived_is_resent_marked(rig, doubtful):
    """It does not matter whether an earlier attempt timed out or the last one."""
    dead = bury(rig, **doubtful)
    assert rig.deliveries.undelivered("dead")[0].doubtful
    rig.deliveries.retry(dead)
    assert lease(rig, "w3")[1].is_doubtful


def test_question_is_not_resent(rig):
    """Its action ended with it, so an answer would do nothing."""
    rig.accept(turn("delete"))
    held, work = lease(rig)
    rig.outbox.mark_delivered(
        held, rig.mailbox.commit(held, work, propose(rig)[0]), GivenUp("Refused: blocked")
    )
    with pytest.raises(NotRepeatable, match="asked for a yes"):
        rig.deliveries.retry(f"{CHAT.id}#1")
    assert rig.dead() == 1


def test_reply_that_arrived_after_all_is_not_resent(rig):
    """The platform's report came after the reply was given up."""
    dead = bury(rig, end="doubtful")
    assert rig.deliveries.report(dead, "m1", "delivered") == "delivered"
    for _ in range(2):
        with pytest.raises(NotRepeatable, match="was sent"):
            rig.deliveries.retry(dead)


def test_dead_edit_is_resent_as_a_message_of_its_own(rig):
    """The message that it was to change is far above by now."""
    held, reply = said(rig, Reply("done", edits="m7"))
    rig.outbox.mark_delivered(held, reply, GivenUp("Refused: gone"))
    rig.deliveries.retry(f"{CHAT.id}#1")
    assert rig.mailbox.release(held).delivery(held).reply == Reply("done")


def test_dead_edit_without_text_is_not_resent(rig):
    """It would only have removed the buttons of a message."""
    held, reply = said(rig, Reply("Delete it?", edits="m7", optional=True))
    rig.outbox.mark_delivered(held, reply, GivenUp("Refused: gone"))
    with pytest.raises(NotRepeatable, match="nothing is missing"):
        rig.deliveries.retry(f"{CHAT.id}#1")


@pytest.mark.parametrize("name", ["chat:none#1", "no id", "#", "chat:x#y"])
def test_only_dead_replies_are_resent(rig, name):
    """Other ids and other states are refused."""
    with pytest.raises(NotRepeatable):
        rig.deliveries.retry(name)


def test_resent_progress_message_replaces_no_newer_one(rig):
    """The old one goes out after the newer one."""
    held, reply = said(rig, Reply("10 %", collapse="p"))
    rig.outbox.mark_delivered(held, reply, GivenUp("Refused: blocked"))
    rig.accept(turn())
    reply = rig.mailbox.commit(
        held, rig.mailbox.release(held), saying(Reply("x"), Reply("20 %", collapse="p"))
    )
    rig.deliveries.retry(f"{CHAT.id}#1")
    assert texts(rig, held, reply) == ["x", "20 %", "10 %"]


def test_dead_reply_keeps_what_an_operator_needs(rig):
    """The record has the reason, the time, the attempts and the text."""
    held, reply = said(rig, Reply("hi", (Button("Yes", "y"),)))
    rig.outbox.mark_delivered(held, reply, GivenUp("Refused: blocked"))
    (fate,) = rig.deliveries.undelivered("dead")
    assert (fate.id, fate.reason, fate.attempts, fate.text) == (
        f"{CHAT.id}#1",
        "Refused: blocked",
        1,
        "hi",
    )
    assert fate.at > 1_700_000_000


def test_closed_address_is_marked_until_its_person_writes(rig):
    """The person blocked the bot and wrote again later; the mark is gone."""
    bury(rig, end="closed")
    assert rig.deliveries.statuses(CHAT.id)[1] == "Refused: blocked"
    rig.accept(turn())
    assert rig.deliveries.statuses(CHAT.id)[1] == ""


def test_messages_are_dropped_where_the_bot_may_not_write(rig):
    """Each would cost a model's answer that no person can read; a tap and a stop still count."""
    bury(rig, end="barred")
    given = (turn("hi"), turn("hi", user="bob"), turn(tap="1x"), turn("/stop"))
    assert [rig.accept(each).outcome for each in given] == ["ignored", "ignored", "new", "new"]


def test_platform_says_that_the_bot_may_write_again(rig):
    """Its administrators gave it the right; the next message is answered."""
    bury(rig, end="barred")
    assert rig.accept(turn("hi")).outcome == "ignored"
    rig.deliveries.close(CHAT.id, "")
    assert rig.accept(turn("hi")).outcome == "new"


TOPICS = [Conversation("chat", "room", thread) for thread in ("1", "2", "3")]


def refused_in(rig, there: Conversation, end: str) -> None:
    """Answer a turn there, and let the platform refuse the reply."""
    rig.accept(replace(turn("hi"), conversation=there))
    held, work = rig.mailbox.lease(there.id, f"w-{there.thread}")
    reply = rig.mailbox.commit(held, work, saying(Reply("hello")))
    rig.outbox.mark_delivered(
        held, reply, GivenUp("ChatBarred: not_in_channel", end=end), let_go=True
    )


def heard_in(rig, *places: Conversation) -> list[str]:
    """Return what the inbox does with a message in each of these places."""
    return [rig.accept(replace(turn("hi"), conversation=there)).outcome for there in places]


@pytest.mark.parametrize("first", [TOPICS[0], CHAT])
def test_what_is_refused_in_a_whole_chat_is_learned_for_all_its_threads(rig, first: Conversation):
    """The model is asked once, and not once for each thread; other chats go on."""
    refused_in(rig, first, "chat_barred")
    assert heard_in(rig, *TOPICS, CHAT, HALL) == ["ignored"] * 4 + ["new"]
    assert rig.accept(replace(turn("/stop"), conversation=TOPICS[1])).outcome == "new"


def test_what_is_refused_in_one_topic_is_learned_for_that_topic(rig):
    """A closed topic says nothing about the others."""
    refused_in(rig, TOPICS[0], "barred")
    assert heard_in(rig, *TOPICS, CHAT) == ["ignored", "new", "new", "new"]


def test_platform_says_that_the_bot_may_write_in_a_chat_again(rig):
    """It was invited, which names no thread; each thread is answered again."""
    refused_in(rig, TOPICS[0], "chat_barred")
    rig.deliveries.close(CHAT.id, "")
    assert heard_in(rig, *TOPICS, CHAT) == ["new"] * 4


def test_reply_that_is_sent_opens_all_threads_of_its_chat(rig):
    """The answer to a tap arrived, so the bot may write there."""
    refused_in(rig, TOPICS[0], "chat_barred")
    asked = replace(turn("hi"), conversation=TOPICS[1])
    rig.accept(replace(asked, event_id="e-stop", text="/stop"))
    held, work = rig.mailbox.lease(TOPICS[1].id, "w2")
    reply = rig.mailbox.commit(held, work, saying(Reply("Stopped.")))
    rig.outbox.mark_delivered(held, reply, Sent("m"), let_go=True)
    assert heard_in(rig, *TOPICS, CHAT) == ["new"] * 4


def test_lost_answer_about_a_reply_that_opens_its_chat_is_given_again(rig):
    """The worker repeats its call, and still learns that the bot may write in the chat."""
    refused_in(rig, TOPICS[0], "chat_barred")
    rig.accept(replace(turn("/stop"), conversation=TOPICS[1]))
    held, work = rig.mailbox.lease(TOPICS[1].id, "w2")
    reply = rig.mailbox.commit(held, work, saying(Reply("Stopped.")))
    rig.outbox.mark_delivered(held, reply, Sent("m"))
    refused_in(rig, CHAT, "chat_barred")  # as if the first answer had never arrived
    rig.outbox.mark_delivered(held, reply, Sent("m"))
    assert heard_in(rig, *TOPICS, CHAT) == ["new"] * 4


def test_reply_to_a_closed_address_carries_the_mark(rig):
    """No reply is sent there until the person writes."""
    bury(rig, end="closed")
    rig.deliveries.retry(f"{CHAT.id}#1")
    held, reply = lease(rig, "w2")
    assert (reply.closed_reason, rig.mailbox.release(held, hand_over=True)) == (
        "Refused: blocked",
        None,
    )
    rig.accept(turn())
    assert lease(rig, "w3")[1].closed_reason == ""


def test_address_that_was_closed_for_a_forwarded_reply_is_tried_again(rig):
    """No person ever wrote there, so no message can reopen it."""
    rig.outbox.forward(Delivery("chat:x#1", CHAT, Reply("hi")))
    held, reply = lease(rig)
    rig.outbox.mark_delivered(held, reply, GivenUp("AddressClosed: no member", end="closed"))
    rig.outbox.forward(Delivery("chat:x#2", CHAT, Reply("hi")))
    assert rig.mailbox.release(held).closed_reason == ""


def test_platform_says_that_an_address_closed_and_opened(rig):
    """platforms.md 2.4: the platform reports that the bot was blocked and let in again."""
    rig.deliveries.close(CHAT.id, "blocked")
    held, reply = said(rig)
    assert (reply.closed_reason, rig.deliveries.statuses(CHAT.id)[1]) == (
        "",
        "",
    )  # the person wrote since
    for reason in ("blocked", ""):
        rig.deliveries.close(CHAT.id, reason)
        assert (rig.mailbox.release(held).closed_reason, rig.deliveries.statuses(CHAT.id)[1]) == (
            reason,
            reason,
        )


def test_late_report_does_not_close_the_address_of_a_person_who_wrote(rig):
    """platforms.md 1.3: a callback reports an earlier message; the person may have come back since."""
    held, reply = said(rig)
    rig.deliveries.close(CHAT.id, "gone", late=True)
    assert rig.mailbox.release(held).closed_reason == ""
    rig.outbox.mark_delivered(held, reply, Sent("m1"))
    rig.pass_time(LATE_SECONDS + 1)
    rig.deliveries.close(CHAT.id, "gone", late=True)
    assert rig.deliveries.statuses(CHAT.id)[1] == "gone"


def test_late_report_does_not_close_the_address_while_a_turn_waits(rig):
    """This holds however long the turn waits."""
    rig.accept(turn())
    rig.pass_time(LATE_SECONDS + 1)
    rig.deliveries.close(CHAT.id, "gone", late=True)
    assert rig.deliveries.statuses(CHAT.id)[1] == ""


def opt_out(rig, number: int = 1) -> str:
    """Report that the user opted out, as refused by a reply. Return why the address is closed."""
    rig.deliveries.close(CHAT.id, "opted out", late=True, opted_out=True, number=number)
    return rig.deliveries.statuses(CHAT.id)[1]


def test_opt_out_closes_the_address_of_a_person_who_wrote_before_the_reply(rig):
    """The message of a moment ago may be the one that asks for silence.

    The next one opens the address.
    """
    held, reply = said(rig)
    rig.pass_time(1)
    rig.outbox.mark_delivered(held, reply, Sent("m1"))
    assert opt_out(rig) == "opted out"
    rig.accept(turn("I am back"))
    assert rig.deliveries.statuses(CHAT.id)[1] == ""


def test_opt_out_is_outdated_by_a_message_that_came_after_the_reply(rig):
    """The report was on its way while the person came back."""
    held, reply = said(rig)
    rig.outbox.mark_delivered(held, reply, Sent("m1"))
    rig.accept(turn("I am back"))
    rig.mailbox.commit(held, rig.mailbox.release(held), saying())
    assert opt_out(rig) == ""


def test_report_of_an_opt_out_may_come_before_the_receipt(rig):
    """Webhooks are fast: the worker has not recorded the reply yet."""
    said(rig)
    assert opt_out(rig) == "opted out"


def test_repeated_report_of_an_opt_out_does_not_close_the_address_again(rig):
    """The platform calls twice, and the person wrote between the two."""
    held, reply = said(rig)
    rig.outbox.mark_delivered(held, reply, Sent("m1"))
    opt_out(rig)
    rig.deliveries.report(f"{CHAT.id}#1", "m1", "failed", "error 63050")
    rig.accept(turn("I am back"))
    rig.mailbox.commit(held, rig.mailbox.release(held), TurnChange())
    assert opt_out(rig) == ""


def test_opt_out_of_a_person_who_never_wrote_holds(rig):
    """The bot sends them nothing on its own, until a message of theirs ends it."""
    rig.outbox.forward(Delivery("chat:x#1", CHAT, Reply("hi")))
    held, reply = lease(rig)
    rig.outbox.mark_delivered(held, reply, GivenUp("OptedOut: 63050", end="opted_out"))
    rig.outbox.forward(Delivery("chat:x#2", CHAT, Reply("hi")))
    assert rig.mailbox.release(held).closed_reason == "OptedOut: 63050"
    rig.accept(turn())
    assert lease(rig)[1].closed_reason == ""


def test_opt_out_is_kept_for_a_year(redis_client):
    """A conversation is forgotten after 30 days, and the next message to the person would be one too many."""
    rig = Rig(redis_client)
    held, reply = said(rig)
    rig.outbox.mark_delivered(held, reply, GivenUp("OptedOut: 63050", end="opted_out"))
    conversation_key = f"{rig.shard}:conversation:{CHAT.id}"
    rig.outbox.forward(Delivery("chat:x#2", CHAT, Reply("hi")))
    assert redis_client.pttl(conversation_key) > KEEP_OPT_OUT_MS - 60_000
    rig.accept(turn())
    assert redis_client.pttl(conversation_key) <= KEEP_CONVERSATION_MS


def test_refused_turn_opens_the_window_too(rig):
    """A reply to an unknown or refused sender falls into the 24 hours after their message."""
    assert rig.mailbox.notify(replace(turn(), ephemeral=True), Reply("your code is 1234"))
    _, reply = lease(rig)
    assert reply.silence == pytest.approx(0, abs=2)
    assert Reply.from_json(json.loads(reply.text)["reply"]).only_for == "ana", (
        "as what they wrote was"
    )


def test_held_reply_is_sent_after_a_refused_turn(rig):
    """The message opens the window and removes the mark of a closed address."""
    on_hold(rig)
    rig.pass_time(2 * 24 * 3600)
    rig.deliveries.close(CHAT.id, "blocked")
    assert rig.mailbox.notify(turn(), Reply("too fast"))
    rig.pass_time(6)
    assert rig.overdue() == [CHAT.id]
    held, reply = lease(rig, "w2")
    assert (reply.held_seconds, reply.closed_reason, reply.silence) == (
        None,
        "",
        pytest.approx(6, abs=2),
    )
    assert (texts(rig, held, reply), rig.deliveries.undelivered("held")) == (["hi", "too fast"], [])


def test_address_stays_open_while_a_turn_waits(rig):
    """The person wrote while the reply or the report was on its way, so the answer is attempted."""
    held, reply = said(rig)
    rig.accept(turn("back"))
    work = rig.outbox.mark_delivered(held, reply, GivenUp("AddressClosed: blocked", end="closed"))
    rig.deliveries.close(CHAT.id, "blocked")
    assert rig.mailbox.commit(held, work, saying()).closed_reason == ""


@pytest.mark.parametrize("action_id", ["Abc", "-bc"])
def test_question_of_a_channel_that_is_down_is_kept_for_as_long_as_it_waits(
    redis_client, action_id: str
):
    """The operator may need more than the two days of a record's TTL. An id may start with a hyphen."""
    rig = Rig(redis_client)
    rig.accept(turn())
    held, work = lease(rig)
    reply = rig.mailbox.commit(held, work, propose(rig, pending_action_id=action_id)[0])
    for _ in range(2):
        rig.outbox.postpone(held, reply, 60, "down")
        rig.pass_time(61)
        held, reply = lease(rig, "w2")
    kept = [redis_client.ttl(key) for key in redis_client.scan_iter(f"{rig.shard}:pending:*")]
    assert kept
    assert min(kept) > KEEP_HELD_MS / 1000


def test_mark_of_an_unknown_address_is_not_stored(redis_client):
    """The platform reports every chat that removes the bot; storing each would fill Redis."""
    Rig(redis_client).deliveries.close(CHAT.id, "kicked")
    assert not [key for key in redis_client.scan_iter() if ":conversation:" in key]


def wait_of(rig, held, reply, per_second: float = 0.0) -> float | None:
    """Return the seconds that a reply waits for its channel. A cluster stores them apart from the conversation."""
    if reply.rate_is_elsewhere:
        return rig.outbox.book_slot(held, reply, per_second)
    return reply.wait_seconds


def test_channel_that_is_down_counts_no_attempts(rig):
    """No attempt counts, and the channel's other conversations wait too. This one goes first afterwards."""
    held, reply = said(rig)
    rig.outbox.postpone(held, reply, 60, "down")
    assert wait_of(rig, *said_in_hall(rig)) == pytest.approx(60, abs=2)
    rig.pass_time(30)
    assert rig.mailbox.lease(CHAT.id, "early") is None
    rig.pass_time(31)
    assert CHAT.id in rig.overdue()
    held, again = lease(rig, "w2")
    assert (again.attempt, again.is_doubtful, wait_of(rig, held, again) or 0.0) == (1, False, 0.0)


def on_hold(rig, *replies: Reply):
    """Hold a reply until its person writes."""
    held, reply = said(rig, *replies)
    rig.outbox.postpone(held, reply, 2, "held", "WindowClosed: 24 hours")
    return reply


def test_held_reply_wakes_no_worker_until_the_person_writes(rig):
    """Then it is attempted at once, before the turn that came in."""
    on_hold(rig)
    rig.pass_time(6 * 24 * 3600)
    assert rig.overdue() == []
    rig.accept(turn("back"))
    rig.pass_time(6)
    assert rig.overdue() == [CHAT.id]
    held, reply = lease(rig, "w2")
    assert (reply.held_seconds, reply.attempt, reply.is_doubtful) == (None, 1, False)
    assert rig.outbox.mark_delivered(held, reply, Sent("m")).turn.text == "back"


def test_held_reply_is_due_after_a_week_of_silence(rig):
    """It carries its waiting time, and the worker gives it up."""
    on_hold(rig)
    rig.pass_time(KEEP_HELD_MS / 1000 + 1)
    assert rig.overdue() == [CHAT.id]
    held, reply = lease(rig, "w2")
    assert reply.held_seconds >= KEEP_HELD_MS / 1000
    assert rig.outbox.mark_delivered(held, reply, GivenUp("WindowClosed"), let_go=True) is None
    assert (rig.deliveries.undelivered("held"), rig.dead()) == ([], 1)


def test_reply_held_again_keeps_its_waiting_time(rig):
    """A worker that came for another reason sees the waiting time, and the reply does not become doubtful."""
    on_hold(rig)
    rig.pass_time(3600)
    held, reply = lease(rig, "w2")
    assert reply.held_seconds == pytest.approx(3600, abs=60)
    rig.end_lease()
    held, reply = lease(rig, "w3")
    rig.outbox.postpone(held, reply, 0, "held")
    assert not reply.is_doubtful
    assert rig.overdue() == []
    rig.pass_time(KEEP_HELD_MS / 1000 - 3600)
    assert rig.overdue() == [CHAT.id]


def test_reply_is_not_held_where_a_turn_waits(rig):
    """The turn came in meanwhile, or the platform contradicts itself. The next attempt is soon, and it counts."""
    held, reply = said(rig)
    rig.accept(turn())
    rig.outbox.postpone(held, reply, 2, "held", "WindowClosed: 24 hours")
    assert rig.mailbox.lease(CHAT.id, "early") is None
    rig.pass_time(3)
    assert (rig.overdue(), rig.deliveries.undelivered("held")) == ([CHAT.id], [])
    assert lease(rig, "w2")[1].attempt == 2


def test_held_reply_is_shown_to_the_operator_while_it_waits(rig):
    """The list and the conversation show it with its reason until the person writes."""
    reply = on_hold(rig)
    (fate,), _ = rig.deliveries.statuses(CHAT.id)
    assert (fate.id, fate.state, fate.reason) == (
        f"{CHAT.id}#{reply.number}",
        "held",
        "WindowClosed: 24 hours",
    )
    assert rig.deliveries.undelivered("held") == [fate]
    rig.accept(turn())
    assert (rig.deliveries.statuses(CHAT.id)[0], rig.deliveries.undelivered("held")) == ([], [])


def test_timer_rings_beside_a_held_reply(rig):
    """A worker comes for the timer, and the reply stays held."""
    rig.accept(turn())
    held, work = lease(rig)
    change = replace(saying(), timers=(Timer("t", work.received_at + 60, "ring"),))
    reply = rig.mailbox.commit(held, work, change)
    rig.outbox.postpone(held, reply, 2, "held", "WindowClosed: 24 hours")
    rig.pass_time(61)
    assert rig.overdue() == [CHAT.id]
    held, reply = lease(rig, "w2")
    assert (reply.number, reply.held_seconds is not None) == (1, True)
    rig.outbox.postpone(held, reply, 0, "held")
    rig.pass_time(3600)
    assert rig.overdue() == []


def test_held_question_stays_open_to_be_shown(rig):
    """Its window opens when the question is delivered, however late."""
    rig.accept(turn("delete"))
    held, work = lease(rig)
    change, _ = propose(rig)
    rig.outbox.postpone(held, rig.mailbox.commit(held, work, change), 2, "held", "WindowClosed")
    rig.pass_time(3 * 24 * 3600)
    assert look(rig).state == "armed"
    rig.accept(turn())
    held, reply = lease(rig, "w2")
    rig.outbox.mark_delivered(held, reply, Sent("m"))
    assert look(rig).state == "shown"


@pytest.mark.parametrize(("waited", "silence"), [(0, 100), (50, 150)])
def test_delivery_knows_how_long_the_person_was_silent(rig, waited, silence):
    """platforms.md 1.3: the server's clock counts; a turn from a spool was written that much earlier."""
    rig.mailbox.accept(turn(), waited_seconds=waited)
    held, work = lease(rig)
    rig.mailbox.commit(held, work, saying())
    rig.mailbox.release(held, hand_over=True)
    rig.pass_time(100)
    held, reply = lease(rig, "w2")
    assert reply.delivery(held).silence == pytest.approx(silence, abs=5)


def test_silence_starts_with_the_newest_turn(rig):
    """An older turn that comes from a spool does not make it longer."""
    rig.accept(turn())
    rig.mailbox.accept(turn(), waited_seconds=3600)
    held, work = lease(rig)
    assert rig.mailbox.commit(held, work, saying()).silence == pytest.approx(0, abs=5)


def test_silence_is_endless_where_no_person_ever_wrote(rig):
    """Only forwards go there."""
    rig.outbox.forward(Delivery("chat:x#1", CHAT, Reply("hi")))
    assert lease(rig)[1].silence == inf


def test_conversation_of_an_older_version_does_not_know_its_silence(redis_client):
    """Older versions did not store the time."""
    rig = Rig(redis_client)
    rig.accept(turn())
    redis_client.hdel(f"{rig.shard}:conversation:{CHAT.id}", "user_message_at")
    held, work = lease(rig)
    assert rig.mailbox.commit(held, work, saying()).silence == -1


def test_held_question_outlives_its_record(redis_client):
    """A record's TTL is two days, a held reply's a week; the question must not lose its action meanwhile."""
    rig = Rig(redis_client)
    rig.accept(turn("delete"))
    held, work = lease(rig)
    change, action = propose(rig)
    rig.outbox.postpone(held, rig.mailbox.commit(held, work, change), 2, "held", "WindowClosed")
    names = (f"pending:{action.pending_action_id}", f"open_action:{CHAT.id}:{work.user}")
    assert all(redis_client.ttl(f"{rig.shard}:{name}") > KEEP_HELD_MS / 1000 for name in names)


def test_receipt_is_kept_with_the_delivery(rig):
    """The delivery has the receipt and the number of attempts."""
    held, reply = said(rig)
    rig.outbox.mark_delivered(held, reply, Sent("m1"))
    (fate,), _ = rig.deliveries.statuses(CHAT.id)
    assert (fate.id, fate.state, fate.receipt, fate.attempts) == (f"{CHAT.id}#1", "sent", "m1", 1)


def test_only_the_last_deliveries_are_kept(rig):
    """A conversation keeps fifty."""
    texts(rig, *said(rig, *(Reply(str(number)) for number in range(60))))
    fates, _ = rig.deliveries.statuses(CHAT.id)
    assert [fate.id.rpartition("#")[2] for fate in fates] == [
        str(number) for number in range(11, 61)
    ]


def test_later_failure_turns_sent_into_failed(rig):
    """Twilio accepted the message and could not deliver it; the operator sees it once."""
    held, reply = said(rig)
    rig.outbox.mark_delivered(held, reply, Sent("m1"))
    for _ in range(2):
        assert rig.deliveries.report(f"{CHAT.id}#1", "m1", "undelivered", "error 63016") == "failed"
    (fate,) = rig.deliveries.undelivered("failed")
    assert (fate.id, fate.reason, states(rig)) == (f"{CHAT.id}#1", "error 63016", ["failed"])


def test_reports_count_in_any_order(rig):
    """platforms.md 1.1: after "read", a late "delivered" or "sent" changes nothing."""
    held, reply = said(rig)
    rig.outbox.mark_delivered(held, reply, Sent("m1"))
    kept = [
        rig.deliveries.report(f"{CHAT.id}#1", "m1", status)
        for status in ("read", "delivered", "sent", "odd")
    ]
    assert (kept, states(rig)) == (["read", "read", "read", ""], ["read"])


@pytest.mark.parametrize(("first", "second"), [("failed", "delivered"), ("delivered", "failed")])
def test_arrived_copy_counts_if_a_reply_was_sent_twice(rig, first, second):
    """The other copy's failure changes nothing."""
    held, reply = said(rig)
    rig.outbox.mark_delivered(held, reply, Sent("m1"))
    copies = ("m1", "m2") if first == "failed" else ("m2", "m1")
    rig.deliveries.report(f"{CHAT.id}#1", copies[0], first)
    assert rig.deliveries.report(f"{CHAT.id}#1", copies[1], second) == "delivered"


def test_reply_that_arrived_after_all_has_no_reason(rig):
    """Why a copy was given up is no news once another one has arrived."""
    dead = bury(rig)
    rig.deliveries.report(dead, "m1", "delivered")
    (fate,) = rig.deliveries.statuses(CHAT.id)[0]
    assert (fate.state, fate.reason) == ("delivered", "")


def test_copy_sent_after_the_failure_of_another_counts(rig):
    """A worker died after it sent the copy that failed; the platform reports the second by itself."""
    held, reply = said(rig)
    rig.deliveries.report(f"{CHAT.id}#1", "m1", "failed")
    rig.outbox.mark_delivered(held, reply, Sent("m2"))
    assert states(rig) == ["sent"]
    assert rig.deliveries.report(f"{CHAT.id}#1", "m2", "failed") == "failed"


def test_report_may_come_before_the_receipt(rig):
    """platforms.md 1.1: webhooks are fast, and the receipt does not overwrite a report."""
    held, reply = said(rig)
    assert rig.deliveries.report(f"{CHAT.id}#1", "m1", "delivered") == "delivered"
    rig.outbox.mark_delivered(held, reply, Sent("m1"))
    assert states(rig) == ["delivered"]


def test_report_of_an_unknown_delivery_is_dropped(rig):
    """The id never existed or is too old."""
    said(rig)
    assert [rig.deliveries.report(f"{CHAT.id}#{number}", "m", "failed") for number in (2, 99)] == [
        "",
        "",
    ]
    assert rig.deliveries.undelivered("failed") == []


def test_ambiguous_reply_that_the_platform_reported_has_arrived(rig):
    """The answer was lost but the report came. The next holder has the receipt and does not send again."""
    held, reply = said(rig)
    rig.outbox.postpone(held, reply, 5, "suspect")
    rig.deliveries.report(f"{CHAT.id}#1", "m1", "sent")
    rig.pass_time(6)
    held, again = lease(rig, "w2")
    assert (again.is_doubtful, again.receipt) == (True, "m1")
    rig.outbox.mark_delivered(held, again, Sent(again.receipt))
    assert (states(rig), rig.deliveries.undelivered("ambiguous")) == (["sent"], [])


def test_reply_sent_after_a_doubtful_attempt_is_ambiguous(rig):
    """The operator can see who may have read a reply twice."""
    held, reply = said(rig)
    rig.outbox.postpone(held, reply, 1, "suspect")
    rig.pass_time(2)
    held, again = lease(rig, "w2")
    rig.outbox.mark_delivered(held, again, Sent("m2"))
    (fate,) = rig.deliveries.undelivered("ambiguous")
    assert (fate.attempts, again.receipt, states(rig)) == (2, "", ["ambiguous"])


def test_platform_that_asks_to_wait_pauses_its_whole_channel(rig):
    """Other conversations learn of the pause before they try; the refused one goes first afterwards."""
    held, reply = said(rig)
    rig.outbox.postpone(held, reply, 30, "limited")
    assert 29 < wait_of(rig, *said_in_hall(rig)) <= 30.1
    rig.pass_time(31)
    assert wait_of(rig, *lease(rig, "w2")) in (0, None)


def test_dead_reply_may_pause_its_channel_too(rig):
    """The platform asked for a pause at the last attempt, so the next reply waits."""
    held, reply = said(rig, Reply("1"), Reply("2"))
    following = rig.outbox.mark_delivered(
        held, reply, GivenUp("RateLimited: 30 s", end="limited", pause=30)
    )
    assert 29 < wait_of(rig, held, following) <= 30.1


def test_shorter_wait_does_not_cut_a_longer_one(rig):
    """Two answers of the platform crossed."""
    (held, reply), (hall, other) = said(rig), said_in_hall(rig)
    rig.outbox.postpone(hall, other, 30, "limited")
    rig.outbox.postpone(held, reply, 1, "limited")
    rig.pass_time(2)
    assert 27 < wait_of(rig, *lease(rig, "w2")) <= 28.1


def test_channel_keeps_its_rate_limit(rig):
    """platforms.md 1.4: at one message in ten seconds, each reply gets one slot after the other."""
    (room, first), (hall, second) = said(rig), said_in_hall(rig)
    assert (first.wait_seconds, rig.outbox.book_slot(room, first, 0.1)) == (None, 0)
    waits = [rig.outbox.book_slot(hall, second, 0.1) for _ in range(2)]
    assert all(8 < wait <= 10 for wait in waits)
    rig.accept(turn())
    work = rig.outbox.mark_delivered(room, first, Sent("m"))
    assert 18 < (wait_of(rig, room, rig.mailbox.commit(room, work, saying()), 0.1) or 0) <= 20


def test_waiting_for_a_slot_is_no_attempt(rig):
    """The conversation is released, and the slot is kept."""
    room, first = said(rig, Reply("1"), Reply("2"))
    rig.outbox.book_slot(room, first, 0.1)
    second = rig.outbox.mark_delivered(room, first, Sent("m"))
    rig.outbox.postpone(room, second, wait_of(rig, room, second, 0.1), "rate_limited")
    assert rig.mailbox.lease(CHAT.id, "early") is None
    rig.pass_time(11)
    room, later = lease(rig, "w2")
    assert (later.attempt, wait_of(rig, room, later, 0.1), later.is_doubtful) == (1, 0, False)


def test_channel_without_a_limit_forgets_an_earlier_one(rig):
    """Neither its gap nor the slots that were booked with it delay a reply."""
    (room, first), (hall, second) = said(rig), said_in_hall(rig)
    rig.outbox.book_slot(room, first, 0.1)
    assert 8 < rig.outbox.book_slot(hall, second, 0.1) <= 10
    assert rig.outbox.book_slot(room, first, 0) == 0
    assert rig.outbox.book_slot(hall, second, 0) == 0
    rig.accept(turn())
    work = rig.outbox.mark_delivered(room, first, Sent("m"))
    assert wait_of(rig, room, rig.mailbox.commit(room, work, saying())) in (0, None)


def test_rate_limit_is_fenced(rig):
    """A worker that lost its lease books no slot. On a cluster it may waste one, which is kept apart."""
    old, reply = said(rig)
    if reply.rate_is_elsewhere:
        return
    rig.end_lease()
    lease(rig, "w2")
    with pytest.raises(LeaseLost):
        rig.outbox.book_slot(old, reply, 1)


def test_chat_runs_up_a_delay_with_each_reply(rig):
    """platforms.md 2.4: the delay is the sum of its replies' seconds, less the time that passed."""
    room, first = said(rig, Reply("1"), Reply("2"), Reply("3"))
    second = rig.outbox.mark_delivered(room, first, Sent("m", gap=20))
    third = rig.outbox.mark_delivered(room, second, Sent("m", gap=20))
    assert first.ahead_seconds == 0
    assert 18 < second.ahead_seconds <= 20
    assert 38 < third.ahead_seconds <= 40


def test_only_the_newest_reply_of_a_kind_waits(rig):
    """It takes the place of the one it replaces. The others and the order stay."""
    progress = [Reply(f"{percent} %", collapse="p") for percent in (10, 20, 30)]
    held, first = said(
        rig, Reply("a"), progress[0], Reply("b"), *progress[1:], Reply("z", collapse="q")
    )
    assert texts(rig, held, first) == ["a", "30 %", "b", "z"]


@pytest.mark.parametrize("why", ["being sent", "may have arrived"])
def test_reply_that_may_be_sent_is_not_replaced(rig, why):
    """The newer reply follows it."""
    rig.accept(turn())
    rig.accept(turn())
    held, work = lease(rig)
    reply = rig.mailbox.commit(held, work, saying(Reply("10 %", collapse="p")))
    if why == "may have arrived":
        rig.outbox.postpone(held, reply, 1, "suspect")
        rig.pass_time(2)
        held, reply = lease(rig, "w2")
    rig.mailbox.commit(
        held, replace(work, seq=2), saying(Reply("20 %", collapse="p"), Reply("30 %", collapse="p"))
    )
    assert texts(rig, held, reply) == ["10 %", "30 %"]


def test_question_never_collapses(rig):
    """A preview must arrive: it neither replaces a reply nor is replaced."""
    rig.accept(turn("delete"))
    held, work = lease(rig)
    change, action = propose(rig)
    question = TurnReply.question(Reply("Delete it?", collapse="p"), action.pending_action_id)
    others = (TurnReply(Reply("1", collapse="p")), TurnReply(Reply("2", collapse="p")))
    reply = rig.mailbox.commit(
        held, work, replace(change, replies=(others[0], question, others[1]))
    )
    assert texts(rig, held, reply) == ["2", "Delete it?"]


def test_question_of_a_delivery_is_deleted_with_it(redis_client):
    """A conversation that goes on for years keeps no list of its questions."""
    rig = Rig(redis_client)
    held, _ = shown(rig)
    assert redis_client.hexists(f"{rig.shard}:conversation:{CHAT.id}", "asks:1")
    rig.accept(turn("more"))
    reply = rig.mailbox.commit(
        held, rig.mailbox.release(held), saying(*(Reply(str(at)) for at in range(50)))
    )
    while reply:
        reply = rig.outbox.mark_delivered(held, reply, GivenUp("Refused: blocked"))
    assert not redis_client.hexists(f"{rig.shard}:conversation:{CHAT.id}", "asks:1")


@pytest.mark.parametrize("is_reported_first", [False, True])
def test_reason_of_a_failed_answer_stays_with_its_delivery(rig, *, is_reported_first):
    """The cause of a model's failure survives every report of the platform."""
    held, reply = said(rig, Reply("The language model is too busy.", cause="kind=busy status=429"))
    if is_reported_first:
        rig.deliveries.report(f"{CHAT.id}#1", "m", "delivered")
    rig.outbox.mark_delivered(held, reply, Sent("m"))
    rig.deliveries.report(f"{CHAT.id}#1", "m", "delivered")
    rig.deliveries.report(f"{CHAT.id}#1", "m", "read")
    (fate,) = rig.deliveries.statuses(CHAT.id)[0]
    assert (fate.state, fate.reason) == ("read", "kind=busy status=429")


def test_messages_that_a_platform_charges_are_counted_by_day(rig):
    """A message counts once, however often its result is recorded, and one that is free does not count."""
    classes = ("service", "service", "utility", "free")
    held, reply = said(rig, *(Reply(name) for name in classes))
    for name in classes:
        sent = Sent(price_class=name)
        first = reply
        reply = rig.outbox.mark_delivered(held, first, sent)
        rig.outbox.mark_delivered(held, first, sent)
    assert rig.deliveries.paid_messages(0) == {("chat", "service"): 2, ("chat", "utility"): 1}
    assert rig.deliveries.paid_messages(1) == {}
