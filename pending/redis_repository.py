"""RedisActionRepository: pending actions in Redis.

Each method runs one script of `pending/lua/` in one round trip, on the server's clock.
`repository.py` says what each method takes and returns.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from sayso.pending.action import ActionState
from sayso.pending.repository import (
    ActionDecision,
    ActionResult,
    ChangeStatus,
    Claim,
    ClaimStatus,
    DecisionVerdict,
    NoteEffect,
    StartVerdict,
)
from sayso.pending.sharded_scripts import ShardedScripts
from sayso.pending.stored_action import StoredAction
from sayso.pending.turn_changes import NewAction, TurnChange


class RedisActionRepository:
    """Stores actions in Redis, for any number of processes. One per process.

    As in the port, `conversation` is the id of a conversation, and `user` the id of a scope in it.
    Every method raises redis.RedisError.
    """

    def __init__(self, scripts: ShardedScripts, note_effect: NoteEffect | None = None) -> None:
        """`note_effect` notes each effect outside of Redis (see `NoteEffect`); None for no notes."""
        self._scripts = scripts
        self._note_effect = note_effect

    async def load_open(self, conversation: str, user: str) -> StoredAction | None:
        """Return the action that occupied a scope last, None if none did lately."""
        text = await self._scripts.arun("load_open_action", conversation, {"user": user})
        return StoredAction.from_json(text)

    async def load(
        self, conversation: str, action_ids: tuple[str, ...]
    ) -> list[StoredAction | None]:
        """Return actions in the order of their ids; None for an unknown one."""
        texts = await self._scripts.arun("load_actions", conversation, {"action_ids": action_ids})
        return [StoredAction.from_json(text) for text in texts]

    async def open_form(self, conversation: str, action_id: str) -> StoredAction | None:
        """Return an action whose person opens its form, and extend its question's window.

        The question then stays open for at least FORM_MS (in `stored_limits.py`) more.
        """
        text = await self._scripts.arun("open_form", conversation, {"action_id": action_id})
        return StoredAction.from_json(text)

    async def list_started(self, conversation: str, user: str) -> list[StoredAction]:
        """Return the actions of a scope that were started in the last hour, the newest first."""
        texts = await self._scripts.arun("list_started_actions", conversation, {"user": user})
        return [StoredAction.from_fields(json.loads(text)) for text in texts]

    async def list_requests(self, conversation: str, user: str) -> list[StoredAction]:
        """Return the requests that were sent to a scope, the newest first."""
        texts = await self._scripts.arun("list_requests", conversation, {"user": user})
        return [StoredAction.from_fields(json.loads(text)) for text in texts]

    async def load_standing(self, conversation: str, user: str) -> list[str]:
        """Return the standing yeses of a scope as JSON, in any order."""
        texts: list[str] = await self._scripts.arun("load_standing", conversation, {"user": user})
        return texts

    async def save_question_place(self, chat: str, user: str, place: str) -> None:
        """Save in which thread of a chat a user was last asked something.

        The note is about the chat as a whole, so `chat` is its conversation without a thread.
        """
        await self._scripts.arun("save_question_place", chat, {"user": user, "place": place})

    async def load_question_place(self, chat: str, user: str) -> str:
        """Return what `save_question_place` saved last, "" when there is none."""
        return str(await self._scripts.arun("load_question_place", chat, {"user": user}))

    async def save(self, conversation: str, new_action: NewAction) -> float | None:
        """Store an action as shown, without a lease.

        Return when its window to answer closes, in Unix seconds. None if another action occupies
        the scope.
        """
        answer = await self._scripts.arun(
            "save_action", conversation, {"action": new_action.to_dict()}
        )
        if answer == "exists":
            return None
        closes_at_ms = int(answer)
        return closes_at_ms / 1000

    async def change(
        self, conversation: str, change: TurnChange
    ) -> tuple[ChangeStatus, StoredAction | None]:
        """Make a transition or store new actions, or both in one step.

        Return the status, and with "ok" the last new action, or that of the transition.
        """
        text = await self._scripts.arun("change", conversation, {"change": change.to_dict()})
        answer = json.loads(text)
        return answer["status"], _action_of(answer)

    async def claim(
        self, claim: Claim, stored: StoredAction
    ) -> tuple[ClaimStatus, ActionState | Literal[""]]:
        """Claim a shown action, once. Return the status and the action's state after the claim.

        The script compares the stored record and MAC with those of `stored`, which were verified.
        """
        args = {
            **_lease_args(claim),
            "action_id": claim.action_id,
            "decided_by_event": claim.decided_by_event,
            "kind": claim.kind,
            "user": claim.scope.id,
            "mac": stored.mac,
            "seq": claim.seq,
        }
        if claim.decision:
            args["decision"] = claim.decision.to_json()
        if claim.grants:
            args["grants"] = {"id": claim.grants.id, "json": claim.grants.to_json()}
        if claim.use:
            args["use"] = claim.use.to_dict()
        # The record is no part of the arguments' JSON: it is compared byte by byte.
        text = await self._scripts.arun("claim", claim.conversation, args, stored.record)
        answer = json.loads(text)
        return answer["status"], answer["state"]

    async def decide(self, decision: ActionDecision) -> tuple[DecisionVerdict, StoredAction | None]:
        """Confirm, cancel or ignore the open action of a scope, without a lease."""
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
        if decision.record:
            args["record"] = decision.record.to_json()
        text = await self._scripts.arun("decide", scope.conversation.id, args)
        answer = json.loads(text)
        return answer["verdict"], _action_of(answer)

    async def start(self, claim: Claim, stored: StoredAction, attempt: str) -> StartVerdict:
        """Store that the effect begins now. Return whether this attempt may go ahead.

        The script compares record and MAC as in `claim`.
        """
        args = {
            **_lease_args(claim),
            "action_id": claim.action_id,
            "attempt_id": attempt,
            "mac": stored.mac,
        }
        verdict: StartVerdict = await self._scripts.arun(
            "start", claim.conversation, args, stored.record
        )
        # An action as the second argument notes that its effect begins. After the script: an effect
        # that may not begin is not noted.
        if self._note_effect and verdict == "go":
            self._note_effect(claim, stored.action)
        return verdict

    async def finish(self, claim: Claim, attempt: str, result: ActionResult) -> None:
        """Record how the effect of an attempt ended."""
        # A result as the second argument notes that the effect ended. Before the script: the effect
        # took place, even if Redis fails.
        if self._note_effect:
            self._note_effect(claim, result)
        args = {
            "action_id": claim.action_id,
            "attempt_id": attempt,
            "state": result.state,
            "seq": claim.seq,
            "outcome_text": result.outcome_text,
            "result": result.result,
            "output": result.output,
            "correction": result.correction,
        }
        await self._scripts.arun("finish", claim.conversation, args)


def _action_of(answer: Mapping[str, Any]) -> StoredAction | None:
    """Return the action in the answer of a script, None if it names none."""
    fields = answer.get("action")
    if fields:
        return StoredAction.from_fields(fields)
    return None


def _lease_args(claim: Claim) -> dict[str, Any]:
    """Return the arguments that prove the lease of a claim, none for a claim without a lease.

    A program that decides outside of a worker has no lease. The scripts still let only one claim
    win.
    """
    if claim.lease:
        return claim.lease.args
    return {}
