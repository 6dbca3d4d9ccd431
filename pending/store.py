"""PendingActionStore: the seed's door to pending actions, over records in memory or in Redis."""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from redis import Redis

from channels.types import Conversation, Scope
from pending import texts
from pending.action import (
    DEFAULT_IGNORE_TTL_SECONDS,
    DEFAULT_TTL_SECONDS,
    Executor,
    PendingAction,
    PendingActionExistsError,
)
from pending.parser import ConfirmParser, RegexConfirmParser
from pending.proposals import ExecutorFactory
from pending.records import LUA, Claim, MemoryRecords, Records, RedisRecords, StoredAction, seal_action
from pending.seal import Seal
from pending.settle import ConfirmOutcome, Executors, Settlement
from workers.lane import Change, Move
from workers.offload import run_sync
from workers.redis import PREFIX, Scripts, connect

log = logging.getLogger(__name__)


class PendingActionStore(Protocol):
    """What waits for a yes, by scope: user, channel and conversation (seed)."""

    parser: ConfirmParser

    def stash(
        self,
        user_id: str,
        *,
        kind: str,
        preview: str,
        executor: Executor | None = None,
        args: Mapping[str, Any] | None = None,
        ttl_seconds: float | None = None,
        channel_id: str | None = None,
        conversation_id: str | None = None,
    ) -> PendingAction:
        """Arm an action; without an outbox it counts as shown at once. Raises PendingActionExistsError."""

    def get(
        self, user_id: str, *, channel_id: str | None = None, conversation_id: str | None = None
    ) -> PendingAction | None:
        """The action that waits in a scope, None when there is none or its window has closed."""

    def pop_if_confirmed(
        self,
        user_id: str,
        message: str,
        *,
        channel_id: str | None = None,
        conversation_id: str | None = None,
        args_digest: str | None = None,
        expected_id: str | None = None,
    ) -> ConfirmOutcome | None:
        """Run the action if the message is a yes and every guard passes. None: nothing was and nothing will be run."""

    def pop_if_intent(
        self,
        user_id: str,
        intent: str,
        *,
        expected_kind: str | None = None,
        channel_id: str | None = None,
        conversation_id: str | None = None,
        expected_id: str | None = None,
        ignore_ttl_seconds: float = DEFAULT_IGNORE_TTL_SECONDS,
    ) -> ConfirmOutcome | None:
        """Settle by a button. A button of another prompt (`kind_mismatch`) neither fires nor disarms."""

    def tighten_ttl(
        self,
        user_id: str,
        seconds: float,
        *,
        channel_id: str | None = None,
        conversation_id: str | None = None,
        expected_id: str | None = None,
    ) -> PendingAction | None:
        """Close the window in at most `seconds`; never later than it would have closed."""

    def drop(
        self, user_id: str, *, channel_id: str | None = None, conversation_id: str | None = None
    ) -> PendingAction | None:
        """Disarm what waits in a scope, and return it."""

    def register_executor_factory(self, kind: str, factory: ExecutorFactory) -> None:
        """From now on `factory` rebuilds the executor of this kind from its record."""


