"""The worker process: `run_worker` works until a signal.

RQ workers run in the main thread, one after the other. Their conversations and the background work
run on one event loop in a second thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import sys
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from redis.exceptions import RedisError
from rq.serializers import JSONSerializer

from sayso.infra.concurrency import call_in_thread
from sayso.infra.redis.client import connect_rq
from sayso.infra.storage.objects import StoreUnavailable
from sayso.infra.threads import LoopThread, Watchdog, set_tool_thread_limit
from sayso.pending.audit.collector import AuditCollector
from sayso.workers.data_loss.guard import DataLossGuard
from sayso.workers.data_loss.notices import LossNotices
from sayso.workers.lease import listen_for_stops
from sayso.workers.processor import ConversationProcessor
from sayso.workers.recovery import Reaper, WorkerLock
from sayso.workers.rq.jobs import new_name
from sayso.workers.rq.worker import CUT_SECONDS, WORKER_TTL, Capacity, SaysoWorker, StopFlag

log = logging.getLogger(__name__)

#: Seconds between two removals of old files.
SWEEP_SECONDS = 3600
#: Seconds between RQ's own clean-ups of its registries.
MAINTENANCE_INTERVAL = 60
#: After how many new objects Python searches for unreachable cycles. At Python's own 700 the search
#: takes a quarter of the time when a thousand turns are in progress, which are no garbage.
COLLECT_EVERY = 100_000
#: Blocks of memory of this size and more are returned to the system when they are freed.
LARGE_BLOCK_BYTES = 1024 * 1024
#: The number of that setting in glibc (`M_MMAP_THRESHOLD`).
_M_MMAP_THRESHOLD = -3


@dataclass(frozen=True, slots=True)
class WorkerServices:
    """The parts of a worker process."""

    #: The name of the queue.
    queue: str
    #: The beginning of the bot's keys in Redis.
    key_prefix: str
    redis_url: str
    #: The URL of the queue's server, `redis_url` where the queue has no server of its own.
    queue_url: str
    capacity: Capacity
    #: How many threads run sync tools.
    tool_threads: int
    processor: ConversationProcessor
    reaper: Reaper
    audit_collector: AuditCollector
    lock: WorkerLock
    #: Each removes the old files of a folder and returns how many. The key is the name that log
    #: events begin with.
    sweeps: Mapping[str, Callable[[], int]]
    #: Closes the connections of tools.
    close_tools: Callable[[], None]
    #: Closes the connections to models.
    close_models: Callable[[], Coroutine[Any, Any, None]]
    data_loss_guard: DataLossGuard
    loss_notices: LossNotices


def run_worker(services: WorkerServices, loop: LoopThread) -> None:
    """Work until SIGTERM, SIGINT or SIGHUP, and finish what is in progress first.

    `loop`: the event loop of this process, which is closed at the end. A restart of Redis does not
    end a worker.
    """
    set_tool_thread_limit(services.tool_threads)
    _return_large_blocks()
    # The objects of the process itself stay for as long as it lives, so no search looks at them.
    gc.freeze()
    gc.set_threshold(COLLECT_EVERY)

    # What runs in the background.
    watchdog = Watchdog(loop)
    watchdog.start()
    services.data_loss_guard.watch()
    services.loss_notices.watch()
    stops = listen_for_stops(
        services.redis_url, services.processor.renew_now, prefix=services.key_prefix
    )
    work = (
        services.reaper.forever(),
        services.audit_collector.forever(),
        _sweep(services.sweeps),
        stops,
    )
    background = [loop.submit(each) for each in work]
    for each in background:
        each.add_done_callback(_report_end)

    services.lock.hold()
    was_redis_there = _work_until_stopped(services, loop)

    watchdog.stop()
    for each in background:
        each.cancel()
    # Without Redis, the missing heartbeats say the same.
    if was_redis_there:
        with contextlib.suppress(RedisError):
            services.reaper.heartbeat.leave()

    # A typing sign that stays is wrong for two minutes at most.
    with contextlib.suppress(Exception):
        loop.submit(services.processor.end_typing()).result(CUT_SECONDS)

    # So that vendors see an end, and no library warns of an open connection.
    try:
        loop.submit(services.close_models()).result(CUT_SECONDS)
    except Exception as exc:  # noqa: BLE001  # a vendor's client may raise anything
        log.warning("worker.models_not_closed", extra={"reason": type(exc).__name__})
    loop.close()
    services.close_tools()

    # The lock file of a worker that still holds conversations stays: they are taken over when this
    # process has ended.
    if services.processor.is_idle:
        services.lock.leave()


def _work_until_stopped(services: WorkerServices, loop: LoopThread) -> bool:
    """Run one RQ worker after the other until a signal.

    Return whether Redis was there when the last one ended.
    """
    stop_requested = StopFlag()
    was_redis_there = False
    while not stop_requested.is_set:
        try:
            new_worker(services, loop, stop_requested).work(logging_level="WARNING")
            was_redis_there = True
        except RedisError as exc:
            # Redis was away when the worker began or ended.
            was_redis_there = False
            log.warning("worker.redis_away", extra={"reason": type(exc).__name__})
        if not stop_requested.is_set:
            time.sleep(1)
    return was_redis_there


def _report_end(future: Future[None]) -> None:
    """Log that background work has ended with an error.

    Background work handles its own errors, so its end would otherwise go unnoticed.
    """
    if future.cancelled():
        return
    error = future.exception()
    if error:
        log.error("worker.background_ended", exc_info=error)


async def _sweep(sweeps: Mapping[str, Callable[[], int]]) -> None:
    """Remove old files now and then. Several workers may sweep the same folder."""
    while True:
        for name, sweep in sweeps.items():
            try:
                removed = await call_in_thread(sweep)
            except StoreUnavailable as exc:
                # The next time will do.
                log.warning(f"{name}.not_swept", extra={"reason": exc.reason})
            except Exception:
                log.exception(f"{name}.not_swept")
            else:
                if removed:
                    log.info(f"{name}.swept", extra={"files": removed})
        await asyncio.sleep(SWEEP_SECONDS)


def new_worker(
    services: WorkerServices, loop: LoopThread, stop_requested: StopFlag | None = None
) -> SaysoWorker:
    """Return an RQ worker that runs the conversations of the queue on `loop`."""
    return SaysoWorker(
        [services.queue],
        name=new_name(services.queue),
        perform=services.processor.run,
        loop=loop,
        capacity=services.capacity,
        on_stop=services.processor.hand_over,
        stop_requested=stop_requested,
        connection=connect_rq(services.queue_url),
        serializer=JSONSerializer,
        worker_ttl=WORKER_TTL,
        maintenance_interval=MAINTENANCE_INTERVAL,
        log_job_description=False,
    )


def _return_large_blocks() -> None:
    """Have glibc return freed blocks of 1 MB and more to the system at once.

    Otherwise each thread keeps the memory that a large file took: with 40 files of 12 MB a worker
    grew by 199 MB instead of 102.
    """
    if sys.platform == "linux":
        # Another library than glibc has no such function.
        with contextlib.suppress(AttributeError):
            ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)
