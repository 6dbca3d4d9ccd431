"""Poller: asks for the updates of one bot that has no address to send them to, and brings them to the door, in order.

Telegram forgets an update once it is asked for those behind it, which happens when the door has kept it: what a poller
that died had kept already comes again, and the mailbox knows it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from redis import Redis
from redis.exceptions import RedisError, ResponseError

from sayso.channels.base import ChannelDown, RateLimited, SendError, WebhookConflict
from sayso.channels.telegram.adapter import TelegramChannel
from sayso.channels.types import Conversation, Received
from sayso.channels.web.ingress import Ingress, Overloaded
from sayso.config.wiring.bootstrap import Services
from sayso.pending.concurrency import offload
from sayso.pending.turns.queued import stops
from sayso.workers.redis.leader_lock import LeaderLock
from sayso.workers.spool import SpoolUnusable

log = logging.getLogger(__name__)

#: Seconds between two signs of life, and until one that waits for its turn looks again.
SIGN_SECONDS = 1.0
#: Seconds until an update is tried again that was not kept.
AGAIN_SECONDS = 2.0
#: Seconds until one asks again while a webhook, or somebody else, is given the updates.
ELSEWHERE_SECONDS = 30.0
#: The longest wait, in seconds, for a Telegram that cannot be reached.
MAX_BACKOFF_SECONDS = 30.0
#: Updates that Telegram tells at once, all behind the first that it was not allowed to forget.
WINDOW = 100


#: What came of an update: it is kept; its conversation has too many; or the store did not take it.
UpdateResult = Literal["kept", "refused", "waits"]


class Polled(Protocol):
    """A channel that is asked for its updates."""

    @property
    def name(self) -> str:
        """The channel's name in the YAML."""

    def read(self, update: Any) -> Received:
        """What one update holds, of whatever kind or shape it is. Never raises."""

    async def updates(self, offset: int | None) -> list[Any]:
        """What came in from `offset` on, all before it forgotten. Raises SendError, Elsewhere."""


