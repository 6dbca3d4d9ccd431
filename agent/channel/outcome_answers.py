"""OutcomeAnswers: the answers to turns that tell a person how an action has ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from sayso.agent.channel.behavior import ChannelBehavior
from sayso.agent.channel.context import TurnAnswer, TurnContext, continuation_turn, fixed_answer
from sayso.agent.channel.endings import texts_of, with_tools_already_run
from sayso.agent.channel.outcome_history import OutcomeHistory, action_ids, links_in_history
from sayso.agent.channel.questions import Questions, outcome_line
from sayso.agent.channel.stored_history import OUTCOME_TO_TELL
from sayso.agent.channel.user_messages import user_message
from sayso.agent.messages import Role
from sayso.channels.i18n.texts import brief
from sayso.channels.markdown.outcome_signs import without_own_sign
from sayso.channels.types import Media, Reply, Scope, Turn
from sayso.pending.action import PLAN_KIND, ActionState, ButtonPress, PendingAction, after_of
from sayso.pending.action_outcomes import brief_outcome
from sayso.pending.consent.asking import invites_answer
from sayso.pending.plans import Effect, is_undo
from sayso.pending.standing_yes import granted_standing_yes, standing_use_of
from sayso.pending.store import PendingActionStore
from sayso.pending.stored_action import EXECUTED_STATES, WAITING_STATES, StoredAction
from sayso.pending.turn_changes import (
    SettledAnswer,
    SettledIntent,
    Transition,
    TurnChange,
    TurnReply,
)
from sayso.pending.turns import CHOICE_KIND

#: Characters of an outcome that is repeated after a second tap.
MAX_OUTCOME_CHARS = 600

#: Runs the agent for a turn. The text is put above the reply; "" for none.
RunAgent = Callable[[TurnContext, str], Awaitable[TurnAnswer]]


class OutcomeAnswers:
    """Tells people how their actions have ended. One per channel; lives as long as its agent.

    An outcome is told once in full. It closes the message of the question, whose buttons go away,
    and it is added to the history, where the model reads it. If the agent goes on after a decision,
    another turn, the *continuation*, follows the turn that decided.

    Each answer begins with the words for the person. Further steps add to it, in this order:

    1. a check of the state (`with_state_check`), if the action was executed
    2. a button that undoes it (`Questions.offer_undo`), the first time the outcome is told
    3. a mark by which the bot recognizes a second yes or no like this one (`with_settled_answer`)
    4. the reply that closes the question (`with_closed_question`)

    The order of the last three matters. An answer that asks something gets no mark, so buttons are
    added before the mark is. The closing reply goes above the outcome, where step 2 would take it
    for the outcome, and step 3 for a part of the answer. So it is added last.

    `run_agent` runs the agent after a yes that came too late: it may propose the action again.
    """

    def __init__(
        self,
        store: PendingActionStore,
        behavior: ChannelBehavior,
        *,
        questions: Questions,
        outcomes: OutcomeHistory,
        run_agent: RunAgent,
    ) -> None:
        self._store = store
        self._behavior = behavior
        self._questions = questions
        self._outcomes = outcomes
        self._run_agent = run_agent

    async def answer_ended(
        self,
        context: TurnContext,
        stored: StoredAction,
        effects: Sequence[Effect] = (),
        intent: SettledIntent = "confirm",
        *,
        is_deciding: bool = False,
    ) -> TurnAnswer:
        """Answer a yes or no with the outcome of an action that has ended.

        `stored` is the ended action, `effects` what took effect, for which an undo is offered, and
        `intent` what the person said.

        `is_deciding`: an earlier attempt at this turn decided the action, and its worker died
        before the turn was answered. The agent has not gone on yet, so it may do so after this
        answer. If the continuation tells the outcome, this answer has no replies. The undo and the
        mark are then left to the continuation, too.
        """
        outcome = await self.outcome_text(context.turn.scope, stored)
        if stored.state == "expired" and intent == "confirm" and self.goes_on(context, stored):
            return await self.answer_late_yes(context, stored, outcome)

        answer = await self.answer_outcome(context, stored, outcome, may_go_on=is_deciding)
        answer = with_state_check(context, answer, stored.action)
        answer = self._questions.offer_undo(context, answer, effects)
        answer = with_settled_answer(answer, stored, intent)
        return await self.with_closed_question(context, answer, stored, stored.state, outcome)

    async def answer_late_yes(
        self, context: TurnContext, stored: StoredAction, outcome: str
    ) -> TurnAnswer:
        """Answer a yes that came too late: nothing was done, and the agent may propose it again.

        The answer gets no mark: the model may ask something, and a second yes may be meant for
        that. Nothing was executed, so there is no state to check and nothing to undo.
        """
        self._outcomes.write_outcome(context, stored, "expired")
        answer = await self._run_agent(context, self.as_line(stored, "expired", outcome))
        return await self.with_closed_question(context, answer, stored, "expired", outcome)

    async def answer_again(
        self, context: TurnContext, stored: StoredAction, press: ButtonPress
    ) -> TurnAnswer:
        """Answer a second tap on a question that has ended, whose outcome its person knows.

        A long outcome is not sent again as a whole. If the outcome is the last thing that the bot
        has said, the answer says nothing new: it is left out where each message costs money, and
        the tap is not added to the history.
        """
        outcome = await self.outcome_text(context.turn.scope, stored)
        is_late_yes = stored.state == "expired" and press.intent == "confirm"
        # A message is about a question that has ended only if no other question waits. A tap may
        # come while another one waits, and a model that proposes again would replace that one.
        no_question_waits = context.waiting_action is None
        if is_late_yes and no_question_waits and self.goes_on(context, stored):
            return await self.answer_late_yes(context, stored, outcome)

        text = await self._text_of_second_answer(context, stored, press, outcome)
        if _repeats_last_answer(context, stored, press):
            repeated = Reply(self.as_line(stored, stored.state, text), optional=True)
            answer = TurnAnswer(TurnChange(replies=(TurnReply(repeated),)))
        else:
            answer = await self.answer_outcome(context, stored, text)

        answer = with_state_check(context, answer, stored.action)
        # Only a tap that says the same as the first one is marked, so that a third needs no answer.
        ended_by = _intent_of_ending(stored)
        if ended_by and press.intent == ended_by:
            answer = with_settled_answer(answer, stored, ended_by)
        return await self.with_closed_question(context, answer, stored, stored.state, outcome)

    async def _text_of_second_answer(
        self, context: TurnContext, stored: StoredAction, press: ButtonPress, outcome: str
    ) -> str:
        """Return what a second tap is told about an outcome."""
        texts = texts_of(stored)
        preview = stored.action.preview
        if press.intent == "confirm" and outcome.startswith(texts.dropped(preview)):
            # The text of a dropped action says that the yes is missing. This is a yes, only too
            # late.
            return texts.cancelled(preview)
        if stored.state == "done":
            was_undone = await self._store.finished_actions.was_undone(context.turn.scope, stored)
            if not was_undone:
                return texts.already_done(preview)
        if len(outcome) > MAX_OUTCOME_CHARS:
            return brief(outcome)
        return outcome

    async def answer_expired(self, context: TurnContext, stored: StoredAction) -> TurnAnswer:
        """Answer that the time of a question is over, and close it.

        For turns that decide nothing, such as a tap on the button to change the question. There is
        no yes or no that could be repeated, so the answer gets no mark.
        """
        expired = texts_of(stored).expired(stored.action.preview)
        self._outcomes.write_outcome(context, stored, "expired")
        line = self.as_line(stored, "expired", expired)
        answer = fixed_answer(context, line, for_history=expired)
        return await self.with_closed_question(context, answer, stored, "expired", expired)

    async def answer_outcome(
        self,
        context: TurnContext,
        stored: StoredAction,
        outcome: str,
        files: Sequence[Media] = (),
        *,
        may_go_on: bool = False,
    ) -> TurnAnswer:
        """Write the outcome of an action into the history, and return the answer that tells it.

        `files` are sent after the text. `may_go_on`: the agent goes on with the request if the
        action was executed and `goes_on` says so.
        """
        # This writes the outcome as the result of the call, which a model reads. After an undo it
        # also writes the new outcome of each call that was undone. `for_history` below is what the
        # bot said about it.
        await self._outcomes.refresh(context, undo=undo_of(stored))
        if may_go_on and stored.state in EXECUTED_STATES and self.goes_on(context, stored):
            brief_text = await self._briefly(context.turn.scope, stored, outcome)
            return self.answer_and_continue(
                context, stored, with_tools_already_run(stored, brief_text), files
            )

        for_history = await self._outcomes.history_text(context, stored, outcome)
        line = self.as_line(stored, stored.state, with_tools_already_run(stored, outcome))
        if stored.decided_by_event == context.turn.event_id:
            line = self.with_standing_yes(stored, line)
        return fixed_answer(context, line, files, for_history=for_history)

    def goes_on(self, context: TurnContext, stored: StoredAction) -> bool:
        """Return whether the agent goes on after the decision about an action.

        It does if the channel or the action says "continue". It does not if the history has lost
        the call, because a model could not know what the decision was about.
        """
        # A changed record names no request that can be trusted, and another person may not have made
        # it.
        if stored.is_changed or context.turn.maybe_other_person:
            return False
        if after_of(stored.action, self._behavior.after) == "say":
            return False
        ids = action_ids(stored)
        return any(link.id in ids for link in links_in_history(context))

    def answer_and_continue(
        self, context: TurnContext, stored: StoredAction, outcome: str, files: Sequence[Media] = ()
    ) -> TurnAnswer:
        """Return the answer that tells the outcome, with the turn in which the agent goes on.

        Call it only if `goes_on` returns True.

        Where each message costs money, that turn tells the outcome. The history gets no answer of
        the bot: the model reads the outcome as the result of its call.
        """
        # Without a worker, or if another message waits, the person would wait for nothing. Files
        # need messages of their own anyway.
        may_wait = context.lease is not None and context.is_last_turn and not files
        tells_later = self._behavior.is_one_message and may_wait
        continuation = prepare_continuation(context, stored, tells_outcome=tells_later)
        if tells_later:
            context.memory.notes[OUTCOME_TO_TELL] = stored.action_id
            return TurnAnswer(TurnChange(continuation=continuation))

        state = stored.state
        if state in WAITING_STATES:  # the record is as it was before this turn's no
            state = "cancelled"
        line = self.with_standing_yes(stored, self.as_line(stored, state, outcome))
        replies = (TurnReply(Reply(line)), *(TurnReply(Reply(media=media)) for media in files))
        return TurnAnswer(TurnChange(replies=replies, continuation=continuation))

    async def with_closed_question(
        self,
        context: TurnContext,
        answer: TurnAnswer,
        stored: StoredAction,
        state: ActionState,
        outcome: str,
    ) -> TurnAnswer:
        """Return the answer below the reply that closes the question, by an edit of its message.

        `state` and `outcome` say how the action ended. Without a worker that message is not known,
        and the answer is unchanged.
        """
        if context.lease is None:
            return answer
        closing_replies = await self._questions.close(context.turn, stored, state, outcome)
        return answer.with_changes(replies=(*closing_replies, *answer.change.replies))

    async def outcome_text(self, scope: Scope, stored: StoredAction) -> str:
        """Return the stored outcome of an action that has ended, else a text for its state.

        It says what was undone since.
        """
        outcome = ""
        if stored.state in EXECUTED_STATES:
            outcome = await self._store.finished_actions.report(scope, stored)
        outcome = outcome or stored.outcome_text
        if outcome:
            return outcome

        texts = texts_of(stored)
        preview = stored.action.preview
        match stored.state:
            case "expired":
                return texts.expired(preview)
            case "cancelled" | "superseded":
                return texts.cancelled(preview)
            case "unknown":
                return texts.unknown(preview)
            case "failed":
                return texts.failed(preview)
        # It is still open, so no caller should ask. A "done" action always has a text.
        return texts.stale()

    async def outcome_to_tell(
        self, context: TurnContext, stored: StoredAction | None
    ) -> tuple[str, tuple[Effect, ...]]:
        """Return the outcome that a deciding turn left to its continuation, and what took effect.

        If the record does not exist any more, which takes days, the person is asked to check what
        was done.
        """
        if stored is None:
            return context.texts.interrupted_before(), ()
        scope = context.turn.scope
        outcome = await self.outcome_text(scope, stored)
        effects = await self._store.finished_actions.effects(scope, stored)
        text = with_tools_already_run(stored, await self._briefly(scope, stored, outcome))
        line = self.with_standing_yes(stored, self.as_line(stored, stored.state, text))
        return line, effects

    async def _briefly(self, scope: Scope, stored: StoredAction, outcome: str) -> str:
        """Return an outcome in short, for above the words of a model that has read all of it."""
        if stored.action.kind == PLAN_KIND:
            report = await self._store.finished_actions.report(scope, stored, results="brief")
            return report or outcome
        # Of a single action any other text than the stored one is short: that it was undone, or a
        # text for its state.
        if outcome != stored.outcome_text:
            return outcome
        return brief_outcome(stored)

    def as_line(self, stored: StoredAction, state: ActionState, outcome: str) -> str:
        """Return an outcome as people read it.

        If the channel or the action says "continue", the outcome begins with the sign of its state,
        so that people can tell it from the words of the model. On such a channel an action with
        "say" gets the sign as well: all outcomes of one channel look alike.

        An action that ran under a standing yes says so: its person was not asked.
        """
        use = standing_use_of(stored, self._store.signer)
        if use is not None:
            texts = texts_of(stored)
            numbers = (use.use, use.uses, use.stands_until)
            if state == "done":
                outcome = texts.done_under_standing(stored.action.preview, outcome, *numbers)
            else:
                outcome = texts.under_standing(outcome, *numbers)
        if "continue" in (self._behavior.after, stored.action.after):
            return outcome_line(state, outcome)
        return outcome

    def with_standing_yes(self, stored: StoredAction, line: str) -> str:
        """Return an outcome, and below it for how long the yes stands, if it is a standing one."""
        grant = granted_standing_yes(stored, self._store.signer)
        if grant is None:
            return line
        text = texts_of(stored).standing_granted(grant.uses, grant.stands_until)
        return f"{line}\n\n{text}"


def prepare_continuation(
    context: TurnContext, stored: StoredAction, *, tells_outcome: bool
) -> Turn:
    """Prepare the history, and return the turn in which the agent goes on after this decision.

    `tells_outcome`: that turn tells the outcome, and not this one. The history must hold the call
    of the action, as `OutcomeAnswers.goes_on` checks.
    """
    # Without other messages since the question, the history ends with the result of the call.
    # Otherwise the decision is added as the last message of the person.
    if context.memory.get_history()[-1].role is not Role.TOOL:
        context.remember([user_message(context.turn)])
    return continuation_turn(context.turn, stored.action_id, tells_outcome=tells_outcome)


def with_settled_answer(
    answer: TurnAnswer, stored: StoredAction, intent: SettledIntent
) -> TurnAnswer:
    """Return the answer with a mark: it answers this yes or no, so the same again needs no answer.

    An answer that asks something itself, offers choices, or refuses a yes gets no mark: the next
    yes may be meant for it. If the continuation tells the outcome, it also gets the mark
    (`with_answer_followed`).

    The mark of an undo has the intent "undo" in place of "confirm". Only a button confirms an undo,
    so a second tap on that button is a repetition. A written yes after it is a new message.
    """
    change = answer.change
    if change.continuation and change.continuation.tells_outcome:
        return answer

    language = stored.action.language
    preview = stored.action.preview
    texts = texts_of(stored)
    refusals = (texts.unsafe(preview), texts.tool_changed(preview))
    for turn_reply in change.replies:
        text = turn_reply.reply.text
        is_refusal = without_own_sign(text).startswith(refusals)
        if is_refusal or invites_answer(text, language):
            return answer
    if any(action.kind == CHOICE_KIND for action in change.new_actions):
        return answer
    if is_undo(stored.action):
        intent = "undo"
    return answer.with_changes(settles=SettledAnswer(intent, stored.action_id, language))


def with_answer_followed(answer: TurnAnswer, stored: StoredAction | None) -> TurnAnswer:
    """Return the answer of a continuation with a mark: a second tap then needs no answer.

    `stored` is the action that was decided. If the model proposes another action or offers choices,
    there is no mark, because a tap may be meant for that.

    With this mark only a second tap is a repetition (`words_follow`): what the person writes below
    a model's words answers the model. So the answer may ask something, and the mark of an undo has
    the intent "confirm" like any other.
    """
    if stored is None:
        return answer
    intent = _intent_of_ending(stored)
    if intent is None or answer.change.last_question or not answer.change.replies:
        return answer
    if any(action.kind == CHOICE_KIND for action in answer.change.new_actions):
        return answer
    followed = SettledAnswer(intent, stored.action_id, stored.action.language, words_follow=True)
    return answer.with_changes(settles=followed)


def _repeats_last_answer(context: TurnContext, stored: StoredAction, press: ButtonPress) -> bool:
    """Return whether the bot has said nothing else since it answered the same yes or no."""
    last = context.last_answer
    if last is None or last.action_id != stored.action_id:
        return False
    # The button of an undo says "confirm", and the mark of its answer says "undo".
    return last.intent in (press.intent, "undo")


def with_state_check(context: TurnContext, answer: TurnAnswer, action: PendingAction) -> TurnAnswer:
    """Return the answer so that its commit fails if an executed action has changed its state since.

    A call whose worker seemed dead may end late: then "unknown" becomes "failed" or "done", or
    "failed" becomes "done", and the turn is answered again with that outcome. The check is a
    transition from the state that the action has to the same state. The script then leaves the
    state and `decided_by_event` alone, and writes the outcome that is stored already.
    """
    if context.lease is None or action.state not in EXECUTED_STATES:
        return answer
    transition = Transition(
        action_id=action.pending_action_id,
        from_states=(action.state,),
        to=action.state,
        outcome_text=action.outcome or "",
        decided_by_event=context.turn.event_id,
    )
    return answer.with_changes(transition=transition)


def _intent_of_ending(stored: StoredAction) -> SettledIntent | None:
    """Return what the person said to an action that has ended; None if that did not end it."""
    if stored.state in EXECUTED_STATES:
        return "confirm"
    if stored.state != "cancelled":
        return None
    # A program, a failed message or a message about something else may have cancelled it as well:
    # the text of a no tells them apart.
    denial = texts_of(stored).cancelled(stored.action.preview)
    if stored.outcome_text.startswith(denial):
        return "cancel"
    return None


def undo_of(stored: StoredAction) -> StoredAction | None:
    """Return the action if it undoes others, else None."""
    return stored if is_undo(stored.action) else None
