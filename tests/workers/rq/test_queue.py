"""Queue: RQ wakes Sayso's workers, and a client that writes to the queue can wake nothing else."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from types import SimpleNamespace

import pytest
from redis import Redis
from rq import Queue
from rq.job import Job
from rq.serializers import JSONSerializer
from rq.utils import utcparse
from rq.webhook import Webhook

from sayso.channels.types import Conversation
from sayso.config.wiring import rq_entry as jobs
from sayso.pending.sharded_scripts import ShardedScripts
from sayso.pending.stored_limits import URGENT_JOB
from sayso.pending.turn_changes import TurnChange
from sayso.workers.mailbox import InboxLimits, RedisMailbox
from sayso.workers.recovery import Reaper, WorkerLock
from sayso.workers.rq.jobs import QUEUE, ForbiddenJob, SaysoJob, WakeUps, make_job
from sayso.workers.rq.process import new_worker
from sayso.workers.rq.worker import Capacity
from sayso.workers.scripts import CONVERSATION_SCRIPTS
from tests.contracts.rigs import CHAT, BlockingOutsideLoops, turn, voice

struck: list[str] = []


def strike(*_args, **_kwargs) -> None:
    """The function that an attacker wants the worker to call."""
    struck.append("struck")


class FakeDrain:
    """Notes the conversations that it should process."""

    def __init__(self) -> None:
        self.processed: list[str] = []

    async def run(self, conversation: str) -> None:
        """Note the conversation."""
        self.processed.append(conversation)

    def hand_over(self) -> None:
        """Do nothing: no lease is held."""


@pytest.fixture
def processed():
    """Return the conversations that this process's jobs processed."""
    struck.clear()
    fake = FakeDrain()
    jobs.install(SimpleNamespace(processor=fake))
    yield fake.processed
    jobs._processes.pop(os.getpid()).loop.close()


@pytest.fixture
def bare(redis_url, redis_client):
    """Return a client without decoding, as RQ needs it, of an empty Redis."""
    with Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
def mailbox(redis_client):
    """Return a mailbox that wakes workers."""
    return BlockingOutsideLoops(
        RedisMailbox(
            ShardedScripts(redis_client, CONVERSATION_SCRIPTS), voice, WakeUps(redis_client)
        )
    )


@pytest.mark.parametrize("conversation", [CHAT.id, "shop-wa.2_x:" + "0f" * 10])
def test_wake_up_is_the_job_that_rq_would_write(redis_client, conversation):
    """Fields, order and types are RQ's; only the times and the packing of the data differ."""
    names, flat = WakeUps(redis_client)(conversation)
    job = make_job(redis_client, names["job"], conversation)
    written, ours = job.to_dict(include_meta=False), dict(zip(flat[::2], flat[1::2], strict=True))
    job.created_at, job.enqueued_at = (
        utcparse(ours[name]) for name in ("created_at", "enqueued_at")
    )
    assert list(ours.items()) == list(
        (job.to_dict(include_meta=False) | {"data": job.data}).items()
    )
    assert [type(value) for value in ours.values()] == [type(value) for value in written.values()]
    assert names == {
        "job_keys": Job.redis_job_namespace_prefix,
        "queue": Queue(QUEUE, connection=redis_client).key,
        "queues": Queue.redis_queues_keys,
        "jobs": "sayso:jobs",
        "job": job.id,
    }


def test_each_wake_up_has_an_id_of_its_own(redis_client):
    """Two jobs with one id would count as one."""
    wake_up = WakeUps(redis_client)
    assert len({wake_up(CHAT.id).names["job"] for _ in range(100)}) == 100


@pytest.fixture
def work(redis_url, processed):
    """Return a function that works the queue off like `sayso worker`."""
    process = jobs._processes[os.getpid()]
    processor = process.services.processor
    services = SimpleNamespace(
        queue_url=redis_url, queue=QUEUE, capacity=Capacity(), processor=processor
    )
    return lambda: new_worker(services, process.loop).work(burst=True, logging_level="CRITICAL")


def plant(bare: Redis, name: str, *args, serializer=JSONSerializer, **fields) -> Job:
    """Put a job on the queue as an attacker with Redis access could."""
    queue = Queue(QUEUE, connection=bare, serializer=serializer)
    job = queue.enqueue(name, *args)
    if fields:
        bare.hset(job.key, mapping=fields)
    return job


STRIKE = "tests.workers.rq.test_queue.strike"


