"""GuardrailsPipeline: the guardrails of an agent, in their order."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from sayso.agent.guards.guardrail import Guardrail, GuardrailAction, GuardrailResult, Trip
from sayso.workers.offload import contained, run_sync

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
