"""The Provider protocols, a request and its errors, and the calls that suit every provider.

ProviderError
├── RateLimitedError            the vendor's rate limit (HTTP 429)
├── RequestRefusedError         the content of the request
└── ProviderConfigurationError  the provider's setup
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

from sayso.agent.messages import (
    NOT_JSON,
    AnswerDetails,
    FailureKind,
    Message,
    Role,
    ToolCall,
    UsageStats,
    countable,
)
from sayso.agent.providers.error_texts import (
    AccessFault,
    fitting_share,
    says_no_credit,
    says_too_long,
)
from sayso.agent.providers.reasoning import ReasoningFilter, Voided, split_reasoning
from sayso.agent.tools.arguments import quoted
from sayso.agent.tools.json_validation import read_json
from sayso.infra.concurrency import await_isolated, call_in_tool_thread

log = logging.getLogger(__name__)

#: The `code` of an error for a request or an answer that a vendor's content filter stopped.
FILTERED = "content_filter"
#: How many characters of a call's unreadable arguments are kept.
MAX_NOT_JSON_CHARS = 500
#: How many characters of an error's text are kept.
MAX_REASON_CHARS = 300
#: A secret, with the name before it: vendors' errors repeat URLs and headers.
_SECRETS = re.compile(
    r"((?:key|token|secret|password|signature)[\"']?\s{0,3}[=:]\s{0,3}[\"']?|\b(?:bearer|basic)\s{1,3})[^\s&\"',)]+"
    r"|\bsk-[\w-]{8,}",
    re.IGNORECASE,
)

#: Raises ValueError for a number that JSON does not have,
#: TypeError for another value that it does not have.
_check_json = json.JSONEncoder(allow_nan=False).encode
#: Marks the end of a stream. A faulty provider may yield anything else.
_END: Any = object()


class ProviderError(Exception):
    """Raised when a model could not be called, or did not answer in time.

    `retry_after` is the pause that the vendor asks for, in seconds; a retry can help unless
    `retryable` is False. `status`, `code` and `model` are the HTTP status, the vendor's error code
    and the model's name, if known. `settings` names the operator's model settings in a refused
    request. `refusal` is the model's own text for a refusal, to show to the user. `fitting_share`
    is the share of a too long request that the model would take, if the vendor's message names both
    sizes. `access_fault` is what the operator has to mend, if more is known of it than the status.
    """

    kind: FailureKind = "away"
    status: int | None = None
    code: str = ""
    model: str = ""
    settings: str = ""
    refusal: str = ""
    fitting_share: float | None = None
    access_fault: AccessFault | None = None

    def __init__(
        self, message: str, *, retry_after: float | None = None, retryable: bool = True
    ) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.retryable = retryable

    @property
    def advice(self) -> str:
        """What the operator can do, "" if it passes by itself or is about a request's content."""
        if self.kind != "no_access":
            return ""
        fault_of_status = _FAULTS_BY_STATUS.get(self.status or 0, "key")
        return _ADVICE[self.access_fault or fault_of_status]

    @property
    def cause(self) -> str:
        """The facts of the error on one line for the log.

        They are without the vendor's text, which may repeat a user's.
        """
        if self.model:
            return f"{self.facts} model={self.model}"
        return self.facts

    @property
    def facts(self) -> str:
        """The same without the model."""
        facts = {name: getattr(self, name) for name in ("kind", "status", "code", "settings")}
        return " ".join(f"{name}={value}" for name, value in facts.items() if value)


#: What the operator has to mend by HTTP status, where the vendor does not say it.
_FAULTS_BY_STATUS: Mapping[int, AccessFault] = {402: "credit", 403: "rights", 404: "model"}
#: What the operator can do where a vendor gives no access.
_ADVICE: Mapping[AccessFault, str] = {
    "credit": "the quota or credit of the account is used up: see the vendor's page for billing",
    "key": "the vendor refuses the key: see agent.api_key",
    "rights": "this key may not use the model: see the rights of agent.api_key",
    "model": "the vendor knows no such model or address: see agent.model and agent.base_url",
    "setting": "the model refuses a setting: see agent.model_settings and agent.max_tokens",
    "tools": "the model takes no tools, or refuses one of them: see agent.model and the bot's tools",
    "region": "the vendor does not serve the country of this server",
}


class RateLimitedError(ProviderError):
    """Raised when the vendor's rate limit is exceeded (HTTP 429)."""

    kind: FailureKind = "busy"


class RequestRefusedError(ProviderError):
    """Raised when the vendor refuses the content of a request.

    The text may be too long, or a file broken.
    """

    kind: FailureKind = "refused"

    def __init__(self, message: str) -> None:
        super().__init__(message, retryable=False)


