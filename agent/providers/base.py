"""What a provider is, the request that it gets, the errors that it raises, and how it is called.

A provider is the adapter to one vendor of language models, or a stand-in for one. The rest of Sayso
calls any provider with `acall` for a whole answer, and with `astream_call` for a streamed one.

ProviderError                   the model could not be called, or did not answer in time
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
from sayso.agent.providers.reasoning import (
    FilteredItem,
    ReasoningFilter,
    Retraction,
    split_reasoning,
)
from sayso.agent.providers.vendor_error_texts import (
    AccessFault,
    fitting_share,
    says_no_credit,
    says_too_long,
)
from sayso.agent.tools.arguments import quoted
from sayso.agent.tools.json_validation import read_json
from sayso.infra.concurrency import await_isolated, call_in_tool_thread

log = logging.getLogger(__name__)

#: A tool as a provider gets it, as plain data: `name`, `description` and `parameters`.
ToolSchema = Mapping[str, Any]

#: The `code` of an error for a request or an answer that a vendor's content filter stopped.
FILTERED = "content_filter"
#: How many characters are kept of a call's arguments where they are no JSON object.
MAX_NOT_JSON_CHARS = 500
#: How many characters of an error's text are kept.
MAX_REASON_CHARS = 300
#: How many characters of an error's text are searched for secrets; it may repeat a whole request.
MAX_READ_CHARS = 10_000
#: A secret in a vendor's error, which may repeat URLs and headers. The first group is the name
#: before the secret, which is kept.
_SECRETS = re.compile(
    r"((?:key|token|secret|password|signature)[\"']?\s{0,3}[=:]\s{0,3}[\"']?|\b(?:bearer|basic)\s{1,3})[^\s&\"',)]+"
    r"|\bsk-[\w-]{8,}",
    re.IGNORECASE,
)

#: Raises ValueError for a number that JSON does not have, such as NaN, and TypeError for any other
#: value that it does not have.
_check_json = json.JSONEncoder(allow_nan=False).encode
#: Marks the end of a stream. A faulty provider may yield anything else.
_END: Any = object()


class ProviderError(Exception):
    """Raised when a model could not be called, or did not answer in time.

    The code that raises the error sets those attributes that it knows. They are facts for the log
    and for the decision what to do next.
    """

    #: What went wrong, in one word: it decides what the user reads and whether to try again.
    kind: FailureKind = "away"
    #: The HTTP status, None where there was no HTTP response.
    status: int | None = None
    #: The vendor's own error code, "" if unknown.
    code: str = ""
    #: The name of the model that was asked, "" if unknown.
    model: str = ""
    #: The names of the operator's model settings in a refused request, "" without any.
    settings: str = ""
    #: The model's own text for a refusal, to show to the user; "" without one.
    refusal: str = ""
    #: The share (0 to 1) of a too long request that the model would take. None unless the vendor's
    #: message names both sizes.
    fitting_share: float | None = None
    #: What the operator has to mend, None if only the status is known.
    access_fault: AccessFault | None = None

    def __init__(
        self, message: str, *, retry_after: float | None = None, retryable: bool = True
    ) -> None:
        super().__init__(message)
        #: The pause that the vendor asks for, in seconds; None if it asks for none.
        self.retry_after = retry_after
        #: Whether the same request may succeed later.
        self.retryable = retryable

    @property
    def advice(self) -> str:
        """What the operator can do about the error.

        "" for an error that passes by itself or that is about the content of one request.
        """
        if self.kind != "no_access":
            return ""
        fault_of_status = _FAULTS_BY_STATUS.get(self.status or 0, "key")
        return _ADVICE[self.access_fault or fault_of_status]

    @property
    def cause(self) -> str:
        """The facts of the error and the model, on one line for the log.

        The vendor's text is not part of it, because it may repeat a user's.
        """
        if self.model:
            return f"{self.facts} model={self.model}"
        return self.facts

    @property
    def facts(self) -> str:
        """The facts of the error on one line, without the model and without the vendor's text."""
        facts = {name: getattr(self, name) for name in ("kind", "status", "code", "settings")}
        return " ".join(f"{name}={value}" for name, value in facts.items() if value)


