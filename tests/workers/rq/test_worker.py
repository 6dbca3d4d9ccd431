"""SaysoWorker: runs many jobs at once on RQ's base, loses none, stops each, and keeps RQ's views right."""

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
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError
from rq import Queue, SimpleWorker, Worker
from rq.command import (
    send_command,
    send_shutdown_command,
    send_stop_execution_command,
    send_stop_job_command,
)
from rq.job import Job, JobStatus
from rq.registry import FailedJobRegistry, StartedJobRegistry
from rq.serializers import JSONSerializer
from rq.suspension import resume, suspend

from sayso.config.wiring import rq_entry as jobs
from sayso.infra.redis.client import PREFIX
from sayso.infra.threads import LoopThread
from sayso.ops.server.embedded_redis import EmbeddedRedis
from sayso.workers.rq import running_jobs
from sayso.workers.rq import worker as workers
from sayso.workers.rq.jobs import PROCESS_CONVERSATION, QUEUE
from sayso.workers.rq.process import run_worker
from sayso.workers.rq.worker import Capacity, StopFlag
from tests.flows.system import until
from tests.workers.works import Turns, chat, enqueue, left_behind, make_worker, work_while

QUEUE_KEY = f"rq:queue:{QUEUE}"
ON_THEIR_WAY = f"{QUEUE_KEY}:intermediate"


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Make signals count at once; otherwise every test would wait for a second at its end."""
    monkeypatch.setattr(workers, "WAIT_SECONDS", 0.02)


@pytest.fixture
def loop():
    """Return the loop of a worker process."""
    thread = LoopThread()
    yield thread
    thread.close()


@pytest.fixture
def turns(loop):
    """Return the function that the worker runs."""
    return Turns(loop)


@pytest.fixture
def bare(redis_url, redis_client):
    """Return a client without decoding, as RQ needs it, of an empty Redis."""
    with Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
def make(redis_url, bare, loop, turns):
    """Return a function that makes a worker. A worker that outlived its test would write into the next one's Redis."""
    made = []

    def making(**options):
        made.append(make_worker(redis_url, loop, turns, **options))
        return made[-1]

    yield making
    for worker in made:
        worker._registry.close()


def status(client: Redis, job: Job) -> JobStatus:
    """Return RQ's status of a job."""
    return Job.fetch(job.id, connection=client, serializer=JSONSerializer).get_status()


def test_job_is_cancelled_after_the_grace(bare, make, turns):
    """A job that does not end is cancelled, has a moment to clean up, and the worker exits."""
    enqueue(bare, 1)
    work_while(make(grace_seconds=0.0), lambda: turns.until_begun(chat(1)))
    assert (turns.cut, turns.ended) == ([chat(1)], [])
    assert left_behind(bare) == set()
    assert Worker.all(connection=bare) == []


def test_worker_exits_although_a_turn_refuses_to_end(bare, loop, redis_url, monkeypatch):
    """A coroutine that swallows its cancellation does not hold the process."""
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_graceful_stop_finishes_running_jobs_and_takes_no_more(bare, make, turns, number):
    """Conversations are handed over, turns finish, and the queue is left to other workers."""
    handed_over = threading.Event()

    def story() -> None:
        turns.until_begun(chat(1), chat(2))
        os.kill(os.getpid(), number)
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
    """A handover is final, and the next worker of this process could process nothing."""
    turns.open()
    enqueue(bare, 1)
    handed_over = threading.Event()
    make(on_stop=handed_over.set).work(burst=True, logging_level="CRITICAL")
    assert turns.ended == [chat(1)]
    assert not handed_over.is_set()


def test_signal_between_two_workers_reaches_the_next(bare, make):
    """The last worker's handler is still installed while the next one starts."""
    told = StopFlag()
    last = make(stop_requested=told)
    last.request_stop(signal.SIGTERM, None)
    enqueue(bare, 1)
    make(stop_requested=told).work(logging_level="CRITICAL")
    assert bare.llen(QUEUE_KEY) == 1


