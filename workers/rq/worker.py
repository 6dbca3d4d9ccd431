"""SaysoWorker on rq.BaseWorker."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import CancelledError, Future, wait
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, cast

from redis import Redis
from redis.backoff import ConstantBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.retry import Retry
from rq.command import handle_command, parse_payload
from rq.exceptions import NoSuchJobError
from rq.intermediate_queue import IntermediateQueue
from rq.job import Job
from rq.queue import Queue
from rq.serializers import JSONSerializer
from rq.utils import now
from rq.worker import BaseWorker

from sayso.pending.audit.collector import AuditCollector
from sayso.pending.concurrency import LoopThread, bound_threads, offload, stack_of
from sayso.workers.lease import listen_for_stops
from sayso.workers.processor import ConversationProcessor
from sayso.workers.recovery import Reaper, WorkerLock
from sayso.workers.redis.client import DataLossGuard
from sayso.workers.rq.bookkeeping import JobRegistry, Stopped
from sayso.workers.rq.jobs import FIRST, SaysoJob

log = logging.getLogger(__name__)


#: Seconds between two looks.
LOOK_SECONDS = 0.1


#: Seconds without a sign of life after which the loop counts as blocked.
BLOCKED_SECONDS = 0.5


class Watchdog:
    """Lives as long as the loop it looks at, on a daemon thread of its own. One report per block, one when it is over.

    Only time in which it looked itself counts: in a process that was stopped, or on a laptop that slept, the loop was
    not to blame.
    """

    def __init__(
        self,
        loop: LoopThread,
        *,
        clock: Callable[[], float] = time.monotonic,
        stack: Callable[[int | None], str] = stack_of,
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._stack = stack
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="sayso-watchdog", daemon=True)
        self._answered = threading.Event()
        self._answered.set()
        self._looked_at = clock()
        self._waited = 0.0
        self._reported = False

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def look(self) -> None:
        """One look: ask for a sign of life, or see for how long there was none. RuntimeError: the loop is closed."""
        now = self._clock()
        self._waited += min(now - self._looked_at, 2 * LOOK_SECONDS)
        self._looked_at = now
        if self._answered.is_set():
            self._ask_again()
        elif self._waited > BLOCKED_SECONDS and not self._reported:
            self._reported = True
            stack = self._stack(self._loop.thread)
            log.warning("loop.blocked", extra={"seconds": round(self._waited, 1), "stack": stack})

    def _ask_again(self) -> None:
        if self._reported:
            log.warning("loop.free_again", extra={"seconds": round(self._waited, 1)})
        self._waited, self._reported = 0.0, False
        self._answered.clear()
        self._loop.soon(self._answered.set)

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            try:
                self.look()
            except RuntimeError:  # the loop is closed
                return


#: Memory that is given back when it is free, in bytes, and glibc's number for that setting.
LARGE_BLOCK_BYTES = 1024 * 1024


_M_MMAP_THRESHOLD = -3


#: Seconds until a silent worker counts as gone for RQ.
WORKER_TTL = 60


#: Seconds between two looks for old files.
SWEEP_SECONDS = 3600


#: Seconds between RQ's own clean-ups of its registries.
MAINTENANCE_INTERVAL = 60


#: Seconds that the main thread waits for a job before it looks up: how long a signal may go unheard.
WAIT_SECONDS = 1


#: Seconds after which a Redis that says nothing counts as away; RQ's own, 55, is longer than most graces.
SILENT_SECONDS = 3


#: Seconds between two looks for urgent jobs while only their places are free.
FULL_SECONDS = 0.05


#: What a worker holds when it begins.
FIRST_HELD = 8


#: Jobs taken from the queue in one go at most: other workers want some too.
BATCH = 16


#: Rounds of the loop for which a batch is looked at before the next one is taken: a loop that is busy takes its time.
ROUNDS = 8


#: Seconds that what is cut off at the end of the grace has to let its lanes go.
CUT_SECONDS = 3.0


#: Objects made and not yet dropped until Python looks for dead cycles. A thousand turns under way are none: at Python's
#: own 700 it looks through them, and through every module, for a quarter of the time.
COLLECT_EVERY = 100_000


_TAKE = """
-- Take jobs off RQ's queue, as its workers do, with what running them needs. KEYS: queue, list of those on their way.
-- ARGV: places for all, places for urgent ones, their first letters, a job taken already or ''.
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
    """How much a worker holds at once. `reserve` are places beyond `concurrency` that only urgent jobs may take.

    `grace_seconds` is how long it may go on with what it has begun when it is told to stop.
    """

    concurrency: int = 100
    reserve: int = 10
    grace_seconds: float = 20.0

    def after(self, seconds: float) -> int:
        """How much a worker holds that is so old: twice as much each second, from a little.

        One that dies young takes few conversations with it, and what waited for it is shared with the others.
        """
        return int(min(self.concurrency, FIRST_HELD * 2 ** min(seconds, 30)))


