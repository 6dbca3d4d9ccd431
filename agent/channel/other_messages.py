"""OtherMessages: lets the model answer a message that is more than a yes or a no.

Such a message either leaves the open question open, or ends its action: as *dropped*, because it is
about something else, or as *denied*, because it says no with more words.
"""

from __future__ import annotations

from sayso.agent.agent import Agent
from sayso.agent.channel.context import TurnAnswer, TurnContext
from sayso.agent.channel.endings import (
    cancelled_or_expired_transition,
    denied_transition,
    dropped_text,
)
from sayso.agent.channel.outcome_answers import OutcomeAnswers, RunAgent
from sayso.agent.channel.outcome_history import OutcomeHistory
from sayso.agent.channel.question_repeats import QuestionRepeats
from sayso.agent.run.state import WITHHELD
from sayso.channels.types import Reply, Scope, Turn
from sayso.pending.action import PLAN_KIND, PendingAction
from sayso.pending.plans import step_ids
from sayso.pending.store import PendingActionStore
from sayso.pending.stored_action import StoredAction
from sayso.pending.turn_changes import TurnReply


class OtherMessages:
    """Answers messages that the model has to read while an action waits.

    One per channel; lives as long as its agent and store. What the model may propose in such a turn
    depends on the action: what was just refused cannot be proposed again, and what waits already is
    not proposed a second time.
    """

    def __init__(
        self,
        agent: Agent,
        store: PendingActionStore,
        *,
        repeats: QuestionRepeats,
        outcomes: OutcomeHistory,
        answers: OutcomeAnswers,
        run_agent: RunAgent,
    ) -> None:
        self._agent = agent
        self._store = store
        self._repeats = repeats
        self._outcomes = outcomes
        self._answers = answers
        self._run_agent = run_agent

    async def run(self, context: TurnContext) -> TurnAnswer:
        """Answer a message while no action waits."""
        return await self._run_agent(context, "")

    async def keep_and_run(self, context: TurnContext, stored: StoredAction) -> TurnAnswer:
        """Answer a message about something else while the question stays open.

        If the model proposes the same again, it reads that this waits already, and the question is
        repeated. If it proposes something else, the new question replaces the open one, because a
        person has at most one open question in a conversation.
        """
        context.channel_run.waiting_actions += await self.actions_of(context.turn.scope, stored)
        answer = await self._run_agent(context, "")
        # A covered action asks nothing: its turn is on its way, and a new question does not end it.
        is_question = not stored.is_covered
        if is_question and any(action.occupies_scope for action in answer.change.new_actions):
            return await self._with_replaced_question(context, answer, stored)
        if not context.channel_run.asks_for_waiting or not is_question:
            return answer
        question = self._repeats.explained(context, stored)
        repeated = TurnReply.about_question(question, stored.action_id)
        return answer.with_changes(replies=(*answer.change.replies, repeated))

    async def _with_replaced_question(
        self, context: TurnContext, answer: TurnAnswer, stored: StoredAction
    ) -> TurnAnswer:
        """Return the answer with its new question, below the text that ends the earlier one."""
        transition = cancelled_or_expired_transition(context, stored, dropped_text(stored))
        self._outcomes.write_outcome(context, stored, "replaced")
        line = self._answers.as_line(stored, transition.to, transition.outcome_text)
        replies = (TurnReply(Reply(line)), *answer.change.replies)
        answer = answer.with_changes(replies=replies, transition=transition)
        return await self._answers.with_closed_question(
            context, answer, stored, transition.to, transition.outcome_text
        )

    async def drop_and_run(self, context: TurnContext, stored: StoredAction) -> TurnAnswer:
        """End the action because of a message about something else, and answer the message.

        The person is told that the action ended, unless its time was over before.
        """
        transition = cancelled_or_expired_transition(context, stored, dropped_text(stored))
        if transition.to == "cancelled":
            self._outcomes.write_outcome(context, stored, "replaced")
            preface = self._answers.as_line(stored, "cancelled", transition.outcome_text)
        else:
            self._outcomes.write_outcome(context, stored, "expired")
            preface = ""
        answer = await self._run_agent(context, preface)
        answer = answer.with_changes(transition=transition)
        return await self._answers.with_closed_question(
            context, answer, stored, transition.to, transition.outcome_text
        )

    async def cancel_and_run(self, context: TurnContext, stored: StoredAction) -> TurnAnswer:
        """End the action because of a no with more words, say so, and answer the message.

        The model reads the words, and cannot propose the same again in this turn.
        """
        words = await self._checked_words(context.turn)
        self._outcomes.write_outcome(context, stored, "denied", words=words)
        transition = denied_transition(context, stored, self._store.signer)
        outcome = transition.outcome_text
        context.channel_run.denied_actions += await self.actions_of(context.turn.scope, stored)
        preface = self._answers.as_line(stored, "cancelled", outcome)
        answer = await self._run_agent(context, preface)
        answer = answer.with_changes(transition=transition)
        return await self._answers.with_closed_question(
            context, answer, stored, "cancelled", outcome
        )

    async def _checked_words(self, turn: Turn) -> str:
        """Return the words of a no as the guardrails pass them, for the result of the call.

        The model reads the message itself in this form, too.
        """
        guardrails = self._agent.config.guardrails
        if guardrails is None:
            return turn.text
        check = await guardrails.acheck_input(turn.text)
        return check.content if check.passed else WITHHELD

    async def actions_of(self, scope: Scope, stored: StoredAction) -> list[PendingAction]:
        """Return an action, or the steps of a plan."""
        if stored.action.kind != PLAN_KIND:
            return [stored.action]
        return await self._read(scope, step_ids(stored.action))

    async def refused_by_no(self, scope: Scope, stored: StoredAction) -> list[PendingAction]:
        """Return what a plain no refuses: the action, or the steps of a plan.

        If its person has changed the values of a call, the call before the change counts as well:
        they did not want that one either.
        """
        refused_actions: list[PendingAction] = []
        actions = await self.actions_of(scope, stored)
        while actions:
            refused_actions += actions
            ids_before = tuple(each.changes_of for each in actions if each.changes_of)
            actions = []
            if ids_before:
                actions = await self._read(scope, ids_before)
        return refused_actions

    async def _read(self, scope: Scope, ids: tuple[str, ...]) -> list[PendingAction]:
        """Return the actions with these ids that are still stored."""
        records = await self._store.repository.load(scope.conversation.id, ids)
        signer = self._store.signer
        return [record.verified(signer, scope).action for record in records if record]
