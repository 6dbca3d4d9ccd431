"""Poller: asks Telegram for the updates of one bot, and stores them in order.

Polling is for bots without a public address, to which Telegram could send webhooks.

Each poll names an offset: the id of the first update that Telegram must still have. Telegram
forgets all updates before it. So the poller moves the offset behind an update only after the update
is stored. Updates that a killed poller had stored already come again, and the mailbox, the queue of
turns in Redis, recognizes them.

Several processes may run a poller. One of them holds the leader lock and polls; another one takes
over when it stops.
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
from sayso.infra.backoff import backoff_seconds
from sayso.infra.redis.leader_lock import LeaderLock

log = logging.getLogger(__name__)

#: Seconds between two renewals of the leader lock, and between two attempts to take it.
LOCK_SECONDS = 1.0
#: Seconds until an update that was not stored is tried again.
RETRY_SECONDS = 2.0
#: Seconds between two polls while a webhook or another poller gets the updates.
CONFLICT_SECONDS = 30.0
#: The longest pause, in seconds, between two polls while Telegram cannot be reached.
MAX_BACKOFF_SECONDS = 30.0
#: How many updates Telegram returns at once, from the offset on: the window of one poll.
WINDOW = 100
#: What became of an update. `stored`: it is in the mailbox, or is given up. `refused`: its
#: conversation has too many waiting turns. `failed`: Redis did not take it.
UpdateResult = Literal["stored", "refused", "failed"]


class Poller:
    """Polls one bot while this process holds its leader lock. Lives on one event loop.

    * `store`: stores what came in, as the receiver of webhooks does.
    * `lock`: the leader lock of this bot, shared by all processes.
    """

    def __init__(self, bot: TelegramChannel, store: StoreReceived, lock: LeaderLock) -> None:
        self._bot = bot
        self._store_received = store
        self._lock = lock
        #: The id of the first update that Telegram must still have, None for its oldest one.
        self._offset: int | None = None
        #: The ids of stored updates that Telegram returns again, since an earlier one is missing.
        self._stored: set[int] = set()
        #: How many polls have failed one after the other.
        self._failures = 0

    async def run(self) -> None:
        """Poll until cancelled, or until Telegram does not know the bot's token any more."""
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
        """Take or renew the lock, and return whether this process may poll."""
        try:
            return await asyncio.to_thread(self._lock.take)
        except RedisError:
            # Polling goes on, since Telegram itself answers only one poller at a time.
            return True

    async def _poll_while_leader(self) -> bool:
        """Poll as long as this process holds the lock. Return whether Telegram refuses the bot."""
        polling = asyncio.create_task(self._poll())
        try:
            while not polling.done() and await self._is_leader():
                await asyncio.wait({polling}, timeout=LOCK_SECONDS)
            if polling.done():
                # Raises what has ended the task, if it did not end by itself.
                polling.result()
                return True
            return False
        finally:
            polling.cancel()
            await asyncio.wait({polling})

    async def _poll(self) -> None:
        """Poll until Telegram refuses the bot itself."""
        # Another process may have polled meanwhile, so the offset of before says nothing.
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
        """Poll once and store the updates.

        Returns the seconds until the next poll. Raises ChannelDown.
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
        """Send a message to the operator."""
        await asyncio.to_thread(self._store_received, self._bot.name, Received(alerts=(message,)))

    async def _store(self, updates: Sequence[Any]) -> bool:
        """Store updates, and move the offset behind those that are stored.

        Returns whether all are stored. If one is not, the offset stays there, and Telegram returns
        all later updates again too: a bot has only one offset.
        """
        by_id = {}
        for update in updates:
            if isinstance(update, dict) and isinstance(update.get("update_id"), int):
                by_id[update["update_id"]] = update
        refused = await asyncio.to_thread(self._store_each, by_id)

        if len(by_id) >= WINDOW and self._offset in refused:
            # Refused updates fill the window, so that no others would ever come in. Those in the
            # first half of it are given up; their senders have read that the bot is too busy.
            first_half = list(by_id)[: WINDOW // 2]
            skipped = refused.intersection(first_half)
            log.error("poll.skipped", extra={"channel": self._bot.name, "count": len(skipped)})
            self._stored |= skipped

        missing = [update_id for update_id in by_id if update_id not in self._stored]
        if missing:
            self._offset = missing[0]
            self._stored.intersection_update(by_id)
        else:
            # Without updates the next poll names no offset: after a quiet week Telegram may begin
            # its ids anew at any number, also a lower one.
            self._offset = max(by_id) + 1 if by_id else None
            self._stored.clear()
        return not missing and len(by_id) == len(updates)

    def _store_each(self, by_id: Mapping[int, Any]) -> set[int]:
        """Store as many updates as possible.

        Returns the ids of the updates that were refused: their conversations have no room.
        """
        refused = set()
        blocked: dict[Conversation, UpdateResult] = {}
        try:
            for update_id, update in by_id.items():
                if update_id in self._stored:
                    continue
                result = self._store_one(update, blocked)
                if result == "stored":
                    self._stored.add(update_id)
                if result == "refused":
                    refused.add(update_id)
        except (RedisError, StorageDown) as exc:
            extra = {"channel": self._bot.name, "reason": type(exc).__name__}
            log.error("poll.not_stored", extra=extra)
        return refused

    def _store_one(self, update: Any, blocked: dict[Conversation, UpdateResult]) -> UpdateResult:
        """Store one update, unless an earlier one of its conversation was not stored.

        `blocked` holds the conversations of earlier updates that were not stored, with their
        results. If this one is not stored, its conversations are added. Raises redis.RedisError and
        StorageDown if no update can be stored.
        """
        received = note_moves(self._bot, self._bot.read(update))
        # A tap or /stop overtakes text, as it does among Telegram's webhooks.
        in_order = [turn for turn in received.turns if not (turn.tap or turn.is_stop)]
        for turn in in_order:
            if turn.conversation in blocked:
                return blocked[turn.conversation]

        result: UpdateResult = "stored"
        try:
            self._store_received(self._bot.name, received)
        except Overloaded:
            result = "refused"
        except ResponseError:
            # Redis may accept the update of another conversation.
            result = "failed"
        except (RedisError, StorageDown):
            raise
        except Exception:
            # A defect would fail on each retry and block all later updates, so the update is given
            # up and counts as stored.
            ids = {}
            for turn in received.turns[:1]:
                ids = {"conversation": turn.conversation.id, "event": turn.event_hash}
            log.exception("poll.dropped", extra={"channel": self._bot.name, **ids})
        if result != "stored":
            blocked |= {turn.conversation: result for turn in in_order}
        return result
