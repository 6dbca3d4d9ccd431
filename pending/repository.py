"""ActionRepository: the port to the store of pending actions, and the values of its calls.

Redis has the real store (`redis_repository.py`); programs without Redis use the one in memory
(`in_memory_actions.py`). ARCHITECTURE.md shows the states of an action.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from sayso.channels.types import Intent, Scope
from sayso.infra.tracing import current_trace
from sayso.pending.action import ActionSigner, ActionState, PendingAction, encode_canonical
from sayso.pending.approvals.votes import Vote
from sayso.pending.decision_record import DecisionRecord
from sayso.pending.standing_yes import StandingUse, StandingYes
from sayso.pending.stored_action import SIGNED_FIELDS, SIGNED_ID, StoredAction
from sayso.pending.turn_changes import NewAction, TurnChange
from sayso.pending.turns import Lease

#: The answer to a claim. Only with `mine` the action is executed:
#:
#: * `mine`: this claim has won the action;
#: * `other`: the action waits for no yes, or another decision has claimed or ended it;
#: * `gone`: no such action is stored;
#: * `expired`: the window to answer has closed;
#: * `early`: the answer came in before the question was shown;
#: * `tampered`: the record is not the one that was verified;
#: * `not_covered`: the standing yes of the claim is over, was revoked, or was used since it was read;
#: * `lost`: another worker has the lease, and this one stops;
#: * `moved`: what the worker knows is out of date, and it reads the turn again. Either the turn is
#:   no longer the first in its mailbox, or this same decision has claimed the action before, and
#:   the action has ended since.
ClaimStatus = Literal[
    "mine", "other", "gone", "expired", "early", "tampered", "not_covered", "lost", "moved"
]
#: The answer to a decision made without a lease. Only with `mine` the action is executed:
#:
#: * `mine`: this decision has claimed and started the action;
#: * `gone`: no action waits, or a process is working on it;
#: * `early`: the question was not shown yet;
#: * `expired`: the window to answer has closed;
#: * `mismatch`: the kind, the id or the code is not the expected one, and nothing changed;
#: * `changed`: the arguments are not the expected ones, and the action is cancelled;
#: * `cancelled`: the action is cancelled, as was decided;
#: * `ignored`: the question stays open, but its window closes sooner, as was decided;
#: * `stale`: the action was claimed or started more than STALE_MS ago (two minutes, in
#:   `stored_limits.py`) and has no end, so its process has died. Nothing is run again: the caller
#:   ends the action, and says what is known of its effect.
DecisionVerdict = Literal[
    "mine", "gone", "expired", "early", "mismatch", "changed", "cancelled", "ignored", "stale"
]
#: The answer to a start. Only with `go` the effect may begin:
#:
#: * `go`: the action is stored as started;
#: * `no`: the action is not claimed;
#: * `lost`: another worker has the lease;
#: * `tampered`: the record is not the one that was verified;
#: * `worn`: the action was started MAX_STARTS times (three, in `stored_limits.py`), and no start
#:   has led to a stored end. Only the action of an idempotent tool is started again at all. The
#:   caller ends it as interrupted.
StartVerdict = Literal["go", "no", "lost", "tampered", "worn"]
#: The answer to a change:
#:
#: * `ok`: the change was made;
#: * `exists`: another action occupies the scope, and nothing changed;
#: * `state`: the action was in none of the expected states, and nothing changed.
ChangeStatus = Literal["ok", "exists", "state"]


def sign_action(
    action: PendingAction,
    signer: ActionSigner,
    *,
    user: str,
    occupies_scope: bool = True,
    steps: tuple[str, ...] = (),
) -> NewAction:
    """Return the action as it will be stored: all that is shown and all that will run, signed.

    `user` is the id of the scope that the action waits in. `occupies_scope`: whether a plain yes of
    that user answers it. It is False for an undo, which only its button reaches, and for a step of
    a plan, which is reached by its plan. `steps`: the ids of its steps, if the action is a plan.
    """
    # A field with its default value is left out, which keeps the record short. StoredAction gives
    # the field its default again. A field that is added to the stored text later is found out,
    # because the MAC covers the whole text.
    signed: dict[str, Any] = {SIGNED_ID: action.pending_action_id}
    for name, default in SIGNED_FIELDS.items():
        value = getattr(action, name)
        if value != default:
            signed[name] = value

    # The arguments of an action are known to be exact JSON: `exact_args` has refused all others.
    record = encode_canonical(signed)
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
    """Who decided on which stored action, and the proof that this worker may carry it out.

    Lives for one attempt to settle the action, and is passed to each step of the attempt.
    """

    #: Who decides, and where.
    scope: Scope
    action_id: str
    #: The event id of the turn that decides, so that a redelivery makes the same claim.
    decided_by_event: str
    #: Whether the person wrote the yes, or tapped a button.
    kind: Literal["text", "tap"] = "text"
    #: The lease of the worker, as proof; None without a worker.
    lease: Lease | None = None
    #: The number of the worker's turn, as proof; 0 without a worker.
    seq: int = 0
    #: When the decision came in, in Unix seconds; 0 if that is not known.
    received_at: float = 0.0
    #: How the person decided. It is stored with the claim. None if that is not recorded.
    decision: DecisionRecord | None = None
    #: The votes of the other people who agreed, for an action that others decide; () for any other.
    votes: tuple[Vote, ...] = ()
    #: The standing yes that the person gives with this yes, None for none. The claim stores it.
    grants: StandingYes | None = None
    #: The use of a standing yes, None for a claim by a yes to a question. The claim books it. The
    #: action need not have been shown then.
    use: StandingUse | None = None

    @property
    def conversation(self) -> str:
        """Return the id of the conversation that the action lives in."""
        return self.scope.conversation.id


@dataclass(frozen=True, slots=True)
class ActionDecision:
    """A decision on the open action of a scope, made without a lease."""

    scope: Scope
    intent: Intent
    #: The event id of the turn that decides; a program without a turn makes up a random one.
    #: Sending the decision again with the same id repeats nothing. With the verdict `mine`, the id
    #: is also that of the attempt, which `ActionRepository.finish` takes.
    decided_by_event: str
    #: What the action must be for the decision to count: its kind, its id and the digest of its
    #: arguments. "" matches anything.
    expected_kind: str = ""
    expected_id: str = ""
    expected_digest: str = ""
    #: What the person typed with the yes, for an action that needs a code.
    code: str = ""
    #: With the intent `ignore`: the most seconds that are left to answer. A person ignores a
    #: question who neither confirms nor cancels it, such as by a tap on its button "ignore". The
    #: question stays open for this short time, so that a change of mind is possible.
    ignore_seconds: float = 0.0
    #: The person's message, if the program passes one on; "" for none.
    words: str = ""
    #: How it is decided. It is stored if this confirms or cancels the action. It names no action,
    #: because only the store knows which one waits. None if that is not recorded.
    record: DecisionRecord | None = None


@dataclass(frozen=True, slots=True)
class ActionResult:
    """How an effect ended."""

    state: Literal["done", "failed", "unknown"]
    #: What the user is told.
    outcome_text: str
    #: What the tool returned, for the user.
    result: str = ""
    #: The outbox entry to send if the user was told "unknown" before this result came.
    correction: str = ""
    #: What a model reads of the tool's result, or of its error; "" if that is `result`.
    output: str = ""


#: Notes an effect outside of the store, in case the store loses data. The store calls it twice:
#: with the action right before its effect begins, and with the result before that is stored. It
#: only logs its own failures. The real one is in `workers/data_loss/notices.py`.
NoteEffect = Callable[[Claim, PendingAction | ActionResult], None]


class ActionRepository(Protocol):
    """Stores pending actions, in Redis or in this process. Lives as long as its store.

    Each call is one atomic step and safe to repeat. `conversation` is the id of a conversation,
    `user` the id of a scope in it.

    At most one action occupies a scope: a plain yes of its user answers this action, and it is the
    *open action* of the scope. It occupies the scope until it has ended.

    The port has 14 methods, more than a port should have. Twelve of them change or read the same
    records: a store with only some of them could not hold what they promise each other, such as one
    open action in a scope and one claim of an action. The two about the place of a question are
    here because an answer in another thread must be found by every process that shares the store.
    """

    async def load_open(self, conversation: str, user: str) -> StoredAction | None:
        """Return the action that occupied a scope last, None if none did lately.

        It may be in any state, also an ended one. The caller looks at the state.
        """

    async def load(
        self, conversation: str, action_ids: tuple[str, ...]
    ) -> list[StoredAction | None]:
        """Return actions in the order of their ids, such as the steps of a plan; None: unknown."""

    async def open_form(self, conversation: str, action_id: str) -> StoredAction | None:
        """Return an action whose person opens its form to change it, None if there is none.

        The window of an open question is extended to FORM_MS (ten minutes, in
        `pending/stored_limits.py`) from now, if less is left.
        """

    async def list_started(self, conversation: str, user: str) -> list[StoredAction]:
        """Return the actions of a scope that were started in the last hour, the newest first."""

    async def list_requests(self, conversation: str, user: str) -> list[StoredAction]:
        """Return the requests that were sent to a scope, the newest first.

        These are questions about other people's actions (`sayso.pending.approvals.requests`). Ended
        ones are among them for a while.
        """

    async def load_standing(self, conversation: str, user: str) -> Sequence[str]:
        """Return the standing yeses of a scope as JSON (`StandingYes.to_json`), in any order.

        Ended and changed ones may be among them: `load_standing_yeses` leaves these out.
        """

    async def save_question_place(self, chat: str, user: str, place: str) -> None:
        """Save in which thread of a chat a user was last asked something, and about which action.

        The user may answer in another thread of the chat. The agent then looks up the question by
        this note. `chat` is the id of the conversation without a thread. `place` is a text of the
        caller, which the store does not read.
        """

    async def load_question_place(self, chat: str, user: str) -> str:
        """Return what `save_question_place` saved last, "" when there is none."""

    async def save(self, conversation: str, new_action: NewAction) -> float | None:
        """Store one action as shown, without a lease, for a program that proposes it directly.

        Return when its window closes, in Unix seconds, None if another action occupies the scope.
        """

    async def change(
        self, conversation: str, change: TurnChange
    ) -> tuple[ChangeStatus, StoredAction | None]:
        """Make a transition or store new actions as shown, or both at once, without a lease.

        Of `change`, only the transition, the new actions and the revocation are read. With "ok" return the last new
        action, or the action of the transition if there is no new one; else None.
        """

    async def claim(
        self, claim: Claim, stored: StoredAction
    ) -> tuple[ClaimStatus, ActionState | Literal[""]]:
        """Claim a shown action, once. Return the status and the action's state after the claim.

        The status is `tampered` if the record is no longer that of `stored`, which was verified.
        The state is "" with `gone`, because there is no action, and with `lost`, because then none
        is looked up.
        """

    async def decide(self, decision: ActionDecision) -> tuple[DecisionVerdict, StoredAction | None]:
        """Decide on the open action of a scope, without a lease: confirm, cancel or ignore.

        To confirm is to claim and to start at once. Return the verdict and the action, None if
        there is none. The caller verifies the signature of the action before it runs anything.
        """

    async def start(self, claim: Claim, stored: StoredAction, attempt: str) -> StartVerdict:
        """Store that the effect of a claimed action begins now. Return whether it may begin.

        `attempt` is a random id of this start, so that a repeated call gets the same verdict.
        """

    async def finish(self, claim: Claim, attempt: str, result: ActionResult) -> None:
        """Record how the effect of an attempt ended, however late.

        `attempt` is the id that was given to `start`. After `decide` it is the `decided_by_event`
        of the decision, and `claim` only names the action and its scope. Nothing changes if another
        attempt has started the action since.
        """
