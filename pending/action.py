"""PendingAction, a side effect that waits for its user's yes, and ActionSigner, which protects it.

A tool that needs approval does not run when the model calls it. Its name, its arguments and a
preview are stored as a pending action, signed with a MAC. A later yes of the same person, or a tap
on a button with a signed token, runs exactly what was stored.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from sayso.channels.edit_form import EditForm, form_fields
from sayso.channels.i18n.invisible import readable
from sayso.channels.types import Intent, Scope
from sayso.infra.ids import random_id
from sayso.pending.approval_rule import ApprovalRule

#: Seconds a user has to answer, counted from the delivery of the preview.
DEFAULT_TTL_SECONDS = 60.0
#: Seconds left to answer after a tap on "ignore".
DEFAULT_IGNORE_TTL_SECONDS = 10.0
#: Most seconds that a user may have to answer: records are kept for two days.
MAX_TTL_SECONDS = 86_400.0
#: Most characters of a preview, and of the arguments as JSON. Platforms show a long preview whole,
#: in several messages; people do not read more than this, and so do not agree to it.
MAX_PREVIEW_CHARS = 16_000
MAX_ARGS_CHARS = 65_536
#: Most characters of a person's name in a record.
MAX_NAME_CHARS = 60
#: The prefix of the kinds that Sayso uses itself, and tools must not use.
RESERVED_PREFIX = "sayso:"
#: The kind of a plan: an action that has no effect itself, and whose steps have one each.
PLAN_KIND = f"{RESERVED_PREFIX}plan"

#: Bytes of MAC in a button token: 96 bits, so that the whole token stays under Telegram's 64 bytes.
BUTTON_MAC_BYTES = 12
#: What a button under a question does. `change` decides nothing: it opens the form of the action.
#: `standing` is a yes that also counts for later calls (`standing_yes.py`).
ButtonIntent = Intent | Literal["change", "standing"]
_LETTERS: dict[ButtonIntent, str] = {
    "confirm": "y",
    "cancel": "n",
    "ignore": "i",
    "change": "e",
    "standing": "s",
}
_INTENTS = {letter: intent for intent, letter in _LETTERS.items()}
#: The form of a token: version, action id, letter of an intent or number of a choice, and MAC.
_BUTTON_TOKEN = re.compile(r"1([A-Za-z0-9_-]{22})([ynies0-9])([A-Za-z0-9_-]{16})")

#: The states of an action: armed -> shown -> claimed -> started -> done | failed | unknown. An
#: action that has no effect ends as cancelled, expired or superseded.
ActionState = Literal[
    "armed",
    "shown",
    "claimed",
    "started",
    "done",
    "failed",
    "unknown",
    "cancelled",
    "expired",
    "superseded",
]
#: What follows the outcome of a confirmed action. `continue`: the model goes on with the request.
#: `say`: the bot's own text is the whole answer.
After = Literal["continue", "say"]
#: What another message of the person does to an open question. `drop` ends the question, `keep`
#: leaves it open.
OtherMessage = Literal["drop", "keep"]
#: The documented names of the states, for programs. Most of them stand for several states.
Status = Literal["pending", "confirmed", "cancelled", "expired", "consumed"]

_STATUS: Mapping[ActionState, Status] = {
    "armed": "pending",
    "shown": "pending",
    "claimed": "confirmed",
    "started": "confirmed",
    "done": "consumed",
    "failed": "consumed",
    "unknown": "consumed",
    "cancelled": "cancelled",
    "superseded": "cancelled",
    "expired": "expired",
}


class PendingError(Exception):
    """Base of the errors about pending actions."""


class PendingActionExistsError(PendingError, RuntimeError):
    """Raised when a scope already has an action that waits. Finish that one first."""


class ActionDeniedError(PendingError, RuntimeError):
    """Raised when a turn proposes an action that its person has just said no to.

    The person may ask for the action in a new message.
    """


#: Performs a confirmed action, sync or async. The user is told what the call returns.
Executor = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class PendingAction:
    """One proposal: who was asked, what will run, and the exact text the user agreed to.

    Most fields are signed when the action is stored; `state`, `expires_at` and `outcome` change
    during its life. Times are in Unix seconds by the store's clock.
    """

    #: The person who was asked, and the only one who may decide.
    user_id: str
    #: The name of the tool that will run, or a reserved name such as PLAN_KIND.
    kind: str
    #: The text that the user agrees to.
    preview: str
    #: The arguments of the call, exact JSON.
    args: dict[str, Any] = field(default_factory=dict)
    #: The SHA-256 of the arguments; computed from `args` if it is not given.
    args_digest: str = ""
    channel_id: str | None = None
    conversation_id: str | None = None
    #: Seconds to answer, counted from the delivery of the preview.
    ttl_seconds: float = DEFAULT_TTL_SECONDS
    requested_at: float = 0.0
    #: When the window to answer closes. 0 until the preview was delivered: the window opens when
    #: the user can see the preview.
    expires_at: float = 0.0
    parser_version: str = ""
    #: Whether running the action twice has the effect of running it once.
    idempotent: bool = False
    #: What must be typed with the yes, "" for nothing.
    code: str = ""
    #: Why the user is asked.
    reason: str = ""
    #: The version of the tool that was shown.
    version: str = ""
    #: The tool whose own code asked; "" if the action is a call of `kind` that the agent proposed.
    asked_by: str = ""
    #: What the platform called the person, for readers of the audit log. It decides nothing: people
    #: choose it themselves.
    user_name: str = ""
    #: Digests of all names by which the bot knew the person when other people were asked
    #: (`KnownPerson.known_as`). None of these people decides. () if the person decides.
    user_known_as: Sequence[str] = ()
    #: The digest of the tool's definition when the preview was shown.
    tool_digest: str = ""
    #: The digest of the values that count in the preview; "" if its whole text counts.
    values_digest: str = ""
    language: str = ""
    #: The id of the plan that this action is a step of, "" for none.
    plan: str = ""
    #: The names of tools that ran at once in the same turn. The question and its outcome name them.
    ran_beside: str = ""
    #: What follows the outcome, by the policy or else by the tool. "": the channel decides
    #: (`after_of`).
    after: After | Literal[""] = ""
    #: The fields that the person may change before the yes, as `FormField.to_dict` writes them.
    form: Sequence[Mapping[str, Any]] = ()
    #: The id of the earlier proposal that this one changes, "" for none.
    changes_of: str = ""
    #: What another message does to the question, by the tool. "": the channel decides
    #: (`keeps_question`).
    other_message: OtherMessage | Literal[""] = ""
    #: Which other people decide, and not the user (`ApprovalRule.to_dict`). None: the user decides.
    approval: Mapping[str, Any] | None = None
    #: For which later calls the question also offers a yes (`StandingRule.to_dict`). None: it offers
    #: no standing yes.
    standing: Mapping[str, Any] | None = None
    #: The id of the standing yes under which the action is to run without a question, "" for an
    #: action that is asked about. If that yes does not cover it any more, it is asked about, too.
    standing_yes: str = ""
    state: ActionState = "armed"
    #: What the user was told in the end, None before that.
    outcome: str | None = None
    pending_action_id: str = field(default_factory=lambda: random_id(11))

    def __post_init__(self) -> None:
        object.__setattr__(self, "preview", readable(self.preview))
        object.__setattr__(self, "form", tuple(self.form))
        object.__setattr__(self, "user_known_as", tuple(self.user_known_as))
        if not self.args_digest:
            object.__setattr__(self, "args_digest", compute_args_digest(self.args))

    @property
    def status(self) -> Status:
        """Return the state by its documented name."""
        return _STATUS[self.state]

    @property
    def editable(self) -> tuple[str, ...]:
        """Return the names of the fields that the person may change before the yes."""
        return tuple(str(entry.get("name", "")) for entry in self.form)

    @property
    def edit_form(self) -> EditForm:
        """Return the form in which the person may change the action.

        The form has no fields if nothing may be changed.
        """
        return EditForm(self.pending_action_id, self.preview, self.language, form_fields(self.form))

    @property
    def approval_rule(self) -> ApprovalRule | None:
        """Return the rule by which other people decide, None if the user decides.

        Raises KeyError, TypeError or ValueError for a rule that cannot be read.
        """
        if self.approval is None:
            return None
        return ApprovalRule.from_dict(self.approval)

    def is_expired(self, now: float | None = None) -> bool:
        """Return whether the window to answer has closed at `now`, in Unix seconds.

        `now` is the present time if it is None. The window of an action that was never shown is
        not closed.
        """
        if not self.expires_at:
            return False
        if now is None:
            now = time.time()
        return now >= self.expires_at

    def to_dict(self) -> dict[str, Any]:
        """Return all fields and the `status`, ready for JSON."""
        return {**asdict(self), "status": self.status}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PendingAction:
        """Read the result of `to_dict`. Raises TypeError on unknown or missing fields."""
        return cls(**{key: value for key, value in data.items() if key != "status"})


#: The fields of an action that are always texts.
TEXT_FIELDS = tuple(each.name for each in fields(PendingAction) if each.type == "str")


def after_of(action: PendingAction, default: After) -> After:
    """Return what follows the outcome of an action, a plan or an undo.

    `default` is what the channel does if neither the policy nor the tool says.
    """
    return action.after or default


def keeps_question(action: PendingAction, default: OtherMessage) -> bool:
    """Return whether the question of an action stays open when its person writes something else.

    `default` is what the channel does if the tool does not say.
    """
    other_message = action.other_message or default
    return other_message == "keep"


def check_proposal(action: PendingAction) -> None:
    """Refuse an action that a user cannot agree to.

    Raises TypeError for a text of another type, such as `version=2`: when the record is read, it
    would count as changed in the store. Raises ValueError for a reserved kind, a preview over
    MAX_PREVIEW_CHARS, and a time to answer outside of 0 to MAX_TTL_SECONDS. Where other people
    decide, the limit is the time that their rule gives. Raises KeyError, TypeError or ValueError
    for a rule that cannot be read.
    """
    for name in TEXT_FIELDS:
        value = getattr(action, name)
        if not isinstance(value, str):
            raise TypeError(f"{name} is of type {type(value).__name__}: give text")

    if not action.kind or action.kind.startswith(RESERVED_PREFIX):
        raise ValueError(
            f"kind {action.kind!r} is reserved: "
            f"use a name that does not begin with {RESERVED_PREFIX!r}"
        )

    if len(action.preview) > MAX_PREVIEW_CHARS:
        raise ValueError(
            f"the preview has {len(action.preview):,} characters: "
            f"shorten it to at most {MAX_PREVIEW_CHARS:,}"
        )

    max_ttl_seconds = MAX_TTL_SECONDS
    rule = action.approval_rule
    if rule is not None:
        if not rule.asks_others:
            raise ValueError("approval is a rule by which the user decides: leave it out")
        max_ttl_seconds = rule.within_seconds
    if not 0 < action.ttl_seconds <= max_ttl_seconds:
        raise ValueError(
            f"ttl_seconds is {action.ttl_seconds!r}: "
            f"it must be more than 0 and at most {max_ttl_seconds:g}"
        )


def exact_args(args: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the fields `args` and `args_digest` of an action that calls a tool with `args`.

    The field `args` is a copy: later changes to the argument do not reach it.

    Raises TypeError when `args` is not exact JSON, ValueError when it has more than MAX_ARGS_CHARS
    characters.
    """
    text = canonical_json(args or {})
    if len(text) > MAX_ARGS_CHARS:
        raise ValueError(
            f"the arguments are {len(text):,} characters as JSON: "
            f"at most {MAX_ARGS_CHARS:,} can be proposed"
        )

    copy = json.loads(text)
    # Reading joins two surrogates that stood side by side into one character, so the copy may have
    # another text, and with it another digest.
    if "\\ud" in text:
        text = encode_canonical(copy)
    return {"args": copy, "args_digest": _digest(text)}


