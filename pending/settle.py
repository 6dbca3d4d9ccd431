"""Settle: the one path from a confirmed action to its effect, once, with an honest outcome."""

from __future__ import annotations

import asyncio
import logging
import secrets
from dataclasses import dataclass, replace
from typing import Any, Literal

from channels.types import Reply
from pending.action import Executor, PendingAction, State
from pending.executors import Executors, performing
from pending.plan import PLAN_KIND, Effect, is_step, step_names
from pending.records import Claim, Decision, Ending, Records, StoredAction
from pending.results import ToolResult
from pending.seal import Seal
from pending.texts import Texts, speak
from workers.lane import Change, LaneLost, Move, TurnOvertaken, outbox_entry
from workers.offload import CutOff, offload, perform

log = logging.getLogger(__name__)

#: Seconds a confirmed action may take before its outcome is called unknown. Less than a turn's own limit.
EXECUTOR_TIMEOUT = 100.0
#: Seconds the world may take to say how an interrupted action ended.
RECONCILE_TIMEOUT = 10.0

#: The seed's statuses, and two that only a lane knows: `early` and `unknown`.
OutcomeStatus = Literal[
    "executed", "expired", "digest_mismatch", "no_executor", "failed", "cancelled", "kind_mismatch", "ignored",
    "early", "unknown",
]  # fmt: skip


#: How an effect that was begun may end.
EndState = Literal["done", "failed", "unknown"]

_STATUS: dict[EndState, OutcomeStatus] = {"done": "executed", "failed": "failed", "unknown": "unknown"}


@dataclass(frozen=True, slots=True)
class ConfirmOutcome:
    """What became of a pending action. `result` is what its executor returned, `told` what the user hears.

    `effects` is all that took effect: of a plan that failed half-way, the steps before.
    """

    status: OutcomeStatus
    record: PendingAction
    result: str | None = None
    told: str = ""
    effects: tuple[Effect, ...] = ()

    @property
    def executed(self) -> bool:
        """Whether the effect took place now."""
        return self.status == "executed"