#: HTTP status -> what the operator has to mend, where the vendor's text does not say it.
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
    """Raised when the vendor refuses the content of a request, such as a broken file."""

    kind: FailureKind = "refused"

    def __init__(self, message: str) -> None:
        super().__init__(message, retryable=False)


class ProviderConfigurationError(ProviderError):
    """Raised when a provider cannot work with its configuration, such as without a key."""

    kind: FailureKind = "no_access"

    def __init__(self, message: str) -> None:
        super().__init__(message, retryable=False)


def reason(error: Exception) -> str:
    """Return the error's class and the first line of its text without secrets. Raise nothing."""
    class_name = type(error).__name__
    try:
        lines = str(error).strip().splitlines()
    except Exception:  # the __str__ of another library may raise anything
        return class_name
    if not lines:
        return class_name
    return f"{class_name}: {hide_secrets(lines[0])}"


def reason_for_log(error: Exception) -> str:
    """Return the class of an error for the log, and the facts of a ProviderError.

    The error's text is left out, because it may quote a user. For an error that a vendor's library
    raised, the class is the library's.
    """
    if not isinstance(error, ProviderError):
        return type(error).__name__
    original = error.__cause__ or error
    return f"{type(original).__name__} {error.facts}"


def hide_secrets(line: str) -> str:
    """Return the beginning of the line, with stars in place of what looks like a secret."""
    # Secrets are hidden before the line is cut: half a secret would not be recognized.
    readable = line[:MAX_READ_CHARS]
    return _SECRETS.sub(r"\1***", readable)[:MAX_REASON_CHARS]


class UnchosenTemperature(float):
    """The default temperature: a `float` whose type shows that no program has chosen it.

    `AgentConfig.temperature` is documented to be 0.0 where none is given. Many new models refuse
    any temperature, so the default is sent only to models that are known to take one. A 0.0 that a
    program has chosen is sent to every model. With a plain number, the two would look the same.
    """

    __slots__ = ()


#: The temperature where none is configured.
DEFAULT_TEMPERATURE = UnchosenTemperature(0.0)


@dataclass
class ProviderRequest:
    """One request to a model: the keyword arguments that a provider is called with."""

    #: The name of the model, "" for the provider's own `default_model`.
    model: str
    #: The instructions before the conversation, "" without any.
    system_prompt: str
    #: The conversation so far, oldest message first.
    messages: Sequence[Message]
    #: Tool schemas as plain data, or None for a provider that has no such parameter.
    tools: Sequence[Mapping[str, Any]] | None = ()
    #: From 0 to 2 with most vendors; None to send no temperature.
    temperature: float | None = DEFAULT_TEMPERATURE
    #: The most tokens that the answer may have.
    max_tokens: int = 1000
    #: How long to wait for a whole answer, or for each item of a stream, in seconds; None for no
    #: limit.
    timeout: float | None = None
    #: The JSON Schema of the answer, None for text. Passed only to a provider whose
    #: `supports_response_format` is true.
    response_format: Mapping[str, Any] | None = None
    #: An opaque text, the same for all requests of one conversation. None for a request outside of
    #: a conversation, such as one for a summary. Passed only to a provider whose
    #: `supports_conversation_key` is true.
    conversation_key: str | None = None

    def as_kwargs(self) -> dict[str, Any]:
        """Return the keyword arguments of the request, without optional ones that are None."""
        kwargs = dict(vars(self))
        for optional in ("tools", "response_format", "conversation_key"):
            if kwargs[optional] is None:
                del kwargs[optional]
        return kwargs


#: An answer and its usage.
Completion = tuple[Message, UsageStats]


@dataclass(frozen=True, slots=True)
class Restart:
    """An item of a stream: the answer so far is void, because it broke off or was reasoning.

    A consumer drops all items that came before. The answer begins again with the next item.
    """


