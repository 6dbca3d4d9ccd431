"""SaysoWorker: an RQ worker that runs our job function and nothing else it may find in the queue."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

from redis import Redis
from redis.backoff import ConstantBackoff
from redis.exceptions import RedisError
from redis.retry import Retry
from rq import SimpleWorker
from rq.serializers import JSONSerializer

from channels.media import LocalMediaStore
from config.bootstrap import Services
from workers import jobs
from workers.offload import offload
from workers.queue import QUEUE, SaysoJob

log = logging.getLogger(__name__)

#: Seconds until a silent worker counts as gone; RQ blocks on the queue for 15 s less.
WORKER_TTL = 60
#: Seconds between two looks for old files.
SWEEP_SECONDS = 3600
#: Seconds between RQ's own clean-ups of its registries.
MAINTENANCE_INTERVAL = 60


class SaysoWorker(SimpleWorker):
    """Runs jobs in its own process, where connections and the event loop stay warm."""

    job_class = SaysoJob

    @property
    def stopping(self) -> bool:
        """Whether a signal asked this worker to stop."""
        return self._shutdown_requested_date is not None


def run_worker(services: Services) -> None:
    """Work until SIGTERM or SIGINT; the turn in progress is finished first. Rides out restarts of Redis."""
    process = jobs.install(services)
    process.loop.spawn(services.reaper.forever())
    process.loop.spawn(services.auditor.forever())
    process.loop.spawn(_sweep_media(services.media))
    worker = None
    while True:
        try:
            worker = _new_worker(services.redis_url)
            worker.work(logging_level="WARNING")
        except RedisError as exc:  # also while stopping: RQ says good-bye to Redis
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


def _new_worker(redis_url: str) -> SaysoWorker:
    return SaysoWorker(
        [QUEUE],
        # Few retries of its own: RQ's loop and ours try again anyway, and a signal is heard in between.
        connection=Redis.from_url(redis_url, socket_connect_timeout=2, retry=Retry(ConstantBackoff(0.1), 2)),
        serializer=JSONSerializer,
        worker_ttl=WORKER_TTL,
        maintenance_interval=MAINTENANCE_INTERVAL,
        log_job_description=False,
    )
