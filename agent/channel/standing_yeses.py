"""StandingYeses: runs calls that a standing yes of their person covers, without a question.

A run of the agent ends with its proposal as always. If a standing yes covers it, the commit stores
the action and appends a turn of the kind `standing` in place of the question. That turn checks
everything again, books the use with the claim, and carries the action out like any other. If the
standing yes does not cover the action at that moment, the turn asks the question.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from sayso.agent.channel.confirmed_actions import ConfirmedActions
from sayso.agent.channel.context import (
    TurnAnswer,
    TurnContext,
    add_exchange,
    standing_turn,
    text_change,
)
from sayso.agent.channel.endings import cancel_with_text, cancelled_text
from sayso.agent.channel.failed_turns import FailedTurns
from sayso.agent.channel.outcome_answers import OutcomeAnswers
from sayso.agent.channel.outcome_history import OutcomeHistory
from sayso.agent.channel.questions import Questions
from sayso.pending.action import PendingAction
from sayso.pending.plans import Proposal
from sayso.pending.standing_yes import StandingUse, StandingYes, load_standing_yeses
from sayso.pending.store import PendingActionStore
from sayso.pending.stored_action import OPEN_STATES, WAITING_STATES, StoredAction
from sayso.pending.turn_changes import TurnChange

log = logging.getLogger(__name__)

#: The answer to a turn that changes nothing and says nothing.
_NOTHING = TurnAnswer(TurnChange(ended="answered_before"))


class CoveredCalls:
    """Finds the standing yes that covers a call. Lives as long as its store."""

    def __init__(self, store: PendingActionStore, questions: Questions) -> None:
        self._store = store
        self._questions = questions

    async def find(
        self, context: TurnContext, action: PendingAction, now: float, *, id_: str = ""
    ) -> StandingYes | None:
        """Return the standing yes of this person that covers a call, None if none does.

        Of several, the one that was given first. `id_`: only this one counts, "" for any. `now` is
        in Unix seconds.

        A call that may have run before, with an unknown outcome, is covered by none: its person
        must find out first.
        """
        if action.standing is None or context.turn.maybe_other_person:
            return None
        rule_now = context.channel_run.standing(action.kind)
        yeses = await load_standing_yeses(
            self._store.repository, self._store.signer, context.turn.scope, now
        )
        for yes in yeses:
            if id_ in ("", yes.id) and yes.covers(action, rule_now, now):
                if await self._questions.may_have_run(context, action):
                    return None
                return yes
        return None

    async def change_for(self, context: TurnContext, proposal: Proposal) -> TurnChange | None:
        """Return the change that lets a proposal run without a question, None to ask.

        A plan of several actions is always asked about.
        """
        if proposal.steps:
            return None
        yes = await self.find(context, proposal.head, context.received_at)
        if yes is None:
            return None
        covered = replace(proposal.head, standing_yes=yes.id)
        # The question is not sent. It is asked if the standing yes has ended when the action's turn
        # comes: then the action is stored with all that belongs to a question.
        _, (action,) = await self._questions.ask(context, Proposal(covered), "")
        # A question that stays open keeps its place: a plain yes is meant for that one.
        if _keeps_question(context):
            action = replace(action, occupies_scope=False)
        return TurnChange(
            new_actions=(action,),
            continuation=standing_turn(context.turn, covered.pending_action_id),
        )


def _keeps_question(context: TurnContext) -> bool:
    """Return whether the open question of the person stays open while their message is answered."""
    waiting = context.waiting_action
    if waiting is None or waiting.is_covered:
        return False
    kept = [action for action in context.channel_run.waiting_actions if action.approval is None]
    return bool(kept)


class StandingYeses:
    """Answers the turns of one channel that run covered calls. Lives as long as its agent."""

    def __init__(
        self,
        store: PendingActionStore,
        covered: CoveredCalls,
        *,
        questions: Questions,
        confirmed: ConfirmedActions,
        outcomes: OutcomeHistory,
        answers: OutcomeAnswers,
        failed_turns: FailedTurns,
    ) -> None:
        self._store = store
        self._covered = covered
        self._questions = questions
        self._confirmed = confirmed
        self._outcomes = outcomes
        self._answers = answers
        self._failed_turns = failed_turns

    async def answer(self, context: TurnContext) -> TurnAnswer:
        """Carry out the action of this turn, or ask about it. Raises LeaseLost and StaleTurn.

        The first row that fits counts:

        | the action                                          | the turn                          |
        |-----------------------------------------------------|-----------------------------------|
        | was carried out by an earlier attempt at this turn  | tells its outcome                 |
        | was claimed by an earlier attempt                   | goes on with it                   |
        | waits no more: its person said no, or /reset        | does nothing                      |
        | was changed in the store                            | cancels it                        |
        | waits, and its person said /stop                    | cancels it                        |
        | is covered                                          | books the use, and carries it out |
        | is not covered any more                             | asks its question                 |
        """
        stored = context.named_action
        if stored is None:  # its record is gone, which takes days after its end
            log.warning("standing.without_action", extra={"event": context.turn.event_hash})
            return _NOTHING

        is_decided_here = stored.decided_by_event == context.turn.event_id
        if is_decided_here and stored.state not in OPEN_STATES:
            effects = await self._store.finished_actions.effects(context.turn.scope, stored)
            answer = await self._answers.answer_ended(context, stored, effects, is_deciding=True)
            # The person has said nothing, so a yes that they write now repeats nothing.
            answer = answer.with_changes(settles=None)
        elif is_decided_here:
            # The use was booked with the claim: the claim is only made again.
            answer = await self._carry_out(context, stored, None)
        elif stored.state not in WAITING_STATES:
            answer = _NOTHING
        elif stored.is_changed:
            # The claim refuses and cancels it.
            answer = await self._carry_out(context, stored, None)
        elif not stored.action.standing_yes:  # a turn that was made up
            answer = _NOTHING
        elif not context.turn.asks_model:
            answer = self._cancel(context, stored, "")
        else:
            answer = await self._run_or_ask(context, stored)
        return answer.marked_about(stored)

    async def _run_or_ask(self, context: TurnContext, stored: StoredAction) -> TurnAnswer:
        """Carry out an action that waits if it is covered now, else ask its question."""
        # The present time counts, and not when the turn came in: the bot made this turn itself.
        now = max(context.received_at, stored.loaded_at)
        yes = await self._covered.find(context, stored.action, now, id_=stored.action.standing_yes)
        if yes is None:
            return await self._ask(context, stored)
        use = StandingUse.of(yes, stored.action_id, self._store.signer)
        return await self._carry_out(context, stored, use)

    async def _carry_out(
        self, context: TurnContext, stored: StoredAction, use: StandingUse | None
    ) -> TurnAnswer:
        """Carry out an action. Ask about it if the standing yes has ended just now."""
        answer = await self._confirmed.carry_out_covered(context, stored, use)
        if answer is not None:
            return answer
        conversation = context.turn.conversation.id
        (now,) = await self._store.repository.load(conversation, (stored.action_id,))
        if now is None or now.state not in WAITING_STATES:
            return _NOTHING
        return await self._ask(context, stored)

    async def _ask(self, context: TurnContext, stored: StoredAction) -> TurnAnswer:
        """Ask about an action that is stored already."""
        question, _ = await self._questions.ask(context, Proposal(stored.action), "")
        await self._questions.note_question(context.turn, question.action_id)
        log.info("standing.asked", extra={"action": stored.action_id})
        return TurnAnswer(TurnChange(replies=(question,)))

    def _cancel(self, context: TurnContext, stored: StoredAction, failure_text: str) -> TurnAnswer:
        """End an action that was not claimed. `failure_text`: why, "" if its person stopped it."""
        outcome = cancelled_text(stored)
        self._outcomes.write_outcome(context, stored, "replaced")
        line = self._answers.as_line(stored, "cancelled", outcome)
        text = "\n\n".join(filter(None, [line, failure_text]))
        add_exchange(context, text)
        transition = cancel_with_text(stored, context.turn, outcome)
        return TurnAnswer(text_change(text)).with_changes(transition=transition)

    async def give_up(self, context: TurnContext, failure_text: str) -> TurnChange:
        """Return what a turn changes that failed, took too long or was stopped.

        If it has claimed the action, its person is told the outcome. Otherwise the action ends.
        `failure_text` is "" if the turn was stopped.
        """
        decided = await self._failed_turns.settle_vote(context)
        if decided is not None:
            return decided
        stored = context.named_action
        if stored is None or stored.state not in WAITING_STATES:
            return TurnChange()
        return self._cancel(context, stored, failure_text).change
