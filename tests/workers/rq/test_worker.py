"""SaysoWorker: many jobs at once on RQ's base, none lost, none unstoppable, and RQ's own views stay true."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from functools import partial
from types import SimpleNamespace

import pytest
from redis import Redis
from redis.exceptions import RedisError
from rq import Queue, SimpleWorker, Worker
from rq.command import send_command, send_shutdown_command, send_stop_execution_command, send_stop_job_command
from rq.job import Job, JobStatus
from rq.registry import FailedJobRegistry, StartedJobRegistry
from rq.serializers import JSONSerializer
from rq.suspension import resume, suspend

from sayso.config.server.embedded_redis import EmbeddedRedis
from sayso.config.wiring import rq_entry as jobs
from sayso.pending.redis.client import PREFIX
from sayso.pending.threads import LoopThread
from sayso.workers.rq import worker as workers
from sayso.workers.rq.jobs import PROCESS_CONVERSATION, QUEUE
from sayso.workers.rq.process import run_worker
from sayso.workers.rq.worker import Capacity
from tests.flows.system import until
from tests.workers.works import Turns, chat, enqueue, left_behind, make_worker, work_while

QUEUE_KEY = f"rq:queue:{QUEUE}"
ON_THEIR_WAY = f"{QUEUE_KEY}:intermediate"


@pytest.fixture(autouse=True)
def signals():
    """RQ takes the signals of its process: they are given back."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """A signal is heard at once: otherwise every test would end with a second of waiting for a job."""
    monkeypatch.setattr(workers, "WAIT_SECONDS", 0.02)


@pytest.fixture
def loop():
    """The loop of a worker process."""
    thread = LoopThread()
    yield thread
    thread.close()


@pytest.fixture
def turns(loop):
    """What the worker performs."""
    return Turns(loop)


@pytest.fixture
def bare(redis_url, redis_client):
    """A client as RQ wants it, of an empty Redis."""
    with Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
def make(redis_url, bare, loop, turns):
    """Makes a worker that performs `turns`. One whose end was cut short would write its books into the next test's."""
    made = []

    def making(**options):
        made.append(make_worker(redis_url, loop, turns, **options))
        return made[-1]

    yield making
    for worker in made:
        worker._registry.close()


def status(client: Redis, job: Job) -> JobStatus:
    """What RQ has of a job."""
    return Job.fetch(job.id, connection=client, serializer=JSONSerializer).get_status()


def test_cut_off_after_its_grace(bare, make, turns):
    """What does not end is cancelled, has a moment to clean up, and the worker leaves."""
    enqueue(bare, 1)
    work_while(make(grace_seconds=0.0), lambda: turns.until_begun(chat(1)))
    assert (turns.cut, turns.ended) == ([chat(1)], [])
    assert left_behind(bare) == set()
    assert Worker.all(connection=bare) == []


def test_worker_leaves_although_a_turn_refuses_to_end(bare, loop, redis_url, monkeypatch):
    """Not even a coroutine that swallows its cancellation holds the process."""
    monkeypatch.setattr(workers, "CUT_SECONDS", 0.05)
    begun, released = threading.Event(), asyncio.Event()

    async def stubborn(_: str) -> None:
        begun.set()
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue

    enqueue(bare, 1)
    work_while(make_worker(redis_url, loop, stubborn, grace_seconds=0.0), begun.wait)
    loop._loop.call_soon_threadsafe(released.set)
    assert Worker.all(connection=bare) == []


def test_told_to_stop_ends_what_runs_and_takes_nothing_more(bare, make, turns):
    """A graceful stop: conversations are handed over, turns come to their end, the queue is left to others."""
    handed_over = threading.Event()

    def story() -> None:
        turns.until_begun(chat(1), chat(2))
        os.kill(os.getpid(), signal.SIGTERM)
        handed_over.wait()
        enqueue(bare, 3)
        turns.open()

    for number in (1, 2):
        enqueue(bare, number)
    work_while(make(on_stop=handed_over.set), story)
    assert sorted(turns.ended) == [chat(1), chat(2)]
    assert bare.lrange(QUEUE_KEY, 0, -1) == [b"process-3"]
    assert bare.llen(ON_THEIR_WAY) == 0


