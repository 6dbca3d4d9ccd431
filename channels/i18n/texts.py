"""Texts: what the bot itself says, in each language that has a catalogue.

A catalogue is a TOML file in `catalogues/` with the same keys in each language. `Texts` has a
method or an attribute for each key, so that a caller cannot misspell one or forget a value.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from typing import Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from sayso.channels.edit_form import FieldProblem
from sayso.channels.i18n.catalogue import FALLBACK, LANGUAGES, catalogue, shipped
from sayso.channels.markdown.literal import Markdown, as_markdown
from sayso.channels.markdown.outcome_signs import without_signs
from sayso.channels.markdown.split import head
from sayso.channels.types import Turn

#: The environment variable with the users' time zone, such as Europe/Berlin.
ZONE_VARIABLE = "SAYSO_TIMEZONE"
#: What a line of the answer to /whoami says.
WhoLine = Literal["id", "name", "channel", "role", "aliases", "accounts"]
#: How many characters of a preview are repeated after it was shown whole, so that the result fits
#: in one message of every platform.
MAX_REPEATED_CHARS = 300
#: How much of a result is repeated where a model's answer follows, which tells the rest.
MAX_BRIEF_LINES = 3
MAX_BRIEF_CHARS = 200
#: A result with at most so many characters is no sentence in any language: "ok", "no", "17".
MAX_BARE_CHARS = 3
#: The question marks of all languages at the end of a text.
_QUESTION_MARKS = "?\uff1f\u061f"
#: What may stand around a question: emphasis in Markdown.
_EMPHASIS = "*_~"
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
#: One condition of a plural rule, such as "n % 10 = 2..4" or "n != 1,3".
_RELATION = re.compile(
    r"n(?: % (?P<modulus>\d+))? (?P<equals>!?=) (?P<ranges>\d+(?:\.\.\d+)?(?:,\d+(?:\.\.\d+)?)*)"
)


@lru_cache(maxsize=256)
def texts_for(language: str = "") -> Texts:
    """Return the texts for a BCP 47 tag: pt for "pt-BR", English for an unknown tag or none."""
    if language in LANGUAGES:
        return Texts(language, catalogue(language))
    return texts_for(shipped(language) or FALLBACK)


def as_statement(preview: str) -> str:
    """Return a preview without the marks of a question: "Delete INV-7" for "Delete INV-7?".

    Emphasis around the whole stays: "**Delete INV-7**" for "**Delete INV-7?**".
    """
    text = preview.strip()
    without_opening = text.lstrip(_EMPHASIS)
    opening = text.removesuffix(without_opening)
    question = without_opening.rstrip(_EMPHASIS)
    closing = without_opening.removeprefix(question)

    statement = question.rstrip(_QUESTION_MARKS)
    if statement != question:
        # Spanish has a mark at the beginning of the question too, which may follow a sentence.
        before, _, asked = statement.rpartition("¿")
        statement = before + asked
    if not statement or statement == question:
        return preview
    return opening + statement.rstrip() + closing


def brief(preview: str) -> str:
    """Return a preview as other texts quote it: a statement, and at most its beginning.

    A beginning ends in "..." and leaves no escape and no code block open. A sign at the beginning
    of a line, which marks an outcome, becomes a plain character: a tool could otherwise write a
    preview that looks like the outcome of an action.
    """
    preview = without_signs(as_statement(preview))
    if len(preview) <= MAX_REPEATED_CHARS:
        return preview

    cut = preview[:MAX_REPEATED_CHARS]
    backslashes = len(cut) - len(cut.rstrip("\\"))
    if backslashes % 2:
        # The last one escaped the character that was cut off.
        cut = cut[:-1]
    # A space that is written as `&#32;` may be cut in the middle.
    cut = re.sub(r"&(#\d{0,2})?$", "", cut)
    if cut.count("```") % 2:
        return f"{cut}...\n```"
    return f"{cut}..."


def brief_result(result: str) -> str:
    """Return the beginning of a tool's result as Markdown: its first lines.

    "" if a code block begins in them, since half of one says nothing.
    """
    text = without_signs(as_markdown(result)).strip()
    lines = text.split("\n")
    if len(lines) <= MAX_BRIEF_LINES and len(text) <= MAX_BRIEF_CHARS:
        return text

    first_lines = "\n".join(lines[:MAX_BRIEF_LINES])
    beginning = head(first_lines, MAX_BRIEF_CHARS).rstrip()
    if "```" in beginning:
        return ""
    return f"{beginning} […]"


def _fixed(key: str) -> Callable[[Texts], str]:
    """Return a method for a text without values."""
    return lambda texts: texts.say(key)


def _with_preview(key: str) -> Callable[[Texts, str], str]:
    """Return a method for a text that repeats the beginning of a preview, its argument."""
    return lambda texts, preview: texts.say(key, preview=brief(preview))


def _with_markdown(key: str, name: str) -> Callable[[Texts, str], str]:
    """Return a method for a text with one value, its argument.

    The value is Markdown, which is inserted unchanged.
    """
    return lambda texts, value: texts.say(key, **{name: value})


def _with_plain_text(key: str, name: str) -> Callable[[Texts, str], str]:
    """Return a method for a text with one value, which is its argument.

    The value is plain text, unless it is of the type `Markdown`. Signs of outcomes in it become
    plain characters, because a model may have written it.
    """
    return lambda texts, value: texts.say(key, **{name: without_signs(as_markdown(value))})


class Texts:
    """The texts of one language. Lives as long as the process.

    All texts are Markdown. Of the values that are inserted:

    * a preview is Markdown. A question has it unchanged. A text about a question that was shown
      before repeats only its beginning (`brief`), which cannot look like an outcome. The caller of
      `expired_unanswered` and `escalation` passes such a beginning;
    * a result, a reminder, a scheduled text, a file name, the reference of an error, the label of
      an answer to choose and the choices of a form's field are plain text, unless they are of the
      type `Markdown`; all other values are Markdown;
    * a `code` is what a yes must contain to confirm, "" for a question without a code;
    * `seconds` is a duration, which is written in whole seconds, minutes or hours.

    Most texts with no value or with one are attributes: `_fixed`, `_with_preview`, `_with_markdown`
    and `_with_plain_text` make their methods.
    """

    def __init__(self, language: str, templates: dict[str, Any]) -> None:
        self.language = language
        self._templates = templates
        #: What people reply to confirm or cancel.
        self.yes: str = templates["yes"]
        self.no: str = templates["no"]
        #: Button labels, at most 20 characters.
        self.confirm_label: str = templates["confirm_label"]
        self.cancel_label: str = templates["cancel_label"]
        self.undo_label: str = templates["undo_label"]
        self.change_label: str = templates["change_label"]
        #: The button with which a person takes back what others were asked for.
        self.withdraw_label: str = templates["withdraw_label"]
        #: The button, while the bot asks field by field, that keeps a value.
        self.keep_label: str = templates["keep_label"]
        #: What people write to leave the fields as they are.
        self.leave_word: str = templates["leave_word"]

    def question(self, preview: str, seconds: float, code: str = "") -> str:
        """Return a question: the preview, and how and for how long it can be answered."""
        key = "question_with_code" if code else "question"
        return self.say(key, preview=preview, duration=self._duration(seconds), code=code)

    def code_needed(self, preview: str, code: str) -> str:
        """Return that this question needs a yes with the code."""
        return self.say("code_needed", preview=brief(preview), code=code)

    def ask_field(self, label: str, value: str) -> str:
        """Return the request for the new value of a field. `label` and `value` are Markdown.

        `value` is what the field has now.
        """
        return self.say("ask_field", label=label, value=value, leave=self.leave_word)

    def unchanged(self, preview: str, code: str = "") -> str:
        """Return the open question again, after a change that was not made."""
        return self.say("unchanged", preview=brief(preview), yes=self._yes(code))

    #: The answer was to a question that its person has changed since.
    changed_meanwhile = _with_preview("changed_meanwhile")
    #: What differs from the question before, as Markdown.
    what_changed = _with_markdown("what_changed", "changes")
    #: The policy denies the call with the changed values.
    change_denied = _fixed("change_denied")

    def field_problem(self, problem: FieldProblem) -> str:
        """Return why a value of a form cannot be taken."""
        match problem.kind:
            case "too_small" | "too_large" | "too_long":
                return self.say(f"field_{problem.kind}", bound=problem.detail)
            case "choice":
                return self.say("field_choice", choices=as_markdown(problem.detail))
        return self.say(f"field_{problem.kind}")

    #: The yes was written before the question was delivered.
    early = _with_preview("early")

    def another_quoted(self, preview: str, code: str = "") -> str:
        """Return that the yes quotes a message that does not show the open question."""
        return self.say("another_quoted", preview=brief(preview), yes=self._yes(code))

    def unclear(self, preview: str, code: str = "") -> str:
        """Return the question again after a reply that may be an answer, but no clear one."""
        return self.say("unclear", preview=brief(preview), yes=self._yes(code))

    def explained(self, preview: str, seconds: float, code: str = "") -> str:
        """Return what a yes to the open question would do, and how long it can be answered.

        `preview` is a statement, and is quoted in full.
        """
        text = self.say(
            "explained", preview=preview, duration=self._duration(seconds), yes=self._yes(code)
        )
        if "\n" not in preview:
            return text
        # In each catalogue the last line says how to answer. The last line of the preview may be an
        # item of a list: without a blank line, Markdown would make the answer a part of that item.
        explanation, _, how_to_answer = text.rpartition("\n")
        return f"{explanation}\n\n{how_to_answer}"

    #: The yes may be meant for something that the bot said after the question.
    asked_before = _with_preview("asked_before")
    #: The yes was written in another thread than the open question.
    asked_elsewhere = _with_preview("asked_elsewhere")
    #: An anonymous admin wrote to the bot.
    anonymous = _fixed("anonymous")
    #: The user dismissed the question without a decision.
    ignored = _with_preview("ignored")

    def done(self, preview: str, result: str) -> str:
        """Return the result of an action, or that it was done if it has none.

        A result that is no sentence, such as "0" or "ok", stands below what was done.
        """
        text = without_signs(as_markdown(result))
        if _is_sentence(result):
            return text
        statement = self.say("done", preview=brief(preview))
        if not text.strip():
            return statement
        return f"{statement}\n{text}"

    def done_briefly(self, preview: str, result: str) -> str:
        """Return what was done, with the beginning of its result. A model tells the rest below."""
        statement = self.say("done", preview=brief(preview))
        beginning = brief_result(result)
        return f"{statement}\n{beginning}" if beginning else statement

    #: Names of tools that ran in the same step as the proposed action and asked nothing. What they
    #: did stays, whatever is answered.
    ran_beside = _with_markdown("ran_beside", "names")
    #: Names of tools that failed in the same step. No model reports it, since the run has ended
    #: with the question.
    failed_beside = _with_markdown("failed_beside", "names")

    def done_before(self, at: float) -> str:
        """Return that the proposed action was done at a time, in Unix seconds."""
        return self.say("done_before", time=_clock_time(at))

    def maybe_done_before(self, at: float) -> str:
        """Return that the proposed action may have been done at a time, in Unix seconds."""
        return self.say("maybe_done_before", time=_clock_time(at))

    #: The same call ran without a question before, and its outcome is unknown.
    maybe_done = _fixed("maybe_done")

    #: The action was started and raised an error.
    failed = _with_preview("failed")
    #: The action was started, and its result is unknown.
    unknown = _with_preview("unknown")
    #: The action was interrupted, and a check showed that it did not happen.
    not_done = _with_preview("not_done")

    def correction(self, preview: str, result: str) -> str:
        """Return that an action with an unknown result was done after all."""
        return self.say("correction", done=self.done(preview, result))

    def forgot_turns(self, since: float) -> str:
        """Return the notice that all messages of the user since a time were lost.

        `since` is in Unix seconds.
        """
        return self.say("forgot_turns", time=_date_and_time(since))

    def forgot_answer(self, before: float) -> str:
        """Return the reply to a yes or no whose question was lost before a time.

        `before` is in Unix seconds.
        """
        return self.say("forgot_answer", time=_date_and_time(before))

    #: An open question was closed, because its answer may be lost.
    forgot_question = _with_preview("forgot_question")
    #: What became of an action, although part of the conversation was lost.
    forgot_outcome = _with_markdown("forgot_outcome", "outcome")

    def cancelled(self, preview: str) -> str:
        """Return that nothing was done, after a no."""
        return self._quoting("cancelled", preview)

    #: The yes came too late.
    expired = _with_preview("expired")

    def dropped(self, preview: str) -> str:
        """Return that nothing was done, after the user went on to another subject."""
        return self._quoting("dropped", preview)

    #: After a yes: the stored action is not the one that was shown, or nothing can run it any more.
    unsafe = _with_preview("unsafe")
    #: The tool, or what its preview says, is not what it was when the question was asked.
    tool_changed = _with_preview("tool_changed")
    #: The question was answered before, and its outcome was sent then.
    already_done = _with_preview("already_done")
    #: The action was done, and its effect was taken back.
    undone = _with_preview("undone")
    #: Of two messages at once, the other one was taken.
    overtaken = _fixed("overtaken")
    #: A person wants to change values of an action whose stored record was altered in Redis. Its
    #: preview is not to be trusted, so it is not repeated.
    tampered = _fixed("tampered")
    #: The button belongs to a question that is over.
    stale = _fixed("stale")
    #: The buttons of a question's form.
    form_submit = _fixed("form_submit")
    form_cancel = _fixed("form_cancel")
    #: What a form says about itself: that nothing is done yet, that its fields are looked up, that
    #: no field differs from the question, and that it cannot be shown.
    form_note = _fixed("form_note")
    form_loading = _fixed("form_loading")
    form_unchanged = _fixed("form_unchanged")
    form_failed = _fixed("form_failed")
    #: The button belongs to another person's question.
    not_yours = _fixed("not_yours")

    def model_failed(self, kind: str = "away") -> str:
        """Return why the model gave no answer.

        `kind` is "away", "no_access", "busy", "refused", "too_long" or "cut_off". The vendor's own
        error is for the operator.
        """
        return self.say(f"model_{kind}")

    def model_lost(self, kind: str = "away") -> str:
        """Return why the model gave no answer, after tools have run that may have had an effect.

        `kind` is one of `model_failed`.
        """
        return self.say(f"lost_{kind}")

    #: What follows an answer that reached its length limit.
    answer_cut = _fixed("answer_cut")
    #: What follows the beginning of a text that is sent as a file.
    in_file = _fixed("in_file")

    def shortened(self, text: str, max_chars: int) -> str:
        """Return the text, or its beginning and how many characters were left out.

        The beginning has about `max_chars` characters.
        """
        if len(text) <= max_chars:
            return text
        beginning = head(text, max_chars)
        note = self.say("left_out", count=str(len(text) - len(beginning)))
        return f"{beginning.rstrip()}\n\n{note}"

    def plan(self, previews: Sequence[str]) -> str:
        """Return the preview of a plan: several steps under one yes."""
        steps = [_on_one_line(as_statement(preview)) for preview in previews]
        heading = self.say("plan", count=str(len(previews)))
        return "\n".join([heading, *self._numbered(steps)])

    def step(self, number: int, text: str) -> str:
        """Return a text about one step of a plan, such as its preview, behind its number."""
        return self.say("step", number=str(number), step=text)

    def plan_report(self, steps: Sequence[tuple[str, str, str]]) -> str:
        """Return how a plan ended.

        Each of `steps` has its state, its preview and the text of its outcome, which is Markdown:
        for "done" the result alone, for "failed" the text `failed` and a reason below it. Other
        states need none. All are in the language of the plan. The state is "done", "undone",
        "failed", "unknown", or "cancelled" for a step that was not started.
        """
        states = Counter(state for state, _, _ in steps)
        heading = self.say("report", done=str(states["done"]), count=str(len(steps)))
        reports = [self._step_report(*step) for step in steps]
        lines = [heading, *self._numbered(reports)]

        # The advice about the worst state is enough.
        for state in ("unknown", "failed", "cancelled"):
            if states[state]:
                lines += ["", self.say(f"after_{state}")]
                break
        return "\n".join(lines)

    def undo(self, preview: str) -> str:
        """Return the preview of taking an action back."""
        return self.say("undo", preview=as_statement(preview))

    def undo_offer(self, seconds: float) -> str:
        """Return how long an action can be undone."""
        return self.say("undo_offer", duration=self._duration(seconds))

    #: The mailbox of this conversation is full.
    busy = _fixed("busy")
    #: The last message was not taken: this person writes more per minute than is answered.
    too_fast = _fixed("too_fast")
    #: No new conversation can begin because too many people write.
    crowded = _fixed("crowded")
    #: This person is not on the list of people who may use the bot.
    stranger = _fixed("stranger")

    def pairing_code(self, code: str, seconds: float) -> str:
        """Return the code with which an operator admits the person, and how long it is valid."""
        return self.say("pairing_code", code=code, duration=self._duration(seconds))

    #: The person's id on this channel, which catalogues call {name}.
    your_id = _with_markdown("your_id", "name")
    #: An operator admitted the person.
    approved = _fixed("approved")
    #: The turn was ended because it took too long.
    too_long = _fixed("too_long")
    #: The turn takes longer than people wait without a sign.
    still_working = _fixed("still_working")
    #: The turn was ended by an error of the bot.
    broken = _fixed("broken")
    #: The reference under which the log has a private error.
    reference = _with_plain_text("reference", "reference")
    #: The channel was removed from the configuration.
    channel_gone = _fixed("channel_gone")
    #: Each worker that tried this turn died, so it is not tried again. How far it came is unknown.
    interrupted_before = _fixed("interrupted_before")
    #: What follows the outcome of an action after which the agent could not go on.
    rest_missing = _fixed("rest_missing")
    #: The run, the conversation or the day has spent its budget for models.
    budget_spent = _fixed("budget_spent")
    #: A guardrail stopped the question or the answer. The reason is for the operator.
    refused = _fixed("refused")
    #: The run made the same calls again and again.
    in_circles = _fixed("in_circles")
    #: The run took all the steps that it may take, without an answer.
    too_many_steps = _fixed("too_many_steps")
    #: The running work was stopped and the waiting messages were dropped.
    stopped = _fixed("stopped")
    nothing_to_stop = _fixed("nothing_to_stop")
    #: Nothing of this person was running in the group; the work of others goes on.
    nothing_of_yours = _fixed("nothing_of_yours")
    #: A text that may have arrived before, below a note that says so.
    repeated = _with_markdown("repeated", "text")

    def maybe_missing(self, name: str) -> str:
        """Return what is sent in place of a file that may have arrived before.

        `name` is its name, "" for none.
        """
        return self.say("maybe_missing", name=as_markdown(name) or self.say("a_file"))

    #: A reminder that is due.
    reminder = _with_plain_text("reminder", "text")

    def reminder_set(self, text: str, when: str) -> str:
        """Return that a reminder is set. `when` is the time as people read it."""
        return self.say("reminder_set", text=without_signs(as_markdown(text)), when=when)

    #: A text that a tool scheduled for now.
    scheduled = _with_plain_text("scheduled", "text")

    #: A question was not answered in time. The argument is the `brief` of its preview.
    expired_unanswered = _with_markdown("expired_unanswered", "preview")

    def escalation(self, preview: str, channel: str, seconds: float) -> str:
        """Return what operators read about an unanswered question on `channel`.

        `preview`: the `brief` of the question's. `seconds`: how long it can still be answered.
        """
        return self.say(
            "escalation", preview=preview, channel=channel, duration=self._duration(seconds)
        )

    def others_asked(self, preview: str, names: str, need: int, seconds: float) -> str:
        """Return that other people were asked about an action, and how long they have.

        `names` are those people, as Markdown; "" for all others in the conversation. `need`: how
        many of them must agree.
        """
        key = "others_asked" if names else "others_asked_here"
        if need > 1:
            key += "_many"
        return self.say(
            key,
            preview=preview,
            names=names,
            need=str(need),
            duration=self._duration(seconds),
        )

    def others_asked_too(self, preview: str, names: str) -> str:
        """Return that further people were asked, because nobody has decided yet."""
        return self.say("others_asked_too", preview=brief(preview), names=names)

    def others_asked_instead(self, preview: str, names: str) -> str:
        """Return that further people were asked, because too few of the first can be reached."""
        return self.say("others_asked_instead", preview=brief(preview), names=names)

    #: Other people must agree, and the bot cannot ask anybody from here.
    cannot_ask_others = _with_preview("cannot_ask_others")
    #: Too few of the people who may agree can be asked.
    nobody_to_ask = _with_preview("nobody_to_ask")
    #: So many actions of the person wait for others that nobody is asked about one more.
    too_many_requests = _with_preview("too_many_requests")
    #: A platform does not say who belongs to a group.
    deciders_unknown = _fixed("deciders_unknown")

    def request(
        self,
        preview: str,
        asker: str,
        need: int,
        code: str,
        seconds: float,
        *,
        in_group: bool = False,
    ) -> str:
        """Return the question to people who may decide about another person's action.

        `asker` is the other person, as Markdown. `need`: how many people must agree. In a group,
        most platforms bring the bot no message that does not mention it: only the buttons are named.
        """
        key = "request_many" if need > 1 else "request"
        how = self._how_to_decide(code, seconds, in_group=in_group)
        return self.say(key, preview=preview, asker=asker, need=str(need), how=how)

    def request_reminder(
        self, preview: str, code: str, seconds: float, *, in_group: bool = False
    ) -> str:
        """Return that a request still waits for an answer."""
        how = self._how_to_decide(code, seconds, in_group=in_group)
        return self.say("request_reminder", preview=brief(preview), how=how)

    def _how_to_decide(self, code: str, seconds: float, *, in_group: bool) -> str:
        """Return how and for how long a request can be answered."""
        key = "request_answer_in_group" if in_group else "request_answer"
        return self.say(key, code=code, duration=self._duration(seconds))

    #: The answer to a request came when it was decided. `outcome` says how.
    request_over = _with_markdown("request_over", "outcome")
    #: The record of the action is not the one that the request showed.
    request_changed = _fixed("request_changed")

    def which_request(self, preview: str, code: str) -> str:
        """Return how to answer a request, after a yes or no that names none."""
        return self.say("which_request", preview=brief(preview), code=code)

    #: The person may not decide about this action.
    not_a_decider = _fixed("not_a_decider")
    #: The person has asked for this action, so others decide.
    own_request = _fixed("own_request")

    def ask_reason(self, preview: str, answer: Literal["yes", "no"], code: str) -> str:
        """Return that the person must say why they give this answer, and how."""
        word = self.yes if answer == "yes" else self.no
        return self.say("ask_reason", preview=brief(preview), answer=word, code=code)

    def vote_counted(self, preview: str, count: int, need: int) -> str:
        """Return that an answer counts, and how many people agree so far."""
        return self.say("vote_counted", preview=brief(preview), count=str(count), need=str(need))

    def vote_counted_in_group(self, preview: str, names: str, count: int, need: int) -> str:
        """Return whose answer counts, and how many people agree so far."""
        return self.say(
            "vote_counted_in_group",
            preview=brief(preview),
            names=names,
            count=str(count),
            need=str(need),
        )

    def agreed_by(self, names: str, at: float) -> str:
        """Return who agreed to an action, and when. `at` is in Unix seconds."""
        return self.say("agreed_by", names=names, time=_date_and_time(at))

    #: What those who agreed read of an action that did not succeed.
    agreed_failed = _fixed("agreed_failed")
    agreed_unknown = _fixed("agreed_unknown")
    agreed_not_done = _fixed("agreed_not_done")

    def refused_by(self, names: str, at: float) -> str:
        """Return who said no to an action, and when. `at` is in Unix seconds."""
        return self.say("refused_by", names=names, time=_date_and_time(at))

    def withdrawn_by(self, names: str, at: float) -> str:
        """Return who took an action back, and when. `at` is in Unix seconds."""
        return self.say("withdrawn_by", names=names, time=_date_and_time(at))

    def refusal(self, preview: str, names: str, reason: str) -> str:
        """Return that other people said no. `reason` is plain text, "" for none."""
        text = self.say("refusal", preview=brief(preview), names=names)
        if not reason:
            return text
        line = self.say("refusal_reason", reason=without_signs(as_markdown(reason)))
        return f"{text}\n{line}"

    def undecided(self, preview: str, count: int, need: int) -> str:
        """Return that too few people agreed in time."""
        return self.say("undecided", preview=brief(preview), count=str(count), need=str(need))

    #: What replaces a request whose time is over, or which too few people got.
    undecided_request = _fixed("undecided_request")
    unreachable_request = _fixed("unreachable_request")

    def status_others(self, preview: str, names: str, seconds: float) -> str:
        """Return an action that other people decide, and how long they have.

        `names` are those people, as Markdown; "" for all others in the conversation.
        """
        return self.say(
            "status_others" if names else "status_others_here",
            preview=brief(preview),
            names=names,
            duration=self._duration(seconds),
        )

    def standing_label(self, seconds: float) -> str:
        """Return the label of the button for a standing yes, about 20 characters."""
        return self.say("standing_label", duration=self._span(seconds))

    def standing_effect(self, seconds: float) -> str:
        """Return what that button does, for platforms with room for it."""
        return self.say("standing_effect", duration=self._span(seconds))

    def standing_terms(self, bounds: str, seconds: float, times: int) -> str:
        """Return for which later calls a standing yes would count. `bounds` is Markdown."""
        return self.say(
            "standing_terms", duration=self._span(seconds), times=str(times), bounds=bounds
        )

    def standing_granted(self, times: int, until: float) -> str:
        """Return that the yes stands, for how many calls, and until when (Unix seconds)."""
        return self.say("standing_granted", times=str(times), time=_clock_time(until))

    def done_under_standing(
        self, preview: str, outcome: str, use: int, times: int, until: float
    ) -> str:
        """Return the outcome of a call that was done under a standing yes.

        Its person was not asked, so the preview stands in it whole. `outcome` is the result of
        `done`. `use` is the number of this use, `until` in Unix seconds.
        """
        statement = as_statement(preview)
        rest = outcome.removeprefix(self.done(preview, "")).strip()
        if "\n" in statement:
            statement = f"\n\n{statement}"
        text = self.say(
            "done_under_standing",
            preview=statement,
            use=str(use),
            times=str(times),
            time=_clock_time(until),
        )
        return f"{text}\n\n{rest}" if rest else text

    def under_standing(self, outcome: str, use: int, times: int, until: float) -> str:
        """Return any other outcome of a call that was to run under a standing yes."""
        line = self.say("under_standing", use=str(use), times=str(times), time=_clock_time(until))
        return f"{line}\n{outcome}"

    def status_standing(self, number: int, preview: str, use: int, times: int, until: float) -> str:
        """Return one standing yes, with the number by which /revoke ends it."""
        return self.say(
            "status_standing",
            number=str(number),
            preview=brief(preview),
            use=str(use),
            times=str(times),
            time=_clock_time(until),
        )

    #: A standing yes has ended, because its person wants that.
    standing_revoked = _with_preview("standing_revoked")

    def standing_all_revoked(self, count: int) -> str:
        """Return that all standing yeses of a person here have ended."""
        return self.say("standing_all_revoked", count=str(count))

    #: There is no standing yes to end.
    standing_none = _fixed("standing_none")

    #: The text above buttons with answers to choose from.
    choose = _fixed("choose")
    #: One of these answers was chosen before.
    already_chosen = _with_plain_text("already_chosen", "label")
    help_intro = _fixed("help_intro")

    def command(self, name: str) -> str:
        """Return what a command does. Raises KeyError for an unknown command."""
        return self.say(f"help_{name}")

    #: Which tools ask before they run. The `names` stand in a line.
    asks_first = _with_markdown("asks_first", "names")
    #: What /tools says beside such a tool.
    needs_yes = _fixed("needs_yes")
    #: What /tools says to a person who may use none.
    no_tools = _fixed("no_tools")

    def who(self, what: WhoLine, value: str) -> str:
        """Return one line of the answer to /whoami: what is known of the person."""
        return self.say(f"who_{what}", value=value)

    def status_waiting(self, preview: str, seconds: float) -> str:
        """Return an open question and how long it can be answered."""
        return self.say("status_waiting", preview=brief(preview), duration=self._duration(seconds))

    #: An action that is being carried out.
    status_running = _with_preview("status_running")
    #: No question is open and no action is running.
    status_idle = _fixed("status_idle")

    def status_reminder(self, text: str, seconds: float) -> str:
        """Return a reminder and in how many seconds it is due."""
        return self.say(
            "status_reminder",
            text=without_signs(as_markdown(text)),
            duration=self._duration(seconds),
        )

    def link_code(self, code: str, seconds: float) -> str:
        """Return the code that a person types on another channel, and how long it is valid."""
        return self.say("link_code", code=code, duration=self._duration(seconds))

    #: In a group: codes are given and taken in a direct chat only.
    link_direct = _fixed("link_direct")

    def link_unknown_code(self, seconds: float) -> str:
        """Return that a code is wrong, used or expired. `seconds`: how long codes are valid."""
        return self.say("link_unknown_code", duration=self._duration(seconds))

    #: The account made or typed too many codes within an hour.
    link_too_many = _fixed("link_too_many")
    #: The code was made on the channel on which it was typed.
    link_same_channel = _fixed("link_same_channel")
    #: Both accounts belong to the same person already.
    link_same_person = _fixed("link_same_person")

    def link_two_people(self, one: str, other: str) -> str:
        """Return that the configuration gives both accounts to two people of these names."""
        return self.say("link_two_people", one=as_markdown(one), other=as_markdown(other))

    #: A person has the maximum of accounts, or too many links wait.
    link_no_room = _fixed("link_no_room")
    #: An operator must accept the link.
    link_waits = _fixed("link_waits")
    #: The accounts are joined. They stand in a line of Markdown.
    link_done = _with_markdown("link_done", "accounts")
    #: An operator did not accept the link.
    link_rejected = _with_markdown("link_rejected", "accounts")
    #: The account is joined with no other any more.
    unlinked = _fixed("unlinked")
    #: The account was joined with no other.
    not_linked = _fixed("not_linked")

    def away_until(self, until: float) -> str:
        """Return until when the person is away, in Unix seconds."""
        return self.say("away_until", time=_date_and_time(until))

    #: Who decides while the person is away.
    away_stand_in = _with_plain_text("away_stand_in", "name")
    #: The person is not away.
    not_away = _fixed("not_away")
    #: The absence of the person has ended.
    back = _fixed("back")
    #: How to write an absence.
    away_how = _fixed("away_how")
    #: The absence would be over already, or is too long.
    away_bad_time = _fixed("away_bad_time")
    #: Nobody is known by this name or id.
    away_unknown_person = _with_plain_text("away_unknown_person", "name")
    #: The person named themselves.
    away_yourself = _fixed("away_yourself")

    @property
    def weekdays(self) -> tuple[str, ...]:
        """Return the days of the week as people write them, Monday first, in lower case."""
        return tuple(self._templates["weekdays"])

    #: The history of this conversation was deleted.
    reset_done = _fixed("reset_done")

    def _quoting(self, key: str, preview: str) -> str:
        """Return a text that ends with a preview in quotation marks.

        Without them a preview such as "Cancel it" could read as the outcome. A preview of several
        lines stands below the text.
        """
        short = brief(preview)
        if "\n" not in short:
            return self.say(key, preview=self.say("quote", text=short))
        return f"{self.say(key, preview='').rstrip()}\n{short}"

    def _yes(self, code: str) -> str:
        """Return what a person has to write to confirm a question."""
        if code:
            return f"{self.yes} {code}"
        return self.yes

    def _step_report(self, state: str, preview: str, outcome_text: str) -> str:
        """Return how one step of a plan ended, indented as an item of a list."""
        if state == "done":
            return "\n   ".join(self.done(preview, Markdown(outcome_text)).splitlines())
        if state == "undone":
            return self.undone(_on_one_line(preview))

        line = self.say(f"report_{state}", preview=brief(_on_one_line(preview)))
        # The outcome of a failed action is `failed`, and a reason below it if one is known. The
        # line above says the first already.
        reason = ""
        failed = self.failed(preview)
        if state == "failed" and outcome_text.startswith(failed):
            reason = outcome_text.removeprefix(failed).strip()
        return "\n   ".join([line, *reason.splitlines()])

    def _numbered(self, texts: Sequence[str]) -> list[str]:
        return [self.step(number, text) for number, text in enumerate(texts, start=1)]

    def _duration(self, seconds: float) -> str:
        """Return a duration in whole units.

        It is rounded down, so that people never have less time.
        """
        whole = max(1, int(seconds))
        if whole < 120:
            return self._units(whole, "seconds")
        if whole < 7200:
            return self._units(whole // 60, "minutes")
        return self._units(whole // 3600, "hours")

    def _span(self, seconds: float) -> str:
        """Return a duration like `_duration`, and a whole hour or minute as one."""
        whole = max(1, int(seconds))
        if whole % 3600 == 0:
            return self._units(whole // 3600, "hours")
        if whole % 60 == 0:
            return self._units(whole // 60, "minutes")
        return self._duration(seconds)

    def _units(self, count: int, unit: Literal["seconds", "minutes", "hours"]) -> str:
        """Return a number of units in words."""
        forms: dict[str, str] = self._templates["duration"][unit]
        form = plural_form(self._templates["plural"], count)
        return _filled(forms.get(form, forms["other"]), {"count": str(count)})

    def say(self, key: str, **values: str) -> str:
        """Return the text of a key in the catalogue, with its placeholders filled."""
        return _filled(self._templates[key], {"yes": self.yes, "no": self.no} | values)


#: Returns the texts for the sender of a turn.
TextsForTurn = Callable[[Turn], Texts]
#: Returns the texts for a BCP 47 tag, those of the default language for "".
TextsForLanguage = Callable[[str], Texts]


def _clock_time(at: float) -> str:
    """Return a time, given in Unix seconds, without its date: "14:30". For the last hour."""
    return _local_time(at, "%H:%M")


def _date_and_time(at: float) -> str:
    """Return a time, given in Unix seconds, as people read it: "2026-12-31 14:30"."""
    return _local_time(at, "%Y-%m-%d %H:%M")


def _local_time(at: float, form: str) -> str:
    """Return a time, given in Unix seconds, in the users' time zone. `form`: as in strftime.

    If the zone is not set or unknown, the time is in UTC, and says so.
    """
    zone = users_zone()
    text = datetime.fromtimestamp(at, zone).strftime(form)
    return f"{text} UTC" if zone is UTC else text


def users_zone() -> tzinfo:
    """Return the users' time zone; UTC if it is not set or unknown."""
    name = os.environ.get(ZONE_VARIABLE, "")
    if name:
        with contextlib.suppress(ZoneInfoNotFoundError, ValueError, OSError):
            return ZoneInfo(name)
    return UTC


