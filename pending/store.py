"""PendingActionStore: the seed's door to pending actions, over records in memory or in Redis."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from secrets import token_hex
from typing import Any, Protocol

from redis import Redis

from sayso.channels.types import Conversation, Intent, Scope, random_id
from sayso.pending.action import (
    DEFAULT_IGNORE_TTL_SECONDS,
    DEFAULT_TTL_SECONDS,
    MAX_TTL_SECONDS,
    Executor,
    PendingAction,
    PendingActionExistsError,
    check_proposal,
    exact,
)
from sayso.pending.concurrency import run_here
from sayso.pending.consent.parser import ConfirmParser, RegexConfirmParser, read_words
from sayso.pending.executors import ExecutorFactory, Executors, Reconciler
from sayso.pending.memory import MemoryRecords
from sayso.pending.redis.client import PREFIX, connect
from sayso.pending.redis.repository import LUA, RedisRecords
from sayso.pending.redis.scripts import LuaScripts
from sayso.pending.repository import ActionDecision, ActionRepository, StoredAction, seal_action
from sayso.pending.settlement import ConfirmOutcome, Settlement
from sayso.pending.signing import ActionSigner

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
        self,
        records: ActionRepository,
        seal: ActionSigner,
        parser: ConfirmParser | None,
        default_ttl_seconds: float,
        max_closures: int,
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

    def register_reconciler(self, kind: str, reconcile: Reconciler) -> None:
        """From now on `reconcile(record)` is asked how an interrupted action of this kind ended."""
        self.executors.register_reconciler(kind, reconcile)

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
        """Arm an action and show it at once.

        Raises PendingActionExistsError, TypeError for inexact arguments, ValueError for too much of something.
        """
        action = PendingAction(
            user_id=user_id,
            kind=kind,
            preview=preview,
            **exact(args),
            channel_id=channel_id,
            conversation_id=conversation_id,
            ttl_seconds=self.default_ttl_seconds if ttl_seconds is None else ttl_seconds,
            requested_at=time.time(),
            parser_version=self.parser.version,
        )
        return self.arm(action, executor)

    def arm(self, action: PendingAction, executor: Executor | None = None) -> PendingAction:
        """Store an action as shown. Raises PendingActionExistsError when its scope has one waiting, ValueError."""
        check_proposal(action)
        scope = scope_of(action.user_id, action.channel_id, action.conversation_id)
        expires_at = self.records.stash(scope.conversation.id, seal_action(action, self.seal, user=scope.id))
        if expires_at is None:
            raise PendingActionExistsError(f"user {action.user_id!r} has an action waiting here: finish that one first")
        if executor is not None:
            self.executors.keep(action.pending_action_id, executor)
        return replace(action, state="shown", expires_at=expires_at)

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
        words = read_words(self.parser, message)
        if words.says != "confirm":
            return None
        outcome = self._decide(
            scope_of(user_id, channel_id, conversation_id),
            "confirm",
            expected_id=expected_id or "",
            expected_digest=args_digest or "",
            code=words.code,
        )
        return None if outcome and outcome.status == "kind_mismatch" else outcome

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
        _check_seconds("ignore_ttl_seconds", ignore_ttl_seconds)
        return self._decide(
            scope_of(user_id, channel_id, conversation_id),
            _known_intent(intent),
            expected_kind=expected_kind or "",
            expected_id=expected_id or "",
            ignore_seconds=ignore_ttl_seconds,
        )

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
        _check_seconds("seconds", seconds)
        scope = scope_of(user_id, channel_id, conversation_id)
        outcome = self._decide(scope, "ignore", expected_id=expected_id or "", ignore_seconds=seconds)
        return outcome.record if outcome and outcome.status == "ignored" else None

    def drop(
        self, user_id: str, *, channel_id: str | None = None, conversation_id: str | None = None
    ) -> PendingAction | None:
        """Disarm what waits in a scope, and return it."""
        outcome = self._decide(scope_of(user_id, channel_id, conversation_id), "cancel")
        return outcome.record if outcome and outcome.status == "cancelled" else None

    def _look(self, scope: Scope) -> StoredAction | None:
        return self.records.look(scope.conversation.id, scope.id)

    def _decide(self, scope: Scope, intent: Intent, **expected: Any) -> ConfirmOutcome | None:
        decision = ActionDecision(scope, intent, random_id(), **expected)
        return run_here(self.settlement.decide(decision))


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
        super().__init__(records, ActionSigner([token_hex()]), parser, default_ttl_seconds, max_entries)


class RedisPendingStore(BasePendingStore):
    """Pending actions in Redis (6.2 or later), for many processes and machines.

    Only the record is stored, never a closure: register an executor factory for each kind. `secret_keys` seal the
    records, by default those of the environment's SAYSO_SECRET_KEYS. With several primaries, `scripts` are this room's
    (`LUA`), wherever they run. Raises ValueError for a `client` that does not decode its answers.
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
        scripts: LuaScripts | None = None,
        secret_keys: list[str] | None = None,
    ) -> None:
        scripts = scripts or LuaScripts(client or connect(url), LUA, prefix=prefix)
        seal = ActionSigner(secret_keys or _keys_from_environment())
        super().__init__(RedisRecords(scripts), seal, parser, default_ttl_seconds, max_executor_entries)


def scope_of(user_id: str, channel_id: str | None, conversation_id: str | None) -> Scope:
    """The scope the seed's three ids name. Without a conversation it is the user's own, as in a direct message."""
    return Scope(user_id, Conversation(channel_id or "direct", conversation_id or user_id))


def _keys_from_environment() -> list[str]:
    keys = [key for key in os.environ.get("SAYSO_SECRET_KEYS", "").split(",") if key]
    if not keys:
        log.warning("SAYSO_SECRET_KEYS is not set: pending actions in Redis are not protected against tampering")
    return keys or ["unsealed"]


def _check_seconds(name: str, value: float) -> None:
    if not 0 <= value <= MAX_TTL_SECONDS:  # nor is NaN
        raise ValueError(f"{name} is {value!r}: it must be 0 or more seconds, at most {MAX_TTL_SECONDS:g}")


def _known_intent(intent: str) -> Intent:
    match intent.strip().lower():
        case "confirm" | "cancel" | "ignore" as known:
            return known
    log.warning("pending.unknown_intent: taken as ignore")
    return "ignore"