class SaysoWorker(BaseWorker):
    """Runs `perform(conversation)` for each job, many at once, on `loop`. What is not our job is refused."""

    job_class = SaysoJob

    def __init__(
        self,
        queues: Any,
        *args: Any,
        perform: Callable[[str], Coroutine[Any, Any, None]] | None = None,
        loop: LoopThread | None = None,
        capacity: Capacity = Capacity(),
        on_stop: Callable[[], None] = lambda: None,
        stop_requested: threading.Event | None = None,
        **options: Any,
    ) -> None:
        super().__init__(queues, *args, **options)
        self._stop_signal = stop_requested or threading.Event()
        self._perform = perform
        self._loop = loop
        self._capacity = capacity
        self._on_stop = on_stop
        self._books = JobRegistry(self)
        self._taker = self.connection.register_script(_TAKE)
        self._running: dict[str, Future[None]] = {}
        self._ended_one = threading.Condition()
        self._more: deque[SaysoJob] = deque()
        #: Jobs that RQ was told to stop, until they have ended.
        self._stopped: set[str] = set()
        self._looked_for_suspension = float("-inf")
        self._born = time.monotonic()
        self._in_a_hurry = False

    @property
    def stopping(self) -> bool:
        """Whether a signal asked this worker to stop."""
        return self._stop_signal.is_set()

    @property
    def connection_timeout(self) -> int:
        """Seconds to wait for any answer of Redis: nothing that is asked here blocks for longer than WAIT_SECONDS."""
        return SILENT_SECONDS

    def bootstrap(self, *args: Any, **options: Any) -> None:
        """Register, and begin the books."""
        super().bootstrap(*args, **options)
        self._books.open()

    def dequeue_job_and_maintain_ttl(
        self, timeout: int | None, max_idle_time: int | None = None
    ) -> tuple[SaysoJob, Queue] | None:
        """The next job; those taken with it wait for `execute_job`. None when it is time to stop, or, without a
        timeout (RQ's burst), when there is nothing to do.
        """
        idle_since = time.monotonic()
        while not self._stop_requested:
            self.check_for_suspension(burst=timeout is None)  # RQ's own looks only when it has a job
            taken = self._guarded(partial(self._wait_for_jobs, timeout is not None))
            if taken:
                self._more.extend(taken)
                return self._more.popleft(), self.queues[0]
            if timeout is None and not self._running:
                return None
            if max_idle_time is not None and time.monotonic() - idle_since > max_idle_time:
                return None
        return None

    def execute_job(self, job: Job, queue: Queue) -> None:
        """Start the job, and those that were taken with it. They end by themselves."""
        self._start(cast("SaysoJob", job))
        while self._more:
            self._start(self._more.popleft())
        self._catch_up()

    def heartbeat(self, timeout: int | None = None, pipeline: Any = None) -> None:
        """RQ's, when the books write it. The main thread needs none of its own."""
        if pipeline is not None:
            super().heartbeat(timeout, pipeline=pipeline)

    def check_for_suspension(self, burst: bool) -> None:
        """As RQ's, once a second."""
        if time.monotonic() - self._looked_for_suspension > 1:
            self._looked_for_suspension = time.monotonic()
            self._guarded(partial(super().check_for_suspension, burst))

    def run_maintenance_tasks(self) -> None:
        """As RQ's. Redis may be away, and what somebody else has put into RQ's keys may be anything."""
        try:
            self._guarded(super().run_maintenance_tasks)
        except Exception:
            log.exception("worker.maintenance_failed")
            self.last_cleaned_at = now()  # type: ignore[assignment]  # RQ's own has no type

    def get_heartbeat_ttl(self, job: Job, working_time: float = 0.0) -> int:
        """Seconds until an execution without a heartbeat counts as abandoned: an id is lost with it, and no turn."""
        return WORKER_TTL + 30

    def teardown(self) -> None:
        """Let what runs come to its end, cut off what does not, say good-bye. Raises RedisError if nobody hears it."""
        if self.stopping:
            self._on_stop()
            self._say_when_told()
        futures = list(self._running.values())
        _, late = wait(futures, timeout=0 if self._in_a_hurry else self._capacity.grace_seconds)
        for future in late:
            future.cancel()
        if late:
            log.warning("worker.cut_off", extra={"jobs": len(late)})
            wait(late, timeout=CUT_SECONDS)
        self._books.close()
        try:
            super().teardown()  # type: ignore[no-untyped-call]  # RQ's own
        except RedisError:
            cast("Any", self.pubsub_thread).stop()  # RQ leaves it running
            raise

    def request_stop(self, signum: Any, frame: Any) -> None:
        """The signal's handler, also while the next worker of this process is not ready to hear it itself."""
        self._stop_signal.set()
        super().request_stop(signum, frame)  # type: ignore[no-untyped-call]  # RQ's own

    def request_force_stop(self, signum: Any, frame: Any) -> None:
        """As RQ's, on the second signal: no grace any more, whatever the main thread is at."""
        try:
            super().request_force_stop(signum, frame)
        except SystemExit:
            self._in_a_hurry = True
            raise

    def handle_payload(self, message: Any) -> None:
        """RQ's commands. Its `stop-job` knows one job a worker; and what is no command must not end the thread."""
        try:
            payload = parse_payload(message)
            if payload["command"] == "stop-job":
                self._stop(payload["job_id"])
            else:
                handle_command(self, payload)
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            log.warning("worker.no_command", extra={"reason": type(exc).__name__})

    def request_stop_execution(self, execution_id: str) -> None:
        """RQ's command to stop one job: its turn is cut off, and whoever is next tries it once more."""
        execution = self.executions.get(execution_id)
        if execution:
            self._stop(execution.job_id)

    def _stop(self, job_id: str) -> None:
        running = self._running.get(job_id)
        if running is None:
            return
        self._stopped.add(job_id)
        if not running.cancel():  # it has just ended by itself
            self._stopped.discard(job_id)

    def _install_signal_handlers(self) -> None:
        super()._install_signal_handlers()  # type: ignore[no-untyped-call]  # RQ's own
        if self._stop_signal.is_set():  # before we could hear it ourselves
            self._stop_requested = True

    def _shutdown(self) -> None:
        """Called inside of the signal's handler: nothing is interrupted or asked of Redis here. The main thread looks
        up every second.
        """
        self._stop_requested = True

    def _pubsub_exception_handler(self, exc: Exception, pubsub: Any, pubsub_thread: Any) -> None:
        """As RQ's, for whatever Redis answers: without this thread no job can be stopped from outside."""
        log.warning("worker.commands_unheard", extra={"reason": type(exc).__name__})
        time.sleep(2.0)

    def _say_when_told(self) -> None:
        with contextlib.suppress(RedisError):
            if self._shutdown_requested_date:
                self.set_shutdown_requested_date()  # type: ignore[no-untyped-call]  # RQ's own

    def _wait_for_jobs(self, patient: bool) -> list[SaysoJob]:
        self.heartbeat()
        if self.should_run_maintenance_tasks:
            self.run_maintenance_tasks()
        room = self._room(patient)
        taken = self._take(room) if room[1] > 0 else []
        if taken or not patient or room[0] <= 0:
            return taken
        queue = self.queues[0]
        moved = self.connection.blmove(queue.key, _on_their_way(queue), WAIT_SECONDS, "LEFT", "RIGHT")
        return self._take(room, moved) if moved else []

    def _room(self, patient: bool) -> tuple[int, int]:
        """Places for any job and for urgent ones; when there are none for all, after a short wait."""
        most = self._capacity.after(time.monotonic() - self._born)
        with self._ended_one:
            if len(self._running) >= most or not patient:
                self._ended_one.wait(FULL_SECONDS)
            free = most - len(self._running)
        return min(free, BATCH), min(free + self._capacity.reserve, BATCH)

    def _take(self, room: tuple[int, int], moved: bytes | str = b"") -> list[SaysoJob]:
        queue = self.queues[0]
        taken = self._taker([queue.key, _on_their_way(queue)], [*room, FIRST, moved])
        return [job for job_id, fields in taken if (job := self._job(job_id, fields))]

    def _job(self, job_id: bytes, fields: list[bytes | None]) -> SaysoJob | None:
        """The job, if it is one: whoever can write to Redis can put anything into the queue."""
        try:
            job = SaysoJob(job_id.decode(), connection=self.connection, serializer=self.serializer)
        except (ValueError, TypeError):
            self.connection.lrem(_on_their_way(self.queues[0]), 1, job_id)  # type: ignore[arg-type]  # Redis takes bytes
            return None
        try:
            job.read(self.queues[0].name, *fields)
        except Exception as exc:  # noqa: BLE001  # deleted meanwhile, or no job at all
            if not isinstance(exc, NoSuchJobError):
                log.error("job.unreadable", extra={"job": job.id, "reason": type(exc).__name__})
            self._books.ended(job)
            return None
        return job

    def _start(self, job: SaysoJob) -> None:
        if self._loop is None or self._perform is None:
            raise RuntimeError("a SaysoWorker that works needs `perform` and `loop`")
        if job.id in self._running:  # put into the queue twice: one run does
            log.warning("job.doubled", extra={"job": job.id})
            return
        try:
            conversation = job.conversation
        except Exception as exc:  # noqa: BLE001  # its data may be anything, and must not end the worker
            log.error("job.refused", extra={"job": job.id})
            self._books.ended(job, exc)
            return
        self._books.begun(job)
        future = self._loop.submit(_in_time(partial(self._perform, conversation), job.timeout))
        self._running[job.id] = future
        future.add_done_callback(partial(self._ended, job))

    def _ended(self, job: SaysoJob, future: Future[None]) -> None:
        """Called on the loop, or, when it is cut off, at once by who cuts it off: its coroutine may still clean up."""
        try:
            error = future.exception()
        except CancelledError:
            error = Stopped("on request") if job.id in self._stopped else None
        if error is not None:
            log.error("job.failed", extra={"job": job.id, "reason": type(error).__name__})
        self._books.ended(job, error)
        with self._ended_one:
            self._running.pop(job.id, None)
            self._stopped.discard(job.id)
            self._ended_one.notify()

    def _catch_up(self) -> None:
        """Wait until the loop has looked at what was started, among all else that it is at."""
        if self._loop is not None:
            with contextlib.suppress(TimeoutError):
                self._loop.submit(_rounds_of_the_loop()).result(WAIT_SECONDS)

    def _guarded(self, call: Callable[[], Any]) -> Any:
        """What RQ asks of Redis between jobs. One that is away is no reason to let go of what runs."""
        try:
            return call()
        except RedisError as exc:
            log.warning("worker.redis_away", extra={"reason": type(exc).__name__})
            time.sleep(0.5)
            return None