def test_worker_that_ends_by_itself_hands_nothing_over(bare, make, turns):
    """Handing over is for good: the next worker of this process could work on nothing."""
    turns.open()
    enqueue(bare, 1)
    handed_over = threading.Event()
    make(on_stop=handed_over.set).work(burst=True, logging_level="CRITICAL")
    assert turns.ended == [chat(1)]
    assert not handed_over.is_set()


def test_signal_between_two_workers_is_heard_by_the_next(bare, make):
    """The handler of the last one is still in place while the next one is not ready."""
    told = threading.Event()
    last = make(stop_requested=told)
    last.request_stop(signal.SIGTERM, None)
    enqueue(bare, 1)
    make(stop_requested=told).work(logging_level="CRITICAL")
    assert bare.llen(QUEUE_KEY) == 1


def test_signals_handler_asks_nothing_of_redis(make, monkeypatch):
    """It interrupts the main thread anywhere, also where a silent Redis would hold it up."""
    worker = make()
    monkeypatch.setattr(worker, "connection", None)
    worker.request_stop(signal.SIGTERM, None)
    assert worker.stopping


def test_second_signal_ends_the_wait(bare, make, turns):
    """Ctrl+C twice, more than a second apart: RQ's cold shutdown works during the grace, too."""
    worker = make()

    def story() -> None:
        turns.until_begun(chat(1))
        os.kill(os.getpid(), signal.SIGTERM)
        until(lambda: signal.getsignal(signal.SIGTERM) == worker.request_force_stop)
        worker._shutdown_requested_date = worker._shutdown_requested_date.replace(year=2000)
        os.kill(os.getpid(), signal.SIGTERM)

    enqueue(bare, 1)
    with pytest.raises(SystemExit):
        work_while(worker, story)
    assert turns.ended == []


def test_silent_redis_does_not_hold_the_main_thread(make):
    """RQ would wait 55 s for an answer, longer than most graces."""
    kwargs = make().connection.connection_pool.connection_kwargs
    assert kwargs["socket_timeout"] == workers.SILENT_SECONDS > workers.WAIT_SECONDS


def test_more_than_its_capacity_waits_in_the_queue(bare, make, turns):
    """Five places, twelve jobs: five run, the others are anybody's; as places come free, they follow."""

    def story() -> None:
        turns.until_begun(*map(chat, range(5)))
        until(lambda: bare.llen(QUEUE_KEY) == 7)
        turns.open(chat(0), chat(1))
        turns.until_begun(*map(chat, range(7)))
        turns.open()
        until(lambda: len(turns.ended) == 12)

    for number in range(12):
        enqueue(bare, number)
    work_while(make(concurrency=5), story)
    assert turns.most == 5
    until(lambda: left_behind(bare) == set())


def test_urgent_jobs_take_the_reserve(bare, make, turns):
    """A full worker still has a place for who is urgent, and for nobody else."""

    def story() -> None:
        turns.until_begun(chat(1), chat(2))
        enqueue(bare, 3)
        enqueue(bare, 4, job_id="first-4", at_front=True)
        turns.until_begun(chat(1), chat(2), chat(4))
        enqueue(bare, 5, job_id="first-5", at_front=True)
        assert bare.lrange(QUEUE_KEY, 0, -1) == [b"first-5", b"process-3"]
        turns.open()
        until(lambda: len(turns.ended) == 5)

    for number in (1, 2):
        enqueue(bare, number)
    work_while(make(concurrency=2, reserve=1), story)
    assert turns.begun[2:4] == [chat(4), chat(5)]


