"""Records: stored pending actions and the few atomic steps of their life, in Redis or in memory."""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from channels.types import Conversation, Scope
from pending.action import PendingAction, State, canonical_json
from pending.seal import Seal
from workers.lane import Arm, Change, Lease, Move, pairs
from workers.redis import Scripts

#: Where this room's scripts are.
LUA = Path(__file__).parent / "lua"

#: What a claim found. Only `mine` may go on; the others execute nothing.
Verdict = Literal["mine", "other", "gone", "expired", "early", "tampered", "lost", "moved"]

#: States in which an action still occupies its scope.
OPEN_STATES: tuple[State, ...] = ("armed", "shown", "claimed", "started")

_VOLATILE = ("state", "expires_at", "outcome", "pending_action_id")


@dataclass(frozen=True, slots=True)
class StoredAction:
    """A record as stored: the sealed part exactly as it was sealed, and where it is in its life.

    `pid` is the name it was found under, `seen` the number of the last turn that came in before it was shown,
    `looked_at` the store's own time when it was looked up.
    """

    pid: str
    record: str
    mac: str
    state: State
    expires_at: float = 0.0
    by: str = ""
    attempt: str = ""
    told: str = ""
    seen: int = 0
    looked_at: float = field(default=0.0, compare=False)

    @property
    def is_over(self) -> bool:
        """Whether the window had closed when this was looked up: no other machine's clock is asked."""
        return self.action.is_expired(self.looked_at)

    @classmethod
    def from_hash(cls, fields: Mapping[str, str]) -> StoredAction | None:
        """The record in a Redis hash, None when there is none."""
        if "rec" not in fields:
            return None
        return cls(
            pid=fields["pid"],
            record=fields["rec"],
            mac=fields.get("mac", ""),
            state=fields["state"],  # type: ignore[arg-type]  # only our scripts write it
            expires_at=int(fields.get("expires", "0")) / 1000,
            by=fields.get("by", ""),
            attempt=fields.get("attempt", ""),
            told=fields.get("told", ""),
            seen=int(fields.get("seen", "0")),
            looked_at=int(fields.get("looked", "0")) / 1000,
        )

    def to_hash(self) -> dict[str, str]:
        """The record as a Redis hash would hold it."""
        expires = str(round(self.expires_at * 1000))
        fields = {"pid": self.pid, "rec": self.record, "mac": self.mac, "state": self.state, "expires": expires}
        return {**fields, "by": self.by, "attempt": self.attempt, "told": self.told, "seen": str(self.seen)}

    @property
    def action(self) -> PendingAction:
        """The action: what was sealed, in its present state. A record that is no longer one has no kind to run."""
        try:
            sealed = json.loads(self.record)
            del sealed["pid"]
            return PendingAction(
                **sealed, pending_action_id=self.pid, state=self.state, expires_at=self.expires_at,
                outcome=self.told or None,
            )  # fmt: skip
        except (ValueError, TypeError, KeyError, AttributeError):
            return PendingAction(
                user_id="", kind="", preview="an action that was changed", state=self.state,
                expires_at=self.expires_at, pending_action_id=self.pid,
            )  # fmt: skip

    def is_genuine(self, seal: Seal, scope: Scope) -> bool:
        """Whether the record is exactly what we sealed, under this name and for this scope."""
        if not seal.verify(self.record, self.mac):
            return False
        action = self.action
        place = Conversation(action.channel_id or "direct", action.conversation_id or action.user_id)
        sealed_pid = json.loads(self.record)["pid"]
        return (sealed_pid, action.user_id, place.id) == (self.pid, scope.user_id, scope.conversation.id)


def seal_action(action: PendingAction, seal: Seal, *, user: str) -> Arm:
    """The action as it is stored: everything that was shown and will run, under one MAC."""
    fields = {key: value for key, value in asdict(action).items() if key not in _VOLATILE}
    record = canonical_json({**fields, "pid": action.pending_action_id})
    ttl_ms = max(1, round(action.ttl_seconds * 1000))
    return Arm(action.pending_action_id, user, record, seal.sign(record), ttl_ms, action.idempotent)


