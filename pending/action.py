"""PendingAction: a proposed side effect that waits for its user's yes.

ActionSigner makes the signatures that protect it: the MAC over a stored action,
and the tokens in its buttons.
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
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from sayso.channels.forms import EditForm, form_fields
from sayso.channels.i18n.invisible import readable
from sayso.channels.types import Intent, Scope
from sayso.infra.ids import random_id

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
#: The prefix of our own kinds, which tools must not use.
RESERVED_PREFIX = "sayso:"
#: The kind of a plan's own record. A plan has no effect of its own: its steps have.
PLAN_KIND = f"{RESERVED_PREFIX}plan"

#: Bytes of MAC in a button token: 96 bits, so that the whole token stays under Telegram's 64 bytes.
BUTTON_MAC_BYTES = 12
#: What a button under a question does. `change` decides nothing: it opens the form of the action.
ButtonIntent = Intent | Literal["change"]
_LETTERS: dict[ButtonIntent, str] = {"confirm": "y", "cancel": "n", "ignore": "i", "change": "e"}
_INTENTS = {letter: intent for intent, letter in _LETTERS.items()}
#: Version, action id, letter of an intent or number of a choice, and MAC.
_BUTTON_TOKEN = re.compile(r"1([A-Za-z0-9_-]{22})([ynie0-9])([A-Za-z0-9_-]{16})")
#: The states of an action: armed -> shown -> claimed -> started -> done | failed | unknown. It ends
#: without effect as cancelled, expired or superseded.
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
#: What follows the outcome of a confirmed action: the model goes on with the request, or nothing
#: does, and the bot's own text is the whole answer.
After = Literal["continue", "say"]
#: What another message of the person does to an open question: it ends it, or leaves it open.
OtherMessage = Literal["drop", "keep"]
#: The documented names of these states, for programs: each stands for several.
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
    """Raised when a turn proposes what its person has just said no to.

    They may ask for it in a new message.
    """


#: Performs a confirmed action, sync or async. The user is told what it returns.
Executor = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class PendingAction:
    """One proposal: who was asked, what will run, and the exact text the user agreed to.

    Times are in Unix seconds by the store's clock.
    """

    user_id: str
    kind: str
    preview: str
    args: dict[str, Any] = field(default_factory=dict)
    args_digest: str = ""
    channel_id: str | None = None
    conversation_id: str | None = None
    ttl_seconds: float = DEFAULT_TTL_SECONDS
    requested_at: float = 0.0
    #: 0 until the preview was delivered: the window opens when the user can see the preview.
    #: `code`, if set, must be typed with the yes.
    expires_at: float = 0.0
    parser_version: str = ""
    idempotent: bool = False
    code: str = ""
    #: Why the user is asked.
    reason: str = ""
    #: The version of the tool that was shown.
    version: str = ""
    #: The tool whose own code asked, "" if the action is a call of the tool `kind` that the agent
    #: proposed.
    asked_by: str = ""
    #: What the platform called the person, for people who read the audit log. It decides nothing:
    #: people choose it themselves.
    user_name: str = ""
    #: Of the definition of that tool when it was shown; `values_digest`: of the values that count
    #: in the preview, "" if its whole text does.
    tool_digest: str = ""
    values_digest: str = ""
    language: str = ""
    #: The id of the plan that this action is a step of.
    plan: str = ""
    #: The names of tools that ran at once in the same turn, which the question and its outcome
    #: name.
    ran_beside: str = ""
    #: What follows its outcome, by the policy or else the tool; "" if neither says, and then the
    #: channel decides (`after_of`).
    after: After | Literal[""] = ""
    #: The fields that the person may change before the yes, as `FormField.to_dict` writes them.
    form: Sequence[Mapping[str, Any]] = ()
    #: The id of the earlier proposal that this one changes, "" for none.
    changes_of: str = ""
    #: What another message does to its question, by its tool; "" if that does not say, and then the
    #: channel decides (`keeps_question`).
    other_message: OtherMessage | Literal[""] = ""
    state: ActionState = "armed"
    #: What the user was told in the end.
    outcome: str | None = None
    pending_action_id: str = field(default_factory=lambda: random_id(11))

    def __post_init__(self) -> None:
        object.__setattr__(self, "preview", readable(self.preview))
        object.__setattr__(self, "form", tuple(self.form))
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
        """Return the form in which the person may change it.

        It has no fields if nothing may be changed.
        """
        return EditForm(self.pending_action_id, self.preview, self.language, form_fields(self.form))

    def is_expired(self, now: float | None = None) -> bool:
        """Return whether the window has closed at `now`, in Unix seconds.

        It has not if the action was never shown.
        """
        return bool(self.expires_at) and (time.time() if now is None else now) >= self.expires_at

    def to_dict(self) -> dict[str, Any]:
        """Return all fields and the `status`, ready for JSON."""
        return {**asdict(self), "status": self.status}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PendingAction:
        """Read the result of `to_dict`. Raises TypeError on unknown or missing fields."""
        return cls(**{key: value for key, value in data.items() if key != "status"})


def after_of(action: PendingAction, default: After) -> After:
    """Return what follows the outcome of an action, a plan or an undo.

    `default` is that of its channel.
    """
    return action.after or default


def keeps_question(action: PendingAction, default: OtherMessage) -> bool:
    """Return whether the question of an action stays open when its person writes something else.

    `default` is what its channel does.
    """
    return (action.other_message or default) == "keep"


def check_proposal(action: PendingAction) -> None:
    """Refuse an action that a user cannot agree to. Raises ValueError."""
    if not action.kind or action.kind.startswith(RESERVED_PREFIX):
        raise ValueError(
            f"kind {action.kind!r} is reserved: use a name that does not begin with {RESERVED_PREFIX!r}"
        )
    if len(action.preview) > MAX_PREVIEW_CHARS:
        raise ValueError(
            f"the preview has {len(action.preview):,} characters: shorten it to at most {MAX_PREVIEW_CHARS:,}"
        )
    if not 0 < action.ttl_seconds <= MAX_TTL_SECONDS:
        raise ValueError(
            f"ttl_seconds is {action.ttl_seconds!r}: it must be more than 0 and at most {MAX_TTL_SECONDS:g}"
        )


def exact_args(args: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the fields `args` and `args_digest` of an action,
    with a copy that later changes to `args` do not reach.

    Raises TypeError when `args` is not exact JSON, ValueError when it has
    more than MAX_ARGS_CHARS characters.
    """
    text = canonical_json(args or {})
    if len(text) > MAX_ARGS_CHARS:
        raise ValueError(
            f"the arguments are {len(text):,} characters as JSON: at most {MAX_ARGS_CHARS:,} can be proposed"
        )
    copy = json.loads(text)
    if "\\ud" in text:  # reading joins two surrogates that stood side by side into one character
        text = encode_canonical(copy)
    return {"args": copy, "args_digest": _digest(text)}