def test_many_short_jobs_leave_nothing_behind(bare, make, turns):
    """Five hundred in bursts: each once, RQ's lists and hashes empty, its count right."""
    turns.open()
    for number in range(500):
        enqueue(bare, number)
    worker = make(concurrency=50)
    worker.work(burst=True, logging_level="CRITICAL")
    assert sorted(turns.ended) == [chat(number) for number in range(500)]
    assert left_behind(bare) == set()
    assert bare.hget(worker.key, "successful_job_count") == b"500"


def test_rq_sees_what_runs(bare, make, turns):
    """`rq info`, dashboards and RQ's clean-up read these."""
    worker = make()
    queue = Queue(QUEUE, connection=bare, serializer=JSONSerializer)

    def story() -> None:
        until(lambda: StartedJobRegistry(queue=queue).count == 3)
        (seen,) = Worker.all(connection=bare)
        assert (seen.name, seen.pid, seen.get_state()) == (worker.name, os.getpid(), "busy")
        running = {f"process-{number}" for number in range(3)}
        assert {execution.job_id for execution in seen.get_current_executions()} == running
        assert set(StartedJobRegistry(queue=queue).get_job_ids()) == running
        assert bare.llen(ON_THEIR_WAY) == 0
        job = Job.fetch("process-1", connection=bare, serializer=JSONSerializer)
        assert (job.get_status(), job.worker_name) == (JobStatus.STARTED, worker.name)
        turns.open()
        until(lambda: Worker.all(connection=bare)[0].get_state() == "idle")

    for number in range(3):
        enqueue(bare, number)
    work_while(worker, story)
    assert left_behind(bare) == set()


@pytest.mark.parametrize("command", ["stop-job", "stop-execution"])
def test_stop_command_ends_one_job_and_no_other(bare, make, turns, command):
    """Whichever of those that run; RQ keeps it among the stopped."""
    started = StartedJobRegistry(QUEUE, connection=bare, serializer=JSONSerializer)

    def story() -> None:
        until(lambda: started.count == 3)
        if command == "stop-job":
            send_stop_job_command(bare, "process-1", serializer=JSONSerializer)
        else:
            (execution,) = Job.fetch("process-1", connection=bare, serializer=JSONSerializer).get_executions()
            send_stop_execution_command(bare, "process-1", execution.id)
        until(lambda: started.count == 2)
        turns.open()

    handles = [enqueue(bare, number) for number in range(3)]
    work_while(make(), story)
    assert (turns.cut, sorted(turns.ended)) == ([chat(1)], [chat(0), chat(2)])
    until(lambda: status(bare, handles[1]) == JobStatus.STOPPED)


def test_two_stopped_at_once_are_both_stopped(bare, make, turns):
    """RQ's base remembers one stopped job a worker; the other would count as failed."""
    worker = make()
    started = StartedJobRegistry(QUEUE, connection=bare, serializer=JSONSerializer)

    def story() -> None:
        until(lambda: started.count == 2)
        for number in range(2):
            send_stop_job_command(bare, f"process-{number}", serializer=JSONSerializer)
        until(lambda: started.count == 0)

    handles = [enqueue(bare, number) for number in range(2)]
    work_while(worker, story)
    assert [status(bare, job) for job in handles] == [JobStatus.STOPPED] * 2


def test_what_is_no_command_does_not_deafen_the_worker(bare, make, turns):
    """Anybody may publish; the next command is heard."""
    worker = make()

    def story() -> None:
        until(lambda: StartedJobRegistry(QUEUE, connection=bare, serializer=JSONSerializer).count == 1)
        for words in (b"\xff", b"no json", b"[]", b"7", b"{}", json.dumps({"command": "stop-job"})):
            bare.publish(worker.pubsub_channel_name, words)
        send_command(bare, worker.name, "stop-job", job_id="process-9")
        send_stop_job_command(bare, "process-0", serializer=JSONSerializer)
        until(lambda: turns.cut)

    enqueue(bare, 0)
    work_while(worker, story)
    assert turns.cut == [chat(0)]