def test_signal_handler_makes_no_redis_call(make, monkeypatch):
    """It interrupts the main thread anywhere, even in a call to a silent Redis."""
    worker = make()
    monkeypatch.setattr(worker, "connection", None)
    worker.request_stop(signal.SIGTERM, None)
    assert worker.stopping


def test_second_signal_ends_the_wait(bare, make, turns):
    """Ctrl+C comes twice, more than a second apart: RQ's cold shutdown works during the grace too."""
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


def test_silent_redis_does_not_block_the_main_thread(make):
    """RQ would wait 55 s for an answer, which is longer than most graces."""
    kwargs = make().connection.connection_pool.connection_kwargs
    assert kwargs["socket_timeout"] == workers.SILENT_SECONDS > workers.WAIT_SECONDS


def test_jobs_beyond_the_capacity_wait_in_the_queue(bare, make, turns):
    """With five places five of twelve jobs run; other workers could take the rest, which follow as places come free."""

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
    """A full worker has a place for urgent jobs, and only for them."""

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


def test_many_short_jobs_leave_no_keys(bare, make, turns):
    """Five hundred in bursts run once each; RQ's lists and hashes are empty, and its count is right."""
    turns.open()
    for number in range(500):
        enqueue(bare, number)
    worker = make(concurrency=50)
    worker.work(burst=True, logging_level="CRITICAL")
    assert sorted(turns.ended) == [chat(number) for number in range(500)]
    assert left_behind(bare) == set()
    assert bare.hget(worker.key, "successful_job_count") == b"500"


def test_rq_lists_running_jobs(bare, make, turns):
    """`rq info`, dashboards and RQ's cleanup read these lists."""
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
    """It may be any running job; RQ lists it as stopped."""
    started = StartedJobRegistry(QUEUE, connection=bare, serializer=JSONSerializer)

    def story() -> None:
        until(lambda: started.count == 3)
        if command == "stop-job":
            send_stop_job_command(bare, "process-1", serializer=JSONSerializer)
        else:
            (execution,) = Job.fetch(
                "process-1", connection=bare, serializer=JSONSerializer
            ).get_executions()
            send_stop_execution_command(bare, "process-1", execution.id)
        until(lambda: started.count == 2)
        turns.open()

    handles = [enqueue(bare, number) for number in range(3)]
    work_while(make(), story)
    assert (turns.cut, sorted(turns.ended)) == ([chat(1)], [chat(0), chat(2)])
    until(lambda: status(bare, handles[1]) == JobStatus.STOPPED)


def test_two_stopped_at_once_are_both_stopped(bare, make, turns):
    """RQ's base remembers one stopped job per worker; the other would count as failed."""
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


def test_invalid_command_does_not_end_listening(bare, make, turns):
    """Any client may publish; the next command is received."""
    worker = make()

    def story() -> None:
        until(
            lambda: StartedJobRegistry(QUEUE, connection=bare, serializer=JSONSerializer).count == 1
        )
        for words in (b"\xff", b"no json", b"[]", b"7", b"{}", json.dumps({"command": "stop-job"})):
            bare.publish(worker.pubsub_channel_name, words)
        send_command(bare, worker.name, "stop-job", job_id="process-9")
        send_stop_job_command(bare, "process-0", serializer=JSONSerializer)
        until(lambda: turns.cut)

    enqueue(bare, 0)
    work_while(worker, story)
    assert turns.cut == [chat(0)]


@pytest.mark.parametrize("error", [RedisConnectionError("gone"), RedisTimeoutError("hung")])
def test_commands_are_heard_again_after_any_outage(make, monkeypatch, caplog, error):
    """RQ calls this in the thread that listens, which ends if it raises."""
    monkeypatch.setattr(workers, "COMMANDS_PAUSE_SECONDS", 0)
    make()._pubsub_exception_handler(error, None, None)
    assert "worker.commands_unavailable" in caplog.messages


