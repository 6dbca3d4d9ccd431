"""Stop and bursts: what a worker does when a person sends a stop, or several messages in a row."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from redis.asyncio import Redis

from sayso.channels.types import Reply, Turn
from sayso.pending.turn_changes import TurnChange, TurnReply
from sayso.pending.turns import Lease, LeaseLost, QueuedTurn
from sayso.workers.lease import HeldLease, listen_for_stops
from tests.contracts.rigs import CHAT, ENGLISH, Rig, turn
from tests.workers.fakes import Bot
from tests.workers.test_processor import Room


class Slow:
    """An agent that starts and never ends; `give_up` sends the given text."""

    def __init__(self, begun: asyncio.Event) -> None:
        self.begun = begun
        self.answered = []

    async def answer(self, queued, lease, stream=None, on_step=None) -> TurnChange:
        """Start, and wait for ever."""
        self.answered.append(queued.turn.text)
        self.begun.set()
        await asyncio.Event().wait()

    async def give_up(self, queued, lease, words) -> TurnChange:
        """Answer with the given text."""
        return TurnChange(replies=(TurnReply(Reply(words)),))

    def is_answer(self, text: str) -> bool:
        """Return False."""
        return False

    def needs_answer(self, queued) -> bool:
        """Return True."""
        return True

    def may_settle(self, queued) -> bool:
        """Return False: no question was asked."""
        return False


async def stopped(room: Room, agent: Slow, *later: str) -> None:
    """Start a turn, accept others and then a stop, which the worker gets at once."""
    working = asyncio.create_task(room.processor.run(CHAT.id))
    await agent.begun.wait()
    room.hear(*later, "/stop")
    room.processor.renew_now(CHAT.id)
    await working


def slow_room() -> tuple[Room, Slow]:
    """Return a conversation whose agent never ends."""
    agent = Slow(asyncio.Event())
    return Room(agent=agent), agent


def test_stop_ends_the_running_turn_and_is_told_once():
    """The stopped turn sends no reply; the stop gets one."""
    room, agent = slow_room()
    room.hear("work")
    asyncio.run(stopped(room, agent))
    assert (agent.answered, room.channel.texts) == (["work"], [ENGLISH.stopped()])


def test_turns_that_waited_before_a_stop_are_dropped():
    """They do not start."""
    room, agent = slow_room()
    room.hear("work")
    asyncio.run(stopped(room, agent, "more", "and more"))
    assert (agent.answered, room.channel.texts) == (["work"], [ENGLISH.stopped()])


def test_stop_with_nothing_to_stop_gets_a_notice():
    """The person gets an answer."""
    room = Room()
    assert room.work("/stop") == [ENGLISH.nothing_to_stop()]


def test_turn_after_a_stop_is_answered():
    """A stop ends earlier turns, not later ones."""
    room = Room()
    assert room.work("a", "/stop", "b") == [ENGLISH.stopped(), "B"]


def in_group(text: str, user: str = "ana") -> Turn:
    """Return a message in a group."""
    return replace(turn(text, user=user), in_group=True)


def test_stop_of_another_person_stops_nothing():
    """In a group that person is told so, and the person of the running turn can stop it."""
    room, agent = slow_room()
    for given in (in_group("work"), in_group("more", "bob")):
        room.rig.accept(given)

    async def scene() -> None:
        working = asyncio.create_task(room.processor.run(CHAT.id))
        for user in ("eve", "bob", "ana"):
            await agent.begun.wait()
            room.rig.accept(in_group("/stop", user))
            room.processor.renew_now(CHAT.id)
        await working

    asyncio.run(scene())
    assert agent.answered == ["work"]
    assert room.channel.texts == [ENGLISH.nothing_of_yours(), *[ENGLISH.stopped()] * 2]


def test_turn_that_takes_too_long_after_a_stop_of_another_person_gets_a_notice():
    """The stop concerned another turn, although it came after this one."""
    room, agent = slow_room()
    for given in (in_group("work"), in_group("more", "bob")):
        room.rig.accept(given)

    async def scene() -> None:
        stopping = asyncio.create_task(stopped(room, agent))
        await agent.begun.wait()
        object.__setattr__(
            room.processor.turns, "turn_timeout", 0.0
        )  # for the turns that begin from now on
        await stopping

    asyncio.run(scene())
    assert agent.answered == ["work", "more"]
    assert room.channel.texts == [ENGLISH.too_long(), ENGLISH.stopped()]


def test_stop_that_came_before_the_agent_started_ends_the_turn():
    """It came while the worker looked for a dead worker's draft."""
    held = HeldLease(Lease(CHAT.id, 1, "w"), 0.0, Rig().mailbox.renew)
    queued = QueuedTurn(1, 0.0, "u", turn(), None, None, "")

    async def scene() -> None:
        held.begin(queued)
        held.stop(2)
        with pytest.raises(TimeoutError):
            async with held.working_on(queued, 5, may_be_stopped=True):
                await asyncio.Event().wait()

    asyncio.run(scene())


