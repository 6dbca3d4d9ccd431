"""Decision receipts: signed proof of who decided what about an action, when, and by which words.

`make_receipt` makes a receipt from the audit ledger. `receipt_check.py` verifies it without the
ledger.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from datetime import UTC, datetime
from typing import Any

from sayso.pending.action import PLAN_KIND, ActionSigner, PendingAction, encode_canonical
from sayso.pending.approvals.votes import Vote
from sayso.pending.audit.bodies import AuditBody
from sayso.pending.audit.body_votes import ErasedVote, read_votes
from sayso.pending.audit.entries import VOTED, AuditEntry, EntrySigner
from sayso.pending.audit.ledger import AuditLedger
from sayso.pending.audit.receipt_keys import ReceiptSigner
from sayso.pending.decision_record import DecisionRecord
from sayso.pending.plans import step_ids
from sayso.pending.stored_action import StoredAction

#: The field `type` of every receipt, by which readers recognize it.
RECEIPT_TYPE = "sayso decision receipt"
#: The version of the fields of a receipt. A change of any field needs a new version.
RECEIPT_VERSION = 1


@dataclass(frozen=True, slots=True)
class ReceiptAction:
    """What was decided about: an action, a plan, or one step of a plan."""

    id: str
    #: The name of the tool, or a reserved name such as that of a plan.
    tool: str
    #: The tool whose own code asked, "" if the agent proposed the call.
    asked_by: str
    arguments: dict[str, Any]
    #: The SHA-256 of the arguments as canonical JSON.
    args_digest: str
    #: The text that people agreed to, as Markdown.
    preview: str
    #: The person who was asked, or for whom others decided.
    channel: str
    user_id: str
    user_name: str
    #: When the action was proposed, "" if that is not known.
    requested_at: str
    #: The id of the plan that the action is a step of, "" for no step.
    plan: str
    #: The id of the earlier action that the person changed to this one, "" for none.
    changes_of: str
    #: The rule by which other people decide (`ApprovalRule.to_dict`); {} if the person decides.
    approval: dict[str, Any]
    #: The MAC of the stored record. The entries of the audit log have it, too.
    record_mac: str
    #: The SHA-256 of the stored record, in hex.
    record_sha256: str


@dataclass(frozen=True, slots=True)
class ReceiptStep:
    """One action of a plan. The fields mean the same as in ReceiptAction."""

    id: str
    tool: str
    arguments: dict[str, Any]
    args_digest: str
    preview: str
    record_mac: str
    record_sha256: str
    #: The newest state in the audit log.
    state: str


@dataclass(frozen=True, slots=True)
class ReceiptDecision:
    """One yes or no, and exactly what it was about."""

    #: "own": the decision of the person to whom the action was proposed, or of a program.
    #: "vote": the answer of another person.
    kind: str
    #: "yes" or "no".
    answer: str
    #: "words", "tap", "program", or "standing" for a call that ran under a standing yes.
    form: str
    #: The name of a person who voted (`KnownPerson.name`), "" for the kind "own".
    person: str
    #: The account that decided.
    channel: str
    user_id: str
    #: What the platform called the person, "" if unknown.
    user_name: str
    #: The id of the conversation in which it was decided.
    conversation: str
    #: The event id of the turn that decided, or the random id of a program's decision.
    event_id: str
    #: What the person wrote, "" for a tap.
    words: str
    #: Why the person decided so, "" if they did not say.
    reason: str
    #: The platform's id of the person's message, "" for a tap, for a vote, and if unknown.
    message_id: str
    #: The platform's id of the message that was tapped or quoted, "" for none.
    question_message_id: str
    #: When it was decided.
    at: str
    #: The id of the action that was decided about: for the step of a plan, that of the plan.
    action_id: str
    args_digest: str
    record_mac: str
    record_sha256: str
    #: The id of the action whose yes was a standing one, if this call ran under that yes. For that
    #: action itself: its own id. "" for any other decision.
    standing_yes: str = ""


@dataclass(frozen=True, slots=True)
class ReceiptOutcome:
    """How the action ended, or the state that it was in when the receipt was made."""

    #: The newest state of the action in the audit log.
    state: str
    #: When the action entered the state.
    at: str
    #: The outcome text for the user, "" before the end.
    text: str


@dataclass(frozen=True, slots=True)
class DecisionReceipt:
    """A receipt of all decisions about one action. Immutable.

    All times are texts in UTC, such as `2026-11-29T12:02:49.123Z`, "" for an unknown time.
    """

    #: RECEIPT_TYPE and RECEIPT_VERSION.
    type: str
    version: int
    #: The name of the bot in its configuration.
    bot: str
    #: When the receipt was made.
    issued_at: str
    action: ReceiptAction
    #: The actions of a plan, in the order in which they run; () for no plan.
    steps: tuple[ReceiptStep, ...]
    #: All decisions about the action, in the order in which they came in; at least one.
    decisions: tuple[ReceiptDecision, ...]
    outcome: ReceiptOutcome
    #: What the receipt leaves out and why, a text for each.
    notes: tuple[str, ...]
    #: The id of the key that signed, "" before that.
    key_id: str = ""
    #: The SHA-256 of each part of the receipt, by the name of the part (`parts`). So a check can
    #: name a part that was changed. {} before `signed`.
    digests: dict[str, str] = field(default_factory=dict)
    #: The signature over `signed_text`, in base64; "" before `signed`.
    signature: str = ""

    def signed(self, signer: ReceiptSigner) -> DecisionReceipt:
        """Return the receipt with its digests and its signature."""
        digests = {name: part_digest(value) for name, value in self.parts()}
        receipt = replace(self, key_id=signer.key_id, digests=digests)
        return replace(receipt, signature=signer.sign(receipt.signed_text))

    @property
    def signed_text(self) -> str:
        """Return the text that is signed. It covers all other fields by their digests."""
        return encode_canonical(
            {
                "type": self.type,
                "version": self.version,
                "key_id": self.key_id,
                "digests": self.digests,
            }
        )

    def parts(self) -> Iterator[tuple[str, Any]]:
        """Yield the name and the value of each part that has a digest."""
        data = self.to_dict()
        for name in ("type", "version", "key_id", "digests", "signature"):
            del data[name]
        yield from _parts("", data, depth=2)

    def to_dict(self) -> dict[str, Any]:
        """Return the receipt, ready for JSON."""
        data: dict[str, Any] = _plain(self)
        return data

    def to_json(self) -> str:
        """Return the receipt in its only form: one line of canonical JSON, with a line end."""
        return f"{encode_canonical(self.to_dict())}\n"


def _plain(value: Any) -> Any:
    """Return a value of a receipt for JSON: classes become objects, tuples become lists."""
    if is_dataclass(value):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return value


def part_digest(value: Any) -> str:
    """Return the SHA-256 of a part of a receipt, in hex."""
    return hashlib.sha256(encode_canonical(value).encode()).hexdigest()


def _parts(name: str, value: Any, *, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a value, each with its name, such as `decisions[0].words`.

    Members of lists are parts, and members of objects that are at most `depth` objects deep. An
    empty list or object is a part itself.
    """
    if isinstance(value, dict) and value and depth:
        for key, member in value.items():
            yield from _parts(f"{name}.{key}".removeprefix("."), member, depth=depth - 1)
    elif isinstance(value, list) and value:
        for number, member in enumerate(value):
            yield from _parts(f"{name}[{number}]", member, depth=depth)
    else:
        yield name, value


