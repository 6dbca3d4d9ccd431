"""Provider protocol, errors, one door."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

from sayso.agent.messages import NOT_JSON, AnswerDetails, FailureKind, Message, Role, ToolCall, UsageStats, countable
from sayso.agent.tools.arguments import quoted
from sayso.pending.concurrency import TimeIsUp, contained, in_thread, in_time

#: Characters of such arguments that are kept.
MAX_NOT_JSON_CHARS = 500


#: What JSON holds without a look inside.
_PLAIN = frozenset((str, bool, type(None)))


#: So many bits have few enough digits to be written out.
_SHORT_BITS = 64


def usable(message: Message) -> Message:
    """The assistant's message, and nobody else's, with calls that can be told, answered and kept.

    Raises TypeError for calls that are none.
    """
    if not message.tool_calls:
        is_plain = message.role is Role.ASSISTANT and message.tool_calls == () and not message.tool_call_id
        return message if is_plain else Message(Role.ASSISTANT, message.content, details=_details(message))
    if not isinstance(message.tool_calls, Sequence):
        raise TypeError(f"{type(message.tool_calls).__name__!r} for tool calls")
    calls = tuple(map(_usable_call, message.tool_calls))
    is_ours = message.role is Role.ASSISTANT and message.tool_calls == calls and not message.tool_call_id
    return message if is_ours else Message(Role.ASSISTANT, message.content, calls, details=_details(message))


def _details(message: Message) -> AnswerDetails | None:
    return message.details if isinstance(message.details, AnswerDetails) else None


def arguments(given: object) -> dict[str, Any]:
    """A call's arguments; in their place what says so, where they are no JSON object."""
    if given is None:
        return {}
    if isinstance(given, dict) and _is_named(given) and (all(map(_is_plain, given.values())) or _is_json(given)):
        return given
    shown = given[:MAX_NOT_JSON_CHARS] if isinstance(given, str) else quoted(given)
    return {NOT_JSON: shown}


def _usable_call(call: object) -> ToolCall:
    if not isinstance(call, ToolCall):
        raise TypeError(f"{type(call).__name__!r} for a tool call")
    params, named = arguments(call.parameters), isinstance(call.tool_name, str)
    if named and params is call.parameters and isinstance(call.id, str):
        return call
    return ToolCall(call.tool_name if named else "", params, call.id if isinstance(call.id, str) else "")


def _is_named(given: dict[Any, Any]) -> bool:
    return all(isinstance(name, str) for name in given)


def _is_plain(value: object) -> bool:
    kind = type(value)
    return kind in _PLAIN or (kind is int and value.bit_length() <= _SHORT_BITS)  # type: ignore[attr-defined]  # an int


