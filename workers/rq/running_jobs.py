"""RunningJobs: the jobs that a worker runs at once, each a coroutine on its event loop.

The worker's main thread starts and stops jobs, and the event loop ends them.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future, wait
from functools import partial
from typing import Any

from sayso.infra.threads import LoopThread
from sayso.pending.call_context import context_field
from sayso.workers.rq.job_registry import JobRegistry, Stopped
from sayso.workers.rq.jobs import SaysoJob

log = logging.getLogger(__name__)

#: Seconds between two looks for urgent jobs while only their places are free.
FULL_SECONDS = 0.05


class RunningJobs:
    """Starts jobs, and stops and ends them. Lives as long as the worker."""

    def __init__(
        self,
        perform: Callable[[str], Coroutine[Any, Any, None]],
        loop: LoopThread,
        registry: JobRegistry,
    ) -> None:
        """`perform`: what a job does, for the conversation of the job."""
        self._perform = perform
        self._loop = loop
        self._registry = registry
        #: The work of each job, by the job's id. Guarded by `_job_ended`.
        self._futures: dict[str, Future[None]] = {}
        #: Notified when a job has ended.
        self._job_ended = threading.Condition()
        #: The ids of jobs that RQ was told to stop, until they have ended.
        self._stopped: set[str] = set()

    def __len__(self) -> int:
        """Return how many jobs run."""
        return len(self._futures)

    def free_places(self, most: int, *, waits: bool) -> int:
        """Return how many of `most` places are free. Less than 0 while urgent jobs have more.

        If no place is free, and also with `waits`, first wait FULL_SECONDS for the end of a job.
        """
        with self._job_ended:
            if len(self._futures) >= most or waits:
                self._job_ended.wait(FULL_SECONDS)
            return most - len(self._futures)

    def start(self, job: SaysoJob) -> None:
        """Start the work of a job on the event loop, or refuse the job."""
        # The job was in the queue twice: one run is enough.
        if job.id in self._futures:
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
        self._futures[job.id] = future
        future.add_done_callback(partial(self._ended, job))

    def stop(self, job_id: str) -> None:
        """Cancel a job, if it runs. RQ then lists it among the stopped ones."""
        running = self._futures.get(job_id)
        if running is None:
            return

        # The mark is set first: it tells the end of the job that it was stopped on request.
        self._stopped.add(job_id)
        has_just_ended = not running.cancel()
        if has_just_ended:
            self._stopped.discard(job_id)

    def end_all(self, grace_seconds: float, cut_seconds: float) -> None:
        """Let all jobs end, and cancel those that still run after the grace period.

        Cancelled jobs have `cut_seconds` to release their leases. They have not failed.
        """
        _, late = wait(list(self._futures.values()), timeout=grace_seconds)
        for future in late:
            future.cancel()
        if late:
            log.warning("worker.cut_off", extra={"jobs": len(late)})
            wait(late, timeout=cut_seconds)

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
            self._futures.pop(job.id, None)
            self._stopped.discard(job.id)
            self._job_ended.notify()


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
