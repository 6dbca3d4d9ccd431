"""StoredAction: a pending action as a store returns it: its signed record and its state."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

from sayso.channels.edit_form import form_fields
from sayso.channels.types import Scope
from sayso.pending.action import ActionSigner, ActionState, PendingAction
from sayso.pending.stored_limits import STALE_MS

#: States in which an action still occupies its scope.
OPEN_STATES: tuple[ActionState, ...] = ("armed", "shown", "claimed", "started")
#: States of an action that waits for a yes.
WAITING_STATES: tuple[ActionState, ...] = ("armed", "shown")
#: States of an action that was executed, and has ended.
EXECUTED_STATES: tuple[ActionState, ...] = ("done", "failed", "unknown")
#: Shown in place of the preview of a record that was tampered with.
CHANGED = "an action that was changed"

#: The name of the action's id in a signed record. It is short and cannot change: the MAC of every
#: stored record is over it.
SIGNED_ID = "pid"
_UNSIGNED = ("state", "expires_at", "outcome", "pending_action_id")
#: The fields of an action that are signed, with their defaults, which the record leaves out.
SIGNED_FIELDS = {
    each.name: each.default for each in fields(PendingAction) if each.name not in _UNSIGNED
}
#: The signed fields that are always texts.
_TEXTS = tuple(
    each.name for each in fields(PendingAction) if each.name in SIGNED_FIELDS and each.type == "str"
)


@dataclass(frozen=True)
class StoredAction:
    """A pending action as a store returned it: the record exactly as it was signed, and its state.

    A snapshot: it does not follow later changes in the store. Times are in Unix seconds.
    """

    #: The id that the store has the action under.
    action_id: str
    #: The signed fields of the action, as JSON; "" in place of a record that was changed.
    record: str
    mac: str
    state: ActionState
    #: When the window to answer closes, 0.0 until the question was shown.
    expires_at: float = 0.0
    #: The event id of the turn that decided, or the random word of a decision without a worker;
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
    #: The number of the last turn that came in before the question was shown.
    last_seen_seq: int = 0
    #: When the action was claimed or started.
    started_at: float = 0.0
    #: The platform's id of the message that shows the question, "" where the platform gave none.
    question_message: str = ""
    #: The platform's ids of all messages that show or repeat the question.
    question_messages: tuple[str, ...] = ()
    #: When the platform says that it showed the question, 0.0 where it did not say.
    written_at: float = 0.0
    #: The traceparent of the turn that proposed the action, "" for none.
    trace: str = field(default="", compare=False)
    #: The number of the last turn that came in before the bot said something else than the
    #: question; 0 while the question is the last thing that the bot said.
    followed_after_seq: int = field(default=0, compare=False)
    #: Short names of the messages for which the question was repeated.
    unclear_answers: tuple[str, ...] = ()
    #: The store's own time when the action was loaded.
    loaded_at: float = field(default=0.0, compare=False)

    @property
    def is_over(self) -> bool:
        """Return whether the window had closed when the action was loaded, by the store's clock."""
        return bool(self.expires_at) and self.loaded_at >= self.expires_at

    def was_last_message(self, seq: int) -> bool:
        """Return whether the question was the bot's last message when turn `seq` came in.

        A turn that no worker numbered is 0: it comes in after everything that was said.
        """
        if self.followed_after_seq == 0:
            return True
        return 0 < seq <= self.followed_after_seq

    @property
    def is_stale(self) -> bool:
        """Return whether the action was begun so long ago that its process must have died.

        Only programs that decide without a lease need this: a worker's lease proves it.
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
    def from_fields(cls, fields: Mapping[str, Any]) -> StoredAction:
        """Read an action from the fields that a script returns (`load_action` in actions.lua).

        A field that was never set is absent. The record and its MAC keep their exact text.
        """
        return cls(
            action_id=fields["action_id"],
            record=fields["record"],
            mac=fields.get("mac", ""),
            state=fields.get("state", ""),
            expires_at=_seconds(fields.get("expires_at")),
            decided_by_event=fields.get("decided_by_event", ""),
            attempt_id=fields.get("attempt_id", ""),
            outcome_text=fields.get("outcome_text", ""),
            result=fields.get("result", ""),
            output=fields.get("output", ""),
            last_seen_seq=_whole(fields.get("last_seen_seq")),
            started_at=_seconds(fields.get("started_at")),
            question_message=fields.get("question_message", ""),
            question_messages=tuple(fields.get("question_messages", "").split()),
            # Platforms that say when they show a message say it in microseconds.
            written_at=_whole(fields.get("written_at")) / 1_000_000,
            trace=fields.get("trace", ""),
            followed_after_seq=_whole(fields.get("followed_after_seq")),
            unclear_answers=tuple(fields.get("unclear_answers", "").split()),
            loaded_at=_seconds(fields["loaded_at"]),
        )

    @property
    def action(self) -> PendingAction:
        """Return the action that was signed, in its present state.

        For an unreadable record, the action has the kind "".
        """
        return self._parsed_record[1]

    @property
    def version(self) -> int:
        """Return the version of the signed record."""
        try:
            return int(json.loads(self.record).get("v", 1))
        except (ValueError, TypeError, AttributeError):
            return 1

    def is_genuine(self, signer: ActionSigner, scope: Scope) -> bool:
        """Return whether the record is exactly what was signed for this id and this scope."""
        if not signer.verify(self.record, self.mac):
            return False

        # A genuine record of another action, or of another person, may have been copied here.
        signed_id, action = self._parsed_record
        if signed_id != self.action_id:
            return False
        place = scope.conversation
        return (
            action.user_id == scope.user_id
            and (action.channel_id or "direct") == place.channel
            and (action.conversation_id or action.user_id) == place.address
        )

    def verified(self, signer: ActionSigner, scope: Scope) -> StoredAction:
        """Return this action if it is genuine, else one without its record.

        The `action` of one without a record has the id and the state, but no kind, no arguments and
        no language, and its preview is CHANGED. So what the bot says about it repeats nothing that
        was changed in the store, and a yes to it is refused.
        """
        if self.is_genuine(signer, scope):
            return self
        return replace(self, record="", mac="")

    @property
    def is_changed(self) -> bool:
        """Return whether `verified` found that the record is not what was signed."""
        return not self.record

    @cached_property
    def _parsed_record(self) -> tuple[str, PendingAction]:
        """Return the id that the record was signed with, and the action in it."""
        try:
            signed = json.loads(self.record)
            signed_id = signed.pop(SIGNED_ID)
            _ = signed.pop("v", 1)
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
    for name in _TEXTS:
        if not isinstance(getattr(action, name), str):
            raise TypeError(f"{name!r} is no text")
    if not isinstance(action.args, dict):
        raise TypeError("'args' is no object")
    form_fields(action.form)


def _seconds(ms: Any) -> float:
    """Return a field in milliseconds as seconds; 0 when it is absent or unreadable."""
    return _whole(ms) / 1000


def _whole(number: Any) -> int:
    """Return a field as a whole number; 0 when it is absent or unreadable."""
    try:
        return int(number or 0)
    except ValueError:
        return 0
