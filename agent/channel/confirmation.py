"""ConfirmationHandler: what a message or a tap does to the pending action of its sender."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from sayso.agent.agent import Agent
from sayso.agent.channel.changes import ChangeHandler
from sayso.agent.channel.context import (
    NO_ANSWER,
    UNTOLD_OUTCOME,
    TurnAnswer,
    TurnContext,
    TurnFiles,
    add_exchange,
    continuation_turn,
    fixed_answer,
    user_message,
)
from sayso.agent.channel.outcomes import OutcomeHistory, action_ids, links_in_history
from sayso.agent.channel.prompts import ConfirmPrompts, outcome_line
from sayso.agent.channel.tool_executors import tools_of
from sayso.agent.channel.turn_journal import InterruptedRun
from sayso.agent.memory.extraction import in_scope
from sayso.agent.messages import Role, without_notes
from sayso.agent.run.state import WITHHELD
from sayso.agent.tools.call_texts import literal
from sayso.agent.tools.context import collect_artifacts, collect_choices
from sayso.agent.toolsets.selectors import would_show
from sayso.channels.i18n.texts import Texts, as_statement, brief, texts_for
from sayso.channels.markdown.outcome_signs import without_own_sign
from sayso.channels.types import Media, Reply, Scope, StepState, Turn, digest, shown_to_sender
from sayso.pending.action import (
    PLAN_KIND,
    RESERVED_PREFIX,
    ActionState,
    After,
    ButtonPress,
    OtherMessage,
    PendingAction,
    after_of,
    keeps_question,
)
from sayso.pending.consent import (
    ConfirmParser,
    ParsedAnswer,
    is_ok,
    is_unclear,
    names_effect,
    quotes,
    quotes_another,
    read_answer,
    written_before,
)
from sayso.pending.consent.asking import (
    invites_answer,
    is_misspelled_asking,
    is_plain_answer,
    read_asking,
)
from sayso.pending.consent.refusing import is_no_with_more, is_yes_with_change
from sayso.pending.proposals import Effect, is_undo, step_ids
from sayso.pending.repository import (
    EXECUTED_STATES,
    OPEN_STATES,
    WAITING_STATES,
    ActionDecision,
    Claim,
    StoredAction,
)
from sayso.pending.settlement import brief_outcome
from sayso.pending.store import PendingActionStore
from sayso.pending.turns import (
    ABOUT,
    CHOICE_KIND,
    SettledAnswer,
    SettledIntent,
    Transition,
    TurnChange,
)

#: Characters of an outcome that is repeated after a second tap.
MAX_OUTCOME_CHARS = 600
#: How often an open question is repeated, because it was asked about or answered unclearly. The
#: words of unclear answers must be others each time.
MAX_UNCLEAR_ANSWERS = 5
#: Characters of a preview that is repeated in full to a person who asks what the question is. With
#: the text around it, it is one message on each platform.
MAX_EXPLAINED_CHARS = 700
#: How people see the step that a yes ran, by the status of its outcome. With any other status
#: nothing ran.
_STEP_STATES: Mapping[str, StepState] = {
    "executed": "done",
    "failed": "failed",
    "unknown": "unknown",
}
#: Runs the agent for a turn. The text is sent before its reply.
RunAgent = Callable[[TurnContext, str], Awaitable[TurnAnswer]]


class ConfirmationHandler:
    """Decides about the pending actions of one channel.

    `run_agent` answers what is not about an action.
    """

    def __init__(
        self,
        agent: Agent,
        store: PendingActionStore,
        parser: ConfirmParser,
        *,
        prompts: ConfirmPrompts,
        files: TurnFiles,
        outcomes: OutcomeHistory,
        changes: ChangeHandler,
        confirm_ok: bool,
        after: After,
        is_one_message: bool,
        other_message: OtherMessage,
        run_agent: RunAgent,
    ) -> None:
        self._agent = agent
        self._store = store
        self._parser = parser
        self._prompts = prompts
        self._files = files
        self._outcomes = outcomes
        self._changes = changes
        self._confirm_ok = confirm_ok
        self._after = after
        self._is_one_message = is_one_message
        self._other_message = other_message
        self._run = run_agent

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

        An undo is offered for the effects.

        `is_deciding`: this turn itself decided the action, before its worker died.
        Then the agent goes on.
        """
        outcome = await self.outcome_text(context.turn.scope, stored)
        if stored.state == "expired" and intent == "confirm" and self._goes_on(context, stored):
            return await self._answer_late_yes(context, stored, outcome)
        answer = await self._answer_outcome(context, stored, outcome, goes_on=is_deciding)
        answer = _with_state_check(context, answer, stored.action)
        answer = self._prompts.offer_undo(context, answer, effects)
        answer = _with_settled_answer(answer, stored, intent)
        return await self.with_closed_prompt(context, answer, stored, stored.state, outcome)

    async def _answer_late_yes(
        self, context: TurnContext, stored: StoredAction, outcome: str
    ) -> TurnAnswer:
        """Answer a late yes: nothing was done, and the agent may propose it again."""
        self._outcomes.write_outcome(context, stored, "expired")
        answer = await self._run(context, self.as_line(stored, "expired", outcome))
        return await self.with_closed_prompt(context, answer, stored, "expired", outcome)

    def repeats_answer(self, turn: Turn, last: SettledAnswer | None) -> bool:
        """Return whether a message repeats a yes or no whose outcome
        is the last thing that the bot said.

        A message that quotes another one may answer that one,
        and a command such as "delete it" may be a new request.
        """
        if last is None or last.words_follow or not turn.decides or turn.replied_to:
            return False
        if self._confirm_ok and is_ok(self._parser, turn.text, last.language):
            return last.intent == "confirm"
        is_same = read_answer(self._parser, turn.text, last.language).intent == last.intent
        return is_same and is_plain_answer(self._parser, turn.text)

    def asks_for_time_again(self, turn: Turn, live: StoredAction, seq: int) -> bool:
        """Return whether a message, turn `seq`, asks for time although its
        person knows that the question stays.

        Where the bot has answered something else since, it may be about that.
        """
        if self._is_kept(live) and not live.was_last_message(seq):
            return False
        is_known = bool(live.unclear_answers) and not quotes_another(turn, live)
        return is_known and read_asking(self._parser, turn.text, live.action) == "waits"

    async def _answer_again(
        self, context: TurnContext, stored: StoredAction, press: ButtonPress
    ) -> TurnAnswer:
        """Answer a further tap on a question that has ended, whose outcome the user knows already.

        A long outcome is not sent again as a whole. Right after the outcome, the answer says
        nothing new: it is left out where a message costs money, and the history does not know of
        the tap.
        """
        outcome = await self.outcome_text(context.turn.scope, stored)
        is_late_yes = (
            stored.state == "expired" and press.intent == "confirm" and context.waiting is None
        )
        if is_late_yes and self._goes_on(context, stored):
            return await self._answer_late_yes(context, stored, outcome)
        text = outcome
        if press.intent == "confirm" and outcome.startswith(
            _texts_of(stored).dropped(stored.action.preview)
        ):
            # This tap does say yes, too late.
            text = _texts_of(stored).cancelled(stored.action.preview)
        elif stored.state == "done" and not await self._store.settlement.was_undone(
            context.turn.scope, stored
        ):
            text = _texts_of(stored).already_done(stored.action.preview)
        elif len(outcome) > MAX_OUTCOME_CHARS:
            text = brief(outcome)
        last = context.last_answer
        is_told = last is not None and last.action_id == stored.action_id
        if last and is_told and last.intent in (press.intent, "undo"):
            told = Reply(self.as_line(stored, stored.state, text), optional=True)
            answer = TurnAnswer(TurnChange(replies=((told, ""),)))
        else:
            answer = await self._answer_outcome(context, stored, text)
        ended_by = _intent_of_ending(stored)
        if ended_by and press.intent == ended_by:
            answer = _with_settled_answer(answer, stored, ended_by)
        answer = _with_state_check(context, answer, stored.action)
        return await self.with_closed_prompt(context, answer, stored, stored.state, outcome)

    async def handle_tap(self, context: TurnContext) -> TurnAnswer:
        """Handle a tap. A button decides only about its own action, and only for its own user."""
        turn = context.turn
        target = context.tapped or context.live
        press = self._read_press(turn)
        field_answer = await self._changes.take_tap(context, press)
        if field_answer:
            return field_answer
        if press and target is None and context.lost_at:
            return self.answer_lost_question(context)
        if press is None or target is None or target.action_id != press.action_id:
            return self._answer_foreign_button(context)
        if press.choice is not None or target.action.kind == CHOICE_KIND:
            return await self._choose(context, target, press)
        if target.state not in OPEN_STATES:
            return await self._answer_again(context, target, press)
        match press.intent:
            case "confirm" if not target.action.code:
                return await self._confirm(context, target)
            case "cancel" if target.state in WAITING_STATES:
                return await self._cancel(context, target)
        if target.state not in WAITING_STATES:  # it was confirmed outside of a turn
            return fixed_answer(context, _texts_of(target).status_running(target.action.preview))
        if press.intent == "change":
            return await self._change(context, target)
        return await self._ignore(context, target)

    def _read_press(self, turn: Turn) -> ButtonPress | None:
        """Return what the turn's button says, None for one that was
        not issued for this person and place.
        """
        if turn.tap is None:
            return None
        press = self._store.signer.read_button(turn.tap.data, turn.scope)
        # No other button opens a form.
        if press and turn.kind == "form" and press.intent != "change":
            return None
        return press

    async def _change(self, context: TurnContext, target: StoredAction) -> TurnAnswer:
        """Change an open action by the form that was filled in, or begin to ask for each field."""
        if target.action.is_expired(context.received_at):
            return await self._answer_expired(context, target)
        if not target.action.form:  # such as a record that was changed in the store
            return self._answer_foreign_button(context)
        if context.turn.kind == "form":
            return await self._changes.take_form(context, target, context.turn.form)
        return await self._changes.begin(context, target)

    async def _ignore(self, context: TurnContext, target: StoredAction) -> TurnAnswer:
        """Leave a question open for a few more seconds."""
        decided = "expired"
        if not target.action.is_expired(context.received_at):
            seconds = self._store.ignore_ttl_seconds
            decision = ActionDecision(
                context.turn.scope,
                "ignore",
                context.turn.event_id,
                expected_id=target.action_id,
                ignore_seconds=seconds,
            )
            decided, _ = await self._store.repository.decide(decision)
        if decided == "expired":
            return await self._answer_expired(context, target)
        return about_question(
            target, fixed_answer(context, _texts_of(target).ignored(target.action.preview))
        )

    async def _answer_expired(self, context: TurnContext, target: StoredAction) -> TurnAnswer:
        """Answer a tap on a question whose time is over."""
        expired = _texts_of(target).expired(target.action.preview)
        self._outcomes.write_outcome(context, target, "expired")
        line = self.as_line(target, "expired", expired)
        answer = fixed_answer(context, line, for_history=expired)
        return await self.with_closed_prompt(context, answer, target, "expired", expired)

    def answer_lost_question(self, context: TurnContext) -> TurnAnswer:
        """Answer a yes, a no or a tap whose question Redis has lost, so that the action is unknown."""
        answer = fixed_answer(context, context.texts.forgot_answer(context.lost_at)).changed(
            tells_loss=True
        )
        return _for_sender_only(context.turn, answer)

    async def decide(self, context: TurnContext, live: StoredAction) -> TurnAnswer:
        """Confirm, cancel, repeat or drop the pending action, as the turn says."""
        if not context.turn.decides:  # a caption, a transcript or an edit cannot be a yes
            return await self._answer_other_message(context, live)
        if live.is_changed:
            return await self._decide_on_changed(context, live)
        of_field = await self._answer_field(context, live)
        if of_field:
            return of_field
        action = live.action
        answer = self.read_answer(context.turn, live, context.seq)
        is_open = live.state in WAITING_STATES and not action.is_expired(context.received_at)
        is_shown = live.state == "shown" and is_open
        if answer.intent == "cancel" and live.state in WAITING_STATES:
            may_ask_again = is_shown and _is_new_words(live, context.turn.text)
            if may_ask_again and names_effect(self._parser, context.turn.text, action):
                return self._ask_again(context, live)
            return await self._cancel(context, live)
        if answer.intent == "confirm":
            if is_open:
                explanation = _why_not_confirmed(context, live, answer)
            else:
                explanation = ""
            if explanation:
                return self._repeat_question(context, live, explanation, brief(action.preview))
            if answer.code == action.code:
                return await self._confirm(context, live)
        if answer.intent or not is_shown or quotes_another(context.turn, live):
            return await self._answer_other_message(context, live)
        return await self._answer_no_decision(context, live)

    async def _answer_field(self, context: TurnContext, live: StoredAction) -> TurnAnswer | None:
        """Answer the value of a field, or the wish to change the question;
        None for any other message.
        """
        if live.action.is_expired(context.received_at):
            if self._changes.was_asking(context, live):
                return await self._answer_expired(context, live)
            return None
        return await self._changes.take_message(context, live)

    async def _answer_no_decision(self, context: TurnContext, live: StoredAction) -> TurnAnswer:
        """Answer a message that is neither a plain yes nor a plain no to an open question.

        | the message | the answer | the question |
        |---|---|---|
        | repeats the request, written before the question was shown | none: the question is the answer | stays |
        | repeats the request, written after it | what a yes would do, MAX_UNCLEAR_ANSWERS times | stays |
        | asks for time | the open question; none if it was repeated before | stays |
        | asks about the question | what a yes would do, MAX_UNCLEAR_ANSWERS times | stays |
        | follows something else that the bot has said, where the question is kept | that of the model | stays |
        | a no with more words, after the question was shown | that of the model, which reads it | is denied |
        | a yes with a change, as "yes, but blue" | that of the model | is dropped, or stays where it is kept |
        | may be an answer, in new words | the open question, MAX_UNCLEAR_ANSWERS times | stays |
        | anything else | that of the model | is dropped, or stays where it is kept |
        """
        message = context.turn.text
        language = live.action.language
        repeats_request = _repeats_request(context, live)
        if repeats_request and 0 < context.seq <= live.last_seen_seq:
            return NO_ANSWER
        if self.asks_for_time_again(context.turn, live, context.seq) and not context.returns_text:
            return NO_ANSWER
        follows_question = _follows_question(context, live)
        if self._is_kept(live) and not follows_question:  # it may be about what the bot said since
            return await self.keep_and_run(context, live)
        if self._refuses_in_words(context, live) and not repeats_request:
            return await self.deny_and_run(context, live)
        if len(live.unclear_answers) < MAX_UNCLEAR_ANSWERS:
            asking = read_asking(self._parser, message, live.action)
            if asking or repeats_request:
                return self._explain(context, live, is_brief=asking == "waits")
            is_new = _is_new_words(live, message)
            has_change = is_yes_with_change(self._parser, message, language)
            if is_new and not has_change and is_unclear(self._parser, message, language):
                return self._ask_again(context, live)
            if is_new and is_misspelled_asking(self._parser, message, language):
                return self._explain(context, live)
        return await self._answer_other_message(context, live)

    async def _decide_on_changed(self, context: TurnContext, live: StoredAction) -> TurnAnswer:
        """Refuse a yes to a question whose record was changed.

        Anything else ends the question, too.

        It is not asked again: the user would be shown other words than those that were signed. Its
        language is not known, so the answer is read in that of the turn.
        """
        turn = context.turn
        intent = read_answer(self._parser, turn.text, context.texts.language).intent
        if intent == "confirm" or live.state not in WAITING_STATES:
            return await self._confirm(context, live)
        if intent == "cancel":
            return await self._cancel(context, live)
        return await self.drop_and_run(context, live)

    def read_answer(self, turn: Turn, live: StoredAction, seq: int) -> ParsedAnswer:
        """Return what the turn says about the open question.

        A plain "ok" counts only right after it.

        A turn without a worker has the number 0.
        """
        answer = read_answer(self._parser, turn.text, live.action.language)
        if answer.intent or not self._confirm_ok or live.action.code:
            return answer
        is_last = live.state == "shown" and live.was_last_message(seq)
        is_next = is_last and not live.unclear_answers and seq in (0, live.last_seen_seq + 1)
        # Its worker died, and this one repeats the turn.
        was_settled_by_this = live.decided_by_event == turn.event_id
        may_be_short = is_next or was_settled_by_this
        if may_be_short and is_ok(self._parser, turn.text, live.action.language):
            return ParsedAnswer("confirm")
        return answer

    def is_late_answer(self, context: TurnContext, live: StoredAction) -> bool:
        """Return whether this is an answer to a question that has just expired,
        or a yes to one of unknown outcome.

        The value of a field that was asked for is such an answer, too.
        """
        if live.state not in ("expired", "unknown") or not context.turn.decides:
            return False
        if self._changes.was_asking(context, live):
            return True
        says = read_answer(self._parser, context.turn.text, live.action.language).intent
        return says == "confirm" or (says == "cancel" and live.state == "expired")

    async def _answer_other_message(self, context: TurnContext, live: StoredAction) -> TurnAnswer:
        """Answer a message about something else.

        The question ends, unless it is kept and its time is not over.
        """
        if self._is_kept(live) and not live.action.is_expired(context.received_at):
            return await self.keep_and_run(context, live)
        return await self.drop_and_run(context, live)

    def _is_kept(self, live: StoredAction) -> bool:
        """Return whether the question waits, and stays open when its person writes something else."""
        is_waiting = live.state in WAITING_STATES and not live.is_changed
        return is_waiting and keeps_question(live.action, self._other_message)

    def survives_failure(self, context: TurnContext, live: StoredAction) -> bool:
        """Return whether the question stays open although a message
        of its person could not be answered.

        It ends if the message was meant as an answer to it, or as /stop.
        """
        turn = context.turn
        if turn.is_stop or not self._is_kept(live):
            return False
        if self._refuses_in_words(context, live):
            return False
        return not (
            turn.decides and read_answer(self._parser, turn.text, live.action.language).intent
        )

    def _refuses_in_words(self, context: TurnContext, live: StoredAction) -> bool:
        """Return whether a message says no with more words,
        right after the question or as a reply to it.
        """
        turn = context.turn
        if not turn.decides or not _follows_question(context, live):
            return False
        return is_no_with_more(self._parser, turn.text, live.action.language)

    async def keep_and_run(self, context: TurnContext, live: StoredAction) -> TurnAnswer:
        """Answer a message about something else while the question stays open.

        A model that proposes the same again is told that it waits, and the question is repeated. If
        it proposes something else, that takes the place of the question, because a scope has one.
        """
        context.run.waiting += await self.actions_of(context.turn.scope, live)
        answer = await self._run(context, "")
        if any(action.occupies_scope for action in answer.change.new_actions):
            transition = ended_transition(context, live, _dropped_text(live))
            self._outcomes.write_outcome(context, live, "replaced")
            told = (Reply(self.as_line(live, transition.to, transition.outcome_text)), "")
            answer = answer.changed(replies=(told, *answer.change.replies), transition=transition)
            return await self.with_closed_prompt(
                context, answer, live, transition.to, transition.outcome_text
            )
        if not context.run.asks_for_waiting:
            return answer
        preview = _explained_preview(live)
        question = self._question_again(context, live, _explained(context, live, preview), preview)
        return answer.changed(
            replies=(*answer.change.replies, (question, f"{ABOUT}{live.action_id}"))
        )

    async def drop_and_run(self, context: TurnContext, live: StoredAction) -> TurnAnswer:
        """Drop the pending action because of an unrelated message (seed), say so,
        and answer the message.
        """
        transition = ended_transition(context, live, _dropped_text(live))
        if transition.to == "cancelled":
            self._outcomes.write_outcome(context, live, "replaced")
            preface = self.as_line(live, "cancelled", transition.outcome_text)
        else:  # its time was over before
            self._outcomes.write_outcome(context, live, "expired")
            preface = ""
        answer = (await self._run(context, preface)).changed(transition=transition)
        return await self.with_closed_prompt(
            context, answer, live, transition.to, transition.outcome_text
        )

    async def deny_and_run(self, context: TurnContext, live: StoredAction) -> TurnAnswer:
        """Cancel the pending action because of a no with more words, say so,
        and answer the message.

        The model reads the words, and cannot propose the same again in this turn.
        """
        words = await self._checked_words(context.turn)
        self._outcomes.write_outcome(context, live, "denied", words=words)
        transition = denied_transition(live, context.turn)
        outcome = transition.outcome_text
        context.run.denied += await self.actions_of(context.turn.scope, live)
        answer = await self._run(context, self.as_line(live, "cancelled", outcome))
        answer = answer.changed(transition=transition)
        return await self.with_closed_prompt(context, answer, live, "cancelled", outcome)

    async def _checked_words(self, turn: Turn) -> str:
        """Return the words of a no as the guardrails pass them:
        so the model reads the message itself, too.
        """
        guardrails = self._agent.config.guardrails
        if guardrails is None:
            return turn.text
        checked = await guardrails.acheck_input(turn.text)
        return checked.content if checked.passed else WITHHELD

    async def actions_of(self, scope: Scope, stored: StoredAction) -> list[PendingAction]:
        """Return an action, or the steps of a plan."""
        if stored.action.kind != PLAN_KIND:
            return [stored.action]
        steps = await self._store.repository.load(scope.conversation.id, step_ids(stored.action))
        return [step.verified(self._store.signer, scope).action for step in steps if step]

    async def refused_by_no(self, scope: Scope, stored: StoredAction) -> list[PendingAction]:
        """Return what a plain no refuses: an action or the steps of a plan,
        and what its person has changed to these.

        A person who changes a call and then says no does not want the call of the model either.
        """
        changed = await self.actions_of(scope, stored)
        refused = [*changed]
        while ids := tuple(action.changes_of for action in changed if action.changes_of):
            before = await self._store.repository.load(scope.conversation.id, ids)
            changed = [each.verified(self._store.signer, scope).action for each in before if each]
            refused += changed
        return refused

    async def with_closed_prompt(
        self,
        context: TurnContext,
        answer: TurnAnswer,
        stored: StoredAction,
        state: ActionState,
        outcome: str,
    ) -> TurnAnswer:
        """Return the answer after the reply that closes the question.

        Without a worker its message is unknown.
        """
        if context.lease:
            closed = await self._prompts.close(context.turn, stored, state, outcome)
        else:
            closed = ()
        return answer.changed(replies=(*closed, *answer.change.replies))

    async def outcome_text(self, scope: Scope, stored: StoredAction) -> str:
        """Return the known outcome of an action that has ended, or a text for its state.

        It says what was undone.
        """
        known = ""
        if stored.state in EXECUTED_STATES:
            known = await self._store.settlement.report(scope, stored)
        known = known or stored.outcome_text
        if known:
            return known

        texts = _texts_of(stored)
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
        return texts.stale()

    async def outcome_to_tell(
        self, context: TurnContext, stored: StoredAction | None
    ) -> tuple[str, tuple[Effect, ...]]:
        """Return the outcome that a deciding turn left to its continuation, and what took effect.

        Without the record, which is kept for days, the person is asked to check what was done.
        """
        if stored is None:
            return context.texts.interrupted_before(), ()
        outcome = await self.outcome_text(context.turn.scope, stored)
        effects = await self._store.settlement.effects(context.turn.scope, stored)
        told = with_ran_beside(stored, await self._briefly(context.turn.scope, stored, outcome))
        return self.as_line(stored, stored.state, told), effects

    async def _briefly(self, scope: Scope, stored: StoredAction, outcome: str) -> str:
        """Return an outcome as it stands above the words of a model,
        which has read the whole result.
        """
        if outcome != stored.outcome_text:  # it was undone since, or is not known
            return outcome
        if stored.action.kind == PLAN_KIND:
            return await self._store.settlement.report(scope, stored, results="brief") or outcome
        return brief_outcome(stored)

    def as_line(self, stored: StoredAction, state: ActionState, outcome: str) -> str:
        """Return an outcome as people read it.

        Where a model may go on after it, it begins with its sign.
        """
        if "continue" in (self._after, stored.action.after):
            return outcome_line(state, outcome)
        return outcome

    async def settle_failed_turn(
        self, context: TurnContext, failure_text: str, run: InterruptedRun, *, for_history: str
    ) -> TurnChange:
        """Return what a turn changes that could not be answered: the action's outcome,
        or else `failure_text`.

        A pending action is cancelled. The history gets what the `run` had done, and `for_history`
        as its end; nothing where that is "", because a command is no part of the conversation.
        """
        turn = context.turn
        conversation = turn.conversation.id
        signer = self._store.signer
        live = await self._store.repository.load_open(conversation, context.user)
        if live is not None:
            live = live.verified(signer, turn.scope)
        pids = tuple(stored.action_id for stored in (context.tapped, live) if stored)
        press = None
        if turn.tap:
            press = signer.read_button(turn.tap.data, turn.scope)
        is_choice = press is not None and press.choice is not None
        if is_choice:  # a chosen answer settles no action
            pids = ()
        for record in await self._store.repository.load(conversation, pids):
            if record is None:
                continue
            stored = record.verified(signer, turn.scope)
            is_decided = stored.decided_by_event == turn.event_id and stored.state in (
                "claimed",
                "started",
            )
            is_tapped = press is not None and stored.action_id == press.action_id
            has_ended = stored.state in EXECUTED_STATES and (
                is_tapped or stored.decided_by_event == turn.event_id
            )
            if is_decided or has_ended:
                return await self._outcome_of_failed_turn(context, stored)

        is_open = live is not None and live.state in WAITING_STATES
        if (
            live
            and is_open
            and (is_choice or not turn.tap)
            and not self.survives_failure(context, live)
        ):
            # No guardrail is asked: one may be why the turn failed.
            if self._refuses_in_words(context, live):
                transition = denied_transition(live, turn)
                self._outcomes.write_outcome(context, live, "denied")
            else:
                transition = dropped_transition(live, turn)
                self._outcomes.write_outcome(context, live, "replaced")
            self._note_failed_run(context, run, for_history)
            closed = await self._prompts.close(turn, live, "cancelled", transition.outcome_text)
            about_action = ""
            if not turn.maybe_other_person:
                about_action = self.as_line(live, "cancelled", transition.outcome_text)
            text = "\n\n".join(filter(None, [about_action, failure_text]))
            return TurnChange(replies=(*closed, (Reply(text), "")), transition=transition)
        self._note_failed_run(context, run, for_history)
        return TurnChange(replies=((Reply(failure_text), ""),))

    def _note_failed_run(self, context: TurnContext, run: InterruptedRun, ending: str) -> None:
        """Add to the history what was asked, what the run had done, and how the turn ended."""
        if ending:
            add_exchange(context, ending, run.messages)
            self._outcomes.write_outcomes(context, run.proposed, "replaced", context.received_at)

    async def _outcome_of_failed_turn(
        self, context: TurnContext, stored: StoredAction
    ) -> TurnChange:
        """Return the outcome of an action that the turn claimed, and perhaps started,
        before it failed.
        """
        turn = context.turn
        texts = _texts_of(stored)
        preview = stored.action.preview
        state = stored.state
        transition = None
        if state == "claimed":  # it has not started
            state = "superseded"
            outcome = texts.unsafe(preview)
            self._outcomes.write_outcome(context, stored, "failed")
        elif state == "started":
            state = "unknown"
            outcome = texts.unknown(preview)
            transition = Transition(
                stored.action_id, ("started", "unknown"), "unknown", outcome, turn.event_id
            )
            self._outcomes.write_outcome(context, stored, "unknown")
        else:
            outcome = await self.outcome_text(turn.scope, stored)
        undo = _undo(stored)
        if undo or state == stored.state:
            await self._outcomes.refresh(context, undo=undo)
        continuation = None
        if self._goes_on(context, stored):
            continuation = self._hand_on(context, stored, outcome).change.continuation
        else:
            add_exchange(context, await self._outcomes.history_text(context, stored, outcome))
        if continuation:  # the outcome is told now: another turn may fail as well
            continuation = replace(continuation, tells_outcome=False)
            context.memory.notes.pop(UNTOLD_OUTCOME, None)
        closed = await self._prompts.close(turn, stored, state, outcome)
        told = Reply(self.as_line(stored, state, outcome))
        return TurnChange(
            replies=(*closed, (told, "")), transition=transition, continuation=continuation
        )

    def _ask_again(self, context: TurnContext, live: StoredAction) -> TurnAnswer:
        """Repeat the question after an answer that is neither a yes nor a no."""
        preview = brief(live.action.preview)
        return self._note_unclear(
            context, live, _texts_of(live).unclear(preview, live.action.code), preview
        )

    def _explain(
        self, context: TurnContext, live: StoredAction, *, is_brief: bool = False
    ) -> TurnAnswer:
        """Answer a message that asks about the question: what is open, and what a yes would do.

        The preview is repeated in full, unless the answer `is_brief` or would be several messages.
        """
        preview = _explained_preview(live, is_brief=is_brief)
        return self._note_unclear(context, live, _explained(context, live, preview), preview)

    def _note_unclear(
        self, context: TurnContext, live: StoredAction, text: str, preview: str
    ) -> TurnAnswer:
        """Repeat the question in this text, which quotes the preview.

        The record notes the message.
        """
        answer = self._repeat_question(context, live, text, preview)
        transition = Transition(
            live.action_id,
            ("shown",),
            "shown",
            decided_by_event=context.turn.event_id,
            unclear=_words_id(context.turn.text),
        )
        return answer.changed(transition=transition)

    def _repeat_question(
        self, context: TurnContext, live: StoredAction, text: str, preview: str
    ) -> TurnAnswer:
        """Answer with the open question in other words, with its buttons.

        Its time limit stays as it was.

        `preview`: the part of the text that a yes agrees to.
        """
        asked = self._question_again(context, live, text, preview)
        return about_question(live, fixed_answer(context, text).changed(replies=((asked, ""),)))

    def _question_again(
        self, context: TurnContext, live: StoredAction, text: str, preview: str
    ) -> Reply:
        """Return the open question in other words, with its buttons."""
        action = live.action
        left = max(1.0, action.expires_at - context.received_at)  # 0 would stand for no limit
        buttons = self._prompts.buttons(action, context)
        return Reply(text, buttons, answer_seconds=left, preview=preview)

    async def _choose(
        self, context: TurnContext, offer: StoredAction, press: ButtonPress
    ) -> TurnAnswer:
        """Handle a chosen answer as the user's message.

        It confirms nothing, and can be chosen once.
        """
        place = press.choice
        turn = context.turn
        if place is None or offer.action.kind != CHOICE_KIND:
            return fixed_answer(context, context.texts.stale())
        offer = await self._prompts.take_choice(context, offer, place)
        if offer.state != "done":
            answer = fixed_answer(context, context.texts.stale())
            return await self.with_closed_prompt(context, answer, offer, "expired", "")
        label = offer.outcome_text
        if offer.decided_by_event != turn.event_id:
            answer = fixed_answer(context, _texts_of(offer).already_chosen(label))
            return await self.with_closed_prompt(context, answer, offer, "done", literal(label))
        context = replace(context, turn=replace(turn, text=label))
        if context.waiting:
            answer = await self._answer_other_message(context, context.waiting)
        else:
            answer = await self._run(context, "")
        return await self.with_closed_prompt(context, answer, offer, "done", literal(label))

    def _answer_foreign_button(self, context: TurnContext) -> TurnAnswer:
        """Answer a tap on a button of another user, or of an ended question.

        In a group, only this user sees it.
        """
        turn = context.turn
        tapped = context.tapped
        is_foreign = tapped is not None and tapped.action.user_id not in ("", turn.user_id)
        text = context.texts.stale()
        if is_foreign:
            text = context.texts.not_yours()
        answer = fixed_answer(context, text)
        return _for_sender_only(turn, answer, in_tap=is_foreign)

    async def _confirm(self, context: TurnContext, stored: StoredAction) -> TurnAnswer:
        if stored.state == "armed" and not stored.is_changed:
            return about_question(
                stored, fixed_answer(context, _texts_of(stored).early(stored.action.preview))
            )
        if stored.state == "shown" and await self._is_hidden(context, stored):
            return await self._cancel(
                context, stored, _texts_of(stored).unsafe(stored.action.preview)
            )
        claim = Claim(
            scope=context.turn.scope,
            action_id=stored.action_id,
            decided_by_event=context.turn.event_id,
            kind="tap" if context.turn.tap else "text",
            lease=context.lease,
            seq=context.seq,
            received_at=context.received_at,
        )
        steps = context.step_listener
        step_name = (stored.action.asked_by or stored.action.kind).removeprefix(RESERVED_PREFIX)
        if steps:
            steps.begin(0, step_name)
        with (
            collect_artifacts() as artifacts,
            collect_choices() as choices,
            in_scope(context.memory_scope),
        ):
            outcome = await self._store.settlement.confirm(claim, stored)
        if steps:
            steps.end(0, step_name, _STEP_STATES.get(outcome.status) if outcome else None)
        if outcome is None:
            return fixed_answer(context, context.texts.stale())
        files = await self._files.store_after_effect(artifacts, context.turn, stored.action_id)
        if outcome.status == "early":
            return about_question(stored, fixed_answer(context, outcome.outcome_text, files))

        text = outcome.outcome_text
        state = outcome.record.state
        ended = replace(
            stored,
            state=state,
            decided_by_event=context.turn.event_id,
            outcome_text=text,
            result=outcome.result or "",
        )
        if outcome.status == "expired" and self._goes_on(context, ended):
            return await self._answer_late_yes(context, ended, text)
        answer = await self._answer_outcome(context, ended, text, files, goes_on=not choices)
        answer = _with_state_check(context, answer, outcome.record)
        answer = self._prompts.offer_undo(context, answer, outcome.effects)
        answer = self._prompts.offer_choices(context, answer, choices)
        answer = _with_settled_answer(answer, stored, "confirm")
        return await self.with_closed_prompt(context, answer, stored, state, text)

    async def _answer_outcome(
        self,
        context: TurnContext,
        stored: StoredAction,
        text: str,
        files: Sequence[Media] = (),
        *,
        goes_on: bool = False,
    ) -> TurnAnswer:
        """Write the outcome of an action into the history, and return the answer that tells it.

        `goes_on`: the agent goes on with the outcome, where the action and the channel let it.
        """
        undo = _undo(stored)
        await self._outcomes.refresh(context, undo=undo)
        if goes_on and stored.state in EXECUTED_STATES and self._goes_on(context, stored):
            told = with_ran_beside(stored, await self._briefly(context.turn.scope, stored, text))
            return self._hand_on(context, stored, told, files)
        for_history = await self._outcomes.history_text(context, stored, text)
        told = self.as_line(stored, stored.state, with_ran_beside(stored, text))
        return fixed_answer(context, told, files, for_history=for_history)

    def _goes_on(self, context: TurnContext, stored: StoredAction) -> bool:
        """Return whether the agent goes on after the decision about an action.

        It does not if the history has lost the call: a model could
        not tell what the decision was about.
        """
        if stored.is_changed or context.turn.maybe_other_person:
            return False
        if after_of(stored.action, self._after) == "say":
            return False
        ids = action_ids(stored)
        return any(link.id in ids for link in links_in_history(context))

    def _hand_on(
        self, context: TurnContext, stored: StoredAction, outcome: str, files: Sequence[Media] = ()
    ) -> TurnAnswer:
        """Return the answer that tells the outcome, with the turn in which the agent goes on.

        Where each message costs money, the outcome is told by that turn. The history gets no answer
        of the bot: the model reads the outcome as the result of its call. Where other messages came
        after the question, the decision follows them as the person's message.
        """
        history = context.memory.get_history()
        if history[-1].role is not Role.TOOL:
            context.remember([user_message(context.turn)])
        tells_later = (
            self._is_one_message
            and context.lease is not None
            and context.is_last_turn
            and not files
        )
        continuation = continuation_turn(context.turn, stored.action_id, tells_outcome=tells_later)
        state = stored.state
        if state in WAITING_STATES:  # the record before the no
            state = "cancelled"
        line = self.as_line(stored, state, outcome)
        replies = [(Reply(line), ""), *((Reply(media=media), "") for media in files)]
        if tells_later:
            replies = []
            context.memory.notes[UNTOLD_OUTCOME] = stored.action_id
        return TurnAnswer(TurnChange(replies=tuple(replies), continuation=continuation))

    async def _is_hidden(self, context: TurnContext, stored: StoredAction) -> bool:
        """Return whether the user may no longer use the action's tools,
        such as after a change of role.
        """
        selector = self._agent.selector
        action = stored.action
        if selector is None or action.is_expired(context.received_at):
            return False
        return any(
            [
                await would_show(selector, tool) == "hidden"
                for tool in tools_of(action, self._agent.tools)
            ]
        )

    async def _cancel(
        self, context: TurnContext, stored: StoredAction, refusal: str = ""
    ) -> TurnAnswer:
        """Cancel the action because the user said no,
        or because their yes is refused with this text.
        """
        outcome = refusal or _cancelled_text(stored)
        transition = Transition(
            stored.action_id, WAITING_STATES, "cancelled", outcome, context.turn.event_id
        )
        self._outcomes.write_outcome(context, stored, "replaced" if refusal else "denied")
        if not refusal and self._goes_on(context, stored):
            answer = self._hand_on(context, stored, outcome)
        else:
            told = self.as_line(stored, "cancelled", outcome)
            answer = fixed_answer(context, told, for_history=outcome)
        answer = answer.changed(transition=transition)
        if not refusal:
            answer = _with_settled_answer(answer, stored, "cancel")
        return await self.with_closed_prompt(context, answer, stored, "cancelled", outcome)


