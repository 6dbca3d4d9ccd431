"""One request, whole or streamed."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from google.genai.types import GenerateContentConfigDict
from openai.types.chat import ChatCompletionChunk
from openai.types.chat.chat_completion_chunk import ChoiceDeltaToolCall
from pydantic_ai import direct
from pydantic_ai.messages import InstructionPart, ModelResponse, PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.models.google import GoogleModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIStreamedResponse
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from sayso.agent.messages import UsageStats
from sayso.agent.providers.base import (
    Completion,
    ProviderError,
    ProviderRequest,
    RequestRefusedError,
    StreamItem,
    UnchosenTemperature,
)
from sayso.agent.providers.files import Shown
from sayso.agent.providers.pydantic_ai.errors import broken_off, filtered, translated, unreadable
from sayso.agent.providers.pydantic_ai.messages import (
    calls_of,
    details_of,
    instructions,
    lacks_thinking,
    message_of,
    transcript,
)
from sayso.agent.providers.vendor import named, released
from sayso.agent.tools.errors import ToolValidationError
from sayso.agent.tools.schema.vendors import ApiFormat, vendor_schema


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


log = logging.getLogger(__name__)


#: Models that nobody knows the price of, as far as it was said already.
_unpriced: set[tuple[str, str]] = set()


#: How many are remembered: a name comes from a configuration, or from a server that may make them up.
_MAX_UNPRICED = 1000


def usage_of(response: ModelResponse, provider: str, model: str) -> UsageStats:
    """The answer's tokens and US dollars; `model` is what was asked, if the answer does not say."""
    used, name = response.usage, response.model_name or model
    return UsageStats(
        prompt_tokens=used.input_tokens,
        completion_tokens=used.output_tokens,
        total_tokens=used.input_tokens + used.output_tokens,
        cost_usd=_cost(response, provider, name),
        model=name,
        provider=provider,
        cache_read_tokens=used.cache_read_tokens,
        cache_write_tokens=used.cache_write_tokens,
    )


def _cost(response: ModelResponse, provider: str, model: str) -> float:
    try:
        return float(response.cost().total_price)
    except Exception as exc:  # noqa: BLE001  # a price must never cost an answer
        if (provider, model) not in _unpriced and len(_unpriced) < _MAX_UNPRICED:
            _unpriced.add((provider, model))
            log.info("provider.no_price provider=%s model=%s reason=%s", provider, model, type(exc).__name__)
        return 0.0


T = TypeVar("T")


#: What the name of an answer's schema may not have in it.
_ODD = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """Lives for one request. `left_out` are the tools that the vendor takes not, as far as it was said already."""

    provider: str
    model: Model[Any]
    request: ProviderRequest
    messages: Sequence[Shown]
    api_format: ApiFormat
    settings: Mapping[str, Any]
    secrets: Sequence[str] = field(repr=False)
    left_out: set[str]
    #: The operator's own settings, and whether the model is one that the vendor's price list has.
    given: Mapping[str, Any] = field(default_factory=dict)
    is_known: bool = True
    ends_streams: bool = True

    async def completion(self) -> Completion:
        """The whole answer. Raises ProviderError."""
        with translated(self.provider, self.secrets, named(self.given)):
            response = await direct.model_request(**self._call())
        self._check(response)
        return message_of(response, self._source), usage_of(response, self.provider, self.model.model_name)

    async def pieces(self) -> AsyncGenerator[StreamItem]:
        """The answer as it comes: its text, then its calls and the usage. Raises ProviderError."""
        with translated(self.provider, self.secrets, named(self.given)):
            opening = direct.model_request_stream(**self._call(is_stream=True))
            async with AsyncExitStack() as stack:
                stream = await self._in_time(stack.enter_async_context(released(opening)))
                events = aiter(stream)
                while (event := await self._in_time(anext(events, None))) is not None:
                    if text := _text(event):
                        yield text
                response = stream.get()
        is_cut = not _has_an_end(response)
        if is_cut and self.ends_streams:
            raise broken_off(self.provider)
        self._check(response)
        for call in calls_of(response, is_cut=is_cut):
            yield call
        yield details_of(response, self._source)
        yield usage_of(response, self.provider, self.model.model_name)

    @property
    def _source(self) -> str:
        """Who takes back what this model has thought."""
        return f"{self.provider}/{self.model.model_name}"

    def _check(self, response: ModelResponse) -> None:
        """An answer without a word, for a reason that its reader must know."""
        if response.finish_reason == "content_filter":
            raise filtered(self.provider, str((response.provider_details or {}).get("refusal") or ""))
        if response.finish_reason == "error" and not response.tool_calls:
            raise unreadable(self.provider)
        said = any(isinstance(part, TextPart) and part.content.strip() for part in response.parts)
        if response.finish_reason == "length" and not said and not response.tool_calls:
            error = RequestRefusedError(
                f"{self.provider}: {self.model.model_name!r} used up max_tokens={self.request.max_tokens} "
                "before it said anything: raise max_tokens"
            )
            error.kind = "cut_off"
            raise error

    async def _in_time(self, step: Awaitable[T]) -> T:
        """Wait for one step of a stream. Raises ProviderError when it is silent for as long as the time limit."""
        try:
            async with asyncio.timeout(self.request.timeout) as limit:
                return await step
        except TimeoutError as exc:
            if not limit.expired():
                raise
            raise ProviderError(f"{self.provider}: no answer within {self.request.timeout} seconds") from exc

    def _call(self, *, is_stream: bool = False) -> dict[str, Any]:
        messages, settings = transcript(self.messages, self._source), self._settings(is_stream=is_stream)
        if _must_think(settings) and lacks_thinking(messages):
            messages = transcript(self.messages)  # without thoughts: they are refused where thinking is off
            settings = cast("ModelSettings", {**settings, "anthropic_thinking": {"type": "disabled"}})
        return {
            "model": self.model,
            "messages": messages,
            "model_settings": settings,
            "model_request_parameters": self._parameters(),
        }

    def _settings(self, *, is_stream: bool) -> ModelSettings:
        """`request_timeout` is the library's limit for a whole answer; a stream has one for each silence instead."""
        settings: dict[str, Any] = {"max_tokens": self.request.max_tokens, **self.settings}
        if (temperature := self._temperature()) is not None and _takes_temperature(self.model.profile):
            settings["temperature"] = temperature
        if self.request.timeout is not None and not is_stream:
            settings["request_timeout"] = self.request.timeout
        return cast("ModelSettings", settings)

    def _temperature(self) -> float | None:
        """Return the temperature to send. One that nobody chose is not sent to a model that nobody knows, or that is
        told to think: many of these refuse it.
        """
        if "temperature" in self.given:
            return cast("float | None", self.given["temperature"])
        chosen = self.request.temperature
        is_default = isinstance(chosen, UnchosenTemperature)
        return None if is_default and (not self.is_known or "anthropic_thinking" in self.settings) else chosen

    def _parameters(self) -> ModelRequestParameters:
        parameters = ModelRequestParameters(function_tools=self._tools(), instruction_parts=self._instructions())
        if self.request.response_format is None:
            return parameters
        parameters.output_mode = "native" if self._has_native_output() else "prompted"
        parameters.output_object = _output(self.request.response_format)
        parameters.allow_text_output = False
        return parameters

    def _instructions(self) -> list[InstructionPart]:
        """One system prompt. Only Anthropic is told where the part ends that it is to cache."""
        first, *added = instructions(self.request.system_prompt, self.messages)
        if self.api_format != "anthropic":
            return [InstructionPart(content="\n\n".join([first, *added]))]
        return [InstructionPart(content=first), *(InstructionPart(content=each, dynamic=True) for each in added)]

    def _has_native_output(self) -> bool:
        """Gemini's older models take a schema only where there are no tools; they are told it in words."""
        profile: Mapping[str, Any] = self.model.profile
        beside = self.api_format != "gemini" or profile.get("google_supports_tool_combination", False)
        return bool(profile.get("supports_json_schema_output", False)) and (beside or not self.request.tools)

    def _tools(self) -> list[ToolDefinition]:
        return [made for each in (self.request.tools or ()) if (made := self._tool(each)) is not None]

    def _tool(self, schema: Mapping[str, Any]) -> ToolDefinition | None:
        """The tool in the vendor's dialect. One that it would refuse costs nobody the whole request."""
        name = schema["name"]
        try:
            return _definition(name, schema["description"], schema["parameters"], self.api_format)
        except ToolValidationError as exc:
            if name not in self.left_out:
                self.left_out.add(name)
                log.warning("tool.left_out", extra={"tool": name, "why": str(exc)})
            return None


