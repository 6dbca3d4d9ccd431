"""Processor: turns run in order, one at a time, and no failure stops a conversation."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from sayso.channels.base import DeliveryUncertain, RateLimited, Refused, Unreachable
from sayso.channels.i18n.texts import texts_for
from sayso.channels.types import Button, Media, Reply
from sayso.infra.concurrency import run_without_loop
from sayso.pending.turn_changes import TurnChange, TurnReply
from sayso.workers import lease, processor, sender
from sayso.workers import progress as beside
from sayso.workers.mailbox import refusal
from sayso.workers.processor import MAX_TURNS
from sayso.workers.replies import split_replies
from sayso.workers.turn_processor import LONG_CHARS
from tests.contracts.rigs import CHAT, ENGLISH, Rig, make_processor, make_sender, turn
from tests.workers.fakes import FakeAgent, FakeChannel


class Room:
    """One conversation in memory with a fake channel and a fake agent."""

    def __init__(self, answer=str.upper, agent=None, **options) -> None:
        self.rig, self.channel = Rig(), FakeChannel()
        channels = {"chat": self.channel}
        agents = {"chat": agent or FakeAgent(answer)}
        sender = make_sender(self.rig.outbox, channels, chance=lambda: 1.0)
        self.processor = make_processor(self.rig.mailbox, sender, channels, agents, **options)

    def hear(self, *texts: str) -> None:
        """Accept turns."""
        for text in texts:
            self.rig.accept(turn(text))

    def work(self, *texts: str) -> list[str]:
        """Accept and process; return what arrived so far."""
        self.hear(*texts)
        asyncio.run(self.processor.run(CHAT.id))
        return self.channel.texts


def test_lease_lost_in_the_middle_commits_nothing():
    """A worker whose lease was taken sends nothing and leaves the turn to the other worker."""
    room = Room()

    def steal(text):
        room.rig.end_lease()
        run_without_loop(room.rig.mailbox.lease(CHAT.id, "thief"))
        return text

    room.processor.turns.agents["chat"]._answer = steal
    assert room.work("a") == []
    assert room.rig.mailbox.lease(CHAT.id, "thief")[1].turn.text == "a"


def test_worker_that_was_stopped_before_it_sent_sends_nothing(monkeypatch):
    """Sending is not fenced, and another worker may hold the lease and send the reply by now."""
    now = [0.0]
    room = Room(clock=lambda: now[0])

    async def stopped(*_) -> None:
        now[0] += lease.LEASE_MS / 1000

    monkeypatch.setattr(room.processor.sender, "_wait_for_slot", stopped)
    assert room.work("a") == []
    room.rig.end_lease()
    assert room.rig.mailbox.lease(CHAT.id, "other")[1].number == 1


def test_typing_that_hangs_is_given_up_before_the_answer(monkeypatch):
    """It does not delay the answer, and does not come after it, where it would stay visible."""
    room, seen = Room(), []

    async def hang(turn) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            seen.append(list(room.channel.texts))

    monkeypatch.setattr(beside, "LAST_CALL_SECONDS", 0.001)
    monkeypatch.setattr(room.channel, "show_typing", hang)
    assert (room.work("a"), seen) == (["A"], [[]])


class Slow(FakeAgent):
    """An agent that starts, changes its conversation, and never ends."""

    def __init__(self, then) -> None:
        self.then, self.cancelled = then, []

    async def answer(self, queued, lease, stream=None, on_step=None):
        """Wait for ever."""
        self.then()
        try:
            await asyncio.sleep(60)
        finally:
            self.cancelled.append(True)


def test_lease_that_cannot_be_renewed_stops_the_turn(monkeypatch):
    """The turn is cancelled as soon as the lease is known to be lost."""
    monkeypatch.setattr(lease, "LEASE_MS", 30)

    def steal() -> None:
        room.rig.end_lease()
        run_without_loop(room.rig.mailbox.lease(CHAT.id, "thief"))

    agent = Slow(steal)
    room = Room(agent=agent)
    assert (room.work("a"), agent.cancelled) == ([], [True])


def test_lease_that_may_be_lost_stops_the_turn(monkeypatch):
    """Redis is away for longer than the lease lasts, so another worker may hold it."""
    monkeypatch.setattr(lease, "LEASE_MS", 30)
    monkeypatch.setattr(lease, "FRESH_SECONDS", 0.03)

    def fail(_lease):
        raise RedisConnectionError("away")

    agent = Slow(lambda: None)
    room = Room(agent=agent)
    room.rig.mailbox.renew = fail
    assert (room.work("a"), agent.cancelled) == ([], [True])


def counted(room: Room, third: asyncio.Event | None = None) -> list[int]:
    """Count how often the lease is renewed from now on. The third time sets `third`."""
    renewed, renew = [], room.rig.mailbox.renew

    def noted(lease):
        renewed.append(1)
        if third and len(renewed) == 3:
            third.set()
        return renew(lease)

    room.rig.mailbox.renew = noted
    return renewed


def test_lease_is_not_renewed_before_it_is_due():
    """Most turns are over by then and cost no call for it."""
    room = Room()
    renewed = counted(room)
    assert (room.work("a"), renewed) == (["A"], [])


def test_lease_is_kept_for_as_long_as_its_turn_takes(monkeypatch):
    """It is renewed again and again."""
    monkeypatch.setattr(lease, "LEASE_MS", 300)

    third = asyncio.Event()

    class Patient(FakeAgent):
        async def answer(self, queued, lease, stream=None, on_step=None):
            await third.wait()
            return TurnChange(replies=(TurnReply(Reply("done")),))

    room = Room(agent=Patient())
    counted(room, third)
    assert room.work("a") == ["done"]


def test_second_worker_leaves_at_once():
    """Another worker holds the lease, so nothing is sent twice."""
    room = Room()
    room.hear("a")
    room.rig.mailbox.lease(CHAT.id, "other")
    assert room.work() == []


def test_redis_error_of_an_agent_is_not_swallowed():
    """The state of the turn is unknown, so it gets no reply and stays for the next holder."""

    def fail(_text):
        raise RedisConnectionError("away")

    room = Room(fail)
    with pytest.raises(RedisConnectionError):
        room.work("a")
    assert room.channel.texts == []
    room.rig.end_lease()
    assert room.rig.mailbox.lease(CHAT.id, "next")[1].turn.text == "a"


class SendsAFile(FakeAgent):
    """Answers with a file and words after it."""

    async def answer(self, queued, lease, stream=None, on_step=None):
        """Answer with two replies."""
        return TurnChange(
            replies=(
                TurnReply(Reply(media=Media("m", "image/png", "chart.png"))),
                TurnReply(Reply("done")),
            )
        )


def test_file_whose_answer_was_lost_is_not_sent_twice():
    """The person is told that it may be missing; the text after it still goes out."""
    room = Room(agent=SendsAFile())
    room.channel.errors = [DeliveryUncertain("lost")]
    assert room.work("a") == []
    room.rig.pass_time(3)
    assert room.work() == [ENGLISH.maybe_missing("chart.png"), "done"]
    assert [delivery.reply.media for delivery in room.channel.sent] == [None, None]


@pytest.mark.parametrize("pieces", [1, 2])
def test_text_above_a_file_whose_answer_was_lost_is_sent_again_marked(pieces: int):
    """The text is not lost with the file, which is only asked about. A text that fills a message has no mark.

    Nobody else in a group sees it either.
    """
    room = Room()
    chart = Media("m", "image/png", "chart.png")
    change = TurnChange(replies=(TurnReply(Reply("Sales", media=chart, only_for="ana")),))

    async def answer(queued, lease, stream=None, on_step=None) -> TurnChange:
        return change

    room.processor.turns.agents["chat"].answer = answer
    room.channel.errors = [DeliveryUncertain("lost")]
    assert room.work("a") == []
    room.rig.pass_time(3)
    room.channel.split = lambda reply: [reply] * pieces
    marked = f"{ENGLISH.repeated('Sales')}\n\n{ENGLISH.maybe_missing('chart.png')}"
    assert room.work() == [marked if pieces == 1 else "Sales"]
    sent_reply = room.channel.sent[0].reply
    assert (sent_reply.media, sent_reply.only_for) == (None, "ana")


def test_text_whose_answer_was_lost_is_sent_again_marked():
    """The text is sent at least once, and the repetition is marked."""
    room = Room()
    room.channel.errors = [DeliveryUncertain("lost")]
    assert room.work("a") == []
    room.rig.pass_time(3)
    assert room.work() == [ENGLISH.repeated("A")]
    assert room.channel.sent[0].attempt == 2


def test_text_that_fills_a_message_is_sent_again_unmarked():
    """The mark must not make a message too long for its platform."""
    room = Room(lambda text: "A|")
    room.channel.errors = [None, DeliveryUncertain("lost")]
    room.work("a")
    room.channel.split = lambda reply: [reply, reply]
    room.rig.pass_time(3)
    assert room.work() == ["A", ""]


def test_the_mark_stays_while_the_platform_is_away():
    """After a lost answer the platform is unreachable. The reply is still marked when it goes out at last."""
    room = Room()
    room.channel.errors = [DeliveryUncertain("lost"), Unreachable("down")]
    room.work("a")
    room.rig.pass_time(3)
    room.work()
    room.rig.pass_time(10)
    assert room.work() == [ENGLISH.repeated("A")]


def test_a_reply_whose_sender_was_killed_is_marked():
    """The worker died between the send and its receipt. The next one cannot know and marks the reply."""
    room = Room()
    room.channel.errors = [RedisConnectionError("killed")]
    with pytest.raises(RedisConnectionError):
        room.work("a")
    room.rig.end_lease()
    assert room.work() == [ENGLISH.repeated("A")]


def test_rate_limited_reply_is_parked_for_as_long_as_asked():
    """No other reply of the conversation overtakes it."""
    room = Room()
    room.channel.errors = [RateLimited(30)]
    assert room.work("a", "b") == []
    room.rig.pass_time(29)
    assert room.rig.overdue() == []
    room.rig.pass_time(2)
    assert (room.rig.overdue(), room.work()) == ([CHAT.id], ["A", "B"])


def test_unreachable_platform_is_retried_with_backoff():
    """The pauses are two seconds, four, eight and so on."""
    room = Room()
    room.channel.errors = [Unreachable("down")] * 3
    room.hear("a")
    for pause in (2, 4, 8):
        assert room.work() == []
        room.rig.pass_time(pause - 1)
        assert room.rig.overdue() == []
        room.rig.pass_time(1)
        assert room.rig.overdue() == [CHAT.id]
    assert room.work() == ["A"]


@pytest.mark.parametrize("error", [Unreachable("down"), RateLimited(1)])
def test_reply_that_never_arrives_is_given_up(error):
    """After the last attempt it becomes a dead letter, and the conversation goes on."""
    room = Room()
    room.channel.errors = [error] * sender.MAX_SEND_ATTEMPTS
    room.hear("a", "b")
    for _ in range(sender.MAX_SEND_ATTEMPTS):
        room.work()
        room.rig.pass_time(100)
    assert (room.work(), room.rig.dead()) == (["B"], 1)


def test_refused_reply_is_given_up_and_the_next_goes_out():
    """A blocked address costs one reply."""
    room = Room()
    room.channel.errors = [Refused("blocked")]
    assert (room.work("a", "b"), room.rig.dead()) == (["B"], 1)
    assert "Refused" in room.rig.deliveries.undelivered("dead")[0].reason


def test_crash_of_an_adapter_counts_as_an_attempt():
    """A bug in an adapter does not stop the conversation for ever. Its message may have arrived."""
    room = Room()
    room.channel.errors = [KeyError("bug")]
    assert room.work("a") == []
    room.rig.pass_time(3)
    assert room.work() == [ENGLISH.repeated("A")]


def test_adapter_that_cannot_split_sends_whole():
    """A bug in the splitting does not lose the reply."""
    room = Room()
    room.channel.split = None
    assert room.work("a|b") == ["A|B"]


def test_crash_of_an_agent_is_told_and_the_next_turn_goes_on():
    """The person gets a notice without the error's text."""

    def sometimes(text):
        if text == "a":
            raise ValueError("secret")
        return text

    assert Room(sometimes).work("a", "b") == [ENGLISH.broken(), "b"]


