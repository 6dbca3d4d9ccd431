"""Drain: in order, one at a time, and nothing that breaks holds a conversation up."""

from __future__ import annotations

import asyncio
import threading

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from sayso.channels.base import DeliveryUncertain, RateLimited, Refused, Unreachable
from sayso.channels.i18n.texts import texts_for
from sayso.channels.types import Media, Reply
from sayso.pending.concurrency import run_without_loop
from sayso.pending.turns import TurnChange
from sayso.workers import processor, sender
from sayso.workers import progress as beside
from sayso.workers.processor import LONG_CHARS, MAX_TURNS, ConversationProcessor, _split_now
from sayso.workers.sender import ReplySender
from tests.contracts.rigs import CHAT, ENGLISH, MemoryRig, turn, voice
from tests.workers.fakes import FakeAgent, FakeChannel


class Room:
    """One conversation in memory with a fake channel and a fake agent."""

    def __init__(self, answer=str.upper, agent=None, **options) -> None:
        self.rig, self.channel = MemoryRig(), FakeChannel()
        channels = {"chat": self.channel}
        agents = {"chat": agent or FakeAgent(answer)}
        sender = ReplySender(self.rig.outbox, channels, texts_for, chance=lambda: 1.0)
        self.processor = ConversationProcessor(self.rig.mailbox, sender, channels, agents, voice, **options)

    def hear(self, *texts: str) -> None:
        """Accept turns."""
        for text in texts:
            self.rig.accept(turn(text))

    def work(self, *texts: str) -> list[str]:
        """Accept and process; return what arrived so far."""
        self.hear(*texts)
        asyncio.run(self.processor.run(CHAT.id))
        return self.channel.texts


def test_lane_lost_in_the_middle_commits_nothing():
    """A worker whose lane was taken says nothing and leaves the turn to the other."""
    room = Room()

    def steal(text):
        room.rig.end_lease()
        run_without_loop(room.rig.mailbox.lease(CHAT.id, "thief"))
        return text

    room.processor.agents["chat"]._answer = steal
    assert room.work("a") == []
    assert room.rig.mailbox.lease(CHAT.id, "thief")[1].turn.text == "a"


def test_worker_that_was_stopped_before_it_sent_sends_nothing(monkeypatch):
    """Its lane may be somebody else's by now, who says it too: sending is not fenced."""
    now = [0.0]
    room = Room(clock=lambda: now[0])

    class Stopped(asyncio.Lock):
        async def acquire(self) -> bool:
            now[0] += processor.LEASE_MS / 1000
            return await super().acquire()

    monkeypatch.setattr(room.processor.sender, "_start_in_turn", Stopped())
    assert room.work("a") == []
    room.rig.end_lease()
    assert room.rig.mailbox.lease(CHAT.id, "other")[1].number == 1


def test_typing_that_hangs_is_given_up_before_the_answer(monkeypatch):
    """It holds nobody up, and does not come after the answer, where it would stay."""
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
    """An agent that begins, does something to its room, and never ends."""

    def __init__(self, then) -> None:
        self.then, self.cancelled = then, []

    async def answer(self, queued, lease, hear=None):
        """Wait for ever."""
        self.then()
        try:
            await asyncio.sleep(60)
        finally:
            self.cancelled.append(True)


def test_lane_that_cannot_be_renewed_stops_the_work(monkeypatch):
    """The turn is cancelled as soon as the lane is known to be lost."""
    monkeypatch.setattr(processor, "LEASE_MS", 30)

    def steal() -> None:
        room.rig.end_lease()
        run_without_loop(room.rig.mailbox.lease(CHAT.id, "thief"))

    agent = Slow(steal)
    room = Room(agent=agent)
    assert (room.work("a"), agent.cancelled) == ([], [True])


def test_lane_that_may_be_lost_stops_the_work(monkeypatch):
    """Redis is away for longer than the lease lasts: somebody else may be at it."""
    monkeypatch.setattr(processor, "LEASE_MS", 30)

    def fail(_lease):
        raise RedisConnectionError("away")

    agent = Slow(lambda: setattr(room.rig.mailbox, "renew", fail))
    room = Room(agent=agent)
    assert (room.work("a"), agent.cancelled) == ([], [True])


def counted(room: Room, third: asyncio.Event | None = None) -> list[int]:
    """How often the room's lane is renewed, from now on. `third` is set at the third time."""
    renewed, renew = [], room.rig.mailbox.renew

    def noted(lease):
        renewed.append(1)
        if third and len(renewed) == 3:
            third.set()
        return renew(lease)

    room.rig.mailbox.renew = noted
    return renewed


def test_lane_is_not_renewed_before_it_is_due():
    """Most turns are over by then, and ask nothing for it."""
    room = Room()
    renewed = counted(room)
    assert (room.work("a"), renewed) == (["A"], [])


