"""Settlement: takes a confirmed action through its states, so that it runs at most once.

A confirmed action goes through four steps, and the store has each one before the next begins:

* *claim*: this yes wins the action, and no other yes does;
* *start*: the effect begins now, and no worker repeats it from here on;
* *run*: the code of the tool runs;
* *record*: how the effect ended.

If a worker dies on the way, the next one reads from the stored state what may have happened. The
texts about the end of an action are in `action_outcomes.py`. Later, `finished_actions.py` reads
what became of it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from sayso.channels.i18n.texts import texts_for
from sayso.channels.markdown.literal import as_markdown
from sayso.channels.markdown.outcome_signs import without_signs
from sayso.channels.types import Scope, storable
from sayso.infra import tracing
from sayso.infra.concurrency import TimedOut, run_with_timeout
from sayso.infra.ids import random_id
from sayso.infra.redaction import redact
from sayso.pending.action import (
    PLAN_KIND,
    RESERVED_PREFIX,
    ActionSigner,
    ActionState,
    PendingAction,
)
from sayso.pending.action_outcomes import (
    ConfirmOutcome,
    EffectEnd,
    EndState,
    effect_end_of,
    effect_outcome,
    no_executor_outcome,
    outcome_without_run,
    plan_end_state,
    plan_report,
    refused_outcome,
    result_in_words,
    result_to_store,
    within_record,
)
from sayso.pending.approval_rule import ApprovalRule
from sayso.pending.call_context import ChannelRun, Confirmation
from sayso.pending.decision_record import DecisionRecord
from sayso.pending.effect import EffectStart
from sayso.pending.executors import ActionExecutor, Executors, Reconciler
from sayso.pending.finished_actions import load_steps
from sayso.pending.plans import Effect, is_undo, step_ids
from sayso.pending.proposals import confirmed_run, current_context
from sayso.pending.repository import ActionDecision, ActionRepository, ActionResult, Claim
from sayso.pending.standing_yes import standing_event_id
from sayso.pending.stored_action import CHANGED, EXECUTED_STATES, OPEN_STATES, StoredAction
from sayso.pending.tool_context import context_arguments
from sayso.pending.turn_changes import Transition, TurnChange
from sayso.pending.turns import LeaseLost, StaleTurn

log = logging.getLogger(__name__)

#: Seconds that a confirmed action, or a whole plan, may take before its outcome is unknown.
#: Less than a turn's limit.
EXECUTOR_TIMEOUT = 100.0
#: Seconds that a reconciler may take to find out how an interrupted action ended.
RECONCILE_TIMEOUT = 10.0


class Settlement:
    """Settles pending actions: runs each confirmed one once, and records how it ended.

    It keeps no state of an action between calls. Lives as long as its store.

    The three entries are `confirm` (a worker's turn, or a step of a plan), `decide` (a program
    without a lease) and `recover` (an action whose process died). `repository.py` explains the
    answers of the store that the methods match.

    The methods below them share these parameters:

    * `claim`: who decided on which action, and the worker's lease as proof, if there is a worker;
    * `stored`: the action as it was loaded, `action`: its verified record;
    * `attempt`: the id of one start. The store takes an end only from the attempt that it has
      stored last, so a worker that was replaced cannot overwrite the outcome;
    * `deadline`: when a step of a plan must have ended, by `time.monotonic`; None: the action is no
      step, and has the usual time.
    """

    def __init__(
        self,
        repository: ActionRepository,
        signer: ActionSigner,
        executors: Executors,
        *,
        timeout_seconds: float = EXECUTOR_TIMEOUT,
    ) -> None:
        """`timeout_seconds` is what one action, or one whole plan, may take."""
        self._repository = repository
        self._signer = signer
        self._executors = executors
        self._timeout_seconds = timeout_seconds

    async def confirm(
        self, claim: Claim, stored: StoredAction, *, plan: str = "", deadline: float | None = None
    ) -> ConfirmOutcome | None:
        """Run the action if this claim wins it, and return the outcome.

        None: the claim cannot win the action, and nothing was run. A claim under a standing yes that
        does not cover the action any more is one of these. `plan` is the id of the plan
        that runs the action as its step, "" for none.

        Raises LeaseLost when the worker must stop, and StaleTurn when it must read the turn again.
        """
        stored = stored.verified(self._signer, claim.scope)
        if stored.is_changed:
            return await self._end_tampered(claim, stored)
        if not _may_decide(claim, stored, plan) or not self._is_sealed(claim):
            return None

        attributes = {
            tracing.PENDING: stored.action_id,
            tracing.CHANNEL: claim.scope.conversation.channel,
        }
        with tracing.span("confirm action", links=[stored.trace], attributes=attributes) as span:
            outcome = await self._claim_and_run(claim, stored, deadline)
            span.set_attribute(tracing.OUTCOME, outcome.status if outcome else "none")
            return outcome

    def _is_sealed(self, claim: Claim) -> bool:
        """Return whether all votes of a claim are sealed, and a standing yes for its person here.

        Callers load only genuine ones. Here it is certain.
        """
        if not all(vote.is_genuine(self._signer) for vote in claim.votes):
            return False
        yeses = []
        if claim.grants is not None:
            yeses.append(claim.grants)
        if claim.use is not None:
            yeses += [claim.use.before, claim.use.after]
        return all(yes.is_genuine(self._signer, claim.scope) for yes in yeses)

    async def _claim_and_run(
        self, claim: Claim, stored: StoredAction, deadline: float | None
    ) -> ConfirmOutcome | None:
        """Claim a verified action. If the claim wins it, run the action, and return the outcome."""
        with tracing.span("claim action"):
            status, state = await self._repository.claim(claim, stored)
        action = stored.action
        match status:
            case "mine":
                # "started": an earlier worker made the same claim, and may have had the effect
                # before it died. Only what is safe to repeat is started again. A plan is: its steps
                # are checked one by one.
                may_start_again = action.idempotent or action.kind == PLAN_KIND
                if state == "started" and not may_start_again:
                    return await self._end_interrupted(claim, action)
                return await self._start(claim, stored, state, deadline)
            case "expired" | "early":
                return outcome_without_run(status, action)
            case "tampered":
                return await self._cancel_tampered(claim, stored)
            case "lost":
                raise LeaseLost(claim.conversation)
            case "moved":
                raise StaleTurn(claim.conversation)
        # Another decision has the action, no such action waits, or the standing yes has ended.
        return None

    async def decide(self, decision: ActionDecision) -> ConfirmOutcome | None:
        """Settle the open action of a scope for a program, without a lease.

        None: no action waits, and nothing was run.
        """
        record = self._record_of(decision)
        verdict, stored = await self._repository.decide(replace(decision, record=record))
        if stored is None:
            return None

        # The store has compared fields that are not signed, so the signed ones are checked here. It
        # also picked the action: a step or an undo never waits as the open action of a scope, unless
        # the store was tampered with.
        claim = Claim(decision.scope, stored.action_id, decision.decided_by_event)
        stored = stored.verified(self._signer, claim.scope)
        action = stored.action
        is_genuine = not stored.is_changed and _may_decide(claim, stored)
        # With any other verdict nothing runs, and a mismatch may be the verdict itself.
        if verdict in ("mine", "stale") and not _agrees(decision, action):
            is_genuine = False
        if not is_genuine:
            if verdict == "stale":
                return await self._end_tampered(claim, stored)
            return await self._cancel_tampered(claim, stored)

        match verdict:
            case "mine":
                return await self._run_decided(claim, action, decision.decided_by_event)
            case "stale":
                # Its process died while it worked on the action.
                return await self.recover(claim, stored)
        return outcome_without_run(verdict, action)

    def _record_of(self, decision: ActionDecision) -> DecisionRecord | None:
        """Return the sealed record of a program's yes or no.

        It names no action: the store finds the action and decides in one step. None for the intent
        `ignore`, which decides nothing.
        """
        if decision.intent == "ignore":
            return None
        scope = decision.scope
        record = DecisionRecord(
            action_id="",
            record_mac="",
            answer="yes" if decision.intent == "confirm" else "no",
            form="program",
            channel=scope.conversation.channel,
            user_id=scope.user_id,
            conversation=scope.conversation.id,
            event_id=decision.decided_by_event,
            at=round(time.time(), 3),
            words=storable(decision.words),
        )
        return record.sealed(self._signer)

    async def _run_decided(
        self, claim: Claim, action: PendingAction, attempt: str
    ) -> ConfirmOutcome:
        """Run an action that `decide` has claimed and started, unless its tool has changed."""
        refusal = await self._refusal(claim, action, render=True)
        if refusal:
            # The action is stored as started, but it had no effect.
            result = ActionResult("failed", refusal.outcome_text)
            await self._repository.finish(claim, attempt, result)
            return refusal
        executor = self._executors.take(action)
        return await self._run_started(claim, action, executor, attempt, None)

    async def recover(self, claim: Claim, stored: StoredAction) -> ConfirmOutcome:
        """End an action whose process died after it claimed the action. Runs nothing.

        `stored` is claimed or started. The outcome says what is known: that the effect certainly
        did not begin, how it ended, or that this is unknown.
        """
        stored = stored.verified(self._signer, claim.scope)
        if stored.is_changed:
            return await self._end_tampered(claim, stored)
        action = stored.action
        if stored.state == "started" and action.kind == PLAN_KIND:
            return await self._end_interrupted_plan(claim, action)
        if stored.state == "started":
            return await self._end_interrupted(claim, action)

        # Only claimed: the effect has not begun, and cannot begin once the action is superseded.
        text = texts_for(action.language).unsafe(action.preview)
        if not await self._make_transition(claim, ("claimed",), "superseded", text):
            # The process was slow, and not dead: it may have started the action just now.
            (now,) = await self._repository.load(claim.conversation, (claim.action_id,))
            if now is not None and now.state in ("started", *EXECUTED_STATES):
                return await self._end_interrupted(claim, action)
        return ConfirmOutcome("cancelled", replace(action, state="superseded"), outcome_text=text)

    async def _start(
        self,
        claim: Claim,
        stored: StoredAction,
        state: ActionState | Literal[""],
        deadline: float | None,
    ) -> ConfirmOutcome:
        """Start a claimed action and run it. Return the outcome.

        `state` is the stored state after the claim: "claimed", or "started" if an earlier worker
        has started an action that is safe to repeat. An executor that says where its effect begins
        runs before the start, which then follows at that place.
        """
        action = stored.action

        # The preview of an action that has begun is not compared: its own effect may have changed
        # what the preview says. The previews of a plan's steps were compared when the plan began.
        compares_preview = state == "claimed" and not action.plan
        refusal = await self._refusal(claim, action, render=compares_preview)
        executor = None
        if refusal is None:
            executor = self._executors.take(action)
            if executor is None and action.kind != PLAN_KIND:
                refusal = no_executor_outcome(action)
        if refusal is not None:
            # The tool has gone or changed after an earlier worker started the action.
            if state == "started":
                return await self._end_interrupted(claim, action)
            if not await self._make_transition(claim, ("claimed",), "failed", refusal.outcome_text):
                raise StaleTurn(
                    f"{claim.conversation}: another worker has taken the action further"
                )
            return refusal

        attempt = random_id()
        # After an earlier start the effect may have begun, so nothing of this run is preparation.
        if executor is not None and executor.marks_effect and state == "claimed":
            return await self._run_with_preparation(claim, stored, executor, attempt, deadline)
        match await self._repository.start(claim, stored, attempt):
            case "go":
                return await self._run_started(claim, action, executor, attempt, deadline)
            case "worn":
                return await self._end_interrupted(claim, action)
            case "lost":
                raise LeaseLost(claim.conversation)
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
                "pending.started", extra={"kind": stored.action.kind, "action": stored.action_id}
            )

        effect = EffectStart(start)
        seconds = self._seconds_until(deadline)
        end = await self._run(claim, stored.action, executor, attempt, seconds, effect)

        # If the executor ended before its effect began, the action is started now: the store
        # records an end only of an action that was started. If another worker has taken over, this
        # raises, and that worker runs the action.
        if not effect.close():
            await start()
        return await self._record(claim, attempt, stored.action, end)

    async def _refusal(
        self, claim: Claim, action: PendingAction, *, render: bool
    ) -> ConfirmOutcome | None:
        """Return the outcome of an action that must not run, None if the action may run.

        It may run if its tools are those that were shown. With `render` the previews are compared,
        too. A plan is compared as a whole only with `render`, before its first step. Later each
        step is compared when it starts, without its preview, which earlier steps may have changed.
        """
        actions = [action]
        if action.kind == PLAN_KIND:
            actions = []
            if render:
                steps = await self._steps_of(claim.scope, action)
                # None if a step was changed: `_run_plan` refuses that plan.
                actions = [step.action for step in steps or ()]

        texts = texts_for(action.language)
        with _context_of_yes(claim, action):
            for each in actions:
                comparison = await self._executors.compare(each, render=render)
                match comparison.state:
                    case "changed":
                        text = texts.tool_changed(each.preview)
                        why = within_record(storable(redact(comparison.why)))
                        why = without_signs(as_markdown(why))
                        if why:
                            text = f"{text}\n{why}"
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
        """Run an action or plan that is stored as started, and record how it ended."""
        if action.kind == PLAN_KIND:
            return await self._run_plan(claim, action, attempt)
        if executor is None:
            outcome = no_executor_outcome(action)
            await self._repository.finish(
                claim, attempt, ActionResult("failed", outcome.outcome_text)
            )
            return outcome

        log.info("pending.started", extra={"kind": action.kind, "action": action.pending_action_id})
        end = await self._run(claim, action, executor, attempt, self._seconds_until(deadline))
        return await self._record(claim, attempt, action, end)

    def _seconds_until(self, deadline: float | None) -> float:
        """Return the seconds that an executor may take."""
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
        """Run the executor, and return how its effect ended.

        `effect` is where the effect begins; None: it has begun already.

        When this returns, the thread of a tool may still run. An effect that has not begun by then
        cannot begin any more.
        """
        ids = {"kind": action.kind, "action": action.pending_action_id}
        attributes = {tracing.PENDING: action.pending_action_id, tracing.KIND: action.kind}
        record_late = partial(self._record_late, claim, action, attempt, effect)
        try:
            with (
                _context_of_yes(claim, action, effect),
                tracing.span("execute action", attributes=attributes),
            ):
                value = await run_with_timeout(executor.run, seconds, record_late)
            end = effect_end_of(action, value)
            log.info("pending.done" if end.state == "done" else "pending.failed", extra=ids)
            return end
        except asyncio.CancelledError:
            # The lease is lost, or this worker is stopping. A thread may still run the action, so
            # its end is unknown. An effect that has not begun cannot begin any more, and the next
            # worker runs the action again.
            if _close_effect(effect):
                await asyncio.shield(self._record(claim, attempt, action, EffectEnd("unknown")))
            raise
        except TimedOut:
            # The executor goes on, and nothing waits for it: its end is unknown.
            return _end_of_timeout(effect, ids)
        except KeyboardInterrupt:
            # This reaches an action only in the caller's own thread.
            if _close_effect(effect):
                await self._record(claim, attempt, action, EffectEnd("unknown"))
            raise
        except Exception as exc:  # noqa: BLE001  # an executor is user code: its error is an outcome
            return effect_end_of(action, None, exc)

    async def _record_late(
        self,
        claim: Claim,
        action: PendingAction,
        attempt: str,
        effect: EffectStart | None,
        value: Any,
        error: BaseException | None,
    ) -> None:
        """Record the end of an executor that ended after its time was over.

        `value` is what it returned, `error` what it raised; None if it raised nothing. `effect` is
        where the effect begins; None: it had begun already.
        """
        # Before its effect, the action was recorded as failed, or another worker runs it again.
        if effect is not None and not effect.has_begun:
            return
        log.warning("pending.late", extra={"kind": action.kind, "action": action.pending_action_id})
        # An executor that itself timed out says nothing new: the end stays unknown.
        if not isinstance(error, TimedOut):
            await self._record(claim, attempt, action, effect_end_of(action, value, error))

    async def _record(
        self, claim: Claim, attempt: str, action: PendingAction, end: EffectEnd
    ) -> ConfirmOutcome:
        """Record how an effect ended, and return the outcome."""
        place = claim.scope.conversation if claim.lease else None
        result = result_to_store(action, end, place)
        await self._repository.finish(claim, attempt, result)

        effects: tuple[Effect, ...] = ()
        if end.state == "done":
            effects = (Effect(action, end.text),)
        return effect_outcome(action, end.state, result.outcome_text, end.text, effects)

    async def _run_plan(self, claim: Claim, plan: PendingAction, attempt: str) -> ConfirmOutcome:
        """Run the steps in order until one does not end well.

        Steps that an earlier worker did are not repeated.
        """
        deadline = time.monotonic() + self._timeout_seconds
        steps = await self._steps_of(claim.scope, plan)
        if steps is None:
            return await self._end_tampered_plan(claim, plan, attempt)

        effects: tuple[Effect, ...] = ()
        for step in steps:
            if time.monotonic() >= deadline:
                break
            # The yes was to the plan, which has the record of it.
            step_claim = replace(claim, action_id=step.action_id, decision=None, grants=None)
            outcome = await self._run_step(step_claim, step, plan, deadline)
            if outcome is None:
                break
            effects += outcome.effects
            if not outcome.executed:
                break

        # The records were genuine when the plan began. Only their states are read again.
        ids = tuple(step.action_id for step in steps)
        current = await self._repository.load(claim.conversation, ids)
        ended_steps: list[StoredAction] = []
        for step, now in zip(steps, current, strict=True):
            if now:
                ended = replace(step, state=now.state, outcome_text=now.outcome_text)
            else:  # Redis has lost the record since
                ended = replace(step, state="unknown")
            ended_steps.append(ended)

        text = plan_report(plan, ended_steps)
        state = plan_end_state([step.state for step in ended_steps])
        await self._repository.finish(claim, attempt, ActionResult(state, text))
        return effect_outcome(plan, state, text, text, effects)

    async def _steps_of(self, scope: Scope, plan: PendingAction) -> list[StoredAction] | None:
        """Return the steps of a plan, None if one of them is not what was shown."""
        return await load_steps(self._repository, self._signer, scope, plan)

    async def _run_step(
        self, claim: Claim, stored: StoredAction, plan: PendingAction, deadline: float
    ) -> ConfirmOutcome | None:
        """Run a step of a plan, unless an earlier worker did. None: it cannot run any more."""
        if stored.state == "done":
            effects = (Effect(stored.action, stored.result),)
            return effect_outcome(stored.action, "done", stored.outcome_text, effects=effects)
        if stored.state not in OPEN_STATES:
            return None
        return await self.confirm(claim, stored, plan=plan.pending_action_id, deadline=deadline)

    async def _end_tampered_plan(
        self, claim: Claim, plan: PendingAction, attempt: str
    ) -> ConfirmOutcome:
        """End a plan with a step that is missing, or not the one that was shown. Runs nothing more.

        The end is unknown if an earlier worker has begun any step.
        """
        log.error("pending.tampered", extra={"action": claim.action_id})
        steps = await self._repository.load(claim.conversation, step_ids(plan))
        has_begun = any(step and step.state not in ("shown", "claimed") for step in steps)
        texts = texts_for(plan.language)
        state: EndState = "failed"
        text = texts.unsafe(plan.preview)
        if has_begun:
            state = "unknown"
            text = texts.unknown(plan.preview)
        await self._repository.finish(claim, attempt, ActionResult(state, text))
        return effect_outcome(plan, state, text)

    async def _end_interrupted_plan(self, claim: Claim, plan: PendingAction) -> ConfirmOutcome:
        """End a plan whose process died, and report how all steps ended.

        The step at which it died is reconciled.
        """
        steps = await self._steps_of(claim.scope, plan) or []
        for step in steps:
            if step.state == "started":
                await self._end_interrupted(replace(claim, action_id=step.action_id), step.action)

        ended_steps = await self._steps_of(claim.scope, plan) or []
        if not ended_steps:
            text = texts_for(plan.language).unknown(plan.preview)
            return await self._end_started(claim, plan, "unknown", text)
        state = plan_end_state([step.state for step in ended_steps])
        return await self._end_started(claim, plan, state, plan_report(plan, ended_steps))

    async def _end_interrupted(self, claim: Claim, action: PendingAction) -> ConfirmOutcome:
        """End an action that an earlier worker started before it died. The action is not repeated.

        A reconciler of the tool may know how the action ended. Without one, or if it cannot tell,
        the end is unknown.
        """
        texts = texts_for(action.language)
        state: EndState
        match await self._reconcile(claim, action):
            case None:
                state = "unknown"
                text = texts.unknown(action.preview)
            case False:
                state = "failed"
                text = texts.not_done(action.preview)
            case answer:
                state = "done"
                result = ""
                if isinstance(answer, str):
                    result = result_in_words(answer)
                text = texts.done(action.preview, result)
        return await self._end_started(claim, action, state, text)

    async def _reconcile(self, claim: Claim, action: PendingAction) -> str | bool | None:
        """Return what the tool's reconciler knows of an action that was interrupted.

        True, or a text for the user: the action took effect. False: it did not. None: that is not
        known.
        """
        reconcile = self._executors.reconciler(action.kind)
        if reconcile is None:
            return None
        with _context_of_yes(claim, action):
            return await ask_reconciler(reconcile, action)

    async def _end_started(
        self, claim: Claim, action: PendingAction, state: EndState, text: str
    ) -> ConfirmOutcome:
        """Store the end of a started action that this process did not run, and return the outcome.

        Raises StaleTurn, for a worker with a lease, if the process that ran the action has stored
        its end meanwhile.
        """
        from_states: tuple[str, ...] = ("started",)
        # If "unknown" is stored already, this repeats it. Any other end that follows "unknown" must
        # come from the process that ran the action (`finish`).
        if state == "unknown":
            from_states = ("started", "unknown")
        if await self._make_transition(claim, from_states, state, text):
            return effect_outcome(action, state, text, text)

        (now,) = await self._repository.load(claim.conversation, (claim.action_id,))
        if claim.lease:
            raise StaleTurn(f"{claim.conversation}: the outcome came in just now")
        if now is None or now.state not in ("done", "failed", "unknown"):
            return effect_outcome(action, state, text, text)
        return effect_outcome(action, now.state, now.outcome_text, now.result)

    async def _end_tampered(self, claim: Claim, stored: StoredAction) -> ConfirmOutcome:
        """End an action whose record is not what the user saw.

        It is cancelled. If another process has started it, its end is unknown.
        """
        if stored.state != "started":
            return await self._cancel_tampered(claim, stored)
        log.error("pending.tampered", extra={"action": claim.action_id})
        return await self._end_started(
            claim, stored.action, "unknown", texts_for().unknown(CHANGED)
        )

    async def _cancel_tampered(self, claim: Claim, stored: StoredAction) -> ConfirmOutcome:
        """Cancel an action whose record is not what the user saw, so that it never runs.

        The text is in the default language, because that of the user is in the record.
        """
        text = texts_for().tampered()
        log.error("pending.tampered", extra={"action": claim.action_id})
        # `decide` may have cancelled the action itself: then only the text is stored.
        from_states: tuple[str, ...] = ("armed", "shown", "claimed", "cancelled")
        # Only `decide` comes here with a started action. It has started the action itself, and has
        # not run it.
        if stored.state == "started":
            from_states = (*from_states, "started")
        await self._make_transition(claim, from_states, "cancelled", text)
        return ConfirmOutcome(
            "digest_mismatch", replace(stored.action, state="cancelled"), outcome_text=text
        )

    async def _make_transition(
        self, claim: Claim, from_states: tuple[str, ...], to: ActionState, text: str
    ) -> bool:
        """Make one transition. Return False if the action was in none of `from_states`."""
        transition = Transition(claim.action_id, from_states, to, text, claim.decided_by_event)
        change = TurnChange(transition=transition)
        answer, _ = await self._repository.change(claim.conversation, change)
        return answer == "ok"


async def ask_reconciler(reconcile: Reconciler, action: PendingAction) -> str | bool | None:
    """Return what a reconciler knows of an interrupted action, None if it knows nothing.

    It may take RECONCILE_TIMEOUT. The caller opens the context of the yes, so that the reconciler
    sees the person who confirmed as the current user.
    """
    try:
        context = context_arguments(reconcile, current_context)
        answer = await run_with_timeout(lambda: reconcile(action, **context), RECONCILE_TIMEOUT)
    except Exception:
        # A reconciler is code of the bot's author. When it fails, nothing is known.
        log.exception(
            "pending.not_reconciled",
            extra={"kind": action.kind, "action": action.pending_action_id},
        )
        return None
    if isinstance(answer, str | bool):
        return answer
    return None


def _may_decide(claim: Claim, stored: StoredAction, plan: str = "") -> bool:
    """Return whether the claim may decide on a verified action.

    A step is decided only through its plan. `plan` is the id of the plan that runs the action now,
    "" outside of a plan. An undo is decided only by its button: a yes in words may be meant for a
    question.
    """
    action = stored.action
    if action.plan != plan:
        return False
    if plan:
        return True
    if claim.use is not None:
        return _is_use_for(claim, action)
    if claim.grants is not None and not _may_stand(claim, action):
        return False
    if action.approval_rule is not None:
        return _have_others_agreed(claim, stored, action.approval_rule)
    return claim.kind == "tap" or not is_undo(action)


def _is_use_for(claim: Claim, action: PendingAction) -> bool:
    """Return whether the claim uses the standing yes that the action was stored for.

    Whether that one covers the action was found out before. Here it is certain that no action with
    a code, no plan, no undo, and nothing that others decide runs under one.
    """
    use = claim.use
    if use is None or use.before.id != action.standing_yes or use.before.kind != action.kind:
        return False
    is_plain_call = not (action.code or action.approval or action.kind.startswith(RESERVED_PREFIX))
    is_booked_for_it = use.after.used[len(use.before.used) :] == (claim.action_id,)
    return is_plain_call and is_booked_for_it and len(use.after.used) <= use.before.times


def _may_stand(claim: Claim, action: PendingAction) -> bool:
    """Return whether a yes to the action may be the standing yes that the claim gives."""
    grants = claim.grants
    if grants is None or grants.id != claim.action_id or claim.kind != "tap":
        return False
    return action.standing is not None and not (action.code or action.approval)


def _have_others_agreed(claim: Claim, stored: StoredAction, rule: ApprovalRule) -> bool:
    """Return whether enough people have agreed to an action that others decide.

    Who may decide was found out before. Here it is certain that nothing runs without votes about
    exactly this record, by the word of its own user, or by one person who counts twice.
    """
    own_account = (claim.scope.conversation.channel, claim.scope.user_id)
    own_names = frozenset(stored.action.user_known_as)
    agreed = {
        vote.person
        for vote in claim.votes
        if vote.answer == "yes"
        and vote.person
        and vote.is_about(stored)
        and (vote.channel, vote.user_id) != own_account
        and own_names.isdisjoint(vote.known_as)
    }
    return len(agreed) >= rule.need


def _agrees(decision: ActionDecision, action: PendingAction) -> bool:
    """Return whether the signed record has the values that a decision expects."""
    if decision.expected_kind not in ("", action.kind):
        return False
    if decision.expected_digest not in ("", action.args_digest):
        return False
    return decision.intent != "confirm" or decision.code == action.code


def _close_effect(effect: EffectStart | None) -> bool:
    """Let an effect that has not begun never begin. Return whether it may have happened.

    `effect` is where the effect begins; None: it has begun already.
    """
    return effect is None or effect.close()


def _end_of_timeout(effect: EffectStart | None, ids: Mapping[str, str]) -> EffectEnd:
    """Return how the effect of an executor ended that took too long."""
    if _close_effect(effect):
        log.warning("pending.cut_off", extra=ids)
        return EffectEnd("unknown")
    log.warning("pending.failed", extra={**ids, "why": "it took too long before its effect"})
    return EffectEnd("failed")


def _context_of_yes(
    claim: Claim, action: PendingAction, effect: EffectStart | None = None
) -> AbstractContextManager[ChannelRun]:
    """Return a context manager: code of tools in its block sees who confirmed what, and when.

    `effect` is where the effect begins; None: it has begun already.
    """
    confirmed_at = claim.received_at or time.time()
    confirmed_by = claim.scope.user_id
    if claim.votes:
        confirmed_by = claim.votes[-1].user_id
    standing_yes = ""
    if claim.decided_by_event == standing_event_id(action.pending_action_id):
        standing_yes = action.standing_yes
    confirmation = Confirmation(
        action.pending_action_id,
        action.preview,
        confirmed_by,
        confirmed_at,
        agreed=tuple(vote.person for vote in claim.votes),
        standing_yes=standing_yes,
    )
    return confirmed_run(confirmation, claim.scope, action.language, effect)
