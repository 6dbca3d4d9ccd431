"""Records: stored pending actions, and the port of the few atomic steps of their life."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Literal, Protocol

from sayso.channels.types import Intent, Scope
from sayso.pending.action import ActionState, PendingAction, spell
from sayso.pending.signing import ActionSigner
from sayso.pending.turns.change import Lease, NewAction, TurnChange

#: What a claim found. Only `mine` may go on; the others execute nothing.
ClaimStatus = Literal["mine", "other", "gone", "expired", "early", "tampered", "lost", "moved"]

#: What a decision without a lane came to. Only `mine` may go on; what is `stale` was begun by somebody who died.
DecisionVerdict = Literal["mine", "gone", "expired", "early", "mismatch", "changed", "cancelled", "ignored", "stale"]

#: What a start came to. Only `go` may go on; a `worn` action was begun as often as it may be.
StartVerdict = Literal["go", "no", "lost", "tampered", "worn"]

#: States in which an action still occupies its scope.
OPEN_STATES: tuple[ActionState, ...] = ("armed", "shown", "claimed", "started")

#: What stands for the preview of a record that was changed.
CHANGED = "an action that was changed"

#: Seconds after which what was begun without a lane is in nobody's hands any more. The scripts know it too.
STALE_SECONDS = 120.0

#: How often one that may be repeated is begun at most.
MAX_ATTEMPTS = 3

_VOLATILE = ("state", "expires_at", "outcome", "pending_action_id")
#: What is sealed, with what is left out of the record because it goes without saying.
_SEALED = {each.name: each.default for each in fields(PendingAction) if each.name not in _VOLATILE}


@dataclass(frozen=True)
class StoredAction:
    """A record as stored: the sealed part exactly as it was sealed, and where it is in its life.

    `pid` is the name it was found under, `seen` the number of the last turn that came in before it was shown, `prompt`
    the platform's id of the message that shows it ("" where it gave none), `prompts` the ids of all messages that show
    it or repeat it, `written_at` when the platform says it was shown (0.0 where it did not say), `begun_at` when it was
    claimed or started, `looked_at` the store's own time when it was looked up. `newest`: nothing was said since the
    question, as far as a lane knows. `told` of one that is still open is what its end will be told as: its person was
    asked again.
    """

    pid: str
    record: str
    mac: str
    state: ActionState
    expires_at: float = 0.0
    by: str = ""
    attempt: str = ""
    told: str = ""
    result: str = ""
    seen: int = 0
    begun_at: float = 0.0
    prompt: str = ""
    prompts: tuple[str, ...] = ()
    written_at: float = 0.0
    newest: bool = field(default=False, compare=False)
    looked_at: float = field(default=0.0, compare=False)

    @property
    def is_over(self) -> bool:
        """Whether the window had closed when this was looked up: no other machine's clock is asked."""
        return bool(self.expires_at) and self.looked_at >= self.expires_at

    @property
    def is_stale(self) -> bool:
        """Whether somebody began it so long ago that he must have died at it. In a lane nobody needs to ask."""
        return self.state in ("claimed", "started") and self.looked_at - self.begun_at > STALE_SECONDS

    @classmethod
    def from_hash(cls, given: Mapping[str, str]) -> StoredAction | None:
        """The record in a Redis hash, None when there is none."""
        if "rec" not in given:
            return None
        return cls(
            pid=given["pid"],
            record=given["rec"],
            mac=given.get("mac", ""),
            state=given["state"],  # type: ignore[arg-type]  # only our scripts write it
            expires_at=_seconds(given.get("expires")),
            by=given.get("by", ""),
            attempt=given.get("attempt", ""),
            told=given.get("told", ""),
            result=given.get("result", ""),
            seen=round(_seconds(given.get("seen")) * 1000),
            begun_at=_seconds(given.get("begun")),
            prompt=given.get("prompt", ""),
            prompts=tuple(given.get("prompts", "").split()),
            written_at=_seconds(given.get("written")) / 1000,
            newest="newest" in given,
        )

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> StoredAction | None:
        """The record in a script's `snapshot`, None when there is none."""
        if not row:
            return None
        pid, looked, fields = row
        record, mac, state, expires, by, attempt, told, result, seen, begun, prompt, prompts, written = fields
        return cls(
            pid, record, mac or "", state, _seconds(expires), by or "", attempt or "", told or "", result or "",
            round(_seconds(seen) * 1000), _seconds(begun), prompt or "", tuple((prompts or "").split()),
            _seconds(written) / 1000, looked_at=_seconds(looked),
        )  # fmt: skip

    def to_hash(self) -> dict[str, str]:
        """The record as a Redis hash would hold it."""
        expires = str(round(self.expires_at * 1000))
        record = {"pid": self.pid, "rec": self.record, "mac": self.mac, "state": self.state, "expires": expires}
        words = {"by": self.by, "attempt": self.attempt, "told": self.told, "result": self.result}
        times = {"seen": str(self.seen), "begun": str(round(self.begun_at * 1000))}
        times["written"] = str(round(self.written_at * 1_000_000))
        shown = {"prompt": self.prompt, "prompts": " ".join(self.prompts)}
        return {**record, **words, **times, **shown, "kind": self.action.kind}

    @property
    def action(self) -> PendingAction:
        """The action: what was sealed, in its present state. A record that is no longer one has no kind to run."""
        return self._opened[1]

    def is_genuine(self, seal: ActionSigner, scope: Scope) -> bool:
        """Whether the record is exactly what we sealed, under this name and for this scope."""
        if not seal.verify(self.record, self.mac):
            return False
        name, action = self._opened
        whose = (action.user_id, action.channel_id or "direct", action.conversation_id or action.user_id)
        place = scope.conversation
        return name == self.pid and whose == (scope.user_id, place.channel, place.address)

    @cached_property
    def _opened(self) -> tuple[str, PendingAction]:
        """The name under which it was sealed, and what was sealed."""
        try:
            sealed = json.loads(self.record)
            name = sealed.pop("pid")
            action = PendingAction(
                **sealed, pending_action_id=self.pid, state=self.state, expires_at=self.expires_at,
                outcome=self.told or None,
            )  # fmt: skip
        except (ValueError, TypeError, KeyError, AttributeError):
            return "", PendingAction(
                user_id="", kind="", preview=CHANGED, state=self.state,
                expires_at=self.expires_at, pending_action_id=self.pid,
            )  # fmt: skip
        return name, action