class NoReceipt(Exception):
    """Raised when the ledger cannot prove a decision about an action. The message says why."""


def make_receipt(
    ledger: AuditLedger, action_id: str, keys: Sequence[str], *, bot: str, now: float
) -> DecisionReceipt:
    """Return the signed receipt of the decisions about an action.

    `keys` are the secret keys of the bot, `bot` is its name, `now` the present time in Unix
    seconds. Everything that the receipt says is verified in the ledger first. The receipt of a step
    has the decisions about its plan.

    Raises NoReceipt if there is no decision, if the person was erased, and if the ledger was
    changed.
    """
    proofs = _Proofs(ledger, keys)
    proven = proofs.find(action_id)
    decided = proven
    if proven.action.plan:
        decided = proofs.find(proven.action.plan)

    notes: list[str] = []
    decisions = [*_own_decision(proofs, decided, notes), *_votes(proofs, decided, notes)]
    if not decisions:
        reasons = notes or [f"its last state is {proven.last.event!r}"]
        raise NoReceipt(f"no decision about {action_id} is recorded: {'; '.join(reasons)}")

    steps: list[ReceiptStep] = []
    if proven.action.kind == PLAN_KIND:
        steps = [_step(proofs.find(each)) for each in step_ids(proven.action)]
    receipt = DecisionReceipt(
        type=RECEIPT_TYPE,
        version=RECEIPT_VERSION,
        bot=bot,
        issued_at=_utc(now),
        action=_action(proven),
        steps=tuple(steps),
        decisions=tuple(decisions),
        outcome=ReceiptOutcome(
            proven.last.event,
            _utc(proven.last.at / 1000),
            proven.body.outcome_text or "",
        ),
        notes=tuple(notes),
    )
    return receipt.signed(ReceiptSigner(keys))


