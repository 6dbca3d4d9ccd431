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
from sayso.pending.turns import Lease, NewAction, TurnChange

#: The folder of the scripts that this repository runs.
LUA = Path(__file__).parent / "lua"


class RedisActionRepository:
    """Stores actions in Redis, for any number of processes. Every method raises redis.RedisError."""

    def __init__(self, scripts: LuaScripts) -> None:
        self._scripts = scripts

    async def find_open(self, conversation: str, user: str) -> StoredAction | None:
        """Return the action that occupies a scope."""
        return StoredAction.from_row(await self._scripts.arun("look", conversation, user))

    async def read(self, conversation: str, pids: tuple[str, ...]) -> list[StoredAction | None]:
        """Return actions by id."""
        return [StoredAction.from_row(row) for row in await self._scripts.arun("read", conversation, *pids)]

    async def note_asked(self, chat: str, user: str, note: str) -> None:
        """Note which thread of a chat asked a user something last."""
        await self._scripts.arun("note_asked", chat, user, note)

    async def last_asked(self, chat: str, user: str) -> str:
        """Return the last note, "" when there is none."""
        return str(await self._scripts.arun("last_asked", chat, user))

    async def stash(self, conversation: str, new_action: NewAction) -> float | None:
        """Store an action as shown, without a lease."""
        answer = await self._scripts.arun(
            "stash", conversation, new_action.user, new_action.pending_action_id, new_action.record, new_action.mac,
            new_action.ttl_ms, new_action.kind, new_action.digest, *new_action.optional_fields,
        )  # fmt: skip
        return None if answer == "exists" else int(answer) / 1000

    async def change(self, conversation: str, change: TurnChange) -> tuple[str, StoredAction | None]:
        """Make a transition or store new actions, without a lease."""
        answer, row = await self._scripts.arun("change", conversation, change.to_json())
        return str(answer), StoredAction.from_row(row)

    async def claim(self, claim: Claim, stored: StoredAction) -> tuple[ClaimStatus, ActionState | Literal[""]]:
        """Claim a shown action, once."""
        status, state = await self._scripts.arun(
            "claim", claim.conversation, *_lease_args(claim.lease), claim.pending_action_id, claim.by, claim.kind,
            stored.record, stored.mac, claim.seq,
        )  # fmt: skip
        return status, state

    async def decide(self, decision: ActionDecision) -> tuple[DecisionVerdict, StoredAction | None]:
        """Check, then confirm, cancel or ignore, without a lease."""
        scope = decision.scope
        verdict, row = await self._scripts.arun(
            "decide", scope.conversation.id, scope.id, decision.intent, decision.by,
            decision.expected_kind, decision.expected_id, decision.expected_digest,
            round(decision.ignore_seconds * 1000), decision.code,
        )  # fmt: skip
        return verdict, StoredAction.from_row(row)

    async def start(self, claim: Claim, stored: StoredAction, attempt: str) -> StartVerdict:
        """Take the last step before the effect."""
        verdict: StartVerdict = await self._scripts.arun(
            "start", claim.conversation, *_lease_args(claim.lease), claim.pending_action_id, attempt, stored.record,
            stored.mac, MAX_ATTEMPTS,
        )  # fmt: skip
        return verdict

    async def finish(self, claim: Claim, attempt: str, result: ActionResult) -> None:
        """Record how an effect ended."""
        await self._scripts.arun(
            "finish", claim.conversation, claim.pending_action_id, attempt, result.state, result.outcome_text,
            result.result, result.correction, claim.seq,
        )  # fmt: skip


def _lease_args(lease: Lease | None) -> tuple[Any, str]:
    return (lease.epoch, lease.token) if lease else ("", "")
