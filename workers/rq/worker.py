"""SaysoWorker: an RQ worker that runs many conversations at once on one event loop."""

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
from sayso.pending.limits import URGENT_JOB
from sayso.workers.rq.job_registry import JobRegistry, Stopped
from sayso.workers.rq.jobs import SaysoJob

log = logging.getLogger(__name__)

#: Seconds until a silent worker counts as gone for RQ.
WORKER_TTL = 60
#: Seconds that the main thread waits for the event loop before it takes more jobs.
WAIT_SECONDS = 1
#: Seconds that it waits for a job before it checks for a signal: a person who pressed Ctrl-C waits
#: too.
LISTEN_SECONDS = 0.4
#: Seconds before the connection for RQ's commands is opened again.
COMMANDS_PAUSE_SECONDS = 2.0
#: Seconds after which a Redis that does not answer counts as away.
#: RQ's own 55 is longer than most grace periods.
SILENT_SECONDS = 3
#: Seconds between two looks for urgent jobs while only their places are free.
FULL_SECONDS = 0.05
#: Conversations that a new worker runs at once.
FIRST_CONCURRENCY = 8
#: Most jobs taken from the queue at once: other workers want some too.
BATCH = 16
#: Rounds of the loop that pass before the next batch is taken: a busy loop takes its time.
ROUNDS = 8
#: Seconds that cancelled conversations have to release their leases at the end of the grace period.
CUT_SECONDS = 3.0
_TAKE = """
-- Take jobs off RQ's queue, as its workers do, with the fields that running them needs. KEYS: queue, RQ's intermediate
-- queue. ARGV: places for any job, places for urgent ones, prefix of urgent ids, a job taken already or ''.
local taken = {}
local function take(id)
  local fields = redis.pcall('HMGET', 'rq:job:' .. id, 'data', 'timeout', 'failure_ttl')
  taken[#taken + 1] = {id, fields.err and {false, false, false} or fields}
end
if ARGV[4] ~= '' then take(ARGV[4]) end
while #taken < tonumber(ARGV[2]) do
  local id = redis.call('LINDEX', KEYS[1], 0)
  if not id then break end
  if #taken >= tonumber(ARGV[1]) and string.sub(id, 1, #ARGV[3]) ~= ARGV[3] then break end
  redis.call('LMOVE', KEYS[1], KEYS[2], 'LEFT', 'RIGHT')
  take(id)
end
return taken
"""


@dataclass(frozen=True, slots=True)
class Capacity:
    """How many conversations a worker runs at once.

    `reserve` are places beyond `concurrency` for urgent jobs only.

    `grace_seconds` is how long it may go on with what it has begun when it is told to stop.
    """

    concurrency: int = 100
    reserve: int = 10
    grace_seconds: float = 20.0

    def after(self, seconds: float) -> int:
        """Return the concurrency of a worker of this age: it doubles each second,
        from a small number.

        A worker that dies young takes few conversations with it,
        and waiting conversations are shared among workers.
        """
        return int(min(self.concurrency, FIRST_CONCURRENCY * 2 ** min(seconds, 30)))


@dataclass(slots=True)
class StopFlag:
    """Whether a signal told this process to stop.

    No Event: a second signal inside its `set` would deadlock.

    `is_interrupt`: whether it was Ctrl-C, and a person waits.
    """

    is_set: bool = False
    is_interrupt: bool = False