@pytest.mark.parametrize(
    ("name", "args"),
    [
        (STRIKE, (CHAT.id,)),
        ("os.system", ("true",)),
        ("builtins.eval", ("1",)),
        ("sayso.config.wiring.rq_entry.install", (CHAT.id,)),
        ("sayso.config.wiring.rq_entry.process_conversation", ("../../etc/passwd",)),
        ("sayso.config.wiring.rq_entry.process_conversation", (CHAT.id, "more")),
        ("sayso.config.wiring.rq_entry.process_conversation", ()),
        ("sayso.config.wiring.rq_entry.process_conversation", ([CHAT.id],)),
        ("sayso.config.wiring.rq_entry.process_conversation", (CHAT.id + "\n",)),
    ],
)
def test_planted_job_is_refused_and_real_jobs_still_run(bare, mailbox, work, processed, name, args):
    """A job with another function, or with an invalid id, fails; the next job runs."""
    job = plant(bare, name, *args)
    with pytest.raises(ForbiddenJob):
        _ = SaysoJob.fetch(job.id, connection=bare, serializer=JSONSerializer).func
    mailbox.accept(turn())
    work()
    assert (processed, struck) == ([CHAT.id], [])


def test_pickled_job_is_never_unpickled(bare, mailbox, work, processed):
    """RQ's default serializer would run code while it reads; Sayso's reads only JSON."""
    plant(bare, STRIKE, CHAT.id, serializer=None)
    mailbox.accept(turn())
    work()
    assert (processed, struck) == ([CHAT.id], [])


def test_job_with_an_instance_is_refused(bare, work, processed):
    """No job of Sayso's calls a method."""
    job = plant(bare, "sayso.config.wiring.rq_entry.process_conversation", CHAT.id)
    data = JSONSerializer.dumps(
        ["sayso.config.wiring.rq_entry.process_conversation", "object", [CHAT.id], {}]
    )
    bare.hset(job.key, "data", data)
    work()
    assert processed == []


@pytest.mark.parametrize("name", ["sayso.config.wiring.rq_entry.process_conversation", STRIKE])
def test_planted_callbacks_never_run(bare, work, processed, name):
    """They run neither after success nor after failure."""
    names = dict.fromkeys(
        ("success_callback_name", "failure_callback_name", "stopped_callback_name"), STRIKE
    )
    plant(bare, name, CHAT.id, **names)
    work()
    assert struck == []
    assert processed == ([CHAT.id] if name != STRIKE else [])


@pytest.mark.parametrize("name", ["sayso.config.wiring.rq_entry.process_conversation", STRIKE])
def test_planted_web_hooks_are_never_called(bare, work, processed, monkeypatch, name):
    """Access to Redis gives no access to the network."""
    monkeypatch.setattr(Webhook, "send", strike)
    hooks = [Webhook("http://127.0.0.1:9/", status).to_dict() for status in ("finished", "failed")]
    plant(bare, name, CHAT.id, webhooks=json.dumps(hooks))
    work()
    assert struck == []


def test_accepting_writes_a_job_that_rq_can_read(bare, mailbox):
    """It is one hash and one queue entry with the function, JSON, the conversation's id and no personal data."""
    mailbox.accept(turn("my secret"))
    (job_id,) = bare.lrange(f"rq:queue:{QUEUE}", 0, -1)
    job = Job.fetch(job_id.decode(), connection=bare, serializer=JSONSerializer)
    assert (job.func_name, job.args, job.kwargs) == (
        "sayso.config.wiring.rq_entry.process_conversation",
        [CHAT.id],
        {},
    )
    assert (job.get_status(), job.origin) == ("queued", QUEUE)
    assert b"my secret" not in b"".join(bare.hvals(job.key))


def test_woken_conversation_is_woken_once(bare, mailbox):
    """Many turns have one job, whose worker takes them all."""
    for _ in range(3):
        mailbox.accept(turn())
    assert bare.llen(f"rq:queue:{QUEUE}") == 1


def test_leased_conversation_is_not_woken(bare, mailbox):
    """The lease holder sees the new turn by itself."""
    mailbox.accept(turn())
    mailbox.lease(CHAT.id, "w1")
    bare.delete(f"rq:queue:{QUEUE}")
    mailbox.accept(turn())
    assert bare.llen(f"rq:queue:{QUEUE}") == 0


def test_released_conversation_is_woken_again(bare, mailbox):
    """The next turn after the release gets a job of its own."""
    mailbox.accept(turn())
    held, work = mailbox.lease(CHAT.id, "w1")
    mailbox.commit(held, work, TurnChange())
    mailbox.release(held)
    bare.lpop(f"rq:queue:{QUEUE}")
    mailbox.accept(turn())
    assert bare.llen(f"rq:queue:{QUEUE}") == 1


