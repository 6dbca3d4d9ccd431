"""Drafts: an answer is shown while it comes, in one message, and no draft delays or outlives its turn."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from sayso.agent import Agent, AgentConfig, tool
from sayso.agent.channel.channel_agent import ChannelAgent, may_stream
from sayso.agent.guards.coherence import CoherenceCheck
from sayso.agent.guards.guardrails import GuardrailsPipeline, LengthGuardrail
from sayso.agent.messages import Message, Role, UsageStats
from sayso.channels.base import (
    ConversationRateLimited,
    DeliveryUncertain,
    RateLimit,
    RateLimited,
    Refused,
)
from sayso.channels.i18n.texts import texts_for
from sayso.channels.types import Reply
from sayso.infra.redis.shared_cache import SharedCache
from sayso.pending.turn_changes import TurnChange, TurnReply
from sayso.pending.turns import QueuedTurn
from sayso.workers.progress import FIRST_WORDS_SECONDS, DraftMessage, DraftRateLimiter
from sayso.workers.replies import NO_WORDS, replace_draft
from tests.contracts.rigs import CHAT, ENGLISH, Rig, turn
from tests.memory_stores import MemorySharedCache
from tests.workers.fakes import FakeAgent
from tests.workers.story import call
from tests.workers.test_processor import Room
from tests.workers.test_stop import Slow


class Screen:
    """A platform that shows drafts in one message; `errors` are raised by the next ones."""

    name = "chat"

    def __init__(self, message: str = "m1") -> None:
        self.message, self.errors, self.seen = message, [], []

    async def draft(self, turn, text, shown_id="") -> str:
        """Show the draft."""
        error = self.errors.pop(0) if self.errors else None
        if error:
            raise error
        self.seen.append((text, shown_id))
        return self.message


QUEUED = QueuedTurn(1, 0.0, "u", turn(), None, None, "")


class Show:
    """A draft on a stopped clock; the test lets pauses pass."""

    def __init__(
        self, screen: Screen, queued: QueuedTurn = QUEUED, notes=None, rate_limiter=None, **options
    ) -> None:
        self.slept = []
        self.notes = notes or MemorySharedCache(clock=lambda: sum(self.slept))
        self._passes = asyncio.Semaphore(0)
        rate_limiter = rate_limiter or DraftRateLimiter(RateLimit(), clock=lambda: sum(self.slept))
        options = {
            "limit": RateLimit(draft_gap=2.0),
            "rate_limiter": rate_limiter,
            "sleep": self._sleep,
        } | options
        self.draft = DraftMessage(screen, queued, self.notes, **options)

    async def pause(self, times: int = 1, *, hangs: bool = False) -> None:
        """Let pauses pass, and note what is shown after each, unless the platform `hangs`."""
        for _ in range(times):
            self._passes.release()
            for _ in range(10):
                await asyncio.sleep(0)
            while self.draft._task._calling and not hangs:
                await asyncio.wait({self.draft._task._task}, timeout=0.001)

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await self._passes.acquire()


def played(scene) -> None:
    """Run the scene on a loop."""
    asyncio.run(scene())


def test_running_draft_ends_before_the_answer_goes_out():
    """Its message id must be known, or the draft would stay beside the answer. Afterwards nothing is shown."""
    screen, go, begun = Screen(), asyncio.Event(), asyncio.Event()
    plain = screen.draft

    async def slow(*given) -> str:
        begun.set()
        await go.wait()
        return await plain(*given)

    screen.draft = slow

    async def scene() -> None:
        show = Show(screen)
        await show.draft.begin()
        await show.draft("Hel")
        await show.pause(hangs=True)
        await begun.wait()
        ending = asyncio.create_task(show.draft.end())
        await asyncio.sleep(0)
        assert not ending.done()
        go.set()
        await ending
        await show.draft("lo")
        await show.pause(3)
        assert (screen.seen, show.draft.message_id) == ([("Hel", "")], "m1")

    played(scene)


def test_draft_in_a_group_waits_until_the_store_knows_of_it():
    """Otherwise a yes below it could count for the question above it."""
    screen, errors = Screen(), [RedisError("away")]

    async def before_first() -> None:
        if errors:
            raise errors.pop()

    async def scene() -> None:
        show = Show(screen, before_first=before_first)
        await show.draft.begin()
        await show.draft("Hel")
        await show.pause()
        assert screen.seen == []
        await show.pause()
        assert screen.seen == [("Hel", "")]
        await show.draft.end()

    played(scene)


def test_draft_grows_in_one_message_within_the_rate_limit():
    """The first words are shown at once, and pieces in between go together."""

    async def scene() -> None:
        screen = Screen()
        show = Show(screen)
        await show.draft.begin()
        await show.draft("Hel")
        assert screen.seen == []
        await show.pause()
        await show.draft("lo ")
        await show.draft("there")
        await show.pause(3)
        await show.draft.end()
        assert screen.seen == [("Hel", ""), ("Hello there", "m1")]
        assert show.slept == [FIRST_WORDS_SECONDS, 2.0, 2.0]

    played(scene)


def test_draft_has_no_sign_of_an_outcome():
    """A model writes it, also where an entity of HTML comes in two pieces."""

    async def scene() -> None:
        screen = Screen()
        show = Show(screen)
        await show.draft.begin()
        await show.draft("✅ Done &#x27")
        await show.draft("05; paid")
        await show.pause()
        await show.draft.end()
        assert screen.seen == [("(+) Done (+) paid", "")]

    played(scene)


def test_first_draft_where_drafts_count_as_messages_waits():
    """platforms.md 2.4: a group takes 20 messages a minute, so a quick answer there has no draft."""

    async def scene() -> None:
        screen = Screen()
        show = Show(screen, limit=RateLimit(draft_gap=4.0, draft_delay=4.0))
        await show.draft.begin()
        await show.draft("Hel")
        await show.pause()
        assert screen.seen == []
        await show.pause()
        assert (screen.seen, show.slept[:2]) == ([("Hel", "")], [4.0, FIRST_WORDS_SECONDS])
        await show.draft.end()

    played(scene)


def test_blank_beginning_of_an_answer_takes_no_slot():
    """Some models begin with an empty line; the first words would wait a whole gap."""

    async def scene() -> None:
        screen = Screen()
        show = Show(screen)
        await show.draft.begin()
        await show.draft("\n\n")
        await show.pause()
        await show.draft("Hel")
        await show.pause()
        await show.draft.end()
        assert (screen.seen, show.slept) == ([("\n\nHel", "")], [FIRST_WORDS_SECONDS, 2.0])

    played(scene)


def test_platform_that_asks_to_wait_gets_no_draft_before():
    """pains.md 12: afterwards it gets the newest."""

    async def scene() -> None:
        screen = Screen()
        screen.errors = [RateLimited(30)]
        show = Show(screen)
        await show.draft.begin()
        await show.draft("a")
        await show.pause()
        await show.draft("b")
        await show.pause()
        await show.draft.end()
        assert (screen.seen, show.slept) == ([("ab", "")], [FIRST_WORDS_SECONDS, 30, 2.0])

    played(scene)


def test_workspace_that_asks_to_wait_stops_the_drafts_of_its_conversation_alone():
    """Other conversations of the channel read no note.

    This one shows its newest text afterwards.
    """

    async def scene() -> None:
        screen = Screen()
        screen.errors = [ConversationRateLimited(30)]
        show = Show(screen)
        await show.draft.begin()
        await show.draft("a")
        await show.pause()
        assert show.notes.get("draft_pause:chat") is None
        await show.draft("b")
        await show.pause()
        await show.draft.end()
        assert (screen.seen, show.slept) == ([("ab", "")], [FIRST_WORDS_SECONDS, 30, 2.0])

    played(scene)


def taking_turns(rate_limiter: DraftRateLimiter, clock: list[float], times: int) -> list[float]:
    """Return the times at which this many drafts are shown."""
    shown = []

    async def sleep(seconds: float) -> None:
        clock[0] += seconds

    async def scene() -> None:
        for _ in range(times):
            await rate_limiter.book_slot(sleep)
            shown.append(clock[0])

    asyncio.run(scene())
    return shown


@pytest.mark.parametrize(
    ("pace", "shown"),
    [
        (RateLimit(per_second=8, draft_gap=1.0), [100.0, 100.5, 101.0]),
        (RateLimit(draft_gap=3.0), [100.0, 103.0, 106.0]),
    ],
)
def test_drafts_of_a_channel_leave_room_for_its_replies(pace, shown):
    """Otherwise many answers at once would make the platform pause the whole channel, replies included."""
    clock = [100.0]
    rate_limiter = DraftRateLimiter(pace, clock=lambda: clock[0])
    assert taking_turns(rate_limiter, clock, 3) == shown


@pytest.mark.parametrize(
    ("asked", "shown"),
    [(30.0, 130.0), (13_938.0, 14_038.0), (float("inf"), 86_500.0), (float("nan"), 100.0)],
)
def test_all_drafts_of_a_channel_wait_when_the_platform_asks_one(asked, shown):
    """Each one would be refused, and the platform would count it."""
    clock = [100.0]
    rate_limiter = DraftRateLimiter(RateLimit(), clock=lambda: clock[0])

    async def scene() -> None:
        screen = Screen()
        screen.errors = [RateLimited(asked)]
        show = Show(screen, rate_limiter=rate_limiter)
        await show.draft.begin()
        await show.draft("a")
        await show.pause()
        await show.draft.end()

    played(scene)
    assert taking_turns(rate_limiter, clock, 1) == [shown]


@pytest.mark.parametrize("make", [lambda _: MemorySharedCache(clock=lambda: 0.0), SharedCache])
def test_drafts_of_other_workers_wait_too(redis_client, make):
    """pains.md 12: a pause for one process holds for all."""
    notes = make(redis_client)

    async def scene() -> None:
        for screen in (Screen(), Screen()):
            screen.errors = [RateLimited(30)]
            show = Show(screen, notes=notes)
            await show.draft.begin()
            await show.draft("a")
            await show.pause(3)
            await show.draft.end()
        assert (screen.seen, len(screen.errors)) == ([], 1)

    played(scene)


def test_pause_of_all_drafts_ends(redis_client):
    """It ends at the time that the platform gave."""
    notes, clock = SharedCache(redis_client), [0.0]
    passing = MemorySharedCache(clock=lambda: clock[0])
    for each in (notes, passing):
        each.put("rest", "1", seconds=30)
    assert 29 <= redis_client.ttl("sayso:note:rest") <= 30
    clock[0] = 30.0
    assert passing.get("rest") is None


def test_answer_goes_out_at_once_although_its_draft_was_refused():
    """The answer has its own place in the outbox and is not lost with the draft."""
    room = streaming_room()

    async def refuse(turn, text, shown_id="") -> str:
        room.channel.seen.set()
        raise RateLimited(3600)

    room.channel.draft, room.channel.split = refuse, lambda reply: [reply]
    room.work("hi")
    assert edits(room) == [("Hello", ""), ("there", "")]


def test_drafts_of_one_worker_share_a_rate_limiter():
    """They share it over all conversations."""
    room = streaming_room()
    room.work("hi")
    rate_limiter = room.processor.turns._draft_limiters["chat"]
    room.work("hi")
    assert room.processor.turns._draft_limiters == {"chat": rate_limiter}


def test_draft_is_shown_later_if_its_adapter_finds_no_redis(caplog):
    """Slack's adapter reads tokens and threads in Redis. A short outage is no fault of the adapter."""

    async def scene() -> None:
        screen = Screen()
        screen.errors = [RedisConnectionError("away")]
        show = Show(screen)
        await show.draft.begin()
        await show.draft("a")
        await show.pause(2)
        await show.draft.end()
        assert screen.seen == [("a", "")]

    played(scene)
    assert not caplog.records


