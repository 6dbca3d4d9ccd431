"""How an action ended: the outcome as a value, and the texts that its person is told.

`settlement.py` carries an action out and stores what this module returns. Nothing here reads or
changes a record. What a person is not told of an error is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from sayso.channels.i18n.texts import brief_result, texts_for
from sayso.channels.markdown.literal import Markdown, as_kind_of, as_markdown
from sayso.channels.markdown.outcome_signs import DONE, without_signs
from sayso.channels.types import Conversation, Reply, storable
from sayso.infra.concurrency import NotStarted
from sayso.infra.ids import random_id
from sayso.infra.redaction import redact
from sayso.pending.action import ActionState, PendingAction
from sayso.pending.error_texts import FATAL_ERRORS, error_text
from sayso.pending.executors import Ambiguous, NotFound, ToolOutput, ToolResult, as_json
from sayso.pending.plans import Effect
from sayso.pending.repository import ActionResult
from sayso.pending.result_words import effect_in_words, words_for_person
from sayso.pending.stored_action import StoredAction
from sayso.pending.turn_changes import outbox_entry

log = logging.getLogger(__name__)

#: Characters of a result that are stored for the user, who reads a long one as a file.
MAX_RESULT_CHARS = 500_000
#: Characters of a late result that the user is told. No turn runs then that could send the whole
#: as a file.
MAX_CORRECTION_CHARS = 3000

#: How a decision about an action may end. "early" and "unknown" occur only in a worker's turn.
OutcomeStatus = Literal[
    "executed",
    "expired",
    "digest_mismatch",
    "no_executor",
    "failed",
    "cancelled",
    "kind_mismatch",
    "ignored",
    "early",
    "unknown",
]

#: How much a report has of what tools returned: all, the beginning of each result, or nothing.
ShownResults = Literal["whole", "brief", "none"]
#: How an effect that was started may end.
EndState = Literal["done", "failed", "unknown"]
#: By the id of an action that was done and whose undo was confirmed: whether the undo took effect.
UndoStates = Mapping[str, Literal["undone", "unknown"]]


class EffectEnd(NamedTuple):
    """How an effect ended."""

    state: EndState
    #: What its tool returned, or why it failed, as the user is told it.
    text: str = ""
    #: What a model reads of the result or the error; "" if that is `text`.
    output: str = ""


@dataclass(frozen=True, slots=True)
class ConfirmOutcome:
    """What became of a pending action."""

    status: OutcomeStatus
    #: The action in its new state.
    record: PendingAction
    #: What its executor returned; None if the effect did not take place now.
    result: str | None = None
    #: What the user is told, as Markdown.
    outcome_text: str = ""
    #: All that took effect; for a plan that failed half-way, the steps before.
    effects: tuple[Effect, ...] = ()

    @property
    def executed(self) -> bool:
        """Return whether the effect took place now."""
        return self.status == "executed"


def outcome_without_run(verdict: str, action: PendingAction) -> ConfirmOutcome:
    """Return the outcome of a decision that runs nothing.

    `verdict` is a ClaimStatus or a DecisionVerdict of the store.
    """
    texts = texts_for(action.language)
    preview = action.preview
    match verdict:
        case "expired":
            expired = replace(action, state="expired")
            return ConfirmOutcome("expired", expired, outcome_text=texts.expired(preview))
        case "early":
            return ConfirmOutcome("early", action, outcome_text=texts.early(preview))
        case "changed":
            return ConfirmOutcome("digest_mismatch", action, outcome_text=texts.unsafe(preview))
        case "cancelled":
            return ConfirmOutcome("cancelled", action, outcome_text=texts.cancelled(preview))
        case "ignored":
            return ConfirmOutcome("ignored", action, outcome_text=texts.ignored(preview))
    return ConfirmOutcome("kind_mismatch", action, outcome_text=texts.stale())


def refused_outcome(action: PendingAction, text: str) -> ConfirmOutcome:
    """Return the outcome of an action whose tool is not the one that was shown."""
    record = replace(action, state="failed", outcome=text)
    return ConfirmOutcome("digest_mismatch", record, outcome_text=text)


def no_executor_outcome(action: PendingAction, text: str = "") -> ConfirmOutcome:
    """Return the outcome of an action that nothing in this process can run, or may run by now.

    `text` is what the user is told; "" for the usual text.
    """
    text = text or texts_for(action.language).unsafe(action.preview)
    record = replace(action, state="failed", outcome=text)
    return ConfirmOutcome("no_executor", record, outcome_text=text)


def effect_outcome(
    action: PendingAction,
    state: EndState,
    text: str,
    result: str = "",
    effects: tuple[Effect, ...] = (),
) -> ConfirmOutcome:
    """Return the outcome of an effect that was started.

    `text`: what the user is told. `result`: what the executor returned, "" for nothing.
    """
    record = replace(action, state=state, outcome=text)
    if state == "done":
        return ConfirmOutcome("executed", record, result=result, outcome_text=text, effects=effects)
    return ConfirmOutcome(state, record, outcome_text=text, effects=effects)


def result_to_store(
    action: PendingAction, end: EffectEnd, place: Conversation | None
) -> ActionResult:
    """Return how an effect ended as it is stored.

    `place` is the conversation of a worker's turn, None outside of one. In a conversation the
    person may have been told meanwhile that the end is unknown. So an effect that is done brings
    the correction that the store then sends.
    """
    texts = texts_for(action.language)
    match end.state:
        case "done":
            correction = ""
            if place is not None:
                shown = as_kind_of(end.text, texts.shortened(end.text, MAX_CORRECTION_CHARS))
                text = f"{DONE} {texts.correction(action.preview, shown)}"
                reply = Reply(text, language=action.language)
                correction = outbox_entry(place, reply, later=True)
            return ActionResult(
                "done",
                outcome_text=texts.done(action.preview, end.text),
                result=end.text,
                correction=correction,
                output=end.output,
            )
        case "failed":
            reason = without_signs(as_markdown(end.text))
            text = "\n".join(filter(None, [texts.failed(action.preview), reason]))
            return ActionResult("failed", text, output=end.output)
        case "unknown":
            text = texts.unknown(action.preview)
            return ActionResult("unknown", text, output=end.output)


def plan_end_state(states: list[ActionState]) -> EndState:
    """Return how a plan ended whose steps are in these states."""
    if all(state == "done" for state in states):
        return "done"
    if "unknown" in states or "started" in states:
        return "unknown"
    return "failed"


def plan_report(
    plan: PendingAction,
    steps: Sequence[StoredAction],
    undos: UndoStates | None = None,
    *,
    results: ShownResults = "whole",
) -> str:
    """Return the text that says of each step: done, undone, failed, unknown, or not started.

    `undos`: which steps were undone; None for none. `results`: how much the report has of what
    tools returned, and of why they failed.
    """
    texts = texts_for(plan.language)
    # Any other step was not started.
    states = {"done": "done", "failed": "failed", "unknown": "unknown", "started": "unknown"}
    undos = undos or {}
    lines = []
    for step in steps:
        state = states.get(step.state, "cancelled")
        preview = step.action.preview
        undo = undos.get(step.action_id)
        if undo:
            state = undo
        if undo == "unknown":
            # The undo was interrupted, not the step.
            preview = texts.undo(preview)

        outcome = step.outcome_text
        if results == "none":
            outcome = ""
        elif results == "brief":
            outcome = brief_outcome(step)
        lines.append((state, preview, outcome))
    return texts.plan_report(lines)


def brief_outcome(stored: StoredAction) -> str:
    """Return the outcome of a finished action, or of a step.

    Of a long result or reason it has the beginning.
    """
    texts = texts_for(stored.action.language)
    preview = stored.action.preview
    failed = texts.failed(preview)
    text = stored.outcome_text
    if stored.state == "done":
        result = stored.result
        # A reconciler found out that it was done: the result is only in the outcome text.
        if not result or result == text:
            result = as_kind_of(text, text.removeprefix(texts.done(preview, "")).strip())
        return texts.done_briefly(preview, result)
    if stored.state == "failed" and text.startswith(failed):
        reason = brief_result(Markdown(text.removeprefix(failed)))
        return "\n".join(filter(None, [failed, reason]))
    return text


def _failure_text(action: PendingAction, error: BaseException) -> str:
    """Return what the user is told of an error, and log it.

    Of an unexpected one it is the type, and a reference by which operators find it in the log.
    """
    ids = {"kind": action.kind, "action": action.pending_action_id}
    text = redact(words_for_person(error))
    if text:
        log.warning("pending.failed", extra={**ids, "why": text})
        return within_record(storable(text))

    # The user reads the type of the tool's own error, not that of an error around it.
    raised = getattr(error, "error", None)
    if not isinstance(raised, BaseException):
        raised = error
    reference = random_id(4)
    log.error("pending.failed", extra={**ids, "reference": reference}, exc_info=error)
    return texts_for(action.language).reference(f"{reference} ({type(raised).__name__})")


def within_record(text: str) -> str:
    """Return the text, or the beginning of one that is too long for a record.

    Behind the beginning stands how many characters the text had.
    """
    if len(text) <= MAX_RESULT_CHARS:
        return text
    return f"{text[:MAX_RESULT_CHARS]} [… {len(text)}]"


def effect_end_of(
    action: PendingAction, value: Any, error: BaseException | None = None
) -> EffectEnd:
    """Return how an executor ended that returned `value` or raised `error`."""
    if isinstance(error, NotStarted):
        return EffectEnd("failed")
    if error is not None:
        # A model reads the error, as it does of a call that ran without a yes. The text for the
        # user may leave it out.
        output = storable(redact(error_text(error) or type(error).__name__))
        return EffectEnd("failed", _failure_text(action, error), within_record(output))
    try:
        return _end_with(value)
    # The code of a value may raise anything.
    except (Exception, *FATAL_ERRORS):
        facts = {"tool": action.kind, "type": type(value).__name__}
        log.exception("tool.result_unreadable", extra=facts)
    # The type of the value says how the effect ended, even if its text cannot be read.
    if isinstance(value, Ambiguous | NotFound):
        return EffectEnd("failed")
    return EffectEnd("done")


def _end_with(value: Any) -> EffectEnd:
    """Return how an executor ended that returned a value.

    Raises what the value's own code raises.
    """
    if value is None:
        return EffectEnd("done")
    if isinstance(value, Ambiguous | NotFound):
        # The tool found nothing to do, or several things.
        text = storable(redact(value.in_words))
        return EffectEnd("failed", text, output=storable(redact(value.to_json())))
    if isinstance(value, ToolOutput):
        text = as_kind_of(value.text, within_record(storable(value.text)))
        if value.output == value.text:
            return EffectEnd("done", text)
        return EffectEnd("done", text, output=storable(value.output))

    raw = value
    if isinstance(value, ToolResult | dict | list | bool):
        raw = as_json(value)
    text = result_in_words(raw)
    output = within_record(storable(str(raw)))
    if output == text:
        return EffectEnd("done", text)
    return EffectEnd("done", text, output)


def result_in_words(value: Any) -> str:
    """Return a result as the user is told it, within the limit of a record.

    Markdown stays Markdown.
    """
    if isinstance(value, Markdown):
        return Markdown(within_record(storable(value)))
    return within_record(effect_in_words(storable(str(value))))