def _is_sentence(result: str) -> bool:
    """Return whether a result says something by itself: more than a number or a short word."""
    return len(result.strip()) > MAX_BARE_CHARS and any(map(str.isalpha, result))


def _on_one_line(preview: str) -> str:
    """Return the preview on one line: a second line could look like a further step."""
    return " ".join(preview.split())


def _filled(template: str, values: dict[str, str]) -> str:
    """Return the template with its placeholders filled in one pass.

    Braces inside a value stay as they are.
    """
    return _PLACEHOLDER.sub(lambda match: values[match[1]], template)


def plural_form(rules: dict[str, str], count: int) -> str:
    """Return the plural form of a whole number, "other" if no rule holds.

    `rules` are a catalogue's, by the form: "few" is the form of 3 in Polish. A rule is written as
    in Unicode's CLDR, such as "n % 10 = 2..4 and n % 100 != 12..14". Raises ValueError for a rule
    that is not.
    """
    for form, rule in rules.items():
        cases = rule.split(" or ")
        if any(_all_hold(case.split(" and "), count) for case in cases):
            return form
    return "other"


def _all_hold(relations: Sequence[str], count: int) -> bool:
    return all(_relation_holds(relation, count) for relation in relations)


def _relation_holds(relation: str, count: int) -> bool:
    """Return whether one condition of a plural rule holds. Raises ValueError."""
    parts = _RELATION.fullmatch(relation)
    if parts is None:
        raise ValueError(
            f"plural rule {relation!r} cannot be parsed: "
            "write it as in CLDR, such as 'n % 10 = 2..4'"
        )

    number = count
    if parts["modulus"]:
        number = count % int(parts["modulus"])
    is_inside = False
    for each in parts["ranges"].split(","):
        first, _, last = each.partition("..")
        if int(first) <= number <= int(last or first):
            is_inside = True
    return is_inside == (parts["equals"] == "=")