def _with_settled_answer(
    answer: TurnAnswer, stored: StoredAction, intent: SettledIntent
) -> TurnAnswer:
    """Return the answer marked as the outcome of a yes or no,
    so that the same again needs no answer.

    An outcome that asks something itself, offers choices, or refuses a yes is not marked:
    the next yes may answer it.
    """
    change = answer.change
    language = stored.action.language
    preview = stored.action.preview
    texts = _texts_of(stored)
    refusals = (texts.unsafe(preview), texts.tool_changed(preview))
    if change.continuation and change.continuation.tells_outcome:
        return answer
    for reply, _ in change.replies:
        if invites_answer(reply.text, language) or without_own_sign(reply.text).startswith(
            refusals
        ):
            return answer
    if any(action.kind == CHOICE_KIND for action in change.new_actions):
        return answer
    if is_undo(stored.action):
        intent = "undo"
    return answer.changed(settles=SettledAnswer(intent, stored.action_id, language))


def with_answer_followed(answer: TurnAnswer, stored: StoredAction | None) -> TurnAnswer:
    """Return what a model says below an outcome, marked so that a further
    tap on the question needs no answer.

    It is not marked where the model asks for another yes or offers choices:
    a tap may be meant for that.
    """
    if stored:
        intent = _intent_of_ending(stored)
    else:
        intent = None
    if stored is None or intent is None or answer.change.last_question or not answer.change.replies:
        return answer
    if any(action.kind == CHOICE_KIND for action in answer.change.new_actions):
        return answer
    followed = SettledAnswer(intent, stored.action_id, stored.action.language, words_follow=True)
    return answer.changed(settles=followed)