@pytest.mark.parametrize("error", [Refused("no"), DeliveryUncertain("?"), RuntimeError("bug")])
def test_platform_that_cannot_show_drafts_is_not_asked_again(error):
    """The turn goes on, and an earlier draft is still edited."""

    async def scene() -> None:
        screen = Screen()
        screen.errors = [None, error]
        show = Show(screen)
        await show.draft.begin()
        for piece in "abc":
            await show.draft(piece)
            await show.pause()
        await show.draft.end()
        assert (screen.seen, show.draft.message_id) == ([("a", "")], "m1")

    played(scene)


def test_new_step_of_the_model_starts_another_text():
    """The text before the tool calls is not repeated, and stays until new text comes."""

    async def scene() -> None:
        screen = Screen()
        show = Show(screen)
        await show.draft.begin()
        await show.draft("I look.")
        await show.pause()
        show.draft.anew()
        await show.pause(2)
        await show.draft("Found")
        await show.pause()
        await show.draft.end()
        assert screen.seen == [("I look.", ""), ("Found", "m1")]

    played(scene)


def test_still_working_notice_gives_way_to_the_answer():
    """It is shown only before any text of the answer."""

    async def scene() -> None:
        screen = Screen()
        show = Show(screen)
        await show.draft.begin()
        show.draft.show_notice("still")
        await show.pause()
        await show.draft("Hello")
        show.draft.show_notice("still")
        await show.pause()
        await show.draft.end()
        assert screen.seen == [("still", ""), ("Hello", "m1")]

    played(scene)


