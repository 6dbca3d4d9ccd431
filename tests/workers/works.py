"""A SaysoWorker that runs in a test, jobs that last until the test ends them, and RQ's view of both."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from redis import Redis
from rq import Queue
from rq.job import Job
from rq.serializers import JSONSerializer

from sayso.infra.threads import LoopThread
from sayso.workers.rq.jobs import PROCESS_CONVERSATION, QUEUE
from sayso.workers.rq.worker import Capacity, SaysoWorker
from tests.flows.system import until


def chat(number: int) -> str:
    """Return the id of a conversation."""
    return f"chat:{number:020x}"


class Turns:
    """The function that a worker runs: each conversation lasts until the test ends it."""

    def __init__(self, loop: LoopThread) -> None:
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.cut: list[str] = []
        self.most = 0
        self._doors: dict[str, asyncio.Event] = {}
        self._all_open = threading.Event()
        self._loop = loop

    async def __call__(self, conversation: str) -> None:
        """Wait for the end; note how the job ended."""
        door = self._doors[conversation] = asyncio.Event()
        self.begun.append(conversation)
        self.most = max(self.most, len(self.begun) - len(self.ended) - len(self.cut))
        try:
            if not self._all_open.is_set():
                await door.wait()
        except asyncio.CancelledError:
            self.cut.append(conversation)
            raise
        self.ended.append(conversation)

    def open(self, *conversations: str) -> None:
        """End these conversations; without arguments, all present and later ones."""
        if not conversations:
            self._all_open.set()
        for conversation in conversations or list(self._doors):
            self._loop._loop.call_soon_threadsafe(self._doors[conversation].set)

    def until_begun(self, *conversations: str) -> None:
        """Wait until exactly these have started."""
        until(lambda: len(self.begun) >= len(conversations))
        assert sorted(self.begun) == sorted(conversations), self.begun


def make_worker(redis_url: str, loop: LoopThread, perform, **options) -> SaysoWorker:
    """Return a worker as `run_worker` makes it; `concurrency`, `reserve` and `grace_seconds` set its capacity."""
    capacity = {"concurrency": 10, "reserve": 0, "grace_seconds": 20.0}
    capacity |= {name: options.pop(name) for name in list(options) if name in capacity}
    return SaysoWorker(
        [QUEUE],
        perform=perform,
        loop=loop,
        capacity=Capacity(**capacity),
        connection=Redis.from_url(redis_url),
        serializer=JSONSerializer,
        worker_ttl=60,
        **options,
    )


def enqueue(client: Redis, number: int, *, job_id: str = "", **options) -> Job:
    """Put a wake-up on our queue."""
    queue = Queue(QUEUE, connection=client, serializer=JSONSerializer)
    return queue.enqueue(
        PROCESS_CONVERSATION,
        chat(number),
        job_id=job_id or f"process-{number}",
        result_ttl=0,
        **options,
    )


def work_while(worker: SaysoWorker, story: Callable[[], None]) -> None:
    """Work in this thread, where signals are, while the story runs in another one. At its end the worker is told to
    stop, if it was not yet.
    """

    def tell() -> None:
        try:
            until(lambda: signal.getsignal(signal.SIGTERM) == worker.request_stop)
            story()
        finally:
            if not worker.stopping:
                os.kill(os.getpid(), signal.SIGTERM)

    with ThreadPoolExecutor(1) as pool:
        told = pool.submit(tell)
        worker.work(logging_level="CRITICAL")
        told.result()


def left_behind(client: Redis) -> set[str]:
    """Return RQ's keys that should not outlive the jobs."""
    kept = ("rq:worker", "rq:queues", "rq:clean_registries", "rq:clean_groups")
    return {key.decode() for key in client.scan_iter("rq:*") if not key.decode().startswith(kept)}
