"""QuestionRepeats: repeats an open question in other words, with its buttons."""

from __future__ import annotations

from sayso.agent.channel.context import TurnAnswer, TurnContext, about_question, fixed_answer
from sayso.agent.channel.decide import Obstacle
from sayso.agent.channel.endings import texts_of
from sayso.agent.channel.message_reading import words_id
from sayso.agent.channel.questions import Questions, seconds_to_answer
from sayso.channels.i18n.texts import as_statement, brief
from sayso.channels.types import Reply
from sayso.pending.stored_action import StoredAction
from sayso.pending.turn_changes import Transition, TurnReply

#: Characters of a preview that is repeated in full to a person who asks what the question is. With
#: the text around it, it is one message on each platform.
MAX_EXPLAINED_CHARS = 700


class QuestionRepeats:
    """Repeats the open questions of one channel. Lives as long as its agent.

    The time to answer does not begin anew. A yes to the repeated question is a yes to the action,
    so each text contains what the action does.
    """

    def __init__(self, questions: Questions) -> None:
        self._questions = questions

    def ask_again(self, context: TurnContext, stored: StoredAction) -> TurnAnswer:
        """Answer a message that may be a yes or a no, and is neither."""
        preview = brief(stored.action.preview)
        text = texts_of(stored).unclear(preview, stored.action.code)
        answer = self._repeat(context, stored, text, preview)
        return self._with_noted_message(context, answer, stored)

    def explain(
        self, context: TurnContext, stored: StoredAction, *, is_brief: bool = False
    ) -> TurnAnswer:
        """Answer a message that asks about the question: what is open, and what a yes would do.

        The preview is repeated in full, unless the answer `is_brief` or would be several messages.
        """
        question = self.explained(context, stored, is_brief=is_brief)
        answer = self._repeat(context, stored, question.text, question.preview)
        return self._with_noted_message(context, answer, stored)

    def explained(
        self, context: TurnContext, stored: StoredAction, *, is_brief: bool = False
    ) -> Reply:
        """Return the question as a reply that says what a yes would do, and how long it counts."""
        action = stored.action
        preview = as_statement(action.preview)
        if is_brief or len(preview) > MAX_EXPLAINED_CHARS:
            preview = brief(action.preview)
        seconds = action.expires_at - context.received_at
        text = texts_of(stored).explained(preview, seconds, action.code)
        return self._question(context, stored, text, preview)

    def refuse_yes(
        self, context: TurnContext, stored: StoredAction, obstacle: Obstacle
    ) -> TurnAnswer:
        """Answer a yes that confirms nothing: say why not, and how to confirm."""
        texts = texts_of(stored)
        action = stored.action
        match obstacle:
            case "not_delivered":  # no buttons: the question itself is about to arrive
                return about_question(stored, fixed_answer(context, texts.early(action.preview)))
            case "quotes_another":
                text = texts.another_quoted(action.preview, action.code)
            case "written_before":
                text = texts.early(action.preview)
            case "code_needed":
                text = texts.code_needed(action.preview, action.code)
            case "asked_before":
                text = texts.asked_before(action.preview)
        return self._repeat(context, stored, text, brief(action.preview))

    def _repeat(
        self, context: TurnContext, stored: StoredAction, text: str, preview: str
    ) -> TurnAnswer:
        """Answer with the question in this text. `preview`: the part of it that a yes agrees to."""
        question = self._question(context, stored, text, preview)
        answer = fixed_answer(context, text).with_changes(replies=(TurnReply(question),))
        return about_question(stored, answer)

    def _question(
        self, context: TurnContext, stored: StoredAction, text: str, preview: str
    ) -> Reply:
        """Return the question as a reply with this text and its buttons."""
        action = stored.action
        seconds = seconds_to_answer(action, context.received_at)
        buttons = self._questions.buttons(action, context)
        return Reply(text, buttons, answer_seconds=seconds, preview=preview)

    def _with_noted_message(
        self, context: TurnContext, answer: TurnAnswer, stored: StoredAction
    ) -> TurnAnswer:
        """Return the answer with a transition that notes the words of this message in the record.

        So the same words do not repeat the question a second time.
        """
        transition = Transition(
            action_id=stored.action_id,
            from_states=("shown",),
            to="shown",
            decided_by_event=context.turn.event_id,
            unclear=words_id(context.turn.text),
        )
        return answer.with_changes(transition=transition)
