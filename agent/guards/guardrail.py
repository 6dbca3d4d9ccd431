"""Guardrail: one look at a text that goes to the model, or comes from it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sayso.workers.offload import in_thread


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
