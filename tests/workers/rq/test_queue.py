"""Queue: RQ wakes our workers, and whoever writes to its queue can wake nothing else."""

from __future__ import annotations

import json
import os
import signal
import zlib
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
from sayso.pending.limits import URGENT_JOB
from sayso.pending.redis.scripts import LuaScripts
from sayso.pending.turns import TurnChange
from sayso.workers.mailbox import LUA, InboxLimits, RedisMailbox
from sayso.workers.recovery import Reaper, WorkerLock
from sayso.workers.rq.jobs import QUEUE, ForbiddenJob, SaysoJob, WakeUps, make_job
from sayso.workers.rq.process import new_worker
from sayso.workers.rq.worker import Capacity
from tests.contracts.rigs import CHAT, BlockingOutsideLoops, turn, voice

struck: list[str] = []


def strike(*_args, **_kwargs) -> None:
    """What an attacker would have our worker call."""
    struck.append("struck")


class FakeDrain:
    """Remembers what it was asked to processor."""

    def __init__(self) -> None:
        self.processed: list[str] = []

    async def run(self, conversation: str) -> None:
        """Drain nothing."""
        self.processed.append(conversation)

    def hand_over(self) -> None:
        """Nothing is held."""


@pytest.fixture
def processed():
    """The conversations this process's jobs processed."""
    struck.clear()
    fake = FakeDrain()
    jobs.install(SimpleNamespace(processor=fake))
    yield fake.processed
    jobs._processes.pop(os.getpid()).loop.close()


@pytest.fixture
def bare(redis_url, redis_client):
    """A client as RQ wants it, of an empty Redis."""
    with Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
def mailbox(redis_client):
    """A mailbox that wakes workers."""
    return BlockingOutsideLoops(RedisMailbox(LuaScripts(redis_client, LUA), voice, WakeUps(redis_client)))


@pytest.mark.parametrize("conversation", [CHAT.id, "shop-wa.2_x:" + "0f" * 10])
def test_wake_up_is_the_job_rq_would_write(redis_client, conversation):
    """Field for field, in RQ's order and types; only its times are its own, and how its data is packed."""
    names, flat = WakeUps(redis_client)(conversation)
    job = make_job(redis_client, names["job"], conversation)
    written, ours = job.to_dict(include_meta=False), dict(zip(flat[::2], flat[1::2], strict=True))
    job.created_at, job.enqueued_at = (utcparse(ours[name]) for name in ("created_at", "enqueued_at"))
    assert unpacked(ours) == unpacked(job.to_dict(include_meta=False))
    assert [type(value) for value in ours.values()] == [type(value) for value in written.values()]
    assert names == {
        "job_keys": Job.redis_job_namespace_prefix,
        "queue": Queue(QUEUE, connection=redis_client).key,
        "queues": Queue.redis_queues_keys,
        "job": job.id,
    }


def unpacked(fields):
    """A job's hash in order, its data as RQ reads it."""
    return list((fields | {"data": zlib.decompress(fields["data"])}).items())


def test_each_wake_up_has_an_id_of_its_own(redis_client):
    """Two jobs under one id would be one."""
    wake_up = WakeUps(redis_client)
    assert len({wake_up(CHAT.id).names["job"] for _ in range(100)}) == 100


@pytest.fixture
def work(redis_url, processed):
    """Works the queue off, as `sayso worker` does. RQ takes the signals of its process: they are given back."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    process = jobs._processes[os.getpid()]
    processor = process.services.processor
    services = SimpleNamespace(redis_url=redis_url, queue=QUEUE, capacity=Capacity(), processor=processor)
    yield lambda: new_worker(services, process.loop).work(burst=True, logging_level="CRITICAL")
    for number, handler in handlers.items():
        signal.signal(number, handler)


def plant(bare: Redis, name: str, *args, serializer=JSONSerializer, **fields) -> Job:
    """Put a job on our queue as anybody with Redis access could."""
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
def test_planted_job_is_refused_and_ours_still_run(bare, mailbox, work, processed, name, args):
    """Another function, or ours with something that is no id, fails; the next job is worked on."""
    job = plant(bare, name, *args)
    with pytest.raises(ForbiddenJob):
        _ = SaysoJob.fetch(job.id, connection=bare, serializer=JSONSerializer).func
    mailbox.accept(turn())
    work()
    assert (processed, struck) == ([CHAT.id], [])


def test_pickled_job_is_never_unpickled(bare, mailbox, work, processed):
    """RQ's default serializer would run code while reading: ours reads JSON only."""
    plant(bare, STRIKE, CHAT.id, serializer=None)
    mailbox.accept(turn())
    work()
    assert (processed, struck) == ([CHAT.id], [])


