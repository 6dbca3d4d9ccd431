"""RedisActionRepository: pending actions in Redis. Each step is one script, one round trip, on the server's clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from sayso.pending.action import ActionState
from sayso.pending.redis.scripts import LuaScripts
from sayso.pending.repository import (
    MAX_ATTEMPTS,
    ActionDecision,
    ActionResult,
    Claim,
    ClaimStatus,
    DecisionVerdict,
    StartVerdict,
    StoredAction,
)
from sayso.pending.turns.change import Lease, NewAction, TurnChange

#: The folder of the scripts that this repository runs.
LUA = Path(__file__).parent / "lua"


class RedisActionRepository:
    """Stores actions in Redis, for any number of processes. Every method raises redis.RedisError."""

    def __init__(self, scripts: LuaScripts) -> None:
        self._scripts = scripts

    def find_open(self, conversation: str, user: str) -> StoredAction | None:
        """Return the action that occupies a scope."""
        return StoredAction.from_row(self._scripts.run("look", conversation, user))

    def read(self, conversation: str, pids: tuple[str, ...]) -> list[StoredAction | None]:
        """Return actions by id."""
        return [StoredAction.from_row(row) for row in self._scripts.run("read", conversation, *pids)]

    def note_asked(self, chat: str, user: str, note: str) -> None:
        """Note which thread of a chat asked a user something last."""
        self._scripts.run("note_asked", chat, user, note)

    def last_asked(self, chat: str, user: str) -> str:
        """Return the last note, "" when there is none."""
        return str(self._scripts.run("last_asked", chat, user))

    def stash(self, conversation: str, new_action: NewAction) -> float | None:
        """Store an action as shown, without a lease."""
        answer = self._scripts.run(
            "stash", conversation, new_action.user, new_action.pending_action_id, new_action.record, new_action.mac,
            new_action.ttl_ms, new_action.kind, new_action.digest, *new_action.optional_fields,
        )  # fmt: skip
        return None if answer == "exists" else int(answer) / 1000

    def change(self, conversation: str, change: TurnChange) -> tuple[str, StoredAction | None]:
        """Make a transition or store new actions, without a lease."""
        answer, row = self._scripts.run("change", conversation, change.to_json())
        return str(answer), StoredAction.from_row(row)

    def claim(self, claim: Claim, stored: StoredAction) -> tuple[ClaimStatus, ActionState | Literal[""]]:
        """Claim a shown action, once."""
        status, state = self._scripts.run(
            "claim", claim.conversation, *_lease_args(claim.lease), claim.pending_action_id, claim.by, claim.kind,
            stored.record, stored.mac, claim.seq,
        )  # fmt: skip
        return status, state

    def decide(self, decision: ActionDecision) -> tuple[DecisionVerdict, StoredAction | None]:
        """Check, then confirm, cancel or ignore, without a lease."""
        scope = decision.scope
        verdict, row = self._scripts.run(
            "decide", scope.conversation.id, scope.id, decision.intent, decision.by,
            decision.expected_kind, decision.expected_id, decision.expected_digest,
            round(decision.ignore_seconds * 1000), decision.code,
        )  # fmt: skip
        return verdict, StoredAction.from_row(row)

    def start(self, claim: Claim, stored: StoredAction, attempt: str) -> StartVerdict:
        """Take the last step before the effect."""
        verdict: StartVerdict = self._scripts.run(
            "start", claim.conversation, *_lease_args(claim.lease), claim.pending_action_id, attempt, stored.record,
            stored.mac, MAX_ATTEMPTS,
        )  # fmt: skip
        return verdict

    def finish(self, claim: Claim, attempt: str, result: ActionResult) -> None:
        """Record how an effect ended."""
        self._scripts.run(
            "finish", claim.conversation, claim.pending_action_id, attempt, result.state, result.outcome_text,
            result.result, result.correction, claim.seq,
        )  # fmt: skip


def _lease_args(lease: Lease | None) -> tuple[Any, str]:
    return (lease.epoch, lease.token) if lease else ("", "")
