"""Settlement: take a confirmed action through its states (claim, start, run,
record) so that it runs at most once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from sayso.channels.i18n.texts import brief_result, texts_for
from sayso.channels.markdown.literal import Markdown, as_kind_of, as_markdown
from sayso.channels.markdown.outcome_signs import DONE, without_signs
from sayso.channels.types import Reply, Scope, storable
from sayso.infra import tracing
from sayso.infra.concurrency import NotStarted, TimedOut, run_with_timeout
from sayso.infra.ids import random_id
from sayso.infra.redaction import redact
from sayso.pending.action import PLAN_KIND, ActionSigner, ActionState, PendingAction
from sayso.pending.context import Confirmation, with_context
from sayso.pending.effect import EffectStart
from sayso.pending.error_texts import FATAL_ERRORS, error_text
from sayso.pending.executors import (
    ActionExecutor,
    Ambiguous,
    Executors,
    NotFound,
    Reconciler,
    ToolOutput,
    ToolResult,
    as_json,
)
from sayso.pending.proposals import (
    ChannelRun,
    Effect,
    confirmed_run,
    current_context,
    is_step_of,
    is_undo,
    step_ids,
    undo_id,
)
from sayso.pending.repository import (
    CHANGED,
    OPEN_STATES,
    ActionDecision,
    ActionRepository,
    ActionResult,
    Claim,
    StoredAction,
)
from sayso.pending.result_words import effect_in_words, words_for_person
from sayso.pending.turns import LeaseLost, StaleTurn, Transition, TurnChange, outbox_entry

log = logging.getLogger(__name__)

#: Seconds that a confirmed action, or a whole plan, may take before its outcome is unknown.
#: Less than a turn's limit.
EXECUTOR_TIMEOUT = 100.0
#: Seconds that a reconciler may take to find out how an interrupted action ended.
RECONCILE_TIMEOUT = 10.0

#: Characters of a result that are stored for the user, who reads a long one as a file.
MAX_RESULT_CHARS = 500_000
#: Characters of a late result that the user is told. No turn runs then that
#: could send the whole as a file.
MAX_CORRECTION_CHARS = 3000

#: The seed's statuses, and two that only occur in a worker's turn: `early` and `unknown`.
OutcomeStatus = Literal[
    "executed",
    "expired",
    "digest_mismatch",
    "no_executor",
    "failed",
    "cancelled",
    "kind_mismatch",
    "ignored",
    "early",
    "unknown",
]

#: How much a report has of what tools returned: all, the beginning of each result, or nothing.
ShownResults = Literal["whole", "brief", "none"]
#: How an effect that was started may end.
EndState = Literal["done", "failed", "unknown"]
#: Of actions that were done and have an undo that was confirmed: whether it took effect,
#: by the action's id.
UndoStates = Mapping[str, Literal["undone", "unknown"]]


class EffectEnd(NamedTuple):
    """How an effect ended: its state, and what its tool returned or why it failed,
    as the user is told it.

    `output`: what a model reads of the result or the error; "" if that is `text`.
    """

    state: EndState
    text: str = ""
    output: str = ""


@dataclass(frozen=True, slots=True)
class ConfirmOutcome:
    """What became of a pending action.

    `result`: what its executor returned. `outcome_text`: what the user is told. `effects`: all that
    took effect; for a plan that failed half-way, the steps before.
    """

    status: OutcomeStatus
    record: PendingAction
    result: str | None = None
    outcome_text: str = ""
    effects: tuple[Effect, ...] = ()

    @property
    def executed(self) -> bool:
        """Return whether the effect took place now."""
        return self.status == "executed"


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
                return _outcome_without_run(status, action)
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
        # Redis compared unsigned fields, with which the signed record must agree.
        if verdict in (
            "mine",
            "stale",
        ):
            is_genuine &= (
                decision.expected_kind in ("", action.kind)
                and decision.expected_digest in ("", action.args_digest)
                and (decision.intent != "confirm" or decision.code == action.code)
            )
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
        return _outcome_without_run(verdict, action)

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
        """Return what took effect of a finished action, by its records;
        nothing if a record was tampered with.
        """
        parts = await self._genuine_parts(scope, stored)
        return tuple(Effect(part.action, part.result) for part in parts if part.state == "done")

    async def report(
        self, scope: Scope, stored: StoredAction, *, results: ShownResults = "whole"
    ) -> str:
        """Return what is known of each step of a finished plan, or that an action was undone;
        "" for any other action.

        `results`: how much it has of what tools returned. It is "" if a record was tampered with.
        """
        parts = await self._genuine_parts(scope, stored)
        undos = await self._undo_states(scope, parts)
        if not parts:
            return ""
        if stored.action.kind == PLAN_KIND:
            return _plan_report(stored.action, parts, undos, results=results)
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
        """Return the steps of a plan, or any other action itself;
        nothing if a record was tampered with.
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
        if not refusal:
            executor = self._executors.take(action)
        else:
            executor = None
        if refusal or (executor is None and action.kind != PLAN_KIND):
            if state == "started":  # by an earlier worker, whose tool is gone or has changed
                return await self._end_interrupted(claim, action)
            outcome = refusal or _no_executor_outcome(action)
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
        """Return the outcome of an action that must not run;
        None if its tools are those that were shown.

        With `render` the previews are compared too. A plan is refused as a whole before its first
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
                        why = without_signs(as_markdown(_bounded(storable(redact(comparison.why)))))
                        text = "\n".join(filter(None, [texts.tool_changed(each.preview), why]))
                        return _refused_outcome(action, text)
                    case "gone":
                        return _no_executor_outcome(action, texts.unsafe(each.preview))
                    case "unknown":
                        return _refused_outcome(action, texts.unsafe(each.preview))
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
            outcome = _no_executor_outcome(action)
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
                await self._record(claim, attempt, action, _end_of(action, value, error))

        try:
            with (
                _confirmed(claim, action, effect),
                tracing.span("execute action", attributes=attributes),
            ):
                value = await run_with_timeout(executor.run, seconds, record_late)
            end = _end_of(action, value)
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
            return _end_of(action, None, exc)

    async def _record(
        self, claim: Claim, attempt: str, action: PendingAction, end: EffectEnd
    ) -> ConfirmOutcome:
        """Record how an effect ended, with the correction to send if
        the user was told otherwise before.
        """
        state, result, output = end
        texts = texts_for(action.language)
        correction = ""
        effects = tuple[Effect, ...]()
        match state:
            case "done":
                text = texts.done(action.preview, result)
                effects = (Effect(action, result),)
                if claim.lease:
                    shown = as_kind_of(result, texts.shortened(result, MAX_CORRECTION_CHARS))
                    corrected = Reply(f"{DONE} {texts.correction(action.preview, shown)}")
                    correction = outbox_entry(claim.scope.conversation, corrected, later=True)
            case "failed":
                reason = without_signs(as_markdown(result))
                text = "\n".join(filter(None, [texts.failed(action.preview), reason]))
            case "unknown":
                text = texts.unknown(action.preview)
        ending = ActionResult(state, text, result if state == "done" else "", correction, output)
        await self._repository.finish(claim, attempt, ending)
        return _effect_outcome(action, state, text, result, effects)

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
        # The records were genuine when the plan began; only the state is read again.
        current = await self._repository.load(
            claim.conversation, tuple(step.action_id for step in steps)
        )
        ended_steps = [
            replace(step, state=now.state, outcome_text=now.outcome_text)
            if now
            else replace(step, state="unknown")
            for step, now in zip(steps, current, strict=True)
        ]
        text = _plan_report(plan, ended_steps)
        state = plan_end_state([step.state for step in ended_steps])
        await self._repository.finish(claim, attempt, ActionResult(state, text))
        return _effect_outcome(plan, state, text, text, effects)

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
            return _effect_outcome(stored.action, "done", stored.outcome_text, effects=effects)
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
        if has_begun:
            text = texts.unknown(plan.preview)
        else:
            text = texts.unsafe(plan.preview)
        await self._repository.finish(claim, attempt, ActionResult(state, text))
        return _effect_outcome(plan, state, text)

    async def _end_interrupted_plan(self, claim: Claim, plan: PendingAction) -> ConfirmOutcome:
        """End a plan whose process died: reconcile the step it died at,
        and report how all steps ended.
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
        return await self._end_started(claim, plan, state, _plan_report(plan, ended_steps))

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
                    result = _in_words(answer)
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
            return _effect_outcome(action, state, text, text)
        (now,) = await self._repository.load(claim.conversation, (claim.action_id,))
        if claim.lease:
            raise StaleTurn(f"{claim.conversation}: the outcome came in just now")
        if now is None or now.state not in ("done", "failed", "unknown"):
            return _effect_outcome(action, state, text, text)
        return _effect_outcome(action, now.state, now.outcome_text, now.result)

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
    """Return whether the claim may decide on the action: on a step only through its plan,
    on an undo only by button.
    """
    return action.plan == plan and not (claim.kind == "text" and is_undo(action) and not plan)


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


