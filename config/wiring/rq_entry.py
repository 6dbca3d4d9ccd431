"""The function that RQ runs in a worker, and the services of the worker process.

RQ stores a job as the name of a function and its arguments. That function is
`process_conversation`: its path must not change while jobs wait in a queue.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from rq import get_current_job

from sayso.config.settings.loader import default_config, load_settings
from sayso.config.wiring.bootstrap import Services, bootstrap
from sayso.infra.threads import LoopThread
from sayso.pending.call_context import call_context, context_field
from sayso.workers.rq.process import WorkerServices
from sayso.workers.rq.worker import Capacity


@dataclass(frozen=True, slots=True)
class Process:
    """What a worker process needs to run jobs. Lives as long as the process."""

    services: Services
    #: The event loop on which all jobs of the process run, in a separate thread.
    loop: LoopThread


#: What this process uses, by its process id. A process that was forked after `install` finds
#: nothing under its own id: connections and threads of its parent cannot be used in it.
_processes: dict[int, Process] = {}


def install(services: Services) -> Process:
    """Let `process_conversation` use these services in this process, and start its event loop.

    Return both.
    """
    process = Process(services, LoopThread())
    _processes[os.getpid()] = process
    return process


def process_conversation(conversation: str) -> None:
    """Send the replies and answer the turns of one conversation. RQ calls this in a worker.

    `conversation` is its id, such as `web:0123456789abcdef0123`. Returns when its work is done.
    """
    process = _processes.get(os.getpid())
    # Not installed under a plain `rq worker`. The environment says then what to load.
    if process is None:
        process = install(_from_environment())

    # All log lines of the job have its id.
    log_fields = call_context().log_fields
    job = get_current_job()
    if job:
        log_fields = {"job": job.id}

    async def work() -> None:
        with context_field("log_fields", log_fields):
            await process.services.processor.run(conversation)

    process.loop.run(work())


def _from_environment() -> Services:
    """Return the services of the configuration that SAYSO_CONFIG and SAYSO_DATA name."""
    settings = load_settings(default_config())
    return bootstrap(settings, data=Path(os.environ.get("SAYSO_DATA", ".sayso")), is_worker=True)


def worker_services(services: Services) -> WorkerServices:
    """Return the parts of a process that `run_worker` needs."""
    limits = services.settings.workers
    capacity = Capacity(limits.concurrency, max(1, limits.concurrency // 10), limits.grace_seconds)
    return WorkerServices(
        queue=services.settings.queue,
        key_prefix=services.settings.key_prefix,
        redis_url=services.redis_url,
        queue_url=services.queue_url,
        capacity=capacity,
        tool_threads=limits.tool_threads,
        processor=services.processor,
        reaper=services.reaper,
        audit_collector=services.audit_collector,
        lock=services.worker_lock,
        sweeps=services.sweeps,
        close_tools=services.tools.close,
        close_models=services.agent_deps.aclose,
        data_loss_guard=services.data_loss_guard,
        loss_notices=services.loss_notices,
    )