def test_turn_that_takes_too_long_is_ended_with_a_notice():
    """The next turn runs."""

    class Stuck(FakeAgent):
        async def answer(self, queued, lease, stream=None, on_step=None):
            await asyncio.sleep(60)

    assert Room(agent=Stuck(), turn_timeout=0.01).work("a", "b") == [
        ENGLISH.too_long(),
        ENGLISH.too_long(),
    ]


def test_turn_of_a_channel_without_agent_gets_a_notice():
    """The person does not wait for an answer that cannot come."""
    room = Room()
    room.processor.turns.agents.clear()
    assert room.work("a") == [ENGLISH.channel_gone()]


def test_reply_of_a_removed_channel_is_given_up():
    """It does not block the conversation."""
    room = Room()
    room.processor.turns.channels.clear()
    assert (room.work("a"), room.rig.dead()) == ([], 1)


def test_replies_go_out_before_the_next_turn():
    """The second turn starts when the first one's answer has arrived."""
    seen = []
    room = Room(lambda text: seen.append((text, list(room.channel.texts))) or text.upper())
    room.work("a", "b")
    assert seen == [("a", []), ("b", ["A"])]


def test_reply_goes_out_in_pieces_in_order():
    """platforms.md 1.3: each piece is a delivery of its own, with an id of its own."""
    room = Room()
    assert room.work("a|b|c") == ["A", "B", "C"]
    assert [delivery.id for delivery in room.channel.sent] == [
        f"{CHAT.id}#{number}" for number in (1, 2, 3)
    ]


