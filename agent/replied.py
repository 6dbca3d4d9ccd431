"""Replied: what a person reads of a run, and what goes with it."""

from __future__ import annotations

from agent.result import AgentResult
from pending.texts import Texts


def replied(result: AgentResult, words: Texts, *, has_acted: bool) -> str:
    """What the person reads of a run: an ending that is ours in their own language. A model that answers with nothing
    does not answer, and what tools have done is never said not to be done.
    """
    match result.stop_reason:
        case "provider_error":
            return _failed(result, words, has_acted=has_acted)
        case "answer" if not (result.content.strip() or result.artifacts or result.choices):
            return words.model_lost() if has_acted else words.model_away()
        case "max_iterations":
            return words.too_many_steps()
        case "budget":
            return words.budget_spent()
        case "guardrail":
            return words.refused()
        case "loop":
            return words.in_circles()
        case "cancelled":
            return words.stopped()
        case "answer" if result.finish_reason == "length":
            return f"{result.content}\n\n{words.answer_cut()}"
    return result.content


def _failed(result: AgentResult, words: Texts, *, has_acted: bool) -> str:
    """Return why there is no answer. What a model itself says when it refuses comes first."""
    if not result.refusal:
        return words.model_lost(result.failure) if has_acted else words.model_failed(result.failure)
    return f"{result.refusal}\n\n{words.model_lost(result.failure)}" if has_acted else result.refusal
