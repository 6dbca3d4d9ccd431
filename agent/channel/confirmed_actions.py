"""ConfirmedActions: carries out an action after its person's yes, or cancels it after a no.

Both answer the turn with the outcome, close the message of the question, and let the agent go on
with the request where the channel wants that.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from sayso.agent.agent import Agent
from sayso.agent.channel.context import TurnAnswer, TurnContext, about_question, fixed_answer
from sayso.agent.channel.endings import (
    cancel_with_text,
    decision_of_turn,
    decision_under_standing_yes,
    denied_transition,
    texts_of,
)
from sayso.agent.channel.outcome_answers import (
    OutcomeAnswers,
    with_settled_answer,
    with_state_check,
)
from sayso.agent.channel.outcome_history import OutcomeHistory
from sayso.agent.channel.questions import Questions
from sayso.agent.channel.tool_executors import tools_of
from sayso.agent.channel.turn_files import TurnFiles
from sayso.agent.memory.extraction import in_scope
from sayso.agent.tools.environment import collect_artifacts, collect_choices
from sayso.agent.toolsets.selectors import would_show
from sayso.channels.types import Media, StepState
from sayso.pending.action import RESERVED_PREFIX
from sayso.pending.action_outcomes import ConfirmOutcome
from sayso.pending.approvals.votes import Vote
from sayso.pending.repository import Claim
from sayso.pending.standing_yes import StandingUse, StandingYes
from sayso.pending.store import PendingActionStore
from sayso.pending.stored_action import StoredAction
from sayso.pending.turn_changes import Transition

log = logging.getLogger(__name__)

#: How people see the step that a yes ran, by the status of its outcome. With any other status
#: nothing ran.
_STEP_STATES: Mapping[str, StepState] = {
    "executed": "done",
    "failed": "failed",
    "unknown": "unknown",
}


class ConfirmedActions:
    """Carries out and cancels the actions of one channel. Lives as long as its agent and store.

    `Settlement.confirm` decides what may run, and that it runs once (`sayso.pending.settlement`). A
    yes that is too late, or to a record that was tampered with, is passed to it as well: it returns
    an outcome that says so.
    """

    def __init__(
        self,
        agent: Agent,
        store: PendingActionStore,
        *,
        questions: Questions,
        files: TurnFiles,
        outcomes: OutcomeHistory,
        answers: OutcomeAnswers,
    ) -> None:
        self._agent = agent
        self._store = store
        self._questions = questions
        self._files = files
        self._outcomes = outcomes
        self._answers = answers

    async def carry_out(
        self,
        context: TurnContext,
        stored: StoredAction,
        *,
        votes: Sequence[Vote] = (),
        stands: bool = False,
    ) -> TurnAnswer:
        """Carry out an action because of this turn's yes, and answer with the outcome.

        * `votes`: of the people who agreed, if others than the user decide.
        * `stands`: the yes also counts for later calls, as the question offers.

        Raises LeaseLost and StaleTurn if the worker must stop or read the action again.
        """
        grants = None
        if stands and not stored.is_changed:
            turn = context.turn
            grants = StandingYes.of(stored, turn.scope, turn.event_id, context.received_at)
            grants = grants.sealed(self._store.signer)
        # A vote comes from a tap or names its request: it is no plain yes.
        claim = replace(
            self._claim(context, stored),
            kind="tap" if context.turn.tap or votes else "text",
            decision=decision_of_turn(context, stored, "yes", self._store.signer, grants=grants),
            votes=tuple(votes),
            grants=grants,
        )
        answer = await self._carry_out(context, stored, claim)
        return answer or fixed_answer(context, context.texts.stale())

    async def carry_out_covered(
        self, context: TurnContext, stored: StoredAction, use: StandingUse | None
    ) -> TurnAnswer | None:
        """Carry out an action under a standing yes, and answer with the outcome.

        `use`: what the claim books; None if an earlier attempt at this turn has claimed the action,
        or if its record was changed, so that it is cancelled. Return None if the claim did not win
        the action: the standing yes does not cover it any more, or another decision has it. Raises
        LeaseLost and StaleTurn.
        """
        claim = replace(self._claim(context, stored), kind="tap", use=use)
        if use is not None:
            record = decision_under_standing_yes(context, stored, use, self._store.signer)
            claim = replace(claim, decision=record)
        return await self._carry_out(context, stored, claim)

    def _claim(self, context: TurnContext, stored: StoredAction) -> Claim:
        """Return who decides, by which turn, and the proof that the worker still has its lease."""
        return Claim(
            scope=context.turn.scope,
            action_id=stored.action_id,
            decided_by_event=context.turn.event_id,
            lease=context.lease,
            seq=context.seq,
            received_at=context.received_at,
        )

    async def _carry_out(
        self, context: TurnContext, stored: StoredAction, claim: Claim
    ) -> TurnAnswer | None:
        """Carry out an action by this claim, and answer with the outcome.

        Return None if the claim did not win the action.
        """
        may_be_hidden = stored.state == "shown" or claim.use is not None
        if may_be_hidden and await self._is_hidden(context, stored):
            return await self._refuse(context, stored)

        with (
            collect_artifacts() as artifacts,
            collect_choices() as choices,
            in_scope(context.memory_scope),
        ):
            outcome = await self._confirm(context, stored, claim)
        if outcome is None:
            return None
        _log_standing(claim, outcome)
        # Without the decision of an earlier attempt, it is that of this claim.
        if claim.decision and not stored.decision and outcome.status in _STEP_STATES:
            stored = replace(stored, decision=claim.decision.to_json())

        # The files are stored first: the effect took place, so its files must not get lost.
        files = await self._files.store_after_effect(artifacts, context.turn, stored.action_id)

        # "early": the yes was written before its question was delivered. Nothing ran, and the
        # question stays open, so it has no outcome. The reply asks the question again: a yes that
        # quotes the reply is a yes to the action.
        if outcome.status == "early":
            return about_question(stored, fixed_answer(context, outcome.outcome_text, files))
        return await self._answer_outcome(context, stored, outcome, files, choices)

    async def _confirm(
        self, context: TurnContext, stored: StoredAction, claim: Claim
    ) -> ConfirmOutcome | None:
        """Claim an action and run it, and show people the step meanwhile.

        Return None if this turn may not decide the action: another decision already has it, it is
        no longer stored, a yes in words came for an undo, which only its button confirms, or a
        standing yes has ended. Raises LeaseLost and StaleTurn.
        """
        on_step = context.on_step
        if on_step is None:
            return await self._store.settlement.confirm(claim, stored)

        step_name = (stored.action.asked_by or stored.action.kind).removeprefix(RESERVED_PREFIX)
        on_step(0, step_name, "running")
        outcome = await self._store.settlement.confirm(claim, stored)
        step_state = None
        if outcome is not None:
            step_state = _STEP_STATES.get(outcome.status)
        on_step(0, step_name, step_state)
        return outcome

    async def _answer_outcome(
        self,
        context: TurnContext,
        stored: StoredAction,
        outcome: ConfirmOutcome,
        files: Sequence[Media],
        choices: Sequence[str],
    ) -> TurnAnswer:
        """Answer a yes with the outcome of its action.

        `stored` is the action before the yes. `files` and `choices` are what its tools have made
        and offered.
        """
        text = outcome.outcome_text
        state = outcome.record.state
        ended = replace(
            stored,
            state=state,
            decided_by_event=context.turn.event_id,
            outcome_text=text,
            result=outcome.result or "",
        )
        if outcome.status == "expired" and self._answers.goes_on(context, ended):
            return await self._answers.answer_late_yes(context, ended, text)

        # Each step adds to the answer: the outcome, a check of the state at the commit, buttons, a
        # mark by which a second yes is recognized, and the edit of the question's message. If the
        # tool offers choices, the next word is the person's, so the agent does not go on.
        answer = await self._answers.answer_outcome(
            context, ended, text, files, may_go_on=not choices
        )
        answer = with_state_check(context, answer, outcome.record)
        answer = self._questions.offer_undo(context, answer, outcome.effects)
        answer = self._questions.offer_choices(context, answer, choices)
        if context.turn.is_of_sender:
            answer = with_settled_answer(answer, stored, "confirm")
        return await self._answers.with_closed_question(context, answer, stored, state, text)

    async def _is_hidden(self, context: TurnContext, stored: StoredAction) -> bool:
        """Return whether the person may no longer use the action's tools.

        Their role may have changed since the question was asked.
        """
        selector = self._agent.selector
        action = stored.action
        if selector is None or action.is_expired(context.received_at):
            return False
        for tool in tools_of(action, self._agent.tools):
            if await would_show(selector, tool) == "hidden":
                return True
        return False

    async def _refuse(self, context: TurnContext, stored: StoredAction) -> TurnAnswer:
        """Cancel an action whose yes is refused, because its tool is hidden from the person now."""
        refusal = texts_of(stored).unsafe(stored.action.preview)
        # The model reads "replaced": it was not carried out. "failed" would say that it ran, and
        # "denied" that the person said no.
        self._outcomes.write_outcome(context, stored, "replaced")
        line = self._answers.as_line(stored, "cancelled", refusal)
        answer = fixed_answer(context, line, for_history=refusal)
        transition = cancel_with_text(stored, context.turn, refusal)
        return await self._with_cancelled(context, answer, stored, transition)

    async def cancel(
        self,
        context: TurnContext,
        stored: StoredAction,
        *,
        outcome: str = "",
        decided_by: str = "",
        words: str = "",
    ) -> TurnAnswer:
        """End an action because of a no. The agent goes on where the channel lets it.

        * `outcome`: what the person reads; "" for the text after a no of their own.
        * `decided_by`: the names of the people who said no in their place; "" for the person.
        * `words`: why they said no; "" if they did not say.
        """
        if outcome:
            transition = cancel_with_text(stored, context.turn, outcome)
        else:
            transition = denied_transition(context, stored, self._store.signer)
        outcome = transition.outcome_text
        self._outcomes.write_outcome(context, stored, "denied", words=words, decided_by=decided_by)
        if self._answers.goes_on(context, stored):
            answer = self._answers.answer_and_continue(context, stored, outcome)
        else:
            line = self._answers.as_line(stored, "cancelled", outcome)
            answer = fixed_answer(context, line, for_history=outcome)
        if context.turn.is_of_sender:
            answer = with_settled_answer(answer, stored, "cancel")
        return await self._with_cancelled(context, answer, stored, transition)

    async def _with_cancelled(
        self,
        context: TurnContext,
        answer: TurnAnswer,
        stored: StoredAction,
        transition: Transition,
    ) -> TurnAnswer:
        """Return the answer with the transition that cancels the action and its closed question."""
        answer = answer.with_changes(transition=transition)
        return await self._answers.with_closed_question(
            context, answer, stored, "cancelled", transition.outcome_text
        )


def _log_standing(claim: Claim, outcome: ConfirmOutcome) -> None:
    """Log that a yes stands from now on, or that a standing yes was used."""
    if outcome.status not in _STEP_STATES:
        return
    ids = {"kind": outcome.record.kind, "action": claim.action_id}
    if claim.grants is not None:
        log.info("standing.granted", extra={**ids, "uses": claim.grants.times})
    if claim.use is not None:
        use = len(claim.use.after.used)
        log.info("standing.used", extra={**ids, "standing_yes": claim.use.before.id, "use": use})
