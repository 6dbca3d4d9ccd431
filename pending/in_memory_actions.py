"""InMemoryActions: pending actions of one process, for a program without Redis.

The Lua scripts in `pending/lua` hold the rules for the states of an action. This module repeats the
part of them that `InMemoryPendingStore` promises. It knows no leases and no queued turns, so a new
action counts as shown at once. `tests/contracts/test_parity.py` compares both for every state and
every step.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from sayso.pending.action import ActionState
from sayso.pending.decision_record import DecisionRecord
from sayso.pending.repository import (
    ActionDecision,
    ActionResult,
    ChangeStatus,
    Claim,
    ClaimStatus,
    DecisionVerdict,
    StartVerdict,
)
from sayso.pending.standing_yes import StandingRevocation, StandingUse, StandingYes
from sayso.pending.stored_action import OPEN_STATES, StoredAction
from sayso.pending.stored_limits import (
    FORM_MS,
    KEEP_RECENT_MS,
    MAX_RECENT,
    MAX_STANDING,
    MAX_STARTS,
)
from sayso.pending.turn_changes import NewAction, RequestChange, Transition, TurnChange

#: How an open step that has not started ends when its plan ends in this state. When the plan ends
#: otherwise, the step is cancelled.
_STEP_END: dict[ActionState, ActionState] = {"expired": "expired", "superseded": "superseded"}
#: Which results may still come for an action that was ended without one: the stored state, and the
#: state of the late result. Its caller gave up waiting, or a check found nothing too early.
_CORRECTIONS = frozenset({("unknown", "failed"), ("unknown", "done"), ("failed", "done")})


class _ScopeKey(NamedTuple):
    """The person whose yes an action waits for, in a conversation."""

    #: The id of the conversation.
    conversation: str
    #: The id of the scope (`Scope.id`).
    user: str


@dataclass(slots=True)
class _Entry:
    """One action and its state."""

    #: The action as it was saved. It never changes.
    new_action: NewAction
    scope: _ScopeKey
    #: Its present state, without the time at which it is loaded.
    stored: StoredAction
    #: How often the action was started.
    starts: int = 0

    def update(self, **fields: Any) -> None:
        """Change fields of the stored action."""
        self.stored = replace(self.stored, **fields)

    def store_decision(self, record: DecisionRecord | None) -> None:
        """Store how the action was decided; None: that is not recorded."""
        if record:
            self.update(decision=record.to_json())


class InMemoryActions:
    """An ActionRepository in this process, for at most `max_entries` actions.

    Beyond that it forgets the oldest, ended ones before open ones. Threads may share it. Lives as
    long as its store. `clock` returns Unix seconds.

    The public methods are those of ActionRepository, and `repository.py` says what each one takes
    and returns. They load actions, store what a turn changes, and take an action from the yes to
    the result of its effect. The private methods are the rules for one change of a state.
    """

    def __init__(self, *, max_entries: int = 5000, clock: Callable[[], float] = time.time) -> None:
        self._max_entries = max_entries
        self._clock = clock
        self._lock = threading.RLock()
        #: By id, the oldest first.
        self._entries: dict[str, _Entry] = {}
        #: By scope, the id of the action that a plain yes answers, its *occupant*. It stays the
        #: occupant after it has ended, until another action takes its place.
        self._occupants: dict[_ScopeKey, str] = {}
        #: By chat and user, the place of `save_question_place`, the oldest first.
        self._question_places: dict[tuple[str, str], str] = {}
        #: By scope, the standing yeses by id. A scope is removed with its last one.
        self._standing: dict[_ScopeKey, dict[str, StandingYes]] = {}

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
        """Return an action whose person begins to change it, and keep its question open."""
        with self._lock:
            entry = self._entry_in(conversation, action_id)
            if entry is None:
                return None
            now = self._clock()
            later = round(now + FORM_MS / 1000, 3)
            if entry.stored.state == "shown" and now < entry.stored.expires_at < later:
                entry.update(expires_at=later)
            return self._as_of_now(entry)

    async def list_started(self, conversation: str, user: str) -> list[StoredAction]:
        """Return the actions of a scope that were started within the last hour, the last first."""
        with self._lock:
            now = self._clock()
            started = []
            for entry in self._entries.values():
                stored = entry.stored
                # A claim sets `started_at` as well, but only a start has an attempt.
                is_started = stored.attempt_id != ""
                is_recent = stored.started_at > now - KEEP_RECENT_MS / 1000
                if entry.scope == (conversation, user) and is_started and is_recent:
                    started.append(replace(stored, loaded_at=now))
        # Not sorted with `reverse`: of two with the same time, the one that was stored later is first.
        started.sort(key=lambda stored: stored.started_at)
        started.reverse()
        return started[:MAX_RECENT]

    async def list_requests(self, conversation: str, user: str) -> list[StoredAction]:
        """Return (): without a worker, no question about another person's action is sent."""
        return []

    async def load_standing(self, conversation: str, user: str) -> list[str]:
        """Return the standing yeses of a scope as JSON."""
        with self._lock:
            yeses = self._standing.get(_ScopeKey(conversation, user), {})
            return [each.to_json() for each in yeses.values()]

    async def save_question_place(self, chat: str, user: str, place: str) -> None:
        """Save which thread of a chat asked a user something last."""
        with self._lock:
            self._question_places.pop((chat, user), None)
            self._question_places[chat, user] = place
            if len(self._question_places) > self._max_entries:
                oldest = next(iter(self._question_places))
                del self._question_places[oldest]

    async def load_question_place(self, chat: str, user: str) -> str:
        """Return the last note of `save_question_place`, "" when there is none."""
        with self._lock:
            return self._question_places.get((chat, user), "")

    async def save(self, conversation: str, new_action: NewAction) -> float | None:
        """Store an action as shown. Return when its window closes, None if the scope is taken."""
        answer, stored = await self.change(conversation, TurnChange(new_actions=(new_action,)))
        if answer != "ok" or stored is None:
            return None
        return stored.expires_at

    async def change(
        self, conversation: str, change: TurnChange
    ) -> tuple[ChangeStatus, StoredAction | None]:
        """Make a transition or store new actions. The first value is "ok", "exists" or "state"."""
        transition = change.transition
        with self._lock:
            # Everything is checked before anything changes: the change is made whole or not at all.
            # An occupant that is over is ended in any case, which is no part of the change.
            if transition and not self._is_possible(transition):
                return "state", None
            for new_action in change.new_actions:
                occupant = self._occupant_in_the_way(conversation, new_action, transition)
                if occupant is None:
                    continue
                self._end_if_over(occupant)
                if occupant.stored.state in OPEN_STATES:
                    return "exists", None

            if change.revokes:
                self._revoke(conversation, change.revokes)
            changed_id = ""
            if transition:
                self._make(transition)
                changed_id = transition.action_id
            if change.request_change and change.request_change.action_id in self._entries:
                self._add_to_requests(change.request_change)
                changed_id = changed_id or change.request_change.action_id
            for new_action in change.new_actions:
                self._add(conversation, new_action)
                changed_id = new_action.action_id
            self._forget_oldest()

            if not changed_id:
                return "ok", None
            return "ok", self._entries[changed_id].stored

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
            if entry.new_action.plan:
                return self._claim_step(claim, entry)
            if claim.use and not self._book(entry.scope, claim.use):
                return "not_covered", state
            if not claim.use and self._clock() >= entry.stored.expires_at:
                self._enter(entry, "expired", by=claim.decided_by_event)
                return "expired", "expired"
            self._enter(entry, "claimed", by=claim.decided_by_event)
            entry.store_decision(claim.decision)
            if claim.grants:
                self._store_standing(entry.scope, claim.grants)
            return "mine", "claimed"

    async def decide(self, decision: ActionDecision) -> tuple[DecisionVerdict, StoredAction | None]:
        """Check, then confirm, cancel or ignore."""
        event = decision.decided_by_event
        with self._lock:
            entry = self._occupant(decision.scope.conversation.id, decision.scope.id)
            current = self._as_of_now(entry)
            if entry is None or current is None:
                return "gone", None
            if current.state != "shown" and not current.is_stale:
                return "gone", None

            verdict = _verdict_on(decision, entry.new_action, current)
            if verdict in ("cancelled", "mine"):
                entry.store_decision(decision.record)
            match verdict:
                case "expired" | "cancelled":
                    self._enter(entry, verdict, by=event)
                case "changed":
                    self._enter(entry, "cancelled", by=event)
                case "ignored":
                    sooner = round(self._clock() + decision.ignore_seconds, 3)
                    entry.update(expires_at=min(sooner, current.expires_at))
                case "mine":
                    self._enter(entry, "claimed", by=event)
                    self._start(entry, attempt=event)
            return verdict, self._as_of_now(entry)

    async def start(self, claim: Claim, stored: StoredAction, attempt: str) -> StartVerdict:
        """Take the last step before the effect."""
        with self._lock:
            entry = self._entries.get(claim.action_id)
            if entry is None or not _is_same_record(entry.stored, stored):
                return "tampered"
            is_started = entry.stored.state == "started"
            if is_started and entry.stored.attempt_id == attempt:
                return "go"
            may_be_repeated = entry.new_action.idempotent or bool(entry.new_action.steps)
            if entry.stored.state == "claimed" or (is_started and may_be_repeated):
                return self._start(entry, attempt)
            return "no"

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

    def _book(self, scope: _ScopeKey, use: StandingUse) -> bool:
        """Book a use. Return False if the standing yes is over, or not as it was read."""
        yeses = self._standing.get(scope, {})
        if self._clock() >= use.before.expires_at or yeses.get(use.before.id) != use.before:
            return False
        yeses[use.before.id] = use.after
        return True

    def _store_standing(self, scope: _ScopeKey, new: StandingYes) -> None:
        """Store a standing yes. Of too many, the first to end is removed."""
        now = self._clock()
        for other_scope, yeses in list(self._standing.items()):
            present = {id_: each for id_, each in yeses.items() if each.expires_at > now}
            self._standing[other_scope] = present
            if not present:
                del self._standing[other_scope]
        yeses = self._standing.get(scope, {})
        by_end = sorted(yeses.values(), key=lambda each: (each.expires_at, each.id))
        kept = by_end[max(0, len(by_end) - MAX_STANDING + 1) :]
        self._standing[scope] = {each.id: each for each in [*kept, new]}

    def _revoke(self, conversation: str, revocation: StandingRevocation) -> None:
        """End standing yeses of a scope."""
        scope = _ScopeKey(conversation, revocation.user)
        if not revocation.ids:
            self._standing.pop(scope, None)
        for id_ in revocation.ids:
            self._standing.get(scope, {}).pop(id_, None)

    def _occupant(self, conversation: str, user: str) -> _Entry | None:
        """Return the occupant of a scope, None if it never had one or that was forgotten."""
        action_id = self._occupants.get(_ScopeKey(conversation, user), "")
        return self._entries.get(action_id)

    def _entry_in(self, conversation: str, action_id: str) -> _Entry | None:
        """Return an action of a conversation, None if it has no such action."""
        entry = self._entries.get(action_id)
        if entry is None or entry.scope.conversation != conversation:
            return None
        return entry

    def _as_of_now(self, entry: _Entry | None) -> StoredAction | None:
        """Return a stored action with the present time."""
        if entry is None:
            return None
        return replace(entry.stored, loaded_at=self._clock())

    def _claim_step(self, claim: Claim, step: _Entry) -> tuple[ClaimStatus, ActionState]:
        """Claim a step of a plan.

        The yes was to the plan, whose window was checked. So a step is claimed only while its plan
        runs by the same yes.
        """
        plan = self._entries.get(step.new_action.plan)
        if plan is None or plan.stored.state != "started":
            return "other", step.stored.state
        if plan.stored.decided_by_event != claim.decided_by_event:
            return "other", step.stored.state
        self._enter(step, "claimed", by=claim.decided_by_event)
        step.store_decision(claim.decision)
        # The plan is still being worked on: it must not count as one whose process died.
        plan.update(started_at=self._clock())
        return "mine", "claimed"

    def _start(self, entry: _Entry, attempt: str) -> StartVerdict:
        """Start an action, unless it was started MAX_STARTS times before."""
        entry.starts += 1
        # A plan may be started any number of times: it has no effect, and each step is counted.
        if entry.starts > MAX_STARTS and not entry.new_action.steps:
            return "worn"
        entry.update(attempt_id=attempt)
        self._enter(entry, "started")
        return "go"

    def _is_possible(self, transition: Transition) -> bool:
        """Return whether an action may make this transition."""
        entry = self._entries.get(transition.action_id)
        if entry is None:
            return False
        # An action that expired meanwhile had no effect, so it may be called cancelled or expired.
        if entry.stored.state == "expired" and transition.to in ("cancelled", "expired"):
            return True
        return entry.stored.state in transition.from_states

    def _occupant_in_the_way(
        self, conversation: str, new_action: NewAction, transition: Transition | None
    ) -> _Entry | None:
        """Return the occupant of the scope that a new action needs, None if nothing is in its way.

        The action itself, saved before, is not in its way, nor is the action that the `transition`
        of the same change ends.
        """
        entry = self._occupant(conversation, new_action.user)
        if entry is None or not new_action.occupies_scope:
            return None
        occupant_id = entry.stored.action_id
        if occupant_id == new_action.action_id:
            return None
        if transition is not None and occupant_id == transition.action_id:
            return None
        return entry

    def _end_if_over(self, entry: _Entry) -> None:
        """End an action that has expired, or whose process died while it worked on it.

        If it was claimed and not started, it had no effect. If it was started, that is unknown.
        """
        current = replace(entry.stored, loaded_at=self._clock())
        if current.state == "shown" and current.is_window_closed:
            self._enter(entry, "expired")
        elif current.is_stale and current.state == "claimed":
            self._enter(entry, "superseded")
        elif current.is_stale:
            self._enter(entry, "unknown")

    def _make(self, transition: Transition) -> None:
        """Make a transition that is possible.

        If it was made already, or the action has expired meanwhile, only the text is updated.
        """
        entry = self._entries[transition.action_id]
        if entry.stored.state in (transition.to, "expired"):
            entry.update(outcome_text=transition.outcome_text or entry.stored.outcome_text)
        else:
            self._enter(entry, transition.to, transition.outcome_text, transition.decided_by_event)
            entry.store_decision(transition.decision)
        if transition.unclear:
            entry.update(unclear_answers=(*entry.stored.unclear_answers, transition.unclear))

    def _add_to_requests(self, request_change: RequestChange) -> None:
        """Add a vote of another person to an action, or note who was asked."""
        entry = self._entries[request_change.action_id]
        if request_change.requests:
            entry.update(requests_text=request_change.requests)
        if request_change.vote is None or entry.stored.state != "shown":
            return
        line = request_change.vote.to_json()
        votes = entry.stored.votes_text.splitlines()
        if line not in votes:
            entry.update(votes_text="\n".join([*votes, line]))

    def _add(self, conversation: str, new_action: NewAction) -> None:
        """Store an action as shown, unless it is stored already."""
        if new_action.action_id in self._entries:
            return
        scope = _ScopeKey(conversation, new_action.user)
        stored = StoredAction(
            action_id=new_action.action_id,
            record=new_action.record,
            mac=new_action.mac,
            state="shown",
            expires_at=round(self._clock() + new_action.ttl_ms / 1000, 3),
            trace=new_action.trace,
            shown_at=round(self._clock(), 3),
            requests_text=new_action.requests,
        )
        self._entries[new_action.action_id] = _Entry(new_action, scope, stored)
        if new_action.occupies_scope:
            self._occupants[scope] = new_action.action_id

    def _enter(
        self, entry: _Entry, state: ActionState, outcome_text: str = "", by: str = ""
    ) -> None:
        """Change the state of an action. When a plan ends, its open steps end too.

        A text or a deciding event (`by`) that is "" leaves the stored one.
        """
        entry.update(
            state=state,
            outcome_text=outcome_text or entry.stored.outcome_text,
            decided_by_event=by or entry.stored.decided_by_event,
        )
        if state in ("claimed", "started"):
            entry.update(started_at=self._clock())
        if state in OPEN_STATES:
            return

        for step_id in entry.new_action.steps:
            step = self._entries.get(step_id)
            if step is None or step.stored.state not in OPEN_STATES:
                continue
            step_end = _STEP_END.get(state, "cancelled")
            if step.stored.state == "started":
                step_end = "unknown"  # it may have had its effect
            self._enter(step, step_end, by=entry.stored.decided_by_event)

    def _forget_oldest(self) -> None:
        """Forget actions beyond the limit: the oldest ended one, or the oldest if all are open."""
        while len(self._entries) > self._max_entries:
            forgotten_id = next(iter(self._entries))
            for action_id, entry in self._entries.items():
                if entry.stored.state not in OPEN_STATES:
                    forgotten_id = action_id
                    break
            scope = self._entries.pop(forgotten_id).scope
            if self._occupants.get(scope) == forgotten_id:
                del self._occupants[scope]


