"""The RQ queue that wakes workers. Its jobs carry a conversation's id and nothing else.

`SaysoJob` is a job as a worker reads it, `WakeUps` makes jobs as scripts store them, and
`QueueServer` is the queue on a server of its own. What a conversation has to do stands in the
conversation: a job that is lost loses no work.
"""

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
#: After how many seconds a worker cancels a job (`running_jobs.py`). Each turn that the job answers
#: has a limit too, `turn_timeout` of the YAML.
JOB_TIMEOUT = 600
#: The first byte of RQ's compressed data; JSON never begins with it.
_COMPRESSED = b"x"
#: The id of a conversation: its channel and a digest.
_CONVERSATION = re.compile(r"[A-Za-z0-9_.-]{1,64}:[0-9a-f]{20}")


class ForbiddenJob(Exception):
    """Raised when the queue holds a job that Sayso did not create."""


class SaysoJob(Job):
    """A job that runs one function of Sayso for one conversation, without callbacks and webhooks.

    A process that can write to Redis can put a job with any function into the queue. Such a job is
    refused when its conversation or its function is asked for.
    """

    def read(
        self, origin: str, data: bytes | None, timeout: bytes | None, failure_ttl: bytes | None
    ) -> None:
        """Read the fields that running the job needs, as they are in the job's hash.

        RQ's `restore` reads all fields, which takes as long as one of the Lua scripts that a turn
        needs. `origin`: the name of the queue. `timeout`: seconds after which the worker cancels
        the job. `failure_ttl`: seconds for which RQ keeps the job if it fails. Raises
        NoSuchJobError for a job without data, and ValueError, TypeError or zlib.error for invalid
        data.
        """
        if not data:
            raise NoSuchJobError(f"job {self.id!r} has no data")
        if data[:1] == _COMPRESSED:
            data = zlib.decompress(data)
        self.data = data
        self.origin = origin

        self.timeout = None
        if timeout:
            self.timeout = int(timeout)
        self.failure_ttl = None
        if failure_ttl:
            self.failure_ttl = int(failure_ttl)

    @property
    def conversation(self) -> str:
        """Return the conversation to process.

        Raises ForbiddenJob for any other function or argument, and rq.exceptions'
        DeserializationError for data that is not JSON.
        """
        is_own = (
            self.func_name == PROCESS_CONVERSATION and self.instance is None and not self.kwargs
        )
        args: Sequence[Any] = ()
        if isinstance(self.args, list | tuple):
            args = self.args
        if not is_own or len(args) != 1 or not _CONVERSATION.fullmatch(str(args[0])):
            raise ForbiddenJob(f"job {self.id!r} is not a wake-up of ours: refused")
        return str(args[0])

    @property
    def func(self) -> Any:
        """Return the function that RQ runs. Raises what `conversation` raises."""
        _ = self.conversation  # reading it checks the job
        return super().func

    #: RQ runs no callback, whatever the job's hash names.
    success_callback = None
    failure_callback = None
    stopped_callback = None

    def send_webhooks(self, *_: Any, **__: Any) -> None:
        """Send no webhook, whatever the job's hash names."""


def new_name(queue: str) -> str:
    """Return a new name for a job or a worker of a queue.

    It begins with the name of the queue, so that a login can be limited to the keys of one bot.
    """
    return f"{queue}-{random_id(8)}"


def is_suspended(queue_client: Redis) -> bool:
    """Return whether `rq suspend` keeps all workers from taking jobs.

    `queue_client` is a client of the queue's server, which may be another than that of the
    conversations. Raises redis.RedisError.
    """
    return bool(rq_is_suspended(queue_client))


def waiting_jobs(queue_client: Redis, name: str) -> tuple[int, float | None]:
    """Return how many jobs wait in the queue of a name, and when the first one was queued.

    `queue_client` is one of the queue's server, as in `is_suspended`, and decodes answers to text.
    The time is in Unix seconds, None if it is unknown. Raises redis.RedisError.
    """
    key = Queue(name, connection=queue_client).key
    count = int(queue_client.llen(key))
    first = queue_client.lindex(key, 0)
    if not first:
        return count, None

    at = queue_client.hget(f"{Job.redis_job_namespace_prefix}{first!s}", "enqueued_at")
    try:
        return count, datetime.fromisoformat(str(at)).timestamp()
    except ValueError:
        # The job has no time, or is that of another program.
        return count, None


class WakeUps:
    """A factory of the RQ jobs that wake workers, as RQ would write them, for scripts to store.

    RQ itself takes longer to create a job than everything else takes for a webhook. So RQ creates
    one job when this object is created, the template, and each job is a copy of it with other
    values. One per process.
    """

    def __init__(self, connection: Redis, name: str = QUEUE, *, prefix: str = PREFIX) -> None:
        """`name`: of the queue. `prefix`: of the bot's own keys."""
        #: Prefix of job keys, and queue key: `Reaper` (`workers/recovery.py`) finds jobs by them.
        self.queue = {
            "job_keys": Job.redis_job_namespace_prefix,
            "queue": Queue(name, connection=connection).key,
        }
        self._queue_name = name
        #: What `workers/lua/shared/queue.lua` needs of the queue: the keys above, RQ's set of all
        #: queues, and the number of jobs so far, which gives each job its number.
        self._names = {**self.queue, "queues": Queue.redis_queues_keys, "jobs": f"{prefix}jobs"}
        # The template is not stored, and its id is in no copy.
        template = make_job(connection, "template", "", name)
        self._fields: dict[str, Any] = template.to_dict(include_meta=False)
        #: The job's data before and after the conversation, which is "" in the template.
        self._data_before, _, self._data_after = template.data.partition(b'""')

    def __call__(self, conversation: str) -> WakeUpJob:
        """Return a new job for a conversation. It wakes no worker before a script stores it."""
        # RQ's `utcformat` writes the same with strftime, at ten times the cost.
        at = datetime.now(UTC).isoformat(timespec="microseconds")[:-6] + "Z"
        fields = self._fields | {
            "created_at": at,
            # RQ reads data without compression too, which takes longer than all the rest.
            "data": self._data_before + json.dumps(conversation).encode() + self._data_after,
            "description": f"process {conversation}",
            "enqueued_at": at,
        }
        job = new_name(self._queue_name)
        return WakeUpJob(self._names | {"job": job}, tuple(chain.from_iterable(fields.items())))


class QueueServer:
    """The queue of wake-ups on a server of its own. One per process.

    A job is queued there in a second step, after the script that stored the work. If the server is
    away, or loses its data, no work is lost: the conversation is due, and `Reaper` wakes it when
    the server is back.
    """

    def __init__(self, client: Redis, new_job: WakeUps, *, prefix: str = PREFIX) -> None:
        """`client`: of the queue's server. `prefix`: of the bot's own keys."""
        self._scripts = ShardedScripts(client, QUEUE_SCRIPTS, prefix=prefix)
        self._new_job = new_job
        self._is_away = False

    async def wake(self, conversation: str, urgent: bool) -> None:
        """Queue the job of a conversation, unless one is there. `urgent`: at the front.

        The script `workers/rq/lua/enqueue.lua` looks whether one is there. Raises nothing: if the
        server is away, that is logged once.
        """
        job = self._new_job(conversation)
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
        args = {**self._new_job.queue, "conversations": conversations}
        with_job: list[str] = self._scripts.on_shard("queued", shard, args)
        return with_job


def make_job(connection: Redis, job_id: str, conversation: str, queue: str = QUEUE) -> Job:
    """Return a job that processes a conversation, created by RQ and not stored."""
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