async def _in_time(work: Callable[[], Coroutine[Any, Any, None]], seconds: float | None) -> None:
    async with asyncio.timeout(seconds if seconds and seconds > 0 else None):
        await work()


async def _rounds_of_the_loop() -> None:
    for _ in range(ROUNDS):
        await asyncio.sleep(0)


def _on_their_way(queue: Queue) -> str:
    return str(IntermediateQueue.get_intermediate_queue_key(queue.key))


def return_large_blocks() -> None:
    """Have glibc give memory of 1 MB and more back to the system as soon as it is free.

    Otherwise each thread keeps what a large file took: with 40 files of 12 MB a worker grew by 199 MB instead of 102.
    """
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError):  # another library than glibc
            ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)


class SweptFolder(Protocol):
    """A folder whose files are removed when they are old."""

    def sweep(self) -> int:
        """Remove old files and return how many. Raises OSError."""


@dataclass(frozen=True, slots=True)
class WorkerServices:
    """The parts of a worker process. `sweeps` are its folders by the name that log events begin with."""

    queue: str
    key_prefix: str
    redis_url: str
    capacity: Capacity
    tool_threads: int
    processor: ConversationProcessor
    reaper: Reaper
    audit_collector: AuditCollector
    lock: WorkerLock
    sweeps: Mapping[str, SweptFolder]
    close_tools: Callable[[], None]
    #: Closes the connections to models.
    close_models: Callable[[], Awaitable[None]] | None = None
    data_loss_guard: DataLossGuard | None = None


