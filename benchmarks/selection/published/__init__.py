"""Requests for published catalogs: the operations of GitHub, Stripe and Twilio.

    python -m benchmarks.selection published

| file | operations | from | license |
|---|---|---|---|
| `github.jsonl` | 318: repos, issues, pulls, search, gists | npm `@octokit/openapi` 23.0.2 | MIT |
| `stripe.jsonl` | 514, without test helpers | PyPI `stripe` 16.1.0 | MIT |
| `twilio.jsonl` | 425 of eight documents | `twilio/twilio-oai`, 2026-04-14 | MIT |

Each line has what the ranking reads: a name, a description of at most 400 characters, and the names
of the parameters. `LICENSES.md` has the notices.

`requests.jsonl` has 100 requests. An author who had not seen the ranking wrote them from the lists
of operations: what a person says, what a model would search for, and the tools that fit; any of
them counts. No constant and no word of the ranking was chosen by them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from sayso.agent import Agent, EmbeddingSelector, Message, Tool, ToolCall, ToolRegistry
from sayso.agent.messages import Role, UsageStats
from sayso.agent.providers.base import Completion
from sayso.agent.run.shown_tools import FINDER_NAMES, schema_tokens

CATALOGS = ("github", "stripe", "twilio")
#: How many tools are looked at.
PLACES = (1, 5, 10, 20)
_FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class PublishedRequest:
    """What a person says, what a model would search for, and the tools of the catalog that fit."""

    catalog: str
    tools: Sequence[str]
    request: str
    query: str


def read_requests() -> list[PublishedRequest]:
    """Return all requests."""
    return [PublishedRequest(**json.loads(line)) for line in _lines("requests.jsonl")]


@cache
def read_catalog(name: str) -> list[Tool]:
    """Return the tools of a catalog."""
    return [_tool(**json.loads(line)) for line in _lines(f"{name}.jsonl")]


def _lines(name: str) -> list[str]:
    return (_FOLDER / name).read_text(encoding="utf-8").splitlines()


def _tool(name: str, description: str, parameters: Sequence[str]) -> Tool:
    schema = {"type": "object", "properties": {each: {"type": "string"} for each in parameters}}
    return Tool(name, description, schema, lambda **_: "")


async def place(selector: EmbeddingSelector, text: str, request: PublishedRequest) -> int:
    """Return the place of the first tool that fits, from 1; after PLACES if it is not found."""
    nearest = await selector.nearest(text, read_catalog(request.catalog), PLACES[-1])
    places = [at for at, tool in enumerate(nearest, start=1) if tool.name in request.tools]
    return min(places, default=PLACES[-1] + 1)


async def _places(requests: Sequence[PublishedRequest]) -> list[tuple[int, int]]:
    """Return the places for what the person says, and for what a model would search for."""
    selector = EmbeddingSelector()
    places = []
    for each in requests:
        first = await place(selector, each.request, each)
        second = await place(selector, each.query, each)
        places.append((first, second))
    return places


class SearchingModel:
    """A model that calls a tool that fits if it is shown one; else it searches, once.

    It notes in which step it called the tool, 0 for never, and the tokens of the tools that it was
    shown first.
    """

    def __init__(self, request: PublishedRequest) -> None:
        self.called_in = 0
        self.first_tokens = 0
        self._request = request
        self._steps = 0

    async def acomplete(self, **kwargs: Any) -> Completion:
        """Return the next call, or the end of the turn."""
        tools = kwargs["tools"] or ()
        self._steps += 1
        if self._steps == 1:
            self.first_tokens = sum(map(schema_tokens, tools))
        names = [tool["name"] for tool in tools]
        fitting = [name for name in names if name in self._request.tools]
        usage = UsageStats(1, 1, 2, model="m", provider="p")
        if self.called_in or (self._steps > 1 and not fitting):
            return Message(Role.ASSISTANT, "Done."), usage
        if fitting:
            self.called_in = self._steps
            call = ToolCall(fitting[0], {}, "call_fitting")
        else:
            call = ToolCall(FINDER_NAMES[0], {"query": self._request.query}, "call_search")
        return Message(Role.ASSISTANT, tool_calls=(call,)), usage


def runs(requests: Sequence[PublishedRequest]) -> list[SearchingModel]:
    """Return the models after each request was asked of an agent with the whole catalog."""
    selector = EmbeddingSelector()
    registries = {name: ToolRegistry(read_catalog(name)) for name in CATALOGS}
    models = []
    for each in requests:
        model = SearchingModel(each)
        Agent(registries[each.catalog], model, selector=selector).run(each.request)
        models.append(model)
    return models


def agent_table() -> Iterator[str]:
    """Yield for how many requests an agent called a tool that fits, and in which step."""
    yield "| in an agent | of them | at once | after one search | tokens of the first tools |"
    yield "|---|---|---|---|---|"
    requests = read_requests()
    parts = {"first 20 of github": requests[:20]}
    for name in CATALOGS:
        parts[name] = [each for each in requests if each.catalog == name]
    for name, part in parts.items():
        models = runs(part)
        at_once = sum(model.called_in == 1 for model in models)
        in_all = sum(model.called_in > 0 for model in models)
        tokens = sum(model.first_tokens for model in models) / len(models)
        yield f"| {name} | {len(part)} | {at_once} | {in_all} | {tokens:,.0f} |"


def table() -> Iterator[str]:
    """Yield the table of all catalogs."""
    requests = read_requests()
    places = asyncio.run(_places(requests))
    parts: dict[str, Sequence[int]] = {"first 20 of github": range(20)}
    for name in CATALOGS:
        parts[name] = [at for at, each in enumerate(requests) if each.catalog == name]
    parts["all"] = range(len(requests))
    heads = [f"top {count}" for count in PLACES]
    yield f"| requests | of them | {' | '.join(heads)} | query: {' | query: '.join(heads)} | both |"
    yield f"|---|{'---|' * (2 * len(heads) + 2)}"
    for name, part in parts.items():
        of_part = [places[at] for at in part]
        said = [str(sum(first <= count for first, _ in of_part)) for count in PLACES]
        searched = [str(sum(second <= count for _, second in of_part)) for count in PLACES]
        both = sum(first <= 5 or second <= 5 for first, second in of_part)
        yield f"| {name} | {len(part)} | {' | '.join(said)} | {' | '.join(searched)} | {both} |"