def _outcome_without_run(verdict: str, action: PendingAction) -> ConfirmOutcome:
    """Return the outcome of a decision that runs nothing."""
    texts = texts_for(action.language)
    preview = action.preview
    match verdict:
        case "expired":
            return ConfirmOutcome(
                "expired", replace(action, state="expired"), outcome_text=texts.expired(preview)
            )
        case "early":
            return ConfirmOutcome("early", action, outcome_text=texts.early(preview))
        case "changed":
            return ConfirmOutcome("digest_mismatch", action, outcome_text=texts.unsafe(preview))
        case "cancelled":
            return ConfirmOutcome("cancelled", action, outcome_text=texts.cancelled(preview))
        case "ignored":
            return ConfirmOutcome("ignored", action, outcome_text=texts.ignored(preview))
    return ConfirmOutcome("kind_mismatch", action, outcome_text=texts.stale())


def _refused_outcome(action: PendingAction, text: str) -> ConfirmOutcome:
    """Return the outcome of an action whose tool is not the one that was shown."""
    return ConfirmOutcome(
        "digest_mismatch", replace(action, state="failed", outcome=text), outcome_text=text
    )


def _no_executor_outcome(action: PendingAction, text: str = "") -> ConfirmOutcome:
    """Return the outcome of an action that nothing in this process can run, or may run by now."""
    text = text or texts_for(action.language).unsafe(action.preview)
    return ConfirmOutcome(
        "no_executor", replace(action, state="failed", outcome=text), outcome_text=text
    )


