"""Contenders: the same agent in Sayso, selectools, pydantic-ai and a bare loop, each with a stub model of its own.

The stub thinks for `seconds`, requests the case's tool calls, and answers "done" once it has their results. A peer
that is not installed is left out.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, get_type_hints

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from sayso.agent import (
    Agent,
    AgentConfig,
    ConversationMemory,
    Message,
    Role,
    Tool,
    ToolCall,
    UsageStats,
)

QUESTION, ANSWER, SYSTEM = "What is it?", "done", "You are a helpful assistant."
ARGS = {"place": "Paris", "days": 3}


@dataclass(frozen=True, slots=True)
class Case:
    """One shape of a conversation: its tools, whether the model calls them all at once, its turns, and how long the
    model thinks.
    """

    tools: tuple[Callable[..., Any], ...] = ()
    turns: int = 1
    seconds: float = 0.0

    async def thinks(self, results_are_there: bool) -> tuple[str, ...]:
        """Return the names of the tools that the stub calls next; none for the final answer."""
        if self.seconds:
            await asyncio.sleep(self.seconds)
        return () if results_are_there else tuple(tool.__name__ for tool in self.tools)


@dataclass(frozen=True, slots=True)
class Doors:
    """One conversation of a case, by the async API and by the sync one. Each returns the last answer."""

    arun: Callable[[], Awaitable[object]]
    run: Callable[[], object]


def sayso(case: Case) -> Doors:
    """Return Sayso's conversation. Several turns share a memory; a single turn has none."""

    class Stub:
        async def acomplete(self, **request: Any) -> tuple[Message, UsageStats]:
            names = await case.thinks(request["messages"][-1].role is Role.TOOL)
            return _message(names), UsageStats(1, 1, 2)

    agent = Agent(
        [Tool.from_function(tool) for tool in case.tools], Stub(), AgentConfig(system_prompt=SYSTEM)
    )

    def memory() -> ConversationMemory | None:
        return ConversationMemory() if case.turns > 1 else None

    async def arun() -> object:
        own = memory()
        return [await agent.arun(QUESTION, memory=own) for _ in range(case.turns)][-1].content

    def run() -> object:
        own = memory()
        return [agent.run(QUESTION, memory=own) for _ in range(case.turns)][-1].content

    return Doors(arun, run)


def selectools(case: Case) -> Doors:
    """Return the conversation of selectools. Its agent keeps the history, so each conversation has a clone of it.

    The agent calls the async or the sync method of the stub.
    """
    import selectools as peer

    class Stub:
        name, supports_streaming, supports_async = "stub", False, True

        async def acomplete(self, **request: Any) -> Any:
            return answer(await case.thinks(request["messages"][-1].role == peer.Role.TOOL))

        def complete(self, **request: Any) -> Any:
            return answer(_at_once(case.thinks(request["messages"][-1].role == peer.Role.TOOL)))

    def answer(names: tuple[str, ...]) -> Any:
        calls = [peer.ToolCall(tool_name=name, parameters=dict(ARGS), id=name) for name in names]
        content = "" if calls else ANSWER
        return peer.Message(
            role=peer.Role.ASSISTANT, content=content, tool_calls=calls or None
        ), peer.UsageStats(1, 1)

    tools = [peer.tool(description=tool.__doc__)(tool) for tool in case.tools or (weather,)]
    agent = peer.Agent(tools=tools, provider=Stub(), config=peer.AgentConfig(system_prompt=SYSTEM))

    def own() -> Any:
        clone = agent.clone_for_isolation()
        clone.memory = peer.ConversationMemory() if case.turns > 1 else None
        return clone

    async def arun() -> object:
        clone = own()
        return [await clone.arun(QUESTION) for _ in range(case.turns)][-1].content

    def run() -> object:
        clone = own()
        return [clone.run(QUESTION) for _ in range(case.turns)][-1].content

    return Doors(arun, run)


def pydantic_ai(case: Case) -> Doors:
    """Return the conversation of pydantic-ai. Its FunctionModel gets a fixed usage; it would count words otherwise."""
    from pydantic_ai import Agent as Peer
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
    from pydantic_ai.models.function import FunctionModel
    from pydantic_ai.usage import RequestUsage

    async def stub(messages: list[Any], _: object) -> ModelResponse:
        names = await case.thinks(isinstance(messages[-1].parts[-1], ToolReturnPart))
        calls = [ToolCallPart(name, dict(ARGS), tool_call_id=name) for name in names]
        return ModelResponse(
            parts=calls or [TextPart(ANSWER)], usage=RequestUsage(input_tokens=1, output_tokens=1)
        )

    peer = Peer(FunctionModel(stub), tools=list(case.tools), instructions=SYSTEM)

    async def arun() -> object:
        history: list[Any] = []
        for _ in range(case.turns):
            result = await peer.run(QUESTION, message_history=history)
            history = result.all_messages()
        return result.output

    def run() -> object:
        history: list[Any] = []
        for _ in range(case.turns):
            result = peer.run_sync(QUESTION, message_history=history)
            history = result.all_messages()
        return result.output

    return Doors(arun, run)


def floor(case: Case) -> Doors:
    """Return the smallest possible loop: messages, pydantic's check of the arguments, and the functions.

    It promises nothing: a blocking tool blocks the loop, unless there are several.
    """
    checks = {tool.__name__: (tool, _adapter(tool)) for tool in case.tools}
    loop = asyncio.new_event_loop()

    async def call(name: str) -> Message:
        tool, check = checks[name]
        args = check.validate_python(ARGS)
        if inspect.iscoroutinefunction(tool):
            result = await tool(**args)
        else:
            result = await asyncio.to_thread(tool, **args) if len(checks) > 1 else tool(**args)
        return Message(Role.TOOL, result, tool_call_id=name, tool_name=name)

    async def arun() -> object:
        history: list[Message] = []
        for _ in range(case.turns):
            history.append(Message(Role.USER, QUESTION))
            while history[-1].role is not Role.ASSISTANT:
                names = await case.thinks(history[-1].role is Role.TOOL)
                history.append(_message(names))
                history += (
                    await asyncio.gather(*map(call, names))
                    if len(names) > 1
                    else [await call(n) for n in names]
                )
        return history[-1].content

    return Doors(arun, lambda: loop.run_until_complete(arun()))


def weather(place: str, days: int) -> str:
    """Tell the weather of a place.

    Args:
        place: Its name.
        days: For how many days ahead.
    """
    return f"{place}: {days} days of sun"


Contender = Callable[[Case], Doors]

#: All contenders by name. The first is Sayso.
CONTENDERS: dict[str, Contender] = {
    "sayso": sayso,
    "selectools": selectools,
    "pydantic-ai": pydantic_ai,
    "bare loop": floor,
}


def _message(names: tuple[str, ...]) -> Message:
    calls = tuple(ToolCall(name, dict(ARGS), name) for name in names)
    return Message(Role.ASSISTANT, "" if calls else ANSWER, calls)


def _adapter(function: Callable[..., Any]) -> TypeAdapter[Any]:
    hints = {name: hint for name, hint in get_type_hints(function).items() if name != "return"}
    return TypeAdapter(TypedDict("Arguments", hints))  # type: ignore[operator]  # made of the function's own hints


def _at_once(awaitable: Awaitable[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the result of a coroutine that never waits."""
    try:
        awaitable.send(None)  # type: ignore[attr-defined]  # it is a coroutine
    except StopIteration as end:
        names: tuple[str, ...] = end.value
        return names
    raise RuntimeError("the stub of a sync door cannot wait")
