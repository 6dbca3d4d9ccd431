"""JobRegistry: record in RQ's keys which jobs a worker runs, for many jobs at once.

A longer job is registered as RQ registers its own, so that `rq info`, dashboards and the clean-up
of abandoned jobs see it. A job that begins and ends between two writes leaves no trace. RQ itself
would send fifteen commands per job: an eighth of what a turn costs a worker.
"""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from redis.exceptions import RedisError
from rq.executions import WORKER_EXECUTIONS_KEY_TEMPLATE, Execution
from rq.intermediate_queue import IntermediateQueue
from rq.job import Job
from rq.registry import StartedJobRegistry
from rq.utils import current_timestamp, now, utcformat
from rq.worker import BaseWorker, WorkerStatus
from rq.worker_registration import register

from sayso.infra.ids import random_id
from sayso.infra.redaction import redact

log = logging.getLogger(__name__)

#: Seconds in which jobs are collected for one write.
GATHER_SECONDS = 0.05
#: Seconds between two heartbeats of the worker and of what it runs.
BEAT_SECONDS = 15.0
_ASK = """
local refused = {}
local function ask(...)
  local answer = redis.pcall(...)
  if type(answer) == 'table' and answer.err then refused[#refused + 1] = answer.err end
end
local on_their_way, started, executions = unpack(KEYS)
"""
_REGISTER = (
    "-- Register many jobs, as RQ's `prepare_execution` and `prepare_for_execution` do, and take them off RQ's\n"
    "-- intermediate queue.\n"
    "-- ARGV: worker, now in seconds and as jobs have it, TTL, when that ends; then job and execution of each."
    + _ASK
    + """
local worker, at, at_utc, ttl, ends = unpack(ARGV, 1, 5)
for n = 6, #ARGV, 2 do
  local id, execution = ARGV[n], ARGV[n + 1]
  local job, both = 'rq:job:' .. id, id .. ':' .. execution
  ask('HSET', 'rq:execution:' .. both, 'id', execution, 'job_id', id, 'created_at', at, 'last_heartbeat', at,
      'worker_name', worker)
  ask('EXPIRE', 'rq:execution:' .. both, ttl)
  ask('ZADD', 'rq:executions:' .. id, ends + 60, execution)
  ask('EXPIRE', 'rq:executions:' .. id, ttl + 60)
  ask('ZADD', started, ends, both)
  ask('SADD', executions, both)
  ask('HSET', job, 'last_heartbeat', at_utc, 'status', 'started', 'started_at', at_utc, 'worker_name', worker)
  ask('PERSIST', job)
  ask('LREM', on_their_way, 1, id)
end
ask('EXPIRE', executions, ttl + 60)
return refused
"""
)
_DISMISS = (
    "-- Forget jobs that are over. ARGV: of each the job, its execution or '', whether it was registered, whether it\n"
    "-- failed: then the rest is RQ's to do."
    + _ASK
    + """
for n = 1, #ARGV, 4 do
  local id, execution, registered, failed = unpack(ARGV, n, n + 3)
  if registered == '0' then ask('LREM', on_their_way, 1, id) end
  if failed == '0' then
    ask('DEL', 'rq:job:' .. id)
    if execution ~= '' then
      ask('DEL', 'rq:execution:' .. id .. ':' .. execution)
      ask('ZREM', 'rq:executions:' .. id, execution)
      ask('ZREM', started, id .. ':' .. execution)
      ask('SREM', executions, id .. ':' .. execution)
    end
  end
end
return refused
"""
)


class Stopped(Exception):
    """The error of a job that RQ was told to stop: RQ keeps it among the stopped jobs,
    not among the failed ones.
    """


@dataclass(slots=True, eq=False)
class _Entry:
    """A job that runs or has ended.

    Until it is `written`, its execution may be in Redis or not: the answer may have been lost.
    """

    job: Job
    execution: Execution | None = None
    written: bool = False
    over: bool = False
    error: BaseException | None = None

    @property
    def dismissal(self) -> tuple[str | int, ...]:
        """Return what `_DISMISS` takes of a job."""
        execution = self.execution.id if self.execution else ""
        return self.job.id, execution, int(self.written), int(self.error is not None)