@dataclass(frozen=True, slots=True)
class Claim:
    """Who decides on which record, and by which act: a turn's event, so that its redelivery is the same claim.

    In a lane, `lease` and `seq` prove that it is this worker's turn.
    """

    scope: Scope
    pending_action_id: str
    by: str
    kind: Literal["text", "tap"] = "text"
    lease: Lease | None = None
    seq: int = 0

    @property
    def conversation(self) -> str:
        """The lane the record lives in."""
        return self.scope.conversation.id


class Records(Protocol):
    """The life of stored actions, one atomic step a call, each safe to repeat."""

    def look(self, conversation: str, user: str) -> StoredAction | None:
        """The live action of a scope."""

    def change(self, conversation: str, change: Change) -> tuple[str, StoredAction | None]:
        """Move or arm outside a lane. The first word is "ok", "exists" or "state"."""

    def claim(self, claim: Claim, stored: StoredAction) -> tuple[Verdict, State | Literal[""]]:
        """Take a shown action, once. `stored` is what was verified: anything else there is `tampered`."""

    def start(self, claim: Claim, stored: StoredAction, attempt: str) -> bool:
        """The last step before the effect: whether this attempt may go ahead."""

    def finish(self, claim: Claim, attempt: str, state: State, told: str, correction: str = "") -> None:
        """Record the truth about an effect, however late."""

    def tighten(self, conversation: str, user: str, seconds: float, expected_id: str = "") -> StoredAction | None:
        """Close the window sooner, never later."""