@pytest.mark.parametrize(("size", "beside"), [(LONG_CHARS, False), (LONG_CHARS + 1, True)])
def test_a_long_reply_is_cut_beside_the_loop(size: int, beside: bool):
    """The worker's other conversations go on in the meantime."""
    room, threads = Room(lambda text: "X" * size), []
    cut = room.channel.split
    room.channel.split = lambda reply: threads.append(threading.current_thread()) or cut(reply)
    assert room.work("a") == ["X" * size]
    assert (threads[0] is not threading.main_thread()) == beside


def test_each_piece_of_a_question_belongs_to_it():
    """The window opens with the last piece. If an earlier one never arrives, the question ends."""
    change = TurnChange(replies=(TurnReply.question(Reply("a|b"), "pid"), TurnReply(Reply("c|d"))))
    assert split_replies(change, FakeChannel()).replies == (
        TurnReply.question_part(Reply("a"), "pid"),
        TurnReply.question(Reply("b"), "pid"),
        TurnReply(Reply("c")),
        TurnReply(Reply("d")),
    )


def test_edit_that_a_platform_cannot_show_is_left_out():
    """The replies around it go out, and a question is never left out."""
    channel = FakeChannel()
    channel.split = lambda reply: () if reply.optional else (reply,)
    edit = Reply("Delete it?", edits="m7", optional=True)
    change = TurnChange(
        replies=(TurnReply(edit), TurnReply(Reply("done")), TurnReply.question(edit, "pid"))
    )
    assert split_replies(change, channel).replies == (
        TurnReply(Reply("done")),
        TurnReply.question(edit, "pid"),
    )