@dataclass(frozen=True, slots=True)
class _ProvenAction:
    """An action whose record and entries in the ledger are genuine."""

    action: PendingAction
    body: AuditBody
    #: The entries of the action, the oldest first; at least one.
    entries: tuple[AuditEntry, ...]

    @property
    def last(self) -> AuditEntry:
        """Return the entry of the newest state. A vote is no state."""
        return next(entry for entry in reversed(self.entries) if entry.event != VOTED)

    @property
    def record_sha256(self) -> str:
        """Return the SHA-256 of the stored record, in hex."""
        return hashlib.sha256((self.body.record or "").encode()).hexdigest()


class _Proofs:
    """Reads from a ledger what its signatures prove. Lives for one receipt."""

    def __init__(self, ledger: AuditLedger, keys: Sequence[str]) -> None:
        self.action_signer = ActionSigner(keys)
        self.ledger = ledger
        self._entry_signer = EntrySigner(keys)

    def find(self, action_id: str) -> _ProvenAction:
        """Return an action, or raise NoReceipt."""
        entries = self._entries(action_id)
        body = self.ledger.bodies(action_id).get(action_id)
        if body is None or not entries:
            raise NoReceipt(
                f"the ledger has no action {action_id}: `sayso audit show` lists the actions"
            )
        if body.erased_at is not None:
            raise NoReceipt(
                f"the person of action {action_id} was erased at {_utc(body.erased_at / 1000)}: "
                "the ledger has no arguments and no words any more"
            )
        if body.record is None:
            raise NoReceipt(f"the record of action {action_id} was lost before it was collected")
        problem = body.fault(self.action_signer, self._entry_signer, entries[0].mac)
        if problem:
            raise NoReceipt(
                f"action {action_id} was changed in the ledger ({problem}): "
                "run `sayso audit verify`"
            )
        stored = StoredAction(action_id, body.record, body.mac, "shown")
        return _ProvenAction(stored.action, body, entries)

    def _entries(self, action_id: str) -> tuple[AuditEntry, ...]:
        """Return the entries of an action, or raise NoReceipt for one that was changed."""
        entries = []
        for recorded in self.ledger.find_recorded(action_id):
            is_genuine = self._entry_signer.verify(
                recorded.sig or "", "entry", recorded.shard, recorded.number, recorded.text
            )
            if not is_genuine:
                raise NoReceipt(
                    f"an entry of action {action_id} was changed in the ledger: "
                    "run `sayso audit verify`"
                )
            entry = recorded.entry
            if entry and entry.action_id == action_id:
                entries.append(entry)
        return tuple(sorted(entries, key=lambda entry: entry.number))


def _own_decision(
    proofs: _Proofs, decided: _ProvenAction, notes: list[str]
) -> Iterator[ReceiptDecision]:
    """Yield the decision of the person who was asked, if one is recorded and the log has it.

    `notes` gets a line for a decision that is left out.
    """
    if decided.body.decision is None:
        return
    record = DecisionRecord.from_json(decided.body.decision)
    problem = _problem_of(record, decided, proofs)
    if problem:
        notes.append(f"a decision was left out: {problem}")
        return
    yield ReceiptDecision(
        kind="own",
        answer=record.answer,
        form=record.form,
        person="",
        channel=record.channel,
        user_id=record.user_id,
        user_name=record.user_name,
        conversation=record.conversation,
        event_id=record.event_id,
        words=record.words,
        reason="",
        message_id=record.message_id,
        question_message_id=record.question_message_id,
        at=_utc(record.at),
        **_subject(decided),
        standing_yes=record.standing_yes,
    )