class ProviderConfigurationError(ProviderError):
    """Raised when a provider cannot work as it is configured."""

    kind: FailureKind = "no_access"

    def __init__(self, message: str) -> None:
        super().__init__(message, retryable=False)


def reason(error: Exception) -> str:
    """Return the error's class and the first line of its text without secrets. Raise nothing."""
    kind = type(error).__name__
    try:
        line = next(iter(str(error).strip().splitlines()), "")
    except Exception:  # a foreign __str__ may raise anything
        return kind
    if line:
        return f"{kind}: {without_secrets(line)}"
    return kind


def reason_for_log(error: Exception) -> str:
    """Return an error for the log, without its text, which may quote a user.

    It is the error's class, and the facts of a ProviderError.

    The class is that of the original error where the library of a vendor raised one.
    """
    if not isinstance(error, ProviderError):
        return type(error).__name__
    return f"{type(error.__cause__ or error).__name__} {error.facts}"


def without_secrets(line: str) -> str:
    """Return the beginning of the line, with stars in place of anything that looks like a secret."""
    return _SECRETS.sub(r"\1***", line[:MAX_REASON_CHARS])


class UnchosenTemperature(float):
    """The default temperature. It equals a plain `float`; its type shows that it is a default.

    `AgentConfig.temperature` is documented to be 0.0 where none is given. Many new models refuse
    any temperature, so the default is sent only to models that are known to take one. A plain
    number could not be told from a 0.0 that a program has chosen, which is sent to every model.
    """

    __slots__ = ()


#: The temperature where none is configured.
DEFAULT_TEMPERATURE = UnchosenTemperature(0.0)


@dataclass
class ProviderRequest:
    """The keyword arguments that a provider is called with."""

    model: str
    system_prompt: str
    messages: Sequence[Message]
    #: Tool schemas as plain data, or None for a provider that has no such parameter.
    tools: Sequence[Mapping[str, Any]] | None = ()
    #: None where none is sent.
    temperature: float | None = DEFAULT_TEMPERATURE
    max_tokens: int = 1000
    #: In seconds.
    timeout: float | None = None
    #: A JSON Schema, and is passed only to a provider whose `supports_response_format` is true.
    response_format: Mapping[str, Any] | None = None
    #: The same for all requests of one conversation, and opaque; None for a request of no
    #: conversation, such as a summary. It is passed only to a provider whose
    #: `supports_conversation_key` is true.
    conversation_key: str | None = None

    def as_kwargs(self) -> dict[str, Any]:
        """Return the keyword arguments of the request.

        The optional ones are left out where they are None.
        """
        kwargs = dict(vars(self))
        for optional in ("tools", "response_format", "conversation_key"):
            if kwargs[optional] is None:
                del kwargs[optional]
        return kwargs


#: An answer and its usage.
Completion = tuple[Message, UsageStats]


@dataclass(frozen=True, slots=True)
class Restart:
    """An item of a stream: the answer so far broke off and is void; another answer begins."""


#: What a stream yields: text, whole tool calls, and the usage and the details if the vendor reports
#: them. An empty text only shows that the model is at work.
StreamItem = str | ToolCall | UsageStats | AnswerDetails | Restart


class Completes(Protocol):
    """A blocking provider, called in a thread.

    All four protocols are called with the fields of ProviderRequest.
    """

    def complete(self, *_: Any, **request: Any) -> Completion:
        """Return the answer to a request."""


class CompletesAsync(Protocol):
    """A provider that is called in the event loop."""

    async def acomplete(self, *_: Any, **request: Any) -> Completion:
        """Return the answer to a request."""


class Streams(Protocol):
    """A blocking provider that streams its answer, called in a thread."""

    def stream(self, *_: Any, **request: Any) -> Iterator[StreamItem]:
        """Yield the answer to a request."""


class StreamsAsync(Protocol):
    """A provider that streams its answer in the event loop."""

    def astream(self, *_: Any, **request: Any) -> AsyncIterator[StreamItem]:
        """Yield the answer to a request."""


#: A provider has at least one of the four methods. Optional attributes: `name`; `default_model`;
#: `supports_response_format` and `supports_conversation_key` (default False); `supports_tools`
#: (default True); `keeps_time`, True for a provider that calls other providers and applies the
#: timeout to each of them; `separates_reasoning` (default True), False for one whose server may
#: leave the reasoning of its models in their text: the first stream of a model is then held back;
#: `shows_results`, True for one without a price whose answers are the results of tools (default
#: False).
Provider = CompletesAsync | Completes | StreamsAsync | Streams
#: Receives each piece of an answer's text as it arrives. Its method `anew()`, if any,
#: is called when the text is void.
OnText = Callable[[str], Awaitable[None]]
#: Called with the names of the failed and of the next provider, and the error.
FallbackListener = Callable[[str, str, Exception], None]