def run_worker(services: WorkerServices, loop: LoopThread) -> None:
    """Work until SIGTERM or SIGINT, and finish what is in progress first. A restart of Redis does not end a worker."""
    bound_threads(services.tool_threads)
    return_large_blocks()
    gc.freeze()  # the objects of the process itself stay for as long as it lives
    gc.set_threshold(COLLECT_EVERY)
    watchdog = Watchdog(loop)
    watchdog.start()
    if services.data_loss_guard:
        services.data_loss_guard.watch()
    background = [loop.submit(each) for each in _background_work(services)]
    for each in background:
        each.add_done_callback(_report_end)
    services.lock.hold()
    said_good_bye = _work_until_stopped(services, loop)
    watchdog.stop()
    for each in background:
        each.cancel()
    if said_good_bye:  # without Redis, silence says the same
        with contextlib.suppress(RedisError):
            services.reaper.presence.leave()
    _close_models(services, loop)
    loop.close()
    services.close_tools()
    if services.processor.is_idle:  # conversations that are still held are taken over when this process has ended
        services.lock.leave()


def _work_until_stopped(services: WorkerServices, loop: LoopThread) -> bool:
    """Run one RQ worker after the other until a signal. Return whether the last one could say good-bye to Redis."""
    stop_requested, said_good_bye = threading.Event(), False
    while not stop_requested.is_set():
        try:
            new_worker(services, loop, stop_requested).work(logging_level="WARNING")
            said_good_bye = True
        except RedisError as exc:  # at its birth or at its good-bye
            said_good_bye = False
            log.warning("worker.redis_away", extra={"reason": type(exc).__name__})
        if not stop_requested.is_set():
            time.sleep(1)
    return said_good_bye


