"""MemoryActionRepository: pending actions in this process,
each step as the Lua scripts do it in Redis.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, Protocol

from sayso.pending.action import ActionState
from sayso.pending.limits import FORM_MS, KEEP_RECENT_MS, MAX_PROMPTS, MAX_RECENT, MAX_STARTS
from sayso.pending.repository import (
    OPEN_STATES,
    WAITING_STATES,
    ActionDecision,
    ActionResult,
    Claim,
    ClaimStatus,
    DecisionVerdict,
    StartVerdict,
    StoredAction,
)
from sayso.pending.turns import DecisionContext, Lease, NewAction, Transition, TurnChange

#: Transitions that are remembered.
MAX_TRANSITIONS = 5000

#: How an open step ends when its plan ends in this state. After any other end it is cancelled.
_STEP_END: dict[ActionState, ActionState] = {"expired": "expired", "superseded": "superseded"}


class Conversations(Protocol):
    """What the repository needs to know of the conversations in this process."""

    def holds(self, lease: Lease) -> bool:
        """Return whether the worker still has this lease."""

    def head(self, conversation: str) -> tuple[int, float]:
        """Return number and time of receipt of the turn to work on; number 0 when there is none."""

    def say(self, conversation: str, entry: str) -> None:
        """Append a reply."""

    def set_last_question(self, conversation: str, pid: str) -> None:
        """Note that the question of an action is the last thing that the bot
        said in a conversation that exists.
        """

    def move_end(self, conversation: str, pid: str, at: float) -> None:
        """Let the timer for an unanswered question ring at another time."""


class MemoryActionRepository:
    """Stores actions in this process, at most `max_entries`: the oldest are forgotten first,
    finished ones before open.

    Shares its `lock` with the conversations of this process,
    which set `conversations` to themselves.
    """

    def __init__(self, *, max_entries: int = 5000, clock: Callable[[], float] = time.time) -> None:
        self._max_entries = max_entries
        self._clock = clock
        self.lock = threading.RLock()
        self.conversations: Conversations | None = None
        #: The last transitions, with the fields of an audit entry that do not depend on time.
        self.log: deque[dict[str, str]] = deque(maxlen=MAX_TRANSITIONS)
        self._actions: OrderedDict[str, tuple[StoredAction, NewAction]] = OrderedDict()
        #: How often each action was started.
        self._attempts: dict[str, int] = {}
        #: Plans with a step whose outcome came in late, before their user was told anything.
        self._late: set[str] = set()
        self._question_places: OrderedDict[tuple[str, str], str] = OrderedDict()
        #: The action that occupies each scope (conversation and user),
        #: and the scope of each action.
        self._occupants: dict[tuple[str, str], str] = {}
        self._scopes: dict[str, tuple[str, str]] = {}

    async def load_open(self, conversation: str, user: str) -> StoredAction | None:
        """Return the action that occupies a scope."""
        return self._load_open(conversation, user)

    def _load_open(self, conversation: str, user: str) -> StoredAction | None:
        with self.lock:
            stored = self._get(self._occupants.get((conversation, user), ""))
            if stored:
                return replace(stored, loaded_at=self._clock())
            return None

    async def load(
        self, conversation: str, action_ids: tuple[str, ...]
    ) -> list[StoredAction | None]:
        """Return actions by id."""
        with self.lock:
            return [self._look_at(conversation, action_id) for action_id in action_ids]

    def _look_at(self, conversation: str, pid: str) -> StoredAction | None:
        stored = self._get(pid)
        if stored is None or self._scopes.get(pid, ("",))[0] != conversation:
            return None
        return replace(stored, loaded_at=self._clock())

    async def open_form(self, conversation: str, action_id: str) -> StoredAction | None:
        """Return an action whose person begins to change it.

        An open question stays open for FORM_MS at least.
        """
        with self.lock:
            now = self._look_at(conversation, action_id)
            if now is None:
                return None
            later = round(self._clock() + FORM_MS / 1000, 3)
            if now.state == "shown" and self._clock() < now.expires_at < later:
                # With a longer time to live, too, the time at which
                # the window opened stays the same.
                action = self._actions[action_id][1]
                more_ms = round((later - now.expires_at) * 1000)
                self._actions[action_id] = (now, replace(action, ttl_ms=action.ttl_ms + more_ms))
                now = self._put(action_id, replace(now, expires_at=later))
                if self.conversations:
                    self.conversations.move_end(conversation, action_id, later)
            return replace(now, loaded_at=self._clock())

    async def list_started(self, conversation: str, user: str) -> list[StoredAction]:
        """Return the actions of a scope that were started within the last hour, the last one first."""
        with self.lock:
            since = self._clock() - KEEP_RECENT_MS / 1000
            own = (
                self._actions[pid][0]
                for pid, scope in self._scopes.items()
                if scope == (conversation, user)
            )
            started = [stored for stored in own if stored.attempt_id and stored.started_at > since]
            newest_first = sorted(started, key=lambda stored: stored.started_at)[::-1]
            return [
                replace(stored, loaded_at=self._clock()) for stored in newest_first[:MAX_RECENT]
            ]

    async def save_question_place(self, chat: str, user: str, place: str) -> None:
        """Note which thread of a chat asked a user something last."""
        with self.lock:
            self._question_places[chat, user] = place
            self._question_places.move_to_end((chat, user))
            while len(self._question_places) > self._max_entries:
                self._question_places.popitem(last=False)

    async def load_question_place(self, chat: str, user: str) -> str:
        """Return the last note, "" when there is none."""
        with self.lock:
            return self._question_places.get((chat, user), "")

    async def save(self, conversation: str, new_action: NewAction) -> float | None:
        """Store an action as shown, without a lease."""
        answer, stored = await self.change(conversation, TurnChange(new_actions=(new_action,)))
        return stored.expires_at if answer == "ok" and stored else None

    async def change(
        self, conversation: str, change: TurnChange
    ) -> tuple[str, StoredAction | None]:
        """Make a transition or store new actions, without a lease."""
        with self.lock:
            refusal = self._refusal(conversation, change)
            if refusal:
                return refusal, None
            self._apply(conversation, change)
            for new_action in change.new_actions:
                self.mark_shown(new_action.action_id)
                if new_action.occupies_scope and self.conversations:
                    self.conversations.set_last_question(conversation, new_action.action_id)
            changed = change.new_actions[-1] if change.new_actions else change.transition
            return "ok", self._get(changed.action_id) if changed else None

    async def claim(
        self, claim: Claim, stored: StoredAction
    ) -> tuple[ClaimStatus, ActionState | Literal[""]]:
        """Claim a shown action, once."""
        with self.lock:
            if self._has_lost_lease(claim):
                return "lost", ""
            now = self._get(claim.action_id)
            if now is None:
                return "gone", ""
            if (
                now.state in ("claimed", "started")
                and now.decided_by_event == claim.decided_by_event
            ):
                return "mine", now.state
            if now.state == "expired" and now.decided_by_event == claim.decided_by_event:
                return "expired", now.state
            if now.state != "shown" and now.decided_by_event == claim.decided_by_event:
                return "moved", now.state
            if now.state != "shown":
                return "other", now.state
            if (now.record, now.mac) != (stored.record, stored.mac):
                return "tampered", now.state
            return self._claim_step(claim, now) or self._claim_shown(claim, now)

    async def decide(self, decision: ActionDecision) -> tuple[DecisionVerdict, StoredAction | None]:
        """Check, then confirm, cancel or ignore, without a lease."""
        scope = decision.scope
        with self.lock:
            now = self._load_open(scope.conversation.id, scope.id)
            if now is None or (now.state not in WAITING_STATES and not now.is_stale):
                return "gone", None
            action = self._actions[now.action_id][1]
            is_another = (
                decision.expected_kind not in ("", action.kind)
                or decision.expected_id not in ("", now.action_id)
                or (decision.intent == "confirm" and decision.code != action.code)
            )
            is_changed = decision.expected_digest not in ("", action.digest)
            if now.is_stale:
                return ("mismatch" if is_another or is_changed else "stale"), now
            if now.state == "shown" and now.is_over:
                return "expired", self._set(now.action_id, "expired", by=decision.decided_by_event)
            if is_another:
                return "mismatch", now
            if now.state == "armed" and decision.intent == "confirm":
                return "early", now
            if is_changed:
                return "changed", self._set(
                    now.action_id, "cancelled", by=decision.decided_by_event
                )
            return self._decide(decision, now)

    async def start(self, claim: Claim, stored: StoredAction, attempt: str) -> StartVerdict:
        """Take the last step before the effect."""
        with self.lock:
            pid = claim.action_id
            now = self._get(pid)
            if self._has_lost_lease(claim):
                return "lost"
            if now is None or (now.record, now.mac) != (stored.record, stored.mac):
                return "tampered"
            if now.state == "started" and now.attempt_id == attempt:
                return "go"
            action = self._actions[pid][1]
            if now.state != "claimed" and not (
                now.state == "started" and (action.idempotent or action.steps)
            ):
                return "no"
            return self._start(pid, attempt, limited=not action.steps)

    async def finish(self, claim: Claim, attempt: str, result: ActionResult) -> None:
        """Record how an effect ended, also for a worker that lost its lease."""
        with self.lock:
            pid = claim.action_id
            now = self._get(pid)
            if now is None or now.attempt_id != attempt or now.state == result.state:
                return
            is_late = (now.state, result.state) in (
                ("unknown", "failed"),
                ("unknown", "done"),
                ("failed", "done"),
            )
            if now.state == "started" or is_late:
                self._put(
                    pid, replace(now, result=result.result or now.result, output=result.output)
                )
                self._set(pid, result.state, result.outcome_text)
            if not is_late or not self.conversations:
                return
            if self.conversations.head(claim.conversation)[0] == claim.seq:
                self._late.add(self._actions[pid][1].plan)  # its user was told nothing yet
            elif result.correction:
                self.conversations.say(claim.conversation, result.correction)

    def commit(self, conversation: str, context: DecisionContext, change: TurnChange) -> str:
        """Make the change of a worker's turn.

        Return "", or why it cannot be made: "state" or "exists".

        An action that is over leaves its scope.
        """
        user = context.user
        for stored in (self._load_open(conversation, user), self._get(context.tapped_action_id)):
            if (
                stored and stored.decided_by_event == context.event
            ):  # claimed by this turn, and not settled by it
                self._abandon(self._get(stored.action_id))
        refusal = self._refusal(conversation, change)
        if refusal:
            return refusal
        self._apply(conversation, change)
        occupant = self._load_open(conversation, user)
        if occupant and occupant.state not in OPEN_STATES:
            del self._occupants[conversation, user]
        return ""

    def actions_of_turn(
        self, conversation: str, user: str, tapped: str
    ) -> tuple[StoredAction | None, StoredAction | None]:
        """Return the action that occupies a scope and the one that a button names.

        To a lease no action is stale.
        """
        occupant = self._get(self._occupants.get((conversation, user), ""))
        named = self._get(tapped)
        return occupant and replace(occupant, loaded_at=0.0), named and replace(
            named, loaded_at=0.0
        )

    def user_of(self, pid: str) -> str:
        """Return the user whose answer an action waits for, "" for an unknown action."""
        return self._scopes.get(pid, ("", ""))[1]

    def add_prompt(self, pid: str, message: str) -> None:
        """Note that this message of the platform shows the question, a piece or a copy of it."""
        now = self._get(pid)
        if now and message:
            others = tuple(known for known in now.question_messages if known != message)
            self._put(pid, replace(now, question_messages=(*others, message)[-MAX_PROMPTS:]))

    def mark_followed(self, pid: str, turns: int) -> None:
        """Note that the bot says something else than this question, after so many turns came in."""
        now = self._get(pid)
        if now:
            self._put(pid, replace(now, followed_after_seq=turns))

    def mark_repeated(self, pid: str, turns: int, written_at: float) -> None:
        """Note that the question was shown again, after so many turns came in.

        See `set_last_question` in Lua.
        """
        now = self._get(pid)
        if now and now.followed_after_seq:
            written_at = round(written_at, 6) or now.written_at
            self._put(
                pid, replace(now, followed_after_seq=0, last_seen_seq=turns, written_at=written_at)
            )

    def mark_shown(
        self, pid: str, seen: int = 0, prompt: str = "", written_at: float = 0.0
    ) -> tuple[float, NewAction | None]:
        """Open the window of an action, and of its steps,
        whose preview was delivered as the message `prompt`.

        Returns when the window closes, and the action that was opened.
        """
        now = self._get(pid)
        if now and prompt:
            now = self._put(pid, replace(now, question_message=prompt))
        if now is None or now.state != "armed":
            return 0.0, None
        action = self._actions[pid][1]
        expires_at = round(self._clock() + action.ttl_ms / 1000, 3)
        self._put(
            pid,
            replace(
                now, expires_at=expires_at, last_seen_seq=seen, written_at=round(written_at, 6)
            ),
        )
        self._set(pid, "shown")
        for step in action.steps:
            self.mark_shown(step, seen, written_at=written_at)
        return expires_at, action

    def expire_if_due(self, pid: str) -> bool:
        """End an action whose window closed without an answer. Return whether it did."""
        now = self._get(pid)
        if now is None or now.state != "shown" or self._clock() < now.expires_at:
            return False
        self._set(pid, "expired")
        return True

    def end_undelivered(self, pid: str, *, shown: bool = False) -> None:
        """End an action whose preview can never be delivered;
        with `shown` also one that was taken for delivered.
        """
        now = self._get(pid)
        if now and (now.state == "armed" or (shown and now.state == "shown")):
            self._set(pid, "expired")

    def _claim_step(
        self, claim: Claim, now: StoredAction
    ) -> tuple[ClaimStatus, ActionState] | None:
        """Claim a step of a plan, None for any other action.

        The yes was to the plan, whose window was checked: a step is claimed only
        while its plan runs by the same yes.
        """
        plan_id = self._actions[now.action_id][1].plan
        if not plan_id:
            return None
        plan = self._get(plan_id)
        if plan is None or (plan.state, plan.decided_by_event) != (
            "started",
            claim.decided_by_event,
        ):
            return "other", now.state
        self._set(now.action_id, "claimed", by=claim.decided_by_event)
        self._put(plan_id, replace(plan, started_at=self._clock()))
        return "mine", "claimed"

    def _claim_shown(self, claim: Claim, now: StoredAction) -> tuple[ClaimStatus, ActionState]:
        """Claim a shown action if the turn came in while its window was open."""
        conversations = self.conversations if claim.lease else None
        seq, at = (
            conversations.head(claim.conversation) if conversations else (claim.seq, self._clock())
        )
        if seq != claim.seq:
            return "moved", now.state
        if at >= now.expires_at:
            self._set(now.action_id, "expired", by=claim.decided_by_event)
            return "expired", "expired"
        # A turn that waited elsewhere has a later number than the question, but no later time.
        shown_at = round(now.expires_at - self._actions[now.action_id][1].ttl_ms / 1000, 3)
        if (
            conversations
            and claim.kind == "text"
            and (seq <= now.last_seen_seq or round(at, 3) < shown_at)
        ):
            return "early", now.state
        self._set(now.action_id, "claimed", by=claim.decided_by_event)
        return "mine", "claimed"

    def _decide(
        self, decision: ActionDecision, now: StoredAction
    ) -> tuple[DecisionVerdict, StoredAction]:
        match decision.intent:
            case "cancel":
                return "cancelled", self._set(
                    now.action_id, "cancelled", by=decision.decided_by_event
                )
            case "ignore":
                expires_at = round(self._clock() + decision.ignore_seconds, 3)
                if now.state == "shown" and expires_at < now.expires_at:
                    # The time-to-live is cut as well, so that the time at which
                    # the window opened stays the same.
                    action = self._actions[now.action_id][1]
                    cut_ms = round((now.expires_at - expires_at) * 1000)
                    self._actions[now.action_id] = (
                        now,
                        replace(action, ttl_ms=action.ttl_ms - cut_ms),
                    )
                    now = self._put(now.action_id, replace(now, expires_at=expires_at))
                return "ignored", now
        self._set(now.action_id, "claimed", by=decision.decided_by_event)
        self._start(now.action_id, decision.decided_by_event)
        return "mine", self._actions[now.action_id][0]

    def _start(self, pid: str, attempt: str, *, limited: bool = True) -> StartVerdict:
        self._attempts[pid] = self._attempts.get(pid, 0) + 1
        if limited and self._attempts[pid] > MAX_STARTS:
            return "worn"
        self._put(pid, replace(self._actions[pid][0], attempt_id=attempt))
        self._set(pid, "started")
        return "go"

    def _refusal(self, conversation: str, change: TurnChange) -> str:
        """Return why the change cannot be made: "state" or "exists". "": it can."""
        if change.transition:
            pid = change.transition.action_id
            to = change.transition.to
            now = self._get(pid)
            # An expired action may still be reported as cancelled.
            is_reported = now and now.state == "expired" and to in ("cancelled", "expired")
            if (
                now is None
                or pid in self._late
                or not (now.state in change.transition.from_states or is_reported)
            ):
                self._late.discard(pid)
                return "state"
        live = [new_action for new_action in change.new_actions if new_action.occupies_scope]
        if any(self._is_occupied(conversation, each, change.transition) for each in live):
            return "exists"
        return ""

    def _is_occupied(
        self, conversation: str, new_action: NewAction, transition: Transition | None
    ) -> bool:
        """Return whether another action occupies the scope.

        Ends one that has expired or was abandoned.
        """
        occupant = self._occupants.get((conversation, new_action.user), "")
        now = self._load_open(conversation, new_action.user)
        is_leaving = transition is not None and transition.action_id == occupant
        if now is None or is_leaving or occupant == new_action.action_id:
            return False
        if now.state == "shown" and now.is_over:
            self._set(occupant, "expired")
            return False
        if now.is_stale:
            self._abandon(now)
            return False
        return now.state in OPEN_STATES

    def _apply(self, conversation: str, change: TurnChange) -> None:
        if change.transition:
            transition = change.transition
            now = self._actions[transition.action_id][0]
            text = transition.outcome_text
            if now.state in (transition.to, "expired"):
                self._put(now.action_id, replace(now, outcome_text=text or now.outcome_text))
            else:
                self._set(now.action_id, transition.to, text, transition.decided_by_event)
            if transition.unclear:
                now = self._actions[now.action_id][0]
                self._put(
                    now.action_id,
                    replace(now, unclear_answers=(*now.unclear_answers, transition.unclear)),
                )
        for new_action in change.new_actions:
            pid = new_action.action_id
            if pid not in self._actions:
                stored = StoredAction(
                    pid, new_action.record, new_action.mac, "armed", trace=new_action.trace
                )
                self._actions[pid] = (stored, new_action)
                self._scopes[pid] = (conversation, new_action.user)
                self._set(pid, "armed")
                if new_action.occupies_scope:
                    self._occupants[conversation, new_action.user] = pid
        self._forget_oldest()

    def _abandon(self, stored: StoredAction | None) -> None:
        """End an action whose process died at it."""
        if stored and stored.state in ("claimed", "started"):
            self._set(stored.action_id, "superseded" if stored.state == "claimed" else "unknown")

    def _has_lost_lease(self, claim: Claim) -> bool:
        return bool(
            claim.lease and self.conversations and not self.conversations.holds(claim.lease)
        )

    def _get(self, pid: str) -> StoredAction | None:
        entry = self._actions.get(pid)
        return entry[0] if entry else None

    def _put(self, pid: str, stored: StoredAction) -> StoredAction:
        self._actions[pid] = (stored, self._actions[pid][1])
        return stored

    def _set(
        self, pid: str, state: ActionState, outcome_text: str = "", by: str = ""
    ) -> StoredAction:
        """Change the state and log it. When a plan ends, its open steps end too."""
        now, action = self._actions[pid]
        if state in ("claimed", "started"):
            begun_at = self._clock()
        else:
            begun_at = now.started_at
        changed = replace(
            now,
            state=state,
            outcome_text=outcome_text or now.outcome_text,
            decided_by_event=by or now.decided_by_event,
            started_at=begun_at,
        )
        stored = self._put(pid, changed)
        self.log.append(
            {"pid": pid, "event": state, "by": stored.decided_by_event, "body": action.mac}
        )
        if state not in OPEN_STATES:
            for step in (self._get(step) for step in action.steps):
                if step and step.state in OPEN_STATES:
                    step_end = (
                        "unknown" if step.state == "started" else _STEP_END.get(state, "cancelled")
                    )
                    self._set(step.action_id, step_end, by=stored.decided_by_event)
        return stored

    def _forget_oldest(self) -> None:
        while len(self._actions) > self._max_entries:
            over = (
                pid for pid, (stored, _) in self._actions.items() if stored.state not in OPEN_STATES
            )
            pid = next(over, next(iter(self._actions)))
            del self._actions[pid]
            self._attempts.pop(pid, None)
            scope = self._scopes.pop(pid)
            if self._occupants.get(scope) == pid:
                del self._occupants[scope]