#: What a stream yields: pieces of the text, whole tool calls, the usage and the details if the
#: vendor reports them, and a Restart. An empty text only shows that the model is at work.
StreamItem = str | ToolCall | UsageStats | AnswerDetails | Restart


class Completes(Protocol):
    """A blocking provider, called in a thread.

    The methods of all four kinds of provider get the fields of a ProviderRequest as keyword
    arguments.
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


#: A provider has at least one of the four methods. It may also have these attributes:
#:
#: * `name`: shown in logs and usage; by default the name of the class.
#: * `default_model`: the model for a request that names none.
#: * `supports_response_format`, `supports_conversation_key` (default False) and `supports_tools`
#:   (default True): whether its methods have these parameters.
#: * `keeps_time` (default False): True for a provider that calls other providers and applies the
#:   timeout to each of them.
#: * `separates_reasoning` (default True): False for a provider whose server may leave the reasoning
#:   of its models in their text. The first stream of each model is then held back.
#: * `shows_results` (default False): True for a provider without a model, which answers with the
#:   results of tools. It costs nothing, so it gets long results whole.
Provider = CompletesAsync | Completes | StreamsAsync | Streams
#: Receives each piece of an answer's text as it arrives. If the object has a method `anew()`, it is
#: called when all text so far is void.
OnText = Callable[[str], Awaitable[None]]
#: Called with the names of the failed and of the next provider, and the error.
FallbackListener = Callable[[str, str, Exception], None]


def with_listener(provider: Provider, listener: FallbackListener) -> Provider:
    """Return the provider with its fallbacks reported to the listener.

    A provider that has no method for that calls no other provider. It is returned unchanged.
    """
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


def name_of_model(provider: object, model: str) -> str:
    """Return the name of the model that is asked when a request names `model`.

    For "" that is the provider's `default_model`; "" if it has none.
    """
    return model or str(getattr(provider, "default_model", None) or "")


async def acall(provider: Provider, request: ProviderRequest) -> Completion:
    """Call the provider through its best method and return the answer and its usage.

    Raise only ProviderError: after `timeout` seconds, for any error of the provider, and for an
    invalid answer. A provider may return text in place of the message, and None in place of the
    usage.
    """
    kwargs = _kwargs_for(provider, request)
    limit = asyncio.timeout(_timeout(provider, request))
    try:
        async with limit:
            answer: Any = await await_isolated(_complete(provider, kwargs))
    except Exception as exc:
        # First, because a provider may raise anything while the limit cancels it.
        if limit.expired():
            raise _no_answer(request) from exc
        if isinstance(exc, ProviderError):
            raise
        raise _as_provider_error(exc) from exc

    match answer:
        case (str() as text, UsageStats() | None as usage):
            message = Message(Role.ASSISTANT, text)
        case (Message(content=str()) as message, UsageStats() | None as usage):
            pass
        case _:
            class_name = type(provider).__name__
            raise ProviderError(
                f"{class_name} gave {type(answer).__name__!r} for an answer: "
                "return (Message, UsageStats)"
            )

    message = _without_reasoning(_valid_message(message), provider, request)
    if usage is None:
        return message, UsageStats()
    return message, countable(usage)


def _kwargs_for(provider: Provider, request: ProviderRequest) -> dict[str, Any]:
    """Return the keyword arguments of a request for the provider.

    A conversation key that it does not take is left out. For `tools` and `response_format`, the
    code that makes the request does that.
    """
    kwargs = request.as_kwargs()
    if not getattr(provider, "supports_conversation_key", False):
        kwargs.pop("conversation_key", None)
    return kwargs


async def _complete(provider: Provider, kwargs: dict[str, Any]) -> Completion:
    """Return the answer of the provider's best method.

    These are the methods, the best one first: `acomplete`, `complete`, `astream`, `stream`.
    """
    # Not isinstance: a check against a Protocol takes as long as a round trip to Redis.
    methods: Any = provider
    if hasattr(methods, "acomplete"):
        return cast("Completion", await methods.acomplete(**kwargs))
    if hasattr(methods, "complete"):
        return cast("Completion", await call_in_tool_thread(lambda: methods.complete(**kwargs)))
    if hasattr(methods, "astream"):
        return join_items([item async for item in methods.astream(**kwargs)])
    if hasattr(methods, "stream"):
        return join_items(await call_in_tool_thread(lambda: list(methods.stream(**kwargs))))
    # The class, because the `repr` of an object may show a key.
    class_name = type(provider).__name__
    raise ProviderConfigurationError(
        f"{class_name!r} is no provider: give it complete, acomplete, stream or astream"
    )


def _timeout(provider: Provider, request: ProviderRequest) -> float | None:
    """Return the time limit of a call in seconds; None where the provider applies it itself."""
    if getattr(provider, "keeps_time", False):
        return None
    return request.timeout


def _no_answer(request: ProviderRequest) -> ProviderError:
    """Return the error for a request whose time limit has passed."""
    return ProviderError(f"no answer within {request.timeout} seconds")


def _as_provider_error(exc: Exception) -> ProviderError:
    """Return another library's error as a ProviderError, whose `kind` is what the text says."""
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


