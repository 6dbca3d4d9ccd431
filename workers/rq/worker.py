"""SaysoWorker: an RQ worker that runs many conversations at once on one event loop.

RQ's own worker runs one job after the other, each in a process. This one takes jobs off the queue
in batches and runs each as a coroutine, since a conversation mostly waits for a model or a
platform. The main thread belongs to RQ: `dequeue_job_and_maintain_ttl` and `execute_job` are called
by its loop. `job_queue.py` takes jobs off the queue, `running_jobs.py` runs them, and
`job_registry.py` tells RQ of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from redis.exceptions import RedisError
from rq.command import handle_command, parse_payload
from rq.job import Job
from rq.queue import Queue
from rq.utils import now
from rq.worker import BaseWorker

from sayso.infra.stop_signals import INTERRUPTED_SECONDS, say_stopping, stop_signals
from sayso.infra.threads import LoopThread
from sayso.workers.rq.job_queue import JobQueue
from sayso.workers.rq.job_registry import JobRegistry
from sayso.workers.rq.jobs import SaysoJob
from sayso.workers.rq.running_jobs import RunningJobs

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


@dataclass(frozen=True, slots=True)
class Capacity:
    """How many conversations a worker runs at once, and for how long when it stops."""

    #: How many conversations run at once.
    concurrency: int = 100
    #: How many more places there are for urgent jobs.
    reserve: int = 10
    #: For how many seconds the worker goes on with its jobs when it is told to stop.
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

    It is an adapter: almost every method is one that RQ calls, to get and start jobs, to stop them
    and itself, and to look after its own keys.
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
        self._loop = loop
        self._capacity = capacity
        self._on_stop = on_stop
        self._registry = JobRegistry(self)
        self._job_queue = JobQueue(self.queues[0], self._registry.job_ended)
        self._running = RunningJobs(perform, loop, self._registry)
        #: Jobs that were taken from the queue and not started yet.
        self._taken_jobs: deque[SaysoJob] = deque()
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

        self._running.start(cast("SaysoJob", job))
        while self._taken_jobs:
            self._running.start(self._taken_jobs.popleft())
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

        cut_seconds = CUT_SECONDS
        if self._stop_signal.is_interrupt:
            cut_seconds = INTERRUPTED_SECONDS
        self._running.end_all(self._grace_seconds, cut_seconds)

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
                self._running.stop(payload["job_id"])
            else:
                handle_command(self, payload)
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            log.warning("worker.invalid_command", extra={"reason": type(exc).__name__})

    def request_stop_execution(self, execution_id: str) -> None:
        """Stop one job, as RQ asks: its turn is cancelled, and the next worker tries it again."""
        execution = self.executions.get(execution_id)
        if execution:
            self._running.stop(execution.job_id)

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
        free = self._running.free_places(most, waits=not patient)

        places = min(free, BATCH)
        places_with_reserve = min(free + self._capacity.reserve, BATCH)
        taken: list[SaysoJob] = []
        if places_with_reserve > 0:
            taken = self._job_queue.take(places, places_with_reserve)
        if taken or not patient or free <= 0:
            return taken

        # Redis answers as soon as there is a job, which is then taken already.
        moved = self._job_queue.wait_for_job(LISTEN_SECONDS)
        if moved:
            return self._job_queue.take(places, places_with_reserve, moved)
        return []

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
