"""InMemoryActions: pending actions of one process, for a program without Redis.

The Lua scripts in `pending/lua` hold the rules for the states of an action. This module repeats the
part of them that a program without workers needs. There are no leases and no turns that wait, so a
new action counts as shown at once. `tests/contracts/test_parity.py` compares both for every state
and every step.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from sayso.pending.action import ActionState
from sayso.pending.limits import FORM_MS, KEEP_RECENT_MS, MAX_RECENT, MAX_STARTS
from sayso.pending.repository import (
    ActionDecision,
    ActionResult,
    Claim,
    ClaimStatus,
    DecisionVerdict,
    StartVerdict,
)
from sayso.pending.stored_action import OPEN_STATES, StoredAction
from sayso.pending.turns import NewAction, Transition, TurnChange

#: How an open step ends when its plan ends in this state. After any other end it is cancelled.
_STEP_END: dict[ActionState, ActionState] = {"expired": "expired", "superseded": "superseded"}
#: Ends of an effect that a later result corrects: the stored state, and the later one.
_CORRECTIONS = frozenset({("unknown", "failed"), ("unknown", "done"), ("failed", "done")})


@dataclass(slots=True)
class _Entry:
    """An action: as it was proposed, for which conversation and user, and where it stands.

    `starts`: how often it was started.
    """

    proposed: NewAction
    scope: tuple[str, str]
    stored: StoredAction
    starts: int = 0

    def update(self, **fields: Any) -> None:
        """Change fields of the stored action."""
        self.stored = replace(self.stored, **fields)

    def move_end(self, expires_at: float) -> None:
        """Let the window close at another time, in Unix seconds.

        The time to live changes by as much, so the time at which the window opened stays the same.
        """
        later_ms = round((expires_at - self.stored.expires_at) * 1000)
        self.proposed = replace(self.proposed, ttl_ms=self.proposed.ttl_ms + later_ms)
        self.update(expires_at=expires_at)


class InMemoryActions:
    """An ActionRepository in this process, for at most `max_entries` actions.

    Beyond that it forgets the oldest, ended ones before open ones. Threads may share it. Lives as
    long as its store. `clock` returns Unix seconds.
    """

    def __init__(self, *, max_entries: int = 5000, clock: Callable[[], float] = time.time) -> None:
        self._max_entries = max_entries
        self._clock = clock
        self._lock = threading.RLock()
        #: By id, the oldest first.
        self._entries: dict[str, _Entry] = {}
        #: By conversation and user, the id of the action that a plain yes answers.
        self._occupants: dict[tuple[str, str], str] = {}
        self._question_places: OrderedDict[tuple[str, str], str] = OrderedDict()

    async def load_open(self, conversation: str, user: str) -> StoredAction | None:
        """Return the action that occupies a scope."""
        with self._lock:
            return self._as_of_now(self._occupant(conversation, user))

    async def load(
        self, conversation: str, action_ids: tuple[str, ...]
    ) -> list[StoredAction | None]:
        """Return actions by id."""
        with self._lock:
            return [self._as_of_now(self._entry_in(conversation, each)) for each in action_ids]

    async def open_form(self, conversation: str, action_id: str) -> StoredAction | None:
        """Return an action whose person begins to change it.

        An open question stays open for FORM_MS at least.
        """
        with self._lock:
            entry = self._entry_in(conversation, action_id)
            if entry is None:
                return None
            now = self._clock()
            later = round(now + FORM_MS / 1000, 3)
            if entry.stored.state == "shown" and now < entry.stored.expires_at < later:
                entry.move_end(later)
            return self._as_of_now(entry)

    async def list_started(self, conversation: str, user: str) -> list[StoredAction]:
        """Return the actions of a scope that were started within the last hour, the last first."""
        with self._lock:
            since = self._clock() - KEEP_RECENT_MS / 1000
            own = [
                replace(entry.stored, loaded_at=self._clock())
                for entry in self._entries.values()
                if entry.scope == (conversation, user)
            ]
        started = [stored for stored in own if stored.attempt_id and stored.started_at > since]
        oldest_first = sorted(started, key=lambda stored: stored.started_at)
        return oldest_first[::-1][:MAX_RECENT]

    async def save_question_place(self, chat: str, user: str, place: str) -> None:
        """Note which thread of a chat asked a user something last."""
        with self._lock:
            self._question_places[chat, user] = place
            self._question_places.move_to_end((chat, user))
            while len(self._question_places) > self._max_entries:
                self._question_places.popitem(last=False)

    async def load_question_place(self, chat: str, user: str) -> str:
        """Return the last note of `save_question_place`, "" when there is none."""
        with self._lock:
            return self._question_places.get((chat, user), "")

    async def save(self, conversation: str, new_action: NewAction) -> float | None:
        """Store an action as shown. Return when its window closes, None if the scope is taken."""
        answer, stored = await self.change(conversation, TurnChange(new_actions=(new_action,)))
        return stored.expires_at if answer == "ok" and stored else None

    async def change(
        self, conversation: str, change: TurnChange
    ) -> tuple[str, StoredAction | None]:
        """Make a transition or store new actions. The first value is "ok", "exists" or "state"."""
        with self._lock:
            transition = change.transition
            if transition and not self._is_possible(transition):
                return "state", None
            if any(self._is_occupied(conversation, new, transition) for new in change.new_actions):
                return "exists", None

            if transition:
                self._make(transition)
            for new_action in change.new_actions:
                self._add(conversation, new_action)
            self._forget_oldest()

            changed = change.new_actions[-1] if change.new_actions else transition
            return "ok", self._entries[changed.action_id].stored if changed else None

    async def claim(
        self, claim: Claim, stored: StoredAction
    ) -> tuple[ClaimStatus, ActionState | Literal[""]]:
        """Claim a shown action, once."""
        with self._lock:
            entry = self._entries.get(claim.action_id)
            if entry is None:
                return "gone", ""
            state = entry.stored.state
            if state != "shown":
                return _repeated_claim(claim, entry.stored), state
            if not _is_same_record(entry.stored, stored):
                return "tampered", state
            if entry.proposed.plan:
                return self._claim_step(claim, entry)
            if self._clock() >= entry.stored.expires_at:
                self._enter(entry, "expired", by=claim.decided_by_event)
                return "expired", "expired"
            self._enter(entry, "claimed", by=claim.decided_by_event)
            return "mine", "claimed"

    async def decide(self, decision: ActionDecision) -> tuple[DecisionVerdict, StoredAction | None]:
        """Check, then confirm, cancel or ignore."""
        with self._lock:
            entry = self._occupant(decision.scope.conversation.id, decision.scope.id)
            now = self._as_of_now(entry)
            if entry is None or now is None or not (now.state == "shown" or now.is_stale):
                return "gone", None
            verdict = self._verdict(decision, entry, now)
            by = decision.decided_by_event
            match verdict:
                case "expired" | "cancelled":
                    self._enter(entry, verdict, by=by)
                case "changed":
                    self._enter(entry, "cancelled", by=by)
                case "ignored":
                    sooner = round(self._clock() + decision.ignore_seconds, 3)
                    if sooner < now.expires_at:
                        entry.move_end(sooner)
                case "mine":
                    self._enter(entry, "claimed", by=by)
                    self._start(entry, by)
            return verdict, self._as_of_now(entry)

    async def start(self, claim: Claim, stored: StoredAction, attempt: str) -> StartVerdict:
        """Take the last step before the effect."""
        with self._lock:
            entry = self._entries.get(claim.action_id)
            if entry is None or not _is_same_record(entry.stored, stored):
                return "tampered"
            if entry.stored.state == "started" and entry.stored.attempt_id == attempt:
                return "go"
            may_start_again = entry.stored.state == "started" and (
                entry.proposed.idempotent or entry.proposed.steps
            )
            if entry.stored.state != "claimed" and not may_start_again:
                return "no"
            return self._start(entry, attempt)

    async def finish(self, claim: Claim, attempt: str, result: ActionResult) -> None:
        """Record how an effect ended, however late."""
        with self._lock:
            entry = self._entries.get(claim.action_id)
            if entry is None or entry.stored.attempt_id != attempt:
                return
            state = entry.stored.state
            if state == "started" or (state, result.state) in _CORRECTIONS:
                entry.update(result=result.result or entry.stored.result, output=result.output)
                self._enter(entry, result.state, result.outcome_text)

    def _occupant(self, conversation: str, user: str) -> _Entry | None:
        return self._entries.get(self._occupants.get((conversation, user), ""))

    def _entry_in(self, conversation: str, action_id: str) -> _Entry | None:
        entry = self._entries.get(action_id)
        return entry if entry and entry.scope[0] == conversation else None

    def _as_of_now(self, entry: _Entry | None) -> StoredAction | None:
        return replace(entry.stored, loaded_at=self._clock()) if entry else None

    def _verdict(
        self, decision: ActionDecision, entry: _Entry, now: StoredAction
    ) -> DecisionVerdict:
        """Return what a decision means for the action that waits. Changes nothing."""
        proposed = entry.proposed
        is_another = (
            decision.expected_kind not in ("", proposed.kind)
            or decision.expected_id not in ("", now.action_id)
            or (decision.intent == "confirm" and decision.code != proposed.code)
        )
        is_changed = decision.expected_digest not in ("", proposed.digest)
        if now.is_stale:
            return "mismatch" if is_another or is_changed else "stale"
        if now.is_over:
            return "expired"
        if is_another:
            return "mismatch"
        if is_changed:
            return "changed"
        match decision.intent:
            case "cancel":
                return "cancelled"
            case "ignore":
                return "ignored"
        return "mine"

    def _claim_step(self, claim: Claim, step: _Entry) -> tuple[ClaimStatus, ActionState]:
        """Claim a step of a plan. The yes was to the plan, whose window was checked.

        So a step is claimed only while its plan runs by the same yes.
        """
        plan = self._entries.get(step.proposed.plan)
        running = ("started", claim.decided_by_event)
        if plan is None or (plan.stored.state, plan.stored.decided_by_event) != running:
            return "other", step.stored.state
        self._enter(step, "claimed", by=claim.decided_by_event)
        plan.update(started_at=self._clock())
        return "mine", "claimed"

    def _start(self, entry: _Entry, attempt: str) -> StartVerdict:
        entry.starts += 1
        # A plan has no effect of its own, and each step is counted by itself.
        if entry.starts > MAX_STARTS and not entry.proposed.steps:
            return "worn"
        entry.update(attempt_id=attempt)
        self._enter(entry, "started")
        return "go"

    def _is_possible(self, transition: Transition) -> bool:
        entry = self._entries.get(transition.action_id)
        if entry is None:
            return False
        # What expired meanwhile had no effect, so it may be called cancelled or expired.
        had_no_effect = entry.stored.state == "expired" and transition.to in (
            "cancelled",
            "expired",
        )
        return entry.stored.state in transition.from_states or had_no_effect

    def _is_occupied(
        self, conversation: str, new_action: NewAction, transition: Transition | None
    ) -> bool:
        """Return whether another action occupies the scope of this one.

        Ends one that has expired, or whose process died at it.
        """
        entry = self._occupant(conversation, new_action.user)
        now = self._as_of_now(entry)
        if entry is None or now is None or not new_action.occupies_scope:
            return False
        is_leaving = transition is not None and transition.action_id == now.action_id
        if is_leaving or now.action_id == new_action.action_id:
            return False
        if now.state == "shown" and now.is_over:
            self._enter(entry, "expired")
        elif now.is_stale:
            self._enter(entry, "superseded" if now.state == "claimed" else "unknown")
        return entry.stored.state in OPEN_STATES

    def _make(self, transition: Transition) -> None:
        entry = self._entries[transition.action_id]
        if entry.stored.state in (transition.to, "expired"):
            entry.update(outcome_text=transition.outcome_text or entry.stored.outcome_text)
        else:
            self._enter(entry, transition.to, transition.outcome_text, transition.decided_by_event)
        if transition.unclear:
            entry.update(unclear_answers=(*entry.stored.unclear_answers, transition.unclear))

    def _add(self, conversation: str, new_action: NewAction) -> None:
        if new_action.action_id in self._entries:
            return
        scope = (conversation, new_action.user)
        stored = StoredAction(
            new_action.action_id,
            new_action.record,
            new_action.mac,
            "shown",
            expires_at=round(self._clock() + new_action.ttl_ms / 1000, 3),
            trace=new_action.trace,
        )
        self._entries[new_action.action_id] = _Entry(new_action, scope, stored)
        if new_action.occupies_scope:
            self._occupants[scope] = new_action.action_id

    def _enter(
        self, entry: _Entry, state: ActionState, outcome_text: str = "", by: str = ""
    ) -> None:
        """Change the state. When a plan ends, its open steps end too."""
        entry.update(
            state=state,
            outcome_text=outcome_text or entry.stored.outcome_text,
            decided_by_event=by or entry.stored.decided_by_event,
        )
        if state in ("claimed", "started"):
            entry.update(started_at=self._clock())
        if state in OPEN_STATES:
            return
        for step_id in entry.proposed.steps:
            step = self._entries.get(step_id)
            if step is None or step.stored.state not in OPEN_STATES:
                continue
            step_end = _STEP_END.get(state, "cancelled")
            if step.stored.state == "started":
                step_end = "unknown"  # it may have had its effect
            self._enter(step, step_end, by=entry.stored.decided_by_event)

    def _forget_oldest(self) -> None:
        while len(self._entries) > self._max_entries:
            ended = (
                action_id
                for action_id, entry in self._entries.items()
                if entry.stored.state not in OPEN_STATES
            )
            oldest = next(ended, next(iter(self._entries)))
            scope = self._entries.pop(oldest).scope
            if self._occupants.get(scope) == oldest:
                del self._occupants[scope]


def _is_same_record(stored: StoredAction, verified: StoredAction) -> bool:
    """Return whether the stored record is the one that the caller verified."""
    return (stored.record, stored.mac) == (verified.record, verified.mac)


def _repeated_claim(claim: Claim, now: StoredAction) -> ClaimStatus:
    """Return the answer to a claim of an action that is not open any more.

    The act that decided on it gets its first answer again, until the action has ended.
    """
    if now.decided_by_event != claim.decided_by_event:
        return "other"
    if now.state in ("claimed", "started"):
        return "mine"
    return "expired" if now.state == "expired" else "moved"