async def astream_call(provider: Provider, request: ProviderRequest, on_text: OnText) -> Completion:
    """Call the provider like `acall`, and pass the text to `on_text` as it arrives.

    The request's `timeout` limits the pause before each item of the stream. The text of a provider
    that does not stream is passed on as one piece.

    Where an answer breaks off or was reasoning, its text is void and `on_text.anew()` is called, if
    there is such a method. Raise ProviderError, and what `on_text` raises.
    """
    items: list[StreamItem] = []
    stream = stream_items(provider, request)
    try:
        async with aclosing(stream):
            async for item in stream:
                if isinstance(item, Restart):
                    _discard(items, on_text)
                    continue
                items.append(item)
                if isinstance(item, str) and item:
                    await on_text(item)
    except ProviderError:
        _discard(items, on_text)
        raise
    return join_items(items)


def _discard(items: list[StreamItem], on_text: OnText) -> None:
    """Clear the items of a void answer. Report that to `on_text` if it got any text."""
    has_text = any(isinstance(item, str) and item for item in items)
    if has_text and hasattr(on_text, "anew"):
        on_text.anew()
    items.clear()


def _without_reasoning(message: Message, provider: Provider, request: ProviderRequest) -> Message:
    """Return the message without the reasoning that the model wrote into its text."""
    text, has_unopened_reasoning = split_reasoning(message.content)
    if message.content:
        _note_model(provider, request, has_unopened_reasoning=has_unopened_reasoning)
    if text == message.content:
        return message
    return replace(message, content=text)


#: For how many models one process remembers whether their answers begin with unopened reasoning.
MAX_KNOWN_MODELS = 1000
#: (provider, model) -> whether its answers begin with unopened reasoning, which has only a closing
#: tag. The opening tag of such a model is in the prompt that its server writes.
_known_models: dict[tuple[str, str], bool] = {}


def _model_key(provider: Provider, request: ProviderRequest) -> tuple[str, str]:
    """Return the names of the provider and of the model that it is asked for."""
    return name_of(provider), name_of_model(provider, request.model)


def _may_begin_with_reasoning(provider: Provider, request: ProviderRequest) -> bool:
    """Return whether an answer may begin with unopened reasoning.

    Before the first answer of a model, the provider decides by `separates_reasoning`. Without that
    attribute the answer is no, so that the streams of an application's own provider are not held
    back without need.
    """
    key = _model_key(provider, request)
    if key in _known_models:
        return _known_models[key]
    return not getattr(provider, "separates_reasoning", True)


def _note_model(
    provider: Provider, request: ProviderRequest, *, has_unopened_reasoning: bool
) -> None:
    """Remember whether an answer of this model had unopened reasoning.

    After one that had, later answers without it change nothing.
    """
    key = _model_key(provider, request)
    if _known_models.get(key):
        return
    if key not in _known_models and len(_known_models) >= MAX_KNOWN_MODELS:
        return
    _known_models[key] = has_unopened_reasoning
    if has_unopened_reasoning:
        log.warning("model.reasoning_in_text provider=%s model=%s", *key)