class BasePendingStore:
    """The store's rules, once, over any Records."""

    def __init__(
        self, records: Records, seal: Seal, parser: ConfirmParser | None, default_ttl_seconds: float, max_closures: int
    ) -> None:
        self.parser = parser or RegexConfirmParser()
        self.records = records
        self.seal = seal
        self.executors = Executors(max_closures=max_closures)
        self.settlement = Settlement(records, seal, self.executors)
        self.default_ttl_seconds = default_ttl_seconds
        self.ignore_ttl_seconds = DEFAULT_IGNORE_TTL_SECONDS

    def register_executor_factory(self, kind: str, factory: ExecutorFactory) -> None:
        """From now on `factory` rebuilds the executor of this kind from its record."""
        self.executors.register(kind, factory)

    def stash(
        self,
        user_id: str,
        *,
        kind: str,
        preview: str,
        executor: Executor | None = None,
        args: Mapping[str, Any] | None = None,
        ttl_seconds: float | None = None,
        channel_id: str | None = None,
        conversation_id: str | None = None,
    ) -> PendingAction:
        """Arm an action and show it at once. Raises PendingActionExistsError, TypeError for inexact arguments."""
        action = PendingAction(
            user_id=user_id,
            kind=kind,
            preview=preview,
            args=dict(args or {}),
            channel_id=channel_id,
            conversation_id=conversation_id,
            ttl_seconds=self.default_ttl_seconds if ttl_seconds is None else ttl_seconds,
            requested_at=time.time(),
            parser_version=self.parser.version,
        )
        return self.arm(action, executor)

    def arm(self, action: PendingAction, executor: Executor | None = None) -> PendingAction:
        """Store an action as shown. Raises PendingActionExistsError when its scope has one waiting."""
        scope = scope_of(action.user_id, action.channel_id, action.conversation_id)
        change = Change(arm=seal_action(action, self.seal, user=scope.id))
        word, stored = self.records.change(scope.conversation.id, change)
        if word != "ok" or stored is None:
            raise PendingActionExistsError(f"user {action.user_id!r} has an action waiting here: finish that one first")
        if executor is not None:
            self.executors.keep(action.pending_action_id, executor)
        return stored.action

    def get(
        self, user_id: str, *, channel_id: str | None = None, conversation_id: str | None = None
    ) -> PendingAction | None:
        """The action that waits in a scope."""
        stored = self._look(scope_of(user_id, channel_id, conversation_id))
        if stored is None or stored.state != "shown" or stored.is_over:
            return None
        return stored.action

    def pop_if_confirmed(
        self,
        user_id: str,
        message: str,
        *,
        channel_id: str | None = None,
        conversation_id: str | None = None,
        args_digest: str | None = None,
        expected_id: str | None = None,
    ) -> ConfirmOutcome | None:
        """Run the action if the message is a yes and every guard passes."""
        if not self.parser.is_confirm(message):
            return None
        scope = scope_of(user_id, channel_id, conversation_id)
        stored = self._look(scope)
        if stored is None:
            return None
        if expected_id not in (None, stored.action.pending_action_id):
            self._end(scope, stored, "cancelled")
            return None
        if args_digest not in (None, stored.action.args_digest):
            ended = self._end(scope, stored, "cancelled")
            return ConfirmOutcome("digest_mismatch", ended, told=texts.unsafe(ended.preview)) if ended else None
        return self._confirm(scope, stored, "text")

    def pop_if_intent(
        self,
        user_id: str,
        intent: str,
        *,
        expected_kind: str | None = None,
        channel_id: str | None = None,
        conversation_id: str | None = None,
        expected_id: str | None = None,
        ignore_ttl_seconds: float = DEFAULT_IGNORE_TTL_SECONDS,
    ) -> ConfirmOutcome | None:
        """Settle by a button."""
        _refuse_negative("ignore_ttl_seconds", ignore_ttl_seconds)
        scope = scope_of(user_id, channel_id, conversation_id)
        stored = self._look(scope)
        if stored is None or stored.state not in ("armed", "shown"):
            return None
        action = stored.action
        if stored.is_over:
            ended = self._end(scope, stored, "expired")
            return ConfirmOutcome("expired", ended, told=texts.expired(ended.preview)) if ended else None
        if expected_kind not in (None, action.kind) or expected_id not in (None, action.pending_action_id):
            return ConfirmOutcome("kind_mismatch", action, told=texts.stale())
        match _known_intent(intent):
            case "confirm":
                return self._confirm(scope, stored, "tap")
            case "cancel":
                ended = self._end(scope, stored, "cancelled")
                return ConfirmOutcome("cancelled", ended, told=texts.cancelled(ended.preview)) if ended else None
        tightened = self.records.tighten(scope.conversation.id, scope.id, ignore_ttl_seconds, action.pending_action_id)
        return ConfirmOutcome("ignored", (tightened or stored).action, told=texts.ignored(action.preview))

    def tighten_ttl(
        self,
        user_id: str,
        seconds: float,
        *,
        channel_id: str | None = None,
        conversation_id: str | None = None,
        expected_id: str | None = None,
    ) -> PendingAction | None:
        """Close the window in at most `seconds`."""
        _refuse_negative("seconds", seconds)
        scope = scope_of(user_id, channel_id, conversation_id)
        stored = self.records.tighten(scope.conversation.id, scope.id, seconds, expected_id or "")
        return stored.action if stored else None

    def drop(
        self, user_id: str, *, channel_id: str | None = None, conversation_id: str | None = None
    ) -> PendingAction | None:
        """Disarm what waits in a scope, and return it."""
        scope = scope_of(user_id, channel_id, conversation_id)
        stored = self._look(scope)
        if stored is None or stored.state not in ("armed", "shown"):
            return None
        return self._end(scope, stored, "cancelled")

    def _look(self, scope: Scope) -> StoredAction | None:
        return self.records.look(scope.conversation.id, scope.id)

    def _confirm(self, scope: Scope, stored: StoredAction, kind: str) -> ConfirmOutcome | None:
        claim = Claim(
            scope=scope,
            pending_action_id=stored.pid,
            by=secrets.token_urlsafe(8),
            kind="tap" if kind == "tap" else "text",
        )
        return run_sync(self.settlement.confirm(claim, stored))

    def _end(self, scope: Scope, stored: StoredAction, state: str) -> PendingAction | None:
        """End it without effect. None: somebody else decided first."""
        move = Move(stored.pid, ("armed", "shown"), state)
        word, ended = self.records.change(scope.conversation.id, Change(move=move))
        return ended.action if word == "ok" and ended else None


