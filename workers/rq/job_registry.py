"""JobRegistry: record in RQ's keys which jobs a worker runs, for many jobs at once.

A job is registered as RQ registers its own, so that `rq info`, dashboards and the clean-up of
abandoned jobs see it. RQ itself would send fifteen commands for each job, an eighth of what a turn
costs a worker. Here all jobs that begin or end within COLLECT_SECONDS are written in one pipeline
of two scripts, and a job that begins and ends between two writes is never registered.

An *execution* is RQ's record of one run of a job. The *intermediate queue* is RQ's list of jobs
that were taken from the queue and not registered yet.
"""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
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

#: For how many seconds jobs are collected for one write.
COLLECT_SECONDS = 0.05
#: Seconds between two heartbeats of the worker and of what it runs; less than twice as many while
#: jobs begin and end.
HEARTBEAT_SECONDS = 15.0
#: For how many seconds RQ keeps the record of a worker beyond its `worker_ttl`.
WORKER_EXTRA_SECONDS = 60
#: The beginning of both scripts. `call` collects what Redis refuses, such as a key that holds
#: something else, and goes on: one damaged job must not keep all others from being written.
_CALL = """
-- KEYS: RQ's intermediate queue, its set of running jobs, and the executions of the worker.
-- Returns the errors of Redis.
local intermediate_queue, started, executions = unpack(KEYS)
local refused = {}
local function call(...)
  local answer = redis.pcall(...)
  if type(answer) == 'table' and answer.err then refused[#refused + 1] = answer.err end
end
"""
_REGISTER = f"""
-- Register many jobs, as RQ's `prepare_execution` and `prepare_for_execution` do, and take them off
-- the intermediate queue.
--
-- ARGV:
--   the name of the worker
--   the time, in Unix seconds
--   the same time, as RQ writes it in jobs
--   the time to live of an execution, in seconds
--   when that is over, in Unix seconds
--   then of each job: its id and the id of its execution
{_CALL}
local worker, at, at_utc, ttl, expires_at = unpack(ARGV, 1, 5)
-- RQ keeps the lists of executions for these seconds longer than the executions.
local LIST_EXTRA = 60
for n = 6, #ARGV, 2 do
  local id, execution = ARGV[n], ARGV[n + 1]
  local job, name = 'rq:job:' .. id, id .. ':' .. execution
  call('HSET', 'rq:execution:' .. name, 'id', execution, 'job_id', id, 'created_at', at,
    'last_heartbeat', at, 'worker_name', worker)
  call('EXPIRE', 'rq:execution:' .. name, ttl)
  call('ZADD', 'rq:executions:' .. id, expires_at + LIST_EXTRA, execution)
  call('EXPIRE', 'rq:executions:' .. id, ttl + LIST_EXTRA)
  call('ZADD', started, expires_at, name)
  call('SADD', executions, name)
  call('HSET', job, 'last_heartbeat', at_utc, 'status', 'started', 'started_at', at_utc,
    'worker_name', worker)
  -- A queued job may expire, a running one must not.
  call('PERSIST', job)
  call('LREM', intermediate_queue, 1, id)
end
call('EXPIRE', executions, ttl + LIST_EXTRA)
return refused
"""
_REMOVE = f"""
-- Remove jobs that have ended. A job that failed only leaves the intermediate queue here, and
-- JobRegistry._store_failure does the rest through RQ.
--
-- ARGV, of each job:
--   its id
--   the id of its execution, '' if it has none
--   '1' if the job was certainly registered, else '0'
--   '1' if the job failed, else '0'
{_CALL}
for n = 1, #ARGV, 4 do
  local id, execution, is_registered, has_failed = unpack(ARGV, n, n + 3)
  if is_registered == '0' then call('LREM', intermediate_queue, 1, id) end
  if has_failed == '0' then
    call('DEL', 'rq:job:' .. id)
    if execution ~= '' then
      local name = id .. ':' .. execution
      call('DEL', 'rq:execution:' .. name)
      call('ZREM', 'rq:executions:' .. id, execution)
      call('ZREM', started, name)
      call('SREM', executions, name)
    end
  end
end
return refused
"""


class Stopped(Exception):
    """The error of a job that RQ was told to stop.

    RQ lists such a job among the stopped ones and not among the failed ones.
    """