def test_job_with_an_instance_is_refused(bare, work, processed):
    """A method call is somebody else's."""
    job = plant(bare, "sayso.config.wiring.rq_entry.process_conversation", CHAT.id)
    data = JSONSerializer.dumps(["sayso.config.wiring.rq_entry.process_conversation", "object", [CHAT.id], {}])
    bare.hset(job.key, "data", data)
    work()
    assert processed == []


@pytest.mark.parametrize("name", ["sayso.config.wiring.rq_entry.process_conversation", STRIKE])
def test_planted_callbacks_never_run(bare, work, processed, name):
    """Neither after success nor after failure."""
    names = dict.fromkeys(("success_callback_name", "failure_callback_name", "stopped_callback_name"), STRIKE)
    plant(bare, name, CHAT.id, **names)
    work()
    assert struck == []
    assert processed == ([CHAT.id] if name != STRIKE else [])


@pytest.mark.parametrize("name", ["sayso.config.wiring.rq_entry.process_conversation", STRIKE])
def test_planted_web_hooks_are_never_called(bare, work, processed, monkeypatch, name):
    """Redis access does not become network access."""
    monkeypatch.setattr(Webhook, "send", strike)
    hooks = [Webhook("http://127.0.0.1:9/", status).to_dict() for status in ("finished", "failed")]
    plant(bare, name, CHAT.id, webhooks=json.dumps(hooks))
    work()
    assert struck == []


def test_accepting_writes_a_job_that_rq_reads_back(bare, mailbox):
    """One hash, one queue entry: our function, JSON, the conversation's id and nothing of the person."""
    mailbox.accept(turn("my secret"))
    (job_id,) = bare.lrange(f"rq:queue:{QUEUE}", 0, -1)
    job = Job.fetch(job_id.decode(), connection=bare, serializer=JSONSerializer)
    assert (job.func_name, job.args, job.kwargs) == ("sayso.config.wiring.rq_entry.process_conversation", [CHAT.id], {})
    assert (job.get_status(), job.origin) == ("queued", QUEUE)
    assert b"my secret" not in b"".join(bare.hvals(job.key))


def test_woken_lane_is_woken_once(bare, mailbox):
    """Many turns, one job: whoever comes takes them all."""
    for _ in range(3):
        mailbox.accept(turn())
    assert bare.llen(f"rq:queue:{QUEUE}") == 1


def test_held_lane_is_not_woken(bare, mailbox):
    """The holder sees the new turn by itself."""
    mailbox.accept(turn())
    mailbox.lease(CHAT.id, "w1")
    bare.delete(f"rq:queue:{QUEUE}")
    mailbox.accept(turn())
    assert bare.llen(f"rq:queue:{QUEUE}") == 0


def test_released_lane_is_woken_again(bare, mailbox):
    """The next turn after the work is done gets a job of its own."""
    mailbox.accept(turn())
    held, work = mailbox.lease(CHAT.id, "w1")
    mailbox.commit(held, work, TurnChange())
    mailbox.release(held)
    bare.lpop(f"rq:queue:{QUEUE}")
    mailbox.accept(turn())
    assert bare.llen(f"rq:queue:{QUEUE}") == 1


def test_handed_over_lane_goes_to_the_end_of_the_queue(bare, mailbox):
    """Its new job is written in the same step."""
    mailbox.accept(turn())
    bare.lpop(f"rq:queue:{QUEUE}")
    bare.rpush(f"rq:queue:{QUEUE}", "somebody-elses")
    held, _ = mailbox.lease(CHAT.id, "w1")
    mailbox.release(held, hand_over=True)
    assert [job == b"somebody-elses" for job in bare.lrange(f"rq:queue:{QUEUE}", 0, -1)] == [True, False]


