"""Reasoning: what a model thought on the way to its calls, kept as its vendor gave it and sent back unchanged.

Anthropic refuses results of tools without the signed thinking that led to the calls, Gemini signs calls, and OpenAI has
reasoning items. The pieces are the library's own, as JSON; nobody else reads them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    ModelResponsePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    UserPromptPart,
)

from sayso.agent.messages import Message

_PARTS: TypeAdapter[list[ModelResponsePart]] = TypeAdapter(list[ModelResponsePart])


def reasoning_of(response: ModelResponse, source: str) -> Mapping[str, Any] | None:
    """Return what has to be sent back with the answer's calls, None where there is nothing. `source` is the vendor and
    the model: nobody else takes it.
    """
    parts = [part for part in response.parts if isinstance(part, ThinkingPart | TextPart | ToolCallPart)]
    called = any(isinstance(part, ToolCallPart) for part in parts)
    if not called or not any(isinstance(part, ThinkingPart) or part.provider_details for part in parts):
        return None
    return {"source": source, "parts": _PARTS.dump_python(list(parts), mode="json")}


def with_reasoning(
    message: Message, source: str, plain: Sequence[TextPart | ToolCallPart]
) -> Sequence[ModelResponsePart]:
    """Return the parts of an answer that is sent back, with what its model thought; `plain` are those without.

    The transcript has the last word: ids of calls, names, arguments and texts are its own. The reasoning is left out
    where it is another model's, or does not fit the calls.
    """
    kept = message.details.reasoning if message.details else None
    if not kept or kept.get("source") != source:
        return plain
    try:
        parts = _PARTS.validate_python(kept["parts"])
    except (KeyError, ValidationError):
        return plain
    calls = [part for part in plain if isinstance(part, ToolCallPart)]
    if sum(isinstance(part, ToolCallPart) for part in parts) != len(calls):
        return plain
    texts = [part.content for part in parts if isinstance(part, TextPart)]
    if "".join(texts) != message.content:  # it was cut, or a guardrail has changed it
        parts = [*(part for part in parts if isinstance(part, ThinkingPart)), *_texts(plain), *_calls(parts)]
    following = iter(calls)
    return [_with_own_words(part, next(following)) if isinstance(part, ToolCallPart) else part for part in parts]


def lacks_thinking(messages: Sequence[ModelMessage]) -> bool:
    """Return whether calls of the current turn come without the thinking that led to them: another model made them."""
    for message in reversed(messages):
        if any(isinstance(part, UserPromptPart) for part in message.parts):
            return False
        parts = message.parts if isinstance(message, ModelResponse) else ()
        if any(isinstance(part, ToolCallPart) for part in parts) and not isinstance(parts[0], ThinkingPart):
            return True
    return False


def _with_own_words(kept: ToolCallPart, sent: ToolCallPart) -> ToolCallPart:
    return replace(kept, tool_name=sent.tool_name, args=sent.args, tool_call_id=sent.tool_call_id)


def _texts(parts: Sequence[ModelResponsePart]) -> list[TextPart]:
    return [part for part in parts if isinstance(part, TextPart)]


def _calls(parts: Sequence[ModelResponsePart]) -> list[ToolCallPart]:
    return [part for part in parts if isinstance(part, ToolCallPart)]
