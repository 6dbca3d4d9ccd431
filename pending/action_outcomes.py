"""How an action ended: the outcome as a value, and the texts that its person is told.

Nothing here reads or changes a record. Of errors, the log gets what people are not told. `settlement.py` carries an action out and stores what this
module returns.
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
from sayso.pending.proposals import Effect
from sayso.pending.repository import ActionResult
from sayso.pending.result_words import effect_in_words, words_for_person
from sayso.pending.stored_action import StoredAction
from sayso.pending.turns import outbox_entry

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
    record: PendingAction
    #: What its executor returned.
    result: str | None = None
    #: What the user is told.
    outcome_text: str = ""
    #: All that took effect; for a plan that failed half-way, the steps before.
    effects: tuple[Effect, ...] = ()

    @property
    def executed(self) -> bool:
        """Return whether the effect took place now."""
        return self.status == "executed"


def outcome_without_run(verdict: str, action: PendingAction) -> ConfirmOutcome:
    """Return the outcome of a decision that runs nothing."""
    texts = texts_for(action.language)
    preview = action.preview
    match verdict:
        case "expired":
            return ConfirmOutcome(
                "expired", replace(action, state="expired"), outcome_text=texts.expired(preview)
            )
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
    return ConfirmOutcome(
        "digest_mismatch", replace(action, state="failed", outcome=text), outcome_text=text
    )


def no_executor_outcome(action: PendingAction, text: str = "") -> ConfirmOutcome:
    """Return the outcome of an action that nothing in this process can run, or may run by now."""
    text = text or texts_for(action.language).unsafe(action.preview)
    return ConfirmOutcome(
        "no_executor", replace(action, state="failed", outcome=text), outcome_text=text
    )


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
        return ConfirmOutcome("executed", record, result, text, effects)
    return ConfirmOutcome(state, record, None, text, effects)


def result_to_store(
    action: PendingAction, end: EffectEnd, place: Conversation | None
) -> ActionResult:
    """Return how an effect ended as its record keeps it.

    `place`: the conversation of a worker's turn, None outside of one. There the person may have
    been told that the end is unknown. An effect that is done after all then brings the correction
    to send.
    """
    texts = texts_for(action.language)
    match end.state:
        case "done":
            text = texts.done(action.preview, end.text)
            correction = ""
            if place is not None:
                shown = as_kind_of(end.text, texts.shortened(end.text, MAX_CORRECTION_CHARS))
                reply = Reply(f"{DONE} {texts.correction(action.preview, shown)}")
                correction = outbox_entry(place, reply, later=True)
            return ActionResult("done", text, end.text, correction, end.output)
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

    `results`: how much it has of what tools returned, and of why they failed.
    """
    texts = texts_for(plan.language)
    states = {"done": "done", "failed": "failed", "unknown": "unknown", "started": "unknown"}
    undos = undos or {}
    lines = []
    for step in steps:
        state = undos.get(step.action_id, states.get(step.state, "cancelled"))
        preview = step.action.preview
        outcome = step.outcome_text
        if results == "none":
            outcome = ""
        elif results == "brief":
            outcome = brief_outcome(step)
        if undos.get(step.action_id) == "unknown":  # what was interrupted is the undo
            preview = texts.undo(preview)
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
        if not result or result == text:  # a check has found out that it was done
            result = as_kind_of(text, text.removeprefix(texts.done(preview, "")).strip())
        return texts.done_briefly(preview, result)
    if stored.state == "failed" and text.startswith(failed):
        reason = brief_result(Markdown(text.removeprefix(failed)))
        return "\n".join(filter(None, [failed, reason]))
    return text


def _failure_text(action: PendingAction, error: BaseException) -> str:
    """Return what the user is told of an error.

    Of an unexpected one it is the type, and a reference by which operators find it in the log.
    """
    ids = {"kind": action.kind, "action": action.pending_action_id}
    text = redact(words_for_person(error))
    if text:
        log.warning("pending.failed", extra={**ids, "why": text})
        return bounded(storable(text))
    wrapped = getattr(error, "error", None)
    reference = random_id(4)
    raised = wrapped if isinstance(wrapped, BaseException) else error
    log.error("pending.failed", extra={**ids, "reference": reference}, exc_info=error)
    return texts_for(action.language).reference(f"{reference} ({type(raised).__name__})")


def bounded(text: str) -> str:
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
        # A model reads the error of a call that ran at once, too.
        # The text for the user may leave it out.
        output = storable(redact(error_text(error) or type(error).__name__))
        return EffectEnd("failed", _failure_text(action, error), bounded(output))
    try:
        return _end_with(value)
    except (Exception, *FATAL_ERRORS):  # a value's own code may raise anything
        facts = {"tool": action.kind, "type": type(value).__name__}
        log.exception("tool.result_unreadable", extra=facts)
    # Its type says what became of it, whatever its text is.
    is_nothing_done = isinstance(value, Ambiguous | NotFound)
    return EffectEnd("failed" if is_nothing_done else "done")


def _end_with(value: Any) -> EffectEnd:
    """Return how an executor ended that returned a value.

    Raises what the value's own code raises.
    """
    if isinstance(value, Ambiguous | NotFound):
        return EffectEnd(
            "failed", storable(redact(value.in_words)), storable(redact(value.to_json()))
        )
    if isinstance(value, ToolOutput):
        output = storable(value.output) if value.output != value.text else ""
        return EffectEnd("done", as_kind_of(value.text, bounded(storable(value.text))), output)
    if value is None:
        return EffectEnd("done")
    raw = value
    if isinstance(value, ToolResult | dict | list | bool):
        raw = as_json(value)
    text = result_in_words(raw)
    output = bounded(storable(str(raw)))
    return EffectEnd("done", text, output if output != text else "")


def result_in_words(value: Any) -> str:
    """Return a result as the user is told it, within the limit of a record.

    Markdown stays Markdown.
    """
    if isinstance(value, Markdown):
        return Markdown(bounded(storable(value)))
    return bounded(effect_in_words(storable(str(value))))