def _problem_of(record: DecisionRecord, decided: _ProvenAction, proofs: _Proofs) -> str:
    """Return why a genuine record does not prove a decision about this action, "" if it does."""
    action = decided.action
    if (record.user_id, record.channel) != (action.user_id, action.channel_id or "direct"):
        return "it is of another person"
    event = "claimed" if record.answer == "yes" else "cancelled"
    log_has_it = any(
        (entry.event, entry.decided_by_event) == (event, record.event_id)
        for entry in decided.entries
    )
    if not log_has_it:
        return "the audit log has no decision by its event"
    # The record of a program names no action, so it could have been copied to another one.
    if record.form == "program":
        own_ids = {decided.body.action_id}
        if action.kind == PLAN_KIND:
            own_ids.update(step_ids(action))
        for entry in proofs.ledger.find_decided(lambda each: each == record.event_id):
            if entry.action_id not in own_ids:
                return f"its event decided {entry.action_id}, too"
    return ""


def _votes(proofs: _Proofs, decided: _ProvenAction, notes: list[str]) -> Iterator[ReceiptDecision]:
    """Yield the votes of other people. `notes` gets a line for each vote that is left out."""
    seen: set[str] = set()
    for vote in read_votes(decided.body.votes or ""):
        if isinstance(vote, ErasedVote):
            notes.append("a vote was left out: its person was erased")
        elif vote is None:
            notes.append("a vote was left out: it cannot be read")
        elif not vote.is_genuine(proofs.action_signer):
            notes.append("a vote was left out: its seal is broken")
        elif (vote.action_id, vote.record_mac) != (decided.body.action_id, decided.body.mac):
            notes.append("a vote was left out: it is about another action")
        elif vote.event_id not in seen:  # a vote that was delivered twice counts once
            seen.add(vote.event_id)
            yield _vote(vote, decided)


def _vote(vote: Vote, decided: _ProvenAction) -> ReceiptDecision:
    return ReceiptDecision(
        kind="vote",
        answer=vote.answer,
        form=vote.form,
        person=vote.person,
        channel=vote.channel,
        user_id=vote.user_id,
        user_name=vote.user_name,
        conversation=vote.conversation,
        event_id=vote.event_id,
        words=vote.words,
        reason=vote.reason,
        message_id="",
        question_message_id=vote.question_message_id,
        at=_utc(vote.at),
        **_subject(decided),
    )


def _subject(decided: _ProvenAction) -> dict[str, str]:
    """Return the fields of a decision that say what exactly it is about."""
    return {
        "action_id": decided.body.action_id,
        "args_digest": decided.action.args_digest,
        "record_mac": decided.body.mac,
        "record_sha256": decided.record_sha256,
    }


def _action(proven: _ProvenAction) -> ReceiptAction:
    action = proven.action
    return ReceiptAction(
        id=proven.body.action_id,
        tool=action.kind,
        asked_by=action.asked_by,
        arguments=action.args,
        args_digest=action.args_digest,
        preview=action.preview,
        channel=action.channel_id or "direct",
        user_id=action.user_id,
        user_name=action.user_name,
        requested_at=_utc(action.requested_at),
        plan=action.plan,
        changes_of=action.changes_of,
        approval=dict(action.approval or {}),
        record_mac=proven.body.mac,
        record_sha256=proven.record_sha256,
    )


def _step(proven: _ProvenAction) -> ReceiptStep:
    return ReceiptStep(
        id=proven.body.action_id,
        tool=proven.action.kind,
        arguments=proven.action.args,
        args_digest=proven.action.args_digest,
        preview=proven.action.preview,
        record_mac=proven.body.mac,
        record_sha256=proven.record_sha256,
        state=proven.last.event,
    )


def _utc(unix: float) -> str:
    """Return a time in Unix seconds as receipts have it, "" for 0."""
    if not unix:
        return ""
    time = datetime.fromtimestamp(unix, UTC).isoformat(timespec="milliseconds")
    return time.replace("+00:00", "Z")
