"""The function that RQ runs in a worker, and the services of the worker process."""

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
    """What a process needs to run jobs: its services and its event loop.

    Lives as long as the process.
    """

    services: Services
    loop: LoopThread


_processes: dict[int, Process] = {}


def install(services: Services) -> Process:
    """Make this process ready to run jobs.

    It is stored by process id: a forked process needs its own.
    """
    process = _processes[os.getpid()] = Process(services, LoopThread())
    return process


def process_conversation(conversation: str) -> None:
    """Send the replies and answer the turns of one conversation.

    Under a plain `rq worker` no process was installed: the environment says what
    to load (SAYSO_CONFIG, SAYSO_DATA).
    """
    process = _processes.get(os.getpid()) or install(_from_environment())
    job = get_current_job()

    async def work() -> None:
        with context_field("log_fields", {"job": job.id} if job else call_context().log_fields):
            await process.services.processor.run(conversation)

    process.loop.run(work())


def _from_environment() -> Services:
    settings = load_settings(default_config())
    return bootstrap(settings, data=Path(os.environ.get("SAYSO_DATA", ".sayso")), is_worker=True)


def worker_services(services: Services) -> WorkerServices:
    """Return the parts of a process that `run_worker` needs."""
    limits = services.settings.workers
    return WorkerServices(
        queue=services.settings.queue,
        key_prefix=services.settings.key_prefix,
        redis_url=services.redis_url,
        queue_url=services.queue_url,
        capacity=Capacity(
            limits.concurrency, max(1, limits.concurrency // 10), limits.grace_seconds
        ),
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