class SaysoWorker(BaseWorker):
    """Runs `perform(conversation)` for each job, many at once, on `loop`.

    Jobs of any other kind are refused.
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
        super().__init__(queues, *args, **options)
        self._stop_signal = stop_requested or StopFlag()
        self._perform = perform
        self._loop = loop
        self._capacity = capacity
        self._on_stop = on_stop
        self._registry = JobRegistry(self)
        self._take_script = self.connection.register_script(_TAKE)
        self._running: dict[str, Future[None]] = {}
        self._job_ended = threading.Condition()
        self._taken_jobs: deque[SaysoJob] = deque()
        #: Jobs that RQ was told to stop, until they have ended.
        self._stopped: set[str] = set()
        self._looked_for_suspension = float("-inf")
        self._started_at = time.monotonic()

    @property
    def stopping(self) -> bool:
        """Return whether a signal asked this worker to stop."""
        return self._stop_signal.is_set

    @property
    def connection_timeout(self) -> int:
        """Return the seconds to wait for any answer of Redis.

        No request here blocks for longer than LISTEN_SECONDS.
        """
        return SILENT_SECONDS

    def bootstrap(self, *args: Any, **options: Any) -> None:
        """Register, and start the job registry."""
        super().bootstrap(*args, **options)
        self._registry.open()

    def dequeue_job_and_maintain_ttl(
        self, timeout: int | None, *_: Any
    ) -> tuple[SaysoJob, Queue] | None:
        """Return the next job; those taken with it wait for `execute_job`.

        None: it is time to stop, or there is nothing to do and no timeout (RQ's burst).
        """
        while not self._stop_requested:
            # RQ's own looks only when it has a job.
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
        """Send RQ's heartbeat when the job registry writes it.

        The main thread sends none of its own.
        """
        if pipeline is not None:
            super().heartbeat(timeout, pipeline=pipeline)

    def check_for_suspension(self, burst: bool) -> None:
        """Check as RQ does, once a second."""
        if time.monotonic() - self._looked_for_suspension > 1:
            self._looked_for_suspension = time.monotonic()
            self._ask_redis(partial(super().check_for_suspension, burst))

    def run_maintenance_tasks(self) -> None:
        """Run RQ's tasks. Redis may be away, and RQ's keys may hold anything that others wrote."""
        try:
            self._ask_redis(super().run_maintenance_tasks)
        except Exception:
            log.exception("worker.maintenance_failed")
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
            cast("Any", self.pubsub_thread).stop()  # RQ leaves it running
            raise

    def request_stop(self, signum: Any, frame: Any) -> None:
        """Handle the signal, also while the next worker of this process is not ready to handle it."""
        say_stopping(signum)
        self._stop_signal.is_set = True
        self._stop_signal.is_interrupt = signum == signal.SIGINT
        super().request_stop(signum, frame)  # type: ignore[no-untyped-call]  # RQ's own

    @property
    def _grace_seconds(self) -> float:
        """How long jobs that run may go on, in seconds."""
        if self._stop_signal.is_interrupt:
            return min(INTERRUPTED_SECONDS, self._capacity.grace_seconds)
        return self._capacity.grace_seconds

    def handle_payload(self, message: Any) -> None:
        """Handle RQ's commands: its own `stop-job` knows one job per worker.

        An invalid command ends nothing.
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
        """Stop one job on RQ's command: its turn is cancelled,
        and the next worker tries it once more.
        """
        execution = self.executions.get(execution_id)
        if execution:
            self._stop(execution.job_id)

    def _stop(self, job_id: str) -> None:
        running = self._running.get(job_id)
        if running is None:
            return
        self._stopped.add(job_id)
        if not running.cancel():  # it has just ended
            self._stopped.discard(job_id)

    def _install_signal_handlers(self) -> None:
        super()._install_signal_handlers()  # type: ignore[no-untyped-call]  # RQ's own
        if signal.SIGHUP in stop_signals():
            # RQ leaves it to end the process at once.
            signal.signal(signal.SIGHUP, self.request_stop)
        if self._stop_signal.is_set:  # the signal came before this worker was ready
            self._stop_requested = True

    def _shutdown(self) -> None:
        """Note the stop; the main thread looks every second.

        A signal handler calls this, so it asks Redis nothing.
        """
        self._stop_requested = True

    def _pubsub_exception_handler(self, exc: Exception, pubsub: Any, pubsub_thread: Any) -> None:
        """Log and retry, whatever Redis answers: without this thread no job can be stopped from
        outside. RQ's own ends the thread where a hung Redis times out.
        """
        log.warning("worker.commands_unavailable", extra={"reason": type(exc).__name__})
        time.sleep(COMMANDS_PAUSE_SECONDS)

    def _wait_for_jobs(self, patient: bool) -> list[SaysoJob]:
        """Take jobs from the queue: as many as there are places for any job, and for urgent ones."""
        self.heartbeat()
        if self.should_run_maintenance_tasks:
            self.run_maintenance_tasks()
        most = self._capacity.after(time.monotonic() - self._started_at)
        with self._job_ended:
            if len(self._running) >= most or not patient:
                self._job_ended.wait(FULL_SECONDS)
            free = most - len(self._running)
        room = min(free, BATCH), min(free + self._capacity.reserve, BATCH)
        taken = self._take(room) if room[1] > 0 else []
        if taken or not patient or free <= 0:
            return taken
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
            return self._take(room, moved)
        return []

    def _take(self, room: tuple[int, int], moved: bytes | str = b"") -> list[SaysoJob]:
        queue = self.queues[0]
        taken = self._take_script(
            [queue.key, _intermediate_queue(queue)], [*room, URGENT_JOB, moved]
        )
        return [job for job_id, fields in taken if (job := self._job(job_id, fields))]

    def _job(self, job_id: bytes, fields: list[bytes | None]) -> SaysoJob | None:
        """Return the job, or None if it is none: any process can write to the queue."""
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
        if job.id in self._running:  # in the queue twice: one run is enough
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
            if job.id in self._stopped:
                error = Stopped("on request")
            else:
                error = None
        if error is not None:
            ids = {"conversation": job.conversation, "job": job.id}
            log.error("job.failed", extra={**ids, "reason": type(error).__name__})
        self._registry.job_ended(job, error)
        with self._job_ended:
            self._running.pop(job.id, None)
            self._stopped.discard(job.id)
            self._job_ended.notify()

    def _ask_redis(self, call: Callable[[], Any]) -> Any:
        """Send a request of RQ between jobs.

        If Redis is away, log it and return None: running jobs go on.
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
    """Do the work of a job within this many seconds. Log lines of the work name the job."""
    with context_field("log_fields", {"job": job}):
        async with asyncio.timeout(seconds if seconds and seconds > 0 else None):
            await work()


def _intermediate_queue(queue: Queue) -> str:
    return str(IntermediateQueue.get_intermediate_queue_key(queue.key))
