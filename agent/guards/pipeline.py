"""Guardrail, GuardrailsPipeline."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, Protocol

from sayso.agent.result import stop_text
from sayso.pending.concurrency import contained, in_thread, run_sync


class GuardrailAction(StrEnum):
    """What becomes of a text that did not pass: the run ends, another text takes its place, or it is only reported."""

    BLOCK = "block"
    REWRITE = "rewrite"
    WARN = "warn"


@dataclass(frozen=True, slots=True)
class Trip:
    """One guardrail that a text did not pass. Observers see it, so `detail` holds nothing of the text."""

    guardrail_name: str
    action: GuardrailAction
    detail: str


@dataclass(frozen=True, slots=True)
class GuardrailResult:
    """What one guardrail, or all of a stage, found. `content` is the text to go on with.

    `trips` is filled in by a pipeline: also what only warned or rewrote is there.
    """

    passed: bool
    content: str
    reason: str | None = None
    guardrail_name: str | None = None
    trips: tuple[Trip, ...] = ()


class Guardrail:
    """Base of guardrails: write `check`, or `acheck` where it waits for something. Lives as long as its agent, and is
    asked by all runs at once.
    """

    #: Told to observers, and part of reasons.
    name: str = "guardrail"
    action: GuardrailAction = GuardrailAction.BLOCK
    #: Whether `check` may wait, and so is called in a thread; false for what only looks at the text.
    blocking: bool = True

    def check(self, content: str) -> GuardrailResult:
        """Look at a text. Of one that did not pass, the result's `content` is what a REWRITE goes on with.

        The reason is for observers and logs: say what is wrong, and quote nothing.
        """
        raise NotImplementedError(f"{type(self).__name__} checks nothing: write its check or its acheck")

    async def acheck(self, content: str) -> GuardrailResult:
        """`check`, without holding up the event loop."""
        return await in_thread(lambda: self.check(content)) if self.blocking else self.check(content)

    def passed(self, content: str) -> GuardrailResult:
        """Nothing is wrong with it."""
        return GuardrailResult(True, content, guardrail_name=self.name)

    def tripped(self, content: str, reason: str) -> GuardrailResult:
        """Something is, and this is the text to go on with where it is rewritten."""
        return GuardrailResult(False, content, reason, self.name)


log = logging.getLogger(__name__)


#: Characters of a reason that observers are told.
MAX_DETAIL_CHARS = 200


class GuardrailsPipeline:
    """`input` looks at what the user says before a model does, `output` at the answer before the user does.

    Each guardrail sees what the one before it left. The first that blocks ends the stage; one that fails blocks too,
    whatever its action: a guard that is down lets nobody in.
    """

    def __init__(self, input: Sequence[Guardrail] = (), output: Sequence[Guardrail] = ()) -> None:  # noqa: A002  # as in the seed
        self.input = tuple(input)
        self.output = tuple(output)

    async def acheck_input(self, content: str) -> GuardrailResult:
        """What the user said, as the model may read it. Raises nothing."""
        return await _checked(self.input, content)

    async def acheck_output(self, content: str) -> GuardrailResult:
        """The answer, as the user may read it. Raises nothing."""
        return await _checked(self.output, content)

    def check_input(self, content: str) -> GuardrailResult:
        """`acheck_input` for sync code."""
        return run_sync(self.acheck_input(content))

    def check_output(self, content: str) -> GuardrailResult:
        """`acheck_output` for sync code."""
        return run_sync(self.acheck_output(content))


async def _checked(guardrails: Sequence[Guardrail], content: str) -> GuardrailResult:
    trips: list[Trip] = []
    for guardrail in guardrails:
        result, action = await _asked(guardrail, content)
        if result.passed:
            continue
        trip = Trip(guardrail.name, action, (result.reason or "no reason given")[:MAX_DETAIL_CHARS])
        trips.append(trip)
        if action is GuardrailAction.BLOCK:
            return GuardrailResult(False, content, trip.detail, trip.guardrail_name, tuple(trips))
        if action is GuardrailAction.REWRITE:
            content = result.content
    return GuardrailResult(True, content, trips=tuple(trips))


async def _asked(guardrail: Guardrail, content: str) -> tuple[GuardrailResult, GuardrailAction]:
    """What it found, and what to do about it."""
    try:
        result = await contained(guardrail.acheck(content))
        _demand_a_result(result)
        return result, GuardrailAction(guardrail.action)
    except Exception as exc:  # noqa: BLE001  # its words may quote the text: only their kind is told
        kind = type(exc).__name__
        log.warning("guardrail.failed", extra={"guardrail": guardrail.name, "reason": kind})
        failed = GuardrailResult(False, content, f"the guardrail {guardrail.name!r} failed: {kind}", guardrail.name)
        return failed, GuardrailAction.BLOCK


def _demand_a_result(result: object) -> None:
    """What cannot be read is no pass: a guardrail written as a predicate would let everything through."""
    if not isinstance(result, GuardrailResult) or not isinstance(result.content, str):
        raise TypeError(f"a guardrail returned {type(result).__name__}: return a GuardrailResult with a text")


#: Whether a text is the user's or the answer.
GuardStage = Literal["input", "output"]


class GuardrailBlocked(Exception):
    """Raised when a text may not go on. `reason` is for logs and observers, `words` are for the user."""

    def __init__(self, reason: str, words: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.words = words or stop_text("refused")


class EventSink(Protocol):
    """Who keeps the trace of a run and tells its observers: a Chronicle."""

    def note(self, type: Any, *, began: float | None = None, **fields: Any) -> Any:  # noqa: A002  # as traces call it
        """Add a step to the trace."""

    async def tell(self, event: str, *args: Any) -> None:
        """Call `on_<event>` of each observer."""


async def guarded(pipeline: GuardrailsPipeline | None, stage: GuardStage, text: str, chronicle: EventSink) -> str:
    """The text to go on with. Raises GuardrailBlocked; each guardrail that was tripped is told and noted before."""
    if pipeline is None:
        return text
    began = time.perf_counter()
    check = pipeline.acheck_input if stage == "input" else pipeline.acheck_output
    result = await check(text)
    for trip in result.trips:
        name, action = trip.guardrail_name, trip.action.value
        chronicle.note("guardrail", began=began, summary=f"{stage} guardrail {name}: {action} ({trip.detail})")
        await chronicle.tell("guardrail_triggered", stage, name, action, trip.detail)
    if not result.passed:
        raise GuardrailBlocked(f"{stage} guardrail {result.guardrail_name!r} blocked: {result.reason}")
    return result.content
