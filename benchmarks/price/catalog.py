"""Catalog: what many tools cost, with and without a selector, and whether a model finds one."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

from benchmarks.price.bot import Bot
from benchmarks.price.peers import Peer, installed_peers
from benchmarks.price.rows import Row
from benchmarks.price.shop import PROMPT
from benchmarks.price.units import Encode, Price, openai_price, shared_with
from benchmarks.selection.__main__ import Request, read_requests, read_tools
from sayso.agent import Tool
from sayso.agent.tools.parameter import ToolParameter
from tests.agent.providers.recorder import ModelRecorder

#: The tools of a small and of a large catalog.
SMALL = 20
LARGE = 240
#: The requests of one conversation.
REQUESTS = 8
#: The selector whose cost is measured.
SELECTOR = "    selector: {embedding: {}}"
#: What the catalog of the benchmark `selection` lacks to LARGE tools: operations on these things.
_THINGS = (
    *("vehicle", "driver", "route", "warehouse", "pallet", "supplier", "contract", "campaign"),
    *("voucher", "survey", "shift", "payslip", "vacation", "device", "license", "visitor"),
    "sensor",
)
_OPERATIONS = {
    "list": "List all {thing}s, newest first.",
    "get": "Show one {thing} with all its details.",
    "create": "Create a {thing}.",
    "update": "Change the details of a {thing}.",
    "archive": "Archive a {thing}, which can be restored.",
    "export": "Export {thing}s as a CSV file.",
    "assign": "Assign a {thing} to a person.",
    "history": "Show who changed a {thing}, and when.",
}
#: The tools that find tools, as far as Sayso has them.
FINDERS = ("find_tools", "search_tools")


def all_tools() -> list[Tool]:
    """Return LARGE tools: those of the benchmark `selection`, and more like them, all harmless."""
    more = [_made(thing, operation) for thing, operation in product(_THINGS, _OPERATIONS)]
    by_name = {tool.name: _answering(tool) for tool in [*more, *read_tools()]}
    names = dict.fromkeys(tool.name for tool in [*read_tools(), *more])
    return [by_name[name] for name in names][:LARGE]


def _made(thing: str, operation: str) -> Tool:
    parameters = [
        ToolParameter(name=f"{thing}_id", description=f"id of the {thing}"),
        ToolParameter(name="note", description="what else matters, in the person's words"),
    ]
    description = _OPERATIONS[operation].format(thing=thing)
    return Tool(f"{operation}_{thing}", description, parameters, lambda **_: "")


def _answering(tool: Tool) -> Tool:
    """Return the tool with a result of the usual length."""
    entry = "A-{at}: Ada Hopper, {name} on 2026-11-{at}, two items, open until Friday"
    entries = [entry.format(at=at, name=tool.name) for at in range(11, 23)]
    result = "\n".join(["Done. These belong to it:", *entries])
    return Tool(tool.name, tool.description, tool.parameters, lambda **_: result)


def as_function(tool: Tool) -> Callable[..., str]:
    """Return a tool as the plain function that a peer takes, with its docstring."""
    result = tool.function()

    def function(**_: str) -> str:
        return result

    parameters = [each for each in tool.parameters if each.name]
    kind = inspect.Parameter.KEYWORD_ONLY
    signature = [inspect.Parameter(each.name, kind, annotation=str) for each in parameters]
    described = "\n".join(f"    {each.name}: {each.description}" for each in parameters)
    function.__name__ = function.__qualname__ = tool.name
    function.__doc__ = f"{tool.description}\n\nArgs:\n{described}\n"
    function.__annotations__ = {each.name: str for each in parameters} | {"return": str}
    vars(function)["__signature__"] = inspect.Signature(signature, return_annotation=str)
    return function


def small_names() -> list[str]:
    """Return the names of the first SMALL tools."""
    return [tool.name for tool in all_tools()[:SMALL]]


def requests_for(names: Sequence[str]) -> list[Request]:
    """Return REQUESTS plain requests in English, each for another of these tools."""
    by_tool: dict[str, Request] = {}
    for request in read_requests("open") + read_requests("held_out"):
        if request.language == "en" and request.tool in names:
            by_tool.setdefault(request.tool, request)
    chosen = list(by_tool.values())
    step = max(1, len(chosen) // REQUESTS)
    return chosen[::step][:REQUESTS]


def rows(encode: Encode) -> Iterator[Row]:
    """Yield the rows of catalogs."""
    few = small_names()
    wanted = requests_for(few)
    whole, _ = sayso_price(encode, few, wanted, "")
    selected, _ = sayso_price(encode, few, wanted, SELECTOR)
    yield Row(f"{SMALL} tools, {len(wanted)} requests, all shown: units", whole.units, unit="k")
    yield Row(
        f"{SMALL} tools with the selector: times the units of all shown",
        selected.units / whole.units,
        1.0,
    )

    names = [tool.name for tool in all_tools()]
    wanted = requests_for(names)
    whole, _ = sayso_price(encode, names, wanted, "")
    prices = {name: _peer_price(peer, encode, wanted) for name, peer in installed_peers().items()}
    peers = {name: price.units for name, price in prices.items()}
    what = f"{LARGE} tools, {len(wanted)} requests"
    yield Row(f"{what}, all shown: units", whole.units, unit="k", peers=peers)
    selected, found = sayso_price(encode, names, wanted, SELECTOR)
    yield Row(f"{what}, with the selector: units", selected.units, 20_000, unit="k")
    stable = "the same: share of the prompt that is a stable prefix"
    yield Row(stable, selected.stable, 0.6, True, "%")
    yield Row("the same: requests for which the right tool was called", found, len(wanted), True)
    yield Row(
        "tools in the request that stay the same after a source was loaded again",
        _stable_tools(),
        1,
        True,
        "%",
    )


def sayso_price(
    encode: Encode,
    names: Sequence[str],
    wanted: Sequence[Request],
    channel: str,
) -> tuple[Price, int]:
    """Return the price of the requests in one conversation, and how many called the right tool.

    `names` are the tools of the bot; `channel` is YAML below its channel.
    """
    source = f"[{{module: benchmarks.price.catalog_tools, include: {json.dumps(list(names))}}}]"
    with Bot("openai", PROMPT, source, channel=channel) as bot:
        model = CatalogModel()
        bot.recorder.model = model
        for request in wanted:
            model.begin(request)
            bot.say(request.text)
        return openai_price(bot.recorder.bodies, encode), model.found


def _peer_price(peer: Peer, encode: Encode, wanted: Sequence[Request]) -> Price:
    with ModelRecorder() as recorder:
        model = recorder.model = CatalogModel()
        say = peer("openai", recorder, [as_function(tool) for tool in all_tools()])
        for request in wanted:
            model.begin(request)
            say(request.text)
        assert model.found == len(wanted), model.found
        return openai_price(recorder.bodies, encode)


class CatalogModel:
    """A model that calls the tool of a request if it is shown; else it searches, once."""

    def __init__(self) -> None:
        self.found = 0
        self._calls = 0
        self._tool = ""
        self._text = ""
        self._has_called = False
        self._has_searched = False

    def begin(self, request: Request) -> None:
        """Start the next request."""
        self._tool = request.tool
        self._text = request.text
        self._has_called = False
        self._has_searched = False

    def __call__(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to one request of the bot."""
        shown = [tool["function"]["name"] for tool in body.get("tools", [])]
        if self._has_called:
            return {"text": "That is done: A-17 and A-21 are open. Is there anything else?"}
        if self._tool in shown:
            self._has_called = True
            self.found += 1
            return self._call(self._tool, _arguments(body, self._tool))
        finder = next((name for name in FINDERS if name in shown), None)
        if finder is not None and not self._has_searched:
            self._has_searched = True
            return self._call(finder, {"query": self._text})
        self._has_called = True
        return {"text": "I am sorry, I have no tool for that."}

    def _call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        self._calls += 1
        return {"calls": [{"id": f"call_{self._calls:04}", "name": name, "arguments": arguments}]}


def _arguments(body: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a value for each required argument of a tool that was shown."""
    shown = {tool["function"]["name"]: tool["function"]["parameters"] for tool in body["tools"]}
    return dict.fromkeys(shown[name].get("required", []), "A-17")


def _stable_tools() -> float:
    """Return the share of the tools' bytes that stay the same after a source was loaded again."""
    created = "{module: benchmarks.price.catalog_tools, include: [create_*]}"
    sources = f"[benchmarks.price.shop_tools, {created}]"
    with Bot("openai", PROMPT, sources) as bot:
        bot.recorder.script({"text": "Hello."}, {"text": "Hello again."})
        bot.say("Hello!")
        bot.reload("tools.0")
        bot.say("Hello again!")
        before, after = (json.dumps(body["tools"]) for body in bot.recorder.bodies)
    return shared_with(before, [after]) / len(before)
