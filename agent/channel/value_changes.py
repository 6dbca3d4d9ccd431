"""ChangeHandler: lets a person change what an open question asks, and asks anew.

A *change* replaces the question by a new proposal, which has its own preview and needs its own yes.
There are three ways to it: a filled-in form (`take_form`), values that the person writes one after
another (`begin`, `take_message`, `take_tap`), and other words, such as "yes, but 2 kg", from which
the model makes the new proposal (`mark_changes`).
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from secrets import randbelow
from typing import Any

from sayso.agent.agent import Agent
from sayso.agent.channel.context import TurnAnswer, TurnContext, paragraphs
from sayso.agent.channel.decide import Phase
from sayso.agent.channel.outcome_history import OutcomeHistory
from sayso.agent.channel.questions import Questions, seconds_to_answer
from sayso.agent.run.edited_call import EditedCall, EditRefused, edited_call
from sayso.agent.tools.names import name_in_words
from sayso.agent.tools.previews import literal
from sayso.agent.tools.result_texts import result_text, serialize
from sayso.agent.tools.tool import Tool
from sayso.agent.toolsets.selectors import would_show
from sayso.channels.edit_form import EditForm, FieldProblem, FormField, UnreadableValue, value_text
from sayso.channels.i18n.texts import Texts, brief, texts_for
from sayso.channels.markdown.literal import as_markdown
from sayso.channels.types import Button, Reply
from sayso.infra.ids import random_id
from sayso.pending.action import PLAN_KIND, ButtonPress, PendingAction, check_proposal, exact_args
from sayso.pending.consent.parser import ConfirmParser, read_answer
from sayso.pending.plans import Proposal, plan_of, step_ids
from sayso.pending.standing_rule import offered_rule
from sayso.pending.store import PendingActionStore
from sayso.pending.stored_action import WAITING_STATES, StoredAction
from sayso.pending.turn_changes import Transition, TurnChange, TurnReply

log = logging.getLogger(__name__)

#: The key of the note in a history that says which field the person is asked for (`_Progress`). A
#: note about an earlier question counts for nothing.
NOTE = "change"
#: The most characters of a value in a question that says what has changed.
MAX_SHOWN_CHARS = 100
#: The most changed values that a question names.
MAX_SHOWN_CHANGES = 10
#: Stands for an empty value.
_EMPTY = "\u2013"
#: What people type to keep a value.
_KEEPS = ("-", "\u2013", "\u2014")
#: The most choices of a field that are shown as buttons; one more button keeps the value.
_MOST_CHOICES = 9
#: Matches everywhere but inside a number (12, 1.50) or a word of Latin letters.
_BOUNDARY = r"(?!(?<=\d)[.,]?\d)(?!(?<=\d[.,])\d)(?!(?<=[A-Za-z])[A-Za-z])"


class _Refused(Exception):
    """Raised when a change is refused.

    Its text is the reason for the person, as Markdown; "" if the new values change nothing.
    """


@dataclass(frozen=True, slots=True)
class _Change:
    """A change of a question."""

    #: The actions before the change: the steps of a plan, or the one action.
    before: Sequence[PendingAction]
    #: The new proposal, with as many actions.
    proposal: Proposal
    #: What differs, for the person.
    text: str

    @property
    def after(self) -> Sequence[PendingAction]:
        """The actions after the change, in the order of `before`."""
        return self.proposal.steps or (self.proposal.head,)

    @property
    def successors(self) -> dict[str, PendingAction]:
        """The actions after the change, by the ids of those before."""
        pairs = zip(self.before, self.after, strict=True)
        return {before.pending_action_id: after for before, after in pairs}

    @property
    def predecessors(self) -> dict[str, PendingAction]:
        """The actions before the change, by the ids of those after."""
        pairs = zip(self.before, self.after, strict=True)
        return {after.pending_action_id: before for before, after in pairs}


@dataclass(frozen=True, slots=True)
class _Difference:
    """One argument that differs from the question before."""

    #: The number of its step in a plan, from 1; 0 outside of plans.
    step: int
    name: str
    #: The value before and after the change.
    before: Any
    after: Any
    #: Whether the new question names it: the person may change it, or one of the previews shows it.
    #: A tool may keep any other argument out of its preview on purpose.
    is_known: bool


@dataclass(frozen=True, slots=True)
class _Progress:
    """How many fields of a question a person has answered. Stored in the notes of the history."""

    #: The action of the question.
    action_id: str
    #: The index of the field that is asked for now.
    place: int
    #: What the person has typed so far, by the names of the fields.
    values: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Return the progress as JSON-ready data."""
        return {"action_id": self.action_id, "place": self.place, "values": dict(self.values)}

    def after_answer(self, name: str, text: str | None) -> _Progress:
        """Return the progress after an answer for the field `name`. `text` None keeps the value."""
        values = dict(self.values)
        if text is not None:
            values[name] = text
        return _Progress(self.action_id, self.place + 1, values)

    @property
    def field_id(self) -> str:
        """The id in the tokens of this field's buttons. A tap on another field's does nothing."""
        return hashlib.sha256(f"change {self.action_id} {self.place}".encode()).hexdigest()[:22]


