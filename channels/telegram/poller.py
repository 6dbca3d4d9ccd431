"""Poller: asks Telegram for the updates of one bot, and stores them in order.

It is for bots that have no public address.

Telegram forgets an update once it is asked for a later one. The poller asks for a later one only
after the update is stored. Updates that a killed poller had stored already come again, and the
mailbox recognizes them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from redis.exceptions import RedisError, ResponseError

from sayso.channels.base import (
    ChannelDown,
    Overloaded,
    RateLimited,
    SendError,
    StorageDown,
    StoreReceived,
    WebhookConflict,
    note_moves,
)
from sayso.channels.telegram.adapter import TelegramChannel
from sayso.channels.types import Conversation, Received
from sayso.infra.http import backoff_seconds
from sayso.infra.redis.leader_lock import LeaderLock

log = logging.getLogger(__name__)

#: Seconds between two renewals of the leader lock,
#: and between two attempts of a standby to take it.
LOCK_SECONDS = 1.0
#: Seconds until an update that was not stored is tried again.
RETRY_SECONDS = 2.0
#: Seconds between two polls while a webhook or another poller gets the updates.
CONFLICT_SECONDS = 30.0
#: The longest pause, in seconds, between two polls while Telegram cannot be reached.
MAX_BACKOFF_SECONDS = 30.0
#: How many updates Telegram returns at once. All are later than the
#: first one that it may not forget.
WINDOW = 100
#: What became of an update: stored; refused because its conversation has too many;
#: or the storage failed.
UpdateResult = Literal["stored", "refused", "failed"]


class Poller:
    """Polls one bot while this process holds its leader lock. Lives on one event loop."""

    def __init__(self, bot: TelegramChannel, store: StoreReceived, lock: LeaderLock) -> None:
        self._bot = bot
        self._store_received = store
        self._lock = lock
        self._offset: int | None = None
        self._stored: set[int] = set()
        self._failures = 0

    async def run(self) -> None:
        """Poll until cancelled, or until Telegram does not know the bot any more."""
        is_down = False
        try:
            while not is_down:
                if await self._is_leader():
                    is_down = await self._poll_while_leader()
                else:
                    await asyncio.sleep(LOCK_SECONDS)
        finally:
            with contextlib.suppress(RedisError):
                self._lock.leave()

    async def _is_leader(self) -> bool:
        """Take or renew the lock.

        Poll also when Redis is away: Telegram itself answers only one poller at a time.
        """
        try:
            return await asyncio.to_thread(self._lock.take)
        except RedisError:
            return True

    async def _poll_while_leader(self) -> bool:
        """Poll as long as this process holds the lock. Return whether the bot is down."""
        polling = asyncio.create_task(self._poll())
        try:
            while not polling.done() and await self._is_leader():
                await asyncio.wait({polling}, timeout=LOCK_SECONDS)
            return polling.done() and polling.result() is None
        finally:
            polling.cancel()
            await asyncio.wait({polling})

    async def _poll(self) -> None:
        """Poll until the bot is down.

        Starts without an offset: another process may have polled meanwhile.
        """
        self._offset = None
        self._stored = set()
        log.info("poll.begins", extra={"channel": self._bot.name})
        while True:
            try:
                pause = await self._round()
            except ChannelDown as exc:
                await self._alert(f"{exc}; polling stops until `sayso poll` is started again")
                return
            except Exception:
                # No one else restarts this task, so it must survive any defect.
                log.exception("poll.broken", extra={"channel": self._bot.name})
                pause = RETRY_SECONDS
            await asyncio.sleep(pause)

    async def _round(self) -> float:
        """Ask once and store the updates.

        Return the seconds until the next poll. Raises ChannelDown.
        """
        try:
            updates = await self._bot.updates(self._offset)
        except WebhookConflict as exc:
            await self._alert(str(exc))
            return CONFLICT_SECONDS
        except RateLimited as exc:
            log.warning("poll.failed", extra={"channel": self._bot.name, "reason": str(exc)})
            return exc.retry_after
        except ChannelDown:
            raise
        except SendError as exc:
            self._failures += 1
            log.warning("poll.failed", extra={"channel": self._bot.name, "reason": str(exc)})
            return backoff_seconds(self._failures, first=1.0, longest=MAX_BACKOFF_SECONDS)
        self._failures = 0
        await asyncio.to_thread(self._store_received, self._bot.name, Received(is_contact=True))
        return 0.0 if await self._store(updates) else RETRY_SECONDS

    async def _alert(self, message: str) -> None:
        await asyncio.to_thread(self._store_received, self._bot.name, Received(alerts=(message,)))

    async def _store(self, updates: Sequence[Any]) -> bool:
        """Store updates and move the offset behind those that are stored. Return whether all are.

        Telegram may not forget updates that follow one that is not stored yet:
        it knows only one offset.
        """
        by_id = {
            update["update_id"]: update
            for update in updates
            if isinstance(update, dict) and isinstance(update.get("update_id"), int)
        }
        refused = await asyncio.to_thread(self._store_each, by_id)
        if len(by_id) >= WINDOW and self._offset in refused:
            # Refused updates, whose senders have been informed, fill the window.
            # Others would never come in.
            skipped = refused & set(list(by_id)[: WINDOW // 2])
            log.error("poll.skipped", extra={"channel": self._bot.name, "count": len(skipped)})
            self._stored |= skipped
        missing = [update_id for update_id in by_id if update_id not in self._stored]
        # Without an offset Telegram starts with its oldest update.
        # Its ids may start anew at any number.
        if missing:
            self._offset = missing[0]
        elif by_id:
            self._offset = max(by_id) + 1
        else:
            self._offset = None
        self._stored.intersection_update(by_id if missing else ())
        return not missing and len(by_id) == len(updates)

    def _store_each(self, by_id: Mapping[int, Any]) -> set[int]:
        """Store as many updates as possible.

        Return the ids of those that their conversations have no room for.
        """
        results: dict[int, UpdateResult] = {}
        blocked: dict[Conversation, UpdateResult] = {}
        try:
            for update_id, update in by_id.items():
                if update_id in self._stored:
                    continue
                results[update_id] = self._store_one(update, blocked)
                if results[update_id] == "stored":
                    self._stored.add(update_id)
        except (RedisError, StorageDown) as exc:
            log.error(
                "poll.not_stored", extra={"channel": self._bot.name, "reason": type(exc).__name__}
            )
        return {update_id for update_id, result in results.items() if result == "refused"}

    def _store_one(self, update: Any, blocked: dict[Conversation, UpdateResult]) -> UpdateResult:
        """Store one update, unless an earlier one of its conversation was not stored:
        `blocked` holds those.

        Other conversations go on. A tap or /stop overtakes text,
        as it does among Telegram's webhooks.
        """
        received = note_moves(self._bot, self._bot.read(update))
        conversations = {
            turn.conversation for turn in received.turns if not (turn.tap or turn.is_stop)
        }
        for conversation in conversations & blocked.keys():
            return blocked[conversation]
        result: UpdateResult = "refused"
        try:
            self._store_received(self._bot.name, received)
        except Overloaded:
            pass
        except ResponseError:  # Redis may accept the next conversation
            result = "failed"
        except (RedisError, StorageDown):
            raise
        except Exception:
            # A defect would fail on each retry and block all later updates.
            turn = next(iter(received.turns), None)
            if turn:
                ids = {"conversation": turn.conversation.id, "event": turn.event_hash}
            else:
                ids = {}
            log.exception("poll.dropped", extra={"channel": self._bot.name, **ids})
            return "stored"
        else:
            return "stored"
        blocked |= dict.fromkeys(conversations, result)
        return result
