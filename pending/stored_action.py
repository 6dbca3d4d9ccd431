"""StoredAction: a pending action as a store returns it: its signed record and its state."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

from sayso.channels.edit_form import form_fields
from sayso.channels.types import Scope
from sayso.pending.action import TEXT_FIELDS, ActionSigner, ActionState, PendingAction
from sayso.pending.standing_rule import StandingRule
from sayso.pending.stored_limits import STALE_MS

#: States of an action that has not ended.
OPEN_STATES: tuple[ActionState, ...] = ("armed", "shown", "claimed", "started")
#: States of an action that waits for a yes.
WAITING_STATES: tuple[ActionState, ...] = ("armed", "shown")
#: States of an action that was executed, and has ended.
EXECUTED_STATES: tuple[ActionState, ...] = ("done", "failed", "unknown")
#: The preview of an action whose record is not the one that was signed.
CHANGED = "an action that was changed"

#: The name of the action's id in a signed record. It is short and cannot change: the MAC of every
#: stored record is over it.
SIGNED_ID = "pid"
#: The fields that the store has beside the signed record. The id is signed as SIGNED_ID.
_UNSIGNED = ("state", "expires_at", "outcome", "pending_action_id")
#: The signed fields of an action, with their defaults. A record leaves out a field that has its
#: default value. For a field without a plain default (such as `kind` and `args`) the value here is
#: `dataclasses.MISSING`, so the record always has that field. `sign_action` writes these fields. A
#: default must not change: a stored record without the field would get another value.
SIGNED_FIELDS = {
    each.name: each.default for each in fields(PendingAction) if each.name not in _UNSIGNED
}


@dataclass(frozen=True)
class StoredAction:
    """A pending action as a store returned it: the record exactly as it was signed, and its state.

    A snapshot: it does not follow later changes in the store. Times are in Unix seconds, by the
    store's clock except `written_at`. The record may have been changed in the store: call
    `verified` before use.

    Some fields compare an action with the turns of its conversation. A worker numbers the turns
    from 1; a turn without a worker has the number 0.
    """

    #: The id that the store has the action under.
    action_id: str
    #: The signed fields of the action, as JSON; "" after `verified` found that it was changed.
    record: str
    mac: str
    state: ActionState
    #: When the window to answer closes, 0.0 until the question was shown.
    expires_at: float = 0.0
    #: The event id of the turn that decided, or the random id of a decision without a turn;
    #: "" while nothing is decided.
    decided_by_event: str = ""
    #: The id of the last start, "" before the first.
    attempt_id: str = ""
    #: What the user is told about the end of the action.
    outcome_text: str = ""
    #: What the tool returned, for the user.
    result: str = ""
    #: What a model reads of the result or of the error, "" if that is `result`.
    output: str = ""
    #: The number of the last turn that came in before the question was shown, 0 for none. A yes in
    #: words of that turn or an earlier one does not confirm the action.
    last_seen_seq: int = 0
    #: When the action was claimed, and after its start: when it was started. 0.0 before the claim.
    #: For a plan: when its last step was claimed, if that is later.
    started_at: float = 0.0
    #: The platform's id of the message that first showed the question, with its buttons; "" where
    #: the platform gave none.
    question_message: str = ""
    #: The platform's ids of the messages that show the question, a part of it or a copy, the newest
    #: one last. At most MAX_QUESTION_MESSAGES.
    question_messages: tuple[str, ...] = ()
    #: When the platform says that it showed the question, 0.0 where it did not say.
    written_at: float = 0.0
    #: The traceparent of the turn that proposed the action, "" for none.
    trace: str = ""
    #: If the bot sent another message after the question: the number of the last turn that came in
    #: before that message. 0 while the question is the bot's last message.
    followed_after_seq: int = 0
    #: Short names of the messages for which the question was repeated.
    unclear_answers: tuple[str, ...] = ()
    #: How the person or a program decided (`DecisionRecord.to_json`), "" while nothing is decided,
    #: and where that is not recorded.
    decision: str = ""
    #: When the question was shown, 0.0 before.
    shown_at: float = 0.0
    #: The votes of other people, one `Vote` as JSON a line, in the order in which they came.
    votes_text: str = ""
    #: The requests in which other people are asked, as JSON; "" for none.
    requests_text: str = ""
    #: When the action was loaded. Not compared, so two snapshots of an unchanged action are equal.
    loaded_at: float = field(default=0.0, compare=False)

    @property
    def is_window_closed(self) -> bool:
        """Return whether the window to answer had closed when the action was loaded.

        This says nothing of the state: an action that was confirmed in time has a closed window,
        too, later on. A window that has not opened yet is not closed.
        """
        return bool(self.expires_at) and self.loaded_at >= self.expires_at

    def was_last_message(self, seq: int) -> bool:
        """Return whether the question was the bot's last message when turn `seq` came in.

        A turn without a worker, whose number is 0, comes in after all that the bot has sent. So if
        a message followed the question, the question was not the last one.
        """
        if self.followed_after_seq == 0:
            return True
        has_worker = seq > 0
        return has_worker and seq <= self.followed_after_seq

    @property
    def is_covered(self) -> bool:
        """Return whether a standing yes covered the action, and it was not asked about since.

        A turn that is on its way runs it or asks about it.
        """
        return self.state == "armed" and bool(self.action.standing_yes)

    @property
    def is_stale(self) -> bool:
        """Return whether the action was claimed or started so long ago that its process has died.

        Only programs that decide without a lease ask this. A worker holds the lease of the
        conversation, so it knows that no other worker still works on the action.
        """
        if self.state not in ("claimed", "started"):
            return False
        return self.loaded_at - self.started_at > STALE_MS / 1000

    @classmethod
    def from_json(cls, text: str) -> StoredAction | None:
        """Read the answer of a script. None for "": there is no such action."""
        if not text:
            return None
        return cls.from_fields(json.loads(text))

    @classmethod
    def from_fields(cls, answer: Mapping[str, Any]) -> StoredAction:
        """Read an action from the fields that a script returns (`load_action` in actions.lua).

        Times are in milliseconds. A field that was never set is absent.
        """
        return cls(
            action_id=answer["action_id"],
            record=answer["record"],
            mac=answer["mac"],
            state=answer["state"],
            expires_at=_seconds(answer.get("expires_at")),
            decided_by_event=answer.get("decided_by_event", ""),
            attempt_id=answer.get("attempt_id", ""),
            outcome_text=answer.get("outcome_text", ""),
            result=answer.get("result", ""),
            output=answer.get("output", ""),
            last_seen_seq=_whole(answer.get("last_seen_seq")),
            started_at=_seconds(answer.get("started_at")),
            question_message=answer.get("question_message", ""),
            question_messages=tuple(answer.get("question_messages", "").split()),
            # Platforms that say when they show a message say it in microseconds.
            written_at=_whole(answer.get("written_at")) / 1_000_000,
            trace=answer.get("trace", ""),
            followed_after_seq=_whole(answer.get("followed_after_seq")),
            unclear_answers=tuple(answer.get("unclear_answers", "").split()),
            decision=answer.get("decision", ""),
            shown_at=_seconds(answer.get("shown_at")),
            votes_text=answer.get("votes", ""),
            requests_text=answer.get("requests", ""),
            loaded_at=_seconds(answer["loaded_at"]),
        )

    @property
    def action(self) -> PendingAction:
        """Return the action in the record, in its present state.

        Only after `verified` is it sure to be the action that was signed.

        An action without a readable record has the id and the state, but no kind, no arguments and
        no language, and its preview is CHANGED.
        """
        return self._parsed_record[1]

    @property
    def record_version(self) -> int:
        """Return the version of the signed record (see `infra/records.py`).

        A record of version 1 names none, and `sign_action` writes no other. A worker leaves a
        record of a version that it does not know to a newer worker (`workers/mailbox.py`).
        """
        try:
            version = json.loads(self.record).get("v", 1)
        except (ValueError, AttributeError, RecursionError):
            return 1
        # Any other type was never written: `verified` finds that the record was changed.
        return version if isinstance(version, int) else 1

    def is_genuine(self, signer: ActionSigner, scope: Scope) -> bool:
        """Return whether the record is exactly what was signed for this id and this scope."""
        if not signer.verify(self.record, self.mac):
            return False

        # A genuine record of another action, or of another person, may have been copied here.
        signed_id, action = self._parsed_record
        if signed_id != self.action_id:
            return False

        # A program may store an action without a channel or a conversation. `scope_of` in store.py
        # gives its scope these values.
        place = scope.conversation
        return (
            action.user_id == scope.user_id
            and (action.channel_id or "direct") == place.channel
            and (action.conversation_id or action.user_id) == place.address
        )

    def verified(self, signer: ActionSigner, scope: Scope) -> StoredAction:
        """Return this action if it is genuine (`is_genuine`), else one without its record.

        So what the bot says about a changed action repeats nothing that was changed in the store,
        and a yes to it is refused.
        """
        if self.is_genuine(signer, scope):
            return self
        return replace(self, record="", mac="")

    @property
    def is_changed(self) -> bool:
        """Return whether `verified` found that the record is not what was signed.

        Ask the result of `verified`. Without `verified` this is False for a changed record, too.
        """
        return not self.record

    @cached_property
    def _parsed_record(self) -> tuple[str, PendingAction]:
        """Return the id that the record was signed with, and the action in it.

        A record that cannot be read gives the id "", and an action as `action` describes it.
        """
        try:
            signed = json.loads(self.record)
            signed_id = signed.pop(SIGNED_ID)
            # The version is no field of the action: see `record_version`.
            signed.pop("v", 1)
            action = PendingAction(
                **signed,
                pending_action_id=self.action_id,
                state=self.state,
                expires_at=self.expires_at,
                outcome=self.outcome_text or None,
            )
            _check_types(action)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return "", PendingAction(
                user_id="",
                kind="",
                preview=CHANGED,
                state=self.state,
                expires_at=self.expires_at,
                pending_action_id=self.action_id,
            )
        return signed_id, action


def _check_types(action: PendingAction) -> None:
    """Raise TypeError if a record was changed to values of another type.

    They would fail later, where they are used.
    """
    for name in TEXT_FIELDS:
        if not isinstance(getattr(action, name), str):
            raise TypeError(f"{name!r} is no text")
    if not isinstance(action.args, dict):
        raise TypeError("'args' is no object")
    if not all(isinstance(name, str) for name in action.user_known_as):
        raise TypeError("'user_known_as' is no list of texts")
    form_fields(action.form)  # raises TypeError for a malformed form
    _ = action.approval_rule  # raises for a malformed rule
    if action.standing is not None:
        StandingRule.from_dict(action.standing)


def _seconds(ms: Any) -> float:
    """Return a field in milliseconds as seconds; 0 when it is absent or unreadable."""
    return _whole(ms) / 1000


def _whole(number: Any) -> int:
    """Return a field as a whole number; 0 when it is absent or unreadable."""
    try:
        return int(number or 0)
    except ValueError:
        return 0