def _background_work(services: WorkerServices) -> list[Coroutine[Any, Any, None]]:
    """Return what runs beside the jobs for as long as the process lives."""
    stops = listen_for_stops(services.redis_url, services.processor.renew_now, prefix=services.key_prefix)
    return [services.reaper.forever(), services.audit_collector.forever(), _sweep(services.sweeps), stops]


def _report_end(future: Future[None]) -> None:
    """Log that background work has ended. Each handles its own errors; an end would otherwise go unnoticed."""
    if not future.cancelled() and (error := future.exception()):
        log.error("worker.half_dead", exc_info=error)


def _close_models(services: WorkerServices, loop: LoopThread) -> None:
    """Close the connections to models, so that vendors see an end and no library warns of an open one."""
    if services.close_models is None:
        return
    try:
        loop.submit(_awaited(services.close_models)).result(CUT_SECONDS)
    except Exception as exc:  # noqa: BLE001  # whatever a vendor's client raises, the worker is leaving
        log.warning("worker.models_not_closed", extra={"reason": type(exc).__name__})


async def _awaited(call: Callable[[], Awaitable[None]]) -> None:
    await call()


async def _sweep(folders: Mapping[str, SweptFolder]) -> None:
    """Remove old files now and then. Several workers may sweep the same folder."""
    while True:
        for name, folder in folders.items():
            await _sweep_one(name, folder)
        await asyncio.sleep(SWEEP_SECONDS)


async def _sweep_one(name: str, folder: SweptFolder) -> None:
    try:
        removed = await offload(folder.sweep)
    except Exception:
        log.exception(f"{name}.not_swept")
    else:
        if removed:
            log.info(f"{name}.swept", extra={"files": removed})


def new_worker(
    services: WorkerServices, loop: LoopThread, stop_requested: threading.Event | None = None
) -> SaysoWorker:
    """Return an RQ worker that runs the conversations of the queue on `loop`."""
    return SaysoWorker(
        [services.queue],
        perform=services.processor.run,
        loop=loop,
        capacity=services.capacity,
        on_stop=services.processor.hand_over,
        stop_requested=stop_requested,
        connection=_connect(services.redis_url),
        serializer=JSONSerializer,
        worker_ttl=WORKER_TTL,
        maintenance_interval=MAINTENANCE_INTERVAL,
        log_job_description=False,
    )


def _connect(url: str) -> Redis:
    """Return RQ's client. It retries a lost connection but not a silent one: the loop does, and sees signals then."""
    retry = Retry(ConstantBackoff(0.1), 2, supported_errors=(RedisConnectionError,))
    return Redis.from_url(url, socket_connect_timeout=2, retry=retry)
