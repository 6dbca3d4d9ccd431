"""PendingAction: a proposed side effect that waits for its user's yes (seed: Deferred Confirmation)."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from sayso.channels.i18n.invisible import readable
from sayso.channels.types import random_id

#: Seconds a user has to answer, from the moment the preview was delivered (seed).
DEFAULT_TTL_SECONDS = 60.0
#: Seconds left after an "ignore" tap (seed).
DEFAULT_IGNORE_TTL_SECONDS = 10.0

#: Seconds a window may be open at most: records are kept for two days.
MAX_TTL_SECONDS = 86_400.0
#: Characters of a preview and of the arguments as JSON that can be proposed. Platforms show a long preview in several
#: messages, whole; more than this is not read, and so not agreed to.
MAX_PREVIEW_CHARS = 16_000
MAX_ARGS_CHARS = 65_536
#: How the kinds begin that are our own.
RESERVED = "sayso:"

#: The life of an action: armed -> shown -> claimed -> started -> done | failed | unknown, or an end without effect.
ActionState = Literal[
    "armed", "shown", "claimed", "started", "done", "failed", "unknown", "cancelled", "expired", "superseded"
]
#: The seed's coarser words for the same life.
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
    """Base of what the pending room raises."""


class PendingActionExistsError(PendingError, RuntimeError):
    """Raised when a scope already has an action waiting: finish that one first."""


#: Performs a confirmed action; may be async. What it returns is told to the user.
Executor = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class PendingAction:
    """One proposal: whose it is, what will run, and the exact words the user agreed to.

    Times are Unix seconds by the store's clock. `expires_at` is 0 until the preview was delivered: the window
    opens when the user can see it. `outcome` is what the user was told in the end. `code`, if there is one, must be
    typed with the yes; `reason` says why the user is asked, `version` which version of the tool was shown; `plan` is
    the id of the plan that this action is a step of.
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
    expires_at: float = 0.0
    parser_version: str = ""
    idempotent: bool = False
    code: str = ""
    reason: str = ""
    version: str = ""
    language: str = ""
    plan: str = ""
    state: ActionState = "armed"
    outcome: str | None = None
    pending_action_id: str = field(default_factory=lambda: random_id(11))

    def __post_init__(self) -> None:
        object.__setattr__(self, "preview", readable(self.preview))
        if not self.args_digest:
            object.__setattr__(self, "args_digest", compute_args_digest(self.args))

    @property
    def status(self) -> Status:
        """The state in the seed's words."""
        return _STATUS[self.state]

    def is_expired(self, now: float | None = None) -> bool:
        """Whether the window has closed (at `now`, Unix seconds). An action that was never shown has none yet."""
        return bool(self.expires_at) and (time.time() if now is None else now) >= self.expires_at

    def to_dict(self) -> dict[str, Any]:
        """Every field, JSON-ready, and the seed's `status`."""
        return {**asdict(self), "status": self.status}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PendingAction:
        """The action that `to_dict` wrote. Raises TypeError on unknown or missing fields."""
        return cls(**{key: value for key, value in data.items() if key != "status"})


#: Writes exact JSON in its one spelling; `canonical_json` looks whether it is exact.
spell = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode


def exact(args: Mapping[str, Any] | None) -> dict[str, Any]:
    """The fields `args` and `args_digest`: the arguments as they are now, whatever their owner does to them later.

    Raises TypeError when they are not exact JSON, ValueError when they are more than MAX_ARGS_CHARS.
    """
    text = canonical_json(args or {})
    if len(text) > MAX_ARGS_CHARS:
        raise ValueError(
            f"the arguments are {len(text):,} characters as JSON: at most {MAX_ARGS_CHARS:,} can be proposed"
        )
    copy = json.loads(text)
    if "\\ud" in text:  # two halves of a character that stood side by side are one now
        text = spell(copy)
    return {"args": copy, "args_digest": _digest(text)}


def check_proposal(action: PendingAction) -> None:
    """Refuse what nobody can agree to. Raises ValueError."""
    if not action.kind or action.kind.startswith(RESERVED):
        raise ValueError(f"kind {action.kind!r} is not for tools: use a name without {RESERVED!r}")
    if len(action.preview) > MAX_PREVIEW_CHARS:
        raise ValueError(f"the preview has {len(action.preview):,} characters: at most {MAX_PREVIEW_CHARS:,} are read")
    if not 0 < action.ttl_seconds <= MAX_TTL_SECONDS:
        raise ValueError(
            f"ttl_seconds is {action.ttl_seconds!r}: it must be more than 0 and at most {MAX_TTL_SECONDS:g}"
        )


def canonical_json(value: Any) -> str:
    """The one spelling of a JSON value: sorted keys, ASCII, no spaces.

    Raises TypeError for anything that JSON cannot hold exactly, so that equal digests mean equal arguments.
    """
    _refuse_inexact(value)
    return spell(value)


def compute_args_digest(args: Mapping[str, Any] | None) -> str:
    """The SHA-256 of the canonical arguments, in hex. Raises TypeError when they are not exact JSON."""
    return _digest(canonical_json(args or {}))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _refuse_inexact(value: Any) -> None:
    """json.dumps turns tuples into lists and number keys into strings: two different arguments, one digest."""
    if value is None or isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return
    if isinstance(value, list):
        for item in value:
            _refuse_inexact(item)
        return
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        for item in value.values():
            _refuse_inexact(item)
        return
    raise TypeError(f"{value!r} is not exact JSON: use str, int, float, bool, None, list and dict with string keys")
