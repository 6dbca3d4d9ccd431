"""PendingActionStore: pending actions as a program uses them, in memory or in Redis.

A program that has no workers calls it directly: it stashes an action, and passes on what the user
answers. `ChannelAgent` does so for a chat.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from secrets import token_hex
from typing import Any

from redis import Redis

from sayso.channels.markdown.literal import as_markdown, as_text
from sayso.channels.types import Conversation, Intent, Scope
from sayso.infra.concurrency import run_without_loop
from sayso.infra.ids import random_id
from sayso.infra.redis.client import PREFIX, connect
from sayso.pending.action import (
    DEFAULT_IGNORE_TTL_SECONDS,
    DEFAULT_TTL_SECONDS,
    MAX_TTL_SECONDS,
    ActionSigner,
    Executor,
    PendingAction,
    PendingActionExistsError,
    check_proposal,
    exact_args,
)
from sayso.pending.action_outcomes import ConfirmOutcome
from sayso.pending.consent.parser import ConfirmParser, RegexConfirmParser, parse_answer
from sayso.pending.executors import ExecutorFactory, Executors, Reconciler
from sayso.pending.finished_actions import FinishedActions
from sayso.pending.in_memory_actions import InMemoryActions
from sayso.pending.redis_repository import RedisActionRepository
from sayso.pending.repository import ActionDecision, ActionRepository, NoteEffect, sign_action
from sayso.pending.scripts import ACTION_SCRIPTS
from sayso.pending.settlement import Settlement
from sayso.pending.sharded_scripts import ShardedScripts

log = logging.getLogger(__name__)


class PendingActionStore:
    """Stores pending actions by scope: user, channel and conversation. Decides on them, too.

    Of the arguments that its methods share, `channel_id` and `conversation_id` are None for a user
    without a channel, whose scope is like a direct message. `expected_id` is the id of the action
    that is meant; None: whichever waits in the scope. The methods block, and raise
    redis.RedisError if the actions are in Redis.

    The previews and outcome texts that its methods return are text to print, without escapes of
    Markdown. Executors get the record as it was signed, whose preview is Markdown.
    """

    def __init__(
        self,
        repository: ActionRepository,
        signer: ActionSigner,
        parser: ConfirmParser | None,
        default_ttl_seconds: float,
        max_closures: int,
    ) -> None:
        """`parser` reads what users write; None: the usual one. `max_closures`: see Executors."""
        self.parser = parser or RegexConfirmParser()
        self.repository = repository
        self.signer = signer
        self.executors = Executors(max_closures=max_closures)
        self.settlement = Settlement(repository, signer, self.executors)
        self.finished_actions = FinishedActions(repository, signer)
        self.default_ttl_seconds = default_ttl_seconds
        self.ignore_ttl_seconds = DEFAULT_IGNORE_TTL_SECONDS

    def register_executor_factory(self, kind: str, factory: ExecutorFactory) -> None:
        """Let `factory` rebuild the executors of this kind from their records."""
        self.executors.register(kind, factory)

    def register_reconciler(self, kind: str, reconcile: Reconciler) -> None:
        """Let `reconcile(record)` find out how an interrupted action of this kind ended."""
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
        """Store an action as shown: its window to answer opens at once. Return it.

        `kind` names what will run, `preview` is what the user agrees to, shown literally unless it
        is `Markdown`. `executor` runs the action in this process; without it, the executor factory
        of the kind rebuilds one from `args`. `ttl_seconds` is how long the user may answer; None:
        as long as the store's default.

        Raises PendingActionExistsError when the scope is occupied, TypeError when `args` is not
        exact JSON or `check_proposal` finds no text where one must be, ValueError when a limit of
        `check_proposal` or of the arguments' size is exceeded.
        """
        if ttl_seconds is None:
            ttl_seconds = self.default_ttl_seconds
        action = PendingAction(
            user_id=user_id,
            kind=kind,
            preview=as_markdown(preview),
            **exact_args(args),
            channel_id=channel_id,
            conversation_id=conversation_id,
            ttl_seconds=ttl_seconds,
            requested_at=time.time(),
            parser_version=self.parser.version,
        )
        return self.create(action, executor)

    def create(self, action: PendingAction, executor: Executor | None = None) -> PendingAction:
        """Store an action as shown.

        Raises PendingActionExistsError, TypeError and ValueError, as `stash` does.
        """
        check_proposal(action)
        scope = scope_of(action.user_id, action.channel_id, action.conversation_id)
        new_action = sign_action(action, self.signer, user=scope.id)
        expires_at = run_without_loop(self.repository.save(scope.conversation.id, new_action))
        if expires_at is None:
            raise PendingActionExistsError(
                f"user {action.user_id!r} has an action waiting here: finish that one first"
            )
        if executor is not None:
            self.executors.keep_closure(action.pending_action_id, executor)
        return _to_print(replace(action, state="shown", expires_at=expires_at))

    def get(
        self, user_id: str, *, channel_id: str | None = None, conversation_id: str | None = None
    ) -> PendingAction | None:
        """Return the action that waits in a scope, None if there is none or its window has closed.

        An action whose record was changed in the store comes without its kind and arguments, and
        its preview says so.
        """
        scope = scope_of(user_id, channel_id, conversation_id)
        stored = run_without_loop(self.repository.load_open(scope.conversation.id, scope.id))
        if stored is None or stored.state != "shown" or stored.is_window_closed:
            return None
        return _to_print(stored.verified(self.signer, scope).action)

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
        """Run the action that waits in a scope if the message is a yes and all checks pass.

        `args_digest` is the digest of the arguments that the user saw; None: not checked. Return
        None if the message is no yes, or nothing waits: nothing was run.
        """
        answer = parse_answer(self.parser, message)
        if answer.intent != "confirm":
            return None
        outcome = self._decide(
            scope_of(user_id, channel_id, conversation_id),
            "confirm",
            expected_id=expected_id or "",
            expected_digest=args_digest or "",
            code=answer.code,
            words=message,
        )
        # The waiting action has another id or code than expected: for the caller, nothing waits.
        if outcome and outcome.status == "kind_mismatch":
            return None
        return outcome

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
        """Confirm, cancel or ignore the action that waits in a scope, by a button.

        `intent` is "confirm", "cancel" or "ignore"; any other text counts as "ignore", and is
        logged. `expected_kind` is the kind of action that the button was made for, None for any. A
        button of another prompt (`kind_mismatch`) neither runs nor cancels anything.
        `ignore_ttl_seconds` are left to answer after "ignore". Return None if nothing waits.
        """
        _check_seconds("ignore_ttl_seconds", ignore_ttl_seconds)
        known_intent: Intent = "ignore"
        match intent.strip().lower():
            case "confirm" | "cancel" | "ignore" as known:
                known_intent = known
            case _:
                log.warning("pending.unknown_intent: taken as ignore")
        return self._decide(
            scope_of(user_id, channel_id, conversation_id),
            known_intent,
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
        """Close the window to answer in `seconds`, unless it closes sooner anyway.

        Return the action, None if none waits.
        """
        _check_seconds("seconds", seconds)
        scope = scope_of(user_id, channel_id, conversation_id)
        outcome = self._decide(
            scope, "ignore", expected_id=expected_id or "", ignore_seconds=seconds
        )
        if outcome and outcome.status == "ignored":
            return outcome.record
        return None

    def drop(
        self, user_id: str, *, channel_id: str | None = None, conversation_id: str | None = None
    ) -> PendingAction | None:
        """Cancel the action that waits in a scope, and return it; None if none waits."""
        outcome = self._decide(scope_of(user_id, channel_id, conversation_id), "cancel")
        if outcome and outcome.status == "cancelled":
            return outcome.record
        return None

    def _decide(self, scope: Scope, intent: Intent, **expected: Any) -> ConfirmOutcome | None:
        """Decide on the open action of a scope, and return the outcome as text to print.

        `expected`: further fields of `ActionDecision`. None: nothing waits.
        """
        decision = ActionDecision(scope, intent, random_id(), **expected)
        outcome = run_without_loop(self.settlement.decide(decision))
        if outcome is None:
            return None
        return replace(
            outcome, record=_to_print(outcome.record), outcome_text=as_text(outcome.outcome_text)
        )


class InMemoryPendingStore(PendingActionStore):
    """Pending actions in this process, at most `max_entries`: then the oldest are forgotten.

    A restart loses them, and users must ask again. Threads may share it. `parser` and
    `default_ttl_seconds` are as in RedisPendingStore; `clock` returns Unix seconds.
    """

    def __init__(
        self,
        parser: ConfirmParser | None = None,
        default_ttl_seconds: float = DEFAULT_TTL_SECONDS,
        max_entries: int = 5000,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(
            InMemoryActions(max_entries=max_entries, clock=clock),
            ActionSigner([token_hex()]),
            parser,
            default_ttl_seconds,
            max_closures=max_entries,
        )


class RedisPendingStore(PendingActionStore):
    """Pending actions in Redis (6.2 or later), for many processes and machines.

    Only the record is stored, never a closure: register an executor factory for each kind.

    * `url`, or a `client` in its place: the Redis. `prefix` begins all keys.
    * `parser`: reads what users write; None: the usual one.
    * `default_ttl_seconds`: how long users may answer.
    * `max_executor_entries`: how many closures this process holds.
    * `secret_keys`: they sign the records; by default, SAYSO_SECRET_KEYS of the
      environment.
    * `scripts`: replaces the runner of ACTION_SCRIPTS, for several primaries.
    * `note_effect`: notes what was run, for a Redis that may lose it.

    Raises ValueError for a `client` that does not decode its answers.
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
        scripts: ShardedScripts | None = None,
        secret_keys: list[str] | None = None,
        note_effect: NoteEffect | None = None,
    ) -> None:
        if scripts is None:
            scripts = ShardedScripts(client or connect(url), ACTION_SCRIPTS, prefix=prefix)

        keys = secret_keys
        if not keys:
            from_environment = os.environ.get("SAYSO_SECRET_KEYS", "").split(",")
            keys = [key for key in from_environment if key]
        if not keys:
            log.warning(
                "SAYSO_SECRET_KEYS is not set: pending actions in Redis are not protected against tampering"
            )
            keys = ["unsealed"]

        super().__init__(
            RedisActionRepository(scripts, note_effect),
            ActionSigner(keys),
            parser,
            default_ttl_seconds,
            max_closures=max_executor_entries,
        )


def _to_print(action: PendingAction) -> PendingAction:
    """Return an action with its texts as a caller prints them."""
    preview = as_text(action.preview)
    outcome = action.outcome
    if outcome is not None:
        outcome = as_text(outcome)
    # Most actions need no other texts, and a copy takes time.
    if preview == action.preview and outcome == action.outcome:
        return action
    return replace(action, preview=preview, outcome=outcome)


def scope_of(user_id: str, channel_id: str | None, conversation_id: str | None) -> Scope:
    """Return the scope of a user, a channel and a conversation.

    Without a conversation it is the user's own, as in a direct message.
    """
    return Scope(user_id, Conversation(channel_id or "direct", conversation_id or user_id))


def _check_seconds(name: str, value: float) -> None:
    if not 0 <= value <= MAX_TTL_SECONDS:  # also refuses NaN
        raise ValueError(
            f"{name} is {value!r}: it must be 0 or more seconds, at most {MAX_TTL_SECONDS:g}"
        )