class JobRegistry:
    """Writes on a thread of its own for the life of its worker.

    What cannot be written now is written later.
    """

    def __init__(self, worker: BaseWorker, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._worker = worker
        self._clock = clock
        self._beaten = clock()
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}
        self._changed = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="sayso-job-registry", daemon=True)

    def open(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Write what is left, and end the thread."""
        self._closing.set()
        self._changed.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def begun(self, job: Job) -> None:
        """Record that a job was taken from the queue and runs."""
        with self._lock:
            self._entries[job.id] = _Entry(job)
        self._changed.set()

    def ended(self, job: Job, error: BaseException | None = None) -> None:
        """Record that a job has ended; with an error, RQ keeps it among the failed ones."""
        with self._lock:
            entry = self._entries.setdefault(job.id, _Entry(job))
            entry.over = True
            entry.error = error
        self._changed.set()

    def _keep(self) -> None:
        while not self._closing.is_set():
            if self._changed.wait(BEAT_SECONDS) and not self._closing.wait(GATHER_SECONDS):
                self._changed.clear()
            self._write_down()
        self._try(self._write)

    def _write_down(self) -> None:
        """Write what changed, and a heartbeat when it is due, however much there is to write."""
        self._try(self._write)
        if self._clock() - self._beaten >= BEAT_SECONDS and self._try(self._beat):
            self._beaten = self._clock()

    def _try(self, write: Callable[[], None]) -> bool:
        try:
            write()
        except RedisError as exc:
            log.warning("job_registry.redis_away", extra={"reason": type(exc).__name__})
        except Exception:
            # The thread goes on: without it the worker looks dead to RQ.
            log.exception("job_registry.failed")
        else:
            return True
        self._closing.wait(1.0)
        self._changed.set()
        return False

    def _write(self) -> None:
        """Write everything since the last time, in one pipeline."""
        with self._lock:
            entries = list(self._entries.values())
        over = [entry for entry in entries if entry.over]
        fresh = [entry for entry in entries if not entry.over and not entry.written]
        if not over and not fresh:
            return
        with self._worker.connection.pipeline() as pipe:
            if fresh:
                self._register(fresh, pipe)
            if over:  # they leave no result: they carry an id, and the conversation has the rest
                pipe.eval(
                    _DISMISS, 3, *self._keys, *(arg for entry in over for arg in entry.dismissal)
                )
            self._count(sum(entry.error is None for entry in over), len(entries) - len(over), pipe)
            _report(pipe.execute(raise_on_error=False))
        for entry in fresh:
            entry.written = True
        for entry in over:
            if entry.error is not None:
                self._fail(entry, entry.error)
            if entry.execution is not None:
                self._worker.executions.pop(entry.execution.id, None)
            with self._lock:
                self._entries.pop(entry.job.id, None)

    def _register(self, entries: list[_Entry], pipe: Any) -> None:
        """Register jobs. Sent again when the answer is lost: an execution keeps its id."""
        worker = self._worker
        at = now()
        ttl = worker.get_heartbeat_ttl(entries[0].job)
        times = (at.timestamp(), utcformat(at), ttl, current_timestamp() + ttl)
        ids: list[str] = []
        for entry in entries:
            # Set before the job is registered: then an operator may stop it.
            if entry.execution is None:
                job = entry.job
                entry.execution = Execution(random_id(), job.id, job.connection, worker.name)
                entry.execution._job = job  # noqa: SLF001  # as RQ's own `create`
                job.worker_name = worker.name
                job.started_at = entry.execution.created_at
                worker.executions[entry.execution.id] = entry.execution
            ids += [entry.job.id, entry.execution.id]
        pipe.eval(_REGISTER, 3, *self._keys, worker.name, *times, *ids)

    @property
    def _keys(self) -> tuple[str, str, str]:
        """Return RQ's list of jobs taken from its queue, its set of running jobs,
        and the worker's executions.
        """
        worker = self._worker
        (queue,) = worker.queues
        return (
            str(IntermediateQueue.get_intermediate_queue_key(queue.key)),
            StartedJobRegistry.key_template.format(queue.name),
            WORKER_EXECUTIONS_KEY_TEMPLATE.format(worker.name),
        )

    def _count(self, succeeded: int, running: int, pipe: Any) -> None:
        if succeeded:
            pipe.hincrby(self._worker.key, "successful_job_count", succeeded)
        if self._worker.get_state() not in (WorkerStatus.SUSPENDED, _state(running)):
            self._worker.set_state(_state(running), pipeline=pipe)

    def _fail(self, entry: _Entry, error: BaseException) -> None:
        """Store a failure as RQ does: among the failed jobs or, if the job was told to stop,
        among the stopped ones.
        """
        words = redact("".join(traceback.format_exception(error)))
        worker = self._worker
        job = entry.job
        # RQ reads this where it files; nothing else of ours does.
        worker._stopped_job_id = job.id if isinstance(error, Stopped) else None  # noqa: SLF001
        try:
            worker.handle_job_failure(
                job, worker.queues[0], exc_string=words, execution=entry.execution
            )
        except RedisError:
            raise
        except Exception:
            log.exception("job_registry.not_filed", extra={"job": job.id})

    def _beat(self) -> None:
        """Send the heartbeat of the worker and of what it runs."""
        worker = self._worker
        executions = list(worker.executions.values())
        with worker.connection.pipeline() as pipe:
            worker.heartbeat(pipeline=pipe)
            for execution in executions:
                job = execution.job
                execution.heartbeat(
                    job.started_job_registry, worker.get_heartbeat_ttl(job), pipeline=pipe
                )
            answers = pipe.execute(raise_on_error=False)
            _report(answers)
            if worker.get_state() != WorkerStatus.SUSPENDED:
                worker.set_state(_state(len(executions)), pipeline=pipe)
            if answers[0] == 1:  # Redis was away for so long that it forgot us
                pipe.hset(worker.key, mapping=worker.serialize())
                pipe.expire(worker.key, worker.worker_ttl + 60)
                register(worker, pipe)
            pipe.execute()


def _state(running: int) -> WorkerStatus:
    return WorkerStatus.BUSY if running else WorkerStatus.IDLE


def _report(answers: Iterable[Any]) -> None:
    """Log what Redis refuses, such as a key of RQ that holds something else:
    it would refuse it again.
    """
    for answer in answers:
        if isinstance(answer, Exception):
            log.error("job_registry.refused", extra={"reason": type(answer).__name__})
        elif isinstance(answer, list):  # of a script: what was refused within it
            for refusal in answer:
                log.error("job_registry.refused", extra={"reason": str(refusal).partition(" ")[0]})
