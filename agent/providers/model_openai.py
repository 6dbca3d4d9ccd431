"""pydantic-ai's model of OpenAI's chat completions, adapted. Needs the extra `llm`."""

from __future__ import annotations

from collections.abc import AsyncIterator

from openai.types.chat import ChatCompletionChunk
from openai.types.chat.chat_completion_chunk import ChoiceDeltaToolCall
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIStreamedResponse


class ChatModel(OpenAIChatModel):
    """pydantic-ai's model, with streamed tool calls told apart; both hooks are documented for subclasses."""

    @property
    def _streamed_response_cls(self) -> type[OpenAIStreamedResponse]:
        return _Stream


class _Stream(OpenAIStreamedResponse):
    async def _validate_response(self) -> AsyncIterator[ChatCompletionChunk]:
        numbers = CallNumbers()
        async for chunk in super()._validate_response():
            for choice in chunk.choices or []:
                for delta in (choice.delta.tool_calls or []) if choice.delta else []:
                    delta.index = numbers.number(delta)
            yield chunk


class CallNumbers:
    """Unique numbers for the tool calls of one streamed answer.

    Some servers send several calls under one index. The library joins deltas by index, and would make one call of all
    their names and arguments. A delta with an id that its index has not had therefore starts a new call.
    """

    def __init__(self) -> None:
        self._current: dict[int, int] = {}
        self._numbers: dict[tuple[int, str], int] = {}

    def number(self, delta: ChoiceDeltaToolCall) -> int:
        """Return the number of the call that a delta belongs to."""
        index = delta.index or 0  # some servers omit it
        if delta.id:
            number = self._numbers.setdefault((index, delta.id), len(self._numbers))
            self._current[index] = number
        elif index not in self._current:
            self._current[index] = self._numbers.setdefault((index, ""), len(self._numbers))
        return self._current[index]
