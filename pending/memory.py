"""MemoryRecords: pending actions in this process, step by step what the scripts do in Redis."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha1
from json import dumps
from typing import Any, Literal, Protocol

from sayso.pending.action import ActionState
from sayso.pending.repository import (
    MAX_ATTEMPTS,
    OPEN_STATES,
    ActionDecision,
    ActionResult,
    Claim,
    ClaimStatus,
    DecisionVerdict,
    StartVerdict,
    StoredAction,
)
from sayso.pending.turns.change import DecisionContext, Lease, NewAction, Transition, TurnChange

#: Entries of the audit log that are kept.
MAX_ENTRIES = 5000
#: Messages that may show one question: its pieces, copies and repetitions. The scripts know it too.
MAX_PROMPTS = 50

_STEP_END: dict[ActionState, ActionState] = {"expired": "expired", "superseded": "superseded"}


class Fence(Protocol):
    """The lanes in this process, as far as their records depend on them."""

    def holds(self, lease: Lease) -> bool:
        """Whether this worker still has the lane."""

    def head(self, conversation: str) -> tuple[int, float]:
        """Number and time of receipt of the turn to work on; number 0 when there is none."""

    def say(self, conversation: str, entry: str) -> None:
        """Append a reply."""


class MemoryLog:
    """The audit log of this process, bounded: each entry names the head of the one before it."""

    def __init__(self) -> None:
        self.entries: deque[str] = deque(maxlen=MAX_ENTRIES)
        self._count = 0
        self._head = "0" * 40

    def append(self, at: float, pid: str, event: str, by: str, body: str) -> None:
        """One transition."""
        self._count += 1
        entry: dict[str, Any] = {"n": self._count, "at": round(at * 1000), "pid": pid, "event": event, "by": by}
        text = dumps({**entry, "body": body, "prev": self._head}, separators=(",", ":"))
        self._head = sha1(text.encode()).hexdigest()  # noqa: S324  # the only hash the scripts have
        self.entries.append(text)


class MemoryRecords:
    """Records in this process, bounded: the least recently armed are forgotten first.

    Between `MemoryConversations` and its records there is one `lock` and, once they are joined, a `fence`.
    """

    def __init__(self, *, max_entries: int = 5000, clock: Callable[[], float] = time.time) -> None:
        self._max_entries = max_entries
        self._clock = clock
        self.lock = threading.RLock()
        self.fence: Fence | None = None
        self.log = MemoryLog()
        self._actions: OrderedDict[str, tuple[StoredAction, NewAction]] = OrderedDict()
        self._tries: dict[str, int] = {}
        self._late: set[str] = set()
        self._asked: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._live: dict[tuple[str, str], str] = {}
        self._scopes: dict[str, tuple[str, str]] = {}

    def look(self, conversation: str, user: str) -> StoredAction | None:
        """The live action of a scope."""
        with self.lock:
            stored = self._get(self._live.get((conversation, user), ""))
            return replace(stored, looked_at=self._clock()) if stored else None

    def read(self, conversation: str, pids: tuple[str, ...]) -> list[StoredAction | None]:
        """Actions by name."""
        with self.lock:
            return [self._get(pid) if self._scopes.get(pid, ("",))[0] == conversation else None for pid in pids]

    def note_asked(self, chat: str, user: str, note: str) -> None:
        """Note which thread of a chat asked a user something last."""
        with self.lock:
            self._asked[chat, user] = note
            self._asked.move_to_end((chat, user))
            while len(self._asked) > self._max_entries:
                self._asked.popitem(last=False)

    def last_asked(self, chat: str, user: str) -> str:
        """Return what was noted last, "" for nothing."""
        with self.lock:
            return self._asked.get((chat, user), "")

    def stash(self, conversation: str, arm: NewAction) -> float | None:
        """Arm outside a lane, shown at once."""
        word, stored = self.change(conversation, TurnChange(arms=(arm,)))
        return stored.expires_at if word == "ok" and stored else None

    def change(self, conversation: str, change: TurnChange) -> tuple[str, StoredAction | None]:
        """Move or arm outside a lane."""
        with self.lock:
            refused = self.obstacle(conversation, change)
            if refused:
                return refused, None
            self.apply(conversation, change)
            for arm in change.arms:
                self.show(arm.pending_action_id)
            touched = change.arms[-1] if change.arms else change.move
            return "ok", self._get(touched.pending_action_id) if touched else None

    def claim(self, claim: Claim, stored: StoredAction) -> tuple[ClaimStatus, ActionState | Literal[""]]:
        """Take a shown action, once."""
        with self.lock:
            if self._lost(claim):
                return "lost", ""
            now = self._get(claim.pending_action_id)
            if now is None:
                return "gone", ""
            if now.state in ("claimed", "started") and now.by == claim.by:
                return "mine", now.state
            if now.state == "expired" and now.by == claim.by:
                return "expired", now.state
            if now.state != "shown" and now.by == claim.by:
                return "moved", now.state
            if now.state != "shown":
                return "other", now.state
            if (now.record, now.mac) != (stored.record, stored.mac):
                return "tampered", now.state
            return self._take_step(claim, now) or self._take(claim, now)

    def decide(self, decision: ActionDecision) -> tuple[DecisionVerdict, StoredAction | None]:
        """Check and confirm, cancel or ignore, outside a lane."""
        scope = decision.scope
        with self.lock:
            now = self.look(scope.conversation.id, scope.id)
            if now is None or (now.state not in ("armed", "shown") and not now.is_stale):
                return "gone", None
            arm = self._actions[now.pid][1]
            another = decision.expected_kind not in ("", arm.kind) or decision.expected_id not in ("", now.pid)
            another = another or (decision.intent == "confirm" and decision.code != arm.code)
            changed = decision.expected_digest not in ("", arm.digest)
            if now.is_stale:
                return ("mismatch" if another or changed else "stale"), now
            if now.state == "shown" and now.is_over:
                return "expired", self._set(now.pid, "expired", by=decision.by)
            if another:
                return "mismatch", now
            if now.state == "armed" and decision.intent == "confirm":
                return "early", now
            if changed:
                return "changed", self._set(now.pid, "cancelled", by=decision.by)
            return self._decide(decision, now)

    def start(self, claim: Claim, stored: StoredAction, attempt: str) -> StartVerdict:
        """The last step before the effect."""
        with self.lock:
            pid = claim.pending_action_id
            now = self._get(pid)
            if self._lost(claim):
                return "lost"
            if now is None or (now.record, now.mac) != (stored.record, stored.mac):
                return "tampered"
            if now.state == "started" and now.attempt == attempt:
                return "go"
            arm = self._actions[pid][1]
            if now.state != "claimed" and not (now.state == "started" and (arm.idempotent or arm.steps)):
                return "no"
            return self._start(pid, attempt, limited=not arm.steps)

    def finish(self, claim: Claim, attempt: str, ending: ActionResult) -> None:
        """Record the truth about an effect, also from a worker that lost its lane."""
        with self.lock:
            pid = claim.pending_action_id
            now = self._get(pid)
            if now is None or now.attempt != attempt or now.state == ending.state:
                return
            late = (now.state, ending.state) in (("unknown", "failed"), ("unknown", "done"), ("failed", "done"))
            if now.state == "started" or late:
                self._put(pid, replace(now, result=ending.result or now.result))
                self._set(pid, ending.state, ending.told)
            if not late or not self.fence:
                return
            if self.fence.head(claim.conversation)[0] == claim.seq:
                self._late.add(self._actions[pid][1].plan)  # its user was told nothing yet
            elif ending.correction:
                self.fence.say(claim.conversation, ending.correction)

    def obstacle(self, conversation: str, change: TurnChange) -> str:
        """Why the change cannot be made: "state", "exists", or "" when it can."""
        if change.move:
            moved = self._get(change.move.pending_action_id)
            if moved is None or not _may_move(moved, change.move) or moved.pid in self._late:
                self._late.discard(change.move.pending_action_id)
                return "state"
        live = [arm for arm in change.arms if arm.live]
        return "exists" if any(self._occupied(conversation, arm, change.move) for arm in live) else ""

    def apply(self, conversation: str, change: TurnChange) -> None:
        """Make the change."""
        if change.move:
            self._apply_move(change.move)
        for arm in change.arms:
            pid = arm.pending_action_id
            if pid not in self._actions:
                self._actions[pid] = (StoredAction(pid, arm.record, arm.mac, "armed"), arm)
                self._scopes[pid] = (conversation, arm.user)
                self._set(pid, "armed")
                if arm.live:
                    self._live[conversation, arm.user] = pid
        self._forget_oldest()

    def note_shows(self, pid: str, message: str) -> None:
        """Note that this message of the platform shows the question, or a piece or a copy of it."""
        now = self._get(pid)
        if now and message:
            others = tuple(known for known in now.prompts if known != message)
            self._put(pid, replace(now, prompts=(*others, message)[-MAX_PROMPTS:]))

    def show(
        self, pid: str, seen: int = 0, prompt: str = "", written_at: float = 0.0
    ) -> tuple[float, NewAction | None]:
        """The preview was delivered, as the message `prompt`: its window opens, and those of its steps.

        Returns when it closes, on what.
        """
        now = self._get(pid)
        if now and prompt:
            now = self._put(pid, replace(now, prompt=prompt))
        if now is None or now.state != "armed":
            return 0.0, None
        arm = self._actions[pid][1]
        expires_at = round(self._clock() + arm.ttl_ms / 1000, 3)
        self._put(pid, replace(now, expires_at=expires_at, seen=seen, written_at=round(written_at, 6)))
        self._set(pid, "shown")
        for step in arm.steps:
            self.show(step, seen, written_at=written_at)
        return expires_at, arm

    def run_out(self, pid: str) -> bool:
        """Whether the window closed on what nobody answered: it ends here."""
        now = self._get(pid)
        if now is None or now.state != "shown" or self._clock() < now.expires_at:
            return False
        self._set(pid, "expired")
        return True

    def bury(self, pid: str, *, shown: bool = False) -> None:
        """End an action whose preview can never be delivered, or, where it was `shown`, was not."""
        now = self._get(pid)
        if now and (now.state == "armed" or (shown and now.state == "shown")):
            self._set(pid, "expired")

    def view(self, conversation: str, user: str, tapped: str) -> tuple[dict[str, str], dict[str, str]]:
        """The live action of a scope and the one a button names, as Redis hashes."""
        live, target = self.look(conversation, user), self._get(tapped)
        return live.to_hash() if live else {}, target.to_hash() if target else {}

    def asked(self, pid: str) -> str:
        """The user whom an action waits for, "" where nobody knows."""
        return self._scopes.get(pid, ("", ""))[1]

    def commit(self, conversation: str, letter: DecisionContext, change: TurnChange) -> str:
        """A lane's commit: make the change, or say what is in its way. What is over leaves the scope."""
        user = letter.user
        for stored in (self.look(conversation, user), self._get(letter.tapped)):
            if stored and stored.by == letter.event:  # claimed by this turn, and not settled by it
                self._abandon(self._get(stored.pid))
        refused = self.obstacle(conversation, change)
        if refused:
            return refused
        self.apply(conversation, change)
        live = self.look(conversation, user)
        if live and live.state not in OPEN_STATES:
            del self._live[conversation, user]
        return ""

    def _take_step(self, claim: Claim, now: StoredAction) -> tuple[ClaimStatus, ActionState] | None:
        """The yes was to the plan, whose window was judged: its steps run only while it does."""
        arm = self._actions[now.pid][1]
        if not arm.plan:
            return None
        plan = self._get(arm.plan)
        if plan is None or (plan.state, plan.by) != ("started", claim.by):
            return "other", now.state
        self._set(now.pid, "claimed", by=claim.by)
        self._put(arm.plan, replace(plan, begun_at=self._clock()))
        return "mine", "claimed"

    def _take(self, claim: Claim, now: StoredAction) -> tuple[ClaimStatus, ActionState]:
        fence = self.fence if claim.lease else None
        seq, at = fence.head(claim.conversation) if fence else (claim.seq, self._clock())
        if seq != claim.seq:
            return "moved", now.state
        if at >= now.expires_at:
            self._set(now.pid, "expired", by=claim.by)
            return "expired", "expired"
        if fence and claim.kind == "text" and (seq <= now.seen or round(at, 3) < self._shown_at(now)):
            return "early", now.state
        self._set(now.pid, "claimed", by=claim.by)
        return "mine", "claimed"

    def _decide(self, decision: ActionDecision, now: StoredAction) -> tuple[DecisionVerdict, StoredAction]:
        match decision.intent:
            case "cancel":
                return "cancelled", self._set(now.pid, "cancelled", by=decision.by)
            case "ignore":
                return "ignored", self._tighten(now, decision.ignore_seconds)
        self._set(now.pid, "claimed", by=decision.by)
        self._start(now.pid, decision.by)
        return "mine", self._actions[now.pid][0]

    def _start(self, pid: str, attempt: str, *, limited: bool = True) -> StartVerdict:
        self._tries[pid] = self._tries.get(pid, 0) + 1
        if limited and self._tries[pid] > MAX_ATTEMPTS:
            return "worn"
        self._put(pid, replace(self._actions[pid][0], attempt=attempt))
        self._set(pid, "started")
        return "go"

    def _tighten(self, now: StoredAction, seconds: float) -> StoredAction:
        sooner = round(self._clock() + seconds, 3)
        if now.state != "shown" or sooner >= now.expires_at:
            return now
        arm = self._actions[now.pid][1]
        cut = round((now.expires_at - sooner) * 1000)  # a shorter window, not an earlier one
        self._actions[now.pid] = (now, replace(arm, ttl_ms=arm.ttl_ms - cut))
        return self._put(now.pid, replace(now, expires_at=sooner))

    def _shown_at(self, now: StoredAction) -> float:
        """When the window opened. A turn that waited elsewhere has a later number, not a later time."""
        return round(now.expires_at - self._actions[now.pid][1].ttl_ms / 1000, 3)

    def _occupied(self, conversation: str, arm: NewAction, move: Transition | None) -> bool:
        other = self._live.get((conversation, arm.user), "")
        now = self.look(conversation, arm.user)
        if now is None or other == arm.pending_action_id or (move and move.pending_action_id == other):
            return False
        if now.state == "shown" and now.is_over:
            self._set(other, "expired")
            return False
        if now.is_stale:
            self._abandon(now)
            return False
        return now.state in OPEN_STATES

    def _apply_move(self, move: Transition) -> None:
        now = self._actions[move.pending_action_id][0]
        if now.state in (move.to, "expired"):
            self._put(now.pid, replace(now, told=move.told or now.told))
        else:
            self._set(now.pid, move.to, move.told, move.by)  # type: ignore[arg-type]  # a Move names states

    def _abandon(self, stored: StoredAction | None) -> None:
        """What is in nobody's hands any more."""
        if stored and stored.state in ("claimed", "started"):
            self._set(stored.pid, "superseded" if stored.state == "claimed" else "unknown")

    def _lost(self, claim: Claim) -> bool:
        return bool(claim.lease and self.fence and not self.fence.holds(claim.lease))

    def _get(self, pid: str) -> StoredAction | None:
        entry = self._actions.get(pid)
        return entry[0] if entry else None

    def _put(self, pid: str, stored: StoredAction) -> StoredAction:
        self._actions[pid] = (stored, self._actions[pid][1])
        return stored

    def _set(self, pid: str, state: ActionState, told: str = "", by: str = "") -> StoredAction:
        """Change the state, on record; what a plan's steps have not begun ends with it."""
        now, arm = self._actions[pid]
        begun_at = self._clock() if state in ("claimed", "started") else now.begun_at
        changed = replace(now, state=state, told=told or now.told, by=by or now.by, begun_at=begun_at)
        stored = self._put(pid, changed)
        self.log.append(self._clock(), pid, state, stored.by, arm.mac)
        if state not in OPEN_STATES:
            for step in (self._get(step) for step in arm.steps):
                if step and step.state in OPEN_STATES:
                    self._set(step.pid, _end_of_step(step.state, state), by=stored.by)
        return stored

    def _forget_oldest(self) -> None:
        while len(self._actions) > self._max_entries:
            over = (pid for pid, (stored, _) in self._actions.items() if stored.state not in OPEN_STATES)
            pid = next(over, next(iter(self._actions)))
            del self._actions[pid]
            self._tries.pop(pid, None)
            scope = self._scopes.pop(pid)
            if self._live.get(scope) == pid:
                del self._live[scope]


def _may_move(now: StoredAction, move: Transition) -> bool:
    """Whether the move is possible. Nobody did what expired meanwhile: who says that it is let go says no untruth."""
    return now.state in move.from_states or (now.state == "expired" and move.to in ("cancelled", "expired"))


def _end_of_step(step: ActionState, plan: ActionState) -> ActionState:
    """How an open step ends with its plan: what has begun is unknown, the rest was not done."""
    return "unknown" if step == "started" else _STEP_END.get(plan, "cancelled")