class Settlement:
    """Claims, starts, runs and records one confirmed action."""

    def __init__(
        self, records: Records, seal: Seal, executors: Executors, *, timeout_seconds: float = EXECUTOR_TIMEOUT
    ) -> None:
        self._records = records
        self._seal = seal
        self._executors = executors
        self._timeout_seconds = timeout_seconds

    async def confirm(self, claim: Claim, stored: StoredAction) -> ConfirmOutcome | None:
        """Run the action if this claim wins it. None: there is nothing to win, execute nothing.

        Raises LaneLost and TurnOvertaken when the worker must stop or look again.
        """
        if not stored.is_genuine(self._seal, claim.scope):
            # What was started cannot be called off: nobody can tell any more what it was.
            return await (self._lost_track if stored.state == "started" else self._disarm)(claim, stored)
        verdict, state = await offload(self._records.claim, claim, stored)
        action = stored.action
        match verdict:
            case "mine" if state == "started" and not (action.idempotent or action.kind == PLAN_KIND):
                return await self._interrupted(claim, action)
            case "mine":
                return await self._execute(claim, stored)
            case "expired":
                return _expired(action)
            case "early":
                return _early(action)
            case "tampered":
                return await self._disarm(claim, stored)
            case "lost":
                raise LaneLost(claim.conversation)
            case "moved":
                raise TurnOvertaken(claim.conversation)
        return None

    async def decide(self, decision: Decision) -> ConfirmOutcome | None:
        """Settle, without a lane, what the decision's scope waits for. None: nothing does, execute nothing."""
        verdict, stored = await offload(self._records.decide, decision)
        if stored is None:
            return None
        claim, action = replace(decision.claim, pending_action_id=stored.pid), stored.action
        if not stored.is_genuine(self._seal, claim.scope) or not _is_expected(decision, verdict, action):
            begun_before = verdict == "stale" and stored.state == "started"
            return await (self._lost_track if begun_before else self._disarm)(claim, stored)
        words = speak(action.language)
        match verdict:
            case "stale":
                return await self.recover(claim, stored, confirmed=decision.intent == "confirm")
            case "mine":
                return await self._begun(claim, action, self._executors.take(action), decision.by)
            case "expired":
                return _expired(action)
            case "early":
                return _early(action)
            case "changed":
                return ConfirmOutcome("digest_mismatch", action, told=words.unsafe(action.preview))
            case "cancelled":
                return ConfirmOutcome("cancelled", action, told=words.cancelled(action.preview))
            case "ignored":
                return ConfirmOutcome("ignored", action, told=words.ignored(action.preview))
        return ConfirmOutcome("kind_mismatch", action, told=words.stale())

    async def recover(self, claim: Claim, stored: StoredAction, *, confirmed: bool = False) -> ConfirmOutcome:
        """End what somebody began, without a lane, and died at: an honest word, or the rest of it if it may be resumed
        and this is another yes.
        """
        action = stored.action
        if confirmed and (stored.state == "claimed" or action.idempotent or action.kind == PLAN_KIND):
            return await self._execute(claim, stored)
        if stored.state == "started":
            return await self._interrupted(claim, action)
        told = speak(action.language).unsafe(action.preview)  # claimed: it has certainly not begun
        move = Move(stored.pid, ("claimed",), "superseded", told, claim.by)
        await offload(self._records.change, claim.conversation, Change(move=move))
        return ConfirmOutcome("cancelled", replace(action, state="superseded"), told=told)

    async def effects(self, conversation: str, stored: StoredAction) -> tuple[Effect, ...]:
        """What took effect of an action that is over, read from its records."""
        if stored.action.kind != PLAN_KIND:
            return (Effect(stored.action, stored.result),) if stored.state == "done" else ()
        steps = await offload(self._records.read, conversation, step_names(stored.action))
        return tuple(Effect(step.action, step.result) for step in steps if step and step.state == "done")

    async def _execute(self, claim: Claim, stored: StoredAction) -> ConfirmOutcome:
        action = stored.action
        executor = None if action.kind == PLAN_KIND else self._executors.take(action)
        if executor is None and action.kind != PLAN_KIND:
            return await self._without_executor(claim, action)
        attempt = secrets.token_urlsafe(8)
        match await offload(self._records.start, claim, stored, attempt):
            case "go":
                return await self._begun(claim, action, executor, attempt)
            case "worn":
                return await self._interrupted(claim, action)
        raise TurnOvertaken(f"{claim.conversation}: the action moved before it was started")

    async def _begun(
        self, claim: Claim, action: PendingAction, executor: Executor | None, attempt: str
    ) -> ConfirmOutcome:
        if action.kind == PLAN_KIND:
            return await self._run_plan(claim, action, attempt)
        if executor is None:
            return await self._without_executor(claim, action)
        state, result = await self._run(claim, action, executor, attempt)
        return await self._record(claim, attempt, state, action, result)

    async def _run(self, claim: Claim, action: PendingAction, executor: Executor, attempt: str) -> tuple[EndState, str]:
        try:
            with performing(action):
                return "done", _as_text(await perform(executor, self._timeout_seconds))
        except asyncio.CancelledError:
            # This worker is being stopped. A thread may still be at it: nobody can know.
            await asyncio.shield(self._record(claim, attempt, "unknown", action, ""))
            raise
        except CutOff:  # it did not fail, it was left alone: what it did is unknown
            log.warning("pending.cut_off", extra={"kind": action.kind, "pending": action.pending_action_id})
            return "unknown", ""
        except Exception:  # an executor is user code: its error is an outcome, its text stays here
            log.exception("pending.failed", extra={"kind": action.kind, "pending": action.pending_action_id})
            return "failed", ""

    async def _record(
        self, claim: Claim, attempt: str, state: EndState, action: PendingAction, result: str
    ) -> ConfirmOutcome:
        words = speak(action.language)
        told = _told(words, state, action.preview, result)
        correction = ""
        if state == "done" and claim.lease:
            correction = outbox_entry(claim.scope.conversation, Reply(words.correction(action.preview, result)))
        await offload(self._records.finish, claim, attempt, Ending(state, told, result, correction))
        effects = (Effect(action, result),) if state == "done" else ()
        return _outcome(action, state, told, result, effects)

    async def _run_plan(self, claim: Claim, plan: PendingAction, attempt: str) -> ConfirmOutcome:
        """Step after step, until one does not end well. What an earlier worker did is not done again."""
        found = await offload(self._records.read, claim.conversation, step_names(plan))
        steps = [step for number, step in enumerate(found) if step and is_step(plan, number, step)]
        if len(steps) < len(found):
            return await self._broken_plan(claim, plan, attempt, found)
        outcomes: list[ConfirmOutcome] = []
        for step in steps:
            if not outcomes or outcomes[-1].executed:
                outcomes.append(await self._step(replace(claim, pending_action_id=step.pid), step))
        return await self._report(claim, plan, attempt, outcomes, steps)

    async def _broken_plan(
        self, claim: Claim, plan: PendingAction, attempt: str, found: list[StoredAction | None]
    ) -> ConfirmOutcome:
        """A step is not the one that was shown: nothing more is run."""
        log.error("pending.tampered", extra={"pending": claim.pending_action_id})
        begun = any(step and step.state not in ("armed", "shown") for step in found)
        words, state = speak(plan.language), "unknown" if begun else "failed"
        told = words.unknown(plan.preview) if begun else words.unsafe(plan.preview)
        await offload(self._records.finish, claim, attempt, Ending(state, told))  # type: ignore[arg-type]  # two words
        return _outcome(plan, state, told, "", ())  # type: ignore[arg-type]  # two words

    async def _step(self, claim: Claim, stored: StoredAction) -> ConfirmOutcome:
        action = stored.action
        if stored.state in ("done", "failed", "unknown"):
            effects = (Effect(action, stored.result),) if stored.state == "done" else ()
            return _outcome(action, stored.state, stored.told, stored.result, effects)
        outcome = await self.confirm(claim, stored)
        return outcome or ConfirmOutcome("cancelled", replace(action, state="cancelled"))

    async def _report(
        self, claim: Claim, plan: PendingAction, attempt: str, outcomes: list[ConfirmOutcome],
        steps: list[StoredAction],
    ) -> ConfirmOutcome:  # fmt: skip
        """Close the plan, and say of every step what became of it."""
        states: list[tuple[State, str]] = [(outcome.record.state, outcome.told) for outcome in outcomes]
        states += [("cancelled", "")] * (len(steps) - len(outcomes))
        lines = [(state, step.action.preview, told) for step, (state, told) in zip(steps, states, strict=True)]
        told, state = speak(plan.language).plan_report(lines), _plan_state([state for state, _ in states])
        await offload(self._records.finish, claim, attempt, Ending(state, told))
        effects = tuple(effect for outcome in outcomes for effect in outcome.effects)
        return _outcome(plan, state, told, told, effects)

    async def _interrupted(self, claim: Claim, action: PendingAction) -> ConfirmOutcome:
        """An earlier worker started it and died: ask the world if it can be asked, else say so. Never repeat it."""
        words = speak(action.language)
        match await self._ask_world(action):
            case None:
                return await self._close(claim, action, "unknown", words.unknown(action.preview))
            case False:
                return await self._close(claim, action, "failed", words.not_done(action.preview))
            case answer:
                result = answer if isinstance(answer, str) else ""
                return await self._close(claim, action, "done", words.done(action.preview, result))

    async def _ask_world(self, action: PendingAction) -> str | bool | None:
        reconcile = self._executors.reconciler(action.kind)
        if reconcile is None:
            return None
        try:
            with performing(action):
                answer = await perform(lambda: reconcile(action), RECONCILE_TIMEOUT)
        except Exception:  # user code; when it cannot say, nobody can
            log.exception("pending.not_reconciled", extra={"kind": action.kind, "pending": action.pending_action_id})
            return None
        return answer if isinstance(answer, str | bool) else None

    async def _lost_track(self, claim: Claim, stored: StoredAction) -> ConfirmOutcome:
        """It was started and its record was changed since: its words are not ours to repeat."""
        log.error("pending.tampered", extra={"pending": claim.pending_action_id})
        return await self._close(claim, stored.action, "unknown", speak().unknown("an action that was changed"))

    async def _close(self, claim: Claim, action: PendingAction, state: EndState, told: str) -> ConfirmOutcome:
        move = Move(claim.pending_action_id, ("started", "unknown"), state, told)
        word, _ = await offload(self._records.change, claim.conversation, Change(move=move))
        if word != "ok":
            raise TurnOvertaken(f"{claim.conversation}: the outcome came in just now")
        return _outcome(action, state, told, told, ())

    async def _disarm(self, claim: Claim, stored: StoredAction) -> ConfirmOutcome:
        """The record is not what the user saw: it must never run."""
        told = speak().tampered()
        log.error("pending.tampered", extra={"pending": claim.pending_action_id})
        begun = ("started",) if stored.state == "started" else ()  # by the decision at hand, which stops here
        before = ("armed", "shown", "claimed", *begun, "cancelled")
        move = Move(claim.pending_action_id, before, "cancelled", told, claim.by)
        await offload(self._records.change, claim.conversation, Change(move=move))
        return ConfirmOutcome("digest_mismatch", replace(stored.action, state="cancelled"), told=told)

    async def _without_executor(self, claim: Claim, action: PendingAction) -> ConfirmOutcome:
        told = speak(action.language).unsafe(action.preview)
        move = Move(claim.pending_action_id, ("claimed", "started", "failed"), "failed", told)
        await offload(self._records.change, claim.conversation, Change(move=move))
        return ConfirmOutcome("no_executor", replace(action, state="failed", outcome=told), told=told)


