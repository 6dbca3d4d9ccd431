"""Where turns come in: webhooks, polling, and messages that a platform could not deliver.

The web process and the poller start their background threads here. A command recovers messages that
no webhook brought from the platform's log, and deletes files there.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

from redis.exceptions import RedisError

from sayso.channels.base import StoreReceived
from sayso.channels.registry import load, platform_of
from sayso.channels.setup import (
    DeletedFiles,
    FoundMessage,
    MessageLog,
    RecoveryInbox,
    SetupError,
)
from sayso.channels.types import Turn
from sayso.config.settings.channels import AnyChannel
from sayso.config.settings.schema import Settings
from sayso.config.wiring.access import rules_of
from sayso.config.wiring.bootstrap import Services, check_redis, open_inbox
from sayso.infra.redis.checks import unreachable
from sayso.infra.redis.client import RedisUnfit
from sayso.infra.redis.leader_lock import LeaderLock
from sayso.infra.redis.shared_clock import RETRY_SECONDS
from sayso.infra.stop_signals import on_stop_signals, say_stopping, stop_signals
from sayso.workers.access import AccessControl
from sayso.workers.ingress import Ingress
from sayso.workers.recovery import Heartbeat

log = logging.getLogger(__name__)


def store_of(services: Services) -> StoreReceived:
    """Return the function with which an adapter stores what it received.

    It stores turns in the spool if one is configured, else in Redis.
    """
    inbox = services.spool or services.access_control
    return Ingress(inbox.accept, deliveries=services.deliveries, alerts=services.alerts).store


def start_watching(services: Services) -> None:
    """Start the background threads of a process that takes messages in.

    They send the heartbeats of this process, watch Redis for lost data, tell people of such a loss,
    and empty the spool. Call this after the process has forked, which threads do not survive.
    """
    Heartbeat(services.redis, kind="ingress", prefix=services.settings.key_prefix).watch()
    services.data_loss_guard.watch()
    services.loss_notices.watch()
    if services.spool:
        services.spool.watch()


def check_redis_if_reachable(services: Services) -> None:
    """Check Redis as `check_redis` does, but do not fail while it is away.

    Webhooks get 503 then, or go to the spool. Redis is checked in the background as soon as it
    answers, and the process stops if it cannot be used. Call this after the process has forked.
    Raises RedisUnfit.
    """
    try:
        check_redis(services)
    except RedisError as exc:
        advice = str(unreachable(services.redis, exc))
        log.warning("redis.away", extra={"reason": type(exc).__name__, "advice": advice})
        thread = threading.Thread(
            target=_check_when_back, args=(services,), name="redis-check", daemon=True
        )
        thread.start()


def _check_when_back(services: Services) -> None:
    """Wait until Redis answers, and check it.

    Stop this process if Redis is unfit. Its next start fails with the error.
    """
    while True:
        time.sleep(RETRY_SECONDS)
        try:
            check_redis(services)
        except RedisUnfit as exc:
            log.error("redis.unfit", extra={"reason": str(exc)})
            os.kill(os.getpid(), signal.SIGTERM)
        except RedisError:  # still away
            continue
        return


def polled_channels(settings: Settings) -> list[str]:
    """Return the names of the channels whose platform is polled."""
    return [name for name, channel in settings.channels.items() if channel.polls]


def poll(services: Services) -> None:
    """Poll for all channels that are polled, until SIGTERM, SIGINT or SIGHUP."""
    start_watching(services)
    store = store_of(services)
    settings = services.settings

    pollers = []
    for name in polled_channels(settings):
        channel = settings.channels[name]
        factory = platform_of(channel).poller
        if factory is None:
            raise LookupError(
                f"platform {channel.platform!r} has no poller: its settings must not say that it polls"
            )
        # Of several processes, one polls for an account: the platform gives each update once.
        lock = LeaderLock(services.redis, poll_lock(channel), prefix=settings.key_prefix)
        create_poller = load(factory)
        pollers.append(create_poller(services.channels[name], store, lock))
    asyncio.run(run_pollers(poller.run() for poller in pollers))


def poll_lock(channel: AnyChannel) -> str:
    """Return the name of the leader lock of a polled account."""
    return f"poll:{channel.account_id}"


async def run_pollers(polls: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Poll until SIGTERM, SIGINT or SIGHUP.

    A poller that ends does not stop the others. One that raises stops all of them: that is a defect
    of ours, and the process is started anew.
    """
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop(received: int = signal.SIGTERM, *_: object) -> None:
        say_stopping(received)
        # Further signals are ignored. Python resets all handlers at its end, and a signal would
        # kill the process then.
        for number in stop_signals():
            signal.signal(number, signal.SIG_IGN)
        loop.call_soon_threadsafe(stopping.set)

    on_stop_signals(stop)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(poll) for poll in polls]
        await stopping.wait()
        for task in tasks:
            task.cancel()


def find_missed_messages(
    settings: Settings,
    data: Path,
    channel: str,
    message_log: MessageLog,
    seconds: float,
    *,
    take: bool,
    newest: int = 0,
    clock: Callable[[], float] = time.time,
) -> AsyncIterator[FoundMessage]:
    """Return the messages in a platform's log, with what became of each.

    They are those of the last `seconds`, and at most the `newest` of them, 0 for all. With `take`
    those that never came in are stored. `clock` returns the time in Unix seconds. Raises
    ConfigError, and SetupError for a platform without a log; the iteration raises SetupError and
    redis.RedisError.
    """
    factory = platform_of(settings.channels[channel]).missed_messages
    if factory is None:
        raise _without(settings, channel, "messages cannot be taken from its log")
    access, identities = open_inbox(settings, data)
    per_minute = rules_of(settings.channels[channel]).per_minute or 0
    create_search = load(factory)
    search = create_search(
        channel,
        message_log,
        _recovery_inbox(access),
        identities,
        per_minute=per_minute,
        clock=clock,
    )
    messages: AsyncIterator[FoundMessage] = search.run(seconds, take=take, newest=newest)
    return messages


def delete_media(
    settings: Settings,
    data: Path,
    channel: str,
    message_log: MessageLog,
    older: float,
    back: float,
    *,
    delete: bool,
) -> AsyncIterator[DeletedFiles]:
    """Delete the files at a platform that no turn needs any more, day by day.

    They are older than `older` seconds, and at most `back` seconds older than that. Without
    `delete` they are only counted. Raises ConfigError and SetupError; the iteration raises
    SetupError and redis.RedisError.
    """
    factory = platform_of(settings.channels[channel]).media_deletion
    if factory is None:
        raise _without(settings, channel, "its files cannot be deleted from here")
    access, identities = open_inbox(settings, data)
    create_deletion = load(factory)
    deletion = create_deletion(channel, message_log, _recovery_inbox(access), identities)
    days: AsyncIterator[DeletedFiles] = deletion.run(older, back, delete=delete)
    return days


def _recovery_inbox(access: AccessControl) -> RecoveryInbox:
    """Return what a platform's code may ask of the mailbox, behind the access rules."""

    def accept(turn: Turn, waited_seconds: float) -> str:
        return access.accept(turn, waited_seconds=waited_seconds).outcome

    return RecoveryInbox(access.remembered_seconds, access.turn_status, access.why_not, accept)


def _without(settings: Settings, channel: str, says: str) -> SetupError:
    """Return the error for a platform whose log of messages cannot be used for a task."""
    platform = settings.channels[channel].platform
    return SetupError(f"{platform}: {says}", "use the platform's own tools")
