"""JobQueue: takes jobs off RQ's queue in batches, and reads them.

A job that was taken is on RQ's *intermediate queue* until JobRegistry has registered it. If the
worker dies in between, RQ finds the job there. *Urgent* jobs, such as those of people who say stop,
have a reserve of places. Any process can write to the queue, so what is no job of Sayso is dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from rq.exceptions import NoSuchJobError
from rq.intermediate_queue import IntermediateQueue
from rq.queue import Queue

from sayso.pending.stored_limits import URGENT_JOB
from sayso.workers.rq.jobs import SaysoJob

log = logging.getLogger(__name__)

_TAKE = """
-- Take jobs off RQ's queue, as its workers do, with the fields that running them needs. KEYS: the
-- queue, RQ's intermediate queue. ARGV: how many jobs may be taken, how many if the last ones are
-- urgent, the prefix of urgent ids, a job that was taken already or ''. Returns a list with the id
-- of each job and its fields data, timeout and failure_ttl.
local queue, intermediate_queue = KEYS[1], KEYS[2]
local places, places_with_reserve = tonumber(ARGV[1]), tonumber(ARGV[2])
local urgent_prefix, moved_job = ARGV[3], ARGV[4]

local taken = {}
local function add(id)
  local fields = redis.pcall('HMGET', 'rq:job:' .. id, 'data', 'timeout', 'failure_ttl')
  -- The key may hold something else than a hash.
  if fields.err then fields = {false, false, false} end
  taken[#taken + 1] = {id, fields}
end

if moved_job ~= '' then add(moved_job) end
while #taken < places_with_reserve do
  local id = redis.call('LINDEX', queue, 0)
  if not id then break end
  local is_urgent = string.sub(id, 1, #urgent_prefix) == urgent_prefix
  if #taken >= places and not is_urgent then break end
  redis.call('LMOVE', queue, intermediate_queue, 'LEFT', 'RIGHT')
  add(id)
end
return taken
"""


class JobQueue:
    """RQ's queue, as a worker takes jobs off it. Lives as long as the worker."""

    def __init__(self, queue: Queue, drop: Callable[[SaysoJob], None]) -> None:
        """`drop`: called with a job that cannot be read."""
        self._queue = queue
        self._redis = queue.connection
        self._drop = drop
        self._intermediate_key = str(IntermediateQueue.get_intermediate_queue_key(queue.key))
        self._take_script = self._redis.register_script(_TAKE)

    def wait_for_job(self, seconds: float) -> bytes | str | None:
        """Wait for a job, and move it to the intermediate queue. Return its id, None for no job.

        `take` then reads it.
        """
        return self._redis.blmove(
            self._queue.key,
            self._intermediate_key,
            seconds,  # type: ignore[arg-type]  # Redis takes fractions
            "LEFT",
            "RIGHT",
        )

    def take(
        self, places: int, places_with_reserve: int, moved: bytes | str = b""
    ) -> list[SaysoJob]:
        """Take jobs off the queue: `places` of any kind, and beyond that urgent ones.

        `moved`: the id of a job that is in the intermediate queue already, b"" for none.
        """
        keys = [self._queue.key, self._intermediate_key]
        args: list[int | str | bytes] = [places, places_with_reserve, URGENT_JOB, moved]
        jobs: list[SaysoJob] = []
        for job_id, fields in self._take_script(keys, args):
            job = self._job(job_id, fields)
            if job:
                jobs.append(job)
        return jobs

    def _job(self, job_id: bytes, fields: list[bytes | None]) -> SaysoJob | None:
        """Return a job with these fields: data, timeout and failure_ttl.

        None for what is no job, which is dropped: any process can write to the queue.
        """
        try:
            job = SaysoJob(
                job_id.decode(), connection=self._redis, serializer=self._queue.serializer
            )
        except (ValueError, TypeError):
            self._redis.lrem(self._intermediate_key, 1, job_id)  # type: ignore[arg-type]  # Redis takes bytes
            return None
        try:
            job.read(self._queue.name, *fields)
        except Exception as exc:  # noqa: BLE001  # deleted meanwhile, or no job
            if not isinstance(exc, NoSuchJobError):
                log.error("job.unreadable", extra={"job": job.id, "reason": type(exc).__name__})
            self._drop(job)
            return None
        return job