def _intent_of_ending(stored: StoredAction) -> SettledIntent | None:
    """Return what its person said to an action that has ended; None if it ended otherwise."""
    if stored.state in EXECUTED_STATES:
        return "confirm"
    if stored.state != "cancelled":
        return None
    denial = _texts_of(stored).cancelled(stored.action.preview)
    return "cancel" if stored.outcome_text.startswith(denial) else None


def _repeats_request(context: TurnContext, live: StoredAction) -> bool:
    """Return whether a message has the words of the one that the open question answers."""
    if context.turn.replied_to:
        return False
    ids = action_ids(live)
    request = ""
    for message in context.memory.get_history():
        if any(link.id in ids for link in message.actions):
            return _words_id(request) == _words_id(context.turn.text)
        if message.role is Role.USER:
            request = without_notes(message.content)
    return False


def _is_new_words(live: StoredAction, message: str) -> bool:
    """Return whether the question was not repeated for these words before,
    nor too often for others.
    """
    return (
        len(live.unclear_answers) < MAX_UNCLEAR_ANSWERS
        and _words_id(message) not in live.unclear_answers
    )


def _words_id(message: str) -> str:
    """Return a short name of a message, the same for its spellings in
    capitals and with other punctuation.
    """
    return digest("".join(filter(str.isalnum, message.casefold())) or message)[:8]


