"""ChatModel: OpenAI's chat completions, also from servers that number all calls of a streamed answer 0."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator

from openai.types.chat import ChatCompletionChunk
from openai.types.chat.chat_completion_chunk import ChoiceDeltaToolCall
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIStreamedResponse


class Renumbering:
    """Lives for one streamed answer. A delta with an id that its number has not had begins a call of its own: what the
    library joins by number alone would be one call with the names and arguments of all.
    """

    def __init__(self) -> None:
        self._current: dict[int, int] = {}
        self._known: dict[tuple[int, str], int] = {}

    def number(self, delta: ChoiceDeltaToolCall) -> int:
        """The number of the call that the delta belongs to, unique in its answer."""
        index = delta.index or 0  # there are servers that leave it out
        if delta.id:
            number = self._known.setdefault((index, delta.id), len(self._known))
            self._current[index] = number
        elif index not in self._current:
            self._current[index] = self._known.setdefault((index, ""), len(self._known))
        return self._current[index]


async def renumbered(chunks: AsyncIterable[ChatCompletionChunk]) -> AsyncIterator[ChatCompletionChunk]:
    """The chunks, each call with a number of its own."""
    numbers = Renumbering()
    async for chunk in chunks:
        for choice in chunk.choices or []:
            for delta in (choice.delta.tool_calls or []) if choice.delta else []:
                delta.index = numbers.number(delta)
        yield chunk


class _Stream(OpenAIStreamedResponse):
    def _validate_response(self) -> AsyncIterable[ChatCompletionChunk]:
        return renumbered(super()._validate_response())


class ChatModel(OpenAIChatModel):
    """As the library's; both hooks are those it documents for subclasses."""

    @property
    def _streamed_response_cls(self) -> type[OpenAIStreamedResponse]:
        return _Stream
