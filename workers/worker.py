"""SaysoWorker: an RQ worker that holds many conversations at once, as coroutines of one event loop.

RQ's base keeps what operators know: registration, heartbeats, registries, signals, suspension, `rq info`. Its main loop
takes jobs in batches and starts them on the loop; `Books` writes down what runs. A plain `rq worker` runs the same jobs
too, one at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future, wait
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from redis import Redis
from redis.backoff import ConstantBackoff
from redis.exceptions import RedisError
from redis.retry import Retry
from rq.exceptions import DeserializationError, NoSuchJobError
from rq.intermediate_queue import IntermediateQueue
from rq.job import Job
from rq.queue import Queue
from rq.serializers import JSONSerializer
from rq.worker import BaseWorker

from channels.media import LocalMediaStore
from config.bootstrap import Services
from workers import jobs
from workers.books import Books
from workers.loop import LoopThread
from workers.offload import offload
from workers.queue import FIRST, QUEUE, ForbiddenJob, SaysoJob
from workers.whisper import listen

log = logging.getLogger(__name__)

#: Seconds until a silent worker counts as gone for RQ.
WORKER_TTL = 60
#: Seconds between two looks for old files.
SWEEP_SECONDS = 3600
#: Seconds between RQ's own clean-ups of its registries.
MAINTENANCE_INTERVAL = 60
#: Seconds that the main thread waits for a job before it looks up: how long a signal may go unheard.
WAIT_SECONDS = 1
#: Seconds between two looks for urgent jobs while only their places are free.
FULL_SECONDS = 0.05
#: Jobs taken from the queue in one go at most.
BATCH = 100
#: Seconds that what is cut off at the end of the grace has to let its lanes go.
CUT_SECONDS = 3.0

_TAKE = """
-- Take jobs off RQ's queue, as its workers do, with their hashes. KEYS: queue, list of those on their way.
-- ARGV: places for all, places for urgent ones, their first letters, a job taken already or ''.
local taken = {}
local function take(id)
  taken[#taken + 1] = {id, redis.call('HGETALL', 'rq:job:' .. id)}
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
        **options: Any,
    ) -> None:
        super().__init__(queues, *args, **options)
        self._perform = perform
        self._loop = loop
        self._capacity = capacity
        self._on_stop = on_stop
        self._books = Books(self)
        self._taker = self.connection.register_script(_TAKE)
        self._running: dict[str, Future[None]] = {}
        self._ended_one = threading.Condition()
        self._more: deque[SaysoJob] = deque()
        self._looked_for_suspension = self._beaten = float("-inf")

    @property
    def stopping(self) -> bool:
        """Whether a signal asked this worker to stop."""
        return self._shutdown_requested_date is not None

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
            jobs = self._guarded(partial(self._wait_for_jobs, timeout is not None))
            if jobs:
                self._more.extend(jobs)
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

    def heartbeat(self, timeout: int | None = None, pipeline: Any = None) -> None:
        """As RQ's, but not at every job: the books beat as well."""
        if pipeline is not None:
            super().heartbeat(timeout, pipeline=pipeline)
        elif time.monotonic() - self._beaten > WORKER_TTL / 4:
            self._beaten = time.monotonic()
            self._guarded(partial(super().heartbeat, timeout))

    def check_for_suspension(self, burst: bool) -> None:
        """As RQ's, once a second."""
        if time.monotonic() - self._looked_for_suspension > 1:
            self._looked_for_suspension = time.monotonic()
            self._guarded(partial(super().check_for_suspension, burst))

    def run_maintenance_tasks(self) -> None:
        """As RQ's; Redis may be away."""
        self._guarded(super().run_maintenance_tasks)

    def get_heartbeat_ttl(self, job: Job, working_time: float = 0.0) -> int:
        """Seconds until an execution without a heartbeat counts as abandoned: an id is lost with it, and no turn."""
        return WORKER_TTL + 30

    def teardown(self) -> None:
        """Let what runs come to its end, cut off what does not, say good-bye."""
        self._on_stop()
        futures = list(self._running.values())
        _, late = wait(futures, timeout=self._capacity.grace_seconds)
        for future in late:
            future.cancel()
        if late:
            log.warning("worker.cut_off", extra={"jobs": len(late)})
            wait(late, timeout=CUT_SECONDS)
        self._books.close()
        super().teardown()  # type: ignore[no-untyped-call]  # RQ's own

    def request_stop_execution(self, execution_id: str) -> None:
        """RQ's command to stop one job: its turn is cut off, and its conversation is free once its lease ends."""
        execution = self.executions.get(execution_id)
        running = self._running.get(execution.job_id) if execution else None
        if execution and running:
            self._stopped_job_id = execution.job_id
            running.cancel()

    def _shutdown(self) -> None:
        """Nothing is interrupted: the main thread looks up every second."""
        self._stop_requested = True
        with contextlib.suppress(RedisError):
            self.set_shutdown_requested_date()  # type: ignore[no-untyped-call]  # RQ's own

    def _wait_for_jobs(self, patient: bool) -> list[SaysoJob]:
        self.heartbeat()
        if self.should_run_maintenance_tasks:
            self.run_maintenance_tasks()
        room = self._room(patient)
        jobs = self._take(room) if room[1] > 0 else []
        if jobs or not patient or room[0] <= 0:
            return jobs
        queue = self.queues[0]
        moved = self.connection.blmove(queue.key, _on_their_way(queue), WAIT_SECONDS, "LEFT", "RIGHT")
        return self._take(room, moved) if moved else []

    def _room(self, patient: bool) -> tuple[int, int]:
        """Places for any job and for urgent ones; when there are none for all, after a short wait."""
        with self._ended_one:
            full = len(self._running) >= self._capacity.concurrency
            if full or not patient:
                self._ended_one.wait(FULL_SECONDS)
            running = len(self._running)
        free = self._capacity.concurrency - running
        return min(free, BATCH), min(free + self._capacity.reserve, BATCH)

    def _take(self, room: tuple[int, int], moved: bytes | str = b"") -> list[SaysoJob]:
        queue = self.queues[0]
        taken = self._taker([queue.key, _on_their_way(queue)], [*room, FIRST, moved])
        return [job for job_id, flat in taken if (job := self._job(job_id.decode(), flat))]

    def _job(self, job_id: str, flat: list[bytes]) -> SaysoJob | None:
        job = SaysoJob(job_id, connection=self.connection, serializer=self.serializer)
        try:
            job.restore(dict(zip(flat[::2], flat[1::2], strict=True)))
        except (NoSuchJobError, ValueError, KeyError, TypeError):  # deleted meanwhile, or no job at all
            self._books.ended(job)
            return None
        return job

    def _start(self, job: SaysoJob) -> None:
        try:
            conversation = job.conversation
        except (ForbiddenJob, DeserializationError) as exc:
            log.error("job.refused", extra={"job": job.id})
            self._books.ended(job, exc)
            return
        if self._loop is None or self._perform is None:
            raise RuntimeError("a SaysoWorker that works needs `perform` and `loop`")
        self._books.begun(job)
        future = self._loop.submit(_in_time(self._perform(conversation), job.timeout))
        self._running[job.id] = future
        future.add_done_callback(partial(self._ended, job))

    def _ended(self, job: SaysoJob, future: Future[None]) -> None:
        try:
            error = future.exception()
        except CancelledError as exc:
            error = exc if self._stopped_job_id == job.id else None
        if error is not None:
            log.error("job.failed", extra={"job": job.id, "reason": type(error).__name__})
        self._books.ended(job, error)
        with self._ended_one:
            self._running.pop(job.id, None)
            self._ended_one.notify()

    def _guarded(self, call: Callable[[], Any]) -> Any:
        """What RQ asks of Redis between jobs. One that is away is no reason to let go of what runs."""
        try:
            return call()
        except RedisError as exc:
            log.warning("worker.redis_away", extra={"reason": type(exc).__name__})
            time.sleep(0.5)
            return None


