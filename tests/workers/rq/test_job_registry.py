"""Bookkeeping: RQ's entries are right in the end, whatever Redis answers, and heartbeats come in time."""

from __future__ import annotations

import re
import threading
import time

import pytest
from redis import Redis
from redis.client import Pipeline
from redis.exceptions import ConnectionError as RedisConnectionError
from rq import Worker
from rq.executions import prepare_execution
from rq.job import Job, JobStatus
from rq.registry import FailedJobRegistry, StartedJobRegistry
from rq.serializers import JSONSerializer
from rq.worker import WorkerStatus

from sayso.infra.redaction import remember
from sayso.workers.rq import job_registry
from sayso.workers.rq.job_registry import HEARTBEAT_SECONDS, JobRegistry, Stopped
from sayso.workers.rq.jobs import QUEUE, SaysoJob
from tests.workers.works import enqueue, left_behind, make_worker

ON_THEIR_WAY = f"rq:queue:{QUEUE}:intermediate"


class RegistryRig:
    """The job registry of a worker, written on request, on a clock that the test moves."""

    def __init__(self, redis_url: str, client: Redis) -> None:
        self.now = 0.0
        self.client = client
        self.worker = make_worker(redis_url, None, None)
        self.worker.register_birth()
        self.registry = JobRegistry(self.worker, clock=lambda: self.now)
        self.registry._closing.wait = lambda _: None  # it does not pause after a failure

    def taken(self, number: int) -> Job:
        """Return a job that was taken from the queue."""
        job = enqueue(self.client, number)
        self.client.lmove(f"rq:queue:{QUEUE}", ON_THEIR_WAY)
        return SaysoJob.fetch(job.id, connection=self.worker.connection, serializer=JSONSerializer)

    def start(self, number: int) -> Job:
        """Return a running job."""
        job = self.taken(number)
        self.registry.job_started(job)
        return job

    def write(self) -> None:
        """Write once."""
        self.registry._write_and_beat()

    def running(self) -> list[str]:
        """Return the jobs that RQ lists as running, by each of its views."""
        started = StartedJobRegistry(QUEUE, connection=self.client, serializer=JSONSerializer)
        (seen,) = Worker.all(connection=self.client)
        views = [
            sorted(started.get_job_ids()),
            sorted(execution.job_id for execution in seen.get_current_executions()),
            sorted(execution.job_id for execution in self.worker.executions.values()),
        ]
        assert views[0] == views[1] == views[2]
        return views[0]


@pytest.fixture
def rig(redis_url, redis_client):
    """Return the registry of a worker on an empty Redis."""
    with Redis.from_url(redis_url) as client:
        yield RegistryRig(redis_url, client)


def lose_answer(monkeypatch, *, done: bool) -> None:
    """Lose the answer of the next pipeline, after it ran or before."""
    execute = Pipeline.execute

    def lost(self, *args, **kwargs):
        monkeypatch.setattr(Pipeline, "execute", execute)
        if done:
            execute(self, *args, **kwargs)
        raise RedisConnectionError("lost")

    monkeypatch.setattr(Pipeline, "execute", lost)


def test_job_that_starts_and_ends_between_two_writes_leaves_no_keys(rig):
    """It is neither registered nor stored."""
    job = rig.start(1)
    rig.registry.job_ended(job)
    rig.write()
    assert (left_behind(rig.client), rig.running()) == (set(), [])


def test_long_job_is_registered_and_removed(rig):
    """RQ's own jobs are treated the same."""
    job = rig.start(1)
    rig.write()
    assert (rig.running(), rig.client.llen(ON_THEIR_WAY)) == (["process-1"], 0)
    rig.registry.job_ended(job)
    rig.write()
    assert (left_behind(rig.client), rig.running()) == (set(), [])


def test_job_is_registered_as_rq_registers_its_own(rig):
    """Keys, fields, scores and TTLs are the same for the installed version of RQ."""
    rig.start(1)
    rig.write()
    ours = written_of(rig, "process-1")
    rig.client.flushall()
    job = rig.taken(1)
    with rig.worker.connection.pipeline() as pipe:
        prepare_execution(rig.worker, job)
        job.prepare_for_execution(rig.worker.name, pipeline=pipe)
        pipe.persist(job.key)
        pipe.execute()
    assert ours == written_of(rig, "process-1")