def test_renewal_that_gets_no_answer_ends_the_work_while_the_lease_is_held():
    """Redis is away for longer than the lease lasts, and another worker may have it soon."""

    async def hang(_: Lease) -> int:
        await asyncio.Event().wait()
        return 0

    held = HeldLease(
        Lease(CHAT.id, 1, "w"), 0.0, hang, clock=lambda: 9.0
    )  # none of its seconds are left

    async def work() -> None:
        async with held.kept():
            held.renew_now()
            await asyncio.Event().wait()

    with pytest.raises(LeaseLost):
        asyncio.run(asyncio.wait_for(work(), 30))


def test_stop_drops_an_open_question(make_bot):
    """No destructive action stays open behind a stop."""
    bot = make_bot("A")
    bot.say("delete A")
    told = bot.say("/stop")
    assert told == ENGLISH.dropped("Delete A")  # and not that there is nothing to stop
    bot.say("yes")
    assert bot.deleted == []


def test_a_confirmed_action_is_not_stopped(make_bot):
    """The stop came too late, and the person gets the outcome."""
    bot = make_bot("A")
    bot.say("delete A")
    bot.hear("yes")
    bot.rig.store.settlement._repository = Stopping(bot)
    bot.work()
    assert (bot.deleted, bot.channel.texts[-2:]) == (["A"], ["deleted A", ENGLISH.stopped()])


@pytest.mark.parametrize(("step", "times"), [("claim", 1), ("finish", 1), ("finish", 2)])
def test_a_confirmed_plan_goes_on_although_its_worker_died_before_the_stop(make_bot, step, times):
    """Otherwise an unknown half of it would be done."""
    bot = make_bot("A B")
    bot.say("delete A and B")
    bot.hear("yes")
    bot.die_after(step, times)
    bot.hear("/stop")
    bot.work()
    assert bot.deleted == ["A", "B"]
    assert ENGLISH.stopped() == bot.channel.texts[-1]
    assert "cannot tell" not in bot.channel.texts[-2]


def test_yes_that_no_worker_started_is_stopped(make_bot):
    """The person took it back in time."""
    bot = make_bot("A")
    bot.say("delete A")
    bot.hear("yes")
    bot.say("/stop")
    assert bot.deleted == []


def test_stop_ends_an_unrelated_turn_while_a_question_waits(make_bot):
    """The turn was no answer. It ends the question like any other message, and the stop changes nothing more."""
    bot = make_bot("A")
    bot.say("delete A")
    bot.hear("what is the weather?")
    asyncio.run(hung_and_stopped(bot))
    *_, told, last = bot.channel.new_texts
    assert (told, last) == (ENGLISH.dropped("Delete A"), ENGLISH.stopped())
    assert bot.say("yes") != "deleted A"
    assert bot.deleted == []


def test_stop_ends_a_turn_after_an_expired_question(make_bot):
    """An expired question decides nothing."""
    bot = make_bot("A")
    bot.say("delete A")
    bot.rig.pass_time(61)
    bot.rig.overdue()
    bot.hear("what is the weather?")
    asyncio.run(hung_and_stopped(bot))
    assert bot.channel.texts[-1] == ENGLISH.stopped()


async def hung_and_stopped(bot: Bot) -> None:
    """Let the model hang, and send a stop."""
    begun = asyncio.Event()

    async def hang(*_, **__):
        begun.set()
        await asyncio.Event().wait()

    plain, bot.agent.agent.arun = bot.agent.agent.arun, hang
    working = asyncio.create_task(bot.processor.run(CHAT.id))
    async with asyncio.timeout(5):
        await begun.wait()
        bot.hear("/stop")
        bot.processor.renew_now(CHAT.id)
        await working
    bot.agent.agent.arun = plain


class Stopping:
    """An action store that sends a stop during a claim."""

    def __init__(self, bot: Bot) -> None:
        self._bot, self._records = bot, bot.rig.store.repository

    def __getattr__(self, name: str):
        if name == "claim":
            self._bot.hear("/stop")
            self._bot.processor.renew_now(CHAT.id)
        return getattr(self._records, name)


def test_a_burst_is_answered_once():
    """Three plain texts get one answer."""
    room = Room(joins=True)
    assert room.work("one", "two", "/help", "three", "four") == ["ONE\nTWO", "/HELP", "THREE\nFOUR"]


def test_a_yes_in_a_burst_is_not_joined(make_bot):
    """A yes answers an earlier question, and here there was none."""
    bot = make_bot("A", lines=["fine"])
    object.__setattr__(bot.processor.turns, "joins", True)
    bot.hear("delete A")
    bot.hear("yes")
    assert "I had not asked yet" in bot.work()


def test_stop_signal_reaches_other_processes(redis_client, redis_url):
    """The lease holder gets a stop that another process accepted."""
    rig = Rig(redis_client)
    rig.accept(turn("work"))

    async def hear() -> str:
        heard: asyncio.Queue[str] = asyncio.Queue()
        listening = asyncio.create_task(listen_for_stops(redis_url, heard.put_nowait))
        async with Redis.from_url(redis_url) as client:
            while not await client.pubsub_numpat():  # noqa: ASYNC110  # the server says so, and nobody else
                await asyncio.sleep(0)
        rig.accept(turn("/stop"))
        conversation = await heard.get()
        listening.cancel()
        return conversation

    assert asyncio.run(hear()) == CHAT.id
