"""ModelRequest: one request to a vendor's model through pydantic-ai, answered whole or as a stream.

The modules of this folder that begin with `model_` import pydantic-ai, which takes a second or two.
So they are imported when a model is first asked. The libraries of single vendors are imported in
`model_openai` and `model_gemini` only, because each library has an extra, which may be missing.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    suppress,
)
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx2
from pydantic_ai import direct
from pydantic_ai.messages import (
    InstructionPart,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.tools import ToolDefinition

from sayso.agent.messages import UsageStats
from sayso.agent.providers.base import (
    Completion,
    ProviderRequest,
    RequestRefusedError,
    StreamItem,
    UnchosenTemperature,
)
from sayso.agent.providers.file_reading import MessageWithFiles
from sayso.agent.providers.model_errors import (
    call_in_text,
    content_filtered,
    cut_off_stream,
    translated,
    unreadable_answer,
)
from sayso.agent.providers.model_messages import (
    StableMark,
    calls_of,
    details_of,
    instructions,
    lacks_thinking,
    message_of,
    transcript,
)
from sayso.agent.providers.reasoning import without_reasoning
from sayso.agent.tools.errors import ToolValidationError
from sayso.agent.tools.vendor_schemas import ApiFormat, for_vendor, without_references

log = logging.getLogger(__name__)
T = TypeVar("T")
#: How long connecting may take, in seconds.
CONNECT_SECONDS = 5.0
#: The longest pause in an answer to a request without a timeout, in seconds.
READ_SECONDS = 600.0
#: How many connections one event loop may have.
MAX_CONNECTIONS = 1000
#: How many of them it keeps open while they are idle.
MAX_IDLE_CONNECTIONS = 100
#: Collects the HTTP responses that a vendor's library opens; see `closing_responses`.
_opened_responses: ContextVar[list[httpx2.Response] | None] = ContextVar(
    "sayso_responses", default=None
)
#: Logs the same line once. It remembers a thousand lines at most, since a misconfigured server may
#: invent model names.
_log_once = functools.lru_cache(maxsize=1000)(log.info)
#: Returns the TLS context of this process. Loading the certificates takes 20 ms.
_tls_context = functools.cache(httpx2.create_ssl_context)
#: Characters that the name of an answer's schema may not have.
_ILLEGAL_IN_NAME = re.compile(r"[^A-Za-z0-9_-]")
#: How models mark a call in their text, outside of code: Qwen and Hermes, Mistral, Llama, DeepSeek,
#: Kimi. Their server should have taken the call out of the text.
_CALL_MARK = re.compile(
    r"(?<!`)(?:<tool_call>|\[TOOL_CALLS\]|<\|python_tag\|>|<function="
    r"|<\uff5ctool\u2581calls?\u2581begin\uff5c>|<\|tool_calls?_(?:section_)?begin\|>)"
)
#: How many characters behind the mark are searched for the name of a tool.
_MAX_CHARS_TO_NAME = 200


@dataclass(frozen=True, slots=True)
class VendorTraits:
    """What a request needs to know of its vendor."""

    #: The vendor's name in usage and errors.
    name: str
    #: The format of its tool schemas.
    api_format: ApiFormat
    #: Whether its streams always end with a finish reason.
    ends_streams: bool
    #: The operator's fields of the request.
    model_settings: Mapping[str, Any]
    #: Whether the price list has the model that is asked.
    knows_model: bool
    #: The names of tools that the vendor does not accept. A request adds to them, so that each is
    #: logged once.
    omitted_tools: set[str]


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One request to a model of a vendor."""

    vendor: VendorTraits
    model: Model[Any]
    request: ProviderRequest
    #: The messages of the request, with the bytes of their files.
    messages: Sequence[MessageWithFiles]
    #: The settings in the form that pydantic-ai takes.
    settings: Mapping[str, Any]
    #: The API key, which is hidden in the text of errors.
    api_key: str = field(repr=False)
    #: Where the request marks the end of the messages that the next turn repeats. None: nowhere.
    mark: StableMark | None = None

    async def completion(self) -> Completion:
        """Return the whole answer. Raise ProviderError."""
        with self._translated():
            response = await direct.model_request(**self._arguments())
        self._check(response)
        return message_of(response, self._source), self._usage(response)

    async def stream(self) -> AsyncGenerator[StreamItem]:
        """Yield the answer as it arrives: its text, then its calls, its details and the usage.

        Thinking and parts of calls are yielded as empty texts, which show that the vendor is not
        silent. Raise ProviderError.
        """
        with self._translated():
            opening = direct.model_request_stream(**self._arguments(is_stream=True))
            async with closing_responses(opening) as stream:
                async for event in stream:
                    yield _text(event)
                response = stream.get()

        # A proxy may cut the connection between two events, which looks like the end of the answer.
        reason = (response.provider_details or {}).get("finish_reason")
        is_cut = not reason and response.finish_reason != "content_filter"
        if is_cut and self.vendor.ends_streams:
            raise cut_off_stream(self.vendor.name)
        self._check(response)
        for call in calls_of(response, is_cut=is_cut):
            yield call
        yield details_of(response, self._source)
        yield self._usage(response)

    def _usage(self, response: ModelResponse) -> UsageStats:
        """Return the tokens and the cost of an answer."""
        usage = usage_of(response, self.vendor.name, self.model.model_name)
        # GeminiModel learns from it whether an explicit cache would pay.
        note_cached_tokens = getattr(self.model, "note_cached_tokens", None)
        if note_cached_tokens:
            note_cached_tokens(usage.cache_read_tokens)
        return usage

    def _translated(self) -> AbstractContextManager[None]:
        """Return a context that raises errors as ProviderError.

        The error of a refused request names the operator's settings, without their values.
        """
        sent_settings = sorted(
            name for name, value in self.vendor.model_settings.items() if value is not None
        )
        return translated(self.vendor.name, self.api_key, sent_settings)

    @property
    def _source(self) -> str:
        """Vendor and model. Only the same ones can read back the reasoning that they sent."""
        return f"{self.vendor.name}/{self.model.model_name}"

    def _check(self, response: ModelResponse) -> None:
        """Raise ProviderError for an answer that cannot be used.

        It was filtered, is broken, has a call in its text, or used up its tokens before it said
        anything.
        """
        if response.finish_reason == "content_filter":
            refusal = (response.provider_details or {}).get("refusal") or ""
            raise content_filtered(self.vendor.name, str(refusal))
        if response.tool_calls:
            return

        if _is_broken(response, self.vendor.api_format):
            raise unreadable_answer(self.vendor.name)
        text = "".join(part.content for part in response.parts if isinstance(part, TextPart))
        text = without_reasoning(text)
        if self._has_call(text):
            raise call_in_text(self.vendor.name)
        if response.finish_reason == "length" and not text.strip():
            error = RequestRefusedError(
                f"{self.vendor.name}: {self.model.model_name!r} used up "
                f"max_tokens={self.request.max_tokens} before it said anything: raise max_tokens"
            )
            error.kind = "cut_off"
            raise error

    def _has_call(self, text: str) -> bool:
        """Return whether a text has a call of an offered tool, which the server failed to read."""
        for mark in _CALL_MARK.finditer(text):
            behind = text[mark.end() : mark.end() + _MAX_CHARS_TO_NAME]
            if any(schema["name"] in behind for schema in self.request.tools or ()):
                return True
        return False

    def _arguments(self, *, is_stream: bool = False) -> dict[str, Any]:
        """Return the arguments of pydantic-ai's request functions."""
        messages = transcript(self.messages, self._source, mark=self.mark)
        settings = self._settings(is_stream=is_stream)
        # Anthropic refuses calls without thinking before them, where thinking is enabled.
        thinking = settings.get("anthropic_thinking") or {}
        must_think = thinking.get("type") == "enabled"
        if must_think and lacks_thinking(messages):
            # Where thinking is disabled, it refuses reasoning, so no reasoning is sent either.
            messages = transcript(self.messages, mark=self.mark)
            settings["anthropic_thinking"] = {"type": "disabled"}
        return {
            "model": self.model,
            "messages": messages,
            "model_settings": settings,
            "model_request_parameters": self._parameters(),
        }

    def _settings(self, *, is_stream: bool) -> dict[str, Any]:
        """Return the settings in the form that pydantic-ai takes."""
        settings: dict[str, Any] = {"max_tokens": self.request.max_tokens, **self.settings}
        temperature = self._temperature(settings)
        if temperature is not None:
            settings["temperature"] = temperature
        # pydantic-ai's timeout is for a whole answer. A stream limits each pause instead.
        if self.request.timeout is not None and not is_stream:
            settings["request_timeout"] = self.request.timeout
        return settings

    def _temperature(self, settings: Mapping[str, Any]) -> float | None:
        """Return the temperature to send, None to send none."""
        temperature: float | None = self.vendor.model_settings.get(
            "temperature", self.request.temperature
        )
        # No program has chosen the default, and many unknown and thinking models refuse it.
        if isinstance(temperature, UnchosenTemperature):
            thinks = "anthropic_thinking" in settings
            if thinks or not self.vendor.knows_model:
                return None

        # Thinking models take no temperature, and the library would warn each time.
        profile: Mapping[str, Any] = self.model.profile
        if profile.get("openai_supports_reasoning", False):
            thinks_by_default = profile.get("thinking_enabled_by_default", False)
            can_stop_thinking = profile.get("openai_supports_reasoning_effort_none", False)
            if thinks_by_default or not can_stop_thinking:
                return None
        if profile.get("anthropic_disallows_sampling_settings", False):
            return None
        return temperature

    def _parameters(self) -> ModelRequestParameters:
        """Return the tools, the system prompt and the form of the answer, as pydantic-ai's."""
        tools = [self._tool(schema) for schema in self.request.tools or ()]

        # The first part is the same in every turn. Anthropic caches it, so it stands alone there.
        first, *others = instructions(self.request.system_prompt, self.messages)
        if self.vendor.api_format == "anthropic":
            parts = [InstructionPart(content=first)]
            parts += [InstructionPart(content=each, dynamic=True) for each in others]
        else:
            parts = [InstructionPart(content="\n\n".join([first, *others]))]

        parameters = ModelRequestParameters(
            function_tools=[tool for tool in tools if tool is not None], instruction_parts=parts
        )

        schema = self.request.response_format
        if schema is not None:
            parameters.output_mode = "native" if self._knows_schemas() else "prompted"
            name = _ILLEGAL_IN_NAME.sub("_", str(schema.get("title") or "answer"))[:64]
            parameters.output_object = OutputObjectDefinition(
                json_schema=dict(schema), name=name, description=schema.get("description")
            )
            parameters.allow_text_output = False
        return parameters

    def _knows_schemas(self) -> bool:
        """Return whether the vendor itself makes the model follow the schema of the answer."""
        profile: Mapping[str, Any] = self.model.profile
        if not profile.get("supports_json_schema_output", False):
            return False
        # Older Gemini models refuse such a schema together with tools.
        if self.vendor.api_format == "gemini" and self.request.tools:
            return bool(profile.get("google_supports_tool_combination", False))
        return True

    def _tool(self, schema: Mapping[str, Any]) -> ToolDefinition | None:
        """Return a tool in the vendor's format, or None if the vendor would refuse it.

        One refused tool would make the whole request fail.
        """
        name = schema["name"]
        api_format = self.vendor.api_format
        try:
            description, parameters = for_vendor(
                name, schema["description"], schema["parameters"], api_format
            )
            parameters = self._for_model(name, parameters)
        except ToolValidationError as exc:
            if name not in self.vendor.omitted_tools:
                self.vendor.omitted_tools.add(name)
                log.warning("tool.left_out", extra={"tool": name, "why": str(exc)})
            return None
        # A strict schema would make every parameter required. Gemini does not have that setting.
        strict = None if api_format == "gemini" else False
        return ToolDefinition(
            name=name, description=description, parameters_json_schema=parameters, strict=strict
        )

    def _for_model(self, name: str, parameters: dict[str, Any]) -> dict[str, Any]:
        """Return parameters that pydantic-ai can adapt to the model.

        Some models (Qwen, Llama, all of Ollama) know no references. For them pydantic-ai writes out
        the definitions that a schema refers to. Where a definition refers to itself or is missing,
        or the result is too large, pydantic-ai returns a schema of another type, or raises. Then
        the definitions are written out here. Raise ToolValidationError if that fails, too.
        """
        profile: Mapping[str, Any] = self.model.profile
        transformer = profile.get("json_schema_transformer")
        if transformer is None or "$defs" not in parameters:
            return parameters
        for schema in (parameters, without_references(parameters)):
            with suppress(Exception):  # the library may raise anything for an odd schema
                if transformer(deepcopy(schema)).walk().get("type") == "object":
                    return schema
        raise ToolValidationError(
            f"no schema of {name!r} for this model: its definitions cannot be written out"
        )