def compute_args_digest(args: Mapping[str, Any] | None) -> str:
    """Return the SHA-256 of the canonical arguments, in hex.

    Raises TypeError when the arguments are not exact JSON.
    """
    return _digest(canonical_json(args or {}))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def canonical_json(value: Any) -> str:
    """Return the value as JSON in a single form: sorted keys, ASCII, no spaces.

    Raises TypeError for a value that JSON cannot hold exactly, so that equal digests mean equal
    arguments.
    """
    _refuse_inexact(value)
    return encode_canonical(value)


#: Encodes a value like `canonical_json`, without the check.
#: Only for values that are known to be exact JSON.
encode_canonical = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
).encode


#: Types whose values JSON holds exactly. A bool is an int.
_EXACT = (str, int, type(None))


def _refuse_inexact(value: Any) -> None:
    """Raise TypeError for a value that json.dumps would change.

    A tuple would become a list, and a key that is a number would become a string.
    """
    if isinstance(value, _EXACT):
        return
    if isinstance(value, float) and math.isfinite(value):
        return
    if isinstance(value, list):
        for item in value:
            _refuse_inexact(item)
        return
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        for item in value.values():
            _refuse_inexact(item)
        return
    raise TypeError(
        f"{value!r} is not exact JSON: "
        "use str, int, float, bool, None, list and dict with string keys"
    )


