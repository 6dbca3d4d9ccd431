"""Stop and bursts: what a worker does when somebody stops it, or writes several messages in a row."""

from __future__ import annotations

import asyncio

from redis.asyncio import Redis

from channels.types import Reply
from tests.contracts.rigs import CHAT, ENGLISH, RedisRig, turn
from tests.workers.fakes import Bot
from tests.workers.test_drain import Room
from workers.lane import Change
from workers.whisper import listen


class Slow:
    """An agent that begins and never ends; what it is told to give up is said as it is."""

    def __init__(self, begun: asyncio.Event) -> None:
        self.begun = begun
        self.answered = []

    async def answer(self, queued, lease, hear=None) -> Change:
        """Begin, and wait for ever."""
        self.answered.append(queued.turn.text)
        self.begun.set()
        await asyncio.Event().wait()

    async def give_up(self, queued, lease, words) -> Change:
        """Say the words."""
        return Change(replies=((Reply(words), ""),))

    def is_answer(self, text: str) -> bool:
        """Nothing is."""
        return False


async def stopped(room: Room, agent: Slow, *later: str) -> None:
    """A turn is under way; others come in, then a stop, which is heard at once."""
    working = asyncio.create_task(room.drain.run(CHAT.id))
    await agent.begun.wait()
    room.hear(*later, "/stop")
    room.drain.look_up(CHAT.id)
    await working


def slow_room() -> tuple[Room, Slow]:
    """A room whose agent never ends."""
    agent = Slow(asyncio.Event())
    return Room(agent=agent), agent


def test_stop_ends_the_running_turn_and_is_told_once():
    """The turn says nothing any more; the stop does."""
    room, agent = slow_room()
    room.hear("work")
    asyncio.run(stopped(room, agent))
    assert (agent.answered, room.channel.texts) == (["work"], [ENGLISH.stopped()])


def test_turns_that_waited_before_a_stop_are_let_go():
    """They are not begun."""
    room, agent = slow_room()
    room.hear("work")
    asyncio.run(stopped(room, agent, "more", "and more"))
    assert (agent.answered, room.channel.texts) == (["work"], [ENGLISH.stopped()])


def test_stop_with_nothing_to_stop_says_so():
    """Nobody is left without a word."""
    room = Room()
    assert room.work("/stop") == [ENGLISH.nothing_to_stop()]


def test_turn_after_a_stop_is_answered():
    """A stop reaches back, not forward."""
    room = Room()
    assert room.work("a", "/stop", "b") == [ENGLISH.stopped(), "B"]


def test_stop_lets_go_what_waits_for_a_yes(make_bot):
    """Nothing destructive stays armed behind a stop."""
    bot = make_bot("A")
    bot.say("delete A")
    told = bot.say("/stop")
    assert told == f"{ENGLISH.dropped('Delete A')}\n\n{ENGLISH.nothing_to_stop()}"
    bot.say("yes")
    assert bot.deleted == []


def test_a_confirmed_action_is_not_stopped(make_bot):
    """Who said yes hears how it ended; the stop came too late for it."""
    bot = make_bot("A")
    bot.say("delete A")
    bot.hear("yes")
    bot.rig.store.settlement._records = Stopping(bot)
    bot.work()
    assert (bot.deleted, bot.channel.texts[-2:]) == (["A"], ["deleted A", ENGLISH.stopped()])


class Stopping:
    """Records during whose claim somebody says stop."""

    def __init__(self, bot: Bot) -> None:
        self._bot, self._records = bot, bot.rig.store.records

    def __getattr__(self, name: str):
        if name == "claim":
            self._bot.hear("/stop")
            self._bot.drain.look_up(CHAT.id)
        return getattr(self._records, name)


def test_a_burst_is_answered_once():
    """Three messages, nothing but words: one answer."""
    room = Room(joins=True)
    assert room.work("one", "two", "/help", "three", "four") == ["ONE\nTWO", "/HELP", "THREE\nFOUR"]


def test_a_yes_in_a_burst_stays_by_itself(make_bot):
    """It answers what was asked before it, and here nothing was."""
    bot = make_bot("A", lines=["fine"])
    object.__setattr__(bot.drain, "joins", True)
    bot.hear("delete A")
    bot.hear("yes")
    assert "I had not asked yet" in bot.work()


def test_a_whisper_reaches_other_processes(redis_client, redis_url):
    """Who holds the conversation hears of a stop that another process accepted."""
    rig = RedisRig(redis_client)
    rig.accept(turn("work"))

    async def hear() -> str:
        heard: asyncio.Queue[str] = asyncio.Queue()
        listening = asyncio.create_task(listen(redis_url, heard.put_nowait))
        async with Redis.from_url(redis_url) as client:
            while not await client.pubsub_numpat():  # noqa: ASYNC110  # the server says so, and nobody else
                await asyncio.sleep(0)
        rig.accept(turn("/stop"))
        conversation = await heard.get()
        listening.cancel()
        return conversation

    assert asyncio.run(hear()) == CHAT.id