async def stream_items(
    provider: Provider, request: ProviderRequest
) -> AsyncGenerator[StreamItem, None]:
    """Yield the answer's text, tool calls and usage as they arrive, without reasoning.

    Raise only ProviderError.

    Unopened reasoning is recognized only at its closing tag. So where a server may leave reasoning
    in the text, the first answer of a model is held back until it ends or such a tag arrives. Later
    answers are held back only if an earlier one had such reasoning. Where text was yielded that
    proves to be reasoning, a Restart follows, and all items other than text are yielded again.

    Without `astream`, a provider is called through `acomplete` or `complete`, if it has one: its
    blocking `stream` may yield text alone and lose the tool calls.
    """
    if not _should_stream(provider):
        answer, usage = await acall(provider, request)
        yield answer.content
        for call in answer.tool_calls:
            yield call
        if answer.details:
            yield answer.details
        yield usage
        return

    holds_back = _may_begin_with_reasoning(provider, request)
    reasoning_filter = ReasoningFilter(holds_back=holds_back)
    has_text = False
    # The tool calls, usages and details of the answer so far. They are no reasoning, so they are
    # yielded again after a Restart that drops the text before them.
    other_items: list[StreamItem] = []
    async with aclosing(_stream(provider, request)) as items:
        async for item in items:
            if isinstance(item, Restart):
                holds_back = _may_begin_with_reasoning(provider, request)
                reasoning_filter = ReasoningFilter(holds_back=holds_back)
                has_text = False
                other_items = []
                yield item
            elif isinstance(item, str):
                has_text = has_text or bool(item)
                # An empty text shows that the model is at work, also while the filter holds text
                # back.
                for filtered_item in reasoning_filter.feed(item) or [""]:
                    for output in _stream_items_of(filtered_item, other_items):
                        yield output
            else:
                other_items.append(item)
                yield item
    for filtered_item in reasoning_filter.end():
        for output in _stream_items_of(filtered_item, other_items):
            yield output

    if has_text:
        has_unopened_reasoning = reasoning_filter.has_unopened_reasoning
        _note_model(provider, request, has_unopened_reasoning=has_unopened_reasoning)


def _should_stream(provider: Provider) -> bool:
    """Return whether to call the provider's streaming method, not one for whole answers."""
    if hasattr(provider, "astream"):
        return True
    completes = hasattr(provider, "acomplete") or hasattr(provider, "complete")
    return hasattr(provider, "stream") and not completes


def _stream_items_of(
    filtered_item: FilteredItem, other_items: Sequence[StreamItem]
) -> Sequence[StreamItem]:
    """Return what to yield for an item of the reasoning filter.

    Where all text so far was reasoning, these are a Restart and the `other_items` that it must not
    drop.
    """
    if isinstance(filtered_item, Retraction):
        return [Restart(), *other_items]
    return [filtered_item]


async def _stream(provider: Provider, request: ProviderRequest) -> AsyncGenerator[StreamItem, None]:
    """Yield the items of a provider's stream. Raise only ProviderError."""
    kwargs = _kwargs_for(provider, request)
    # None yet: what opens the stream may fail before the first item is awaited.
    limit = asyncio.timeout(None)
    try:
        async with _opened_stream(provider, kwargs) as stream:
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


@asynccontextmanager
async def _opened_stream(
    provider: Provider, kwargs: dict[str, Any]
) -> AsyncIterator[AsyncIterator[StreamItem]]:
    """Yield the provider's stream, and close it at the end. No connection outlives the answer."""
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
    # One context for all items, so that a context variable that the stream sets stays set.
    context = copy_context()
    items = await call_in_tool_thread(lambda: context.run(lambda: iter(stream())))
    while True:
        item = await call_in_tool_thread(lambda: context.run(next, items, _END))
        if item is _END:
            return
        yield item


