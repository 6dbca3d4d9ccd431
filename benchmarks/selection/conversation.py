"""What eight requests in one conversation cost with 240 tools, by the way in which the model gets the tool it needs.

python -m benchmarks.selection conversation
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.price.catalog import all_tools
from benchmarks.price.shop import PROMPT
from benchmarks.price.units import Body, Encode, best_encoding, openai_price
from benchmarks.selection.__main__ import Request, read_requests
from sayso.agent import (
    Agent,
    AgentConfig,
    ConversationMemory,
    EmbeddingSelector,
    Message,
    Tool,
    ToolCall,
    ToolSelector,
)
from sayso.agent.messages import Role, UsageStats
from sayso.agent.providers.base import Completion, ProviderRequest

#: The requests of a conversation.
REQUESTS = 8
#: How many conversations of each kind are measured.
CONVERSATIONS = 10
#: The tool that finds others, and the one that calls a tool by its name.
FINDER = "find_tools"
CALLER = "call_tool"
_ENTRIES = [
    f"A-{at}: Ada Hopper, on 2026-11-{at}, two items, open until Friday" for at in range(11, 23)
]
#: The result of every tool: as long as those of shops usually are.
RESULT = "\n".join(["Done.", *_ENTRIES])


class NearestTools:
    """Selects the five nearest tools for each message, whatever was shown before."""

    def __init__(self) -> None:
        self._embedding = EmbeddingSelector()

    async def select(self, messages: Any, tools: Any) -> Any:
        """Return these tools."""
        return await self._embedding.select(messages, tools)


class OnlyFound(EmbeddingSelector):
    """Shows only what the model has searched for."""

    async def needed(self, query: str, tools: Sequence[Tool]) -> list[Tool]:
        """Return no tool."""
        return []


@dataclass(frozen=True, slots=True)
class Way:
    """A way in which the model gets its tools: what the agent has, and what it selects."""

    name: str
    tools: Sequence[Tool]
    selector: ToolSelector | None = None


def ways() -> list[Way]:
    """Return the ways that are compared; the last but one is Sayso's."""
    catalog = [_answering(tool) for tool in all_tools()]
    return [
        Way("all shown", catalog),
        Way("the five nearest to each message", catalog, NearestTools()),
        Way(
            "`find_tools` and `call_tool` alone, schemas in the results", [*generic_tools(catalog)]
        ),
        Way("`find_tools` alone, what it finds is added", catalog, OnlyFound()),
        Way(
            "what a message needs is added, and `find_tools` (default)",
            catalog,
            EmbeddingSelector(),
        ),
    ]


def _answering(tool: Tool) -> Tool:
    return Tool(tool.name, tool.description, tool.parameters, lambda **_: RESULT)


def generic_tools(catalog: Sequence[Tool]) -> Iterator[Tool]:
    """Yield two tools that never change: one shows schemas in its results, the other calls a tool by its name."""
    ranking = EmbeddingSelector()

    async def find_tools(query: str) -> str:
        found = await ranking.nearest(query, catalog)
        return "\n".join(json.dumps(tool.schema(), separators=(",", ":")) for tool in found)

    def call_tool(name: str, arguments: dict[str, str]) -> str:
        return RESULT

    yield Tool.from_function(
        find_tools, description="Find tools with their schemas, for call_tool."
    )
    yield Tool.from_function(call_tool, description="Call a tool that find_tools has found.")


class Model:
    """A model that calls the tool of a request if it has it, and else searches once. It notes all requests."""

    def __init__(self) -> None:
        self.bodies: list[Body] = []
        self.found = 0
        self._wanted = ""
        self._text = ""
        self._steps: list[str] = []

    def begin(self, request: Request) -> None:
        """Start the next request."""
        self._wanted = request.tool
        self._text = request.text
        self._steps = []

    async def acomplete(self, **kwargs: Any) -> Completion:
        """Return the next call, or the end of the request."""
        request = ProviderRequest(**kwargs)
        self.bodies.append(_body(request))
        call = self._next_call(request)
        usage = UsageStats(1, 1, 2, model="m", provider="p")
        if call is None:
            return Message(
                Role.ASSISTANT, "That is done: two of them are open. Is there anything else?"
            ), usage
        self._steps.append(call.tool_name)
        return Message(Role.ASSISTANT, tool_calls=(call,)), usage

    def _next_call(self, request: ProviderRequest) -> ToolCall | None:
        shown = {tool["name"]: tool for tool in request.tools or ()}
        key = f"call_{len(self.bodies):04}"
        if self._steps and self._steps[-1] != FINDER:
            return None
        if self._wanted in shown:
            self.found += 1
            return ToolCall(self._wanted, _arguments(shown[self._wanted]), key)
        if CALLER in shown and f'"name":"{self._wanted}"' in request.messages[-1].content:
            self.found += 1
            return ToolCall(CALLER, {"name": self._wanted, "arguments": {"id": "A-17"}}, key)
        if FINDER in shown and not self._steps:
            return ToolCall(FINDER, {"query": self._text}, key)
        return None