def test_shutdown_command_is_a_graceful_stop(bare, make, turns):
    """`rq`'s own way of telling a worker to stop."""
    worker = make()

    def story() -> None:
        turns.until_begun(chat(1))
        send_shutdown_command(bare, worker.name)
        until(lambda: worker.stopping)
        turns.open()

    enqueue(bare, 1)
    work_while(worker, story)
    assert turns.ended == [chat(1)]


def test_job_stopped_before_its_first_step_frees_its_place(bare, make, turns, loop):
    """The loop was busy: it is cut at its first wait, and nothing of it is left hanging."""
    worker, blocked = make(), threading.Event()
    worker._registry.open()
    loop._loop.call_soon_threadsafe(blocked.wait)
    enqueue(bare, 1)
    (job,) = worker._take((1, 1))
    worker._start(job)
    worker._stop(job.id)
    blocked.set()
    loop.run(asyncio.sleep(0))
    worker._registry.close()
    assert (turns.cut, turns.ended, worker._running, worker._stopped) == ([chat(1)], [], {}, set())


def test_suspended_worker_takes_nothing_until_resumed(bare, make, turns):
    """`rq suspend`: what runs goes on, RQ shows it suspended, `rq resume` brings it back."""

    def state() -> str:
        return Worker.all(connection=bare)[0].get_state()

    def story() -> None:
        turns.until_begun(chat(1))
        suspend(bare)
        until(lambda: state() == "suspended")
        enqueue(bare, 2)
        turns.open()
        until(lambda: StartedJobRegistry(QUEUE, connection=bare, serializer=JSONSerializer).count == 0)
        assert (state(), turns.begun) == ("suspended", [chat(1)])
        resume(bare)
        until(lambda: chat(2) in turns.ended)

    enqueue(bare, 1)
    work_while(make(), story)


def test_broken_turn_fails_its_job_only(bare, redis_url, loop):
    """What escapes a job is filed with its traceback, and the next job runs."""
    done = []

    async def perform(conversation: str) -> None:
        if conversation == chat(1):
            raise LookupError("no such thing")
        done.append(conversation)

    handles = [enqueue(bare, number) for number in (1, 2)]
    make_worker(redis_url, loop, perform).work(burst=True, logging_level="CRITICAL")
    assert done == [chat(2)]
    failed = FailedJobRegistry(QUEUE, connection=bare, serializer=JSONSerializer)
    assert (failed.get_job_ids(), status(bare, handles[0])) == (["process-1"], JobStatus.FAILED)
    result = Job.fetch("process-1", connection=bare, serializer=JSONSerializer).latest_result()
    assert "LookupError: no such thing" in result.exc_string


def test_time_limit_of_a_job_really_cancels():
    """A coroutine is ended where it waits; it does not go on unseen."""
    ends = []

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ends.append("cut")

    with pytest.raises(TimeoutError):
        asyncio.run(workers._in_time(endless, 0.01))
    assert ends == ["cut"]


def vandalise(client: Redis) -> None:
    """Whatever somebody with access to Redis could leave for a worker."""
    queue = Queue(QUEUE, connection=client, serializer=JSONSerializer)
    queue.enqueue("os.system", "true", job_id="forbidden")
    for name, fields in {
        "numbers": {"data": json.dumps([PROCESS_CONVERSATION, None, 5, {}])},
        "no-json": {"data": b"\xff\xfe"},
        "no-list": {"data": json.dumps(7)},
        "no-limit": {"data": json.dumps([PROCESS_CONVERSATION, None, [chat(9)], {}]), "timeout": "soon"},
        "no-date": {"data": json.dumps([PROCESS_CONVERSATION, None, [chat(9)], {}]), "created_at": "yesterday"},
        "no-status": {"data": json.dumps([PROCESS_CONVERSATION, None, [chat(9)], {}]), "status": "odd"},
        "no-data": {"origin": QUEUE},
    }.items():
        client.hset(f"rq:job:{name}", mapping=fields)
        client.rpush(QUEUE_KEY, name)
    client.set("rq:job:string", "no hash")
    client.rpush(QUEUE_KEY, "vanished", "string", b"\xff\xfe raw", "with:colon", "")


