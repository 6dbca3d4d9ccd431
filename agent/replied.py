"""Replied: what a person reads of a run, and what goes with it."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from sayso.agent.messages import Role
from sayso.agent.providers.wording import tell_result
from sayso.agent.result import AgentResult
from sayso.agent.tools.fence import unfenced
from sayso.agent.tools.tool import Tool
from sayso.pending.texts import Texts

#: Characters of one result of a read-only tool that a person reads above a question.
MAX_READ_CHARS = 2000


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


def read_results(result: AgentResult, tools: Iterable[Tool], *, told: Collection[str] = ()) -> list[str]:
    """Return in words what read-only tools gave in the last answer of the model that called any.

    Where that answer proposed something too, the run has ended, and no model tells of them. Errors are left out: their
    words are for models. So is what is `told` already.
    """
    last = max((at for at, message in enumerate(result.messages) if message.tool_calls), default=len(result.messages))
    reading = {tool.name for tool in tools if tool.read_only}
    given = [
        message.content
        for message in result.messages[last:]
        if message.role is Role.TOOL and message.tool_name in reading and not message.content.startswith("Error")
    ]
    in_words = [tell_result(unfenced(content)) for content in given if content not in told]
    return [words if len(words) <= MAX_READ_CHARS else f"{words[:MAX_READ_CHARS]} […]" for words in in_words]


def _failed(result: AgentResult, words: Texts, *, has_acted: bool) -> str:
    """Return why there is no answer. What a model itself says when it refuses comes first."""
    if not result.refusal:
        return words.model_lost(result.failure) if has_acted else words.model_failed(result.failure)
    return f"{result.refusal}\n\n{words.model_lost(result.failure)}" if has_acted else result.refusal