def with_listener(provider: Provider, listener: FallbackListener) -> Provider:
    """Return the provider with its fallbacks reported to the listener; unchanged if it has none."""
    bind = getattr(provider, "with_listener", None)
    if bind is None:
        return provider
    return cast("Provider", bind(listener))


def name_of(provider: object) -> str:
    """Return the provider's `name`, or the name of its class if it has none."""
    name = getattr(provider, "name", None)
    if isinstance(name, str) and name:
        return name
    return type(provider).__name__


async def acall(provider: Provider, request: ProviderRequest) -> Completion:
    """Call the provider through its best method and return the answer and its usage.

    Raise only ProviderError: after `timeout` seconds, for any error of the provider, and for an
    invalid answer. A provider may return text in place of the message, and None in place of the
    usage.
    """
    limit = asyncio.timeout(_timeout(provider, request))
    try:
        async with limit:
            answer: Any = await await_isolated(_complete(provider, _kwargs_for(provider, request)))
    except Exception as exc:
        if limit.expired():  # whatever the provider raised while it was cancelled
            raise _no_answer(request) from exc
        if isinstance(exc, ProviderError):
            raise
        raise _as_provider_error(exc) from exc
    match answer:
        case (str() | Message() as message, UsageStats() | None as usage):
            if isinstance(message, str):
                message = Message(Role.ASSISTANT, message)
            if isinstance(message.content, str):
                message = _without_reasoning(_valid_message(message), provider, request)
                return message, UsageStats() if usage is None else countable(usage)
    kind = type(provider).__name__
    raise ProviderError(
        f"{kind} gave {type(answer).__name__!r} for an answer: return (Message, UsageStats)"
    )


async def astream_call(provider: Provider, request: ProviderRequest, on_text: OnText) -> Completion:
    """Call the provider like `acall`, and pass the text to `on_text` as it arrives.

    `timeout` limits each silence.

    The text of a provider that does not stream is passed on as one piece. Where an answer breaks
    off, its text is void and `on_text.anew()` is called, if there is such a method. Raise
    ProviderError, and what `on_text` raises.
    """
    items: list[StreamItem] = []
    stream = stream_items(provider, request)
    try:
        async with aclosing(stream):
            async for item in stream:
                if isinstance(item, Restart):
                    _discard(items, on_text)
                items.append(item)
                if isinstance(item, str) and item:
                    await on_text(item)
    except ProviderError:
        _discard(items, on_text)
        raise
    return join_items(items)


def _discard(items: list[StreamItem], on_text: OnText) -> None:
    """Clear the items of an answer that broke off; tell the listener, if it has received text."""
    if hasattr(on_text, "anew") and any(isinstance(item, str) and item for item in items):
        on_text.anew()
    items.clear()


def _without_reasoning(message: Message, provider: Provider, request: ProviderRequest) -> Message:
    """Return the message without the reasoning that the model wrote into its text."""
    text, has_unopened = split_reasoning(message.content)
    if message.content:
        _note_model(provider, request, has_unopened=has_unopened)
    if text == message.content:
        return message
    return replace(message, content=text)


#: How many models of a process are known by whether they begin with reasoning.
MAX_KNOWN_MODELS = 1000
#: By provider and model: whether its answers begin with reasoning that has only a closing tag. The
#: opening tag is then in the prompt that the model's server makes.
_known_models: dict[tuple[str, str], bool] = {}


def _model_key(provider: Provider, request: ProviderRequest) -> tuple[str, str]:
    return name_of(provider), request.model or str(getattr(provider, "default_model", ""))


def _may_begin_with_reasoning(provider: Provider, request: ProviderRequest) -> bool:
    """Return whether an answer may begin with reasoning that only its closing tag shows to be some.

    Before the first answer of a model the provider decides (`separates_reasoning`). The default is
    no, so that the streams of an application's own provider are never held back without need.
    """
    is_separated = getattr(provider, "separates_reasoning", True)
    return _known_models.get(_model_key(provider, request), not is_separated)


def _note_model(provider: Provider, request: ProviderRequest, *, has_unopened: bool) -> None:
    """Remember whether an answer of this model began with reasoning. Once one did, that stays."""
    key = _model_key(provider, request)
    if _known_models.get(key):
        return
    if key not in _known_models and len(_known_models) >= MAX_KNOWN_MODELS:
        return
    _known_models[key] = has_unopened
    if has_unopened:
        log.warning("model.reasoning_in_text provider=%s model=%s", *key)


