"""Nonsense: the answers of models and the tools of the stories, sensible ones first."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from sayso.agent import Message, ProviderError, Role, ToolCall, emit_artifact, tool
from sayso.agent.messages import UsageStats
from sayso.agent.providers.base import RateLimitedError
from tests.agent.faults.clock import THREADS


class Uncommon(BaseException):
    """A BaseException such as some libraries use to stop their own code."""


class Unspeakable:
    """A value whose repr raises."""

    def __repr__(self) -> str:
        raise RuntimeError("no words")


def _circle() -> dict[str, Any]:
    circle: dict[str, Any] = {"text": "round"}
    circle["self"] = circle
    return circle


def _deep() -> dict[str, Any]:
    deep: Any = "bottom"
    for _ in range(3000):
        deep = [deep]
    return {"text": deep}


TEXTS = (
    "Done.", '{"n": 1}', "", '{"n": "one"}', "\ud800 half", "forbidden", "{" * 50, "x" * 20_000, "[]",
    'TOOL_CALL\n{"tool_name": "echo", "parameters": {"text": "x"}}', 'TOOL_CALL\n{"tool_name": "echo", "parameters":',
)  # fmt: skip
ARGUMENTS: tuple[Any, ...] = (
    {"text": "x"}, {}, {"text": "x"}, {"txt": "x"}, {"text": 1}, {"text": None}, {"text": math.nan}, {"text": "\ud800"},
    {"text": "x" * 20_000}, None, [], "text", {"text": object()}, {1: 2}, {("a",): 1}, _circle(), _deep(),
    {"text": Unspeakable()}, {"text": {1, 2}}, {"text": 10**5000}, {"text": b"\xff"}, {"\ud800": 1},
)  # fmt: skip
IDS: tuple[Any, ...] = ("a", "", "a", "b", None, 5, ["a"], "\ud800", "call_1_0")
NAMES: tuple[Any, ...] = ("nobody", "", "ecko", None, 7, ["echo"], "\ud800", "x" * 5000)

NONSENSE: tuple[Any, ...] = (
    None, "text", 42, (), (None, None), ("text", UsageStats()), (Message(Role.ASSISTANT, None), UsageStats()),
    (Message(Role.ASSISTANT, "odd calls", tool_calls=None), None), (Message(Role.ASSISTANT, "", [{"name": "x"}]), None),
    (Message(Role.ASSISTANT, "", "echo"), None), (Message(Role.ASSISTANT, "", (None,)), None),
    (Message(Role.USER, "I am the user"), None), (Message(Role.TOOL, "I am a tool", tool_call_id="a"), None),
    (Message(Role.SYSTEM, "obey"), None), (Message(Role.ASSISTANT, "hi", media=None), None),
    (Message(Role.ASSISTANT, "odd"), UsageStats(None, None, None)), (Message(Role.ASSISTANT, "odd"), {"total": 1}),
    (Message(Role.ASSISTANT, "odd"), UsageStats(0, 0, 0, math.nan)), (Message(Role.USER, ""), UsageStats(model=None)),
    (Message("assistant", "a text for a role"), None), (Message(Role.ASSISTANT, "", tool_call_id="a"), None),
)  # fmt: skip

#: Factories of errors; an error instance would keep its traceback between raises.
ERRORS: tuple[Callable[[], BaseException], ...] = (
    lambda: ProviderError("down"), lambda: ProviderError("no", retryable=False),
    lambda: RateLimitedError("429", retry_after=7.0), lambda: RateLimitedError("429", retry_after=9000.0),
    lambda: ProviderError("odd", retry_after=math.nan), lambda: ProviderError("odd", retry_after=-1.0),
    lambda: RateLimitedError("\ud800"), RuntimeError, lambda: ValueError("\ud800"), OSError, TimeoutError, SystemExit,
    asyncio.CancelledError, StopIteration, StopAsyncIteration, Uncommon, MemoryError, RecursionError, AttributeError,
    KeyError, lambda: RuntimeError(Unspeakable()),
)  # fmt: skip


@tool
def echo(text: str) -> str:
    """Return the text."""
    return text


@tool
async def aecho(text: str) -> str:
    """Return the text after a second."""
    await asyncio.sleep(1)
    return text


@tool
def fails(text: str) -> str:
    """Raise an error."""
    raise ValueError("\ud800 disk full")


@tool
async def afails(text: str) -> str:
    """Raise an error after a pause."""
    await asyncio.sleep(0)
    raise KeyError(text)


@tool
def quits(text: str) -> str:
    """Raise SystemExit."""
    raise SystemExit(text)


@tool
async def aquits(text: str) -> str:
    """Raise SystemExit on the loop."""
    raise SystemExit(text)


@tool
async def cancels(text: str) -> str:
    """Raise CancelledError."""
    raise asyncio.CancelledError(text)


@tool
async def uncommon(text: str) -> str:
    """Raise a BaseException that is no Exception."""
    raise Uncommon(text)


@tool
def stops(text: str) -> str:
    """Raise StopIteration, which no future can hold."""
    raise StopIteration(text)


@tool
async def waits(text: str) -> str:
    """Wait forever."""
    await asyncio.Event().wait()
    return text


@tool
async def stubborn(text: str) -> str:
    """Take time to stop."""
    try:
        await asyncio.sleep(100)
    finally:
        await asyncio.sleep(0.5)
    return text


@tool
def hangs(text: str) -> str:
    """Wait forever in a thread."""
    THREADS.hang()
    return text


@tool
def odd(text: str) -> Any:
    """Return a value that JSON cannot express."""
    return {1: {object()}, "nan": math.nan}


@tool
def unspeakable(text: str) -> Any:
    """Return a value that cannot be printed."""
    return Unspeakable()


@tool
def half(text: str) -> Any:
    """Return a lone surrogate."""
    return "\ud800"


@tool
def files(text: str) -> str:
    """Emit a file."""
    emit_artifact(b"x", filename="x.txt")
    return "made"


@tool(terminal=True)
def ends(text: str) -> str:
    """End the run."""
    return text


@tool(requires_approval=True)
def deletes(text: str) -> str:
    """Destroy something after approval."""
    return f"deleted {text}"


@tool(streaming=True)
def streams(text: str) -> Iterator[str]:
    """Yield the result in pieces."""
    yield "a"
    yield text


@tool(streaming=True)
async def astreams(text: str) -> AsyncIterator[Any]:
    """Yield the result in pieces."""
    yield "a"
    await asyncio.sleep(0)
    yield "b"


@tool(streaming=True)
async def breaks_off(text: str) -> AsyncIterator[str]:
    """Yield a piece and fail."""
    yield "a"
    raise OSError("cut")


@tool(read_only=True, cacheable=True)
def looks(text: str) -> str:
    """Read without an effect."""
    return "seen"


TOOLS = (
    echo, looks, aecho, fails, afails, ends, files, streams, astreams, breaks_off, deletes, odd, unspeakable, half,
    quits, aquits, cancels, uncommon, stops, waits, stubborn, hangs,
)  # fmt: skip
#: Tools that never end by themselves.
ENDLESS = ("waits", "stubborn", "hangs")


def a_call(tool_name: Any, parameters: Any, call_id: Any) -> ToolCall:
    """Return a call as a careless adapter makes it."""
    return ToolCall(tool_name, parameters, call_id)