def seal_action(
    action: PendingAction, seal: ActionSigner, *, user: str, live: bool = True, steps: tuple[str, ...] = ()
) -> NewAction:
    """The action as it is stored: everything that was shown and will run, under one MAC."""
    said = {name: value for name, default in _SEALED.items() if (value := getattr(action, name)) != default}
    record = spell({**said, "pid": action.pending_action_id})  # exact: its arguments have a digest
    return NewAction(
        pending_action_id=action.pending_action_id,
        user=user,
        record=record,
        mac=seal.sign(record),
        ttl_ms=max(1, round(action.ttl_seconds * 1000)),
        kind=action.kind,
        digest=action.args_digest,
        idempotent=action.idempotent,
        live=live,
        code=action.code,
        plan=action.plan,
        steps=steps,
    )


@dataclass(frozen=True, slots=True)
class Claim:
    """Who decides on which record, and by which act: a turn's event, so that its redelivery is the same claim.

    In a lane, `lease` and `seq` prove that it is this worker's turn. `received_at` is when the act came in, in Unix
    seconds; 0 where nobody noted it.
    """

    scope: Scope
    pending_action_id: str
    by: str
    kind: Literal["text", "tap"] = "text"
    lease: Lease | None = None
    seq: int = 0
    received_at: float = 0.0

    @property
    def conversation(self) -> str:
        """The lane the record lives in."""
        return self.scope.conversation.id


@dataclass(frozen=True, slots=True)
class ActionDecision:
    """A decision without a lane on what its scope waits for; what is expected ("" for anything) must be what is there.

    `by` is a random word of the caller's, so that the same decision sent again is the same; it names the attempt too.
    """

    scope: Scope
    intent: Intent
    by: str
    expected_kind: str = ""
    expected_id: str = ""
    expected_digest: str = ""
    code: str = ""
    ignore_seconds: float = 0.0

    def claim(self, pid: str) -> Claim:
        """The decision as the claim on what it found."""
        return Claim(self.scope, pid, self.by)


@dataclass(frozen=True, slots=True)
class ActionResult:
    """How an effect ended: what the user is told, what the tool returned, and the reply that says so if it is late."""

    state: Literal["done", "failed", "unknown"]
    told: str
    result: str = ""
    correction: str = ""


class ActionRepository(Protocol):
    """The life of stored actions, one atomic step a call, each safe to repeat."""

    def look(self, conversation: str, user: str) -> StoredAction | None:
        """The live action of a scope."""

    def read(self, conversation: str, pids: tuple[str, ...]) -> list[StoredAction | None]:
        """Actions by name: the steps of a plan."""

    def note_asked(self, chat: str, user: str, note: str) -> None:
        """Note which thread of a chat asked a user something last. `chat` is the conversation without a thread."""

    def last_asked(self, chat: str, user: str) -> str:
        """Return what `note_asked` noted last, "" for nothing."""

    def stash(self, conversation: str, arm: NewAction) -> float | None:
        """Arm outside a lane, shown at once: when its window closes, None when something else waits."""

    def change(self, conversation: str, change: TurnChange) -> tuple[str, StoredAction | None]:
        """Move or arm outside a lane. The first word is "ok", "exists" or "state"."""

    def claim(self, claim: Claim, stored: StoredAction) -> tuple[ClaimStatus, ActionState | Literal[""]]:
        """Take a shown action, once. `stored` is what was verified: anything else there is `tampered`."""

    def decide(self, decision: ActionDecision) -> tuple[DecisionVerdict, StoredAction | None]:
        """Outside a lane: check, then confirm (claim and start at once), cancel or ignore. The caller verifies."""

    def start(self, claim: Claim, stored: StoredAction, attempt: str) -> StartVerdict:
        """The last step before the effect: whether this attempt may go ahead."""

    def finish(self, claim: Claim, attempt: str, ending: ActionResult) -> None:
        """Record the truth about an effect, however late."""


def _seconds(ms: Any) -> float:
    """Seconds of a field in milliseconds; 0 for what somebody made unreadable."""
    try:
        return int(ms or 0) / 1000
    except ValueError:
        return 0.0
