"""RedisRecords: pending actions in Redis, each step one script, one round trip, on the server's clock."""

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

#: Where this room's scripts are.
LUA = Path(__file__).parent / "lua"


class RedisRecords:
    """Records in Redis, for any number of processes. Every method raises redis.RedisError."""

    def __init__(self, scripts: LuaScripts) -> None:
        self._scripts = scripts

    def look(self, conversation: str, user: str) -> StoredAction | None:
        """The live action of a scope."""
        return StoredAction.from_row(self._scripts.run("look", conversation, user))

    def read(self, conversation: str, pids: tuple[str, ...]) -> list[StoredAction | None]:
        """Actions by name."""
        return [StoredAction.from_row(row) for row in self._scripts.run("read", conversation, *pids)]

    def note_asked(self, chat: str, user: str, note: str) -> None:
        """Note which thread of a chat asked a user something last."""
        self._scripts.run("note_asked", chat, user, note)

    def last_asked(self, chat: str, user: str) -> str:
        """Return what was noted last, "" for nothing."""
        return str(self._scripts.run("last_asked", chat, user))

    def stash(self, conversation: str, arm: NewAction) -> float | None:
        """Arm outside a lane, shown at once."""
        answer = self._scripts.run(
            "stash", conversation, arm.user, arm.pending_action_id, arm.record, arm.mac, arm.ttl_ms, arm.kind,
            arm.digest, *arm.more,
        )  # fmt: skip
        return None if answer == "exists" else int(answer) / 1000

    def change(self, conversation: str, change: TurnChange) -> tuple[str, StoredAction | None]:
        """Move or arm outside a lane."""
        word, row = self._scripts.run("change", conversation, change.to_json())
        return str(word), StoredAction.from_row(row)

    def claim(self, claim: Claim, stored: StoredAction) -> tuple[ClaimStatus, ActionState | Literal[""]]:
        """Take a shown action, once."""
        verdict, state = self._scripts.run(
            "claim", claim.conversation, *_fence(claim.lease), claim.pending_action_id, claim.by, claim.kind,
            stored.record, stored.mac, claim.seq,
        )  # fmt: skip
        return verdict, state

    def decide(self, decision: ActionDecision) -> tuple[DecisionVerdict, StoredAction | None]:
        """Check and confirm, cancel or ignore, outside a lane."""
        scope = decision.scope
        verdict, row = self._scripts.run(
            "decide", scope.conversation.id, scope.id, decision.intent, decision.by,
            decision.expected_kind, decision.expected_id, decision.expected_digest,
            round(decision.ignore_seconds * 1000), decision.code,
        )  # fmt: skip
        return verdict, StoredAction.from_row(row)

    def start(self, claim: Claim, stored: StoredAction, attempt: str) -> StartVerdict:
        """The last step before the effect."""
        word: StartVerdict = self._scripts.run(
            "start", claim.conversation, *_fence(claim.lease), claim.pending_action_id, attempt, stored.record,
            stored.mac, MAX_ATTEMPTS,
        )  # fmt: skip
        return word

    def finish(self, claim: Claim, attempt: str, ending: ActionResult) -> None:
        """Record the truth about an effect."""
        self._scripts.run(
            "finish", claim.conversation, claim.pending_action_id, attempt, ending.state, ending.told, ending.result,
            ending.correction, claim.seq,
        )  # fmt: skip


def _fence(lease: Lease | None) -> tuple[Any, str]:
    return (lease.epoch, lease.token) if lease else ("", "")
