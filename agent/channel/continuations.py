"""Continuations: the turns in which the agent goes on after an action was decided.

The turn of a yes or a no is over once the outcome is stored. If the agent goes on with the request,
it does so in another turn, the *continuation*, which has no message of a person. The deciding turn
appends it to the mailbox in the same commit. So it is not lost, and if its worker dies, the effect
is not repeated.

Who tells the person the outcome? Usually the deciding turn. Where each message costs money, the
outcome and what the model says next are one message: then the continuation tells it, or the answer
to another message that came in before the continuation (`with_outcome_to_tell`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager, nullcontext
from itertools import takewhile
from typing import Any

from sayso.agent.channel.context import (
    TurnAnswer,
    TurnContext,
    add_exchange,
    fixed_answer,
    paragraphs,
    text_change,
)
from sayso.agent.channel.decide import decide_continuation
from sayso.agent.channel.other_messages import OtherMessages
from sayso.agent.channel.outcome_answers import OutcomeAnswers, with_answer_followed
from sayso.agent.channel.outcome_history import OutcomeHistory, action_ids
from sayso.agent.channel.questions import Questions
from sayso.agent.channel.stored_history import OUTCOME_TOLD_EARLIER, OUTCOME_UNREAD
from sayso.agent.channel.turn_journal import InterruptedRun
from sayso.agent.channel.user_messages import user_message
from sayso.agent.messages import Role
from sayso.agent.run.pause import RunCounts, open_actions, run_counts_of
from sayso.agent.tools.previews import literal
from sayso.infra.concurrency import has_no_loop
from sayso.infra.ids import random_id
from sayso.pending.plans import Effect
from sayso.pending.store import PendingActionStore
from sayso.pending.turn_changes import TurnChange

#: How long an outcome waits for what the model says next, where both are one message, in seconds.
#: After that the person gets the outcome, with a note that the rest is missing.
OUTCOME_SECONDS = 30.0

#: Lets a paused run of the agent go on. The counts are those of the run that waited.
ContinueRun = Callable[[TurnContext, RunCounts], Awaitable[TurnAnswer]]


class Continuations:
    """Answers the continuations of one channel. Lives as long as its agent and store."""

    def __init__(
        self,
        store: PendingActionStore,
        *,
        questions: Questions,
        outcomes: OutcomeHistory,
        answers: OutcomeAnswers,
        other_messages: OtherMessages,
        continue_run: ContinueRun,
    ) -> None:
        self._store = store
        self._questions = questions
        self._outcomes = outcomes
        self._answers = answers
        self._other_messages = other_messages
        self._continue_run = continue_run

    async def go_on(self, context: TurnContext) -> TurnAnswer:
        """Let the agent go on with the request, unless there is nothing to go on with.

        If this turn has to tell the outcome, the outcome stands above what the model says, and the
        model gets OUTCOME_SECONDS. Raises TimeoutError after that: the worker then calls `give_up`,
        which tells the outcome alone.
        """
        stored = context.named_action
        outcome, effects = await self._outcome_to_tell(context)
        ids = action_ids(stored) if stored else frozenset()
        counts = run_counts_of(context.memory, ids)
        # Where others decide, other messages are answered meanwhile. None of these answers knew the
        # outcome. With a question of the person's own open, the agent waits for that answer.
        is_unread = context.memory.notes.pop(OUTCOME_UNREAD, "") == context.turn.continues
        is_answered = has_answer(context, ids, counts)
        if is_unread and context.waiting_action is None:
            is_answered = False
        step = decide_continuation(
            is_answered=is_answered,
            is_stopped=not context.turn.asks_model,
            has_record=stored is not None,
        )
        match step:
            case "answered_before":
                answer = TurnAnswer(TurnChange(ended="answered_before"))
            case "stopped":
                add_exchange(context, context.texts.stopped())
                answer = TurnAnswer(TurnChange(ended="stopped"))
            case "record_lost":
                answer = fixed_answer(context, context.texts.rest_missing())
            case "go_on":
                answer = await self._run(context, counts, has_deadline=bool(outcome))
        answer = self._questions.with_outcome(context, answer, outcome, effects).marked_about(
            stored
        )
        return with_answer_followed(answer, stored)

    async def _run(
        self, context: TurnContext, counts: RunCounts | None, *, has_deadline: bool
    ) -> TurnAnswer:
        """Let the run of the agent go on. `counts`: of the run that waited, None for a new run."""
        stored = context.named_action
        if stored and stored.state == "cancelled":
            # The model cannot propose again what was just refused.
            refused_actions = await self._other_messages.refused_by_no(context.turn.scope, stored)
            context.channel_run.denied_actions += refused_actions
        # The history may end with an answer that no model wrote, such as the one to a second tap. A
        # model answers only a message of a user, so one is added: the request goes on.
        if context.memory.get_history()[-1].role is Role.ASSISTANT:
            context.remember([user_message(context.turn)])

        limit: AbstractAsyncContextManager[Any] = nullcontext()
        if has_deadline and not has_no_loop.get():
            limit = asyncio.timeout(OUTCOME_SECONDS)
        async with limit:
            return await self._continue_run(context, counts or RunCounts(random_id(), 0))

    async def give_up(
        self, context: TurnContext, run: InterruptedRun, *, is_stopped: bool
    ) -> TurnChange:
        """Return what a continuation changes that failed, took too long or was stopped.

        The outcome of the action is certain, and stays. The person is told that the rest is
        missing, unless they stopped it (`is_stopped`), and the outcome if this turn has to tell it.
        `run` is what the run of the agent had done.
        """
        texts = context.texts
        outcome, effects = await self._outcome_to_tell(context)
        unknown = [texts.unknown(literal(call.tool_name)) for call in run.unknown_outcomes]
        missing = "" if is_stopped else texts.rest_missing()

        stored = context.named_action
        ids = action_ids(stored) if stored else frozenset()
        if not has_answer(context, ids, run_counts_of(context.memory, ids)):
            text = paragraphs([*unknown, missing or texts.stopped()])
            add_exchange(context, text, run.messages)
            self._outcomes.write_outcomes(context, run.proposed, "replaced", context.received_at)
        answer = TurnAnswer(text_change(paragraphs([*unknown, missing])))
        return self._questions.with_outcome(context, answer, outcome, effects).change

    async def with_outcome_to_tell(
        self, context: TurnContext, answer: TurnAnswer, action_id: str
    ) -> TurnAnswer:
        """Return the answer to a message below an outcome that its continuation would have told.

        The message came in while the action was carried out, so it is answered before the
        continuation. That does not tell the outcome again.
        """
        conversation = context.turn.conversation.id
        (stored,) = await self._store.repository.load(conversation, (action_id,))
        if stored is not None:
            stored = stored.verified(self._store.signer, context.turn.scope)
        outcome, effects = await self._answers.outcome_to_tell(context, stored)
        context.memory.notes[OUTCOME_TOLD_EARLIER] = action_id
        return self._questions.with_outcome(context, answer, outcome, effects)

    async def _outcome_to_tell(self, context: TurnContext) -> tuple[str, tuple[Effect, ...]]:
        """Return the outcome that a continuation has to tell, and what took effect.

        The outcome is "" if the deciding turn or another one has told it.
        """
        turn = context.turn
        told_action_id = context.memory.notes.pop(OUTCOME_TOLD_EARLIER, "")
        if not turn.tells_outcome or told_action_id == turn.continues:
            return "", ()
        return await self._answers.outcome_to_tell(context, context.named_action)


def has_answer(context: TurnContext, decided: Collection[str], counts: RunCounts | None) -> bool:
    """Return whether a model has answered since the decision, so that no run waits to go on.

    `decided`: the ids of the actions that were decided. `counts`: of the run that waited for them,
    None once another run has ended. A question about another action is an answer, too.
    """
    history = context.memory.get_history()
    if not history:  # it was deleted since
        return True
    last_results = takewhile(lambda message: message.role is Role.TOOL, reversed(history))
    asks_something_else = not set(open_actions(last_results)).issubset(decided)
    if asks_something_else:
        return True
    return history[-1].role is Role.ASSISTANT and counts is None