@dataclass(slots=True)
class _Entry:
    """A job that runs or has ended, and what Redis knows of it."""

    job: Job
    #: RQ's record of this run of the job, None before it was written the first time.
    execution: Execution | None = None
    #: Whether Redis has answered the script that registers the job. Until then it may have run it
    #: or not: the answer may have been lost.
    is_registered: bool = False
    has_ended: bool = False
    #: Why the job failed, None where it did not.
    error: BaseException | None = None

    @property
    def removal(self) -> tuple[str | int, ...]:
        """The arguments of `_REMOVE` for this job, in the order that is written there."""
        execution_id = ""
        if self.execution:
            execution_id = self.execution.id
        has_failed = self.error is not None
        return self.job.id, execution_id, int(self.is_registered), int(has_failed)


class JobRegistry:
    """Tells RQ which jobs a worker runs. Lives as long as the worker.

    Jobs that start and end are collected, and a thread writes them in one pipeline, at most once in
    COLLECT_SECONDS. What cannot be written while Redis is away is written later.
    """

    def __init__(self, worker: BaseWorker, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._worker = worker
        self._clock = clock
        self._last_heartbeat = clock()
        self._lock = threading.Lock()
        #: The jobs that run or have ended and are not removed yet, by id. Guarded by `_lock`. A new
        #: job has a new random id, and a worker runs no job twice at the same time.
        self._entries: dict[str, _Entry] = {}
        self._changed = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sayso-job-registry", daemon=True)

    def open(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Write what is left, and end the thread.

        There is one attempt, of at most 5 seconds. RQ's clean-up of abandoned jobs finds what could
        not be written.
        """
        self._closing.set()
        self._changed.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def job_started(self, job: Job) -> None:
        """Record that a job was taken from the queue and runs."""
        with self._lock:
            self._entries[job.id] = _Entry(job)
        self._changed.set()

    def job_ended(self, job: Job, error: BaseException | None = None) -> None:
        """Record that a job has ended. With an error, RQ lists it among the failed ones."""
        with self._lock:
            # A job whose data cannot be read ends without a start.
            entry = self._entries.setdefault(job.id, _Entry(job))
            # The thread reads both without the lock. A job that has ended without an error counts
            # as succeeded, so the error is set first.
            entry.error = error
            entry.has_ended = True
        self._changed.set()

    def _run(self) -> None:
        """Write until `close`: soon after a change, and at each heartbeat."""
        while not self._closing.is_set():
            if self._changed.wait(HEARTBEAT_SECONDS):
                # What begins or ends in this time is written with the first change. `close` ends
                # the pause.
                self._closing.wait(COLLECT_SECONDS)
                self._changed.clear()
            self._write_and_beat()
        self._try(self._write)

    def _write_and_beat(self) -> None:
        """Write what changed, and then a heartbeat if it is due."""
        self._try(self._write)
        is_due = self._clock() - self._last_heartbeat >= HEARTBEAT_SECONDS
        if is_due and self._try(self._send_heartbeat):
            self._last_heartbeat = self._clock()

    def _try(self, write: Callable[[], None]) -> bool:
        """Call `write`, and return whether that succeeded. After a failure, pause for a second.

        Then everything is tried again.
        """
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
        ended = [entry for entry in entries if entry.has_ended]
        running = [entry for entry in entries if not entry.has_ended]
        started = [entry for entry in running if not entry.is_registered]
        if not ended and not started:
            return

        with self._worker.connection.pipeline() as pipe:
            if started:
                self._register(started, pipe)
            # RQ would keep an ended job with its result. A job here has none: it only names a
            # conversation, which holds the rest. So it is deleted.
            if ended:
                removals = chain.from_iterable(entry.removal for entry in ended)
                pipe.eval(_REMOVE, 3, *self._keys, *removals)
            succeeded = sum(entry.error is None for entry in ended)
            self._update_worker(succeeded, len(running), pipe)
            _report(pipe.execute(raise_on_error=False))

        for entry in started:
            entry.is_registered = True
        # The jobs that succeeded are counted, so they come first: if a failure cannot be stored, only
        # the failures are tried again.
        for entry in ended:
            if entry.error is None:
                self._forget(entry)
        for entry in ended:
            if entry.error is not None:
                self._store_failure(entry, entry.error)
                self._forget(entry)

    def _forget(self, entry: _Entry) -> None:
        """Forget a job that has ended and is written."""
        if entry.execution is not None:
            self._worker.executions.pop(entry.execution.id, None)
        with self._lock:
            self._entries.pop(entry.job.id, None)

    def _register(self, entries: list[_Entry], pipe: Any) -> None:
        """Register jobs. If that is repeated after a lost answer, each execution keeps its id."""
        worker = self._worker
        at = now()
        # All jobs have the same timeout, so they have the same time to live.
        ttl = worker.get_heartbeat_ttl(entries[0].job)
        expires_at = current_timestamp() + ttl
        ids: list[str] = []
        for entry in entries:
            # The worker must know the execution before Redis does: once it is registered, an
            # operator may stop it.
            if entry.execution is None:
                job = entry.job
                entry.execution = Execution(random_id(), job.id, job.connection, worker.name)
                entry.execution._job = job  # noqa: SLF001  # as RQ's own `create`
                job.worker_name = worker.name
                job.started_at = entry.execution.created_at
                worker.executions[entry.execution.id] = entry.execution
            ids += [entry.job.id, entry.execution.id]
        args = (worker.name, at.timestamp(), utcformat(at), ttl, expires_at)
        pipe.eval(_REGISTER, 3, *self._keys, *args, *ids)

    @property
    def _keys(self) -> tuple[str, str, str]:
        """The keys of both scripts, in the order that `_CALL` gives."""
        worker = self._worker
        # Our workers have exactly one queue.
        (queue,) = worker.queues
        return (
            str(IntermediateQueue.get_intermediate_queue_key(queue.key)),
            StartedJobRegistry.key_template.format(queue.name),
            WORKER_EXECUTIONS_KEY_TEMPLATE.format(worker.name),
        )

    def _update_worker(self, succeeded: int, running: int, pipe: Any) -> None:
        """Write how many jobs have succeeded since the last write, and whether any job runs.

        RQ counts a failed job when its failure is stored (`_store_failure`). It also writes and
        ends the state SUSPENDED, which must stay until then.
        """
        if succeeded:
            pipe.hincrby(self._worker.key, "successful_job_count", succeeded)
        if self._worker.get_state() not in (WorkerStatus.SUSPENDED, _state(running)):
            self._worker.set_state(_state(running), pipeline=pipe)

    def _store_failure(self, entry: _Entry, error: BaseException) -> None:
        """Store a failure as RQ does: among the failed jobs, or among those that were stopped."""
        worker = self._worker
        job = entry.job
        traceback_text = redact("".join(traceback.format_exception(error)))

        # RQ reads this attribute to tell a stopped job from a failed one.
        stopped_job_id = None
        if isinstance(error, Stopped):
            stopped_job_id = job.id
        worker._stopped_job_id = stopped_job_id  # noqa: SLF001
        try:
            worker.handle_job_failure(
                job, worker.queues[0], exc_string=traceback_text, execution=entry.execution
            )
        except RedisError:
            raise
        except Exception:
            log.exception("job_registry.not_filed", extra={"job": job.id})

    def _send_heartbeat(self) -> None:
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

        # The state is written again, in case that Redis has lost or refused it. The rest depends on
        # the answers above.
        with worker.connection.pipeline() as pipe:
            if worker.get_state() != WorkerStatus.SUSPENDED:
                worker.set_state(_state(len(executions)), pipeline=pipe)
            # The first command of `worker.heartbeat` was HSET `last_heartbeat`, which answers 1 if
            # the field is new: Redis was away for so long that the record of the worker had
            # expired.
            if answers[0] == 1:
                pipe.hset(worker.key, mapping=worker.serialize())
                pipe.expire(worker.key, worker.worker_ttl + WORKER_EXTRA_SECONDS)
                register(worker, pipe)
            pipe.execute()


def _state(running: int) -> WorkerStatus:
    return WorkerStatus.BUSY if running else WorkerStatus.IDLE


def _report(answers: Iterable[Any]) -> None:
    """Log what Redis refuses, such as a key of RQ that holds something else.

    It is not tried again: Redis would refuse a damaged key again, and that would keep all other
    jobs from being written. After a refusal that ends by itself, such as that of a Redis without
    memory, `rq info` may show a job wrongly. No conversation depends on that.
    """
    for answer in answers:
        if isinstance(answer, Exception):
            log.error("job_registry.refused", extra={"reason": type(answer).__name__})
        # A script answers with the list of what was refused within it.
        elif isinstance(answer, list):
            for refusal in answer:
                log.error("job_registry.refused", extra={"reason": str(refusal).partition(" ")[0]})