def test_shutdown_command_is_a_graceful_stop(bare, make, turns):
    """It is RQ's own way to stop a worker."""
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
    """The loop was busy. The job ends at its first await, and no task is left."""
    worker, blocked = make(), threading.Event()
    worker._registry.open()
    loop._loop.call_soon_threadsafe(blocked.wait)
    enqueue(bare, 1)
    (job,) = worker._job_queue.take(1, 1)
    worker._running.start(job)
    worker._running.stop(job.id)
    blocked.set()
    loop.run(asyncio.sleep(0))
    worker._registry.close()
    assert (turns.cut, turns.ended, len(worker._running), worker._running._stopped) == (
        [chat(1)],
        [],
        0,
        set(),
    )


def test_suspended_worker_takes_nothing_until_resumed(bare, make, turns):
    """After `rq suspend` running jobs go on and RQ shows the worker suspended; `rq resume` ends that."""

    def state() -> str:
        return Worker.all(connection=bare)[0].get_state()

    def story() -> None:
        turns.until_begun(chat(1))
        suspend(bare)
        until(lambda: state() == "suspended")
        enqueue(bare, 2)
        turns.open()
        until(
            lambda: StartedJobRegistry(QUEUE, connection=bare, serializer=JSONSerializer).count == 0
        )
        assert (state(), turns.begun) == ("suspended", [chat(1)])
        resume(bare)
        until(lambda: chat(2) in turns.ended)

    enqueue(bare, 1)
    work_while(make(), story)


def test_broken_turn_fails_only_its_job(bare, redis_url, loop):
    """An exception is filed with its traceback, and the next job runs."""
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


def test_time_limit_of_a_job_cancels_it():
    """The coroutine ends at its await and does not go on."""
    ends = []

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ends.append("cut")

    with pytest.raises(TimeoutError):
        asyncio.run(running_jobs._in_time(endless, 0.01))
    assert ends == ["cut"]


def vandalise(client: Redis) -> None:
    """Write everything that an attacker with access to Redis could leave for a worker."""
    queue = Queue(QUEUE, connection=client, serializer=JSONSerializer)
    queue.enqueue("os.system", "true", job_id="forbidden")
    for name, fields in {
        "numbers": {"data": json.dumps([PROCESS_CONVERSATION, None, 5, {}])},
        "no-json": {"data": b"\xff\xfe"},
        "no-list": {"data": json.dumps(7)},
        "no-limit": {
            "data": json.dumps([PROCESS_CONVERSATION, None, [chat(9)], {}]),
            "timeout": "soon",
        },
        "no-date": {
            "data": json.dumps([PROCESS_CONVERSATION, None, [chat(9)], {}]),
            "created_at": "yesterday",
        },
        "no-status": {
            "data": json.dumps([PROCESS_CONVERSATION, None, [chat(9)], {}]),
            "status": "odd",
        },
        "no-data": {"origin": QUEUE},
    }.items():
        client.hset(f"rq:job:{name}", mapping=fields)
        client.rpush(QUEUE_KEY, name)
    client.set("rq:job:string", "no hash")
    client.rpush(QUEUE_KEY, "vanished", "string", b"\xff\xfe raw", "with:colon", "")


def test_planted_entries_stop_no_worker(bare, make, turns):
    """Each is refused, dropped or run; none stays in the queue, none ends the worker."""
    turns.open()
    enqueue(bare, 1)
    vandalise(bare)
    enqueue(bare, 2)
    worker = make()
    worker.work(burst=True, logging_level="CRITICAL")
    assert sorted(turns.ended) == [
        chat(1),
        chat(2),
        chat(9),
        chat(9),
    ]  # no code reads the odd dates and states
    assert (bare.llen(QUEUE_KEY), bare.lrange(ON_THEIR_WAY, 0, -1)) == (0, [])
    assert not worker.stopping


