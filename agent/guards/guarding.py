"""Guarding: a text of a run on its way through the guardrails, where observers can see it."""

from __future__ import annotations

import time
from typing import Any, Literal, Protocol

from sayso.agent.endings import ending_words
from sayso.agent.guards.pipeline import GuardrailsPipeline

#: Whether a text is the user's or the answer.
Stage = Literal["input", "output"]


class GuardrailBlocked(Exception):
    """Raised when a text may not go on. `reason` is for logs and observers, `words` are for the user."""

    def __init__(self, reason: str, words: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.words = words or ending_words("refused")


class Told(Protocol):
    """Who keeps the trace of a run and tells its observers: a Chronicle."""

    def note(self, type: Any, *, began: float | None = None, **fields: Any) -> Any:  # noqa: A002  # as traces call it
        """Add a step to the trace."""

    async def tell(self, event: str, *args: Any) -> None:
        """Call `on_<event>` of each observer."""


async def guarded(pipeline: GuardrailsPipeline | None, stage: Stage, text: str, chronicle: Told) -> str:
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