class ChangeHandler:
    """Changes the open questions of one channel. Lives as long as its agent and store."""

    def __init__(
        self,
        agent: Agent,
        store: PendingActionStore,
        parser: ConfirmParser,
        *,
        questions: Questions,
        outcomes: OutcomeHistory,
    ) -> None:
        self._agent = agent
        self._store = store
        self._parser = parser
        self._questions = questions
        self._outcomes = outcomes

    async def take_form(
        self,
        context: TurnContext,
        stored: StoredAction,
        values: Mapping[str, str],
    ) -> TurnAnswer:
        """Answer a filled-in form with the new question, or with the reason why there is none.

        `values` has what the person has typed, by the names of the fields.
        """
        self.stop_asking(context)
        texts = texts_for(stored.action.language)
        form = stored.action.edit_form
        try:
            answer = form.read(values)
        except KeyError:  # only a forged form has other fields
            ids = {"kind": stored.action.kind, "action": stored.action_id}
            log.warning("pending.not_editable", extra=ids)
            return self.repeat_unchanged(context, stored, texts.change_denied())
        if answer.problems:
            problems = _problems_text(texts, form, answer.problems)
            return self.repeat_unchanged(context, stored, problems)
        if not answer.changes:
            return self.repeat_unchanged(context, stored)
        try:
            change = await self._changed_proposal(context, stored, answer.changes)
        except _Refused as exc:
            return self.repeat_unchanged(context, stored, str(exc))
        return await self._ask_anew(context, stored, change)

    def repeat_unchanged(
        self,
        context: TurnContext,
        stored: StoredAction,
        problem: str = "",
    ) -> TurnAnswer:
        """Answer with the open question once more, below the reason why nothing was changed.

        `problem`: the reason; "" if there is none to name.
        """
        action = stored.action
        texts = texts_for(action.language)
        text = paragraphs([problem, texts.unchanged(action.preview, action.code)])
        seconds = seconds_to_answer(action, context.received_at)
        buttons = self._questions.buttons(action, context)
        reply = Reply(text, buttons, answer_seconds=seconds, preview=brief(action.preview))
        repeated = TurnReply.about_question(reply, stored.action_id)
        return TurnAnswer(TurnChange(replies=(repeated,)))

    async def _changed_proposal(
        self,
        context: TurnContext,
        stored: StoredAction,
        changes: Mapping[str, Any],
    ) -> _Change:
        """Return the change of a question by these new values.

        `changes` has them by the names of the fields: those of arguments, in a plan with the number
        of the step in front ("2.quantity"). Raises _Refused.
        """
        question = stored.action
        before = await self._actions(context, stored)
        after = []
        for number, action in enumerate(before, start=1):
            changes_of_action = changes
            offered = question.editable
            if question.kind == PLAN_KIND:
                changes_of_action = _of_step(number, changes)
                offered = _names_of_step(number, question.editable)
            after.append(await self._changed_action(context, action, changes_of_action, offered))

        proposal = plan_of(after)
        # In a plan only the head has these fields, and `plan_of` has made a new head.
        head = replace(
            proposal.head,
            changes_of=stored.action_id,
            code=_other_code(question.code),
            ran_beside=question.ran_beside,
        )
        differences = _differences(before, after, question.editable)
        what_changed = _what_changed(texts_for(question.language), differences)
        if not what_changed:  # the tool reads the new values as the same
            raise _Refused("")
        return _Change(before, replace(proposal, head=head), what_changed)

    async def _actions(self, context: TurnContext, stored: StoredAction) -> list[PendingAction]:
        """Return the steps of a plan, or the one action.

        Raises _Refused if a record of a step was changed in the store.
        """
        if stored.action.kind != PLAN_KIND:
            return [stored.action]
        scope = context.turn.scope
        steps = await self._store.repository.load(scope.conversation.id, step_ids(stored.action))
        existing_steps = [step for step in steps if step]
        actions = [
            step.action for step in existing_steps if step.is_genuine(self._store.signer, scope)
        ]
        if len(actions) < len(steps):
            raise _Refused(texts_for(stored.action.language).tampered())
        return actions

    async def _changed_action(
        self,
        context: TurnContext,
        action: PendingAction,
        changes: Mapping[str, Any],
        offered: Sequence[str],
    ) -> PendingAction:
        """Return the action of one call with these changes, and with a new id.

        `offered` has the names of the arguments that the question let the person change. Without
        `changes`, the call is a step of a plan in which the person has changed another step: it is
        only checked again. Raises _Refused.
        """
        texts = texts_for(action.language)
        changes_of = action.pending_action_id if changes else action.changes_of
        fresh = replace(
            action,
            pending_action_id=random_id(11),
            requested_at=context.received_at,
            state="armed",
            expires_at=0.0,
            outcome=None,
            plan="",
            changes_of=changes_of,
            standing_yes="",
        )
        tool = await self._tool_of(action)
        if tool is None:
            if changes:
                raise _Refused(texts.change_denied())
            return fresh
        try:
            call = await edited_call(tool, action.args, changes, self._agent.config, sealed=offered)
            # The new values may be outside of the bounds, or inside of them for the first time.
            standing = offered_rule(context.channel_run.standing(action.kind), call.args)
            new = replace(fresh, **_fields_of(call), standing=standing)
            check_proposal(new)
        except EditRefused as exc:
            ids = {"kind": action.kind, "action": action.pending_action_id}
            log.info("pending.change_refused", extra=ids)
            raise _Refused(_refusal_text(texts, exc)) from exc
        except (TypeError, ValueError) as exc:  # too long for a record, or for a question
            raise _Refused(texts.field_problem(FieldProblem("refused"))) from exc
        return new

    async def _tool_of(self, action: PendingAction) -> Tool | None:
        """Return the tool of a proposed call.

        Return None if the tool is gone, if its own code asked the question, or if the person may
        not use it any more.
        """
        tool = next((tool for tool in self._agent.tools if tool.name == action.kind), None)
        if tool is None or action.asked_by:
            return None
        selector = self._agent.selector
        if selector is not None and await would_show(selector, tool) == "hidden":
            return None
        return tool

    async def _ask_anew(
        self,
        context: TurnContext,
        stored: StoredAction,
        change: _Change,
    ) -> TurnAnswer:
        """Answer with the new question.

        The earlier action ends in the same commit, so no later yes runs it.
        """
        question, actions = await self._questions.ask(
            context,
            change.proposal,
            above="",
            changes_text=change.text,
        )
        await self._questions.note_question(context.turn, question.action_id)
        outcome = texts_for(stored.action.language).changed_meanwhile(stored.action.preview)
        transition = Transition(
            action_id=stored.action_id,
            from_states=WAITING_STATES,
            to="superseded",
            outcome_text=outcome,
            decided_by_event=context.turn.event_id,
        )
        # The history has the calls of the earlier question: each is linked to its new action.
        self._outcomes.link_to_change(context, change.successors)
        # Without a worker the message of the earlier question is not known.
        closing_replies: tuple[TurnReply, ...] = ()
        if context.lease:
            closing_replies = await self._questions.close(
                context.turn, stored, "superseded", outcome
            )
        return TurnAnswer(
            TurnChange(
                replies=(*closing_replies, question), new_actions=actions, transition=transition
            ),
            predecessors=change.predecessors,
        )

    async def begin(self, context: TurnContext, stored: StoredAction) -> TurnAnswer:
        """Ask for the first field that the person may change.

        The question stays open: its buttons work, and so does a yes that quotes it.
        """
        # Values take longer to type than a yes, so this gives the question more time.
        open_form = await self._store.repository.open_form(
            context.turn.conversation.id, stored.action_id
        )
        if open_form is not None:
            stored = replace(stored, expires_at=open_form.expires_at)
        return self._ask_field(context, stored, _Progress(stored.action_id, 0, {}))

    def takes_message(self, context: TurnContext, stored: StoredAction, phase: Phase) -> bool:
        """Return whether a message is about the fields of a question, which is in this phase.

        It is the value of the field that is asked for, or the label of the button to change, which
        a person may type instead. A message that quotes the question is no value: it answers the
        question. After the time of the question, a value counts as an answer that came too late.
        """
        # In these phases the question waits no more (`Phase`). A person who is still asked for a
        # field must read that.
        if phase in ("time_over", "expired", "unknown"):
            return self._progress(context, stored) is not None
        turn = context.turn
        quotes_question = bool(turn.replied_to) and turn.replied_to in stored.question_messages
        if phase != "open" or quotes_question:
            return False
        if self._progress(context, stored) is not None:
            return True
        label = texts_for(stored.action.language).change_label
        return bool(stored.action.form) and _is_word(turn.text, label)

    async def take_message(self, context: TurnContext, stored: StoredAction) -> TurnAnswer:
        """Answer a message to an open question for which `takes_message` is true."""
        progress = self._progress(context, stored)
        if progress is None:
            return await self.begin(context, stored)
        return await self._take_value(context, stored, progress)

    def stop_asking(self, context: TurnContext) -> None:
        """Ask for no further field, because the question has ended."""
        context.memory.notes.pop(NOTE, None)

    async def _take_value(
        self,
        context: TurnContext,
        stored: StoredAction,
        progress: _Progress,
    ) -> TurnAnswer:
        """Take a message as the value of a field, or as a word that keeps it or ends the change.

        A no ends the change as well, but not for a field of yes or no.
        """
        texts = texts_for(stored.action.language)
        field = stored.action.edit_form.fields[progress.place]
        text = context.turn.text.strip()
        # One of the choices may itself be "no" or "-".
        if field.type == "choice" and _is_readable(field, text):
            return await self._take_answer(context, stored, progress, text)
        answer = read_answer(self._parser, text, stored.action.language).intent
        if text in _KEEPS or _is_word(text, texts.keep_label):
            return await self._take_answer(context, stored, progress, None)
        is_no = answer == "cancel" and field.type != "boolean"
        if is_no or _is_word(text, texts.leave_word):
            self.stop_asking(context)
            return self.repeat_unchanged(context, stored)
        if field.type == "boolean" and answer in ("confirm", "cancel"):
            text = "true" if answer == "confirm" else "false"
        return await self._take_answer(context, stored, progress, text)

    async def take_tap(self, context: TurnContext, press: ButtonPress | None) -> TurnAnswer | None:
        """Answer a tap on a button below a field; None unless this field is asked for now."""
        stored = context.open_action
        if stored is None or stored.state != "shown":
            return None
        if press is None or press.choice is None:
            return None
        choice = press.choice
        if stored.action.is_expired(context.received_at):
            return None
        progress = self._progress(context, stored)
        if progress is None or progress.field_id != press.action_id:
            return None
        options = _options(stored.action.edit_form.fields[progress.place])
        if choice > len(options):
            return None
        # The first button keeps the value. The others stand for the options, in their order.
        text = None
        if choice > 0:
            text = options[choice - 1]
        return await self._take_answer(context, stored, progress, text)

    async def _take_answer(
        self,
        context: TurnContext,
        stored: StoredAction,
        progress: _Progress,
        text: str | None,
    ) -> TurnAnswer:
        """Take the answer for one field, and ask for the next one. After the last, make the change.

        `text` None keeps the value. A value with a problem is asked for again.
        """
        fields = stored.action.edit_form.fields
        field = fields[progress.place]
        if text is not None:
            try:
                field.read(text)
            except UnreadableValue as exc:
                problem = exc.problem
                if field.type == "boolean":
                    # Its buttons name the choices, in the words of the language.
                    problem = FieldProblem("refused")
                return self._ask_field(context, stored, progress, problem)
        progress = progress.after_answer(field.name, text)
        if progress.place < len(fields):
            return self._ask_field(context, stored, progress)
        return await self.take_form(context, stored, progress.values)

    def _ask_field(
        self,
        context: TurnContext,
        stored: StoredAction,
        progress: _Progress,
        problem: FieldProblem | None = None,
    ) -> TurnAnswer:
        """Answer with the request for one field, below the problem of the last answer."""
        context.memory.notes[NOTE] = progress.to_dict()
        texts = texts_for(stored.action.language)
        field = stored.action.edit_form.fields[progress.place]
        label = literal(field.label)
        if field.description:
            label = f"{label} ({literal(field.description)})"

        # A yes or no is stored as "true" or "false", and shown in the words of the language.
        words: dict[str, str] = {}
        if field.type == "boolean":
            words = {"true": texts.confirm_label, "false": texts.cancel_label}
        value = literal(words.get(field.text, field.text)) or _EMPTY
        options = [words.get(option, option) for option in _options(field)]
        labels = [texts.keep_label, *(option.strip() or _EMPTY for option in options)]
        buttons = []
        for number, button_label in enumerate(labels):
            token = self._store.signer.choice_token(progress.field_id, number, context.turn.scope)
            buttons.append(Button(button_label, token))

        problem_text = ""
        if problem:
            problem_text = texts.field_problem(problem)
        choices = ""
        # The problem "choice" names the choices already.
        if field.type == "choice" and (problem is None or problem.kind != "choice"):
            choices = texts.field_problem(FieldProblem("choice", ", ".join(field.choice_texts)))
        text = paragraphs([problem_text, texts.ask_field(label, value), choices])
        seconds = seconds_to_answer(stored.action, context.received_at)
        reply = Reply(text, tuple(buttons), answer_seconds=seconds, asks_value=True)
        return TurnAnswer(TurnChange(replies=(TurnReply(reply),)))

    def _progress(self, context: TurnContext, stored: StoredAction) -> _Progress | None:
        """Return which field of this question the person is asked for, None if for none.

        A note about another question is removed.
        """
        # `_ask_field` wrote the note, perhaps in another version of Sayso: then nothing is asked.
        note = context.memory.notes.get(NOTE) or {}
        try:
            progress = _Progress(note["action_id"], int(note["place"]), dict(note["values"]))
        except (TypeError, KeyError, ValueError):
            return None
        is_field = 0 <= progress.place < len(stored.action.form)
        if progress.action_id != stored.action_id or not is_field:
            del context.memory.notes[NOTE]
            return None
        return progress

    async def mark_changes(self, context: TurnContext, proposal: Proposal) -> tuple[Proposal, str]:
        """Return a model's proposal as a change of the open question, and what differs as text.

        The person has answered the question with other words, such as "yes, but 2 kg", and the
        model has proposed something new. That is a change of the question if it has the same tools
        in the same order. Any other proposal is returned unchanged, with "" as the text.
        """
        stored = context.open_action
        if stored is None or stored.is_changed or stored.state not in WAITING_STATES:
            return proposal, ""
        if stored.action.is_expired(context.received_at):
            return proposal, ""
        try:
            before = await self._actions(context, stored)
        except _Refused:
            return proposal, ""
        actions = proposal.steps or (proposal.head,)
        if [each.kind for each in before] != [each.kind for each in actions]:
            return proposal, ""
        differences = _differences(before, actions, stored.action.editable)
        if not differences:
            return proposal, ""
        head = replace(proposal.head, changes_of=stored.action_id)
        text = _what_changed(texts_for(proposal.head.language), differences)
        return replace(proposal, head=head), text