def written_of(rig: RegistryRig, job_id: str) -> list[object]:
    """Return what Redis holds of a running job: fields of hashes, seconds until a score, and TTLs."""
    execution, now = list(rig.worker.executions)[-1], time.time()
    both = f"{job_id}:{execution}"
    hashes = (f"rq:job:{job_id}", f"rq:execution:{both}")
    sets = {f"rq:executions:{job_id}": execution, f"rq:wip:{QUEUE}": both}
    of_worker = f"rq:worker:{rig.worker.name}:executions"
    return [
        rig.client.smembers(of_worker) == {both.encode()},
        [shape(rig.client.hgetall(key)) for key in hashes],
        [round(rig.client.zscore(key, member) - now, -1) for key, member in sets.items()],
        [round(rig.client.ttl(key), -1) for key in (*hashes, *sets, of_worker)],
    ]


def shape(fields: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Return the fields with all digits made equal, since times and ids differ from run to run."""
    return {name: re.sub(rb"[0-9a-f]", b"0", value)[:12] for name, value in fields.items()}


@pytest.mark.parametrize("done", [True, False])
def test_lost_answer_registers_no_job_twice(rig, monkeypatch, done):
    """RQ would take a second execution for abandoned and fail the running job."""
    job = rig.start(1)
    lose_answer(monkeypatch, done=done)
    rig.write()
    rig.write()
    started = StartedJobRegistry(QUEUE, connection=rig.client)
    assert (rig.running(), rig.client.zcard(started.key)) == (["process-1"], 1)
    assert len(list(rig.client.scan_iter("rq:execution:*"))) == 1
    rig.registry.job_ended(job)
    rig.write()
    assert left_behind(rig.client) == set()


def test_job_that_ends_during_a_doubtful_registration_leaves_no_keys(rig, monkeypatch):
    """The keys of the lost answer go with it."""
    job = rig.start(1)
    lose_answer(monkeypatch, done=True)
    rig.write()
    rig.registry.job_ended(job)
    rig.write()
    assert (left_behind(rig.client), rig.running()) == (set(), [])


def test_job_that_ends_during_its_registration_is_removed_next(rig, monkeypatch):
    """The loop's thread ends it between the pipeline and its answer."""
    job = rig.start(1)
    execute = Pipeline.execute

    def ends_meanwhile(self, *args, **kwargs):
        monkeypatch.setattr(Pipeline, "execute", execute)
        answers = execute(self, *args, **kwargs)
        rig.registry.job_ended(job)
        return answers

    monkeypatch.setattr(Pipeline, "execute", ends_meanwhile)
    rig.write()
    rig.write()
    assert (left_behind(rig.client), rig.running()) == (set(), [])


def test_heartbeat_comes_in_time_under_load(rig):
    """There is always an entry to write, and a turn longer than its TTL is still alive for RQ."""
    rig.start(0)
    rig.write()
    (execution,) = rig.worker.executions.values()
    rig.client.expire(execution.key, 5)
    for number in range(1, 5):
        rig.now += HEARTBEAT_SECONDS / 3
        rig.registry.job_ended(rig.start(number))
        rig.write()
    assert rig.client.ttl(execution.key) > 60


def test_failed_heartbeat_is_retried_at_once(rig, monkeypatch):
    """It does not wait for its next time."""
    rig.now += HEARTBEAT_SECONDS
    rig.client.expire(rig.worker.key, 5)
    lose_answer(monkeypatch, done=False)
    rig.write()
    assert rig.client.ttl(rig.worker.key) <= 5
    rig.write()
    assert rig.client.ttl(rig.worker.key) > 60


def test_worker_that_redis_lost_registers_again(rig):
    """After an outage longer than its TTL, `rq info` shows it again, with its state."""
    rig.start(1)
    rig.write()
    rig.client.delete(rig.worker.key, "rq:workers", f"rq:workers:{QUEUE}")
    rig.now += HEARTBEAT_SECONDS
    rig.write()
    (seen,) = Worker.all(connection=rig.client)
    assert (seen.name, seen.pid, seen.get_state()) == (rig.worker.name, rig.worker.pid, "busy")
    assert rig.client.ttl(rig.worker.key) > 60


def test_suspended_worker_stays_suspended_for_rq(rig):
    """Jobs that end meanwhile do not change that; afterwards the next heartbeat corrects it."""
    job = rig.start(1)
    rig.write()
    rig.worker.set_state(WorkerStatus.SUSPENDED)
    rig.registry.job_ended(job)
    rig.now += HEARTBEAT_SECONDS
    rig.write()
    assert Worker.all(connection=rig.client)[0].get_state() == "suspended"
    rig.worker.set_state(WorkerStatus.BUSY)  # what RQ's resume puts back
    rig.now += HEARTBEAT_SECONDS
    rig.write()
    assert Worker.all(connection=rig.client)[0].get_state() == "idle"


def test_refused_entry_delays_no_other(rig):
    """One of RQ's keys has another type: it is logged, and the rest is written."""
    rig.client.set("rq:executions:process-1", "no sorted set")
    jobs = [rig.start(number) for number in (1, 2)]
    rig.write()
    assert "process-2" in StartedJobRegistry(QUEUE, connection=rig.client).get_job_ids()
    for job in jobs:
        rig.registry.job_ended(job)
    rig.write()
    assert (rig.registry._entries, left_behind(rig.client)) == ({}, {"rq:executions:process-1"})


@pytest.mark.parametrize(
    ("error", "status"),
    [(ValueError("broken"), JobStatus.FAILED), (Stopped("on request"), JobStatus.STOPPED)],
)
@pytest.mark.parametrize("registered", [True, False])
def test_failure_is_filed_as_rq_files_it(rig, error, status, registered):
    """This holds with or without a registration, and no execution stays."""
    job = rig.start(1)
    if registered:
        rig.write()
    rig.registry.job_ended(job, error)
    rig.write()
    assert (
        Job.fetch("process-1", connection=rig.client, serializer=JSONSerializer).get_status()
        == status
    )
    assert FailedJobRegistry(QUEUE, connection=rig.client).get_job_ids() == ["process-1"]
    assert (rig.running(), rig.client.llen(ON_THEIR_WAY)) == ([], 0)
    assert list(rig.client.scan_iter("rq:execution*")) == []


def test_failure_is_filed_without_secrets(rig):
    """Redis holds its traceback for a day."""
    remember(["sk-live-0123456789"])
    rig.registry.job_ended(rig.start(1), ValueError("refused: sk-live-0123456789"))
    rig.write()
    job = Job.fetch("process-1", connection=rig.client, serializer=JSONSerializer)
    words = job.latest_result().exc_string
    assert ("refused: [redacted]" in words, "sk-live" in words) == (True, False)


def test_error_of_a_failed_job_is_known_before_its_end(rig, monkeypatch):
    """The thread may write between the two, and would count the job as succeeded."""
    errors = []

    class Watched(job_registry._Entry):
        def __setattr__(self, name, value) -> None:
            super().__setattr__(name, value)
            if name == "has_ended" and value:
                errors.append(self.error)

    monkeypatch.setattr(job_registry, "_Entry", Watched)
    error = ValueError("broken")
    rig.registry.job_ended(rig.start(1), error)
    assert errors == [error]


def test_job_counts_once_if_the_failure_of_another_is_stored_later(rig):
    """Redis went away between the two. The failure is tried again, and the success is not."""
    store_failure = rig.worker.handle_job_failure

    def fail_once(*args, **kwargs) -> None:
        rig.worker.handle_job_failure = store_failure
        raise RedisConnectionError("away")

    rig.worker.handle_job_failure = fail_once
    failed, succeeded = rig.start(1), rig.start(2)
    rig.registry.job_ended(failed, ValueError("broken"))
    rig.registry.job_ended(succeeded)
    rig.write()
    rig.write()
    counts = rig.client.hmget(rig.worker.key, "successful_job_count", "failed_job_count")
    assert counts == [b"1", b"1"]


def test_failure_that_cannot_be_filed_is_dropped(rig, monkeypatch, caplog):
    """RQ's own code failed on it, which is logged once."""
    monkeypatch.setattr(rig.worker, "handle_job_failure", lambda *_, **__: 1 / 0)
    rig.registry.job_ended(rig.start(1), ValueError("broken"))
    rig.write()
    rig.write()
    assert [record.message for record in caplog.records] == ["job_registry.not_filed"]
    assert rig.registry._entries == {}


def test_unexpected_error_does_not_end_the_registry(rig, monkeypatch, caplog):
    """The thread goes on, and the entries are written later."""
    job = rig.start(1)
    monkeypatch.setattr(rig.registry, "_register", lambda *_: 1 / 0)
    rig.write()
    monkeypatch.undo()
    rig.registry._closing.wait = lambda _: None
    assert [record.message for record in caplog.records] == ["job_registry.failed"]
    rig.write()
    assert rig.running() == ["process-1"]
    rig.registry.job_ended(job)
    rig.write()
    assert left_behind(rig.client) == set()


def test_close_writes_the_remaining_entries(redis_url, redis_client):
    """The registry's own thread writes them."""
    with Redis.from_url(redis_url) as client:
        rig = RegistryRig(redis_url, client)
        registry = JobRegistry(rig.worker)
        registry.open()
        jobs = [rig.taken(number) for number in range(50)]
        for job in jobs:
            registry.job_started(job)
        for job in jobs:
            registry.job_ended(job)
        registry.close()
        assert not registry._thread.is_alive()
        assert left_behind(client) == set()


def test_registry_that_was_never_opened_can_be_closed(rig):
    """A worker may fail at its start."""
    rig.registry._closing = threading.Event()
    rig.registry.close()