class InMemoryPendingStore(BasePendingStore):
    """Pending actions in this process, at most `max_entries`. They do not survive a restart: the user asks again."""

    def __init__(
        self,
        parser: ConfirmParser | None = None,
        default_ttl_seconds: float = DEFAULT_TTL_SECONDS,
        max_entries: int = 5000,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        records = MemoryRecords(max_entries=max_entries, clock=clock)
        super().__init__(records, Seal([secrets.token_hex()]), parser, default_ttl_seconds, max_entries)


class RedisPendingStore(BasePendingStore):
    """Pending actions in Redis (6.2 or later), for many processes and machines.

    Only the record is stored, never a closure: register an executor factory for each kind. `secret_keys` seal the
    records, by default those of the environment's SAYSO_SECRET_KEYS.
    """

    def __init__(
        self,
        url: str = "redis://localhost:6379/0",
        prefix: str = PREFIX,
        parser: ConfirmParser | None = None,
        default_ttl_seconds: float = DEFAULT_TTL_SECONDS,
        max_executor_entries: int = 5000,
        *,
        client: Redis | None = None,
        secret_keys: list[str] | None = None,
    ) -> None:
        scripts = Scripts(client or connect(url), LUA, prefix=prefix)
        seal = Seal(secret_keys or _keys_from_environment())
        super().__init__(RedisRecords(scripts), seal, parser, default_ttl_seconds, max_executor_entries)


def scope_of(user_id: str, channel_id: str | None, conversation_id: str | None) -> Scope:
    """The scope the seed's three ids name. Without a conversation it is the user's own, as in a direct message."""
    return Scope(user_id, Conversation(channel_id or "direct", conversation_id or user_id))


def _keys_from_environment() -> list[str]:
    keys = [key for key in os.environ.get("SAYSO_SECRET_KEYS", "").split(",") if key]
    if not keys:
        log.warning("SAYSO_SECRET_KEYS is not set: pending actions in Redis are not protected against tampering")
    return keys or ["unsealed"]


def _refuse_negative(name: str, value: float) -> None:
    if value < 0:
        raise ValueError(f"{name} is {value!r}: it must be 0 or more seconds")


def _known_intent(intent: str) -> str:
    known = intent.strip().lower()
    if known not in ("confirm", "cancel", "ignore"):
        log.warning("pending.unknown_intent: taken as ignore")
        return "ignore"
    return known
