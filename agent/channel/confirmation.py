"""ConfirmationHandler: does what `decide` says a message or a tap means for an action.

`decide.py` has the tables of all cases. Here each decision is carried out: `_act` for messages,
`answer_tap` for buttons and forms. Both name every decision, so that mypy finds a missing one.
"""

from __future__ import annotations

from dataclasses import replace

from sayso.agent.channel.confirmed_actions import ConfirmedActions
from sayso.agent.channel.context import (
    NO_ANSWER,
    TurnAnswer,
    TurnContext,
    about_question,
    fixed_answer,
)
from sayso.agent.channel.decide import (
    AnswerAlone,
    AskAgain,
    BeginChange,
    ButtonTap,
    Cancel,
    CancelAndRun,
    CarryOut,
    CarryOutAndStand,
    Choose,
    DropAndRun,
    Explain,
    KeepAndRun,
    LeaveOpen,
    MessageDecision,
    MessageReading,
    RefuseYes,
    RejectButton,
    SayExpired,
    SayRunning,
    StaySilent,
    TakeField,
    TakeForm,
    TellAgain,
    TellOutcome,
    decide,
    decide_tap,
    tap_phase_of,
)
from sayso.agent.channel.endings import texts_of
from sayso.agent.channel.message_reading import MessageReader, repeats_request
from sayso.agent.channel.other_messages import OtherMessages
from sayso.agent.channel.outcome_answers import OutcomeAnswers
from sayso.agent.channel.question_repeats import QuestionRepeats
from sayso.agent.channel.questions import Questions
from sayso.agent.channel.value_changes import ChangeHandler
from sayso.agent.tools.previews import literal
from sayso.channels.types import Turn, for_sender_of
from sayso.pending.action import ButtonPress
from sayso.pending.repository import ActionDecision
from sayso.pending.store import PendingActionStore
from sayso.pending.stored_action import StoredAction
from sayso.pending.turns import CHOICE_KIND