def _definition(name: str, description: str, parameters: Mapping[str, Any], api_format: ApiFormat) -> ToolDefinition:
    """`strict` would make every parameter required."""
    if api_format == "gemini":  # refused there, or taken as JSON Schema, which the library makes fit
        vendor_schema(name, description, parameters, "gemini", strict=False)
    made = vendor_schema(name, description, parameters, "openai-chat", strict=False)["function"]
    if api_format == "anthropic":
        own = vendor_schema(name, description, parameters, "anthropic", strict=False)
        made = {**own, "parameters": own["input_schema"]}
    return ToolDefinition(
        name=name,
        description=made["description"],
        parameters_json_schema=made["parameters"],
        strict=None if api_format == "gemini" else False,
    )


def _output(schema: Mapping[str, Any]) -> OutputObjectDefinition:
    name = _ODD.sub("_", str(schema.get("title") or "answer"))[:64]
    return OutputObjectDefinition(json_schema=dict(schema), name=name, description=schema.get("description"))


def _takes_temperature(profile: Mapping[str, Any]) -> bool:
    """Models that think take none, and the library would warn at each request."""
    if profile.get("anthropic_disallows_sampling_settings", False):
        return False
    thinks = profile.get("openai_supports_reasoning", False)
    can_stop = profile.get("openai_supports_reasoning_effort_none", False)
    return not thinks or (can_stop and not profile.get("thinking_enabled_by_default", False))


def _must_think(settings: Mapping[str, Any]) -> bool:
    """Return whether Anthropic is told to think before each call, rather than where the model sees fit."""
    return bool((settings.get("anthropic_thinking") or {}).get("type") == "enabled")


def _has_an_end(response: ModelResponse) -> bool:
    """Whether the vendor said why a stream ended: whoever cuts one between two events does not."""
    reason = (response.provider_details or {}).get("finish_reason")
    return bool(reason) or response.finish_reason == "content_filter"


def _text(event: Any) -> str:
    if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
        return event.part.content
    if isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
        return event.delta.content_delta
    return ""


class GeminiModel(GoogleModel):
    """As the library's, which ignores `extra_body`. Google's own client merges it into the request."""

    unsupported_settings = GoogleModel.unsupported_settings - {"extra_body"}

    async def _build_content_and_config(self, *args: Any, **kwargs: Any) -> tuple[Any, GenerateContentConfigDict]:
        contents, config = await super()._build_content_and_config(*args, **kwargs)
        settings = kwargs.get("model_settings") or next((each for each in args if isinstance(each, dict)), {})
        if body := settings.get("extra_body"):
            config["http_options"] = {**(config.get("http_options") or {}), "extra_body": body}
        return contents, config