def _undo(stored: StoredAction) -> StoredAction | None:
    """Return the action if it undoes others."""
    return stored if is_undo(stored.action) else None


def _follows_question(context: TurnContext, live: StoredAction) -> bool:
    """Return whether a message was written after the question, with nothing in between,
    or as a reply to it.
    """
    if 0 < context.seq <= live.last_seen_seq or written_before(context.turn, live):
        return False
    return live.was_last_message(context.seq) or quotes(context.turn, live)


def _explained_preview(live: StoredAction, *, is_brief: bool = False) -> str:
    """Return the preview as an explanation quotes it: in full,
    unless that would be several messages.
    """
    preview = as_statement(live.action.preview)
    if is_brief or len(preview) > MAX_EXPLAINED_CHARS:
        return brief(live.action.preview)
    return preview


def _explained(context: TurnContext, live: StoredAction, preview: str) -> str:
    """Return what a yes would do, and how long it can be given."""
    action = live.action
    return _texts_of(live).explained(preview, action.expires_at - context.received_at, action.code)


def _cancelled_text(stored: StoredAction) -> str:
    """Return what the user is told of an action to which they said no."""
    return f"{_texts_of(stored).cancelled(stored.action.preview)}{_ran_beside(stored)}"


def _dropped_text(live: StoredAction) -> str:
    """Return what the user is told of an action that another message drops."""
    return f"{_texts_of(live).dropped(live.action.preview)}{_ran_beside(live)}"