def test_busy_conversation_is_handed_over():
    """After MAX_TURNS other conversations go first; the remaining turns are due soon."""
    room = Room()
    texts = [str(number) for number in range(MAX_TURNS + 2)]
    assert room.work(*texts) == texts[:MAX_TURNS]
    room.rig.pass_time(6)
    assert (room.rig.overdue(), room.work()) == ([CHAT.id], texts)


def test_slow_conversation_is_handed_over():
    """The same holds after MAX_SECONDS."""
    now = [0.0]

    def slow(text):
        now[0] += processor.MAX_SECONDS + 1
        return text

    assert Room(slow, clock=lambda: now[0]).work("a", "b") in ([], ["a"])


def test_time_for_replies_does_not_hold_a_turn_back():
    """Slow replies from elsewhere may come again and again: each job answers one turn at least."""
    now, answered = [0.0], []
    room = Room(lambda text: answered.append(text) or text, clock=lambda: now[0])
    send = room.channel.send

    async def send_slowly(delivery):
        now[0] += processor.MAX_SECONDS + 1
        return await send(delivery)

    room.channel.send = send_slowly
    assert room.rig.mailbox.notify(turn("too many"), Reply("notice"))
    room.work("a", "b")
    assert answered == ["a"]


def test_turn_that_came_in_meanwhile_is_answered_too():
    """It needs no wake-up: the holder sees it before it releases the lease."""
    room = Room(lambda text: (room.hear("b") if text == "a" else None) or text)
    assert room.work("a") == ["a", "b"]


def test_wake_up_of_an_empty_conversation_is_harmless():
    """The worker finds no turn and returns."""
    assert Room().work() == []


def test_turn_of_a_channel_that_only_another_worker_knows_waits_for_it():
    """During a rolling upgrade nothing is sent or lost, and the worker that knows the channel answers."""
    room = Room()
    channels, agents = dict(room.processor.turns.channels), dict(room.processor.turns.agents)
    room.processor.turns.channels.clear()
    room.processor.turns.agents.clear()
    assert room.work("a") == []
    room.processor.turns.channels.update(channels)
    room.processor.turns.agents.update(agents)
    assert len(room.work()) == 1


def test_turn_of_a_channel_that_no_worker_knows_for_a_day_is_given_up():
    """Its reply has no channel; the operator finds it among the dead letters."""
    room = Room()
    room.processor.turns.channels.clear()
    room.processor.turns.agents.clear()
    assert (room.work("a"), room.rig.dead()) == ([], 0)
    room.rig.pass_time(processor.UNKNOWN_CHANNEL_SECONDS + 1)
    assert (room.work(), room.rig.dead()) == ([], 1)