async def stream_items(
    provider: Provider, request: ProviderRequest
) -> AsyncGenerator[StreamItem, None]:
    """Yield the answer's text, tool calls and usage as they arrive, without reasoning.

    Raise only ProviderError.

    Reasoning without an opening tag is recognized only at its closing tag. So where a server may
    leave reasoning in the text, the first answer of a model is held back until it ends or such a
    tag arrives. Later answers are held back only if an earlier one had such reasoning. Where text
    was yielded that proves to be reasoning, a Restart follows.

    Without `astream`, a provider is called through `acomplete` or `complete`, if it has one: its
    blocking `stream` may yield text alone and lose the tool calls.
    """
    completes = (
        hasattr(provider, "acomplete")
        or hasattr(provider, "complete")
        or not hasattr(provider, "stream")
    )
    if completes and not hasattr(provider, "astream"):
        answer, usage = await acall(provider, request)
        for whole in (
            answer.content,
            *answer.tool_calls,
            *([answer.details] if answer.details else ()),
            usage,
        ):
            yield whole
        return
    reading = ReasoningFilter(holds=_may_begin_with_reasoning(provider, request))
    has_text = False
    async with aclosing(_stream(provider, request)) as items:
        async for item in items:
            if isinstance(item, Restart):
                reading = ReasoningFilter(holds=_may_begin_with_reasoning(provider, request))
            if not isinstance(item, str):
                yield item
                continue
            has_text = has_text or bool(item)
            for text in reading.feed(item) or [""]:  # an empty text shows that the model is at work
                yield Restart() if isinstance(text, Voided) else text
    for text in reading.end():
        yield Restart() if isinstance(text, Voided) else text
    if has_text:
        _note_model(provider, request, has_unopened=reading.has_unopened)


async def _stream(provider: Provider, request: ProviderRequest) -> AsyncGenerator[StreamItem, None]:
    """Yield the items of a provider's stream. Raise only ProviderError."""
    limit = asyncio.timeout(None)
    try:
        async with _opened_stream(provider, _kwargs_for(provider, request)) as stream:
            while True:
                # Around each item: a limit around the `yield` would count the time of the consumer.
                async with asyncio.timeout(_timeout(provider, request)) as limit:
                    item = await await_isolated(anext(stream, _END))
                if item is _END:
                    return
                yield _valid_item(item)
    except Exception as exc:
        if limit.expired():
            raise _no_answer(request) from exc
        if isinstance(exc, ProviderError):
            raise
        raise _as_provider_error(exc) from exc


def _kwargs_for(provider: Provider, request: ProviderRequest) -> dict[str, Any]:
    """Return the keyword arguments of a request.

    The key of the conversation is left out where the provider has no parameter for it.
    """
    kwargs = request.as_kwargs()
    if not getattr(provider, "supports_conversation_key", False):
        kwargs.pop("conversation_key", None)
    return kwargs


async def _complete(provider: Provider, kwargs: dict[str, Any]) -> Completion:
    methods: Any = provider  # isinstance checks of the Protocols would take as long as a round trip
    if hasattr(methods, "acomplete"):
        return cast("Completion", await methods.acomplete(**kwargs))
    if hasattr(methods, "complete"):
        return cast("Completion", await call_in_tool_thread(lambda: methods.complete(**kwargs)))
    if hasattr(methods, "astream"):
        return join_items([item async for item in methods.astream(**kwargs)])
    if hasattr(methods, "stream"):
        return join_items(await call_in_tool_thread(lambda: list(methods.stream(**kwargs))))
    raise ProviderConfigurationError(
        f"{provider!r} is no provider: give it complete, acomplete, stream or astream"
    )


@asynccontextmanager
async def _opened_stream(
    provider: Provider, kwargs: dict[str, Any]
) -> AsyncIterator[AsyncIterator[StreamItem]]:
    """Yield the provider's stream, and close it at the end.

    No connection outlives the answer.
    """
    methods: Any = provider
    if hasattr(methods, "astream"):
        stream = methods.astream(**kwargs)
    else:
        stream = _read_in_thread(lambda: methods.stream(**kwargs))
    try:
        yield stream
    finally:
        if hasattr(stream, "aclose"):
            # The answer is complete, or its error is being raised already.
            with suppress(Exception):
                await stream.aclose()