def test_handed_over_conversation_goes_to_the_end_of_the_queue(bare, mailbox):
    """The same step writes its new job."""
    mailbox.accept(turn())
    bare.lpop(f"rq:queue:{QUEUE}")
    bare.rpush(f"rq:queue:{QUEUE}", "somebody-elses")
    held, _ = mailbox.lease(CHAT.id, "w1")
    mailbox.release(held, hand_over=True)
    assert [job == b"somebody-elses" for job in bare.lrange(f"rq:queue:{QUEUE}", 0, -1)] == [
        True,
        False,
    ]


def new_reaper(client, folder):
    """Return the reaper of one worker, which wakes through RQ. Its rounds look at all shards."""
    wake_up = WakeUps(client)
    return Reaper(
        client,
        ShardedScripts(client, CONVERSATION_SCRIPTS),
        wake_up,
        WorkerLock(folder),
        queue=wake_up.queue,
        clock=lambda: 0.0,
    )


def test_wake_up_that_is_still_queued_is_not_repeated(bare, mailbox, redis_client, tmp_path):
    """A long queue does not grow with each round of the reaper."""
    reaper = new_reaper(redis_client, tmp_path)
    mailbox.accept(turn())
    for _ in range(3):
        redis_client.delete("sayso:reaper")
        for key in redis_client.scan_iter("sayso:{*}:due"):
            redis_client.zadd(key, {CHAT.id: 0})
        assert reaper.round() == 0
    assert bare.llen(f"rq:queue:{QUEUE}") == 1


def test_tap_overtakes_other_conversations_in_the_queue(bare, mailbox):
    """A decision does not wait behind other messages. A second urgent turn makes no second job."""
    mailbox.accept(replace(turn(), conversation=Conversation("chat", "other")))
    mailbox.accept(turn())
    first, second = bare.lrange(f"rq:queue:{QUEUE}", 0, -1)
    mailbox.accept(turn(tap="1x"))
    mailbox.accept(turn(tap="1x"))
    urgent, *others = bare.lrange(f"rq:queue:{QUEUE}", 0, -1)
    assert (urgent.startswith(URGENT_JOB.encode()), others) == (True, [first, second])
    assert (
        SaysoJob.fetch(urgent.decode(), connection=bare, serializer=JSONSerializer).conversation
        == CHAT.id
    )


def test_refused_turns_wake_no_worker(bare, redis_client):
    """An unaddressed message costs no job, and a full mailbox none beside the queued one."""
    mailbox = RedisMailbox(
        ShardedScripts(redis_client, CONVERSATION_SCRIPTS),
        voice,
        WakeUps(redis_client),
        limits=InboxLimits(waiting=1),
    )
    assert mailbox.accept(turn(addressed=False)).outcome == "ignored"
    assert bare.llen(f"rq:queue:{QUEUE}") == 0
    assert [mailbox.accept(turn()).outcome for _ in range(3)] == ["new", "full", "full"]
    assert bare.llen(f"rq:queue:{QUEUE}") == 1


def test_worker_processes_what_was_accepted(bare, mailbox, work, processed):
    """It goes from the webhook's script through RQ to the worker's function, and the job leaves no keys."""
    mailbox.accept(turn())
    work()
    assert processed == [CHAT.id]
    assert bare.keys("rq:job:*") == []


def test_reaper_restores_a_lost_job(bare, redis_client, mailbox, work, processed, tmp_path):
    """A job that died with its worker is written again."""
    mailbox.accept(turn())
    bare.delete(f"rq:queue:{QUEUE}")
    for key in redis_client.scan_iter("sayso:{*}:due"):
        redis_client.zadd(key, {CHAT.id: 0})
    assert new_reaper(redis_client, tmp_path).round() == 1
    work()
    assert processed == [CHAT.id]


def test_conversation_leased_meanwhile_is_not_woken(bare, redis_client, mailbox, tmp_path):
    """A worker may come between the reaper's list and its wake-up."""
    mailbox.accept(turn())
    assert new_reaper(redis_client, tmp_path)._wake(CHAT.id) is False
    assert bare.llen(f"rq:queue:{QUEUE}") == 1


def test_two_reapers_do_not_wake_twice(redis_client, mailbox, tmp_path):
    """One of them works at a time, and a woken conversation is not due any more."""
    mailbox.accept(turn())
    redis_client.delete(f"rq:queue:{QUEUE}")
    for key in redis_client.scan_iter("sayso:{*}:due"):
        redis_client.zadd(key, {CHAT.id: 0})
    reapers = [new_reaper(redis_client, tmp_path) for _ in range(2)]
    first = [reaper.round() for reaper in reapers]
    redis_client.delete("sayso:reaper")
    assert (first, reapers[1].round()) == ([1, 0], 0)
