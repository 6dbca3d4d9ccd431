"""Cancelled passes: the lease is released at once, unless a tool may still have an effect."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from rq import Queue
from rq.serializers import JSONSerializer

from sayso.agent import tool
from sayso.channels.types import Media
from sayso.infra.concurrency import call_in_tool_thread, run_with_timeout, track_abandoned_calls
from sayso.infra.threads import LoopThread
from sayso.workers import processor
from sayso.workers.lease import LEASE_MS
from sayso.workers.processor import ConversationProcessor
from sayso.workers.rq.jobs import PROCESS_CONVERSATION, QUEUE
from tests.contracts.rigs import CHAT, ENGLISH, Rig, turn
from tests.flows.system import until
from tests.workers.story import Story, call, playing
from tests.workers.works import make_worker, work_while


class Doors:
    """Where tools wait: a tool reports its start and ends when the test says so."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()


doors = Doors()


@pytest.fixture(autouse=True)
def _doors():
    """Install new ones; at the end no tool waits."""
    globals()["doors"] = Doors()
    yield
    doors.go.set()


@tool
def dig(what: str) -> str:
    """Dig, in a thread."""
    doors.begun.set()
    doors.go.wait(60)
    return f"dug {what}"


@tool
async def wait(what: str) -> str:
    """Wait, on the loop."""
    doors.begun.set()
    return await asyncio.Event().wait()


@tool(requires_approval=True, preview="Demolish {what}")
def demolish(what: str) -> str:
    """Demolish, in a thread."""
    return dig(what=what)


@pytest.fixture
def rig():
    """Return a rig of each kind."""
    return Rig()


def story(rig, name: str) -> Story:
    """Return a story with a turn whose answer calls this tool."""
    told = Story(rig, [(call(name, what="b"),), "all done"])
    told.tools += [dig, wait, demolish]
    told.hear()
    playing.set(told)
    return told


async def cut_off(told: Story, **options) -> ConversationProcessor:
    """Cancel a pass while its tool runs. `options`: those of the processor."""
    processor = replace(told.worker(), **options)
    passing = asyncio.create_task(processor.run(CHAT.id))
    await asyncio.to_thread(doors.begun.wait)
    passing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await passing
    return processor


def test_lease_stays_while_a_tool_still_runs_in_its_thread(rig):
    """No turn may overtake it. When the lease expires, the outcome is unknown."""
    told = story(rig, "dig")
    assert not asyncio.run(
        cut_off(told)
    ).is_idle  # so others take the conversation over when its process has ended
    assert rig.mailbox.lease(CHAT.id, "next") is None
    rig.end_lease()
    assert told.work_on() == f"{ENGLISH.unknown('dig')}\n\nall done"


def test_worker_is_idle_once_a_lease_that_was_not_released_has_ended(rig):
    """A worker lives on after an operator has stopped a job whose tool hangs."""
    now = [0.0]
    processor = asyncio.run(cut_off(story(rig, "dig"), clock=lambda: now[0]))
    now[0] = LEASE_MS / 1000 - 0.1
    assert not processor.is_idle
    now[0] = LEASE_MS / 1000
    assert processor.is_idle


def test_wait_for_the_parts_of_an_album_that_is_cut_off_is_no_attempt_at_the_turn(rig):
    """The next worker joins turns as for a first attempt."""
    told = Story(rig, ["hello"])
    photo = Media("a", "image/jpeg", stored=True)
    rig.accept(replace(turn(""), media=(photo,), group="g"))
    playing.set(told)

    async def wait_for_part(_seconds: float) -> None:
        doors.begun.set()
        await asyncio.Event().wait()

    assert asyncio.run(cut_off(told, sleep=wait_for_part)).is_idle
    _, next_turn = rig.mailbox.lease(CHAT.id, "next")
    assert next_turn.attempt == 1


def test_lease_stays_while_a_confirmed_action_runs_in_its_thread(rig):
    """Otherwise the next worker would report "unknown" and correct itself a moment later."""
    told = story(rig, "demolish")
    told.work_on()
    told.hear("yes")
    asyncio.run(cut_off(told))
    assert rig.mailbox.lease(CHAT.id, "next") is None


def test_cancelled_turn_goes_on_at_once_on_another_worker(rig):
    """An async tool is stopped. Its call is not repeated, and the person is told that the outcome is unknown."""
    told = story(rig, "wait")
    assert asyncio.run(cut_off(told)).is_idle
    assert told.work_on() == f"{ENGLISH.unknown('wait')}\n\nall done"
    assert dict(told.model.asked) == {0: 1, 1: 1}


def test_reply_that_was_being_sent_is_marked(rig):
    """It may have arrived, so the next worker sends it at once, marked."""
    told = story(rig, "wait")
    told.model.lines = ["hello"]

    async def never(delivery):
        doors.begun.set()
        await asyncio.Event().wait()

    told.channel.send, send = never, told.channel.send
    asyncio.run(cut_off(told))
    told.channel.send = send
    assert told.work_on() == ENGLISH.repeated("hello")


@pytest.mark.parametrize("silent", [False, True])
def test_redis_outage_does_not_block_a_cancelled_pass(monkeypatch, silent):
    """The lease expires by itself."""
    monkeypatch.setattr(processor, "LET_GO_SECONDS", 0.01)
    rig = Rig()

    async def away(*_, **__):
        if silent:
            await asyncio.Event().wait()
        raise RedisConnectionError("away")

    rig.mailbox.release = away
    monkeypatch.setattr("tests.workers.story.Mortal", lambda store, _: store)
    asyncio.run(cut_off(story(rig, "wait")))
    assert rig.mailbox.lease(CHAT.id, "next") is None


def test_worker_that_is_cut_off_leaves_no_lease_behind(redis_client, redis_url):
    """At the end of its grace it releases its conversation, with a wake-up, before it exits."""
    told, loop = story(Rig(redis_client), "wait"), LoopThread()
    bare = Redis.from_url(redis_url)
    Queue(QUEUE, connection=bare, serializer=JSONSerializer).enqueue(
        PROCESS_CONVERSATION, CHAT.id, job_id="process-1", result_ttl=0
    )

    async def work(conversation: str) -> None:
        playing.set(told)
        await told.worker().run(conversation)

    work_while(make_worker(redis_url, loop, work, grace_seconds=0.0), doors.begun.wait)
    loop.close()
    held, turn = told.rig.mailbox.lease(CHAT.id, "next")
    assert (held.token, turn.attempt, len(turn.journal)) == ("next", 2, 3)


def went_on(caller) -> bool:
    """Return whether a call goes on after its caller was cancelled."""

    async def calling() -> bool:
        strays = track_abandoned_calls()
        task = asyncio.create_task(caller())
        await asyncio.to_thread(doors.begun.wait)
        task.cancel()
        await asyncio.wait({task})
        ran = not all(has_ended() for has_ended in strays)
        doors.go.set()
        await asyncio.to_thread(until, lambda: all(has_ended() for has_ended in strays))
        return ran

    return asyncio.run(calling())


async def late(result, error) -> None:
    """Receive the late outcome."""


async def dig_late() -> None:
    """Dig, with a listener for the late outcome."""
    await run_with_timeout(lambda: dig(what="x"), 60, late)


@pytest.mark.parametrize(
    "caller",
    [lambda: call_in_tool_thread(lambda: dig(what="x")), dig_late],
    ids=["in a thread", "performed"],
)
def test_function_in_a_thread_counts_as_abandoned_until_it_ends(caller):
    """Its caller was cancelled; a thread cannot be."""
    assert went_on(caller)