async def _read_in_thread(
    stream: Callable[[], Iterator[StreamItem]],
) -> AsyncGenerator[StreamItem, None]:
    """Yield the items of a blocking stream.

    Once the consumer stops, at most one further item is read.
    """
    # One for all items, so that what the stream sets in a variable stays set.
    context = copy_context()
    items = await call_in_tool_thread(lambda: context.run(lambda: iter(stream())))
    while (item := await call_in_tool_thread(lambda: context.run(next, items, _END))) is not _END:
        yield item


def _timeout(provider: Provider, request: ProviderRequest) -> float | None:
    if getattr(provider, "keeps_time", False):
        return None
    return request.timeout


def _no_answer(request: ProviderRequest) -> ProviderError:
    return ProviderError(f"no answer within {request.timeout} seconds")


def _as_provider_error(exc: Exception) -> ProviderError:
    error = ProviderError(reason(exc))
    text = str(error)
    if says_too_long(text):
        error.kind = "too_long"
        error.retryable = False
        error.fitting_share = fitting_share(text)
    elif says_no_credit(text):
        error.kind = "no_access"
        error.retryable = False
        error.access_fault = "credit"
    return error


def _valid_item(item: Any) -> StreamItem:
    if isinstance(item, str | ToolCall | UsageStats | AnswerDetails | Restart):
        return item
    raise ProviderError(
        f"a stream gave {type(item).__name__!r}: yield text, ToolCall and UsageStats"
    )


def join_items(items: Iterable[StreamItem]) -> Completion:
    """Return the items of a stream as one answer; only those after the last Restart count.

    Raise ProviderError.
    """
    parts = [_valid_item(item) for item in items]
    restarts = [index for index, part in enumerate(parts) if isinstance(part, Restart)]
    if restarts:
        parts = parts[restarts[-1] + 1 :]
    text = "".join(part for part in parts if isinstance(part, str))
    calls = tuple(part for part in parts if isinstance(part, ToolCall))
    usage = sum((countable(part) for part in parts if isinstance(part, UsageStats)), UsageStats())
    details = next((part for part in parts if isinstance(part, AnswerDetails)), None)
    return _valid_message(Message(Role.ASSISTANT, text, calls, details=details)), usage


def is_cut_off(answer: Message, usage: UsageStats, max_tokens: int) -> bool:
    """Return whether an answer ended because `max_tokens` were used up.

    A provider that reports no finish reason is judged by the number of its tokens.
    """
    reason = answer.details.finish_reason if answer.details else ""
    return reason == "length" or (not reason and usage.completion_tokens >= max_tokens)


def _valid_message(message: Message) -> Message:
    """Return the message as the assistant's, with tool calls that can be run and stored.

    Raise ProviderError.
    """
    raw_calls: Any = message.tool_calls
    if raw_calls and not isinstance(raw_calls, Sequence):
        raise _invalid_calls(f"{type(raw_calls).__name__!r} for tool calls")
    if raw_calls:
        calls = tuple(map(_valid_call, raw_calls))
    else:
        calls = ()
    if message.role is Role.ASSISTANT and raw_calls == calls and not message.tool_call_id:
        return message
    if isinstance(message.details, AnswerDetails):
        details = message.details
    else:
        details = None
    return Message(Role.ASSISTANT, message.content, calls, details=details)


def _valid_call(call: object) -> ToolCall:
    if not isinstance(call, ToolCall):
        raise _invalid_calls(f"{type(call).__name__!r} for a tool call")
    parameters = _valid_arguments(call.parameters)
    has_name = isinstance(call.tool_name, str)
    if has_name and parameters is call.parameters and isinstance(call.id, str):
        return call
    return ToolCall(
        call.tool_name if has_name else "", parameters, call.id if isinstance(call.id, str) else ""
    )


def _invalid_calls(what: str) -> ProviderError:
    return ProviderError(f"a provider gave {what}: return ToolCalls in a tuple")


def _valid_arguments(arguments: object) -> dict[str, Any]:
    """Return the arguments of a call; where they are no JSON object, `{NOT_JSON: <their text>}`."""
    if arguments is None:
        return {}
    if isinstance(arguments, str):  # as vendors send them
        with suppress(ValueError, RecursionError):
            read = read_json(arguments)
            arguments = read if isinstance(read, dict) else arguments
    if isinstance(arguments, dict) and all(isinstance(name, str) for name in arguments):
        with suppress(TypeError, ValueError, RecursionError):
            _check_json(arguments)
            return arguments
    if isinstance(arguments, str):
        return {NOT_JSON: arguments[:MAX_NOT_JSON_CHARS]}
    return {NOT_JSON: quoted(arguments)}