def test_planted_entries_of_running_jobs_do_not_end_a_worker(bare, make, turns):
    """RQ's cleanup fails on unreadable entries; the worker goes on."""
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
def test_plain_rq_worker_runs_the_jobs(bare, tmp_path, monkeypatch, kind):
    """It runs one at a time, in this process or in a fork. An unprepared process prepares itself."""
    processed = tmp_path / "processed"

    class FileDrain:
        async def run(self, conversation: str) -> None:
            with processed.open("a") as file:
                file.write(f"{conversation} {os.getpid() == parent}\n")

    parent = os.getpid()
    monkeypatch.setattr(jobs, "_from_environment", lambda: SimpleNamespace(processor=FileDrain()))
    for number in (1, 2):
        enqueue(bare, number)
    kind([QUEUE], connection=bare, serializer=JSONSerializer).work(
        burst=True, logging_level="CRITICAL"
    )
    here = kind is SimpleWorker
    assert processed.read_text().split("\n") == [f"{chat(1)} {here}", f"{chat(2)} {here}", ""]
    if here:
        jobs._processes.pop(parent).loop.close()


class Outliving(EmbeddedRedis):
    """A server that a thread may start which ends before it."""

    def prepare(self) -> None:
        """Let the server outlive its starter."""


def test_jobs_go_on_during_an_outage_and_are_recorded_later(tmp_path, loop, turns, request):
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


def test_worker_exits_during_an_outage(tmp_path, loop, turns, caplog):
    """The deregistration raises an error in `run_worker`, and no thread goes on."""
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
    """Stands for the reaper, the audit collector and the folders of a process."""

    def __init__(self) -> None:
        self.heartbeat = self
        self.left = 0
        self.cancelled = threading.Event()

    async def forever(self) -> None:
        """Run until cancelled."""
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()

    def leave(self) -> None:
        """Note the exit."""
        self.left += 1

    def sweep(self) -> int:
        """Fail like a full disk."""
        raise OSError("disk")


def process_of(redis_url: str, perform) -> SimpleNamespace:
    """Return the services of a worker process."""
    rounds, closed = Rounds(), threading.Event()
    processor = SimpleNamespace(
        run=perform, hand_over=lambda: None, renew_now=lambda _: None, is_idle=True
    )
    held = []
    lock = SimpleNamespace(
        held=held, hold=lambda: held.append("held"), leave=lambda: held.append("left")
    )
    return SimpleNamespace(
        redis_url=redis_url,
        queue_url=redis_url,
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
        close_models=partial(asyncio.sleep, 0),
        data_loss_guard=SimpleNamespace(watch=lambda: None),
        loss_notices=SimpleNamespace(watch=lambda: None),
    )


def test_run_worker_works_until_the_signal_and_deregisters(bare, redis_url, caplog):
    """The background tasks end before the process exits; a full disk is logged and not fatal."""
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


def test_run_worker_retries_a_start_during_an_outage(bare, redis_url, monkeypatch):
    """A signal in the meantime ends it."""
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


def test_worker_that_still_holds_leases_at_its_exit_counts_as_dead(bare, redis_url):
    """Its conversations are taken over as soon as its process has ended."""
    services = process_of(redis_url, None)
    services.processor.is_idle = False

    async def perform(_: str) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    services.processor.run = perform
    enqueue(bare, 1)
    run_worker(services, LoopThread())
    assert services.lock.held == ["held"]


def test_new_worker_doubles_its_capacity_each_second():
    """A worker that dies early takes few turns with it; a living one soon has its full capacity, and never more."""
    capacity = Capacity(concurrency=100)
    assert [capacity.after(seconds) for seconds in (0, 1, 2, 3, 4, 3600, 1e9)] == [
        8,
        16,
        32,
        64,
        100,
        100,
        100,
    ]
    assert Capacity(concurrency=3).after(0) == 3