def compute_args_digest(args: Mapping[str, Any] | None) -> str:
    """Return the SHA-256 of the canonical arguments, in hex.

    Raises TypeError when they are not exact JSON.
    """
    return _digest(canonical_json(args or {}))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def canonical_json(value: Any) -> str:
    """Return the value as JSON in a single form: sorted keys, ASCII, no spaces.

    Raises TypeError for a value that JSON cannot hold exactly,
    so that equal digests mean equal arguments.
    """
    _refuse_inexact(value)
    return encode_canonical(value)


#: Encodes a value like `canonical_json`, without the check.
#: Only for values that are known to be exact JSON.
encode_canonical = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
).encode


#: What JSON holds exactly, whatever its value. A bool is an int.
_EXACT = (str, int, type(None))


def _refuse_inexact(value: Any) -> None:
    """Raise TypeError for values that json.dumps would change: tuples become lists,
    number keys become strings.
    """
    if isinstance(value, _EXACT) or (isinstance(value, float) and math.isfinite(value)):
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
        f"{value!r} is not exact JSON: use str, int, float, bool, None, list and dict with string keys"
    )


@dataclass(frozen=True, slots=True)
class ButtonPress:
    """What a genuine button token says: an action, and what to do with it
    or which choice (0 to 9) was tapped.
    """

    action_id: str
    intent: ButtonIntent | None = None
    choice: int | None = None


class ActionSigner:
    """Signs with the first key and accepts signatures of all keys,
    so that keys can be rotated while actions wait.
    """

    def __init__(self, keys: Sequence[str]) -> None:
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
        """Return a button's token, at most 64 bytes.

        It is valid for one action, one intent and one scope.
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
        return f"1{pending_action_id}{letter}{_button_mac(self._keys[0], pending_action_id, letter, scope)}"

    def read_button(self, token: str, scope: Scope) -> ButtonPress | None:
        """Return what a tapped button says, or None when its token was not issued for this scope."""
        parts = split_button_token(token)
        if parts is None:
            return None
        pending_action_id, letter, mac = parts
        is_genuine = any(
            hmac.compare_digest(
                _button_mac(key, pending_action_id, letter, scope).encode(), mac.encode()
            )
            for key in self._keys
        )
        if not is_genuine:
            return None
        if letter in _INTENTS:
            return ButtonPress(pending_action_id, _INTENTS[letter])
        return ButtonPress(pending_action_id, choice=int(letter))


def derived_keys(keys: Sequence[str], purpose: str) -> list[bytes]:
    """Return the key for this purpose of each secret key.

    Raises ValueError when there is no key.
    """
    if not keys or not all(keys):
        raise ValueError(
            "no secret key: set SAYSO_SECRET_KEYS, or start once with a writable data folder"
        )
    return [hashlib.sha256(f"{purpose}\0{key}".encode()).digest() for key in keys]


def split_button_token(token: str) -> tuple[str, str, str] | None:
    """Return action id, letter or number, and MAC of what looks like a button token.

    Verifies nothing.
    """
    match = _BUTTON_TOKEN.fullmatch(token)
    if match:
        return (match[1], match[2], match[3])
    return None


def is_choice_token(token: str) -> bool:
    """Return whether a button's token is that of an offered answer, not of a question.

    Verifies nothing.
    """
    parts = split_button_token(token)
    return parts is not None and parts[1].isdigit()


def _mac(key: bytes, text: str) -> bytes:
    return hmac.digest(key, f"pend1\0{text}".encode(), "sha256")


def _button_mac(key: bytes, pending_action_id: str, letter: str, scope: Scope) -> str:
    text = "\0".join(("button", pending_action_id, letter, scope.user_id, scope.conversation.id))
    return base64.urlsafe_b64encode(
        hmac.digest(key, text.encode(), "sha256")[:BUTTON_MAC_BYTES]
    ).decode()
