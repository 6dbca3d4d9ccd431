"""Provider: the one door to a language model, in whichever of four shapes the vendor's adapter has it.

ProviderError
├── RateLimitedError              asked too often: `retry_after` says for how long to wait
└── ProviderConfigurationError    a key or a library is missing; asking again will not help
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

from agent.messages import Message, Role, ToolCall, UsageStats
from workers.offload import in_thread


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


async def acall(provider: Provider, request: ProviderRequest) -> Completion:
    """Ask the provider through the best door it has. Raises ProviderError, also when `timeout` has passed."""
    try:
        async with asyncio.timeout(request.timeout):
            return await _ask(provider, request.as_kwargs())
    except TimeoutError as exc:
        raise ProviderError(f"no answer within {request.timeout} seconds") from exc


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
    raise TypeError(f"{provider!r} is no provider: give it complete, acomplete, stream or astream")


def joined(items: Iterable[StreamItem]) -> Completion:
    """The pieces of a stream as one answer."""
    parts = list(items)
    text = "".join(part for part in parts if isinstance(part, str))
    calls = tuple(part for part in parts if isinstance(part, ToolCall))
    usage = sum((part for part in parts if isinstance(part, UsageStats)), UsageStats())
    return Message(Role.ASSISTANT, text, calls), usage