def _is_json(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


#: Characters of an error's text that are shown.
MAX_REASON_CHARS = 300


#: A secret, with the words that precede it: vendors' errors repeat URLs and headers.
_SECRETS = re.compile(
    r"((?:key|token|secret|password|signature)[\"']?\s{0,3}[=:]\s{0,3}[\"']?|\b(?:bearer|basic)\s{1,3})[^\s&\"',)]+"
    r"|\bsk-[\w-]{8,}",
    re.IGNORECASE,
)


def reason(error: Exception) -> str:
    """The error's type and the first line of its text, without the keys that it may repeat. Never raises."""
    kind = type(error).__name__
    try:
        line = next(iter(str(error).strip().splitlines()), "")
    except Exception:  # noqa: BLE001  # somebody else's __str__
        return kind
    return f"{kind}: {without_secrets(line)}" if line else kind


def without_secrets(line: str) -> str:
    """The beginning of the line, with stars for what looks like a key."""
    return _SECRETS.sub(r"\1***", line[:MAX_REASON_CHARS])


#: The code of an error for what a vendor's content filter refused or stopped.
FILTERED = "content_filter"


#: How vendors and servers say that a request is longer than the model's context window.
_TOO_LONG = re.compile(
    r"context.?length|context.?window|maximum context|context size|(?:prompt|input) is too long|too many tokens:"
    r"|maximum (?:prompt|model|input) length"
    r"|exceed\w* (?:the )?(?:maximum number of tokens|maximum length|context limit)"
    r"|reduce the length of the (?:messages|prompt)|tokens must be reduced|string too long"
    r"|\binputs`? (?:tokens\b.{0,40} must be <=|must have less than \d+ tokens)",
    re.IGNORECASE,
)


def says_too_long(words: str) -> bool:
    """Return whether a vendor's words for an error say that the request is too long for the model."""
    return _TOO_LONG.search(words) is not None


class ProviderError(Exception):
    """Raised when a model could not be asked, or gave no answer in time.

    `retry_after` is what the vendor asked us to wait, in seconds; asking again can help unless `retryable` is False.
    `status`, `code` and `model` are the HTTP status, the vendor's error code and the model's name, if known. `settings`
    names the operator's model settings that were in a request which was refused. `refusal` is what the model itself
    said when it refused, for the person.
    """

    kind: FailureKind = "away"
    status: int | None = None
    code: str = ""
    model: str = ""
    settings: str = ""
    refusal: str = ""

    def __init__(self, message: str, *, retry_after: float | None = None, retryable: bool = True) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.retryable = retryable

    @property
    def cause(self) -> str:
        """What operators look for, on one line and without the vendor's words, which may repeat a person's."""
        told = {name: getattr(self, name) for name in ("kind", "status", "code", "settings", "model")}
        return " ".join(f"{name}={value}" for name, value in told.items() if value)


class RateLimitedError(ProviderError):
    """Raised when the vendor refuses because it was asked too often (HTTP 429)."""

    kind: FailureKind = "busy"


class RequestRefusedError(ProviderError):
    """Raised when the vendor refuses a request for what is in it, such as too many words or a file that is broken."""

    kind: FailureKind = "refused"

    def __init__(self, message: str) -> None:
        super().__init__(message, retryable=False)


class ProviderConfigurationError(ProviderError):
    """Raised when a provider cannot work as it is set up (seed: Common Pitfalls)."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retryable=False)


class UnchosenTemperature(float):
    """A temperature that nobody chose. It equals a plain `float`; models that nobody knows are not sent it."""

    __slots__ = ()


#: The temperature where nobody chose one (seed: AgentConfig).
DEFAULT_TEMPERATURE = UnchosenTemperature(0.0)


@dataclass(frozen=True, slots=True)
class ProviderRequest:
    """What a provider is called with, as keyword arguments of these names.

    `tools` are tool schemas as plain data, None for a provider that has no parameter for them; `timeout` is in seconds.
    `temperature` is None where none is to be sent.
    `response_format` is a JSON Schema, and is given only to a provider whose `supports_response_format` is true.
    """

    model: str
    system_prompt: str
    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] | None = ()
    temperature: float | None = DEFAULT_TEMPERATURE
    max_tokens: int = 1000
    timeout: float | None = None
    response_format: Mapping[str, Any] | None = None

    def as_kwargs(self) -> dict[str, Any]:
        """The request in the shape of the call; a `response_format` only where there is one, no tools where None."""
        kwargs: dict[str, Any] = {
            "model": self.model,
            "system_prompt": self.system_prompt,
            "messages": self.messages,
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "timeout": self.timeout,
        }
        if self.tools is not None:
            kwargs["tools"] = self.tools
        if self.response_format is not None:
            kwargs["response_format"] = self.response_format
        return kwargs


#: An answer and what it cost.
Completion = tuple[Message, UsageStats]


@dataclass(frozen=True, slots=True)
class Restart:
    """An item of a stream: what came before broke off and is void, and another answer begins."""


#: What a stream yields: text, whole tool calls and, if the vendor tells, the usage and the details.
StreamItem = str | ToolCall | UsageStats | AnswerDetails | Restart


@runtime_checkable
class Completes(Protocol):
    """A provider that blocks; it is called in a thread."""

    def complete(
        self,
        *,
        model: str,
        system_prompt: str,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        temperature: float,
        max_tokens: int,
        timeout: float | None,
    ) -> Completion:
        """Answer the request; see ProviderRequest."""
        ...


@runtime_checkable
class CompletesAsync(Protocol):
    """A provider that answers in the event loop."""

    async def acomplete(
        self,
        *,
        model: str,
        system_prompt: str,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        temperature: float,
        max_tokens: int,
        timeout: float | None,  # noqa: ASYNC109  # vendors want to know it too; acall enforces it
    ) -> Completion:
        """Answer the request; see ProviderRequest."""
        ...


@runtime_checkable
class Streams(Protocol):
    """A provider that blocks while it yields its answer in pieces; it is called in a thread."""

    def stream(
        self,
        *,
        model: str,
        system_prompt: str,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        temperature: float,
        max_tokens: int,
        timeout: float | None,
    ) -> Iterator[StreamItem]:
        """Yield the answer to the request; see ProviderRequest."""
        ...


@runtime_checkable
class StreamsAsync(Protocol):
    """A provider that yields its answer in the event loop."""

    def astream(
        self,
        *,
        model: str,
        system_prompt: str,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        temperature: float,
        max_tokens: int,
        timeout: float | None,
    ) -> AsyncIterator[StreamItem]:
        """Yield the answer to the request; see ProviderRequest."""
        ...


#: Any one of the four methods is enough. A provider may say more of itself: `name`; `default_model`; whether it
#: `supports_response_format` (no, unless it says so) and `supports_tools` (yes, unless it says no); and that it
#: `keeps_time`, because it asks others and gives each of them the request's whole timeout.
Provider = CompletesAsync | Completes | StreamsAsync | Streams


#: What follows the last piece of a stream: a faulty one may yield anything else.
_END = object()


#: Hears each piece of text of an answer as it comes.
OnText = Callable[[str], Awaitable[None]]


async def acall(provider: Provider, request: ProviderRequest) -> Completion:
    """Ask the provider through the best door it has.

    Raises ProviderError and nothing else: also when `timeout` has passed, for any other error of the provider's, and
    for an answer that is none.
    """
    try:
        answer = await in_time(contained(_ask(provider, request.as_kwargs())), _seconds(provider, request))
    except ProviderError:
        raise
    except Exception as exc:
        raise _late(request) if isinstance(exc, TimeIsUp) else _foreign(exc) from exc
    return _checked(provider, answer)


async def astream_call(provider: Provider, request: ProviderRequest, on_text: OnText) -> Completion:
    """Ask as `acall` does, and let `on_text` hear the text while it comes; `timeout` limits each silence.

    A provider that cannot stream gives its text as one piece. Where an answer breaks off, what was heard of it is void:
    `on_text.anew()` says so, if there is such a method. Raises ProviderError. What `on_text` raises is raised.
    """
    if _streams(provider):
        return await _heard(provider, request, on_text)
    answer, usage = await acall(provider, request)
    if answer.content:
        await on_text(answer.content)
    return answer, usage


async def pieces(provider: Provider, request: ProviderRequest) -> AsyncGenerator[StreamItem, None]:
    """What `astream_call` hears, tool calls and usage included. Raises ProviderError and nothing else."""
    if not _streams(provider):
        answer, usage = await acall(provider, request)
        for item in (*([answer.content] if answer.content else ()), *answer.tool_calls, usage):
            yield item
        return
    seconds = None if getattr(provider, "times_silence", False) else _seconds(provider, request)
    try:
        async with _opened(provider, request.as_kwargs()) as stream:
            while (item := await _next(stream, request, seconds)) is not _END:
                yield _known(item)
    except ProviderError:
        raise
    except Exception as exc:
        raise _foreign(exc) from exc


async def _heard(provider: Provider, request: ProviderRequest, on_text: OnText) -> Completion:
    items: list[StreamItem] = []
    stream = pieces(provider, request)
    try:
        async with aclosing(stream):
            async for item in stream:
                if isinstance(item, Restart):
                    _begin_anew(on_text, items)
                items.append(item)
                if isinstance(item, str) and item:
                    await on_text(item)
    except ProviderError:
        _begin_anew(on_text, items)
        raise
    return joined(items)


def _begin_anew(on_text: OnText, items: list[StreamItem]) -> None:
    """Tell the listener that the text so far is void, if there was any."""
    anew = getattr(on_text, "anew", None)
    if anew is not None and any(isinstance(item, str) and item for item in items):
        anew()
    items.clear()


async def _next(stream: AsyncIterator[StreamItem], request: ProviderRequest, seconds: float | None) -> Any:
    """Return the next piece, or _END after the last. Each piece has the whole time limit for itself; a limit around a
    `yield` would hit the consumer.
    """
    try:
        async with asyncio.timeout(seconds) as limit:
            return await contained(anext(stream, _END))
    except TimeoutError as exc:
        if not limit.expired():
            raise
        raise _late(request) from exc


async def _ask(provider: Provider, kwargs: dict[str, Any]) -> Completion:
    door: Any = provider  # to ask whether it is one of the Protocols would take as long as a round trip
    if hasattr(door, "acomplete"):
        return cast("Completion", await door.acomplete(**kwargs))
    if hasattr(door, "complete"):
        return cast("Completion", await in_thread(lambda: door.complete(**kwargs)))
    if hasattr(door, "astream"):
        return joined([item async for item in door.astream(**kwargs)])
    if hasattr(door, "stream"):
        return joined(await in_thread(lambda: list(door.stream(**kwargs))))
    raise ProviderConfigurationError(f"{provider!r} is no provider: give it complete, acomplete, stream or astream")


@asynccontextmanager
async def _opened(provider: Provider, kwargs: dict[str, Any]) -> AsyncIterator[AsyncIterator[StreamItem]]:
    """The provider's stream. It is closed, where it can be, so that no connection outlives the answer."""
    door: Any = provider
    stream = door.astream(**kwargs) if hasattr(door, "astream") else _threaded(lambda: door.stream(**kwargs))
    try:
        yield stream
    finally:
        if hasattr(stream, "aclose"):
            with suppress(Exception):  # the answer is whole, or its error is on its way
                await stream.aclose()


async def _threaded(stream: Callable[[], Iterator[StreamItem]]) -> AsyncGenerator[StreamItem, None]:
    """A blocking stream, read in a thread; once nobody listens it is read no further than its next piece."""
    loop, queue = asyncio.get_running_loop(), asyncio.Queue[Any]()
    left = threading.Event()

    def read() -> None:
        for item in stream():
            if left.is_set():
                return
            loop.call_soon_threadsafe(queue.put_nowait, item)

    def ended(work: asyncio.Future[None]) -> None:
        if not work.cancelled():
            work.exception()  # seen, also when nobody listens any more
        queue.put_nowait(_END)

    work = asyncio.ensure_future(in_thread(read))
    work.add_done_callback(ended)
    try:
        while (item := await queue.get()) is not _END:
            yield item
        await work
    finally:
        left.set()
        work.cancel()


def _streams(provider: Provider) -> bool:
    """Return whether to read the answer as a stream. A provider without `astream` is asked through `acomplete` or
    `complete`, if it has one: its blocking `stream` may give text alone and lose the tool calls (seed: Fallback
    Behavior).
    """
    completes = hasattr(provider, "acomplete") or hasattr(provider, "complete")
    return hasattr(provider, "astream") or (hasattr(provider, "stream") and not completes)


def _seconds(provider: Provider, request: ProviderRequest) -> float | None:
    """For how long to wait; for ever where the provider asks others, and sees to it that each keeps the time."""
    return None if getattr(provider, "keeps_time", False) else request.timeout


def _foreign(error: Exception) -> ProviderError:
    """Return an error of somebody else's adapter as ours."""
    made = ProviderError(reason(error))
    if says_too_long(str(made)):
        made.kind, made.retryable = "too_long", False
    return made


def _late(request: ProviderRequest) -> ProviderError:
    return ProviderError(f"no answer within {request.timeout} seconds")


def _checked(provider: Provider, answer: Any) -> Completion:
    """The answer, if it is one. A provider may give text for the message (seed: Retry Implementation), and one that
    does not count may give None for the usage.
    """
    if isinstance(answer, tuple) and len(answer) == 2:  # written out: a `match` takes three times as long
        message, usage = answer
        if isinstance(message, str):
            message = Message(Role.ASSISTANT, message)
        if isinstance(message, Message) and isinstance(message.content, str):
            if isinstance(usage, UsageStats):
                return _usable(message), countable(usage)
            if usage is None:
                return _usable(message), UsageStats()
    kind = type(provider).__name__
    raise ProviderError(f"{kind} gave {type(answer).__name__!r} for an answer: return (Message, UsageStats)")


def _usable(message: Message) -> Message:
    try:
        return usable(message)
    except TypeError as exc:
        raise ProviderError(f"a provider gave {exc}: return ToolCalls in a tuple") from exc


def _known(item: Any) -> StreamItem:
    if isinstance(item, str | ToolCall | UsageStats | AnswerDetails | Restart):
        return item
    raise ProviderError(f"a stream gave {type(item).__name__!r}: yield text, ToolCall and UsageStats")


def joined(items: Iterable[StreamItem]) -> Completion:
    """The pieces of a stream as one answer. Raises ProviderError for a piece that is none."""
    parts = [_known(item) for item in items]
    restarts = [at for at, part in enumerate(parts) if isinstance(part, Restart)]
    parts = parts[restarts[-1] + 1 :] if restarts else parts
    text = "".join(part for part in parts if isinstance(part, str))
    calls = tuple(part for part in parts if isinstance(part, ToolCall))
    usage = sum((countable(part) for part in parts if isinstance(part, UsageStats)), UsageStats())
    details = next((part for part in parts if isinstance(part, AnswerDetails)), None)
    return _usable(Message(Role.ASSISTANT, text, calls, details=details)), usage