def _is_broken(response: ModelResponse, api_format: str) -> bool:
    """Return whether the vendor calls its answer broken.

    Gemini has finish reasons that the library does not know, such as OTHER or MALFORMED_RESPONSE.
    All of them are failures: the text before them is half an answer.
    """
    if response.finish_reason is not None or api_format != "gemini":
        return response.finish_reason == "error"
    unknown_reason = (response.provider_details or {}).get("finish_reason")
    return unknown_reason not in (None, "FINISH_REASON_UNSPECIFIED")


def _text(event: Any) -> str:
    """Return the text that an event of a stream adds to the answer, "" for other events."""
    if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
        return event.part.content
    if isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
        return event.delta.content_delta
    return ""


def usage_of(response: ModelResponse, provider: str, model: str) -> UsageStats:
    """Return the tokens and the cost of an answer.

    `model` is the requested model. It is used where the answer names none.
    """
    usage = response.usage
    name = response.model_name or model
    try:
        cost = float(response.cost().total_price)
    except Exception as exc:  # an unknown price must never prevent an answer
        cost = 0.0
        _log_once(
            "provider.no_price provider=%s model=%s reason=%s", provider, name, type(exc).__name__
        )
    return UsageStats(
        prompt_tokens=usage.input_tokens,
        completion_tokens=usage.output_tokens,
        total_tokens=usage.input_tokens + usage.output_tokens,
        cost_usd=cost,
        model=name,
        provider=provider,
        cache_read_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
    )