def test_lane_is_kept_for_as_long_as_its_turn_takes(monkeypatch):
    """Renewed again and again."""
    monkeypatch.setattr(processor, "LEASE_MS", 300)

    third = asyncio.Event()

    class Patient(FakeAgent):
        async def answer(self, queued, lease, hear=None):
            await third.wait()
            return TurnChange(replies=((Reply("done"), ""),))

    room = Room(agent=Patient())
    counted(room, third)
    assert room.work("a") == ["done"]


def test_second_worker_leaves_at_once():
    """Where another worker is at it, nothing is sent twice."""
    room = Room()
    room.hear("a")
    room.rig.mailbox.lease(CHAT.id, "other")
    assert room.work() == []


def test_redis_error_of_an_agent_is_not_swallowed():
    """Nothing may be said of a turn whose state is unknown: it stays for the next holder."""

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

    async def answer(self, queued, lease, hear=None):
        """Two replies."""
        return TurnChange(replies=((Reply(media=Media("m", "image/png", "chart.png")), ""), (Reply("done"), "")))


def test_file_whose_answer_was_lost_is_not_sent_twice():
    """The person is told that it may be missing; the words after it still go out."""
    room = Room(agent=SendsAFile())
    room.channel.errors = [DeliveryUncertain("lost")]
    assert room.work("a") == []
    room.rig.pass_time(3)
    assert room.work() == [ENGLISH.maybe_missing("chart.png"), "done"]
    assert [delivery.reply.media for delivery in room.channel.sent] == [None, None]


def test_words_whose_answer_was_lost_are_said_again_marked():
    """At least once, and honest about the double."""
    room = Room()
    room.channel.errors = [DeliveryUncertain("lost")]
    assert room.work("a") == []
    room.rig.pass_time(3)
    assert room.work() == [ENGLISH.repeated("A")]
    assert room.channel.sent[0].attempt == 2


def test_words_that_fill_a_message_are_said_again_as_they_were():
    """The mark must not make a message too long for its platform."""
    room = Room(lambda text: "A|")
    room.channel.errors = [None, DeliveryUncertain("lost")]
    room.work("a")
    room.channel.split = lambda reply: [reply, reply]
    room.rig.pass_time(3)
    assert room.work() == ["A", ""]


def test_the_mark_stays_while_the_platform_is_away():
    """Lost, then unreachable: what may have arrived is still marked when it goes out at last."""
    room = Room()
    room.channel.errors = [DeliveryUncertain("lost"), Unreachable("down")]
    room.work("a")
    room.rig.pass_time(3)
    room.work()
    room.rig.pass_time(10)
    assert room.work() == [ENGLISH.repeated("A")]


def test_a_reply_whose_sender_was_killed_is_marked():
    """The worker died between sending and saying so: the next one cannot know, and says that."""
    room = Room()
    room.channel.errors = [RedisConnectionError("killed")]
    with pytest.raises(RedisConnectionError):
        room.work("a")
    room.rig.end_lease()
    assert room.work() == [ENGLISH.repeated("A")]


def test_rate_limited_reply_is_parked_for_as_long_as_asked():
    """Nothing else of the conversation overtakes it."""
    room = Room()
    room.channel.errors = [RateLimited(30)]
    assert room.work("a", "b") == []
    room.rig.pass_time(29)
    assert room.rig.overdue() == []
    room.rig.pass_time(2)
    assert (room.rig.overdue(), room.work()) == ([CHAT.id], ["A", "B"])


def test_unreachable_platform_is_tried_again_with_growing_pauses():
    """Two seconds, four, eight..."""
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
    """After the last try it is buried and the conversation goes on."""
    room = Room()
    room.channel.errors = [error] * sender.MAX_ATTEMPTS
    room.hear("a", "b")
    for _ in range(sender.MAX_ATTEMPTS):
        room.work()
        room.rig.pass_time(100)
    assert (room.work(), room.rig.dead()) == (["B"], 1)


def test_refused_reply_is_buried_and_the_next_goes_out():
    """A blocked address costs one reply."""
    room = Room()
    room.channel.errors = [Refused("blocked")]
    assert (room.work("a", "b"), room.rig.dead()) == (["B"], 1)
    assert "Refused" in room.rig.mailbox.undelivered("dead")[0].reason


def test_adapter_that_crashes_is_a_try():
    """A bug in an adapter does not hold the conversation up for ever."""
    room = Room()
    room.channel.errors = [KeyError("bug")]
    assert room.work("a") == []
    room.rig.pass_time(3)
    assert room.work() == ["A"]


def test_adapter_that_cannot_split_sends_whole():
    """Nor does a bug in its arithmetic."""
    room = Room()
    room.channel.split = None
    assert room.work("a|b") == ["A|B"]


def test_broken_agent_says_so_and_the_next_turn_goes_on():
    """The person hears a word, never the error's text."""

    def sometimes(text):
        if text == "a":
            raise ValueError("secret")
        return text

    assert Room(sometimes).work("a", "b") == [ENGLISH.broken(), "b"]


