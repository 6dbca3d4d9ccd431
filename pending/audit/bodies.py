"""The bodies of the audit log: the signed record of each action, the decisions, and the outcome.

A body is what is personal about an action. It is stored beside the entries, so that it can be
erased while the chain of entries still verifies: an entry holds only the MAC of the record.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sayso.channels.types import Conversation
from sayso.pending.action import PLAN_KIND, ActionSigner
from sayso.pending.approvals.requests import REQUEST_KIND, RequestedAction
from sayso.pending.approvals.votes import Vote
from sayso.pending.audit.body_votes import add_votes, erase_votes, read_votes
from sayso.pending.audit.entries import AuditEntry, EntrySigner, Fault, RecordedEntry
from sayso.pending.decision_record import DecisionRecord
from sayso.pending.stored_action import SIGNED_ID


@dataclass(frozen=True, slots=True)
class AuditBody:
    """The signed record of an action, who decided and how, and what its user was told in the end.

    Times are in Unix milliseconds.
    """

    action_id: str
    #: The signed fields of the action as JSON. None in an erased body, and in one whose record was
    #: lost before it was collected.
    record: str | None
    #: The MAC of the record. It stays when the body is erased.
    mac: str
    #: What the user was told about the end of the action, as Markdown; "" before it ends, and None
    #: in an erased body.
    outcome_text: str | None
    #: The id of the user; None in an erased body, and if it is not known.
    user: str | None
    #: When the body was collected.
    at: int
    #: Whether the action may be started more than once; None if that is not known. It stays when
    #: the body is erased.
    repeatable: bool | None = None
    #: When the body was erased, None if it was not.
    erased_at: int | None = None
    #: The signature over all other fields, "" for a body that is not stored yet.
    sig: str = ""
    #: How the action was decided (`DecisionRecord.to_json`). None if no decision is recorded, and in
    #: an erased body.
    decision: str | None = None
    #: The votes of other people, one JSON object a line (`Vote.to_json`). The vote of a person who
    #: was erased is a line of `ErasedVote`. None if there are none, and in an erased body.
    votes: str | None = None

    @classmethod
    def of(
        cls,
        action_id: str,
        record: str | None,
        mac: str,
        outcome_text: str,
        *,
        at: int,
        decision: str = "",
        votes: str = "",
    ) -> AuditBody:
        """Return the body of an action, from what Redis has of it. It is not signed.

        `record` is None if Redis has lost it. `decision` and `votes` are "" for none.
        """
        signed = _fields(record)
        repeatable: bool | None = None
        if SIGNED_ID in signed:
            # A plan has no effect itself, so it may be started again.
            is_plan = signed.get("kind") == PLAN_KIND
            repeatable = bool(signed.get("idempotent")) or is_plan
        # A forged record may hold lone surrogates, which SQLite cannot store.
        user = str(signed.get("user_id", "")).encode(errors="replace").decode()
        return cls(
            action_id=action_id,
            record=record,
            mac=mac,
            outcome_text=outcome_text,
            user=user or None,
            at=at,
            repeatable=repeatable,
            decision=decision or None,
            votes=add_votes("", votes) or None,
        )

    @property
    def channel(self) -> str:
        """Return the channel of the action, "" if that is not known."""
        return str(_fields(self.record).get("channel_id") or "")

    @property
    def conversation(self) -> Conversation:
        """Return the conversation of the action, with thread and chat in one text."""
        fields = _fields(self.record)
        address = str(fields.get("conversation_id") or fields.get("user_id") or "")
        return Conversation(self.channel, address)

    @property
    def user_name(self) -> str:
        """Return the name that the person had chosen, "" if that is not known."""
        return str(_fields(self.record).get("user_name") or "")

    @property
    def changes_of(self) -> str:
        """Return the id of the proposal that the person changed to this one, "" for none."""
        return str(_fields(self.record).get("changes_of") or "")

    @property
    def editable(self) -> dict[str, Any]:
        """Return the arguments that the person could change before the yes, by name.

        The values are those that the form showed. All other arguments may hold what no preview
        shows. A plan has those of its steps, with the number of the step before the name.
        """
        entries = _fields(self.record).get("form")
        if not isinstance(entries, list):
            return {}
        return {str(entry.get("name")): entry.get("value") for entry in entries}

    @property
    def decision_record(self) -> DecisionRecord | None:
        """Return how the action was decided, None if that is not recorded or unreadable.

        Its seal is not verified here: `fault` does that.
        """
        if self.decision is None:
            return None
        try:
            return DecisionRecord.from_json(self.decision)
        except (ValueError, TypeError):
            return None

    @property
    def is_step(self) -> bool:
        """Return whether the action is a step of a plan, which is answered as a whole."""
        return bool(_fields(self.record).get("plan"))

    @property
    def is_request(self) -> bool:
        """Return whether the action is a request, in which a person is asked about another one."""
        # Most records are none, and parsing them all takes long.
        if REQUEST_KIND not in (self.record or ""):
            return False
        return _fields(self.record).get("kind") == REQUEST_KIND

    @property
    def requested(self) -> RequestedAction | None:
        """Return what a request says of the action that it is for, None for any other action."""
        if not self.is_request:
            return None
        try:
            return RequestedAction.from_args(_fields(self.record)["args"])
        except (KeyError, TypeError, ValueError):
            return None

    @property
    def is_for_others(self) -> bool:
        """Return whether other people decide about the action."""
        rule = _fields(self.record).get("approval")
        deciders = rule.get("by") if isinstance(rule, dict) else None
        return isinstance(deciders, dict) and deciders.get("kind") != "asker"

    @property
    def known_votes(self) -> tuple[Vote, ...]:
        """Return the votes that can be read, in their order, without those of erased people."""
        lines = read_votes(self.votes or "")
        return tuple(line for line in lines if isinstance(line, Vote))

    @property
    def preview(self) -> str:
        """Return the preview that the user agreed to, or why it is not here."""
        if self.erased_at:
            return "(erased)"
        return str(_fields(self.record).get("preview", "")) or "(not kept)"

    def signed(self, signer: EntrySigner) -> AuditBody:
        """Return the body with its signature."""
        return replace(self, sig=signer.sign(*self._signed_parts))

    def erased(self, at: int) -> AuditBody:
        """Return the body without personal data. `at` is the time in Unix milliseconds."""
        return replace(
            self,
            record=None,
            outcome_text=None,
            user=None,
            erased_at=at,
            decision=None,
            votes=None,
        )

    def without_voter(self, user: str, at: int) -> AuditBody:
        """Return the body without personal data of a person who voted. `at` is as in `erased`.

        The text about a no names who said it, and why.
        """
        refused = any(vote.answer == "no" and user in vote.user_ids for vote in self.known_votes)
        outcome_text = "" if refused else self.outcome_text
        votes = erase_votes(self.votes or "", user, at)
        return replace(self, votes=votes, outcome_text=outcome_text)

    def without_outcome(self) -> AuditBody:
        """Return the body without what its user was told of the end."""
        return replace(self, outcome_text="")

    def updated_with(self, collected: AuditBody) -> AuditBody:
        """Return the body with what was collected later: the outcome, the decision and new votes.

        The record and a decision never change. Votes are only added.
        """
        return replace(
            self,
            outcome_text=collected.outcome_text or self.outcome_text,
            decision=self.decision or collected.decision,
            votes=add_votes(self.votes or "", collected.votes or "") or None,
        )

    def fault(self, action_signer: ActionSigner, signer: EntrySigner, mac: str) -> str:
        """Return what is wrong with this body, "" if nothing is.

        `mac` is what the first entry of the action names as the MAC of the record.
        """
        if not signer.verify(self.sig, *self._signed_parts):
            return "bad signature"
        if self.mac and self.mac != mac:
            return "another record's"
        if self.record is None:
            return ""
        if not action_signer.verify(self.record, self.mac):
            return "not what was signed"
        if _fields(self.record).get(SIGNED_ID) != self.action_id:
            return "another action's"
        if self.decision is not None and not self._has_genuine_decision(action_signer):
            return "a decision that was not recorded so"
        return ""

    def _has_genuine_decision(self, action_signer: ActionSigner) -> bool:
        """Return whether the decision was recorded so, about this action."""
        try:
            decision = DecisionRecord.from_json(self.decision or "")
        except (ValueError, TypeError):
            return False
        return decision.is_genuine(action_signer) and decision.is_about(self.action_id, self.mac)

    @property
    def _signed_parts(self) -> tuple[str | int | bool | None, ...]:
        """Return what the signature is over, in an order that must never change.

        A body without decisions has the signature that ledgers of version 1 gave it.
        """
        parts: tuple[str | int | bool | None, ...] = (
            "body",
            self.action_id,
            self.record,
            self.mac,
            self.outcome_text,
            self.user,
            self.at,
            self.repeatable,
            self.erased_at,
        )
        if self.decision is None and self.votes is None:
            return parts
        return (*parts, self.decision, self.votes)


def _fields(record: str | None) -> dict[str, Any]:
    """Return the fields of a record; none if it is unreadable."""
    try:
        fields = json.loads(record or "{}")
    except (ValueError, RecursionError):
        return {}
    if isinstance(fields, dict):
        return fields
    return {}


def check_bodies(
    entries: Iterable[RecordedEntry],
    bodies: Mapping[str, AuditBody],
    action_signer: ActionSigner,
    signer: EntrySigner,
) -> Iterator[Fault]:
    """Yield the faults of the bodies of one ledger, each at the first entry of its action.

    `bodies` are by action id. A ledger has a body for each action that its entries are about.
    """
    first_entries: dict[str, tuple[int, AuditEntry]] = {}
    for recorded in entries:
        entry = recorded.entry
        if entry:
            first_entries.setdefault(entry.action_id, (recorded.shard, entry))

    for action_id, (shard, entry) in first_entries.items():
        body = bodies.get(action_id)
        if body is None:
            yield Fault(shard, entry.number, "body removed")
            continue
        problem = body.fault(action_signer, signer, entry.mac)
        if problem:
            yield Fault(shard, entry.number, "body edited", problem)
