"""The function that RQ runs for each job. Its argument is the id of a conversation."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from sayso.config.settings.loader import default_config, load_settings
from sayso.config.wiring.bootstrap import Services, bootstrap
from sayso.pending.concurrency import LoopThread


@dataclass(frozen=True, slots=True)
class Process:
    """What a process needs to run jobs: its services and its event loop. Lives as long as the process."""

    services: Services
    loop: LoopThread


_processes: dict[int, Process] = {}


def install(services: Services) -> Process:
    """Make this process ready to run jobs. It is stored by process id: a forked process needs its own."""
    process = _processes[os.getpid()] = Process(services, LoopThread())
    return process


def drain(conversation: str) -> None:
    """Send the replies and answer the turns of one conversation."""
    process = _processes.get(os.getpid()) or install(_from_environment())
    process.loop.run(process.services.drain.run(conversation))


def _from_environment() -> Services:
    """Build the services of a plain `rq worker`, which calls no `install`, from the SAYSO_ variables."""
    settings = load_settings(default_config())
    data, shard = Path(os.environ.get("SAYSO_DATA", ".sayso")), os.environ.get("SAYSO_SHARD", "")
    return bootstrap(settings, data=data, is_worker=True, shard=shard)
