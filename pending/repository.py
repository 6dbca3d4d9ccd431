"""ActionRepository: the port of the few atomic steps in the life of a stored action."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from sayso.channels.types import Intent, Scope
from sayso.infra.tracing import current_trace
from sayso.pending.action import ActionSigner, ActionState, PendingAction, encode_canonical
from sayso.pending.stored_action import SIGNED_FIELDS, StoredAction
from sayso.pending.turns import Lease, NewAction, TurnChange

#: The answer to a claim. Only `mine` may go on; with any other, nothing is executed.
ClaimStatus = Literal["mine", "other", "gone", "expired", "early", "tampered", "lost", "moved"]
#: The answer to a decision made without a lease. Only `mine` may go on;
#: `stale` is an action whose process died at it.
DecisionVerdict = Literal[
    "mine", "gone", "expired", "early", "mismatch", "changed", "cancelled", "ignored", "stale"
]
#: The answer to a start. Only `go` may go on; a `worn` action was started MAX_STARTS times.
StartVerdict = Literal["go", "no", "lost", "tampered", "worn"]


def sign_action(
    action: PendingAction,
    signer: ActionSigner,
    *,
    user: str,
    occupies_scope: bool = True,
    steps: tuple[str, ...] = (),
) -> NewAction:
    """Return the action as it will be stored: all that is shown and all that will run,
    under one MAC.
    """
    signed = {
        name: value
        for name, default in SIGNED_FIELDS.items()
        if (value := getattr(action, name)) != default
    }
    # Its arguments are known to be exact JSON.
    record = encode_canonical({**signed, "pid": action.pending_action_id})
    return NewAction(
        action_id=action.pending_action_id,
        user=user,
        record=record,
        mac=signer.sign(record),
        ttl_ms=max(1, round(action.ttl_seconds * 1000)),
        kind=action.kind,
        digest=action.args_digest,
        idempotent=action.idempotent,
        occupies_scope=occupies_scope,
        code=action.code,
        plan=action.plan,
        steps=steps,
        trace=current_trace(),
    )


@dataclass(frozen=True, slots=True)
class Claim:
    """A user's decision on one stored action."""

    scope: Scope
    action_id: str
    #: The event id of the turn that decides, so that a redelivery makes the same claim. A worker
    #: adds its `lease` and the number `seq` of its turn as proof.
    decided_by_event: str
    kind: Literal["text", "tap"] = "text"
    lease: Lease | None = None
    seq: int = 0
    #: When the decision came in, in Unix seconds; 0 when it was not noted.
    received_at: float = 0.0

    @property
    def conversation(self) -> str:
        """Return the id of the conversation that the action lives in."""
        return self.scope.conversation.id


@dataclass(frozen=True, slots=True)
class ActionDecision:
    """A decision, made without a lease, on the open action of a scope.

    The expected values must match the action; "" matches anything. `decided_by_event` is a random
    word of the caller: sending the decision again with the same word repeats nothing. It serves as the id of
    the attempt too.
    """

    scope: Scope
    intent: Intent
    decided_by_event: str
    expected_kind: str = ""
    expected_id: str = ""
    expected_digest: str = ""
    code: str = ""
    ignore_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ActionResult:
    """How an effect ended: what the user is told, what the tool returned,
    and the reply to send if it is late.

    `output`: what a model reads of the tool's result, or of its error; "" if that is `result`.
    """

    state: Literal["done", "failed", "unknown"]
    outcome_text: str
    result: str = ""
    correction: str = ""
    output: str = ""


#: Notes an effect outside of the store, in case the store loses data: with its action right before
#: it begins, and with its result before that is stored.
NoteEffect = Callable[[Claim, PendingAction | ActionResult], None]


class ActionRepository(Protocol):
    """Stores pending actions. Each call is one atomic step and safe to repeat."""

    async def load_open(self, conversation: str, user: str) -> StoredAction | None:
        """Return the action that occupies a scope."""

    async def load(
        self, conversation: str, action_ids: tuple[str, ...]
    ) -> list[StoredAction | None]:
        """Return actions by id, such as the steps of a plan."""

    async def open_form(self, conversation: str, action_id: str) -> StoredAction | None:
        """Return an action whose person begins to change it.

        An open question stays open for FORM_MS at least.
        """

    async def list_started(self, conversation: str, user: str) -> list[StoredAction]:
        """Return the actions of a scope that were started within the last hour, the last one first."""

    async def save_question_place(self, chat: str, user: str, place: str) -> None:
        """Save which thread of a chat asked a user something last.

        `chat` is the conversation without a thread.
        """

    async def load_question_place(self, chat: str, user: str) -> str:
        """Return what `save_question_place` saved last, "" when there is none."""

    async def save(self, conversation: str, new_action: NewAction) -> float | None:
        """Store an action as shown, without a lease.

        Return when its window closes, None if the scope is occupied.
        """

    async def change(
        self, conversation: str, change: TurnChange
    ) -> tuple[str, StoredAction | None]:
        """Make a transition or store new actions, without a lease.

        The first value is "ok", "exists" or "state".
        """

    async def claim(
        self, claim: Claim, stored: StoredAction
    ) -> tuple[ClaimStatus, ActionState | Literal[""]]:
        """Claim a shown action, once.

        If the record differs from `stored`, which was verified, it is `tampered`.
        """

    async def decide(self, decision: ActionDecision) -> tuple[DecisionVerdict, StoredAction | None]:
        """Check, then confirm (claim and start at once), cancel or ignore, without a lease.

        The caller verifies.
        """

    async def start(self, claim: Claim, stored: StoredAction, attempt: str) -> StartVerdict:
        """Take the last step before the effect. Return whether this attempt may go ahead."""

    async def finish(self, claim: Claim, attempt: str, result: ActionResult) -> None:
        """Record how an effect ended, however late."""