def with_ran_beside(stored: StoredAction, text: str) -> str:
    """Return the outcome of an action with the line about tools that ran at once beside it."""
    line = _ran_beside(stored)
    if line in text:  # a stored outcome has the line already
        return text
    return f"{text}{line}"


def _ran_beside(stored: StoredAction) -> str:
    """Return the line of an outcome about tools that ran at once beside the action, "" for none."""
    names = stored.action.ran_beside
    if names:
        return f"\n{_texts_of(stored).ran_beside(names)}"
    return ""


def _why_not_confirmed(context: TurnContext, live: StoredAction, answer: ParsedAnswer) -> str:
    """Return why a yes does not confirm the open question, "" if it does.

    A yes that is about another message, or was written before the question,
    may be meant for something else.
    """
    action = live.action
    texts = _texts_of(live)
    if quotes_another(context.turn, live):
        return texts.another_quoted(action.preview, action.code)
    if written_before(context.turn, live):
        return texts.early(action.preview)
    if answer.code != action.code:
        if not action.code:
            return ""
        return texts.code_needed(action.preview, action.code)
    is_named = bool(answer.code) or quotes(context.turn, live)
    if not (is_named or live.was_last_message(context.seq)):
        return texts.asked_before(action.preview)
    return ""


def _for_sender_only(turn: Turn, answer: TurnAnswer, *, in_tap: bool = False) -> TurnAnswer:
    """Return the answer.

    In a group only the sender of the turn sees it; with `in_tap` it is no message of the chat.
    """
    if not turn.in_group:
        return answer
    callback_id = turn.tap.callback_id if turn.tap and in_tap else ""
    replies = []
    for reply, pid in answer.change.replies:
        own_reply = replace(shown_to_sender(turn, reply), answers_tap=callback_id)
        replies.append((own_reply, pid))
    return answer.changed(replies=tuple(replies))


