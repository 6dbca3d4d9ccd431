"""The RQ queue that wakes workers. Its jobs carry a conversation's id and nothing else."""

from __future__ import annotations

import json
import logging
import re
import zlib
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import chain
from typing import Any

from redis import Redis
from redis.exceptions import RedisError
from rq import Queue
from rq.exceptions import NoSuchJobError
from rq.job import Job, JobStatus
from rq.serializers import JSONSerializer
from rq.suspension import is_suspended as rq_is_suspended
from rq.utils import now

from sayso.infra.ids import random_id
from sayso.infra.redis.client import PREFIX
from sayso.pending.sharded_scripts import ShardedScripts
from sayso.workers.scripts import QUEUE_SCRIPTS
from sayso.workers.wake_ups import WakeUpJob

log = logging.getLogger(__name__)

#: The RQ queue of wake-ups.
QUEUE = "sayso"
#: The one function that our workers run.
PROCESS_CONVERSATION = "sayso.config.wiring.rq_entry.process_conversation"
#: Seconds after which RQ cancels a job; a turn has its own, shorter limit.
JOB_TIMEOUT = 600
#: The first byte of RQ's compressed data; JSON never begins with it.
_COMPRESSED = b"x"
_CONVERSATION = re.compile(r"[A-Za-z0-9_.-]{1,64}:[0-9a-f]{20}")


class ForbiddenJob(Exception):
    """Raised when the queue holds a job that Sayso did not create."""


class SaysoJob(Job):
    """A job that Sayso created: its one function, one conversation id, no callbacks, no webhooks.

    A process that can write to Redis can name any function in a job, so JSON alone is no defense.
    """

    def read(
        self, origin: str, data: bytes | None, timeout: bytes | None, failure_ttl: bytes | None
    ) -> None:
        """Read the fields that running the job needs.

        RQ's `restore` takes as long as a turn's script.

        Raises NoSuchJobError without data, and ValueError,
        TypeError or zlib.error for invalid data.
        """
        if not data:
            raise NoSuchJobError(f"job {self.id!r} has no data")
        self.origin = origin
        if data[:1] == _COMPRESSED:
            self.data = zlib.decompress(data)
        else:
            self.data = data
        self.timeout = int(timeout) if timeout else None
        self.failure_ttl = int(failure_ttl) if failure_ttl else None

    @property
    def conversation(self) -> str:
        """Return the conversation to process.

        Raises ForbiddenJob for any other function or argument.
        """
        ours = self.func_name == PROCESS_CONVERSATION and self.instance is None and not self.kwargs
        if isinstance(self.args, list | tuple):
            args = self.args
        else:
            args = ()
        if not ours or len(args) != 1 or not _CONVERSATION.fullmatch(str(args[0])):
            raise ForbiddenJob(f"job {self.id!r} is not a wake-up of ours: refused")
        return str(args[0])

    @property
    def func(self) -> Any:
        """Return the function. Raises ForbiddenJob as `conversation` does."""
        return super().func if self.conversation else None

    #: None, whatever the job's hash names.
    success_callback = failure_callback = stopped_callback = None

    def send_webhooks(self, *_: Any, **__: Any) -> None:
        """Send none, whatever the job's hash names."""


def new_name(queue: str) -> str:
    """Return a new name for a job or a worker of a queue:
    a login may then be limited to the keys of one bot.
    """
    return f"{queue}-{random_id(8)}"


def is_suspended(connection: Redis) -> bool:
    """Return whether `rq suspend` keeps all workers of this Redis from taking jobs.

    Raises redis.RedisError.
    """
    return bool(rq_is_suspended(connection))