def _is_same_record(stored: StoredAction, verified: StoredAction) -> bool:
    """Return whether the stored record is the one that the caller verified."""
    return (stored.record, stored.mac) == (verified.record, verified.mac)


def _repeated_claim(claim: Claim, current: StoredAction) -> ClaimStatus:
    """Return the answer to a claim of an action that is not open any more.

    The event that decided on the action gets its first answer again, until the action has ended.
    """
    if current.decided_by_event != claim.decided_by_event:
        return "other"
    if current.state in ("claimed", "started"):
        return "mine"
    if current.state == "expired":
        return "expired"
    return "moved"


def _verdict_on(
    decision: ActionDecision, new_action: NewAction, current: StoredAction
) -> DecisionVerdict:
    """Return what a decision means for the action that waits. Changes nothing.

    A decision that is not for this action (`is_another`), or for other arguments (`is_changed`),
    never gets the answer "mine". An action whose process died is not cancelled for that: it may
    have had its effect, and the caller finds out.
    """
    is_another = (
        decision.expected_kind not in ("", new_action.kind)
        or decision.expected_id not in ("", current.action_id)
        or (decision.intent == "confirm" and decision.code != new_action.code)
    )
    is_changed = decision.expected_digest not in ("", new_action.digest)
    if current.is_stale:
        return "mismatch" if is_another or is_changed else "stale"
    if current.is_window_closed:
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