def test_next_attempt_goes_on_with_the_message_of_a_dead_worker(redis_client):
    """This holds for an hour, even for a quick answer."""
    notes = SharedCache(redis_client)

    async def scene() -> None:
        show = Show(Screen(), notes=notes)
        await show.draft.begin()
        await show.draft("Hel")
        await show.pause()
        await show.draft.end(at_once=True)
        again = Show(Screen(), replace(QUEUED, attempt=2), notes)
        await again.draft.begin()
        await again.draft.end()
        assert again.draft.message_id == "m1"
        assert 0 < redis_client.ttl(f"sayso:note:draft:{CHAT.id}#1") <= 3600

    played(scene)


def test_unreachable_store_of_drafts_breaks_nothing():
    """A worker that dies then may leave its draft behind."""

    class Away:
        def get(self, key):
            raise RedisConnectionError("away")

        def put(self, key, value, *, seconds):
            raise RedisConnectionError("away")

    async def scene() -> None:
        show = Show(Screen(), replace(QUEUED, attempt=2), Away())
        await show.draft.begin()
        await show.draft("a")
        await show.pause()
        await show.draft.end()
        assert show.draft.message_id == "m1"

    played(scene)


class Typist(FakeAgent):
    """An agent that streams its answer in pieces, each after the last one was shown."""

    def __init__(self, room_of, *, breaks: bool = False) -> None:
        super().__init__()
        self.room_of, self.breaks, self.heard = room_of, breaks, []

    async def answer(self, queued, lease, stream=None, on_step=None) -> TurnChange:
        """Stream two pieces if there is a listener."""
        self.heard.append(stream is not None)
        if stream:
            await stream("Hel")
            async with asyncio.timeout(5):
                await self.room_of().channel.seen.wait()
        if self.breaks:
            raise RuntimeError("bug")
        return TurnChange(replies=(TurnReply(Reply("Hello")), TurnReply(Reply("there"))))