def waiting_jobs(connection: Redis, queue: str) -> tuple[int, float | None]:
    """Return how many jobs wait in a queue, and when its first one was queued, in Unix seconds;
    None if unknown.

    Raises redis.RedisError.
    """
    key = Queue(queue, connection=connection).key
    count = int(connection.llen(key))
    first = connection.lindex(key, 0)
    if first:
        at = connection.hget(f"{Job.redis_job_namespace_prefix}{first!s}", "enqueued_at")
    else:
        at = None
    try:
        return count, datetime.fromisoformat(str(at)).timestamp() if at else None
    except ValueError:  # another program's
        return count, None


class WakeUps:
    """Creates the RQ job that processes a conversation, as RQ would write it,
    for the accept script to store.

    RQ writes one job when this object is created, and each job is a copy with other values: RQ
    takes longer for a job than everything else takes for a webhook.
    """

    def __init__(self, connection: Redis, name: str = QUEUE, *, prefix: str = PREFIX) -> None:
        #: Prefix of job keys, and queue key: `Reaper` finds jobs by them.
        self.queue = {
            "job_keys": Job.redis_job_namespace_prefix,
            "queue": Queue(name, connection=connection).key,
        }
        self._queue = name
        self._names = {**self.queue, "queues": Queue.redis_queues_keys, "jobs": f"{prefix}jobs"}
        job = make_job(connection, "process", "", name)
        self._fields: dict[str, Any] = job.to_dict(include_meta=False)
        self._call = job.data.partition(b'""')

    def __call__(self, conversation: str) -> WakeUpJob:
        """Return the job of a conversation."""
        # RQ's `utcformat` writes the same with strftime, at ten times the cost.
        at = datetime.now(UTC).isoformat(timespec="microseconds")[:-6] + "Z"
        before, _, after = self._call
        fields = self._fields | {
            "created_at": at,
            # RQ reads data without compression too, which takes longer than all the rest.
            "data": before + json.dumps(conversation).encode() + after,
            "description": f"process {conversation}",
            "enqueued_at": at,
        }
        job = new_name(self._queue)
        return WakeUpJob(self._names | {"job": job}, tuple(chain.from_iterable(fields.items())))


class QueueServer:
    """The queue of wake-ups on a server of its own. One per process.

    A wake-up is a second step there, after the script that stored the work. If the server is away,
    or loses its data, no work is lost: the conversation is due, and `Reaper` wakes it when the
    server is back.
    """

    def __init__(self, client: Redis, wake_up: WakeUps, *, prefix: str = PREFIX) -> None:
        self._scripts = ShardedScripts(client, QUEUE_SCRIPTS, prefix=prefix)
        self._wake_up = wake_up
        self._is_away = False

    async def wake(self, conversation: str, urgent: bool) -> None:
        """Queue the job of a conversation, unless one is there.

        If the server is away, say so once, in the log.
        """
        job = self._wake_up(conversation)
        try:
            await self._scripts.arun(
                "enqueue", conversation, {**job.names, "urgent": urgent}, *job.fields
            )
        except RedisError as exc:
            if not self._is_away:
                log.warning("queue.away", extra={"reason": type(exc).__name__})
            self._is_away = True
        else:
            if self._is_away:
                log.info("queue.back")
            self._is_away = False

    def queued(self, shard: int, conversations: Sequence[str]) -> list[str]:
        """Return those conversations of a shard whose job is in the queue.

        Raises redis.RedisError.
        """
        args = {**self._wake_up.queue, "conversations": conversations}
        found: list[str] = self._scripts.on_shard("queued", shard, args)
        return found


def make_job(connection: Redis, job_id: str, conversation: str, queue: str = QUEUE) -> Job:
    """Return the job that processes a conversation, created by RQ and not stored."""
    job: Job = SaysoJob.create(
        PROCESS_CONVERSATION,
        args=(conversation,),
        id=job_id,
        connection=connection,
        serializer=JSONSerializer,
        timeout=JOB_TIMEOUT,
        result_ttl=0,
        failure_ttl=24 * 3600,
        description=f"process {conversation}",
        origin=queue,
        status=JobStatus.QUEUED,
    )
    job.enqueued_at = now()
    return job
