"""SaysoWorker: an RQ worker that runs many conversations at once on one event loop.

RQ's own worker runs one job after the other, each in a process. This one takes jobs off the queue
in batches and runs each as a coroutine, since a conversation mostly waits for a model or a
platform. The main thread belongs to RQ: `dequeue_job_and_maintain_ttl` and `execute_job` are called
by its loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future, wait
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from redis.exceptions import RedisError
from rq.command import handle_command, parse_payload
from rq.exceptions import NoSuchJobError
from rq.intermediate_queue import IntermediateQueue
from rq.job import Job
from rq.queue import Queue
from rq.utils import now
from rq.worker import BaseWorker

from sayso.infra.stop_signals import INTERRUPTED_SECONDS, say_stopping, stop_signals
from sayso.infra.threads import LoopThread
from sayso.pending.call_context import context_field
from sayso.pending.stored_limits import URGENT_JOB
from sayso.workers.rq.job_registry import JobRegistry, Stopped
from sayso.workers.rq.jobs import SaysoJob

log = logging.getLogger(__name__)

#: After how many seconds without a heartbeat a worker counts as gone for RQ.
WORKER_TTL = 60
#: How many seconds the main thread waits for the event loop before it takes more jobs.
WAIT_SECONDS = 1
#: How many seconds the main thread waits for a job before it checks for a signal. A person who
#: pressed Ctrl-C waits for so long.
LISTEN_SECONDS = 0.4
#: Seconds before the connection for RQ's commands is opened again.
COMMANDS_PAUSE_SECONDS = 2.0
#: After how many seconds a Redis that does not answer counts as away. RQ's default of 55 is longer
#: than most grace periods.
SILENT_SECONDS = 3
#: Seconds between two looks for urgent jobs while only their places are free.
FULL_SECONDS = 0.05
#: How many conversations a new worker runs at once.
FIRST_CONCURRENCY = 8
#: How many jobs are taken from the queue at once: other workers want some, too.
BATCH = 16
#: How many rounds of the event loop pass before the next batch is taken. A busy loop is slower, so
#: a busy worker takes fewer jobs.
ROUNDS = 8
#: How many seconds conversations that are cut off at the end of the grace period have to release
#: their leases.
CUT_SECONDS = 3.0
_TAKE = """
-- Take jobs off RQ's queue, as its workers do, with the fields that running them needs. KEYS: the
-- queue, RQ's intermediate queue. ARGV: how many jobs may be taken, how many if the last ones are
-- urgent, the prefix of urgent ids, a job that was taken already or ''. Returns a list with the id
-- of each job and its fields data, timeout and failure_ttl.
local queue, intermediate_queue = KEYS[1], KEYS[2]
local places, places_with_reserve = tonumber(ARGV[1]), tonumber(ARGV[2])
local urgent_prefix, moved_job = ARGV[3], ARGV[4]