def _effect_outcome(
    action: PendingAction,
    state: EndState,
    text: str,
    result: str = "",
    effects: tuple[Effect, ...] = (),
) -> ConfirmOutcome:
    """Return the outcome of an effect that was started. `text` is what the user is told."""
    record = replace(action, state=state, outcome=text)
    if state == "done":
        return ConfirmOutcome("executed", record, result, text, effects)
    return ConfirmOutcome(state, record, None, text, effects)


def plan_end_state(states: list[ActionState]) -> EndState:
    """Return how a plan ended whose steps are in these states."""
    if all(state == "done" for state in states):
        return "done"
    if "unknown" in states or "started" in states:
        return "unknown"
    return "failed"


def _plan_report(
    plan: PendingAction,
    steps: Sequence[StoredAction],
    undos: UndoStates | None = None,
    *,
    results: ShownResults = "whole",
) -> str:
    """Return the text that says of each step: done, undone, failed, unknown, or not started.

    `results`: how much it has of what tools returned, and of why they failed.
    """
    texts = texts_for(plan.language)
    states = {"done": "done", "failed": "failed", "unknown": "unknown", "started": "unknown"}
    undos = undos or {}
    lines = []
    for step in steps:
        state = undos.get(step.action_id, states.get(step.state, "cancelled"))
        preview = step.action.preview
        outcome = step.outcome_text
        if results == "none":
            outcome = ""
        elif results == "brief":
            outcome = brief_outcome(step)
        if undos.get(step.action_id) == "unknown":  # what was interrupted is the undo
            preview = texts.undo(preview)
        lines.append((state, preview, outcome))
    return texts.plan_report(lines)


