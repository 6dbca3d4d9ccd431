"""Outcome: what became of a pending action, and what its user hears of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from sayso.pending.action import PendingAction, State
from sayso.pending.plan import Effect
from sayso.pending.texts import speak

#: The seed's statuses, and two that only a lane knows: `early` and `unknown`.
OutcomeStatus = Literal[
    "executed", "expired", "digest_mismatch", "no_executor", "failed", "cancelled", "kind_mismatch", "ignored",
    "early", "unknown",
]  # fmt: skip

#: How an effect that was begun may end.
EndState = Literal["done", "failed", "unknown"]

_STATUS: dict[EndState, OutcomeStatus] = {"done": "executed", "failed": "failed", "unknown": "unknown"}


@dataclass(frozen=True, slots=True)
class ConfirmOutcome:
    """What became of a pending action. `result` is what its executor returned, `told` what the user hears.

    `effects` is all that took effect: of a plan that failed half-way, the steps before.
    """

    status: OutcomeStatus
    record: PendingAction
    result: str | None = None
    told: str = ""
    effects: tuple[Effect, ...] = ()

    @property
    def executed(self) -> bool:
        """Whether the effect took place now."""
        return self.status == "executed"


def ended(
    action: PendingAction, state: EndState, told: str, result: str = "", effects: tuple[Effect, ...] = ()
) -> ConfirmOutcome:
    """The outcome of an effect that was begun."""
    record = replace(action, state=state, outcome=told)
    return ConfirmOutcome(_STATUS[state], record, result if state == "done" else None, told, effects)


def expired(action: PendingAction) -> ConfirmOutcome:
    """The decision came too late."""
    told = speak(action.language).expired(action.preview)
    return ConfirmOutcome("expired", replace(action, state="expired"), told=told)


def early(action: PendingAction) -> ConfirmOutcome:
    """The words came before the question."""
    return ConfirmOutcome("early", action, told=speak(action.language).early(action.preview))


def told_of(action: PendingAction, state: EndState, result: str = "") -> str:
    """What the user hears of an effect that was begun. `result` is what its tool returned, or said of its failure."""
    words = speak(action.language)
    match state:
        case "done":
            return words.done(action.preview, result)
        case "failed":
            return "\n".join(filter(None, [words.failed(action.preview), result]))
    return words.unknown(action.preview)


def state_of_plan(states: list[State]) -> EndState:
    """How a plan ended whose steps are in these states."""
    if all(state == "done" for state in states):
        return "done"
    return "unknown" if "unknown" in states or "started" in states else "failed"