def about_question(question: StoredAction, answer: TurnAnswer) -> TurnAnswer:
    """Return the answer marked as a repetition of the question:
    quoting the answer quotes the question.
    """
    return answer.changed(
        replies=tuple((reply, f"{ABOUT}{question.action_id}") for reply, _ in answer.change.replies)
    )


def _with_state_check(
    context: TurnContext, answer: TurnAnswer, record: PendingAction
) -> TurnAnswer:
    """Return the answer so that its commit fails if the action has changed state since."""
    if context.lease is None or record.state not in EXECUTED_STATES:
        return answer
    outcome = record.outcome or ""
    transition = Transition(
        record.pending_action_id, (record.state,), record.state, outcome, context.turn.event_id
    )
    return answer.changed(transition=transition)


def _texts_of(stored: StoredAction) -> Texts:
    """Return the texts in the language of the action."""
    return texts_for(stored.action.language)


def ended_transition(context: TurnContext, live: StoredAction, outcome: str) -> Transition:
    """Return the transition that cancels an action with this outcome,
    or says that its time was over before.
    """
    if not live.action.is_expired(context.received_at):
        return Transition(
            live.action_id, WAITING_STATES, "cancelled", outcome, context.turn.event_id
        )
    expired = f"{_texts_of(live).expired(live.action.preview)}{_ran_beside(live)}"
    return Transition(live.action_id, WAITING_STATES, "expired", expired, context.turn.event_id)


def denied_transition(live: StoredAction, turn: Turn) -> Transition:
    """Return the transition of an action to which its person says no."""
    return Transition(
        live.action_id, WAITING_STATES, "cancelled", _cancelled_text(live), turn.event_id
    )


def dropped_transition(live: StoredAction, turn: Turn) -> Transition:
    """Return the transition of an action that another message drops."""
    outcome = _dropped_text(live)
    return Transition(live.action_id, WAITING_STATES, "cancelled", outcome, turn.event_id)