def _fields_of(call: EditedCall) -> dict[str, Any]:
    """Return the fields of a PendingAction that a changed call replaces.

    Raises TypeError or ValueError for arguments that no record can hold.
    """
    tool = call.tool
    return {
        **exact_args(call.args),
        "preview": as_markdown(call.preview),
        "tool_digest": tool.definition_digest,
        "values_digest": call.values_digest,
        "form": tool.edit_fields(call.editable, call.args),
        "version": tool.version,
        "idempotent": tool.idempotent,
    }


def _of_step(number: int, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of one step of a plan, by the names of its arguments.

    In `values` they have the number of the step before their names, as in "2.quantity".
    """
    start = f"{number}."
    values_of_step = {}
    for name, value in values.items():
        if name.startswith(start):
            values_of_step[name.removeprefix(start)] = value
    return values_of_step


def _names_of_step(number: int, names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of one step of a plan, without the number of the step before them."""
    return tuple(_of_step(number, dict.fromkeys(names)))


def _other_code(before: str) -> str:
    """Return a code of four digits for the new question, other than `before`; "" if that is "".

    A person who types the old code does not confirm the new question.
    """
    if not before:
        return ""
    # One of the 9,999 other codes: less than a whole round of 10,000 never leads back to `before`.
    other = (int(before) + 1 + randbelow(9_999)) % 10_000
    return f"{other:04}"


def _differences(
    before: Sequence[PendingAction],
    after: Sequence[PendingAction],
    editable: Sequence[str],
) -> list[_Difference]:
    """Return the arguments that differ between two lists of actions.

    `editable` has the names that the person may change, as the fields of the question name them.
    Of each action these come first.
    """
    differences = []
    is_plan = len(after) > 1
    for number, (old, new) in enumerate(zip(before, after, strict=True), start=1):
        offered = tuple(editable)
        if is_plan:
            offered = _names_of_step(number, editable)
        offered_names = [name for name in offered if name in new.args]
        for name in dict.fromkeys([*offered_names, *old.args, *new.args]):
            old_value = old.args.get(name)
            new_value = new.args.get(name)
            # The types are compared, too: 1 and True are equal.
            if old_value == new_value and type(old_value) is type(new_value):
                continue
            is_shown = _is_in(old.preview, old_value) or _is_in(new.preview, new_value)
            difference = _Difference(
                step=number if is_plan else 0,
                name=name,
                before=old_value,
                after=new_value,
                is_known=name in offered or is_shown,
            )
            differences.append(difference)
    return differences


def _what_changed(texts: Texts, differences: Sequence[_Difference]) -> str:
    """Return the text that names each difference that the person may know, "" for none."""
    parts = []
    for each in differences:
        if not each.is_known:
            continue
        label = literal(name_in_words(each.name) or each.name)
        if each.step:
            label = f"{each.step}\\. {label}"
        parts.append(f"{label}: ~~{_shown(texts, each.before)}~~ → {_shown(texts, each.after)}")
    if not parts:
        return ""
    shown_parts = parts[:MAX_SHOWN_CHANGES]
    left_out = len(parts) - len(shown_parts)
    if left_out:
        shown_parts.append(f"+{left_out}")
    return texts.what_changed("; ".join(shown_parts))


def _is_in(preview: str, value: Any) -> bool:
    """Return whether a preview shows a value. 5 is not shown by 125 or 5.20, nor "EU" by "EUR"."""
    text = value_text(value)
    if not text:
        return False
    spellings = f"{re.escape(text)}|{re.escape(literal(text))}"
    return re.search(f"{_BOUNDARY}(?:{spellings}){_BOUNDARY}", preview) is not None


def _shown(texts: Texts, value: Any) -> str:
    """Return a value as it stands in a question, cut if it is long, as Markdown."""
    if isinstance(value, bool):
        return literal(texts.confirm_label if value else texts.cancel_label)
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        text = ", ".join(value)
    elif isinstance(value, dict | list):
        text = serialize(value)
    else:
        text = value_text(value)
    if len(text) > MAX_SHOWN_CHARS:
        text = f"{text[:MAX_SHOWN_CHARS]}…"
    return literal(text) or _EMPTY


def _options(field: FormField) -> tuple[str, ...]:
    """Return the values of a field that get a button. Too many choices get none."""
    if field.type == "boolean":
        return ("true", "false")
    choices = field.choice_texts
    if len(choices) <= _MOST_CHOICES:
        return choices
    return ()


def _is_word(text: str, word: str) -> bool:
    """Return whether a message is just this word, in capitals or not."""
    return text.strip().rstrip(".!").casefold() == word.casefold()


def _is_readable(field: FormField, text: str) -> bool:
    """Return whether a text is a value of the field."""
    try:
        field.read(text)
    except UnreadableValue:
        return False
    return True


def _problems_text(texts: Texts, form: EditForm, problems: Mapping[str, FieldProblem]) -> str:
    """Return a line for each field with a problem, which says what is wrong."""
    labels = {field.name: literal(field.label) for field in form.fields}
    lines = [f"{labels[name]}: {texts.field_problem(each)}" for name, each in problems.items()]
    return "\n".join(lines)


def _refusal_text(texts: Texts, error: EditRefused) -> str:
    """Return why a change was refused, for the person. The text of the error is for models."""
    if error.result is not None:
        return as_markdown(result_text(serialize(error.result)))
    if error.kind in ("denied", "not_editable"):
        return texts.change_denied()
    problem = texts.field_problem(FieldProblem("refused"))
    names = [literal(name_in_words(name)) for name in error.names]
    if not names:
        return problem
    return f"{', '.join(names)}: {problem}"