def _valid_item(item: Any) -> StreamItem:
    """Return an item of a stream. Raise ProviderError for one of another type than StreamItem."""
    if isinstance(item, str | ToolCall | UsageStats | AnswerDetails | Restart):
        return item
    raise ProviderError(
        f"a stream gave {type(item).__name__!r}: yield text, ToolCall and UsageStats"
    )


def join_items(items: Iterable[StreamItem]) -> Completion:
    """Return the items of a stream as one answer; only those after the last Restart count.

    The usages of several UsageStats are added. Raise ProviderError for an item of another type than
    StreamItem.
    """
    parts = [_valid_item(item) for item in items]
    restarts = [index for index, part in enumerate(parts) if isinstance(part, Restart)]
    if restarts:
        parts = parts[restarts[-1] + 1 :]

    text = "".join(part for part in parts if isinstance(part, str))
    calls = tuple(part for part in parts if isinstance(part, ToolCall))
    details = next((part for part in parts if isinstance(part, AnswerDetails)), None)
    usage = sum((countable(part) for part in parts if isinstance(part, UsageStats)), UsageStats())

    message = _valid_message(Message(Role.ASSISTANT, text, calls, details=details))
    return message, usage


def is_cut_off(answer: Message, usage: UsageStats, max_tokens: int) -> bool:
    """Return whether an answer ended because `max_tokens` were used up.

    A provider that reports no finish reason is judged by the number of its tokens.
    """
    finish_reason = ""
    if answer.details:
        finish_reason = answer.details.finish_reason
    if finish_reason:
        return finish_reason == "length"
    return usage.completion_tokens >= max_tokens


def _valid_message(message: Message) -> Message:
    """Return the message as the assistant's, with tool calls that can be run and stored.

    A message that is valid is returned unchanged. Raise ProviderError for tool calls of another
    type.
    """
    raw_calls: Any = message.tool_calls
    if raw_calls and not isinstance(raw_calls, Sequence):
        raise _invalid_calls(f"{type(raw_calls).__name__!r} for tool calls")
    calls: tuple[ToolCall, ...] = ()
    if raw_calls:
        calls = tuple(map(_valid_call, raw_calls))
    details = None
    if isinstance(message.details, AnswerDetails):
        details = message.details

    is_plain_answer = message.role is Role.ASSISTANT and not message.tool_call_id
    if is_plain_answer and raw_calls == calls and message.details == details:
        return message
    return Message(Role.ASSISTANT, message.content, calls, details=details)


def _valid_call(call: object) -> ToolCall:
    """Return the call with valid arguments, and "" for a name or an id that is not text."""
    if not isinstance(call, ToolCall):
        raise _invalid_calls(f"{type(call).__name__!r} for a tool call")
    parameters = _valid_arguments(call.parameters)
    has_name = isinstance(call.tool_name, str)
    has_id = isinstance(call.id, str)
    if has_name and has_id and parameters is call.parameters:
        return call

    name = call.tool_name if has_name else ""
    call_id = call.id if has_id else ""
    return ToolCall(name, parameters, call_id)


def _invalid_calls(fault: str) -> ProviderError:
    """Return the error for tool calls of a wrong type. `fault` says what was given for what."""
    return ProviderError(f"a provider gave {fault}: return ToolCalls in a tuple")


def _valid_arguments(arguments: object) -> dict[str, Any]:
    """Return the arguments of a call as a dict that JSON can hold.

    For arguments that are no JSON object, return `{NOT_JSON: <the beginning of their text>}`.
    """
    if arguments is None:
        return {}
    if isinstance(arguments, str):  # vendors send arguments as the text of a JSON object
        with suppress(ValueError, RecursionError):
            parsed = read_json(arguments)
            if isinstance(parsed, dict):
                arguments = parsed

    if isinstance(arguments, dict) and all(isinstance(name, str) for name in arguments):
        with suppress(TypeError, ValueError, RecursionError):
            _check_json(arguments)
            return arguments

    if isinstance(arguments, str):
        return {NOT_JSON: arguments[:MAX_NOT_JSON_CHARS]}
    return {NOT_JSON: quoted(arguments)}