@dataclass(frozen=True, slots=True)
class ButtonPress:
    """What a genuine button token says: the action, and what the person wants.

    A button has either an `intent`, or the number of a `choice`, 0 to 9; the other one is None.
    """

    action_id: str
    intent: ButtonIntent | None = None
    choice: int | None = None


class ActionSigner:
    """Signs stored actions and button tokens, and verifies both. One per process.

    It signs with the first key and accepts signatures of all keys, so that keys can be rotated
    while actions wait.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        """`keys` are the secret keys, the newest first. Raises ValueError when there is none."""
        self._keys = derived_keys(keys, "sayso.pending")

    def sign(self, text: str) -> str:
        """Return the MAC over `text`, in hex."""
        return _mac(self._keys[0], text).hex()

    def verify(self, text: str, mac: str) -> bool:
        """Return whether `mac` was made over exactly `text` with one of the keys."""
        given = mac.encode()
        for key in self._keys:  # noqa: SIM110  # a generator costs as much as the MAC
            if hmac.compare_digest(_mac(key, text).hex().encode(), given):
                return True
        return False

    def button_token(self, pending_action_id: str, intent: ButtonIntent, scope: Scope) -> str:
        """Return the token of a button, at most 64 bytes.

        The token is valid for one action, one intent and one scope.
        """
        return self._token(pending_action_id, _LETTERS[intent], scope)

    def choice_token(self, pending_action_id: str, choice: int, scope: Scope) -> str:
        """Return the token of the button for a choice, 0 to 9.

        Raises ValueError for any other number.
        """
        if choice not in range(10):
            raise ValueError(f"choice {choice!r} has no button: there are ten places, 0 to 9")
        return self._token(pending_action_id, str(choice), scope)

    def _token(self, pending_action_id: str, letter: str, scope: Scope) -> str:
        mac = _button_mac(self._keys[0], pending_action_id, letter, scope)
        return f"1{pending_action_id}{letter}{mac}"

    def read_button(self, token: str, scope: Scope) -> ButtonPress | None:
        """Return what a tapped button says, None when its token was not issued for this scope."""
        parts = split_button_token(token)
        if parts is None:
            return None
        pending_action_id, letter, mac = parts

        expected = (_button_mac(key, pending_action_id, letter, scope) for key in self._keys)
        if not any(hmac.compare_digest(each.encode(), mac.encode()) for each in expected):
            return None

        if letter in _INTENTS:
            return ButtonPress(pending_action_id, _INTENTS[letter])
        return ButtonPress(pending_action_id, choice=int(letter))


def derived_keys(keys: Sequence[str], purpose: str) -> list[bytes]:
    """Return a key for one purpose, derived from each secret key.

    Raises ValueError when there is no key, or an empty one.
    """
    if not keys or not all(keys):
        raise ValueError(
            "no secret key: set SAYSO_SECRET_KEYS, or start once with a writable data folder"
        )
    return [hashlib.sha256(f"{purpose}\0{key}".encode()).digest() for key in keys]


def split_button_token(token: str) -> tuple[str, str, str] | None:
    """Return the action id, the letter or number, and the MAC of a button token.

    None for a text that does not have the form of a token. The MAC is not verified.
    """
    match = _BUTTON_TOKEN.fullmatch(token)
    if match:
        return (match[1], match[2], match[3])
    return None


def is_choice_token(token: str) -> bool:
    """Return whether a button's token is that of an offered answer, not of a question.

    The MAC is not verified.
    """
    parts = split_button_token(token)
    return parts is not None and parts[1].isdigit()


def _mac(key: bytes, text: str) -> bytes:
    return hmac.digest(key, f"pend1\0{text}".encode(), "sha256")


def _button_mac(key: bytes, pending_action_id: str, letter: str, scope: Scope) -> str:
    text = "\0".join(("button", pending_action_id, letter, scope.user_id, scope.conversation.id))
    mac = hmac.digest(key, text.encode(), "sha256")[:BUTTON_MAC_BYTES]
    return base64.urlsafe_b64encode(mac).decode()
