"""Round trips: the number of calls of a turn to Redis, counted at the server, since a time would vary."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from redis import Redis

from sayso.channels.types import Conversation, Received, Turn
from sayso.channels.whatsapp.people import WhatsAppPeople
from sayso.infra.threads import LoopThread
from sayso.pending.sharded_scripts import ShardedScripts
from sayso.workers.identities import RedisIdentities
from sayso.workers.mailbox import RedisMailbox
from sayso.workers.rq.job_registry import JobRegistry
from sayso.workers.rq.jobs import QUEUE, WakeUps
from sayso.workers.rq.process import new_worker
from sayso.workers.rq.worker import Capacity
from sayso.workers.scripts import CONVERSATION_SCRIPTS
from tests.channels.web.services import FakeChannel, browser
from tests.contracts.rigs import Rig, turn, voice
from tests.workers.fakes import Bot

JOBS = 20
#: Commands that a client sends when it opens a connection.
GREETINGS = ("HELLO", "CLIENT")


@pytest.fixture
def asked(redis_url, redis_client):
    """Return a function that runs `act` and lists its calls: scripts by name, other commands by their first word.

    Commands that a script runs inside the server are no round trips.
    """
    runners = (ShardedScripts(redis_client, CONVERSATION_SCRIPTS), Rig(redis_client).scripts)
    names = {script.sha: name for runner in runners for name, script in runner._scripts.items()}

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
                    words.append(
                        names.get(parts[1], "a script of RQ's")
                        if parts[0] == "EVALSHA"
                        else parts[0]
                    )
        raise AssertionError("the server hung up")

    return listen


@pytest.fixture
def mailbox(redis_client):
    """Return a mailbox that wakes workers; its connection is open and its scripts are loaded."""
    kept = RedisMailbox(
        ShardedScripts(redis_client, CONVERSATION_SCRIPTS), voice, WakeUps(redis_client)
    )
    kept.accept(turn())
    return kept


@pytest.fixture
def worker(redis_url):
    """Return a worker that has not started."""
    processor = SimpleNamespace(run=None, hand_over=lambda: None)
    services = SimpleNamespace(
        queue_url=redis_url, queue=QUEUE, capacity=Capacity(), processor=processor
    )
    loop = LoopThread()
    yield new_worker(services, loop)
    loop.close()


def test_webhook_is_one_round_trip(asked, mailbox):
    """One script stores, deduplicates and wakes; a repetition is one call too."""
    client = browser(FakeChannel(Received(turns=(turn(event="e1"),))), mailbox)
    assert asked(lambda: client.post("/hooks/shop")) == ["accept"]
    assert asked(lambda: client.post("/hooks/shop")) == ["accept"]


def test_webhook_of_a_person_with_several_ids_is_one_round_trip(asked, mailbox, redis_client):
    """The script that stores the turn finds the person too.

    Another person than the ids suggest costs one more.
    """
    redis_client.script_flush()
    people = WhatsAppPeople("wa", RedisIdentities(mailbox._scripts))
    number = "whatsapp:+4915100000042"
    user_id = "whatsapp:DE.1"

    def write(event: str, user: str, *aliases: str) -> list[str]:
        received = Turn(event, Conversation("wa", user), user, "hello", aliases=aliases)
        sender = people.sender(received)
        return asked(lambda: mailbox.accept_from(sender))

    assert write("e1", number, user_id) == ["accept_from", "EVAL"], (
        "the server did not know the script"
    )
    assert write("e2", number, user_id) == ["accept_from"]
    assert write("e3", user_id) == ["accept_from", "accept_from"]


def test_turn_with_one_reply_is_three_round_trips(asked, redis_client):
    """They are the lease, the commit, and the receipt that releases the lease."""
    bot = Bot(Rig(redis_client), lines=("hello", "hello again"))
    bot.say("hi")
    bot.hear("hi again")
    assert asked(bot.work) == ["lease", "commit", "delivered"]
    assert bot.channel.texts == ["hello", "hello again"]


def test_further_turn_is_two_round_trips_more(asked, redis_client):
    """A turn that came in meanwhile runs under the same lease."""
    bot = Bot(Rig(redis_client), lines=("one", "two", "three"))
    bot.say("first")
    for text in ("second", "third"):
        bot.hear(text)
    assert asked(bot.work) == ["lease", "commit", "delivered", "commit", "delivered"]


def test_many_jobs_are_fetched_in_one_round_trip(asked, mailbox, worker):
    """RQ's own workers make about twenty calls for each job."""
    for number in range(JOBS):
        mailbox.accept(Turn(f"e{number}", Conversation("chat", f"room {number}"), "ana", "hello"))
    worker._job_queue.take(JOBS + 1, JOBS + 1)
    for number in range(JOBS):
        mailbox.accept(
            Turn(f"f{number}", Conversation("chat", f"other room {number}"), "ana", "hello")
        )
    taken = []
    assert asked(lambda: taken.extend(worker._job_queue.take(JOBS, JOBS))) == ["a script of RQ's"]
    assert len(taken) == JOBS


def test_many_jobs_are_registered_in_one_round_trip(asked, mailbox, worker):
    """One packet has a script for started jobs, one for ended jobs, their count and the worker's state."""
    for number in range(JOBS):
        mailbox.accept(Turn(f"e{number}", Conversation("chat", f"room {number}"), "ana", "hello"))
    registry = JobRegistry(worker)
    jobs = worker._job_queue.take(JOBS, JOBS)
    for job in jobs:
        registry.job_started(job)
    for job in jobs[: JOBS // 2]:
        registry.job_ended(job)
    assert asked(registry._write) == ["MULTI", "EVAL", "EVAL", "HINCRBY", "HSET", "EXEC"]
