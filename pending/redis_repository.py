"""RedisActionRepository: pending actions in Redis.

Each step is one script, one round trip, on the server's clock.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from sayso.infra.redis.scripts import LuaScripts
from sayso.pending.action import ActionState
from sayso.pending.repository import (
    ActionDecision,
    ActionResult,
    Claim,
    ClaimStatus,
    DecisionVerdict,
    NoteEffect,
    StartVerdict,
)
from sayso.pending.stored_action import StoredAction
from sayso.pending.turns import NewAction, TurnChange


class RedisActionRepository:
    """Stores actions in Redis, for any number of processes.

    Every method raises redis.RedisError.
    """

    def __init__(self, scripts: LuaScripts, note_effect: NoteEffect | None = None) -> None:
        self._scripts = scripts
        self._note_effect = note_effect

    async def load_open(self, conversation: str, user: str) -> StoredAction | None:
        """Return the action that occupies a scope."""
        return StoredAction.from_json(
            await self._scripts.arun("load_open_action", conversation, {"user": user})
        )

    async def load(
        self, conversation: str, action_ids: tuple[str, ...]
    ) -> list[StoredAction | None]:
        """Return actions by id."""
        return [
            StoredAction.from_json(text)
            for text in await self._scripts.arun(
                "load_actions", conversation, {"action_ids": action_ids}
            )
        ]

    async def open_form(self, conversation: str, action_id: str) -> StoredAction | None:
        """Return an action whose person begins to change it.

        An open question stays open for FORM_MS at least.
        """
        return StoredAction.from_json(
            await self._scripts.arun("open_form", conversation, {"action_id": action_id})
        )

    async def list_started(self, conversation: str, user: str) -> list[StoredAction]:
        """Return the actions that were started lately, the last one first."""
        found = await self._scripts.arun("list_started_actions", conversation, {"user": user})
        return [StoredAction.from_fields(json.loads(text)) for text in found]

    async def save_question_place(self, chat: str, user: str, place: str) -> None:
        """Save which thread of a chat asked a user something last."""
        await self._scripts.arun("save_question_place", chat, {"user": user, "place": place})

    async def load_question_place(self, chat: str, user: str) -> str:
        """Return what was saved last, "" when there is none."""
        return str(await self._scripts.arun("load_question_place", chat, {"user": user}))

    async def save(self, conversation: str, new_action: NewAction) -> float | None:
        """Store an action as shown, without a lease."""
        answer = await self._scripts.arun(
            "save_action", conversation, {"action": new_action.to_dict()}
        )
        if answer == "exists":
            return None
        return int(answer) / 1000

    async def change(
        self, conversation: str, change: TurnChange
    ) -> tuple[str, StoredAction | None]:
        """Make a transition or store new actions, without a lease."""
        answer = json.loads(
            await self._scripts.arun("change", conversation, {"change": change.to_dict()})
        )
        return answer["status"], _action_of(answer)

    async def claim(
        self, claim: Claim, stored: StoredAction
    ) -> tuple[ClaimStatus, ActionState | Literal[""]]:
        """Claim a shown action, once."""
        args = {
            **_lease_args(claim),
            "action_id": claim.action_id,
            "decided_by_event": claim.decided_by_event,
            "kind": claim.kind,
        }
        args |= {"mac": stored.mac, "seq": claim.seq}
        status, state = await self._scripts.arun("claim", claim.conversation, args, stored.record)
        return status, state

    async def decide(self, decision: ActionDecision) -> tuple[DecisionVerdict, StoredAction | None]:
        """Check, then confirm, cancel or ignore, without a lease."""
        scope = decision.scope
        args = {
            "user": scope.id,
            "intent": decision.intent,
            "decided_by_event": decision.decided_by_event,
            "expected_kind": decision.expected_kind,
            "expected_id": decision.expected_id,
            "expected_digest": decision.expected_digest,
            "ignore_ms": round(decision.ignore_seconds * 1000),
            "code": decision.code,
        }
        answer = json.loads(await self._scripts.arun("decide", scope.conversation.id, args))
        return answer["verdict"], _action_of(answer)

    async def start(self, claim: Claim, stored: StoredAction, attempt: str) -> StartVerdict:
        """Take the last step before the effect."""
        args = {
            **_lease_args(claim),
            "action_id": claim.action_id,
            "attempt_id": attempt,
            "mac": stored.mac,
        }
        verdict: StartVerdict = await self._scripts.arun(
            "start", claim.conversation, args, stored.record
        )
        if self._note_effect and verdict == "go":
            self._note_effect(claim, stored.action)
        return verdict

    async def finish(self, claim: Claim, attempt: str, result: ActionResult) -> None:
        """Record how an effect ended."""
        if self._note_effect:
            self._note_effect(claim, result)
        args = {
            "action_id": claim.action_id,
            "attempt_id": attempt,
            "state": result.state,
            "seq": claim.seq,
        }
        args |= {
            "outcome_text": result.outcome_text,
            "result": result.result,
            "output": result.output,
        }
        args |= {"correction": result.correction}
        await self._scripts.arun("finish", claim.conversation, args)


def _action_of(answer: Mapping[str, Any]) -> StoredAction | None:
    """Return the action in the answer of a script, None if it names none."""
    fields = answer.get("action")
    return StoredAction.from_fields(fields) if fields else None


def _lease_args(claim: Claim) -> dict[str, Any]:
    if claim.lease:
        return claim.lease.args
    return {}
