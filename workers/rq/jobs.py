"""Queue: the RQ queue that wakes workers. Its jobs carry a conversation's id and nothing else."""

from __future__ import annotations

import json
import re
import secrets
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain
from typing import Any

from redis import Redis
from rq import Queue
from rq.exceptions import NoSuchJobError
from rq.job import Job, JobStatus
from rq.serializers import JSONSerializer
from rq.suspension import is_suspended as rq_is_suspended
from rq.utils import now

#: The RQ queue of wake-ups.
QUEUE = "sayso"
#: The one function our workers run.
DRAIN = "sayso.config.wiring.rq_entry.drain"
#: What the ids of urgent jobs begin with: they are put at the front of the queue, and may take a worker's last places.
FIRST = "first-"
#: Seconds after which RQ gives a drain up; a turn has its own, shorter limit.
JOB_TIMEOUT = 600

#: What RQ's data begins with; JSON never does.
_COMPRESSED = b"x"
_CONVERSATION = re.compile(r"[A-Za-z0-9_.-]{1,64}:[0-9a-f]{20}")


class ForbiddenJob(Exception):
    """Raised when the queue holds a job that we did not put there."""


class SaysoJob(Job):
    """A job that can only be ours: the drain function, one conversation id, no callbacks, no web hooks.

    Whoever can write to Redis can name any function in a job, so JSON alone is no defence.
    """

    def read(self, origin: str, data: bytes | None, timeout: bytes | None, failure_ttl: bytes | None) -> None:
        """Take what running it needs; RQ's `restore` reads dates and much else, and takes as long as a turn's script.

        Raises NoSuchJobError without data, and ValueError, TypeError or zlib.error for what is none.
        """
        if not data:
            raise NoSuchJobError(f"job {self.id!r} has no data")
        self.origin = origin
        self.data = zlib.decompress(data) if data[:1] == _COMPRESSED else data
        self.timeout = int(timeout) if timeout else None
        self.failure_ttl = int(failure_ttl) if failure_ttl else None

    @property
    def conversation(self) -> str:
        """The conversation to drain. Raises ForbiddenJob for any other function or for arguments that are no ids."""
        ours = self.func_name == DRAIN and self.instance is None and not self.kwargs
        args = self.args if isinstance(self.args, list | tuple) else ()
        if not ours or len(args) != 1 or not _CONVERSATION.fullmatch(str(args[0])):
            raise ForbiddenJob(f"job {self.id!r} is not a wake-up of ours: refused")
        return str(args[0])

    @property
    def func(self) -> Any:
        """The drain function. Raises ForbiddenJob where `conversation` does."""
        return super().func if self.conversation else None

    @property
    def success_callback(self) -> None:
        """No callback, whatever the hash names."""
        return

    @property
    def failure_callback(self) -> None:
        """No callback, whatever the hash names."""
        return

    @property
    def stopped_callback(self) -> None:
        """No callback, whatever the hash names."""
        return

    def send_webhooks(self, *_: Any, **__: Any) -> None:
        """No web hooks, whatever the hash names."""


def is_suspended(connection: Redis) -> bool:
    """Return whether `rq suspend` keeps all workers of this Redis from taking jobs. Raises redis.RedisError."""
    return bool(rq_is_suspended(connection))


class WakeUps:
    """Makes the RQ job that drains a conversation, as RQ itself would write it, for the accept script to store.

    RQ writes one job when this is made. What differs from job to job is put in by hand: RQ takes longer over a job than
    everything else takes over a webhook.
    """

    def __init__(self, connection: Redis, name: str = QUEUE) -> None:
        #: What job keys begin with, and queue key: what `Reaper` finds jobs by.
        self.queue = (Job.redis_job_namespace_prefix, Queue(name, connection=connection).key)
        job = make_job(connection, "drain", "", name)
        self._fields: dict[str, Any] = job.to_dict(include_meta=False)
        self._call = job.data.partition(b'""')

    def __call__(self, conversation: str) -> Sequence[str | bytes | int | float]:
        """What job keys begin with, queue key, key of RQ's set of queues, job id, then the job's hash by fields."""
        job_id, at = f"drain-{secrets.token_hex(8)}", _rq_time()
        before, _, after = self._call
        fields = self._fields | {
            "created_at": at,
            "data": _as_zlib(before + json.dumps(conversation).encode() + after),
            "description": f"drain {conversation}",
            "enqueued_at": at,
        }
        return [*self.queue, Queue.redis_queues_keys, job_id, *_flat(fields)]


def _rq_time() -> str:
    """Now, as RQ's `utcformat` writes it with strftime, at ten times the cost."""
    return datetime.now(UTC).isoformat(timespec="microseconds")[:-6] + "Z"


def _as_zlib(data: bytes) -> bytes:
    """What zlib reads as this data, fewer than 64 KB: one block as it is. Compressing begins with 256 KB of memory."""
    size = len(data)
    return b"\x78\x01\x01" + struct.pack("<HH", size, size ^ 0xFFFF) + data + struct.pack(">I", zlib.adler32(data))


def _flat(fields: Mapping[str, Any]) -> Iterable[Any]:
    return chain.from_iterable(fields.items())


def make_job(connection: Redis, job_id: str, conversation: str, queue: str = QUEUE) -> Job:
    """The job that drains a conversation, made by RQ and not stored."""
    job: Job = SaysoJob.create(
        DRAIN,
        args=(conversation,),
        id=job_id,
        connection=connection,
        serializer=JSONSerializer,
        timeout=JOB_TIMEOUT,
        result_ttl=0,
        failure_ttl=24 * 3600,
        description=f"drain {conversation}",
        origin=queue,
        status=JobStatus.QUEUED,
    )
    job.enqueued_at = now()
    return job