def http_client() -> httpx2.AsyncClient:
    """Return an HTTP client for a vendor's library.

    It follows no redirects, which would take the API key and the conversation to another server.
    The libraries' own clients are not used: they close themselves when garbage is collected, in
    whichever loop runs then, and log errors because their own loop has ended.
    """
    timeout = httpx2.Timeout(READ_SECONDS, connect=CONNECT_SECONDS)
    limits = httpx2.Limits(
        max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_IDLE_CONNECTIONS
    )
    hooks = {"response": [_collect]}
    return httpx2.AsyncClient(
        timeout=timeout, limits=limits, verify=_tls_context(), event_hooks=hooks
    )


async def _collect(response: httpx2.Response) -> None:
    """Note a response that a vendor's library opens, for `closing_responses`."""
    responses = _opened_responses.get()
    if responses is not None:
        responses.append(response)


@asynccontextmanager
async def closing_responses(opening: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
    """Enter a stream of a vendor's library, and close all its HTTP responses at the end.

    Some libraries leave a stream that is not read to its end to the garbage collector,
    which closes it late or never.
    """
    responses = list["httpx2.Response"]()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(_close, responses)
        token = _opened_responses.set(responses)
        try:
            stream = await stack.enter_async_context(opening)
        finally:
            _opened_responses.reset(token)
        # This callback runs before the library's own cleanup. The one above runs after it, also
        # when the stream could not be entered.
        stack.push_async_callback(_close, responses)
        yield stream


async def _close(responses: list[httpx2.Response]) -> None:
    """Close the responses. A response may be closed twice."""
    for response in responses:
        with suppress(Exception):  # the answer is complete, or its error is being raised already
            await response.aclose()