def new_reaper(client, folder):
    """The reaper of one worker, which wakes through RQ."""
    wake_up = WakeUps(client)
    return Reaper(client, LuaScripts(client, LUA), wake_up, WorkerLock(folder), queue=wake_up.queue)


def test_wake_up_that_is_still_queued_is_not_repeated(bare, mailbox, redis_client, tmp_path):
    """A long queue must not grow by itself, round after round of the reaper."""
    reaper = new_reaper(redis_client, tmp_path)
    mailbox.accept(turn())
    for _ in range(3):
        redis_client.delete("sayso:reaper")
        for key in redis_client.scan_iter("sayso:{*}:due"):
            redis_client.zadd(key, {CHAT.id: 0})
        assert reaper.round() == 0
    assert bare.llen(f"rq:queue:{QUEUE}") == 1


def test_tap_overtakes_other_conversations_in_the_queue(bare, mailbox):
    """Whoever decides about something waits for nobody who only chats; twice urgent is urgent once."""
    mailbox.accept(replace(turn(), conversation=Conversation("chat", "other")))
    mailbox.accept(turn())
    first, second = bare.lrange(f"rq:queue:{QUEUE}", 0, -1)
    mailbox.accept(turn(tap="1x"))
    mailbox.accept(turn(tap="1x"))
    urgent, *others = bare.lrange(f"rq:queue:{QUEUE}", 0, -1)
    assert (urgent.startswith(URGENT_JOB.encode()), others) == (True, [first, second])
    assert SaysoJob.fetch(urgent.decode(), connection=bare, serializer=JSONSerializer).conversation == CHAT.id


def test_refused_turns_wake_nobody(bare, redis_client):
    """Chatter costs no job, and a full mailbox none beside the one that is on its way."""
    mailbox = RedisMailbox(LuaScripts(redis_client, LUA), voice, WakeUps(redis_client), limits=InboxLimits(waiting=1))
    assert mailbox.accept(turn(addressed=False)).outcome == "ignored"
    assert bare.llen(f"rq:queue:{QUEUE}") == 0
    assert [mailbox.accept(turn()).outcome for _ in range(3)] == ["new", "full", "full"]
    assert bare.llen(f"rq:queue:{QUEUE}") == 1


def test_worker_processes_what_was_accepted(bare, mailbox, work, processed):
    """From the webhook's script to our function, through RQ; nothing of the job is left."""
    mailbox.accept(turn())
    work()
    assert processed == [CHAT.id]
    assert bare.keys("rq:job:*") == []


def test_reaper_puts_the_lost_job_back(bare, redis_client, mailbox, work, processed, tmp_path):
    """A job that died with its worker is written again."""
    mailbox.accept(turn())
    bare.delete(f"rq:queue:{QUEUE}")
    for key in redis_client.scan_iter("sayso:{*}:due"):
        redis_client.zadd(key, {CHAT.id: 0})
    assert new_reaper(redis_client, tmp_path).round() == 1
    work()
    assert processed == [CHAT.id]


def test_lane_somebody_took_meanwhile_is_not_woken(bare, redis_client, mailbox, tmp_path):
    """Between the reaper's list and its wake-up a worker may have come."""
    mailbox.accept(turn())
    assert new_reaper(redis_client, tmp_path)._wake(CHAT.id) is False
    assert bare.llen(f"rq:queue:{QUEUE}") == 1


def test_two_reapers_do_not_wake_twice(redis_client, mailbox, tmp_path):
    """One of them works at a time, and what it woke is not due any more."""
    mailbox.accept(turn())
    redis_client.delete(f"rq:queue:{QUEUE}")
    for key in redis_client.scan_iter("sayso:{*}:due"):
        redis_client.zadd(key, {CHAT.id: 0})
    reapers = [new_reaper(redis_client, tmp_path) for _ in range(2)]
    first = [reaper.round() for reaper in reapers]
    redis_client.delete("sayso:reaper")
    assert (first, reapers[1].round()) == ([1, 0], 0)
