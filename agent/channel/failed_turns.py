"""FailedTurns: what a turn that could not be answered changes.

A turn fails because of an error, takes too long, or is stopped by /stop. Its worker then commits
this change in place of the answer, so that the person knows and no action waits by accident.
"""

from __future__ import annotations

from dataclasses import replace

from sayso.agent.channel.context import TurnContext, add_exchange
from sayso.agent.channel.decide import CancelAndRun, DropAndRun, KeepAndRun, decide_after_failure
from sayso.agent.channel.endings import cancelled_transition, dropped_transition, texts_of
from sayso.agent.channel.message_reading import MessageReader
from sayso.agent.channel.outcome_answers import OutcomeAnswers, undo_of
from sayso.agent.channel.outcome_history import OutcomeHistory
from sayso.agent.channel.questions import Questions
from sayso.agent.channel.stored_history import OUTCOME_TO_TELL
from sayso.agent.channel.turn_journal import InterruptedRun
from sayso.channels.types import Reply
from sayso.pending.action import ButtonPress
from sayso.pending.store import PendingActionStore
from sayso.pending.stored_action import EXECUTED_STATES, WAITING_STATES, StoredAction
from sayso.pending.turn_changes import Transition, TurnChange, TurnReply


class FailedTurns:
    """Settles the actions of turns that failed, took too long or were stopped. One per channel.

    If the turn decided an action, that may have taken effect, and the person gets its outcome.
    Otherwise an action that waits ends, unless its question is kept.
    """

    def __init__(
        self,
        store: PendingActionStore,
        reader: MessageReader,
        *,
        questions: Questions,
        outcomes: OutcomeHistory,
        answers: OutcomeAnswers,
    ) -> None:
        self._store = store
        self._reader = reader
        self._questions = questions
        self._outcomes = outcomes
        self._answers = answers

    def decide(
        self, context: TurnContext, stored: StoredAction
    ) -> KeepAndRun | CancelAndRun | DropAndRun:
        """Return what becomes of an action that waits when its person's message has failed."""
        turn = context.turn
        facts = self._reader.facts_of(stored, turn.event_id, context.received_at)
        message = self._reader.read(
            turn,
            stored,
            facts.phase,
            seq=context.seq,
            language=context.texts.language,
        )
        return decide_after_failure(facts, message, is_stop=turn.is_stop)

    async def settle(
        self, context: TurnContext, failure_text: str, run: InterruptedRun, *, for_history: str
    ) -> TurnChange:
        """Return what the turn changes: the outcome of its action, or else `failure_text`.

        `run` is what the run of the agent had done. The history gets it, with `for_history` as the
        answer. If that is "", the history gets nothing: a command is no part of the conversation.
        """
        turn = context.turn
        open_action = await self._store.repository.load_open(turn.conversation.id, context.scope_id)
        if open_action is not None:
            open_action = open_action.verified(self._store.signer, turn.scope)
        press = None
        if turn.tap:
            press = self._store.signer.read_button(turn.tap.data, turn.scope)
        is_choice = press is not None and press.choice is not None

        if not is_choice:  # a chosen answer settles no action
            decided_action = await self._decided_action(context, open_action, press)
            if decided_action:
                return await self._outcome_of_decision(context, decided_action)

        # A failed message ends the action that waits. A chosen answer counts as a message; a tap on
        # a button of a question does not.
        transition = None
        is_message = is_choice or not turn.tap
        if open_action and open_action.state in WAITING_STATES and is_message:
            transition = self._ending(context, open_action)
        self._note_run(context, run, for_history)
        if open_action and transition:
            return await self._end(context, open_action, transition, failure_text)
        return TurnChange(replies=(TurnReply(Reply(failure_text)),))

    def _ending(self, context: TurnContext, stored: StoredAction) -> Transition | None:
        """Return the transition that ends a waiting action, None if it goes on waiting.

        The outcome is written into the history.
        """
        match self.decide(context, stored):
            case KeepAndRun():
                return None
            case CancelAndRun():
                # Not with the words of the no, which would have to pass the guardrails first: these
                # may be why the turn failed.
                self._outcomes.write_outcome(context, stored, "denied")
                return cancelled_transition(stored, context.turn)
            case DropAndRun():
                self._outcomes.write_outcome(context, stored, "replaced")
                return dropped_transition(stored, context.turn)

    async def _decided_action(
        self, context: TurnContext, open_action: StoredAction | None, press: ButtonPress | None
    ) -> StoredAction | None:
        """Return the action that the turn has decided, or whose ended question it tapped.

        Return None if there is no such action. The records are read again: the turn may have
        changed them before it failed.
        """
        turn = context.turn
        ids = tuple(stored.action_id for stored in (context.named_action, open_action) if stored)
        for record in await self._store.repository.load(turn.conversation.id, ids):
            if record is None:
                continue
            stored = record.verified(self._store.signer, turn.scope)
            # This turn decided the action, and then failed while it was carried out.
            is_decided_here = stored.decided_by_event == turn.event_id
            if is_decided_here and stored.state in ("claimed", "started"):
                return stored

            # It was carried out: by this turn, or before, and this turn is a second tap.
            is_tapped = press is not None and stored.action_id == press.action_id
            if stored.state in EXECUTED_STATES and (is_tapped or is_decided_here):
                return stored
        return None

    async def _end(
        self,
        context: TurnContext,
        stored: StoredAction,
        transition: Transition,
        failure_text: str,
    ) -> TurnChange:
        """Return the change that ends an action, with a reply that says so above `failure_text`.

        If the sender of the turn may be another person than that of the action, the reply does not
        name the action.
        """
        outcome = transition.outcome_text
        closing_replies = await self._questions.close(context.turn, stored, "cancelled", outcome)
        about_action = ""
        if not context.turn.maybe_other_person:
            about_action = self._answers.as_line(stored, "cancelled", outcome)
        text = "\n\n".join(filter(None, [about_action, failure_text]))
        replies = (*closing_replies, TurnReply(Reply(text)))
        return TurnChange(replies=replies, transition=transition)

    def _note_run(self, context: TurnContext, run: InterruptedRun, ending: str) -> None:
        """Add to the history what was asked, what the run had done, and how the turn ended."""
        if ending:
            add_exchange(context, ending, run.messages)
            self._outcomes.write_outcomes(context, run.proposed, "replaced", context.received_at)

    async def _outcome_of_decision(self, context: TurnContext, stored: StoredAction) -> TurnChange:
        """Return the change that tells the outcome of the action that the failed turn decided.

        If the action was claimed and not started, nothing was done. If it was started and has no
        end, its outcome is unknown.
        """
        turn = context.turn
        texts = texts_of(stored)
        preview = stored.action.preview
        state = stored.state
        transition = None
        match stored.state:
            case "claimed":  # it has not started
                state = "superseded"
                outcome = texts.unsafe(preview)
                self._outcomes.write_outcome(context, stored, "failed")
            case "started":
                state = "unknown"
                outcome = texts.unknown(preview)
                transition = Transition(
                    action_id=stored.action_id,
                    from_states=("started", "unknown"),
                    to="unknown",
                    outcome_text=outcome,
                    decided_by_event=turn.event_id,
                )
                self._outcomes.write_outcome(context, stored, "unknown")
            case _:
                outcome = await self._answers.outcome_text(turn.scope, stored)
        # An end that is only decided here was written into the history above. Any other is read from
        # the record, and so is what an undo did to other actions.
        undo = undo_of(stored)
        if undo or state == stored.state:
            await self._outcomes.refresh(context, undo=undo)

        continuation = None
        if self._answers.goes_on(context, stored):
            # This turn tells the outcome, and not the continuation, which may fail as well.
            continuation = self._answers.answer_and_continue(
                context, stored, outcome
            ).change.continuation
            context.memory.notes.pop(OUTCOME_TO_TELL, None)
        else:
            add_exchange(context, await self._outcomes.history_text(context, stored, outcome))
        if continuation is not None:
            continuation = replace(continuation, tells_outcome=False)

        closing_replies = await self._questions.close(turn, stored, state, outcome)
        line = Reply(self._answers.as_line(stored, state, outcome))
        return TurnChange(
            replies=(*closing_replies, TurnReply(line)),
            transition=transition,
            continuation=continuation,
        )
