"""Guardrail, the base of all checks of a text, and GuardrailsPipeline, which runs them in order (seed)."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from sayso.agent.observability.dispatcher import RunEvents
from sayso.agent.result import stop_text
from sayso.pending.concurrency import await_isolated, call_in_tool_thread, run_sync

log = logging.getLogger(__name__)

#: How many characters of a guardrail's reason observers receive.
MAX_DETAIL_CHARS = 200
#: Whether a text is the user's input or the model's output.
GuardStage = Literal["input", "output"]


class GuardrailAction(StrEnum):
    """What to do with a text that fails a check: end the run, replace the text, or only report it."""

    BLOCK = "block"
    REWRITE = "rewrite"
    WARN = "warn"


@dataclass(frozen=True, slots=True)
class Trip:
    """A guardrail that a text failed. Observers receive it, so `detail` contains nothing of the text."""

    guardrail_name: str
    action: GuardrailAction
    detail: str


@dataclass(frozen=True, slots=True)
class GuardrailResult:
    """The result of one guardrail, or of a pipeline. `content` is the text to go on with.

    A pipeline fills in `trips`: all guardrails that the text failed, also those that only warned or rewrote.
    """

    passed: bool
    content: str
    reason: str | None = None
    guardrail_name: str | None = None
    trips: tuple[Trip, ...] = ()


class Guardrail:
    """Base of guardrails: override `check`, or `acheck` if it awaits something.

    One instance serves all runs of an agent at once.
    """

    #: The name in logs, events and reasons.
    name: str = "guardrail"
    action: GuardrailAction = GuardrailAction.BLOCK
    #: Whether `check` may block, and so runs in a thread; False for one that only looks at the text.
    blocking: bool = True

    def check(self, content: str) -> GuardrailResult:
        """Check a text. If it fails, the result's `content` is what REWRITE goes on with.

        The reason goes to observers and logs, so it must not quote the text.
        """
        raise NotImplementedError(f"{type(self).__name__} checks nothing: write its check or its acheck")

    async def acheck(self, content: str) -> GuardrailResult:
        """Do the same as `check`, without blocking the event loop."""
        return await call_in_tool_thread(lambda: self.check(content)) if self.blocking else self.check(content)

    def passed(self, content: str) -> GuardrailResult:
        """Return the result for a text that is fine."""
        return GuardrailResult(True, content, guardrail_name=self.name)

    def tripped(self, content: str, reason: str) -> GuardrailResult:
        """Return the result for a text that fails; `content` is its replacement for REWRITE."""
        return GuardrailResult(False, content, reason, self.name)


class GuardrailsPipeline:
    """Runs the `input` guardrails on the user's text before the model, the `output` guardrails on the answer.

    Each guardrail gets the text as the one before it left it. The first that blocks ends the stage. A guardrail that
    raises an error blocks too, whatever its action.
    """

    def __init__(self, input: Sequence[Guardrail] = (), output: Sequence[Guardrail] = ()) -> None:
        self.input = tuple(input)
        self.output = tuple(output)

    async def acheck_input(self, content: str) -> GuardrailResult:
        """Return the user's text as the model may read it. Raise nothing."""
        return await _run(self.input, content)

    async def acheck_output(self, content: str) -> GuardrailResult:
        """Return the answer as the user may read it. Raise nothing."""
        return await _run(self.output, content)

    def check_input(self, content: str) -> GuardrailResult:
        """Do the same as `acheck_input`, for sync code."""
        return run_sync(self.acheck_input(content))

    def check_output(self, content: str) -> GuardrailResult:
        """Do the same as `acheck_output`, for sync code."""
        return run_sync(self.acheck_output(content))


async def _run(guardrails: Sequence[Guardrail], content: str) -> GuardrailResult:
    trips: list[Trip] = []
    for guardrail in guardrails:
        result, action = await _check(guardrail, content)
        if result.passed:
            continue
        trip = Trip(guardrail.name, action, (result.reason or "no reason given")[:MAX_DETAIL_CHARS])
        trips.append(trip)
        if action is GuardrailAction.BLOCK:
            return GuardrailResult(False, content, trip.detail, trip.guardrail_name, tuple(trips))
        if action is GuardrailAction.REWRITE:
            content = result.content
    return GuardrailResult(True, content, trips=tuple(trips))


async def _check(guardrail: Guardrail, content: str) -> tuple[GuardrailResult, GuardrailAction]:
    """Return the guardrail's result and its action. One that raises an error, or returns something else, blocks."""
    try:
        result: object = await await_isolated(guardrail.acheck(content))
        if not isinstance(result, GuardrailResult) or not isinstance(result.content, str):
            # A guardrail written as a predicate would otherwise let every text through.
            raise TypeError(f"a guardrail returned {type(result).__name__}: return a GuardrailResult with a text")
        return result, GuardrailAction(guardrail.action)
    except Exception as exc:  # only its class is reported: its text may quote the content
        error = type(exc).__name__
        log.warning("guardrail.failed", extra={"guardrail": guardrail.name, "reason": error})
        failure = GuardrailResult(False, content, f"the guardrail {guardrail.name!r} failed: {error}", guardrail.name)
        return failure, GuardrailAction.BLOCK


class GuardrailBlocked(Exception):
    """Raised when a guardrail blocks a text. `reason` is for logs and observers, `words` is the reply to the user."""

    def __init__(self, reason: str, words: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.words = words or stop_text("refused")


async def apply_guardrails(pipeline: GuardrailsPipeline | None, stage: GuardStage, text: str, events: RunEvents) -> str:
    """Return the text to go on with. Raise GuardrailBlocked, after every failed check was traced and reported."""
    if pipeline is None:
        return text
    began = time.perf_counter()
    result = await (pipeline.acheck_input(text) if stage == "input" else pipeline.acheck_output(text))
    for trip in result.trips:
        name, action = trip.guardrail_name, trip.action.value
        events.note("guardrail", began=began, summary=f"{stage} guardrail {name}: {action} ({trip.detail})")
        await events.tell("guardrail_triggered", stage, name, action, trip.detail)
    if not result.passed:
        raise GuardrailBlocked(f"{stage} guardrail {result.guardrail_name!r} blocked: {result.reason}")
    return result.content
