"""Settlement: claim, start, run, record."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, replace
from time import time as unix_now
from typing import Any, Literal

from sayso.channels.i18n.texts import texts_for
from sayso.channels.redaction import redact
from sayso.channels.types import Reply, Scope, random_id, storable
from sayso.pending.action import ActionState, Executor, PendingAction
from sayso.pending.concurrency import LateOutcome, NotStarted, TimedOut, perform, reach
from sayso.pending.context import Confirmation, with_context
from sayso.pending.executors import Ambiguous, Executors, NotFound, ToolResult, performing, words_for_person
from sayso.pending.proposals import PLAN_KIND, Effect, acting, current_context, is_step, is_undo, step_names
from sayso.pending.repository import (
    CHANGED,
    OPEN_STATES,
    ActionDecision,
    ActionRepository,
    ActionResult,
    Claim,
    StoredAction,
)
from sayso.pending.signing import ActionSigner
from sayso.pending.turns.change import Transition, TurnChange, outbox_entry
from sayso.pending.turns.queued import LeaseLost, StaleTurn

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


def ended(
    action: PendingAction, state: EndState, told: str, result: str = "", effects: tuple[Effect, ...] = ()
) -> ConfirmOutcome:
    """The outcome of an effect that was begun."""
    record = replace(action, state=state, outcome=told)
    return ConfirmOutcome(_STATUS[state], record, result if state == "done" else None, told, effects)


def expired(action: PendingAction) -> ConfirmOutcome:
    """The decision came too late."""
    told = texts_for(action.language).expired(action.preview)
    return ConfirmOutcome("expired", replace(action, state="expired"), told=told)


def early(action: PendingAction) -> ConfirmOutcome:
    """The words came before the question."""
    return ConfirmOutcome("early", action, told=texts_for(action.language).early(action.preview))


def told_of(action: PendingAction, state: EndState, result: str = "") -> str:
    """What the user hears of an effect that was begun. `result` is what its tool returned, or said of its failure."""
    words = texts_for(action.language)
    match state:
        case "done":
            return words.done(action.preview, result)
        case "failed":
            return "\n".join(filter(None, [words.failed(action.preview), result]))
    return words.unknown(action.preview)


def state_of_plan(states: list[ActionState]) -> EndState:
    """How a plan ended whose steps are in these states."""
    if all(state == "done" for state in states):
        return "done"
    return "unknown" if "unknown" in states or "started" in states else "failed"


log = logging.getLogger(__name__)


#: Seconds a confirmed action, or a whole plan, may take before its outcome is called unknown. Less than a turn's limit.
EXECUTOR_TIMEOUT = 100.0


#: Seconds the world may take to say how an interrupted action ended.
RECONCILE_TIMEOUT = 10.0


class Settlement:
    """Claims, starts, runs and records one confirmed action."""

    def __init__(
        self,
        records: ActionRepository,
        seal: ActionSigner,
        executors: Executors,
        *,
        timeout_seconds: float = EXECUTOR_TIMEOUT,
    ) -> None:
        self._records = records
        self._seal = seal
        self._executors = executors
        self._timeout_seconds = timeout_seconds

    async def confirm(
        self, claim: Claim, stored: StoredAction, *, plan: str = "", deadline: float | None = None
    ) -> ConfirmOutcome | None:
        """Run the action if this claim wins it. None: there is nothing to win, execute nothing.

        `plan` is the plan whose step it is; `deadline`, of `time.monotonic`, is when it must have ended.
        Raises LaneLost and TurnOvertaken when the worker must stop or look again.
        """
        if not stored.is_genuine(self._seal, claim.scope):
            # What was started cannot be called off: nobody can tell any more what it was.
            return await (self._lost_track if stored.state == "started" else self._disarm)(claim, stored)
        if not _may_reach(claim, stored.action, plan):
            return None
        verdict, state = await reach(self._records.claim, claim, stored)
        action = stored.action
        match verdict:
            case "mine" if state == "started" and not (action.idempotent or action.kind == PLAN_KIND):
                return await self._interrupted(claim, action)
            case "mine":
                return await self._execute(claim, stored, state, deadline)
            case "expired":
                return expired(action)
            case "early":
                return early(action)
            case "tampered":
                return await self._disarm(claim, stored)
            case "lost":
                raise LeaseLost(claim.conversation)
            case "moved":
                raise StaleTurn(claim.conversation)
        return None

    async def decide(self, decision: ActionDecision) -> ConfirmOutcome | None:
        """Settle, without a lane, what the decision's scope waits for. None: nothing does, execute nothing."""
        verdict, stored = await reach(self._records.decide, decision)
        if stored is None:
            return None
        claim, action = decision.claim(stored.pid), stored.action
        genuine = stored.is_genuine(self._seal, claim.scope) and _may_reach(claim, action)
        if not genuine or not _is_expected(decision, verdict, action):
            begun_before = verdict == "stale" and stored.state == "started"
            return await (self._lost_track if begun_before else self._disarm)(claim, stored)
        match verdict:
            case "mine":
                return await self._begun(claim, action, self._executors.take(action), decision.by, None)
            case "stale":
                return await self.recover(claim, stored)
        return _not_run(verdict, action)

    async def recover(self, claim: Claim, stored: StoredAction) -> ConfirmOutcome:
        """End, with an honest word, what somebody began without a lane and died at. Nothing is run."""
        action = stored.action
        if not stored.is_genuine(self._seal, claim.scope):
            return await (self._lost_track if stored.state == "started" else self._disarm)(claim, stored)
        if stored.state == "started" and action.kind == PLAN_KIND:
            return await self._interrupted_plan(claim, action)
        if stored.state == "started":
            return await self._interrupted(claim, action)
        told = texts_for(action.language).unsafe(action.preview)  # claimed: it has certainly not begun
        move = Transition(stored.pid, ("claimed",), "superseded", told, claim.by)
        await reach(self._records.change, claim.conversation, TurnChange(move=move))
        return ConfirmOutcome("cancelled", replace(action, state="superseded"), told=told)

    async def effects(self, scope: Scope, stored: StoredAction) -> tuple[Effect, ...]:
        """What took effect of an action that is over, read from its records; nothing of a record that was changed."""
        if not stored.is_genuine(self._seal, scope):
            return ()
        if stored.action.kind != PLAN_KIND:
            return (Effect(stored.action, stored.result),) if stored.state == "done" else ()
        steps = await self._steps(scope, stored.action) or []
        return tuple(Effect(step.action, step.result) for step in steps if step.state == "done")

    async def report(self, scope: Scope, stored: StoredAction) -> str:
        """What became of each step of a plan that is over, as far as it is known; "" when a record was changed."""
        if stored.action.kind != PLAN_KIND or not stored.is_genuine(self._seal, scope):
            return ""
        steps = await self._steps(scope, stored.action)
        return _report(stored.action, steps) if steps else ""

    async def undone(self, scope: Scope, stored: StoredAction) -> str:
        """What the effects had reported that an undo takes back, in their order; "" when a record was changed."""
        if not stored.is_genuine(self._seal, scope):
            return ""
        steps = await self._steps(scope, stored.action) if stored.action.kind == PLAN_KIND else [stored]
        return "\n".join(str(step.action.args.get("result", "")) for step in reversed(steps or ())).strip()

    async def _execute(
        self, claim: Claim, stored: StoredAction, state: ActionState | str, deadline: float | None
    ) -> ConfirmOutcome:
        action = stored.action
        executor = self._executors.take(action)
        if executor is None and action.kind != PLAN_KIND:
            if state == "started":  # by an earlier worker, which could still run it
                return await self._interrupted(claim, action)
            told = texts_for(action.language).unsafe(action.preview)
            move = Transition(claim.pending_action_id, ("claimed",), "failed", told, claim.by)
            return await self._without_executor(claim, action, move)
        attempt = random_id(8)
        match await reach(self._records.start, claim, stored, attempt):
            case "go":
                return await self._begun(claim, action, executor, attempt, deadline)
            case "worn":
                return await self._interrupted(claim, action)
        raise StaleTurn(f"{claim.conversation}: the action moved before it was started")

    async def _without_executor(self, claim: Claim, action: PendingAction, move: Transition) -> ConfirmOutcome:
        word, _ = await reach(self._records.change, claim.conversation, TurnChange(move=move))
        if word != "ok":
            raise StaleTurn(f"{claim.conversation}: another worker can run what this one cannot")
        return ConfirmOutcome("no_executor", replace(action, state="failed", outcome=move.told), told=move.told)

    async def _begun(
        self, claim: Claim, action: PendingAction, executor: Executor | None, attempt: str, deadline: float | None
    ) -> ConfirmOutcome:
        if action.kind == PLAN_KIND:
            return await self._run_plan(claim, action, attempt)
        if executor is None:
            told = texts_for(action.language).unsafe(action.preview)
            await reach(self._records.finish, claim, attempt, ActionResult("failed", told))
            return ConfirmOutcome("no_executor", replace(action, state="failed", outcome=told), told=told)
        seconds = self._timeout_seconds if deadline is None else max(0.0, deadline - time.monotonic())
        state, result = await self._run(claim, action, executor, attempt, seconds)
        return await self._record(claim, attempt, state, action, result)

    async def _run(
        self, claim: Claim, action: PendingAction, executor: Executor, attempt: str, seconds: float
    ) -> tuple[EndState, str]:
        try:
            with performing(action), acting(_confirmation(claim, action), claim.scope, action.language):
                log.info("pending.started", extra={"kind": action.kind, "pending": action.pending_action_id})
                value = await perform(executor, seconds, self._tell_late(claim, action, attempt))
            missed = isinstance(value, Ambiguous | NotFound)
            named = {"kind": action.kind, "pending": action.pending_action_id}
            log.info("pending.failed" if missed else "pending.done", extra=named)
            return ("failed", storable(value.in_words)) if missed else ("done", _as_text(value))
        except asyncio.CancelledError:
            # The lane is lost, or this worker is being stopped. A thread may still be at it: nobody can know yet.
            await asyncio.shield(self._record(claim, attempt, "unknown", action, ""))
            raise
        except TimedOut:  # it did not fail, it was left alone: what it did is unknown
            log.warning("pending.cut_off", extra={"kind": action.kind, "pending": action.pending_action_id})
            return "unknown", ""
        except KeyboardInterrupt:  # of a caller's own thread
            await self._record(claim, attempt, "unknown", action, "")
            raise
        except Exception as exc:  # noqa: BLE001  # an executor is user code: its error is an outcome
            return "failed", _why_it_failed(action, exc)

    def _tell_late(self, claim: Claim, action: PendingAction, attempt: str) -> LateOutcome:
        """Records the truth about an effect that nobody waits for any more, should it ever be known."""

        async def tell(result: Any, error: BaseException | None) -> None:
            log.warning("pending.late", extra={"kind": action.kind, "pending": action.pending_action_id})
            if isinstance(error, TimedOut):
                return  # it stays unknown
            if isinstance(error, NotStarted):
                await self._record(claim, attempt, "failed", action, "")
            elif error is not None:
                await self._record(claim, attempt, "failed", action, _why_it_failed(action, error))
            elif isinstance(result, Ambiguous | NotFound):
                await self._record(claim, attempt, "failed", action, storable(result.in_words))
            else:
                await self._record(claim, attempt, "done", action, _as_text(result))

        return tell

    async def _record(
        self, claim: Claim, attempt: str, state: EndState, action: PendingAction, result: str
    ) -> ConfirmOutcome:
        told, correction = told_of(action, state, result), ""
        if state == "done" and claim.lease:
            words = texts_for(action.language)
            correction = outbox_entry(claim.scope.conversation, Reply(words.correction(action.preview, result)))
        await reach(
            self._records.finish,
            claim,
            attempt,
            ActionResult(state, told, result if state == "done" else "", correction),
        )
        effects = (Effect(action, result),) if state == "done" else ()
        return ended(action, state, told, result, effects)

    async def _run_plan(self, claim: Claim, plan: PendingAction, attempt: str) -> ConfirmOutcome:
        """Step after step, until one does not end well. What an earlier worker did is not done again."""
        deadline = time.monotonic() + self._timeout_seconds
        steps = await self._steps(claim.scope, plan)
        if steps is None:
            return await self._broken_plan(claim, plan, attempt)
        effects: tuple[Effect, ...] = ()
        for step in steps:
            if time.monotonic() >= deadline:
                break
            outcome = await self._step(replace(claim, pending_action_id=step.pid), step, plan, deadline)
            effects += outcome.effects if outcome else ()
            if outcome is None or not outcome.executed:
                break
        ended_steps = await self._became(claim.scope, steps)
        told, state = _report(plan, ended_steps), state_of_plan([step.state for step in ended_steps])
        await reach(self._records.finish, claim, attempt, ActionResult(state, told))
        return ended(plan, state, told, told, effects)

    async def _steps(self, scope: Scope, plan: PendingAction) -> list[StoredAction] | None:
        """The steps of a plan, None when one of them is not what was shown."""
        found = await reach(self._records.read, scope.conversation.id, step_names(plan))
        steps = [
            step
            for number, step in enumerate(found)
            if step and step.is_genuine(self._seal, scope) and is_step(plan, number, step)
        ]
        return steps if len(steps) == len(found) else None

    async def _became(self, scope: Scope, steps: list[StoredAction]) -> list[StoredAction]:
        """Steps that were genuine when their plan began, as they ended, whatever was done to their records since."""
        found = await reach(self._records.read, scope.conversation.id, tuple(step.pid for step in steps))
        return [
            replace(step, state=now.state, told=now.told) if now else replace(step, state="unknown")
            for step, now in zip(steps, found, strict=True)
        ]

    async def _step(
        self, claim: Claim, stored: StoredAction, plan: PendingAction, deadline: float
    ) -> ConfirmOutcome | None:
        if stored.state == "done":
            return ended(stored.action, "done", stored.told, effects=(Effect(stored.action, stored.result),))
        if stored.state not in OPEN_STATES:
            return None
        return await self.confirm(claim, stored, plan=plan.pending_action_id, deadline=deadline)

    async def _broken_plan(self, claim: Claim, plan: PendingAction, attempt: str) -> ConfirmOutcome:
        """A step is not the one that was shown: nothing more is run."""
        log.error("pending.tampered", extra={"pending": claim.pending_action_id})
        found = await reach(self._records.read, claim.conversation, step_names(plan))
        begun = any(step and step.state not in ("shown", "claimed") for step in found)
        words = texts_for(plan.language)
        state: EndState = "unknown" if begun else "failed"
        told = words.unknown(plan.preview) if begun else words.unsafe(plan.preview)
        await reach(self._records.finish, claim, attempt, ActionResult(state, told))
        return ended(plan, state, told)

    async def _interrupted_plan(self, claim: Claim, plan: PendingAction) -> ConfirmOutcome:
        """Its process died at one of the steps: that one is asked after, the others are as their records say."""
        steps = await self._steps(claim.scope, plan) or []
        for step in steps:
            if step.state == "started":
                await self._interrupted(replace(claim, pending_action_id=step.pid), step.action)
        known = await self._steps(claim.scope, plan) or []
        told = _report(plan, known) if known else texts_for(plan.language).unknown(plan.preview)
        state = state_of_plan([step.state for step in known]) if known else "unknown"
        return await self._close(claim, plan, state, told)

    async def _interrupted(self, claim: Claim, action: PendingAction) -> ConfirmOutcome:
        """An earlier worker started it and died: ask the world if it can be asked, else say so. Never repeat it."""
        words = texts_for(action.language)
        match await self._ask_world(claim, action):
            case None:
                return await self._close(claim, action, "unknown", words.unknown(action.preview))
            case False:
                return await self._close(claim, action, "failed", words.not_done(action.preview))
            case answer:
                result = storable(answer) if isinstance(answer, str) else ""
                return await self._close(claim, action, "done", words.done(action.preview, result))

    async def _ask_world(self, claim: Claim, action: PendingAction) -> str | bool | None:
        reconcile = self._executors.reconciler(action.kind)
        if reconcile is None:
            return None
        try:
            confirmed = _confirmation(claim, action)
            with performing(action), acting(confirmed, claim.scope, action.language):
                given = with_context(reconcile, current_context)
                answer = await perform(lambda: reconcile(action, **given), RECONCILE_TIMEOUT)
        except Exception:  # user code; when it cannot say, nobody can
            log.exception("pending.not_reconciled", extra={"kind": action.kind, "pending": action.pending_action_id})
            return None
        return answer if isinstance(answer, str | bool) else None

    async def _lost_track(self, claim: Claim, stored: StoredAction) -> ConfirmOutcome:
        """It was started and its record was changed since: its words are not ours to repeat."""
        log.error("pending.tampered", extra={"pending": claim.pending_action_id})
        return await self._close(claim, stored.action, "unknown", texts_for().unknown(CHANGED))

    async def _close(self, claim: Claim, action: PendingAction, state: EndState, told: str) -> ConfirmOutcome:
        # Where "unknown" was said meanwhile it stays: only who knows better may correct it, and says so.
        before = ("started", "unknown") if state == "unknown" else ("started",)
        move = Transition(claim.pending_action_id, before, state, told, claim.by)
        word, _ = await reach(self._records.change, claim.conversation, TurnChange(move=move))
        if word == "ok":
            return ended(action, state, told, told)
        (now,) = await reach(self._records.read, claim.conversation, (claim.pending_action_id,))
        if claim.lease:
            raise StaleTurn(f"{claim.conversation}: the outcome came in just now")
        if now is None or now.state not in ("done", "failed", "unknown"):
            return ended(action, state, told, told)
        return ended(action, now.state, now.told, now.result)

    async def _disarm(self, claim: Claim, stored: StoredAction) -> ConfirmOutcome:
        """The record is not what the user saw: it must never run."""
        told = texts_for().tampered()
        log.error("pending.tampered", extra={"pending": claim.pending_action_id})
        begun = ("started",) if stored.state == "started" else ()  # by the decision at hand, which stops here
        before = ("armed", "shown", "claimed", *begun, "cancelled")
        move = Transition(claim.pending_action_id, before, "cancelled", told, claim.by)
        await reach(self._records.change, claim.conversation, TurnChange(move=move))
        return ConfirmOutcome("digest_mismatch", replace(stored.action, state="cancelled"), told=told)