class ConfirmationHandler:
    """Answers the turns of one channel that are about an action. Lives as long as its agent.

    It reads the values that a decision needs, asks `decide` or `decide_tap`, and acts on the
    decision. Each part does one kind of answer: `repeats` says an open question again, `changes`
    changes its values, `confirmed` carries out or cancels the action, `other_messages` lets the
    model answer, `answers` tells how an action ended, `questions` has the buttons.
    """

    def __init__(
        self,
        store: PendingActionStore,
        reader: MessageReader,
        *,
        questions: Questions,
        repeats: QuestionRepeats,
        changes: ChangeHandler,
        confirmed: ConfirmedActions,
        other_messages: OtherMessages,
        answers: OutcomeAnswers,
    ) -> None:
        self._store = store
        self._reader = reader
        self._questions = questions
        self._repeats = repeats
        self._changes = changes
        self._confirmed = confirmed
        self._other_messages = other_messages
        self._answers = answers

    async def answer_message(self, context: TurnContext, stored: StoredAction) -> TurnAnswer | None:
        """Answer a message of a person who has an action.

        Return None if the message is not about the action and does not end it: the caller answers
        it as if there were no action.
        """
        facts = self._reader.facts_of(stored, context.turn.event_id, context.received_at)
        message = self._reader.read(
            context.turn,
            stored,
            facts.phase,
            seq=context.seq,
            language=context.texts.language,
            takes_field=self._changes.takes_message(context, stored, facts.phase),
            repeats_request=facts.phase == "open" and repeats_request(context, stored),
            needs_text=context.returns_text,
        )
        return await self._act(context, stored, decide(facts, message))

    async def _act(
        self, context: TurnContext, stored: StoredAction, decision: MessageDecision
    ) -> TurnAnswer | None:
        """Do what was decided about a message. Return None for `AnswerAlone`."""
        match decision:
            case CarryOut():
                return await self._confirmed.carry_out(context, stored)
            case Cancel():
                return await self._confirmed.cancel(context, stored)
            case RefuseYes(obstacle):
                return self._repeats.refuse_yes(context, stored, obstacle)
            case AskAgain():
                return self._repeats.ask_again(context, stored)
            case Explain(is_brief):
                return self._repeats.explain(context, stored, is_brief=is_brief)
            case TakeField():
                return await self._changes.take_message(context, stored)
            case SayExpired():
                self._changes.stop_asking(context)
                return await self._answers.answer_expired(context, stored)
            case CancelAndRun():
                return await self._other_messages.cancel_and_run(context, stored)
            case KeepAndRun():
                return await self._other_messages.keep_and_run(context, stored)
            case DropAndRun():
                return await self._other_messages.drop_and_run(context, stored)
            case StaySilent():
                return NO_ANSWER
            case TellOutcome(intent):
                self._changes.stop_asking(context)
                return await self._answers.answer_ended(context, stored, intent=intent)
            case AnswerAlone():
                return None

    async def answer_tap(self, context: TurnContext) -> TurnAnswer:
        """Answer a tap on a button, or a filled-in form.

        A button decides only about its own action, and only for the person to whom it was shown.
        """
        press = self._read_press(context.turn)
        # While a person changes the values of a question one by one, buttons below each request
        # offer values.
        field_answer = await self._changes.take_tap(context, press)
        if field_answer:
            return field_answer

        # A genuine button whose action is gone, after Redis has lost data: its question was lost.
        stored = context.named_action or context.open_action
        if press and stored is None and context.lost_at:
            return self.answer_lost_question(context)
        if press is None or stored is None or stored.action_id != press.action_id:
            return self._reject_button(context)

        phase = tap_phase_of(stored, context.received_at)
        tap = _tap(context.turn, stored, press)
        match decide_tap(phase, stored.action.code, tap):
            case Choose():
                return await self._choose(context, stored, press)
            case TellAgain():
                return await self._answers.answer_again(context, stored, _as_yes_or_no(press))
            case CarryOut() | CarryOutAndStand() as decision:
                stands = isinstance(decision, CarryOutAndStand)
                return await self._confirmed.carry_out(context, stored, stands=stands)
            case Cancel():
                return await self._confirmed.cancel(context, stored)
            case RefuseYes(obstacle):
                return self._repeats.refuse_yes(context, stored, obstacle)
            case SayRunning():
                running = texts_of(stored).status_running(stored.action.preview)
                return fixed_answer(context, running)
            case SayExpired():
                return await self._answers.answer_expired(context, stored)
            case TakeForm():
                return await self._changes.take_form(context, stored, context.turn.form)
            case BeginChange():
                return await self._changes.begin(context, stored)
            case LeaveOpen():
                return await self._leave_open(context, stored)
            case RejectButton():
                return self._reject_button(context)

    async def withdraw(self, context: TurnContext, stored: StoredAction) -> TurnAnswer:
        """Cancel an action that others decide, because its own person does not want it any more."""
        return await self._confirmed.cancel(context, stored)

    def _read_press(self, turn: Turn) -> ButtonPress | None:
        """Return what the turn's button says.

        Return None if the turn has no button, or one that was not issued for this person in this
        conversation.
        """
        if turn.tap is None:
            return None
        press = self._store.signer.read_button(turn.tap.data, turn.scope)
        # Only the button to change a question opens a form. With another one, the form is forged.
        if press and turn.kind == "form" and press.intent != "change":
            return None
        return press

    async def _leave_open(self, context: TurnContext, stored: StoredAction) -> TurnAnswer:
        """Leave a question open after a tap on "ignore", for `ignore_ttl_seconds` at most.

        In this time the person may still say yes; then the question expires.
        """
        decision = ActionDecision(
            context.turn.scope,
            "ignore",
            context.turn.event_id,
            expected_id=stored.action_id,
            ignore_seconds=self._store.ignore_ttl_seconds,
        )
        verdict, _ = await self._store.repository.decide(decision)
        if verdict == "expired":  # by the store's own clock
            return await self._answers.answer_expired(context, stored)
        ignored = texts_of(stored).ignored(stored.action.preview)
        return about_question(stored, fixed_answer(context, ignored))

    async def _choose(
        self, context: TurnContext, offer: StoredAction, press: ButtonPress
    ) -> TurnAnswer:
        """Answer a tap on an offered answer as a message with its words.

        An offer is stored as an action of the kind CHOICE_KIND, which runs nothing. Only one of its
        answers can be chosen, once. `press.choice` is the index of the tapped one.
        """
        place = press.choice
        turn = context.turn
        # A button of an offer for another kind of action, or the other way round, was made up: our
        # own buttons always fit.
        if place is None or offer.action.kind != CHOICE_KIND:
            return fixed_answer(context, context.texts.stale())

        offer = await self._questions.take_choice(context, offer, place)
        if offer.state != "done":
            answer = fixed_answer(context, context.texts.stale())
            return await self._answers.with_closed_question(context, answer, offer, "expired", "")

        label = offer.outcome_text
        was_chosen_before = offer.decided_by_event != turn.event_id
        if was_chosen_before:
            answer = fixed_answer(context, texts_of(offer).already_chosen(label))
        else:
            context = replace(context, turn=replace(turn, text=label))
            answer = await self._answer_chosen(context)
        return await self._answers.with_closed_question(
            context, answer, offer, "done", literal(label)
        )

    async def _answer_chosen(self, context: TurnContext) -> TurnAnswer:
        """Answer the message that a chosen answer has become.

        If an action waits, the message is about something else for it.
        """
        stored = context.waiting_action
        if stored is None:
            return await self._other_messages.run(context)
        facts = self._reader.facts_of(stored, context.turn.event_id, context.received_at)
        answer = await self._act(context, stored, decide(facts, MessageReading("other")))
        return answer or await self._other_messages.run(context)

    def _reject_button(self, context: TurnContext) -> TurnAnswer:
        """Answer a tap on the button of another person's question, or of one that is not known.

        In a group, only the person who tapped sees the answer.
        """
        # The id of its person is "" in a record that cannot be read: then it is not known to be
        # another person's.
        stored = context.named_action
        owners = ("", context.turn.user_id)
        is_foreign = stored is not None and stored.action.user_id not in owners
        text = context.texts.stale()
        if is_foreign:
            text = context.texts.not_yours()
        answer = fixed_answer(context, text)
        return _for_sender_only(context.turn, answer, in_tap=is_foreign)

    def answer_lost_question(self, context: TurnContext) -> TurnAnswer:
        """Answer a yes, a no or a tap to a question that Redis has lost with its action."""
        answer = fixed_answer(context, context.texts.forgot_answer(context.lost_at))
        return _for_sender_only(context.turn, answer.with_changes(tells_loss=True))