class OneMessage(FakeChannel):
    """A platform on which a message holds 20 characters, with buttons 10, and beside a picture 10."""

    def split(self, reply: Reply) -> list[Reply]:
        """Cut a text into messages of 20 characters; what fits beside no text is a message of its own."""
        if reply.edits and reply.optional:
            return []
        limit = 10 if reply.buttons or reply.media else 20
        is_alone = not reply.media or reply.media.kind == "image" or not reply.text
        if len(reply.text) <= limit and is_alone:
            return [reply]
        if reply.media:
            return [*self.split(replace(reply, media=None)), Reply(media=reply.media)]
        return [Reply(reply.text[:limit]), *self.split(replace(reply, text=reply.text[limit:]))]


PICTURE = Media("p", "image/png", stored=True)
DOCUMENT = Media("d", "application/pdf", stored=True)
ASKED = Reply("sure?", (Button("Yes", "y", "danger"),), preview="sure?")
CLOSED = Reply("closed", edits="m1", optional=True)
#: The replies below that are in more than one case.
A = TurnReply(Reply("a"))
B = TurnReply(Reply("b"))
QUESTION = TurnReply.question(ASKED, "pid")


@pytest.mark.parametrize(
    ("replies", "sent"),
    [
        ([A, B], [TurnReply(Reply("a\n\nb"))]),
        ([A, QUESTION], [TurnReply.question(replace(ASKED, text="a\n\nsure?"), "pid")]),
        ([A, TurnReply(Reply(media=PICTURE))], [TurnReply(Reply("a", media=PICTURE))]),
        ([TurnReply(CLOSED), A, B], [TurnReply(Reply("a\n\nb"))]),
        ([A, TurnReply(Reply(media=DOCUMENT))], None),
        ([TurnReply(Reply("a" * 6)), QUESTION], None),
        ([TurnReply(Reply("a" * 19)), B], None),
        ([QUESTION, B], None),
        ([TurnReply(Reply("a", only_for="ana")), B], None),
        ([A, TurnReply(Reply("b", collapse="c"))], None),
    ],
    ids=[
        "two texts", "above a question", "caption", "behind an edit", "document", "too long for buttons", "too long",
        "question first", "for one person", "replaceable",
    ],
)  # fmt: skip
def test_replies_that_are_one_message_together_are_joined_where_each_costs_money(replies, sent):
    """Nothing is cut in two for it, and a question stays at the end of its message."""
    change = split_replies(TurnChange(replies=tuple(replies)), OneMessage(), joins=True)
    assert list(change.replies) == (replies if sent is None else sent)


def test_replies_stay_apart_where_the_adapter_cannot_tell_whether_they_fit():
    """Each alone can be sent. Both together may be refused."""

    def split(reply: Reply) -> list[Reply]:
        if "\n\n" in reply.text:
            raise RuntimeError("a bug")
        return [reply]

    channel = FakeChannel()
    channel.split = split
    assert split_replies(TurnChange(replies=(A, B)), channel, joins=True).replies == (A, B)


def test_replies_stay_apart_where_no_message_costs_money():
    """A chart without a caption is easier to read above its text."""
    replies = (TurnReply(Reply("a")), TurnReply(Reply(media=PICTURE)))
    assert split_replies(TurnChange(replies=replies), OneMessage()).replies == replies


@pytest.mark.parametrize("outcome", ["too_fast", "overloaded", "full"])
def test_notice_of_a_refused_turn_has_its_language(outcome):
    """It may be sent a second time, too."""
    assert refusal(texts_for("de"), outcome).language == "de"


def test_each_message_of_a_long_reply_has_its_language():
    """The mark of a message that is sent a second time is in this language."""
    change = TurnChange(replies=(TurnReply(Reply("eins|zwei", language="de")),))
    messages = split_replies(change, FakeChannel()).replies
    assert [each.reply.language for each in messages] == ["de", "de"]


@pytest.mark.parametrize(
    ("paid_channels", "heard"), [((), [ENGLISH.still_working(), "answer"]), (("chat",), ["answer"])]
)
def test_long_turn_gets_no_notice_where_each_message_costs_money(paid_channels, heard):
    """Its platform shows "typing", which is free, until the answer comes."""
    soon = 0.001
    room = Room(notice_after=soon, paid_channels=paid_channels)

    async def answer(queued, lease, stream=None, on_step=None) -> TurnChange:
        long_after = asyncio.Event()
        asyncio.get_running_loop().call_later(10 * soon, long_after.set)
        await long_after.wait()
        return TurnChange(replies=(TurnReply(Reply("answer")),))

    room.processor.turns.agents["chat"].answer = answer
    assert room.work("a") == heard