def test_vandals_stop_nobody(bare, make, turns):
    """Each is refused, dropped or one of ours with odd edges; none stays on its way, none ends the worker."""
    turns.open()
    enqueue(bare, 1)
    vandalise(bare)
    enqueue(bare, 2)
    worker = make()
    worker.work(burst=True, logging_level="CRITICAL")
    assert sorted(turns.ended) == [chat(1), chat(2), chat(9), chat(9)]  # odd dates and states are read by nobody
    assert (bare.llen(QUEUE_KEY), bare.lrange(ON_THEIR_WAY, 0, -1)) == (0, [])
    assert not worker.stopping


def test_vandals_on_their_way_do_not_end_a_worker(bare, make, turns):
    """RQ's clean-up fails on what it cannot read; the worker goes on."""
    turns.open()
    bare.rpush(ON_THEIR_WAY, b"\xff\xfe raw")
    enqueue(bare, 1)
    make().work(burst=True, logging_level="CRITICAL")
    assert turns.ended == [chat(1)]


def test_job_that_is_queued_twice_runs_once_at_a_time(bare, make, turns):
    """The second is dropped while the first runs, and the first is still waited for."""

    def story() -> None:
        turns.until_begun(chat(1))
        bare.rpush(QUEUE_KEY, "process-1")
        until(lambda: bare.llen(QUEUE_KEY) == 0)
        enqueue(bare, 2)
        turns.until_begun(chat(1), chat(2))
        turns.open()

    enqueue(bare, 1)
    work_while(make(), story)
    assert sorted(turns.ended) == [chat(1), chat(2)]


@pytest.mark.parametrize("kind", [SimpleWorker, Worker])
def test_plain_rq_runs_our_jobs(bare, tmp_path, monkeypatch, kind):
    """One at a time, in this process or in a forked one; a process that nobody prepared prepares itself."""
    processed = tmp_path / "processed"

    class FileDrain:
        async def run(self, conversation: str) -> None:
            with processed.open("a") as file:
                file.write(f"{conversation} {os.getpid() == parent}\n")

    parent = os.getpid()
    monkeypatch.setattr(jobs, "_from_environment", lambda: SimpleNamespace(processor=FileDrain()))
    for number in (1, 2):
        enqueue(bare, number)
    kind([QUEUE], connection=bare, serializer=JSONSerializer).work(burst=True, logging_level="CRITICAL")
    here = kind is SimpleWorker
    assert processed.read_text().split("\n") == [f"{chat(1)} {here}", f"{chat(2)} {here}", ""]
    if here:
        jobs._processes.pop(parent).loop.close()


class Outliving(EmbeddedRedis):
    """A server that may be started by a thread which ends before it."""

    def prepare(self) -> None:
        """It does not die with whoever started it."""


def test_jobs_go_on_while_redis_is_away_and_are_booked_later(tmp_path, loop, turns, request):
    """A restart of Redis costs no turn and no worker."""
    server = Outliving(tmp_path)
    request.addfinalizer(server.stop)
    server.start()
    started = partial(StartedJobRegistry, QUEUE, serializer=JSONSerializer)
    with Redis.from_url(server.url) as client:

        def story() -> None:
            until(lambda: started(connection=client).count == 2)
            server.stop()
            turns.open(chat(0))
            until(lambda: turns.ended == [chat(0)])
            server.start()
            client.connection_pool.disconnect()
            until(lambda: started(connection=client).get_job_ids() == ["process-1"])
            enqueue(client, 2)
            until(lambda: chat(2) in turns.begun)
            turns.open()

        for number in range(2):
            enqueue(client, number)
        worker = make_worker(server.url, loop, turns)
        work_while(worker, story)
        assert sorted(turns.ended) == [chat(0), chat(1), chat(2)]
        assert left_behind(client) == set()
        assert Worker.all(connection=client) == []