def _tap(turn: Turn, stored: StoredAction, press: ButtonPress) -> ButtonTap:
    """Return a tap in the form that `decide_tap` needs. `press`: what its button says."""
    if press.choice is not None or press.intent is None or stored.action.kind == CHOICE_KIND:
        return ButtonTap("choice")
    return ButtonTap(
        press.intent,
        has_form=bool(stored.action.form),
        sends_form=turn.kind == "form",
        may_stand=stored.action.standing is not None,
    )


def _as_yes_or_no(press: ButtonPress) -> ButtonPress:
    """Return what a second tap says: a standing yes is a yes."""
    if press.intent == "standing":
        return replace(press, intent="confirm")
    return press


def _for_sender_only(turn: Turn, answer: TurnAnswer, *, in_tap: bool = False) -> TurnAnswer:
    """Return the answer so that in a group only the sender of the turn sees it.

    `in_tap`: show it over the tapped button, and not as a message of the chat.
    """
    if not turn.in_group:
        return answer
    callback_id = ""
    if turn.tap is not None and in_tap:
        callback_id = turn.tap.callback_id
    replies = []
    for turn_reply in answer.change.replies:
        own_reply = replace(for_sender_of(turn, turn_reply.reply), answers_tap=callback_id)
        replies.append(replace(turn_reply, reply=own_reply))
    return answer.with_changes(replies=tuple(replies))