class RedisRecords:
    """Records in Redis: each call is one script, one round trip, on the server's clock."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts

    def look(self, conversation: str, user: str) -> StoredAction | None:
        """The live action of a scope."""
        return StoredAction.from_hash(pairs(self._scripts.run("look", conversation, user)))

    def change(self, conversation: str, change: Change) -> tuple[str, StoredAction | None]:
        """Move or arm outside a lane."""
        word, fields = self._scripts.run("change", conversation, change.to_json())
        return str(word), StoredAction.from_hash(pairs(fields))

    def claim(self, claim: Claim, stored: StoredAction) -> tuple[Verdict, State | Literal[""]]:
        """Take a shown action, once."""
        fence = _fence(claim.lease)
        verdict, state = self._scripts.run(
            "claim", claim.conversation, *fence, claim.pending_action_id, claim.by, claim.kind,
            stored.record, stored.mac, claim.seq,
        )  # fmt: skip
        return verdict, state

    def start(self, claim: Claim, stored: StoredAction, attempt: str) -> bool:
        """The last step before the effect."""
        args = (claim.pending_action_id, attempt, stored.record, stored.mac)
        return bool(self._scripts.run("start", claim.conversation, *_fence(claim.lease), *args) == "go")

    def finish(self, claim: Claim, attempt: str, state: State, told: str, correction: str = "") -> None:
        """Record the truth about an effect."""
        self._scripts.run("finish", claim.conversation, claim.pending_action_id, attempt, state, told, correction)

    def tighten(self, conversation: str, user: str, seconds: float, expected_id: str = "") -> StoredAction | None:
        """Close the window sooner."""
        fields = self._scripts.run("tighten", conversation, user, expected_id, round(seconds * 1000))
        return StoredAction.from_hash(pairs(fields))


class Fence(Protocol):
    """The lanes in this process, as far as their records depend on them."""

    def holds(self, lease: Lease) -> bool:
        """Whether this worker still has the lane."""

    def head(self, conversation: str) -> tuple[int, float]:
        """Number and time of receipt of the turn to work on; number 0 when there is none."""

    def say(self, conversation: str, entry: str) -> None:
        """Append a reply."""


class MemoryRecords:
    """Records in this process, bounded: the least recently armed are forgotten first.

    Between `MemoryLanes` and its records there is one `lock` and, once they are joined, a `fence`.
    """

    def __init__(self, *, max_entries: int = 5000, clock: Callable[[], float] = time.time) -> None:
        self._max_entries = max_entries
        self._clock = clock
        self.lock = threading.RLock()
        self.fence: Fence | None = None
        self._actions: OrderedDict[str, tuple[StoredAction, Arm]] = OrderedDict()
        self._live: dict[tuple[str, str], str] = {}
        self._scopes: dict[str, tuple[str, str]] = {}

    def look(self, conversation: str, user: str) -> StoredAction | None:
        """The live action of a scope."""
        with self.lock:
            stored = self._get(self._live.get((conversation, user), ""))
            return replace(stored, looked_at=self._clock()) if stored else None

    def change(self, conversation: str, change: Change) -> tuple[str, StoredAction | None]:
        """Move or arm outside a lane."""
        with self.lock:
            refused = self.obstacle(conversation, change)
            if refused:
                return refused, None
            self.apply(conversation, change)
            if change.arm:
                self.show(change.arm.pending_action_id)
            touched = change.arm or change.move
            return "ok", self._get(touched.pending_action_id) if touched else None

    def claim(self, claim: Claim, stored: StoredAction) -> tuple[Verdict, State | Literal[""]]:
        """Take a shown action, once."""
        with self.lock:
            fence = self.fence if claim.lease else None
            if self._lost(claim):
                return "lost", ""
            now = self._get(claim.pending_action_id)
            if now is None:
                return "gone", ""
            if now.state in ("claimed", "started") and now.by == claim.by:
                return "mine", now.state
            if now.state != "shown":
                return "other", now.state
            if (now.record, now.mac) != (stored.record, stored.mac):
                return "tampered", now.state
            seq, at = fence.head(claim.conversation) if fence else (claim.seq, self._clock())
            if seq != claim.seq:
                return "moved", now.state
            if at < now.expires_at and fence and claim.kind == "text" and seq <= now.seen:
                return "early", now.state
            state: State = "expired" if at >= now.expires_at else "claimed"
            self._put(claim.pending_action_id, replace(now, state=state, by=claim.by))
            return ("mine" if state == "claimed" else "expired"), state

    def start(self, claim: Claim, stored: StoredAction, attempt: str) -> bool:
        """The last step before the effect."""
        with self.lock:
            now = self._get(claim.pending_action_id)
            if self._lost(claim) or now is None or (now.record, now.mac) != (stored.record, stored.mac):
                return False
            if now.state == "started" and now.attempt == attempt:
                return True
            if now.state != "claimed" and not (now.state == "started" and now.action.idempotent):
                return False
            self._put(claim.pending_action_id, replace(now, state="started", attempt=attempt))
            return True

    def finish(self, claim: Claim, attempt: str, state: State, told: str, correction: str = "") -> None:
        """Record the truth about an effect, also from a worker that lost its lane."""
        with self.lock:
            now = self._get(claim.pending_action_id)
            if now is None or now.attempt != attempt or now.state not in ("started", "unknown") or now.state == state:
                return
            self._put(now.pid, replace(now, state=state, told=told))
            if now.state == "unknown" and correction and self.fence:
                self.fence.say(claim.conversation, correction)

    def tighten(self, conversation: str, user: str, seconds: float, expected_id: str = "") -> StoredAction | None:
        """Close the window sooner."""
        with self.lock:
            pid = self._live.get((conversation, user), "")
            now = self._get(pid)
            if now is None or now.state != "shown" or self._clock() >= now.expires_at or expected_id not in ("", pid):
                return None
            return self._put(pid, replace(now, expires_at=min(now.expires_at, round(self._clock() + seconds, 3))))

    def obstacle(self, conversation: str, change: Change) -> str:
        """Why the change cannot be made: "state", "exists", or "" when it can."""
        if change.move:
            moved = self._get(change.move.pending_action_id)
            if moved is None or moved.state not in change.move.from_states:
                return "state"
        return "exists" if change.arm and self._occupied(conversation, change.arm, change.move) else ""

    def apply(self, conversation: str, change: Change) -> None:
        """Make the change."""
        move, arm = change.move, change.arm
        if move:
            now = self._actions[move.pending_action_id][0]
            self._put(
                move.pending_action_id,
                replace(now, state=move.to, told=move.told or now.told, by=move.by or now.by),  # type: ignore[arg-type]
            )
        if arm and arm.pending_action_id not in self._actions:
            self._actions[arm.pending_action_id] = (
                StoredAction(arm.pending_action_id, arm.record, arm.mac, "armed"),
                arm,
            )
            self._live[conversation, arm.user] = arm.pending_action_id
            self._scopes[arm.pending_action_id] = (conversation, arm.user)
            self._forget_oldest()

    def show(self, pid: str, seen: int = 0) -> None:
        """Open the window of an action whose preview was delivered."""
        if pid in self._actions:
            now, arm = self._actions[pid]
            if now.state == "armed":
                expires_at = round(self._clock() + arm.ttl_ms / 1000, 3)
                self._put(pid, replace(now, state="shown", expires_at=expires_at, seen=seen))

    def bury(self, pid: str) -> None:
        """End an action whose preview can never be delivered."""
        now = self._get(pid)
        if now and now.state == "armed":
            self._put(pid, replace(now, state="expired"))

    def view(self, conversation: str, user: str, tapped: str) -> tuple[dict[str, str], dict[str, str]]:
        """The live action of a scope and the one a button names, as Redis hashes."""
        live, target = self.look(conversation, user), self._get(tapped)
        return live.to_hash() if live else {}, target.to_hash() if target else {}

    def commit(self, conversation: str, user: str, change: Change) -> str:
        """A lane's commit: make the change, or say what is in its way. What is over leaves the scope."""
        self._abandon(self.look(conversation, user))
        refused = self.obstacle(conversation, change)
        if refused:
            return refused
        self.apply(conversation, change)
        live = self.look(conversation, user)
        if live and live.state not in OPEN_STATES:
            del self._live[conversation, user]
        return ""

    def _occupied(self, conversation: str, arm: Arm, move: Move | None) -> bool:
        other = self._live.get((conversation, arm.user), "")
        now = self._get(other)
        if now is None or other == arm.pending_action_id or (move and move.pending_action_id == other):
            return False
        if now.state == "shown" and self._clock() >= now.expires_at:
            self._put(other, replace(now, state="expired"))
            return False
        return now.state in OPEN_STATES

    def _abandon(self, live: StoredAction | None) -> None:
        """Only the holder of the lane decides: what is still claimed when a turn ends is in nobody's hands."""
        if live and live.state in ("claimed", "started"):
            self._put(live.pid, replace(live, state="superseded" if live.state == "claimed" else "unknown"))

    def _lost(self, claim: Claim) -> bool:
        return bool(claim.lease and self.fence and not self.fence.holds(claim.lease))

    def _get(self, pid: str) -> StoredAction | None:
        entry = self._actions.get(pid)
        return entry[0] if entry else None

    def _put(self, pid: str, stored: StoredAction) -> StoredAction:
        self._actions[pid] = (stored, self._actions[pid][1])
        return stored

    def _forget_oldest(self) -> None:
        while len(self._actions) > self._max_entries:
            pid, _ = self._actions.popitem(last=False)
            scope = self._scopes.pop(pid)
            if self._live.get(scope) == pid:
                del self._live[scope]


def _fence(lease: Lease | None) -> tuple[Any, str]:
    return (lease.epoch, lease.token) if lease else ("", "")