def _arguments(schema: Mapping[str, Any]) -> dict[str, Any]:
    return dict.fromkeys(schema["parameters"].get("required", []), "A-17")


def _body(request: ProviderRequest) -> Body:
    """Return a request in the form of OpenAI's chat completions, as far as the price needs it."""
    messages = [{"role": "system", "content": request.system_prompt}]
    for message in request.messages:
        calls = [{"function": _function(call)} for call in message.tool_calls]
        messages.append(
            {"role": str(message.role), "content": message.content, "tool_calls": calls}
        )
    return {
        "tools": [{"type": "function", "function": dict(tool)} for tool in request.tools or ()],
        "messages": messages,
    }


def _function(call: ToolCall) -> dict[str, Any]:
    return {"name": call.tool_name, "arguments": call.parameters}


def mixed_conversations() -> list[list[Request]]:
    """Return conversations whose requests have nothing in common: the most expensive ones."""
    requests = _english()
    chance = random.Random(8)
    return [chance.sample(requests, REQUESTS) for _ in range(CONVERSATIONS)]


def topical_conversations() -> list[list[Request]]:
    """Return conversations about related things: the catalog has their tools side by side."""
    order = {tool.name: at for at, tool in enumerate(all_tools())}
    requests = sorted(_english(), key=lambda request: order[request.tool])
    chance = random.Random(8)
    starts = [at * len(requests) // CONVERSATIONS for at in range(CONVERSATIONS)]
    return [chance.sample(requests[start : start + REQUESTS], REQUESTS) for start in starts]


def _english() -> list[Request]:
    requests = [*read_requests("open"), *read_requests("held_out")]
    return [each for each in requests if each.language == "en"]


@dataclass(frozen=True, slots=True)
class Figures:
    """The mean of some conversations: calls, units, stable share; and the share of requests whose tool was found."""

    calls: float
    units: float
    stable: float
    found: float

    def __str__(self) -> str:
        shares = f"{self.stable:.0%} | {self.found:.0%}"
        return f"{self.calls:.0f} | {self.units / 1000:.1f}k | {shares}"


def measured(way: Way, conversations: Sequence[Sequence[Request]], encode: Encode) -> Figures:
    """Return the figures of a way."""
    prices = []
    found = 0
    for requests in conversations:
        model = Model()
        config = AgentConfig(system_prompt=PROMPT)
        agent = Agent(way.tools, model, config, ConversationMemory(200), way.selector)
        for request in requests:
            model.begin(request)
            agent.run(request.text)
        prices.append(openai_price(model.bodies, encode))
        found += model.found

    def mean(of: Callable[[Any], float]) -> float:
        return sum(map(of, prices)) / len(prices)

    return Figures(
        mean(lambda price: price.calls),
        mean(lambda price: price.units),
        mean(lambda price: price.stable),
        found / (len(conversations) * REQUESTS),
    )


def table() -> Iterator[str]:
    """Yield the table of all ways."""
    encode, unit = best_encoding()
    kinds = {"mixed": mixed_conversations(), "topical": topical_conversations()}
    measure = f"{CONVERSATIONS} conversations of {REQUESTS} requests with {len(all_tools())} tools"
    yield f"Means of {measure}; {unit}:"
    yield f"| way | {' | '.join(f'{kind}: calls | units | stable | found' for kind in kinds)} |"
    yield f"|---|{'---|' * 4 * len(kinds)}"
    for way in ways():
        rows = [measured(way, conversations, encode) for conversations in kinds.values()]
        cells = [str(row) for row in rows]
        yield f"| {way.name} | {' | '.join(cells)} |"