class Poller:
    """Polls one bot while this process has its baton. Lives on one event loop."""

    def __init__(self, bot: Polled, door: Ingress, baton: LeaderLock) -> None:
        self._bot, self._door, self._baton = bot, door, baton
        self._offset: int | None = None
        self._kept: set[int] = set()
        self._failures = 0

    async def forever(self) -> None:
        """Poll until cancelled, or until Telegram does not know the bot any more."""
        down = False
        try:
            while not down:
                if await self._is_ours():
                    down = await self._while_ours()
                else:
                    await asyncio.sleep(SIGN_SECONDS)
        finally:
            with contextlib.suppress(RedisError):
                self._baton.leave()

    async def _is_ours(self) -> bool:
        """Where Redis cannot say, Telegram does: it answers one at a time."""
        try:
            return await offload(self._baton.take)
        except RedisError:
            return True

    async def _while_ours(self) -> bool:
        """Poll as long as it is ours to; whether the bot is down."""
        polling = asyncio.create_task(self._poll())
        try:
            while not polling.done() and await self._is_ours():
                await asyncio.wait({polling}, timeout=SIGN_SECONDS)
            return polling.done() and polling.result() is None
        finally:
            polling.cancel()
            await asyncio.wait({polling})

    async def _poll(self) -> None:
        """Poll until the bot is down. Where somebody else polled meanwhile, what we knew is old."""
        self._offset, self._kept = None, set()
        log.info("poll.begins", extra={"channel": self._bot.name})
        while True:
            try:
                pause = await self._round()
            except ChannelDown as exc:
                await self._alert(f"{exc}; it is asked no more until `sayso poll` starts anew")
                return
            except Exception:
                # The rim of a task that nobody would start again.
                log.exception("poll.broken", extra={"channel": self._bot.name})
                pause = AGAIN_SECONDS
            await asyncio.sleep(pause)

    async def _round(self) -> float:
        """Ask once and keep what came; after how many seconds to ask again. Raises ChannelDown."""
        try:
            updates = await self._bot.updates(self._offset)
        except WebhookConflict as exc:
            await self._alert(str(exc))
            return ELSEWHERE_SECONDS
        except RateLimited as exc:
            log.warning("poll.failed", extra={"channel": self._bot.name, "reason": str(exc)})
            return exc.retry_after
        except ChannelDown:
            raise
        except SendError as exc:
            self._failures += 1
            log.warning("poll.failed", extra={"channel": self._bot.name, "reason": str(exc)})
            return min(MAX_BACKOFF_SECONDS, 2.0 ** min(self._failures - 1, 9))
        self._failures = 0
        await offload(self._door.heard, self._bot.name)
        return 0.0 if await self._keep(updates) else AGAIN_SECONDS

    async def _alert(self, words: str) -> None:
        await offload(self._door.keep, self._bot.name, Received(alerts=(words,)))

    async def _keep(self, updates: Sequence[Any]) -> bool:
        """Bring them to the door; whether all were kept. Those behind one that was not are not forgotten either."""
        numbered = {update["update_id"]: update for update in updates if _has_number(update)}
        refused = await offload(self._bring, numbered)
        if len(numbered) >= WINDOW and self._offset in refused:
            self._pass_over(refused & set(list(numbered)[: WINDOW // 2]))
        left = [number for number in numbered if number not in self._kept]
        # Asked from nowhere in particular Telegram begins with the oldest: numbers may begin anew anywhere.
        self._offset = left[0] if left else max(numbered) + 1 if numbered else None
        self._kept.intersection_update(numbered if left else ())
        return not left and len(numbered) == len(updates)

    def _pass_over(self, refused: set[int]) -> None:
        """Let go of what was refused, and its person told so: behind a window that is full nobody else is heard."""
        log.error("poll.passed_over", extra={"channel": self._bot.name, "count": len(refused)})
        self._kept |= refused

    def _bring(self, numbered: Mapping[int, Any]) -> set[int]:
        """As many of them as can be kept now. Returns those of which their conversations have too many."""
        fates: dict[int, UpdateResult] = {}
        stuck: dict[Conversation, UpdateResult] = {}
        try:
            for number, update in numbered.items():
                if number in self._kept:
                    continue
                fates[number] = self._fate(update, stuck)
                if fates[number] == "kept":
                    self._kept.add(number)
        except (RedisError, SpoolUnusable) as exc:
            log.error("poll.not_kept", extra={"channel": self._bot.name, "reason": type(exc).__name__})
        return {number for number, fate in fates.items() if fate == "refused"}

    def _fate(self, update: Any, stuck: dict[Conversation, UpdateResult]) -> UpdateResult:
        """`stuck` are the conversations of which something was not kept: what else is said there waits behind it, and
        others do not. A tap or a stop overtakes words, as it does among Telegram's webhooks.
        """
        received = self._bot.read(update)
        talks = {turn.conversation for turn in received.turns if not (turn.tap or stops(turn))}
        for talk in talks & stuck.keys():
            return stuck[talk]
        try:
            self._door.keep(self._bot.name, received)
        except Overloaded:
            fate: UpdateResult = "refused"
        except ResponseError:  # what Redis refuses of one conversation it may take of another
            fate = "waits"
        except (RedisError, SpoolUnusable):
            raise
        except Exception:
            # The rim: it would be as wrong each time, and hold up everybody behind it.
            log.exception("poll.dropped", extra={"channel": self._bot.name})
            return "kept"
        else:
            return "kept"
        stuck |= dict.fromkeys(talks, fate)
        return fate


def _has_number(update: Any) -> bool:
    return isinstance(update, dict) and isinstance(update.get("update_id"), int)


def baton_of(client: Redis, bot_id: str, prefix: str) -> LeaderLock:
    """The baton of the bot of this id."""
    return LeaderLock(client, f"poll:{bot_id}", prefix=prefix)


def polling(services: Services) -> list[TelegramChannel]:
    """The channels that are to be asked."""
    channels = services.channels.values()
    return [channel for channel in channels if isinstance(channel, TelegramChannel) and channel.polls]


def run_pollers(services: Services) -> None:
    """Poll for all of them until SIGTERM or SIGINT. A bot that is down does not end it: others go on."""
    door = Ingress(services)
    door.open()
    prefix = services.settings.key_prefix
    pollers = [Poller(channel, door, baton_of(services.redis, channel.bot_id, prefix)) for channel in polling(services)]
    asyncio.run(_all(pollers))


async def _all(pollers: Sequence[Poller]) -> None:
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told.set)
    async with asyncio.TaskGroup() as group:  # one that breaks ends them all: the process is started anew
        tasks = [group.create_task(poller.forever()) for poller in pollers]
        await told.wait()
        for task in tasks:
            task.cancel()