def streaming_room(message: str = "d1", *, streams=("chat",), **options) -> Room:
    """Return a conversation whose platform shows drafts without a pause."""
    room = Room(agent=Typist(lambda: room, **options), streams=frozenset(streams))
    room.channel.drafts, room.channel.seen = [], asyncio.Event()

    async def draft(turn, text, shown_id="") -> str:
        room.channel.drafts.append(text)
        room.channel.seen.set()
        return message

    room.channel.draft = draft
    room.channel.rate_limit = lambda _: RateLimit(draft_gap=0.001)
    return room


def edits(room: Room) -> list[tuple[str, str]]:
    """Return each sent text and the message that it replaced."""
    return [(delivery.reply.text, delivery.reply.edits) for delivery in room.channel.sent]


def test_answer_takes_the_place_of_its_draft():
    """The answer's first message replaces it; the others are new."""
    room = streaming_room()
    room.channel.split = lambda reply: [reply]
    room.work("hi")
    assert (room.channel.drafts, edits(room)) == (["Hel"], [("Hello", "d1"), ("there", "")])


def test_turn_that_breaks_leaves_no_draft_behind():
    """The notice of the failure takes its place."""
    room = streaming_room(breaks=True)
    room.channel.split = lambda reply: [reply]
    room.work("hi")
    assert edits(room) == [(ENGLISH.broken(), "d1")]


def test_still_working_notice_does_not_outlive_a_turn_without_a_reply():
    """After a stop, shown text may stay, but the notice is not true any more."""
    room = Room(agent=Slow(asyncio.Event()), notice_after=0.001)
    room.channel.drafts, room.channel.seen = [], asyncio.Event()

    async def draft(turn, text, shown_id="") -> str:
        room.channel.seen.set()
        return "d1"

    room.channel.draft, room.channel.rate_limit = draft, lambda _: RateLimit(draft_gap=0.001)
    room.hear("work")

    async def scene() -> None:
        working = asyncio.create_task(room.processor.run(CHAT.id))
        async with asyncio.timeout(5):
            await room.channel.seen.wait()
        room.hear("/stop")
        room.processor.renew_now(CHAT.id)
        await working

    asyncio.run(scene())
    assert edits(room) == [(NO_WORDS, "d1"), (ENGLISH.stopped(), "")]


def test_draft_of_a_dead_worker_does_not_stay_behind_a_stop():
    """Its turn does not start again, so no other answer would replace the draft."""
    room = streaming_room()
    room.hear("hi")
    room.rig.mailbox.lease(CHAT.id, "dead")
    room.processor.turns.notes.put(f"draft:{CHAT.id}#1", "d1", seconds=60)
    room.rig.end_lease()
    room.work("/stop")
    assert edits(room) == [(NO_WORDS, "d1"), (ENGLISH.stopped(), "")]