def test_worker_leaves_although_redis_is_away(tmp_path, loop, turns, caplog):
    """The good-bye fails loudly for `run_worker`; nothing goes on behind it."""
    server = EmbeddedRedis(tmp_path)
    server.start()
    with Redis.from_url(server.url) as client:
        enqueue(client, 1)
    worker = make_worker(server.url, loop, turns)

    def story() -> None:
        turns.until_begun(chat(1))
        server.stop()
        turns.open()

    with pytest.raises(RedisError):
        work_while(worker, story)
    assert turns.ended == [chat(1)]
    assert not worker._registry._thread.is_alive()
    assert not worker.pubsub_thread._running.is_set()


class Rounds:
    """Stands for the reaper, the auditor and the folders of a process."""

    def __init__(self) -> None:
        self.heartbeat = self
        self.left = 0
        self.cancelled = threading.Event()

    async def forever(self) -> None:
        """Until cancelled."""
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()

    def leave(self) -> None:
        """Say good-bye."""
        self.left += 1

    def sweep(self) -> int:
        """Fail, as a full disk does."""
        raise OSError("disk")


def process_of(redis_url: str, perform) -> SimpleNamespace:
    """Services of a worker process."""
    rounds, closed = Rounds(), threading.Event()
    processor = SimpleNamespace(run=perform, hand_over=lambda: None, renew_now=lambda _: None, is_idle=True)
    held = []
    lock = SimpleNamespace(held=held, hold=lambda: held.append("held"), leave=lambda: held.append("left"))
    return SimpleNamespace(
        redis_url=redis_url,
        queue=QUEUE,
        key_prefix=PREFIX,
        capacity=Capacity(),
        tool_threads=32,
        processor=processor,
        reaper=rounds,
        audit_collector=Rounds(),
        lock=lock,
        sweeps={"media": rounds.sweep, "texts": rounds.sweep},
        are_tools_closed=closed.is_set,
        close_tools=closed.set,
        close_models=None,
        data_loss_guard=None,
    )


def test_run_worker_works_until_told_and_says_good_bye(bare, redis_url, caplog):
    """The whole of a worker process: its background work ends before it leaves; a full disk is reported, not fatal."""
    services = process_of(redis_url, None)

    async def perform(_: str) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    services.processor.run = perform
    enqueue(bare, 1)
    run_worker(services, LoopThread())
    assert services.reaper.left == 1
    assert services.reaper.cancelled.wait(30)
    assert services.audit_collector.cancelled.wait(30)
    assert services.lock.held == ["held", "left"]
    assert services.are_tools_closed()
    assert "media.not_swept" in caplog.text
    assert "texts.not_swept" in caplog.text


def test_run_worker_tries_again_when_redis_is_away_at_its_birth(bare, redis_url, monkeypatch):
    """And a signal that comes meanwhile ends it."""
    services = process_of(redis_url, None)
    pauses = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 1:
            services.redis_url = redis_url

    async def perform(_: str) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    services.processor.run = perform
    services.redis_url = "unix:///nowhere/redis.sock"
    monkeypatch.setattr(workers.time, "sleep", pause)
    enqueue(bare, 1)
    run_worker(services, LoopThread())
    assert services.reaper.left == 1


def test_worker_that_still_holds_lanes_at_its_end_is_taken_for_dead(bare, redis_url):
    """What it was cut off from is taken over as soon as its process has ended."""
    services = process_of(redis_url, None)
    services.processor.is_idle = False

    async def perform(_: str) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    services.processor.run = perform
    enqueue(bare, 1)
    run_worker(services, LoopThread())
    assert services.lock.held == ["held"]


def test_young_worker_holds_little_and_twice_as_much_each_second():
    """What dies young takes few with it; what lives is soon at its full strength, and never above."""
    capacity = Capacity(concurrency=100)
    assert [capacity.after(seconds) for seconds in (0, 1, 2, 3, 4, 3600, 1e9)] == [8, 16, 32, 64, 100, 100, 100]
    assert Capacity(concurrency=3).after(0) == 3
