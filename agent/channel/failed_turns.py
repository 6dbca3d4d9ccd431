"""FailedTurns: what a turn that could not be answered changes.

A turn fails because of an error, takes too long, or is stopped by /stop. Its worker then commits
this change in place of the answer, so that the person knows and no action waits by accident.
"""

from __future__ import annotations

from sayso.agent.channel.context import TurnContext, add_exchange, paragraphs
from sayso.agent.channel.decide import CancelAndRun, DropAndRun, KeepAndRun, decide_after_failure
from sayso.agent.channel.endings import denied_transition, dropped_transition, texts_of
from sayso.agent.channel.message_reading import MessageReader
from sayso.agent.channel.outcome_answers import OutcomeAnswers, prepare_continuation, undo_of
from sayso.agent.channel.outcome_history import OutcomeHistory
from sayso.agent.channel.questions import Questions
from sayso.agent.channel.turn_journal import InterruptedRun
from sayso.channels.types import Reply
from sayso.pending.action import ActionState, ButtonPress
from sayso.pending.store import PendingActionStore
from sayso.pending.stored_action import EXECUTED_STATES, WAITING_STATES, StoredAction
from sayso.pending.turn_changes import Transition, TurnChange, TurnReply


class FailedTurns:
    """Settles the actions of turns that failed, took too long or were stopped. One per channel.

    If the turn decided an action, that may have taken effect, and the person gets its outcome.
    Otherwise an action that waits ends, unless its question is kept (`decide_after_failure`).
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
        """Return what becomes of an action that waits when its person's message has failed.

        The agent does not run here: of the decision, only the part about the action counts.
        """
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
        answer; if that is "", the history gets nothing: a command is no part of the conversation.
        A turn that decides an action runs no agent, so with an outcome both are left out.
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
                return await self._tell_outcome(context, decided_action)

        # A failed message ends the action that waits. A chosen answer counts as a message; a tap on
        # a button of a question does not.
        transition = None
        is_message = is_choice or not turn.tap
        if open_action and open_action.state in WAITING_STATES and is_message:
            transition = self._end_waiting(context, open_action)
        self._note_run(context, run, for_history)
        if open_action and transition:
            return await self._end(context, open_action, transition, failure_text)
        return TurnChange(replies=(TurnReply(Reply(failure_text)),))

    async def settle_vote(self, context: TurnContext) -> TurnChange | None:
        """Return what a failed turn changes in which other people decide about an action.

        None if the turn has not decided the action: then nothing of it has taken effect.
        """
        decided_action = await self._decided_action(context, None, None)
        if decided_action is None:
            return None
        return await self._tell_outcome(context, decided_action)

    def _end_waiting(self, context: TurnContext, stored: StoredAction) -> Transition | None:
        """Return the transition that ends a waiting action, None if it goes on waiting.

        The result of its call in the history becomes the outcome.
        """
        match self.decide(context, stored):
            case KeepAndRun():
                return None
            case CancelAndRun():
                # The model does not read the words of the person's no here: they would have to pass
                # the guardrails first, which may be why the turn failed.
                self._outcomes.write_outcome(context, stored, "denied")
                return denied_transition(context, stored, self._store.signer)
            case DropAndRun():
                self._outcomes.write_outcome(context, stored, "replaced")
                return dropped_transition(stored, context.turn)

    async def _decided_action(
        self, context: TurnContext, open_action: StoredAction | None, press: ButtonPress | None
    ) -> StoredAction | None:
        """Return the action that this turn has decided, None if it decided none.

        The same goes for a second tap on the question of an action that was carried out before: it
        gets the outcome, too. `press` is what the tapped button says, and `open_action` the
        person's action, read from the store after the failure.
        """
        turn = context.turn
        tapped_action = None
        if context.named_action:
            # It was read before the turn, which may have changed it.
            tapped_id = context.named_action.action_id
            (tapped_action,) = await self._store.repository.load(turn.conversation.id, (tapped_id,))
        for record in (tapped_action, open_action):
            if record is None:
                continue
            stored = record.verified(self._store.signer, turn.scope)
            is_decided_here = stored.decided_by_event == turn.event_id
            if is_decided_here and stored.state in ("claimed", "started"):
                return stored

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
        text = paragraphs([about_action, failure_text])
        replies = (*closing_replies, TurnReply(Reply(text)))
        return TurnChange(replies=replies, transition=transition)

    def _note_run(self, context: TurnContext, run: InterruptedRun, ending: str) -> None:
        """Add to the history what was asked, what the run had done, and how the turn ended."""
        if ending:
            add_exchange(context, ending, run.messages)
            self._outcomes.write_outcomes(context, run.proposed, "replaced", context.received_at)

    async def _tell_outcome(self, context: TurnContext, stored: StoredAction) -> TurnChange:
        """Return the change that tells the outcome of an action that the turn decided or tapped.

        The failure is not told: the person gets what they asked for.
        """
        turn = context.turn
        # First the history gets what the records say, also what an undo did to other actions. Then
        # `_end_unfinished` writes what they do not say yet.
        await self._outcomes.refresh(context, undo=undo_of(stored))
        transition = self._end_unfinished(context, stored)
        if transition:
            state = transition.to
            outcome = transition.outcome_text
        else:
            state = stored.state
            outcome = await self._answers.outcome_text(turn.scope, stored)

        # After a second tap the agent does not go on: the turn that decided has seen to that.
        continuation = None
        is_decided_here = stored.decided_by_event == turn.event_id
        if is_decided_here and self._answers.goes_on(context, stored):
            # The continuation may fail as well, so this turn tells the outcome.
            continuation = prepare_continuation(context, stored, tells_outcome=False)
        else:
            add_exchange(context, await self._outcomes.history_text(context, stored, outcome))

        closing_replies = await self._questions.close(turn, stored, state, outcome)
        text = self._answers.as_line(stored, state, outcome)
        if is_decided_here:
            text = self._answers.with_standing_yes(stored, text)
        line = Reply(text)
        return TurnChange(
            replies=(*closing_replies, TurnReply(line)),
            transition=transition,
            continuation=continuation,
        )

    def _end_unfinished(self, context: TurnContext, stored: StoredAction) -> Transition | None:
        """Return the transition that ends an action which this turn decided and did not finish.

        Return None for an action that has ended. The result of its call in the history becomes the
        outcome. The commit would end such an action in the same state (`commit.lua`), but without
        the text that a second answer gets.
        """
        texts = texts_of(stored)
        to: ActionState
        match stored.state:
            case "claimed":
                # Its effect has certainly not begun.
                to = "superseded"
                outcome_text = texts.unsafe(stored.action.preview)
                self._outcomes.write_outcome(context, stored, "failed")
            case "started":
                to = "unknown"
                outcome_text = texts.unknown(stored.action.preview)
                self._outcomes.write_outcome(context, stored, "unknown")
            case _:
                return None
        return Transition(
            action_id=stored.action_id,
            from_states=(stored.state,),
            to=to,
            outcome_text=outcome_text,
            decided_by_event=context.turn.event_id,
        )
