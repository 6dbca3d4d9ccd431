"""WakeUpJob: the RQ job that wakes a worker for a conversation, as the Lua scripts store it.

A script that stores work for a conversation queues its job in the same step, so no work waits
without a job. Where the queue has a server of its own, the job is queued there right after the
script.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

from sayso.infra.redis.scripts import Payload


class WakeUpJob(NamedTuple):
    """The RQ job that wakes a worker. Empty: no job, as in tests and programs of one process."""

    #: The named arguments of `workers/lua/shared/queue.lua`: keys of the queue, and the job's id.
    names: Mapping[str, str] = {}
    #: The job's hash as RQ would write it: names and values in turn.
    fields: Sequence[Payload] = ()


#: Returns the job that wakes a worker for a conversation, by the conversation's id.
WakeUp = Callable[[str], WakeUpJob]
NO_JOB = WakeUpJob()
#: Wakes a worker for a conversation, urgently or not, where the queue has a server of its own.
#: It raises nothing.
WakeStep = Callable[[str, bool], Awaitable[None]]


def no_wake_up(_: str) -> WakeUpJob:
    """Return no job: the worker is woken in another way."""
    return NO_JOB