async def _in_time(work: Coroutine[Any, Any, None], seconds: float | None) -> None:
    async with asyncio.timeout(seconds if seconds and seconds > 0 else None):
        await work


def _on_their_way(queue: Queue) -> str:
    return str(IntermediateQueue.get_intermediate_queue_key(queue.key))


def run_worker(services: Services) -> None:
    """Work until SIGTERM or SIGINT; what is in progress is finished first. Rides out restarts of Redis."""
    process = jobs.install(services)
    process.loop.submit(services.reaper.forever())
    process.loop.submit(services.auditor.forever())
    process.loop.submit(_sweep_media(services.media))
    process.loop.submit(listen(services.redis_url, services.drain.look_up))
    worker = None
    while True:
        try:
            worker = _new_worker(services, process.loop)
            worker.work(logging_level="WARNING")
        except RedisError as exc:  # at its birth or at its good-bye
            log.warning("worker.redis_away", extra={"reason": type(exc).__name__})
        if worker is not None and worker.stopping:
            _leave(services)
            return
        time.sleep(1)


def _leave(services: Services) -> None:
    with contextlib.suppress(RedisError):  # without Redis, silence says the same
        services.reaper.presence.leave()


async def _sweep_media(media: LocalMediaStore) -> None:
    """Remove old files now and then; several workers on one folder do no harm."""
    while True:
        removed = await offload(media.sweep)
        if removed:
            log.info("media.swept", extra={"files": removed})
        await asyncio.sleep(SWEEP_SECONDS)


def _new_worker(services: Services, loop: LoopThread) -> SaysoWorker:
    limits = services.settings.workers
    return SaysoWorker(
        [QUEUE],
        perform=services.drain.run,
        loop=loop,
        capacity=Capacity(limits.concurrency, max(1, limits.concurrency // 10), limits.grace_seconds),
        on_stop=services.drain.hand_over,
        # Few retries of its own: RQ's loop and ours try again anyway, and a signal is heard in between.
        connection=Redis.from_url(services.redis_url, socket_connect_timeout=2, retry=Retry(ConstantBackoff(0.1), 2)),
        serializer=JSONSerializer,
        worker_ttl=WORKER_TTL,
        maintenance_interval=MAINTENANCE_INTERVAL,
        log_job_description=False,
    )