def _is_expected(decision: Decision, verdict: str, action: PendingAction) -> bool:
    """Whether the sealed record agrees with what was compared beside it in Redis, where anybody may have written."""
    if verdict != "mine":
        return True
    return (
        decision.expected_kind in ("", action.kind)
        and decision.expected_digest in ("", action.args_digest)
        and decision.code == action.code
    )


def _outcome(
    action: PendingAction, state: EndState, told: str, result: str, effects: tuple[Effect, ...]
) -> ConfirmOutcome:
    record = replace(action, state=state, outcome=told)
    return ConfirmOutcome(_STATUS[state], record, result if state == "done" else None, told, effects)


def _expired(action: PendingAction) -> ConfirmOutcome:
    told = speak(action.language).expired(action.preview)
    return ConfirmOutcome("expired", replace(action, state="expired"), told=told)


def _early(action: PendingAction) -> ConfirmOutcome:
    return ConfirmOutcome("early", action, told=speak(action.language).early(action.preview))


def _told(words: Texts, state: EndState, preview: str, result: str) -> str:
    if state == "done":
        return words.done(preview, result)
    return words.failed(preview) if state == "failed" else words.unknown(preview)


def _plan_state(states: list[State]) -> EndState:
    if all(state == "done" for state in states):
        return "done"
    return "unknown" if "unknown" in states else "failed"


def _as_text(result: Any) -> str:
    if result is None:
        return ""
    return result.to_json() if isinstance(result, ToolResult) else str(result)
