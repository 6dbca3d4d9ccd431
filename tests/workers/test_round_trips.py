"""Round trips: how often a turn goes to Redis, counted at the server: a time would say something else each day."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from redis import Redis

from sayso.channels.types import Conversation, Received, Turn
from sayso.pending.redis.scripts import LuaScripts
from sayso.pending.threads import LoopThread
from sayso.workers.mailbox import LUA, RedisMailbox
from sayso.workers.rq.bookkeeping import JobRegistry
from sayso.workers.rq.jobs import QUEUE, WakeUps
from sayso.workers.rq.worker import Capacity, new_worker
from tests.channels.web.services import FakeChannel, browser
from tests.contracts.rigs import RedisRig, turn, voice
from tests.workers.fakes import Bot

JOBS = 20
#: What a client says when it opens a connection.
GREETINGS = ("HELLO", "CLIENT")


@pytest.fixture
def asked(redis_url, redis_client):
    """Does something, and tells what it asked the server: our scripts by name, other commands by their first word.

    What a script asks inside the server is no round trip.
    """
    names = {script.sha: name for name, script in LuaScripts(redis_client, LUA)._scripts.items()}

    def listen(act) -> list[str]:
        with Redis.from_url(redis_url, decode_responses=True).monitor() as monitor:
            act()
            redis_client.echo("over")
            words: list[str] = []
            for command in monitor.listen():
                parts = command["command"].split(" ")
                if parts == ["ECHO", "over"]:
                    return words
                if command["client_type"] != "lua" and parts[0] not in GREETINGS:
                    words.append(names.get(parts[1], "a script of RQ's") if parts[0] == "EVALSHA" else parts[0])
        raise AssertionError("the server hung up")

    return listen


@pytest.fixture
def mailbox(redis_client):
    """A mailbox that wakes workers; its connection is open and its scripts are known."""
    kept = RedisMailbox(LuaScripts(redis_client, LUA), voice, WakeUps(redis_client))
    kept.accept(turn())
    return kept


@pytest.fixture
def worker(redis_url):
    """A worker that has not begun to work."""
    processor = SimpleNamespace(run=None, hand_over=lambda: None)
    services = SimpleNamespace(redis_url=redis_url, queue=QUEUE, capacity=Capacity(), processor=processor)
    loop = LoopThread()
    yield new_worker(services, loop)
    loop.close()


def test_webhook_is_one_round_trip(asked, mailbox):
    """Store, de-duplication and wake-up are one script; a repetition is one, too."""
    client = browser(FakeChannel(Received(turns=(turn(event="e1"),))), mailbox)
    assert asked(lambda: client.post("/hooks/shop")) == ["accept"]
    assert asked(lambda: client.post("/hooks/shop")) == ["accept"]


def test_turn_with_one_reply_is_three_round_trips(asked, redis_client):
    """Take the lane, finish the turn, note that its reply was sent and let go; nothing else is asked on the way."""
    bot = Bot(RedisRig(redis_client), lines=("hello", "hello again"))
    bot.say("hi")
    bot.hear("hi again")
    assert asked(bot.work) == ["lease", "commit", "delivered"]
    assert bot.channel.texts == ["hello", "hello again"]


def test_a_further_turn_is_two_more(asked, redis_client):
    """What came in meanwhile is answered under the same lease."""
    bot = Bot(RedisRig(redis_client), lines=("one", "two", "three"))
    bot.say("first")
    for text in ("second", "third"):
        bot.hear(text)
    assert asked(bot.work) == ["lease", "commit", "delivered", "commit", "delivered"]


def test_many_jobs_are_taken_in_one_round_trip(asked, mailbox, worker):
    """RQ's own workers ask some twenty times for each."""
    for number in range(JOBS):
        mailbox.accept(Turn(f"e{number}", Conversation("chat", f"room {number}"), "ana", "hello"))
    worker._take((JOBS + 1, JOBS + 1))
    for number in range(JOBS):
        mailbox.accept(Turn(f"f{number}", Conversation("chat", f"other room {number}"), "ana", "hello"))
    taken = []
    assert asked(lambda: taken.extend(worker._take((JOBS, JOBS)))) == ["a script of RQ's"]
    assert len(taken) == JOBS


def test_books_of_many_jobs_are_one_round_trip(asked, mailbox, worker):
    """A script for those that began, one for those that are over, their count and the worker's state."""
    for number in range(JOBS):
        mailbox.accept(Turn(f"e{number}", Conversation("chat", f"room {number}"), "ana", "hello"))
    books = JobRegistry(worker)
    jobs = worker._take((JOBS, JOBS))
    for job in jobs:
        books.begun(job)
    for job in jobs[: JOBS // 2]:
        books.ended(job)
    assert asked(books._write) == ["MULTI", "EVAL", "EVAL", "HINCRBY", "HSET", "EXEC"]
