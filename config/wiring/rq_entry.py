"""Jobs: the one function RQ runs for us. Its argument is a conversation's id."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from sayso.config.settings.loader import default_config, load_settings
from sayso.config.wiring.bootstrap import Services, bootstrap
from sayso.pending.concurrency import LoopThread


@dataclass(frozen=True, slots=True)
class Process:
    """What a process that runs jobs has: its services and its event loop."""

    services: Services
    loop: LoopThread


_processes: dict[int, Process] = {}


def install(services: Services) -> Process:
    """Make this process ready to run jobs. Keyed by process id: nothing of it survives a fork."""
    process = _processes[os.getpid()] = Process(services, LoopThread())
    return process


def drain(conversation: str) -> None:
    """Send the replies and answer the turns of one conversation."""
    process = _processes.get(os.getpid()) or install(_from_environment())
    process.loop.run(process.services.drain.run(conversation))


def _from_environment() -> Services:
    """Under a plain `rq worker` nobody installed anything: the environment says what to load (SAYSO_CONFIG, ...)."""
    settings = load_settings(default_config())
    data, shard = Path(os.environ.get("SAYSO_DATA", ".sayso")), os.environ.get("SAYSO_SHARD", "")
    return bootstrap(settings, data=data, is_worker=True, shard=shard)