def _may_reach(claim: Claim, action: PendingAction, plan: str = "") -> bool:
    """Whether it may be decided on this way: a step only through its plan, an undo only by its button."""
    return action.plan == plan and not (claim.kind == "text" and is_undo(action) and not plan)


def _is_expected(decision: ActionDecision, verdict: str, action: PendingAction) -> bool:
    """Whether the sealed record agrees with what was compared beside it in Redis, where anybody may have written."""
    if verdict not in ("mine", "stale"):
        return True
    return (
        decision.expected_kind in ("", action.kind)
        and decision.expected_digest in ("", action.args_digest)
        and (decision.intent != "confirm" or decision.code == action.code)
    )


def _not_run(verdict: str, action: PendingAction) -> ConfirmOutcome:
    """What a decision came to that runs nothing."""
    words = texts_for(action.language)
    match verdict:
        case "expired":
            return expired(action)
        case "early":
            return early(action)
        case "changed":
            return ConfirmOutcome("digest_mismatch", action, told=words.unsafe(action.preview))
        case "cancelled":
            return ConfirmOutcome("cancelled", action, told=words.cancelled(action.preview))
        case "ignored":
            return ConfirmOutcome("ignored", action, told=words.ignored(action.preview))
    return ConfirmOutcome("kind_mismatch", action, told=words.stale())