local taken = {}
local function add(id)
  local fields = redis.pcall('HMGET', 'rq:job:' .. id, 'data', 'timeout', 'failure_ttl')
  -- The key may hold something else than a hash.
  if fields.err then fields = {false, false, false} end
  taken[#taken + 1] = {id, fields}
end

if moved_job ~= '' then add(moved_job) end
while #taken < places_with_reserve do
  local id = redis.call('LINDEX', queue, 0)
  if not id then break end
  local is_urgent = string.sub(id, 1, #urgent_prefix) == urgent_prefix
  if #taken >= places and not is_urgent then break end
  redis.call('LMOVE', queue, intermediate_queue, 'LEFT', 'RIGHT')
  add(id)
end
return taken
"""


@dataclass(frozen=True, slots=True)
class Capacity:
    """How many conversations a worker runs at once, and for how long when it stops."""

    #: How many conversations run at once.
    concurrency: int = 100
    #: How many more places there are for urgent jobs.
    reserve: int = 10
    #: For how many seconds the worker goes on with what it has begun when it is told to stop.
    grace_seconds: float = 20.0

    def after(self, seconds: float) -> int:
        """Return how many conversations a worker of this age runs at once.

        The number doubles each second, up to `concurrency`. So a worker that dies young takes few
        conversations with it, and those that wait are shared among new workers.
        """
        return int(min(self.concurrency, FIRST_CONCURRENCY * 2 ** min(seconds, 30)))


@dataclass(slots=True)
class StopFlag:
    """Whether a signal told this process to stop. Lives as long as the process.

    This is no threading.Event: a second signal while a handler sets it would deadlock.
    """

    is_set: bool = False
    #: Whether the signal was Ctrl-C, so that a person waits for the end.
    is_interrupt: bool = False


class SaysoWorker(BaseWorker):
    """Runs a coroutine for each job, many at once, on an event loop in another thread.

    Jobs that Sayso did not create are refused. Lives until a signal, or until Redis is away when it
    begins or ends; then the process creates the next one.
    """

    job_class = SaysoJob

    def __init__(
        self,
        queues: Any,
        *args: Any,
        perform: Callable[[str], Coroutine[Any, Any, None]],
        loop: LoopThread,
        capacity: Capacity,
        on_stop: Callable[[], None] = lambda: None,
        stop_requested: StopFlag | None = None,
        **options: Any,
    ) -> None:
        """`perform`: what a job does, for the conversation of the job. `on_stop`: called once when
        the worker begins to stop. `stop_requested`: that of the process, which outlives this
        worker.
        """
        super().__init__(queues, *args, **options)
        self._stop_signal = stop_requested or StopFlag()
        self._perform = perform
        self._loop = loop
        self._capacity = capacity
        self._on_stop = on_stop
        self._registry = JobRegistry(self)
        self._take_script = self.connection.register_script(_TAKE)
        #: The work of each job that runs, by the job's id. Guarded by `_job_ended`.
        self._running: dict[str, Future[None]] = {}
        #: Notified when a job has ended.
        self._job_ended = threading.Condition()
        #: Jobs that were taken from the queue and not started yet.
        self._taken_jobs: deque[SaysoJob] = deque()
        #: The ids of jobs that RQ was told to stop, until they have ended.
        self._stopped: set[str] = set()
        self._suspension_checked_at = float("-inf")
        self._started_at = time.monotonic()

    @property
    def stopping(self) -> bool:
        """Return whether a signal asked this worker to stop."""
        return self._stop_signal.is_set

    @property
    def connection_timeout(self) -> int:
        """Return for how many seconds RQ waits for an answer of Redis.

        No request here blocks for longer than LISTEN_SECONDS, so RQ's longer time is not needed.
        """
        return SILENT_SECONDS

    def bootstrap(self, *args: Any, **options: Any) -> None:
        """Register, and start the job registry."""
        super().bootstrap(*args, **options)
        self._registry.open()

    def dequeue_job_and_maintain_ttl(
        self, timeout: int | None, *_: Any
    ) -> tuple[SaysoJob, Queue] | None:
        """Return the next job, and keep those that were taken with it for `execute_job`.

        `timeout`: None in RQ's burst mode, which ends when there is nothing to do. Return None if
        it is time to stop.
        """
        while not self._stop_requested:
            # RQ itself looks only when it has a job.
            self.check_for_suspension(burst=timeout is None)
            taken = self._ask_redis(partial(self._wait_for_jobs, timeout is not None))
            if taken:
                self._taken_jobs.extend(taken)
                return self._taken_jobs.popleft(), self.queues[0]
            if timeout is None and not self._running:
                return None
        return None

    def execute_job(self, job: Job, queue: Queue) -> None:
        """Start the job, and those that were taken with it. This does not wait for their end."""

        async def rounds() -> None:
            for _ in range(ROUNDS):
                await asyncio.sleep(0)

        self._start(cast("SaysoJob", job))
        while self._taken_jobs:
            self._start(self._taken_jobs.popleft())
        # The loop first runs what was started, among its other work.
        with contextlib.suppress(TimeoutError):
            self._loop.submit(rounds()).result(WAIT_SECONDS)

    def heartbeat(self, timeout: int | None = None, pipeline: Any = None) -> None:
        """Send RQ's heartbeat if the job registry asks for it, which names its pipeline.

        RQ calls this in the main thread, too: that sends nothing.
        """
        if pipeline is not None:
            super().heartbeat(timeout, pipeline=pipeline)

    def check_for_suspension(self, burst: bool) -> None:
        """Check as RQ does, once a second."""
        if time.monotonic() - self._suspension_checked_at > 1:
            self._suspension_checked_at = time.monotonic()
            self._ask_redis(partial(super().check_for_suspension, burst))

    def run_maintenance_tasks(self) -> None:
        """Run RQ's tasks. Redis may be away, and RQ's keys may hold anything that others wrote."""
        try:
            self._ask_redis(super().run_maintenance_tasks)
        except Exception:
            log.exception("worker.maintenance_failed")
            # Otherwise RQ would try again at once.
            self.last_cleaned_at = now()  # type: ignore[assignment]  # RQ's own has no type

    def teardown(self) -> None:
        """Let running jobs end, cancel those that do not in time, and unregister.

        Raises RedisError.
        """
        if self.stopping:
            self._on_stop()
            if self._shutdown_requested_date:
                with contextlib.suppress(RedisError):
                    self.set_shutdown_requested_date()  # type: ignore[no-untyped-call]  # RQ's own
        futures = list(self._running.values())
        _, late = wait(futures, timeout=self._grace_seconds)
        for future in late:
            future.cancel()
        if late:
            log.warning("worker.cut_off", extra={"jobs": len(late)})
            is_interrupt = self._stop_signal.is_interrupt
            wait(late, timeout=INTERRUPTED_SECONDS if is_interrupt else CUT_SECONDS)

        self._registry.close()
        try:
            super().teardown()  # type: ignore[no-untyped-call]  # RQ's own
        except RedisError:
            # RQ leaves this thread running.
            cast("Any", self.pubsub_thread).stop()
            raise

    def request_stop(self, signum: Any, frame: Any) -> None:
        """Handle a signal to stop, for the next worker of this process, too."""
        say_stopping(signum)
        self._stop_signal.is_set = True
        self._stop_signal.is_interrupt = signum == signal.SIGINT
        super().request_stop(signum, frame)  # type: ignore[no-untyped-call]  # RQ's own

    @property
    def _grace_seconds(self) -> float:
        """Return for how many seconds jobs that run may go on."""
        if self._stop_signal.is_interrupt:
            return min(INTERRUPTED_SECONDS, self._capacity.grace_seconds)
        return self._capacity.grace_seconds

    def handle_payload(self, message: Any) -> None:
        """Handle a command that an operator sends through RQ.

        RQ's handling of `stop-job` knows only one job per worker. An invalid command is logged.
        """
        try:
            payload = parse_payload(message)
            if payload["command"] == "stop-job":
                self._stop(payload["job_id"])
            else:
                handle_command(self, payload)
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            log.warning("worker.invalid_command", extra={"reason": type(exc).__name__})

    def request_stop_execution(self, execution_id: str) -> None:
        """Stop one job, as RQ asks: its turn is cancelled, and the next worker tries it again."""
        execution = self.executions.get(execution_id)
        if execution:
            self._stop(execution.job_id)

    def _stop(self, job_id: str) -> None:
        """Cancel a job, if it runs."""
        running = self._running.get(job_id)
        if running is None:
            return

        # The mark is set first: it tells the end of the job that it was stopped on request.
        self._stopped.add(job_id)
        has_just_ended = not running.cancel()
        if has_just_ended:
            self._stopped.discard(job_id)

    def _install_signal_handlers(self) -> None:
        super()._install_signal_handlers()  # type: ignore[no-untyped-call]  # RQ's own
        if signal.SIGHUP in stop_signals():
            # RQ leaves it to end the process at once.
            signal.signal(signal.SIGHUP, self.request_stop)
        # The signal came before this worker was ready.
        if self._stop_signal.is_set:
            self._stop_requested = True

    def _shutdown(self) -> None:
        """Set the flag that the main thread looks at.

        A signal handler calls this, so it sends nothing to Redis, as RQ itself would.
        """
        self._stop_requested = True

    def _pubsub_exception_handler(self, exc: Exception, pubsub: Any, pubsub_thread: Any) -> None:
        """Log the error of the thread that reads RQ's commands, and let it go on after a pause.

        Without this thread no job can be stopped from outside. RQ itself ends the thread if a Redis
        that hangs times out.
        """
        log.warning("worker.commands_unavailable", extra={"reason": type(exc).__name__})
        time.sleep(COMMANDS_PAUSE_SECONDS)

    def _wait_for_jobs(self, patient: bool) -> list[SaysoJob]:
        """Take jobs from the queue, as many as there are places. Wait a moment for the first one.

        `patient`: whether to wait for a job if there is none.
        """
        self.heartbeat()
        if self.should_run_maintenance_tasks:
            self.run_maintenance_tasks()

        most = self._capacity.after(time.monotonic() - self._started_at)
        with self._job_ended:
            if len(self._running) >= most or not patient:
                self._job_ended.wait(FULL_SECONDS)
            free = most - len(self._running)

        places = min(free, BATCH)
        places_with_reserve = min(free + self._capacity.reserve, BATCH)
        taken: list[SaysoJob] = []
        if places_with_reserve > 0:
            taken = self._take(places, places_with_reserve)
        if taken or not patient or free <= 0:
            return taken

        # Redis answers as soon as there is a job, which is then taken already.
        queue = self.queues[0]
        taken_queue = _intermediate_queue(queue)
        moved = self.connection.blmove(
            queue.key,
            taken_queue,
            LISTEN_SECONDS,  # type: ignore[arg-type]  # Redis takes fractions
            "LEFT",
            "RIGHT",
        )
        if moved:
            return self._take(places, places_with_reserve, moved)
        return []

    def _take(
        self, places: int, places_with_reserve: int, moved: bytes | str = b""
    ) -> list[SaysoJob]:
        """Take jobs off the queue: `places` of any kind, and beyond that urgent ones.

        `moved`: the id of a job that is in the intermediate queue already, b"" for none.
        """
        queue = self.queues[0]
        keys = [queue.key, _intermediate_queue(queue)]
        args: list[int | str | bytes] = [places, places_with_reserve, URGENT_JOB, moved]
        jobs: list[SaysoJob] = []
        for job_id, fields in self._take_script(keys, args):
            job = self._job(job_id, fields)
            if job:
                jobs.append(job)
        return jobs

    def _job(self, job_id: bytes, fields: list[bytes | None]) -> SaysoJob | None:
        """Return a job with these fields: data, timeout and failure_ttl.

        None for what is no job, which is dropped: any process can write to the queue.
        """
        try:
            job = SaysoJob(job_id.decode(), connection=self.connection, serializer=self.serializer)
        except (ValueError, TypeError):
            self.connection.lrem(_intermediate_queue(self.queues[0]), 1, job_id)  # type: ignore[arg-type]  # Redis takes bytes
            return None
        try:
            job.read(self.queues[0].name, *fields)
        except Exception as exc:  # noqa: BLE001  # deleted meanwhile, or no job
            if not isinstance(exc, NoSuchJobError):
                log.error("job.unreadable", extra={"job": job.id, "reason": type(exc).__name__})
            self._registry.job_ended(job)
            return None
        return job

    def _start(self, job: SaysoJob) -> None:
        """Start the work of a job on the event loop, or refuse the job."""
        # The job was in the queue twice: one run is enough.
        if job.id in self._running:
            log.warning("job.doubled", extra={"job": job.id})
            return
        try:
            conversation = job.conversation
        except Exception as exc:  # noqa: BLE001  # its data may be anything and must not end the worker
            log.error("job.refused", extra={"job": job.id})
            self._registry.job_ended(job, exc)
            return
        self._registry.job_started(job)
        future = self._loop.submit(
            _in_time(partial(self._perform, conversation), job.timeout, job.id)
        )
        self._running[job.id] = future
        future.add_done_callback(partial(self._ended, job))

    def _ended(self, job: SaysoJob, future: Future[None]) -> None:
        """Record the end of a job. Called on the loop, or by the code that cancels the job."""
        try:
            error = future.exception()
        except CancelledError:
            # A job that is cut off when the worker stops has not failed.
            error = None
            if job.id in self._stopped:
                error = Stopped("on request")
        if error is not None:
            ids = {"conversation": job.conversation, "job": job.id}
            log.error("job.failed", extra={**ids, "reason": type(error).__name__})
        self._registry.job_ended(job, error)
        with self._job_ended:
            self._running.pop(job.id, None)
            self._stopped.discard(job.id)
            self._job_ended.notify()

    def _ask_redis(self, call: Callable[[], Any]) -> Any:
        """Call what asks Redis, between jobs, and return its answer.

        If Redis is away, log it and return None after a pause: running jobs go on.
        """
        try:
            return call()
        except RedisError as exc:
            log.warning("worker.redis_away", extra={"reason": type(exc).__name__})
            time.sleep(0.5)
            return None


async def _in_time(
    work: Callable[[], Coroutine[Any, Any, None]], seconds: float | None, job: str = ""
) -> None:
    """Do the work of a job within this many seconds. Log lines of the work name the job.

    `seconds`: None, or a number that is not positive, for no limit.
    """
    limit = None
    if seconds and seconds > 0:
        limit = seconds
    with context_field("log_fields", {"job": job}):
        async with asyncio.timeout(limit):
            await work()


def _intermediate_queue(queue: Queue) -> str:
    """Return the key of RQ's list of jobs that were taken and not registered yet."""
    return str(IntermediateQueue.get_intermediate_queue_key(queue.key))
