"""Settlement: takes a confirmed action through its states, so that it runs at most once.

*Claim*: this yes wins the action, and no other does. *Start*: stored before the effect begins.
*Run*: the code of the tool. *Record*: how it ended. From the stored state the next worker can tell
what may have happened if one dies on the way. How an end is told is in `action_outcomes.py`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Literal

from sayso.channels.i18n.texts import texts_for
from sayso.channels.markdown.literal import as_markdown
from sayso.channels.markdown.outcome_signs import without_signs
from sayso.channels.types import Scope, storable
from sayso.infra import tracing
from sayso.infra.concurrency import TimedOut, run_with_timeout
from sayso.infra.ids import random_id
from sayso.infra.redaction import redact
from sayso.pending.action import PLAN_KIND, ActionSigner, ActionState, PendingAction
from sayso.pending.action_outcomes import (
    ConfirmOutcome,
    EffectEnd,
    EndState,
    ShownResults,
    UndoStates,
    bounded,
    effect_end_of,
    effect_outcome,
    no_executor_outcome,
    outcome_without_run,
    plan_end_state,
    plan_report,
    refused_outcome,
    result_in_words,
    result_to_store,
)
from sayso.pending.call_context import ChannelRun, Confirmation
from sayso.pending.context import with_context
from sayso.pending.effect import EffectStart
from sayso.pending.executors import (
    ActionExecutor,
    Executors,
    Reconciler,
)
from sayso.pending.proposals import (
    Effect,
    confirmed_run,
    current_context,
    is_step_of,
    is_undo,
    step_ids,
    undo_id,
)
from sayso.pending.repository import ActionDecision, ActionRepository, ActionResult, Claim
from sayso.pending.stored_action import CHANGED, OPEN_STATES, StoredAction
from sayso.pending.turns import LeaseLost, StaleTurn, Transition, TurnChange

log = logging.getLogger(__name__)

#: Seconds that a confirmed action, or a whole plan, may take before its outcome is unknown.
#: Less than a turn's limit.
EXECUTOR_TIMEOUT = 100.0
#: Seconds that a reconciler may take to find out how an interrupted action ended.
RECONCILE_TIMEOUT = 10.0


class Settlement:
    """Settles pending actions: runs each confirmed one once, and records how it ended.

    Lives as long as its store.
    """

    def __init__(
        self,
        repository: ActionRepository,
        signer: ActionSigner,
        executors: Executors,
        *,
        timeout_seconds: float = EXECUTOR_TIMEOUT,
    ) -> None:
        self._repository = repository
        self._signer = signer
        self._executors = executors
        self._timeout_seconds = timeout_seconds

    async def confirm(
        self, claim: Claim, stored: StoredAction, *, plan: str = "", deadline: float | None = None
    ) -> ConfirmOutcome | None:
        """Run the action if this claim wins it. None: it cannot be won, and nothing was run.

        `plan` is the id of the plan whose step it is. `deadline`, by `time.monotonic`, is when it
        must have ended. Raises LeaseLost and StaleTurn when the worker must stop or read again.
        """
        stored = stored.verified(self._signer, claim.scope)
        if stored.is_changed:
            return await self._refuse_tampered(claim, stored)
        if not _may_decide(claim, stored.action, plan):
            return None
        attributes = {
            tracing.PENDING: stored.action_id,
            tracing.CHANNEL: claim.scope.conversation.channel,
        }
        with tracing.span("confirm action", links=[stored.trace], attributes=attributes) as span:
            outcome = await self._claim_and_run(claim, stored, deadline)
            span.set_attribute(tracing.OUTCOME, outcome.status if outcome else "none")
            return outcome

    async def _claim_and_run(
        self, claim: Claim, stored: StoredAction, deadline: float | None
    ) -> ConfirmOutcome | None:
        with tracing.span("claim action"):
            status, state = await self._repository.claim(claim, stored)
        action = stored.action
        match status:
            case "mine" if state == "started" and not (
                action.idempotent or action.kind == PLAN_KIND
            ):
                return await self._end_interrupted(claim, action)
            case "mine":
                return await self._start(claim, stored, state, deadline)
            case "expired" | "early":
                return outcome_without_run(status, action)
            case "tampered":
                return await self._cancel_tampered(claim, stored)
            case "lost":
                raise LeaseLost(claim.conversation)
            case "moved":
                raise StaleTurn(claim.conversation)
        return None

    async def decide(self, decision: ActionDecision) -> ConfirmOutcome | None:
        """Settle the open action of a scope, without a lease.

        None: there is none, and nothing was run.
        """
        verdict, stored = await self._repository.decide(decision)
        if stored is None:
            return None
        claim = Claim(decision.scope, stored.action_id, decision.decided_by_event)
        stored = stored.verified(self._signer, claim.scope)
        action = stored.action
        is_genuine = not stored.is_changed and _may_decide(claim, action)
        if verdict in ("mine", "stale") and not _agrees(decision, action):
            is_genuine = False
        if not is_genuine:
            if verdict == "stale":
                return await self._refuse_tampered(claim, stored)
            return await self._cancel_tampered(claim, stored)
        match verdict:
            case "mine":
                refusal = await self._refusal(claim, action, render=True)
                if refusal:  # it has a start, but no effect
                    await self._repository.finish(
                        claim,
                        decision.decided_by_event,
                        ActionResult("failed", refusal.outcome_text),
                    )
                    return refusal
                return await self._run_started(
                    claim, action, self._executors.take(action), decision.decided_by_event, None
                )
            case "stale":
                return await self.recover(claim, stored)
        return outcome_without_run(verdict, action)

    async def recover(self, claim: Claim, stored: StoredAction) -> ConfirmOutcome:
        """End an action whose process died at it, and say honestly what is known. Runs nothing."""
        stored = stored.verified(self._signer, claim.scope)
        if stored.is_changed:
            return await self._refuse_tampered(claim, stored)
        action = stored.action
        if stored.state == "started" and action.kind == PLAN_KIND:
            return await self._end_interrupted_plan(claim, action)
        if stored.state == "started":
            return await self._end_interrupted(claim, action)
        # Only claimed: it has certainly not started.
        text = texts_for(action.language).unsafe(action.preview)
        await self._move(claim, ("claimed",), "superseded", text)
        return ConfirmOutcome("cancelled", replace(action, state="superseded"), outcome_text=text)

    async def effects(self, scope: Scope, stored: StoredAction) -> tuple[Effect, ...]:
        """Return what took effect of a finished action.

        It is () if a record was tampered with.
        """
        parts = await self._genuine_parts(scope, stored)
        return tuple(Effect(part.action, part.result) for part in parts if part.state == "done")

    async def report(
        self, scope: Scope, stored: StoredAction, *, results: ShownResults = "whole"
    ) -> str:
        """Return what is known of each step of a finished plan, or that an action was undone.

        It is "" for any other action, and if a record was tampered with. `results`: how much it has
        of what tools returned.
        """
        parts = await self._genuine_parts(scope, stored)
        undos = await self._undo_states(scope, parts)
        if not parts:
            return ""
        if stored.action.kind == PLAN_KIND:
            return plan_report(stored.action, parts, undos, results=results)
        texts = texts_for(stored.action.language)
        preview = stored.action.preview
        match undos.get(stored.action_id):
            case "undone":
                return texts.undone(preview)
            case "unknown":
                return texts.unknown(texts.undo(preview))
        return ""

    async def was_undone(self, scope: Scope, stored: StoredAction) -> bool:
        """Return whether a finished action, or a step of it, was undone, or may have been."""
        return bool(await self._undo_states(scope, await self._genuine_parts(scope, stored)))

    async def _undo_states(self, scope: Scope, parts: Sequence[StoredAction]) -> UndoStates:
        """Return what is known of the undos of these actions.

        Those that certainly had no effect are left out.

        An undo whose record was changed may have taken effect, too.
        """
        pids = [part.action_id for part in parts if part.state == "done"]
        if not pids:
            return {}
        states: dict[str, Literal["undone", "unknown"]] = {}
        undos = await self._repository.load(scope.conversation.id, tuple(map(undo_id, pids)))
        for pid, undo in zip(pids, undos, strict=True):
            if undo is None or undo.state not in ("claimed", "started", "done", "unknown"):
                continue
            is_certain = undo.state == "done" and undo.is_genuine(self._signer, scope)
            states[pid] = "undone" if is_certain else "unknown"
        return states

    async def told_outcome(self, scope: Scope, stored: StoredAction) -> str:
        """Return the outcome that stands above the button of an undo, as Markdown.

        It is "" if the button has a message of its own, and after tampering.
        """
        parts = await self._genuine_parts(scope, stored)
        return next(
            (str(part.action.args["told"]) for part in parts if "told" in part.action.args), ""
        )

    async def _genuine_parts(self, scope: Scope, stored: StoredAction) -> list[StoredAction]:
        """Return the steps of a plan, or any other action itself.

        It is [] if a record was tampered with.
        """
        if not stored.is_genuine(self._signer, scope):
            return []
        if stored.action.kind == PLAN_KIND:
            return await self._genuine_steps(scope, stored.action) or []
        return [stored]

    async def _start(
        self, claim: Claim, stored: StoredAction, state: ActionState | str, deadline: float | None
    ) -> ConfirmOutcome:
        """Claimed -> started, then run. `state` is the stored state after the claim.

        An executor that marks its effect runs first: the action is started where its effect begins.
        """
        action = stored.action
        # What has begun is not shown again: its own effect may have changed what the preview says.
        # The steps of a plan were compared when it began.
        is_new = state == "claimed" and not action.plan
        refusal = await self._refusal(claim, action, render=is_new)
        executor = None
        if not refusal:
            executor = self._executors.take(action)
        if refusal or (executor is None and action.kind != PLAN_KIND):
            if state == "started":  # by an earlier worker, whose tool is gone or has changed
                return await self._end_interrupted(claim, action)
            outcome = refusal or no_executor_outcome(action)
            if not await self._move(claim, ("claimed",), "failed", outcome.outcome_text):
                raise StaleTurn(
                    f"{claim.conversation}: another worker has taken the action further"
                )
            return outcome
        attempt = random_id()
        if executor is not None and executor.marks_effect and state == "claimed":
            return await self._run_with_preparation(claim, stored, executor, attempt, deadline)
        match await self._repository.start(claim, stored, attempt):
            case "go":
                return await self._run_started(claim, action, executor, attempt, deadline)
            case "worn":
                return await self._end_interrupted(claim, action)
        raise StaleTurn(f"{claim.conversation}: the action changed before it was started")

    async def _run_with_preparation(
        self,
        claim: Claim,
        stored: StoredAction,
        executor: ActionExecutor,
        attempt: str,
        deadline: float | None,
    ) -> ConfirmOutcome:
        """Run a claimed action whose executor says where its effect begins.

        Until then the action stays claimed. If this worker dies or is stopped, the next one runs it
        again. If another worker has taken over, the effect is refused, because only the holder of
        the lease can start an action.
        """

        async def start() -> None:
            verdict = await self._repository.start(claim, stored, attempt)
            if verdict == "lost":
                raise LeaseLost(claim.conversation)
            if verdict != "go":
                raise StaleTurn(f"{claim.conversation}: the action changed before its effect began")
            log.info(
                "pending.started", extra={"kind": stored.action.kind, "pending": stored.action_id}
            )

        effect = EffectStart(start)
        end = await self._run(
            claim, stored.action, executor, attempt, self._seconds_until(deadline), effect
        )
        if not effect.close():  # it ended in its preparation. Only what was started can end.
            await start()
        return await self._record(claim, attempt, stored.action, end)

    async def _refusal(
        self, claim: Claim, action: PendingAction, *, render: bool
    ) -> ConfirmOutcome | None:
        """Return the outcome of an action that must not run, None if it may.

        It may run if its tools are those that were shown. With `render` the previews are compared too. A plan is refused as a whole before its first
        step; later its steps are compared one by one, without their previews, which earlier steps
        may have changed.
        """
        actions = [action]
        if action.kind == PLAN_KIND:
            steps = None
            if render:
                steps = await self._genuine_steps(claim.scope, action)
            # A plan whose steps were changed is refused where it runs.
            actions = [step.action for step in steps or ()]
        texts = texts_for(action.language)
        with _confirmed(claim, action):
            for each in actions:
                comparison = await self._executors.compare(each, render=render)
                match comparison.state:
                    case "changed":
                        why = without_signs(as_markdown(bounded(storable(redact(comparison.why)))))
                        text = "\n".join(filter(None, [texts.tool_changed(each.preview), why]))
                        return refused_outcome(action, text)
                    case "gone":
                        return no_executor_outcome(action, texts.unsafe(each.preview))
                    case "unknown":
                        return refused_outcome(action, texts.unsafe(each.preview))
        return None

    async def _run_started(
        self,
        claim: Claim,
        action: PendingAction,
        executor: ActionExecutor | None,
        attempt: str,
        deadline: float | None,
    ) -> ConfirmOutcome:
        """Started -> done, failed or unknown: run the action or plan and record how it ended."""
        if action.kind == PLAN_KIND:
            return await self._run_plan(claim, action, attempt)
        if executor is None:
            outcome = no_executor_outcome(action)
            await self._repository.finish(
                claim, attempt, ActionResult("failed", outcome.outcome_text)
            )
            return outcome
        log.info(
            "pending.started", extra={"kind": action.kind, "pending": action.pending_action_id}
        )
        end = await self._run(claim, action, executor, attempt, self._seconds_until(deadline))
        return await self._record(claim, attempt, action, end)

    def _seconds_until(self, deadline: float | None) -> float:
        """Return the seconds that an executor may take.

        `deadline` is that of its plan, None without one.
        """
        if deadline is None:
            return self._timeout_seconds
        return max(0.0, deadline - time.monotonic())

    async def _run(
        self,
        claim: Claim,
        action: PendingAction,
        executor: ActionExecutor,
        attempt: str,
        seconds: float,
        effect: EffectStart | None = None,
    ) -> EffectEnd:
        """Run the executor, and return how it ended.

        `effect`: where its effect begins, None if it has begun.

        Once this ends, an effect that has not begun begins no more: the thread of a tool may go on.
        """
        ids = {"kind": action.kind, "pending": action.pending_action_id}
        attributes = {tracing.PENDING: action.pending_action_id, tracing.KIND: action.kind}

        async def record_late(value: Any, error: BaseException | None) -> None:
            if effect is not None and not effect.has_begun:
                return  # it has failed, or another worker runs it again
            log.warning("pending.late", extra=ids)
            if not isinstance(error, TimedOut):  # after that it stays unknown
                await self._record(claim, attempt, action, effect_end_of(action, value, error))

        try:
            with (
                _confirmed(claim, action, effect),
                tracing.span("execute action", attributes=attributes),
            ):
                value = await run_with_timeout(executor.run, seconds, record_late)
            end = effect_end_of(action, value)
            log.info("pending.done" if end.state == "done" else "pending.failed", extra=ids)
            return end
        except asyncio.CancelledError:
            # The lease is lost, or this worker is stopping. A thread may still run the action: its
            # end is unknown. If its effect has not begun, it begins no more, and the next worker
            # runs the action again.
            if _may_have_happened(effect):
                await asyncio.shield(self._record(claim, attempt, action, EffectEnd("unknown")))
            raise
        except TimedOut:  # it goes on, and nothing waits for it: its end is unknown
            return _cut_off(effect, ids)
        except KeyboardInterrupt:  # only when the action runs in the caller's own thread
            if _may_have_happened(effect):
                await self._record(claim, attempt, action, EffectEnd("unknown"))
            raise
        except Exception as exc:  # noqa: BLE001  # an executor is user code: its error is an outcome
            return effect_end_of(action, None, exc)

    async def _record(
        self, claim: Claim, attempt: str, action: PendingAction, end: EffectEnd
    ) -> ConfirmOutcome:
        """Record how an effect ended."""
        place = claim.scope.conversation if claim.lease else None
        result = result_to_store(action, end, place)
        await self._repository.finish(claim, attempt, result)
        effects = (Effect(action, end.text),) if end.state == "done" else ()
        return effect_outcome(action, end.state, result.outcome_text, end.text, effects)

    async def _run_plan(self, claim: Claim, plan: PendingAction, attempt: str) -> ConfirmOutcome:
        """Run the steps in order until one does not end well.

        Steps that an earlier worker did are not repeated.
        """
        deadline = time.monotonic() + self._timeout_seconds
        steps = await self._genuine_steps(claim.scope, plan)
        if steps is None:
            return await self._end_tampered_plan(claim, plan, attempt)
        effects: tuple[Effect, ...] = ()
        for step in steps:
            if time.monotonic() >= deadline:
                break
            outcome = await self._run_step(
                replace(claim, action_id=step.action_id), step, plan, deadline
            )
            effects += outcome.effects if outcome else ()
            if outcome is None or not outcome.executed:
                break
        # The records were genuine when the plan began. Only their states are read again.
        current = await self._repository.load(
            claim.conversation, tuple(step.action_id for step in steps)
        )
        ended_steps: list[StoredAction] = []
        for step, now in zip(steps, current, strict=True):
            if now:
                ended = replace(step, state=now.state, outcome_text=now.outcome_text)
            else:
                ended = replace(step, state="unknown")
            ended_steps.append(ended)
        text = plan_report(plan, ended_steps)
        state = plan_end_state([step.state for step in ended_steps])
        await self._repository.finish(claim, attempt, ActionResult(state, text))
        return effect_outcome(plan, state, text, text, effects)

    async def _genuine_steps(self, scope: Scope, plan: PendingAction) -> list[StoredAction] | None:
        """Return the steps of a plan, None when one of them is not what was shown."""
        stored_steps = await self._repository.load(scope.conversation.id, step_ids(plan))
        steps = [
            step
            for number, step in enumerate(stored_steps)
            if step and step.is_genuine(self._signer, scope) and is_step_of(plan, number, step)
        ]
        return steps if len(steps) == len(stored_steps) else None

    async def _run_step(
        self, claim: Claim, stored: StoredAction, plan: PendingAction, deadline: float
    ) -> ConfirmOutcome | None:
        if stored.state == "done":
            effects = (Effect(stored.action, stored.result),)
            return effect_outcome(stored.action, "done", stored.outcome_text, effects=effects)
        if stored.state not in OPEN_STATES:
            return None
        return await self.confirm(claim, stored, plan=plan.pending_action_id, deadline=deadline)

    async def _end_tampered_plan(
        self, claim: Claim, plan: PendingAction, attempt: str
    ) -> ConfirmOutcome:
        """End a plan with a step that is not the one that was shown. Runs nothing more."""
        log.error("pending.tampered", extra={"pending": claim.action_id})
        steps = await self._repository.load(claim.conversation, step_ids(plan))
        has_begun = any(step and step.state not in ("shown", "claimed") for step in steps)
        texts = texts_for(plan.language)
        state: EndState = "unknown" if has_begun else "failed"
        text = texts.unknown(plan.preview) if has_begun else texts.unsafe(plan.preview)
        await self._repository.finish(claim, attempt, ActionResult(state, text))
        return effect_outcome(plan, state, text)

    async def _end_interrupted_plan(self, claim: Claim, plan: PendingAction) -> ConfirmOutcome:
        """End a plan whose process died, and report how all steps ended.

        The step at which it died is reconciled.
        """
        steps = await self._genuine_steps(claim.scope, plan) or []
        for step in steps:
            if step.state == "started":
                await self._end_interrupted(replace(claim, action_id=step.action_id), step.action)
        ended_steps = await self._genuine_steps(claim.scope, plan) or []
        if not ended_steps:
            return await self._end_started(
                claim, plan, "unknown", texts_for(plan.language).unknown(plan.preview)
            )
        state = plan_end_state([step.state for step in ended_steps])
        return await self._end_started(claim, plan, state, plan_report(plan, ended_steps))

    async def _end_interrupted(self, claim: Claim, action: PendingAction) -> ConfirmOutcome:
        """End an action that an earlier worker started before it died. It is never repeated.

        Ask its reconciler how it ended. Without one, or if that cannot tell, its end is unknown.
        """
        texts = texts_for(action.language)
        match await self._reconcile(claim, action):
            case None:
                return await self._end_started(
                    claim, action, "unknown", texts.unknown(action.preview)
                )
            case False:
                return await self._end_started(
                    claim, action, "failed", texts.not_done(action.preview)
                )
            case answer:
                result = ""
                if isinstance(answer, str):
                    result = result_in_words(answer)
                return await self._end_started(
                    claim, action, "done", texts.done(action.preview, result)
                )

    async def _reconcile(self, claim: Claim, action: PendingAction) -> str | bool | None:
        """Return whether the action took effect, True or a text for the user if it did.

        None: that is not known.
        """
        reconcile = self._executors.reconciler(action.kind)
        if reconcile is None:
            return None
        with _confirmed(claim, action):
            return await reconciled(reconcile, action)

    async def _end_started(
        self, claim: Claim, action: PendingAction, state: EndState, text: str
    ) -> ConfirmOutcome:
        """Started -> done, failed or unknown, for an action that this process did not run."""
        # "unknown" may be stored already, and is repeated then.
        # Only the process that ran it may correct it.
        before = ("started", "unknown") if state == "unknown" else ("started",)
        if await self._move(claim, before, state, text):
            return effect_outcome(action, state, text, text)
        (now,) = await self._repository.load(claim.conversation, (claim.action_id,))
        if claim.lease:
            raise StaleTurn(f"{claim.conversation}: the outcome came in just now")
        if now is None or now.state not in ("done", "failed", "unknown"):
            return effect_outcome(action, state, text, text)
        return effect_outcome(action, now.state, now.outcome_text, now.result)

    async def _refuse_tampered(self, claim: Claim, stored: StoredAction) -> ConfirmOutcome:
        """End an action whose record is not what the user saw.

        A started one can no longer be called off: its end is unknown.
        """
        if stored.state != "started":
            return await self._cancel_tampered(claim, stored)
        log.error("pending.tampered", extra={"pending": claim.action_id})
        return await self._end_started(
            claim, stored.action, "unknown", texts_for().unknown(CHANGED)
        )

    async def _cancel_tampered(self, claim: Claim, stored: StoredAction) -> ConfirmOutcome:
        """Any open state -> cancelled: the record is not what the user saw, and must never run."""
        text = texts_for().tampered()
        log.error("pending.tampered", extra={"pending": claim.action_id})
        # By this very decision, which stops here.
        started = ("started",) if stored.state == "started" else ()
        await self._move(
            claim, ("armed", "shown", "claimed", *started, "cancelled"), "cancelled", text
        )
        return ConfirmOutcome(
            "digest_mismatch", replace(stored.action, state="cancelled"), outcome_text=text
        )

    async def _move(
        self, claim: Claim, before: tuple[str, ...], to: ActionState, text: str
    ) -> bool:
        """Make one transition. Return False if the action was in none of the states `before`."""
        transition = Transition(claim.action_id, before, to, text, claim.decided_by_event)
        answer, _ = await self._repository.change(
            claim.conversation, TurnChange(transition=transition)
        )
        return answer == "ok"


async def reconciled(reconcile: Reconciler, action: PendingAction) -> str | bool | None:
    """Return what a reconciler knows of an interrupted action, by the yes of this context.

    None: nothing.
    """
    try:
        context = with_context(reconcile, current_context)
        answer = await run_with_timeout(lambda: reconcile(action, **context), RECONCILE_TIMEOUT)
    except Exception:  # a reconciler is user code; when it fails, nothing is known
        log.exception(
            "pending.not_reconciled",
            extra={"kind": action.kind, "pending": action.pending_action_id},
        )
        return None
    return answer if isinstance(answer, str | bool) else None


def _may_decide(claim: Claim, action: PendingAction, plan: str = "") -> bool:
    """Return whether the claim may decide on the action.

    A step is decided only through its `plan`, whose id is "" for other actions. An undo is decided
    only by its button: a yes in words may be meant for a question.
    """
    if action.plan != plan:
        return False
    return bool(plan) or claim.kind != "text" or not is_undo(action)


def _agrees(decision: ActionDecision, action: PendingAction) -> bool:
    """Return whether the signed record has the values that a decision expects.

    The store compares fields that are not signed, so they are compared again here.
    """
    if decision.expected_kind not in ("", action.kind):
        return False
    if decision.expected_digest not in ("", action.args_digest):
        return False
    return decision.intent != "confirm" or decision.code == action.code


def _may_have_happened(effect: EffectStart | None) -> bool:
    """Return whether the effect of an attempt that ends now may have happened.

    If not, it begins no more.
    """
    return effect is None or effect.close()


def _cut_off(effect: EffectStart | None, ids: Mapping[str, str]) -> EffectEnd:
    """Return how an executor ended that took too long."""
    if _may_have_happened(effect):
        log.warning("pending.cut_off", extra=ids)
        return EffectEnd("unknown")
    log.warning("pending.failed", extra={**ids, "why": "it took too long before its effect"})
    return EffectEnd("failed")


def _confirmed(
    claim: Claim, action: PendingAction, effect: EffectStart | None = None
) -> AbstractContextManager[ChannelRun]:
    """Run the block by the yes of this claim.

    `effect`: where the effect begins, None if it has begun.
    """
    at = claim.received_at or time.time()
    confirmation = Confirmation(action.pending_action_id, action.preview, claim.scope.user_id, at)
    return confirmed_run(confirmation, claim.scope, action.language, effect)
