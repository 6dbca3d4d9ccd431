"""Rigs: mailbox, outbox and pending store of each implementation, with a clock that tests move."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from inspect import isawaitable, iscoroutinefunction
from pathlib import Path
from typing import Any

from redis import Redis

from sayso.agent.channel.turn_journal import RedisJournals
from sayso.channels.i18n.texts import Texts, texts_for
from sayso.channels.types import Conversation, Tap, Turn
from sayso.infra.concurrency import has_no_loop, is_in_loop, run_without_loop
from sayso.infra.redis.client import PREFIX
from sayso.infra.redis.cluster import ClusterConnections
from sayso.infra.redis.scripts import ScriptFolder
from sayso.pending import InMemoryPendingStore, RedisPendingStore
from sayso.pending.action import split_button_token
from sayso.pending.scripts import ACTION_SCRIPTS
from sayso.pending.sharded_scripts import shard_of
from sayso.workers.data_loss.notices import AcknowledgedWork
from sayso.workers.deliveries import RedisDeliveries
from sayso.workers.lease import LEASE_MS
from sayso.workers.mailbox import InboxLimits, RedisMailbox
from sayso.workers.processor import ConversationProcessor
from sayso.workers.recovery import Reaper, WorkerLock
from sayso.workers.scripts import CONVERSATION_SCRIPTS
from sayso.workers.sender import RedisOutbox, ReplySender
from sayso.workers.turn_processor import TurnProcessor
from sayso.workers.wake_ups import NO_JOB, WakeUpJob
from tests.infra.redis.lua_source import CheckedScripts
from tests.memory_stores import MemoryAlerts, MemorySharedCache, NoReceipts
from tests.scratch_redis import empty_redis

CHAT = Conversation("chat", "room")
#: What workers say in these tests.
ENGLISH = texts_for("en")


def voice(turn: Turn) -> Texts:
    """Return English texts for every turn."""
    return ENGLISH


def make_sender(outbox: Any, channels: Any, **options: Any) -> ReplySender:
    """Return a sender that notes its alerts in memory, and no receipts."""
    parts = {"receipts": NoReceipts(), "alerts": MemoryAlerts(), **options}
    return ReplySender(outbox, channels, texts_for, **parts)


def make_processor(
    mailbox: Any,
    sender: ReplySender,
    channels: Any,
    agents: Any,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    **options: Any,
) -> Any:
    """Return a processor that says everything in English and notes its drafts in memory.

    `options` are those of its TurnProcessor.
    """
    options = {"notes": MemorySharedCache(), "clock": clock, **options}
    turns = TurnProcessor(mailbox, channels, agents, voice, **options)
    return ConversationProcessor(mailbox, sender, turns, clock=clock, sleep=sleep)


def turn(
    text: str = "hello",
    *,
    user: str = "ana",
    event: str = "",
    tap: str = "",
    addressed: bool = True,
) -> Turn:
    """Return a turn of the conversation; its event id is new unless given."""
    return Turn(
        event or f"e{time.monotonic_ns()}",
        CHAT,
        user,
        text,
        tap=Tap(tap) if tap else None,
        addressed=addressed,
    )


class Blocking:
    """A store whose async methods are called without `await`."""

    def __init__(self, store: Any) -> None:
        vars(self)["store"] = store

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.store, name)
        if not iscoroutinefunction(method):
            return method
        return wraps(method)(lambda *args, **kwargs: self._answer(method(*args, **kwargs)))

    def __setattr__(self, name: str, value: Any) -> None:
        """Replace an attribute of the store; a function in place of an async method may be sync."""

        async def replaced(*args: Any, **kwargs: Any) -> Any:
            answer = value(*args, **kwargs)
            return await answer if isawaitable(answer) else answer

        setattr(
            self.store, name, replaced if iscoroutinefunction(getattr(self.store, name)) else value
        )

    def _answer(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return run_without_loop(coroutine)


class BlockingOutsideLoops(Blocking):
    """A store that tests call without `await`, and that workers await on their event loop."""

    def _answer(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return coroutine if has_no_loop.get() or is_in_loop() else run_without_loop(coroutine)


class Rig:
    """Mailbox, outbox and pending store in Redis, with a clock that only tests move.

    Without a `client` it begins with the empty Redis of this test process: one rig at a time.
    """

    def __init__(
        self,
        client: Redis | None = None,
        *,
        limits: InboxLimits | None = None,
        prefix: str = PREFIX,
        work: AcknowledgedWork | None = None,
    ) -> None:
        """`work` notes what Redis acknowledges."""
        client = client or empty_redis()
        #: The time of all scripts, in Unix seconds.
        self.now = time.time()
        scripts = self.scripts = self._scripts(client, CONVERSATION_SCRIPTS, prefix)
        note_turn = work.note_turn if work else lambda _: None
        self.client = client
        self.shard = f"{prefix}{{{shard_of(CHAT.id)}}}"
        self.action_scripts = self._scripts(client, ACTION_SCRIPTS, prefix)
        self.store = RedisPendingStore(
            client=client,
            secret_keys=["key"],
            prefix=prefix,
            scripts=self.action_scripts,
            note_effect=work.note_effect if work else None,
        )
        self.repository = Blocking(self.store.repository)
        self.mailbox = BlockingOutsideLoops(
            RedisMailbox(scripts, voice, limits=limits, note_turn=note_turn)
        )
        self.outbox = BlockingOutsideLoops(RedisOutbox(scripts))
        self.journals = BlockingOutsideLoops(RedisJournals(scripts))
        self.deliveries = RedisDeliveries(scripts)
        self.woken: list[str] = []
        # By this clock a round of the reaper takes no time. By that of the machine, a slow round
        # would end before it has looked at all shards.
        self.reaper = Reaper(
            client, scripts, self._wake_up, WorkerLock(Path("none")), clock=lambda: self.now
        )

    def _scripts(self, client: Redis, folder: ScriptFolder, prefix: str) -> CheckedScripts:
        return CheckedScripts(client, folder, prefix=prefix, clock=lambda: self.now)

    def accept(self, given: Turn):
        """Accept a turn as the web does."""
        parts = split_button_token(given.tap.data) if given.tap else None
        return self.mailbox.accept(given, tapped=parts[0] if parts else "")

    def pass_time(self, seconds: float) -> None:
        """Move the clock."""
        self.now += seconds

    def end_lease(self) -> None:
        """Let the current lease expire."""
        self.pass_time(LEASE_MS / 1000 + 1)

    def overdue(self) -> list[str]:
        """Run one round of the reaper; return the conversations that it wakes."""
        self.client.delete(f"{PREFIX}reaper")
        self.woken.clear()
        self.reaper.round()
        return list(self.woken)

    def dead(self) -> int:
        """Return the number of replies that were given up."""
        return self.client.llen(f"{self.shard}:dead")

    def stops(self) -> list[str]:
        """Return the users whose stop is stored."""
        return [
            name
            for name in self.client.hkeys(f"{self.shard}:conversation:{CHAT.id}")
            if name.startswith("stop")
        ]

    def journal(self) -> list[str]:
        """Return the stored journal of the turn at the head."""
        return self.client.lrange(f"{self.shard}:journal:{CHAT.id}", 0, -1)

    def write_journal(self, at: int, entry: str) -> None:
        """Replace an entry of the stored journal."""
        self.client.lset(f"{self.shard}:journal:{CHAT.id}", at, entry)

    def inbox(self, conversation: str = CHAT.id) -> list[str]:
        """Return the stored turns that wait, oldest first."""
        shard = f"{PREFIX}{{{shard_of(conversation)}}}"
        return self.client.lrange(f"{shard}:inbox:{conversation}", 0, -1)

    def audit(self) -> list[dict]:
        """Return the audit log of the conversation's shard."""
        return [json.loads(entry) for entry in self.client.lrange(f"{self.shard}:audit", 0, -1)]

    def _wake_up(self, conversation: str) -> WakeUpJob:
        self.woken.append(conversation)
        return NO_JOB


def client_of(store: RedisPendingStore) -> Redis:
    """Return a client that reads and writes directly in the store's Redis."""
    connections = store.repository._scripts._connections
    if isinstance(connections, ClusterConnections):
        return connections._cluster
    return Redis(connection_pool=connections._pool)


def time_passes(
    store, seconds: float = 150, conversation: str = Conversation("direct", "ana").id
) -> None:
    """Move the start of every running action back by this many seconds."""
    if isinstance(store, InMemoryPendingStore):
        for entry in store.repository._entries.values():
            entry.update(started_at=entry.stored.started_at - seconds)
        return
    client = client_of(store)
    for key in client.scan_iter(f"sayso:{{{shard_of(conversation)}}}:pending:*"):
        if client.hexists(key, "started_at"):
            client.hincrby(key, "started_at", -round(seconds * 1000))