def _report(plan: PendingAction, steps: list[StoredAction]) -> str:
    """Of every step: done, failed, unknown, or not started."""
    states = {"done": "done", "failed": "failed", "unknown": "unknown", "started": "unknown"}
    lines = [(states.get(step.state, "cancelled"), step.action.preview, step.told) for step in steps]
    return texts_for(plan.language).plan_report(lines)


def _why_it_failed(action: PendingAction, error: BaseException) -> str:
    """Return what the person is told of an error. An unexpected one is told by its type and a reference for the log."""
    named = {"kind": action.kind, "pending": action.pending_action_id}
    words = redact(words_for_person(error))
    if words:
        log.warning("pending.failed", extra={**named, "why": words})
        return storable(words)
    wrapped, reference = getattr(error, "error", None), random_id(4)
    raised = wrapped if isinstance(wrapped, BaseException) else error
    log.error("pending.failed", extra={**named, "reference": reference}, exc_info=error)
    return texts_for(action.language).reference(f"{reference} ({type(raised).__name__})")


def _confirmation(claim: Claim, action: PendingAction) -> Confirmation:
    at = claim.received_at or unix_now()
    return Confirmation(action.pending_action_id, action.preview, claim.scope.user_id, at)


def _as_text(result: Any) -> str:
    if result is None:
        return ""
    return storable(result.to_json() if isinstance(result, ToolResult) else str(result))