def brief_outcome(stored: StoredAction) -> str:
    """Return the outcome of a finished action, or of a step,
    with the beginning of a long result or reason.
    """
    texts = texts_for(stored.action.language)
    preview = stored.action.preview
    failed = texts.failed(preview)
    text = stored.outcome_text
    if stored.state == "done":
        result = stored.result
        if not result or result == text:  # a check has found out that it was done
            result = as_kind_of(text, text.removeprefix(texts.done(preview, "")).strip())
        return texts.done_briefly(preview, result)
    if stored.state == "failed" and text.startswith(failed):
        reason = brief_result(Markdown(text.removeprefix(failed)))
        return "\n".join(filter(None, [failed, reason]))
    return text


def _failure_text(action: PendingAction, error: BaseException) -> str:
    """Return what the user is told of an error: for an unexpected one,
    its type and a reference into the log.
    """
    ids = {"kind": action.kind, "pending": action.pending_action_id}
    text = redact(words_for_person(error))
    if text:
        log.warning("pending.failed", extra={**ids, "why": text})
        return _bounded(storable(text))
    wrapped = getattr(error, "error", None)
    reference = random_id(4)
    raised = wrapped if isinstance(wrapped, BaseException) else error
    log.error("pending.failed", extra={**ids, "reference": reference}, exc_info=error)
    return texts_for(action.language).reference(f"{reference} ({type(raised).__name__})")


def _confirmed(
    claim: Claim, action: PendingAction, effect: EffectStart | None = None
) -> AbstractContextManager[ChannelRun]:
    """Run the block by the yes of this claim.

    `effect`: where the effect begins, None if it has begun.
    """
    at = claim.received_at or time.time()
    confirmation = Confirmation(action.pending_action_id, action.preview, claim.scope.user_id, at)
    return confirmed_run(confirmation, claim.scope, action.language, effect)


def _bounded(text: str) -> str:
    """Return the text, or the beginning of one that is too long for a
    record and how many characters it had.
    """
    if len(text) <= MAX_RESULT_CHARS:
        return text
    return f"{text[:MAX_RESULT_CHARS]} [… {len(text)}]"


def _end_of(action: PendingAction, value: Any, error: BaseException | None = None) -> EffectEnd:
    """Return how an executor ended that returned `value` or raised `error`."""
    if isinstance(error, NotStarted):
        return EffectEnd("failed")
    if error is not None:
        # A model reads the error of a call that ran at once, too.
        # The text for the user may leave it out.
        output = storable(redact(error_text(error) or type(error).__name__))
        return EffectEnd("failed", _failure_text(action, error), _bounded(output))
    try:
        return _end_with(value)
    except (Exception, *FATAL_ERRORS):  # a value's own code may raise anything
        facts = {"tool": action.kind, "type": type(value).__name__}
        log.exception("tool.result_unreadable", extra=facts)
    # Its type says what became of it, whatever its text is.
    is_nothing_done = isinstance(value, Ambiguous | NotFound)
    return EffectEnd("failed" if is_nothing_done else "done")


def _end_with(value: Any) -> EffectEnd:
    """Return how an executor ended that returned a value.

    Raises what the value's own code raises.
    """
    if isinstance(value, Ambiguous | NotFound):
        return EffectEnd(
            "failed", storable(redact(value.in_words)), storable(redact(value.to_json()))
        )
    if isinstance(value, ToolOutput):
        if value.output != value.text:
            output = storable(value.output)
        else:
            output = ""
        return EffectEnd("done", as_kind_of(value.text, _bounded(storable(value.text))), output)
    if value is None:
        return EffectEnd("done")
    raw = value
    if isinstance(value, ToolResult | dict | list | bool):
        raw = as_json(value)
    text = _in_words(raw)
    output = _bounded(storable(str(raw)))
    return EffectEnd("done", text, output if output != text else "")


def _in_words(value: Any) -> str:
    """Return a result as the user is told it, within the limit of a record.

    Markdown stays Markdown.
    """
    if isinstance(value, Markdown):
        return Markdown(_bounded(storable(value)))
    return _bounded(effect_in_words(storable(str(value))))
