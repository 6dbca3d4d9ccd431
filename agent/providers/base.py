"""Provider: the one door to a language model, in whichever of four shapes the vendor's adapter has it.

ProviderError
├── RateLimitedError              asked too often: `retry_after` says for how long to wait
└── ProviderConfigurationError    a key or a library is missing; asking again will not help
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

from agent.messages import Message, Role, ToolCall, UsageStats
from agent.providers.reason import reason
from workers.offload import contained, in_thread


class ProviderError(Exception):
    """Raised when a model could not be asked, or gave no answer in time.

    `retry_after` is what the vendor asked us to wait, in seconds; asking again can help unless `retryable` is False.
    """

    def __init__(self, message: str, *, retry_after: float | None = None, retryable: bool = True) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.retryable = retryable


class RateLimitedError(ProviderError):
    """Raised when the vendor refuses because it was asked too often (HTTP 429)."""


class ProviderConfigurationError(ProviderError):
    """Raised when a provider cannot work as it is set up (seed: Common Pitfalls)."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retryable=False)


@dataclass(frozen=True, slots=True)
class ProviderRequest:
    """What a provider is called with, as keyword arguments of these names.

    `tools` are tool schemas as plain data; `timeout` is in seconds. `response_format` is a JSON Schema, and is given
    only to a provider whose `supports_response_format` is true.
    """

    model: str
    system_prompt: str
    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] = ()
    temperature: float = 0.0
    max_tokens: int = 1000
    timeout: float | None = None
    response_format: Mapping[str, Any] | None = None

    def as_kwargs(self) -> dict[str, Any]:
        """The request in the shape of the call; a `response_format` only where there is one."""
        kwargs = {name: getattr(self, name) for name in self.__slots__}
        if self.response_format is None:
            del kwargs["response_format"]
        return kwargs


#: An answer and what it cost.
Completion = tuple[Message, UsageStats]
#: What a stream yields: text, whole tool calls and, if the vendor tells, the usage.
StreamItem = str | ToolCall | UsageStats


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


#: Any one of the four methods is enough.
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
        async with asyncio.timeout(request.timeout) as limit:
            answer = await contained(_ask(provider, request.as_kwargs()))
    except ProviderError:
        raise
    except Exception as exc:
        raise _translated(exc, request if isinstance(exc, TimeoutError) and limit.expired() else None) from exc
    return _checked(provider, answer)


async def astream_call(provider: Provider, request: ProviderRequest, on_text: OnText) -> Completion:
    """Ask as `acall` does, and let `on_text` hear the text while it comes; `timeout` is for the whole answer.

    A provider that cannot stream gives its text as one piece. Raises ProviderError, and what `on_text` raises.
    """
    if not hasattr(provider, "astream") and not hasattr(provider, "stream"):
        answer, usage = await acall(provider, request)
        if answer.content:
            await on_text(answer.content)
        return answer, usage
    try:
        async with asyncio.timeout(request.timeout) as limit:
            return await _heard(provider, request, on_text)
    except TimeoutError as exc:
        if not limit.expired():
            raise
        raise _translated(exc, request) from exc


async def pieces(provider: Provider, request: ProviderRequest) -> AsyncGenerator[StreamItem, None]:
    """What a provider that streams yields, without a time limit. Raises ProviderError and nothing else."""
    door: Any = provider
    try:
        kwargs = request.as_kwargs()
        stream = door.astream(**kwargs) if hasattr(door, "astream") else _threaded(lambda: door.stream(**kwargs))
        async with _closing(stream):
            while (item := await contained(anext(stream, _END))) is not _END:
                yield _known(item)
    except ProviderError:
        raise
    except Exception as exc:
        raise _translated(exc) from exc


async def _heard(provider: Provider, request: ProviderRequest, on_text: OnText) -> Completion:
    items = []
    async with aclosing(pieces(provider, request)) as stream:
        async for item in stream:
            items.append(item)
            if isinstance(item, str) and item:
                await on_text(item)
    return joined(items)


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
async def _closing(stream: AsyncIterator[StreamItem]) -> AsyncIterator[None]:
    """Not every iterator can be closed; one that can is, so that its connection does not outlive the answer."""
    try:
        yield
    finally:
        if hasattr(stream, "aclose"):
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


def _translated(error: Exception, late: ProviderRequest | None = None) -> ProviderError:
    """Somebody else's error as ours, without what it may have repeated of a key; `late`: its time was up."""
    if late is not None:
        return ProviderError(f"no answer within {late.timeout} seconds")
    return ProviderError(reason(error))


def _checked(provider: Provider, answer: Any) -> Completion:
    """The answer, if it is one; a provider that does not count may give None for the usage."""
    match answer:
        case (Message(content=str()) as message, UsageStats() as usage):
            return message, usage
        case (Message(content=str()) as message, None):
            return message, UsageStats()
    kind = type(provider).__name__
    raise ProviderError(f"{kind} gave {type(answer).__name__!r} for an answer: return (Message, UsageStats)")


def _known(item: Any) -> StreamItem:
    if isinstance(item, str | ToolCall | UsageStats):
        return item
    raise ProviderError(f"a stream gave {type(item).__name__!r}: yield text, ToolCall and UsageStats")


def joined(items: Iterable[StreamItem]) -> Completion:
    """The pieces of a stream as one answer. Raises ProviderError for a piece that is none."""
    parts = [_known(item) for item in items]
    text = "".join(part for part in parts if isinstance(part, str))
    calls = tuple(part for part in parts if isinstance(part, ToolCall))
    usage = sum((part for part in parts if isinstance(part, UsageStats)), UsageStats())
    return Message(Role.ASSISTANT, text, calls), usage