def test_draft_that_disappears_by_itself_is_not_edited():
    """platforms.md 2.3: the answer is a message of its own."""
    room = streaming_room("")
    room.channel.split = lambda reply: [reply]
    room.work("hi")
    assert edits(room) == [("Hello", ""), ("there", "")]


def test_nothing_is_streamed_where_it_is_not_configured():
    """The same holds for a platform without drafts."""
    room = streaming_room(streams=())
    room.work("hi")
    other = streaming_room()
    other.channel.rate_limit = lambda _: RateLimit()
    other.work("hi")
    assert (
        room.processor.turns.agents["chat"].heard,
        other.processor.turns.agents["chat"].heard,
    ) == (
        [False],
        [False],
    )


def test_reply_that_edits_a_message_does_not_replace_the_draft():
    """The first reply without an edit replaces the draft."""
    outcome, file = Reply("Done", edits="p1"), Reply("chart", media=object())
    replies = replace_draft("d1", (TurnReply(outcome), TurnReply(file), TurnReply(Reply("more"))))
    assert [turn_reply.reply.edits for turn_reply in replies] == ["p1", "", "d1"]


@pytest.mark.parametrize("seen_by", [{"only_for": "ana"}, {"answers_tap": "t1"}])
def test_reply_that_one_person_sees_does_not_replace_the_draft(seen_by):
    """All people of the group see the draft, and would read the reply there."""
    private = TurnReply(Reply("not yours", **seen_by))
    removal, kept = replace_draft("d1", (private,))
    assert (removal.reply.removes, kept) == (True, private)
    _, edit = replace_draft("d1", (private, TurnReply(Reply("more"))))
    assert edit.reply == Reply("more", edits="d1")


@pytest.mark.parametrize(
    "said",
    [(), (Reply(""),), (Reply(media=object()),), (Reply("Done", edits="p1", optional=True),)],
)
def test_draft_of_an_answer_without_text_does_not_stay(said):
    """After a stop, or with only a file, no half answer and no "still working" stays."""
    replies = tuple(TurnReply(reply) for reply in said)
    assert replace_draft("d1", replies) == (
        TurnReply(Reply("…", edits="d1", optional=True, removes=True)),
        *replies,
    )


@pytest.mark.parametrize(
    ("config", "heard"),
    [
        (AgentConfig(), True),
        (AgentConfig(coherence=CoherenceCheck()), False),
        (AgentConfig(guardrails=GuardrailsPipeline(output=[LengthGuardrail(max_chars=10)])), False),
        (AgentConfig(guardrails=GuardrailsPipeline(input=[LengthGuardrail(max_chars=10)])), True),
    ],
)
def test_text_that_is_checked_is_not_shown_before(config, heard):
    """The checks are output guardrails and the coherence check."""
    assert may_stream(config) is heard


class Streamer:
    """A model that calls a tool and then streams its answer."""

    name = "streamer"
    default_model = "m"

    async def astream(self, **request):
        """Stream the line after the finished calls."""
        tools = [message for message in request["messages"] if message.role is Role.TOOL]
        for piece in ("I ", "look.") if not tools else ("Fo", "und"):
            yield piece
        if not tools:
            yield call("peek", what="a")

    async def acomplete(self, **request):
        """Answer without a listener."""
        return Message(Role.ASSISTANT, "whole"), UsageStats()


@tool(read_only=True)
async def peek(what: str) -> str:
    """Look."""
    return "ok"


class Ear:
    """A listener that notes all pieces."""

    def __init__(self) -> None:
        self.heard = []

    async def __call__(self, piece: str) -> None:
        """Note a piece."""
        self.heard.append(piece)

    def anew(self) -> None:
        """Note a new step."""
        self.heard.append(None)


@pytest.mark.parametrize(
    ("coherent", "heard"), [(False, ["I ", "look.", None, "Fo", "und"]), (True, [])]
)
def test_agent_streams_its_text_step_by_step(coherent, heard):
    """It does not if a check follows."""
    rig, ear = Rig(), Ear()
    agent = ChannelAgent(
        Agent([peek], Streamer(), AgentConfig(coherence=CoherenceCheck() if coherent else None)),
        rig.store,
        journals=rig.journals,
    )
    rig.accept(turn("go"))
    lease, queued = rig.mailbox.lease(CHAT.id, "w1")
    change = asyncio.run(agent.answer(queued, lease, ear))
    assert ear.heard == heard
    assert change.replies[0].reply.text == ("whole" if coherent else "Found")


def test_every_language_has_a_still_working_notice():
    """The conversation of this test shows its own."""
    assert (
        texts_for("en").still_working() == "I am still working on this. It takes a little longer."
    )