def test_turn_that_takes_too_long_is_ended_with_a_word():
    """And the next one is worked on."""

    class Stuck(FakeAgent):
        async def answer(self, queued, lease, hear=None):
            await asyncio.sleep(60)

    assert Room(agent=Stuck(), turn_timeout=0.01).work("a", "b") == [ENGLISH.too_long(), ENGLISH.too_long()]


def test_turn_of_a_channel_without_agent_hears_so():
    """Nobody waits for an answer that cannot come."""
    room = Room()
    room.processor.agents.clear()
    assert room.work("a") == [ENGLISH.channel_gone()]


def test_reply_of_a_removed_channel_is_buried():
    """What cannot be sent any more does not block."""
    room = Room()
    room.processor.channels.clear()
    assert (room.work("a"), room.rig.dead()) == ([], 1)


def test_replies_go_out_before_the_next_turn():
    """The second turn is read when the first one's answer has arrived."""
    seen = []
    room = Room(lambda text: seen.append((text, list(room.channel.texts))) or text.upper())
    room.work("a", "b")
    assert seen == [("a", []), ("b", ["A"])]


def test_reply_goes_out_in_pieces_in_order():
    """platforms.md 1.3: each piece is a delivery of its own, with an id of its own."""
    room = Room()
    assert room.work("a|b|c") == ["A", "B", "C"]
    assert [delivery.id for delivery in room.channel.sent] == [f"{CHAT.id}#{number}" for number in (1, 2, 3)]


@pytest.mark.parametrize(("size", "beside"), [(LONG_CHARS, False), (LONG_CHARS + 1, True)])
def test_a_long_reply_is_cut_beside_the_loop(size: int, beside: bool):
    """While it takes its time, the worker's other conversations go on."""
    room, threads = Room(lambda text: "X" * size), []
    cut = room.channel.split
    room.channel.split = lambda reply: threads.append(threading.current_thread()) or cut(reply)
    assert room.work("a") == ["X" * size]
    assert (threads[0] is not threading.main_thread()) == beside


def test_each_piece_of_a_question_belongs_to_it():
    """The window opens with the last; if one before it never arrives, the question ends."""
    change = TurnChange(replies=((Reply("a|b"), "pid"), (Reply("c|d"), "")))
    pieces = _split_now(change, FakeChannel()).replies
    assert [(reply.text, pid) for reply, pid in pieces] == [("a", "+pid"), ("b", "pid"), ("c", ""), ("d", "")]


def test_edit_that_a_platform_cannot_show_is_left_out():
    """The replies around it go out, and a question is never left out."""
    channel = FakeChannel()
    channel.split = lambda reply: () if reply.optional else (reply,)
    edit = Reply("Delete it?", edits="m7", optional=True)
    change = TurnChange(replies=((edit, ""), (Reply("done"), ""), (edit, "pid")))
    assert _split_now(change, channel).replies == ((Reply("done"), ""), (edit, "pid"))


def test_busy_conversation_is_handed_over():
    """After MAX_TURNS others go first; the rest is due soon and not lost."""
    room = Room()
    texts = [str(number) for number in range(MAX_TURNS + 2)]
    assert room.work(*texts) == texts[:MAX_TURNS]
    room.rig.pass_time(6)
    assert (room.rig.overdue(), room.work()) == ([CHAT.id], texts)


def test_slow_conversation_is_handed_over():
    """The same after MAX_SECONDS."""
    now = [0.0]

    def slow(text):
        now[0] += processor.MAX_SECONDS + 1
        return text

    assert Room(slow, clock=lambda: now[0]).work("a", "b") in ([], ["a"])


def test_turn_that_came_in_meanwhile_is_answered_too():
    """No wake-up is needed for it: the holder sees it before it lets go."""
    room = Room(lambda text: (room.hear("b") if text == "a" else None) or text)
    assert room.work("a") == ["a", "b"]


def test_empty_conversation_is_no_work():
    """A wake-up for nothing is harmless."""
    assert Room().work() == []


def test_turn_of_a_channel_that_only_another_worker_knows_waits_for_it():
    """During a rolling change: nothing is said, nothing is lost, and the worker that knows the channel answers."""
    room = Room()
    channels, agents = dict(room.processor.channels), dict(room.processor.agents)
    room.processor.channels.clear()
    room.processor.agents.clear()
    assert room.work("a") == []
    room.processor.channels.update(channels)
    room.processor.agents.update(agents)
    assert len(room.work()) == 1


def test_turn_of_a_channel_that_no_worker_knows_for_a_day_is_given_up():
    """Its reply can go nowhere: an operator finds it among the dead."""
    room = Room()
    room.processor.channels.clear()
    room.processor.agents.clear()
    assert (room.work("a"), room.rig.dead()) == ([], 0)
    room.rig.pass_time(processor.UNKNOWN_CHANNEL_SECONDS + 1)
    assert (room.work(), room.rig.dead()) == ([], 1)
