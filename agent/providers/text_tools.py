"""TextToolProvider: lets a model without native tool calls use tools, by way of text."""

from __future__ import annotations

import inspect
import json
import uuid
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from copy import copy
from dataclasses import replace
from typing import Any

from sayso.agent.messages import Message, Role, ToolCall
from sayso.agent.parser import ToolCallParser
from sayso.agent.prompt import MARKER, PromptBuilder
from sayso.agent.providers.base import Completion, Provider, ProviderRequest, Restart, StreamItem, acall, pieces
from sayso.agent.providers.fallback import name_of
from sayso.agent.tools.fence import fenced

#: What a provider may be asked by.
_DOORS = ("acomplete", "complete", "astream", "stream")


def _new_id() -> str:
    return f"call_{uuid.uuid4().hex[:16]}"


class TextToolProvider:
    """Speaks for another provider: tools go into the system prompt, calls and their results are written as text, and
    what the model writes as a call becomes one. Lives as long as its agent, and holds nothing of any run.

    A native format of answers is not offered: it would leave the model no words for a call.
    """

    supports_tools = True
    supports_response_format = False

    def __init__(
        self,
        provider: Provider,
        parser: ToolCallParser | None = None,
        prompt_builder: PromptBuilder | None = None,
        *,
        new_id: Callable[[], str] = _new_id,
    ) -> None:
        self.provider = provider
        self.name = name_of(provider)
        self.default_model: str | None = getattr(provider, "default_model", None)
        self.keeps_time = bool(getattr(provider, "keeps_time", False))
        self.times_silence = bool(getattr(provider, "times_silence", False))
        self.context_tokens = getattr(provider, "context_tokens", None)
        self.model_settings = getattr(provider, "model_settings", None)
        self._parser = parser or ToolCallParser()
        self._prompt_builder = prompt_builder
        self._no_tools: tuple[()] | None = () if _takes_tools(provider) else None
        self._new_id = new_id

    async def acomplete(self, **request: Any) -> Completion:
        """The answer, with what is a call in it taken out of the text. Raises ProviderError."""
        asked = ProviderRequest(**request)
        answer, usage = await acall(self.provider, self._in_text(asked))
        if not asked.tools:
            return answer, usage
        parsed = self._parser.parse(answer.content)
        said = parsed.text.rstrip() if parsed.tool_calls else parsed.text
        return replace(answer, content=said, tool_calls=(*answer.tool_calls, *self._named(parsed.tool_calls))), usage

    async def astream(self, **request: Any) -> AsyncGenerator[StreamItem, None]:
        """The pieces of the answer; text only as far as it cannot be the beginning of a call. Raises ProviderError."""
        asked = ProviderRequest(**request)
        text, told = "", 0
        async with aclosing(pieces(self.provider, self._in_text(asked))) as stream:
            async for item in stream:
                if isinstance(item, Restart):
                    text, told = "", 0
                if not isinstance(item, str) or not asked.tools:
                    yield item
                    continue
                text += item
                certain = self._parser.certain(text, told)
                if certain > told:
                    yield text[told:certain]
                    told = certain
        parsed = self._parser.parse(text)
        said = parsed.text.rstrip() if parsed.tool_calls else parsed.text
        if said[told:]:
            yield said[told:]
        for call in self._named(parsed.tool_calls):
            yield call

    def _in_text(self, asked: ProviderRequest) -> ProviderRequest:
        return replace(in_text(asked, self._prompt_builder, self._parser), tools=self._no_tools)

    def _named(self, calls: Iterable[ToolCall]) -> tuple[ToolCall, ...]:
        return tuple(replace(call, id=self._new_id()) for call in calls)


def speaks_text(provider: Provider) -> bool:
    """Whether a provider must be told of tools in words: it says so, or its doors have no parameter for them (seed)."""
    if not getattr(provider, "supports_tools", True):
        return True
    return not _takes_tools(provider)


def _takes_tools(provider: Provider) -> bool:
    doors = [door for name in _DOORS if (door := getattr(provider, name, None)) is not None]
    return not doors or any(map(_has_tools, doors))


def _has_tools(door: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(door).parameters.values()
    except (TypeError, ValueError):  # written in C
        return True
    return any(each.name == "tools" or each.kind is each.VAR_KEYWORD for each in parameters)


def in_text(
    request: ProviderRequest, builder: PromptBuilder | None = None, parser: ToolCallParser | None = None
) -> ProviderRequest:
    """The request for a model that knows no tools. Only its own calls are in it in a form that the parser takes."""
    builder, parser = copy(builder or PromptBuilder("")), parser or ToolCallParser()
    builder.base_instructions = "\n\n".join(filter(None, [builder.base_instructions, request.system_prompt]))
    return replace(
        request,
        system_prompt=builder.build(request.tools or ()),
        messages=tuple(_written(request.messages, parser)),
        tools=(),
        response_format=None,
    )


def _written(messages: Sequence[Message], parser: ToolCallParser) -> list[Message]:
    """The transcript without calls and results; results that follow each other are one message, as vendors expect."""
    written: list[Message] = []
    after_result = False
    for message in messages:
        is_result = message.role is Role.TOOL
        text = _as_text(message)
        if message.role is not Role.ASSISTANT:
            text = replace(text, content=parser.quoted(text.content))
        if is_result and after_result:
            text = replace(
                text,
                content=f"{written[-1].content}\n\n{text.content}",
                media=written[-1].media + text.media,
                pictures=written[-1].pictures + text.pictures,
            )
            written.pop()
        written.append(text)
        after_result = is_result
    return written


def _as_text(message: Message) -> Message:
    if message.role is Role.TOOL:
        content = f"The result of the tool {message.tool_name!r}:\n{fenced(message.content)}"
        return Message(Role.USER, content, media=message.media, pictures=message.pictures)
    if not message.tool_calls:
        return message
    said = [message.content] if message.content else []
    return replace(message, content="\n\n".join([*said, *map(_call_text, message.tool_calls)]), tool_calls=())


def _call_text(call: ToolCall) -> str:
    payload = {"tool_name": call.tool_name, "parameters": call.parameters}
    return f"{MARKER}\n{json.dumps(payload, ensure_ascii=False)}"
