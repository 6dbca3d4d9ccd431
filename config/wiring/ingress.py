"""Where turns come in: wires the Ingress, the pollers and the recovery of missed messages."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Sequence
from typing import Protocol

from redis.exceptions import RedisError

from sayso.channels.registry import load, platform_of
from sayso.channels.types import Turn
from sayso.channels.web.ingress import Ingress
from sayso.config.settings.channels import AnyChannel
from sayso.config.settings.schema import Settings
from sayso.config.wiring.bootstrap import Services, check_redis
from sayso.pending.action import split_button_token
from sayso.workers.access import AccessControl, Ignored, UnknownSender
from sayso.workers.mailbox import SEEN_MS
from sayso.workers.redis.leader_lock import LeaderLock

log = logging.getLogger(__name__)


def ingress_of(services: Services) -> Ingress:
    """Return what stores turns: in the spool where one is configured, else in Redis."""
    return Ingress(
        services.spool or services.access_control,
        deliveries=services.deliveries,
        alerts=services.alerts,
        action_of=_action_of,
    )


def _action_of(button_data: str) -> str:
    parts = split_button_token(button_data)
    return parts[0] if parts else ""


def start_watching(services: Services) -> None:
    """Start the threads that watch Redis for lost data and empty the spool. Call it after the process has forked."""
    if services.data_loss_guard:
        services.data_loss_guard.watch()
    if services.spool:
        services.spool.watch()


def check_redis_if_reachable(services: Services) -> None:
    """Check Redis as `check_redis` does, but start while it is away: platforms repeat what is not stored.

    Raises RedisUnfit.
    """
    try:
        check_redis(services)
    except RedisError as exc:
        log.warning("redis.away", extra={"reason": type(exc).__name__})


def polled_channels(settings: Settings) -> list[str]:
    """Return the names of the channels whose platform is polled."""
    return [name for name, channel in settings.channels.items() if channel.polls]


def poll(services: Services) -> None:
    """Poll for all channels that are polled, until SIGTERM or SIGINT."""
    start_watching(services)
    ingress, settings = ingress_of(services), services.settings
    pollers = []
    for name in polled_channels(settings):
        channel = settings.channels[name]
        factory = platform_of(channel).poller
        if factory is None:
            raise LookupError(f"platform {channel.platform!r} has no poller: its settings must not say that it polls")
        lock = LeaderLock(services.redis, poll_lock(channel), prefix=settings.key_prefix)
        pollers.append(load(factory)(services.channels[name], ingress, lock))
    asyncio.run(run_pollers(pollers))


def poll_lock(channel: AnyChannel) -> str:
    """Return the name of the leader lock of a polled account."""
    return f"poll:{channel.account_id}"


class RunsForever(Protocol):
    """Polls a platform for one channel."""

    async def run(self) -> None:
        """Poll until cancelled, or until the platform does not know the account any more."""


async def run_pollers(pollers: Sequence[RunsForever]) -> None:
    """Run all pollers until SIGTERM or SIGINT. One that ends does not stop the others.

    One that fails with a defect stops all of them, so that the process is started anew.
    """
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(poller.run()) for poller in pollers]
        await stopping.wait()
        for task in tasks:
            task.cancel()


class Recovery:
    """Takes turns that no webhook brought. A RecoveryInbox over access control and mailbox."""

    remembered_seconds = SEEN_MS / 1000

    def __init__(self, access: AccessControl) -> None:
        self._access = access

    def stage(self, turn: Turn) -> str:
        """Return "waits" or "done", or "unknown" for a turn that never came in or is forgotten."""
        return self._access.turn_status(turn)

    def why_not(self, turn: Turn) -> str:
        """Return why the channel's access rules do not let the sender in, "" if they do."""
        match self._access.judge(turn):
            case Ignored(reason):
                return reason
            case UnknownSender():
                return "on no list of who may talk"
        return ""

    def accept(self, turn: Turn, *, waited_seconds: float) -> str:
        """Store a turn that was written so many seconds ago. Return "new", "duplicate" or why it was refused."""
        return self._access.accept(turn, waited_seconds=waited_seconds).outcome
