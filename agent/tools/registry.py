"""ToolRegistry: the tools of a program by name, with the source that each comes from.

A *source* is what is loaded and replaced as a whole: a Python file, an MCP server, an OpenAPI
document. A tool that the program registers itself has no source.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import FunctionType, ModuleType
from typing import Any, Protocol, Unpack, cast, runtime_checkable

from sayso.agent.messages import ToolCall
from sayso.agent.tools.arguments import quoted
from sayso.agent.tools.definition import ToolOptions
from sayso.agent.tools.errors import (
    ToolError,
    ToolExecutionError,
    ToolNotFoundError,
    ToolValidationError,
)
from sayso.agent.tools.names import normalize_namespace
from sayso.agent.tools.result_texts import ToolOutcome
from sayso.agent.tools.screening import result_for_model
from sayso.agent.tools.signature import is_method, name_of
from sayso.agent.tools.tool import FunctionP, FunctionR, Tool
from sayso.agent.tools.vendor_schemas import ApiFormat
from sayso.infra.concurrency import run_sync
from sayso.infra.spelling import nearest

log = logging.getLogger(__name__)


def tools_of(target: Any, namespace: bool | str = False) -> list[Tool]:
    """Return the public functions of a module as tools, or the methods of a class or instance.

    A class is instantiated first. A Tool among the members is returned unchanged. The tools get a
    `namespace`, or with True the target's own name; False and "" add none.

    Raises ToolValidationError if there are no tools, or if a class cannot be instantiated.
    """
    if isinstance(target, ModuleType):
        functions = _functions_of(target)
    else:
        functions = _methods_of(target)
    tools = []
    for name, function in functions:
        tool_name = None
        if name_of(function) == "<lambda>":  # it has no name but that of its attribute
            tool_name = name
        tools.append(Tool.from_function(function, name=tool_name))
    if not tools:
        raise ToolValidationError(
            f"{name_of(target)!r} has no public functions: nothing to register"
        )

    if namespace is True:
        namespace = name_of(target).rpartition(".")[2]
    if not namespace:
        return tools
    normalized = normalize_namespace(namespace)
    return [tool.update_namespace(normalized, force=True) for tool in tools]


def _functions_of(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Yield the tools and the public functions of a module, but no functions that it imports."""
    for name, value in _unique_members(vars(module)):
        # `type`, since reading an attribute of some values, such as Flask's `request`, raises.
        if issubclass(type(value), Tool):
            yield name, value
            continue
        is_own_function = type(value) is FunctionType and value.__module__ == module.__name__
        if is_own_function and not name.startswith("_"):
            yield name, value


def _methods_of(target: Any) -> Iterator[tuple[str, Any]]:
    """Yield the public methods of an instance, or of an instance of a class, bound to it."""
    instance = target
    if inspect.isclass(target):
        try:
            instance = target()
        except TypeError as exc:
            raise ToolValidationError(
                f"{target.__name__!r} cannot be made without arguments ({exc}): "
                "register an instance"
            ) from exc

    # Base classes come first, in the order of their definition. `object` is left out.
    members: dict[str, Any] = {}
    for base in reversed(type(instance).__mro__[:-1]):
        for name in vars(base):
            members[name] = inspect.getattr_static(instance, name)
    for name, member in _unique_members(members):
        is_wrapped = isinstance(member, staticmethod | classmethod | Tool)
        is_method = is_wrapped or inspect.isroutine(member)
        if is_method and not name.startswith("_"):
            yield name, getattr(instance, name)


def _unique_members(members: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each member once, under its first public name."""
    seen: set[int] = set()
    public_first = sorted(members.items(), key=lambda item: item[0].startswith("_"))
    for name, value in public_first:
        if id(value) not in seen:
            seen.add(id(value))
            yield name, value


@runtime_checkable
class Toolset(Protocol):
    """Tools that may change while an agent uses them; a ToolRegistry is one."""

    def all(self) -> list[Tool]:
        """Return the present tools."""
        ...


@dataclass(frozen=True, slots=True)
class _RegistryEntry:
    """One tool of a registry."""

    #: The tool as models see it. It may ask for a reason of each call, unlike `original`.
    tool: Tool
    #: The tool as it was registered.
    original: Tool
    #: Where it comes from; "" for a tool that was registered by itself.
    source: str


class ToolRegistry:
    """Holds the tools of one module, one channel or one agent under unique names.

    An agent that is given the registry itself, and not its `all()`, reads it anew at each run. Each
    tool has a source, so that the tools of one file or server are replaced together. Reading is
    safe from any thread: changes replace the whole table.

    A source keeps its place among the others for the life of the registry, also while it has no
    tools. The definitions of the tools come first in a request to a model, and the vendor's cache
    serves only what is byte-identical from the beginning.
    """

    def __init__(self, tools: Iterable[Tool] = (), *, think_augment: bool = False) -> None:
        """Register `tools`. With `think_augment` models give a reason with each call.

        A tool whose metadata says otherwise does not change. Raises like `register`.
        """
        self._tools: dict[str, _RegistryEntry] = {}
        #: Why tools are disabled, by name. A tool that is loaded again stays disabled.
        self._disabled: dict[str, str] = {}
        #: The places of sources (source, "") and of tools without a source ("", name): numbers in
        #: the order in which each was first seen.
        self._places: dict[tuple[str, str], int] = {}
        self._think_augment = think_augment
        self._changes = threading.RLock()
        for tool in tools:
            self.register(tool)

    def tool(
        self, **options: Unpack[ToolOptions]
    ) -> Callable[[Callable[FunctionP, FunctionR]], Tool[FunctionP, FunctionR]]:
        """Return the `tool` decorator with these options, which also registers the tool."""
        return lambda function: self.register(Tool.from_function(function, **options))

    def register(
        self,
        tool: Tool[FunctionP, FunctionR] | Callable[FunctionP, FunctionR],
    ) -> Tool[FunctionP, FunctionR]:
        """Add a tool, or a function as a tool, and return the registered tool.

        Raises ToolValidationError if another tool has its name, and for a method without its
        instance.
        """
        new_tool = Tool.from_function(tool)
        name = new_tool.name
        if is_method(new_tool.function):
            problem = f"{name!r} is a method without its instance, so no call could be made"
            cure = "give the method of an instance, or the class to ToolRegistry.register_from"
            raise ToolValidationError(f"{problem}: {cure}", tool_name=name)
        with self._changes:
            # The same tool may be registered again.
            if name in self._tools and self._tools[name].original is not new_tool:
                self._check_names_are_free([new_tool])
            self._tools = self._in_order({**self._tools, name: self._entry(new_tool)})
            return cast("Tool[FunctionP, FunctionR]", self._tools[name].tool)

    def register_from(self, target: Any, *, namespace: bool | str = False) -> list[Tool]:
        """Add the public functions of a module, or the public methods of a class or an instance.

        `namespace=True` takes the target's own name. Raises ToolValidationError,
        and then adds none.
        """
        tools = tools_of(target, namespace)
        with self._changes:
            self._check_names_are_free(tools)
            return [self.register(tool) for tool in tools]

    def reserve_places(self, sources: Iterable[str]) -> None:
        """Give these sources their places in this order, before any of them has tools."""
        with self._changes:
            for source in sources:
                self._places.setdefault((source, ""), len(self._places))

    def replace_source(
        self, source: str, tools: Iterable[Tool], *, gives_way: Collection[str] = ()
    ) -> dict[str, str]:
        """Replace the tools of a source, at its place.

        Two sources may not have tools of the same name: one of them loses all its tools. It is the
        other source if it is in `gives_way`. Returns the reasons why other sources lost their
        tools, by source. Raises ToolValidationError for the name of any other tool, and then
        changes nothing.
        """
        return self.replace_sources({source: tools}, gives_way=gives_way)

    def replace_sources(
        self, contents: Mapping[str, Iterable[Tool]], *, gives_way: Collection[str] = ()
    ) -> dict[str, str]:
        """Replace the tools of several sources at once, as `replace_source` does for one.

        At once, so that a tool may move from one of the sources to another.
        """
        new_tools = {source: list(tools) for source, tools in contents.items()}
        all_new: list[Tool] = []
        for tools in new_tools.values():
            all_new += tools
        new_names = {tool.name for tool in all_new}

        with self._changes:
            losers: dict[str, str] = {}
            for name, entry in self._tools.items():
                if name in new_names and entry.source in gives_way:
                    reason = f"{_same_name(name)}, and the tool of an earlier source counts"
                    losers[entry.source] = reason
            replaced = {*new_tools, *losers}
            self._check_names_are_free(all_new, replaced)

            entries = {
                name: entry for name, entry in self._tools.items() if entry.source not in replaced
            }
            for source, tools in new_tools.items():
                for tool in tools:
                    entries[tool.name] = self._entry(tool, source)
            self._tools = self._in_order(entries)
        return losers

    def _in_order(self, entries: Mapping[str, _RegistryEntry]) -> dict[str, _RegistryEntry]:
        """Return the entries by the places of their sources.

        Within a source they keep their order. A source that is seen for the first time gets the
        next place.
        """
        places = {}
        for name, entry in entries.items():
            key = (entry.source, "") if entry.source else ("", name)
            places[name] = self._places.setdefault(key, len(self._places))
        return {name: entries[name] for name in sorted(entries, key=places.__getitem__)}

    def remove(self, name: str) -> Tool:
        """Remove a tool and return it. Raises ToolNotFoundError."""
        with self._changes:
            tool = self.get(name)
            self._tools = {other: entry for other, entry in self._tools.items() if other != name}
            self._disabled.pop(name, None)
        return tool

    def get(self, name: str) -> Tool:
        """Return the tool of that name, also a disabled one. Raises ToolNotFoundError."""
        if name not in self._tools:
            raise ToolNotFoundError(unknown_tool(name, self._tools))
        return self._tools[name].tool

    def all(self, *, tags: Collection[str] = (), exclude_tags: Collection[str] = ()) -> list[Tool]:
        """Return the enabled tools, in the order of their sources.

        With `tags`, only tools that have one of them; with `exclude_tags`, only tools that have
        none of them.
        """
        tools = [entry.tool for name, entry in self._tools.items() if name not in self._disabled]
        if tags:
            tools = [tool for tool in tools if tool.metadata.all_tags.intersection(tags)]
        if exclude_tags:
            tools = [tool for tool in tools if tool.metadata.all_tags.isdisjoint(exclude_tags)]
        return tools

    def disable(self, name: str, reason: str = "") -> None:
        """Disable a tool: no model sees it, and it cannot be called.

        `reason` is what the error of a call says; "" for none. Raises ToolNotFoundError.
        """
        self.get(name)
        self._disabled[name] = reason

    def enable(self, name: str) -> None:
        """Enable a tool again. Raises ToolNotFoundError."""
        self.get(name)
        self._disabled.pop(name, None)

    def get_schemas(self, api_format: ApiFormat = "openai-chat") -> list[dict[str, Any]]:
        """Return the definitions of all enabled tools for one vendor's API.

        A tool whose `config_injector` fails is left out, with a warning. Raises ToolValidationError
        for a tool that the API cannot express.
        """
        schemas = []
        for tool in self.all():
            try:
                schemas.append(tool.get_schema(api_format))
            except ToolExecutionError as exc:
                log.warning("tool.left_out", extra={"tool": tool.name, "why": str(exc)})
        return schemas

    def execute_tool(self, tool_name: str, /, **parameters: Any) -> Any:
        """Run a tool and return its own value. Raises ToolError, and what the tool raises."""
        return self._enabled(tool_name).run_raw(parameters)

    def execute_tool_calls(self, tool_calls: Sequence[ToolCall]) -> list[ToolOutcome]:
        """Run `aexecute_tool_calls` from sync code."""
        return run_sync(self.aexecute_tool_calls(tool_calls))

    async def aexecute_tool_calls(self, tool_calls: Sequence[ToolCall]) -> list[ToolOutcome]:
        """Run the calls of one model answer, at the same time if `is_concurrency_safe` allows it.

        Returns the outcomes in the order of the calls; results are texts as the model sees them. A
        ToolError becomes an outcome too. No policy is applied: the agent does that.
        """
        run_alone = {
            name
            for name, entry in self._tools.items()
            if not entry.tool.metadata.is_concurrency_safe
        }
        outcomes: list[ToolOutcome] = []
        for batch in batches(tool_calls, lambda call: call.tool_name not in run_alone):
            outcomes += await asyncio.gather(*(self._outcome(tool_calls[at]) for at in batch))
        return outcomes

    async def _outcome(self, call: ToolCall) -> ToolOutcome:
        """Run one call, and return its result or error."""
        try:
            tool = self._enabled(call.tool_name)
            result = await tool.aexecute(call.parameters)
            return ToolOutcome(True, await result_for_model(tool, result))
        except ToolError as exc:
            return ToolOutcome(False, error=str(exc))

    def _entry(self, tool: Tool, source: str = "") -> _RegistryEntry:
        """Return the entry of a tool, which asks for a reason if this registry does."""
        if not self._think_augment or tool.metadata.think_augment is not None:
            return _RegistryEntry(tool, tool, source)
        augmented = replace(tool, metadata=replace(tool.metadata, think_augment=True))
        return _RegistryEntry(augmented, tool, source)

    def _enabled(self, name: str) -> Tool:
        """Return the tool of that name. Raises ToolNotFoundError, also for a disabled one."""
        tool = self.get(name)
        if name in self._disabled:
            why = ""
            if self._disabled[name]:
                why = f": {self._disabled[name]}"
            raise ToolNotFoundError(
                f"tool {name!r} is switched off{why}; enable({name!r}) switches it on"
            )
        return tool

    def _check_names_are_free(
        self, tools: Sequence[Tool], replaced_sources: Collection[str] = ()
    ) -> None:
        """Raise ToolValidationError if two of the tools have the same name, or another has it.

        The present tools of `replaced_sources` do not count.
        """
        names = [tool.name for tool in tools]
        repeated = sorted({name for name in names if names.count(name) > 1})
        # Tools that were registered by themselves have no source, and are never replaced.
        replaced = set(replaced_sources) - {""}
        others = {name for name, entry in self._tools.items() if entry.source not in replaced}
        taken = sorted(others.intersection(names))
        conflicts = repeated or taken
        if conflicts:
            problem = _same_name(conflicts[0])
            raise ToolValidationError(f"{problem}: rename one with name=, or use a namespace")


def _same_name(name: str) -> str:
    return f"two tools are called {name!r}"


async def schemas_for_model(tools: Iterable[Tool], left_out: set[str]) -> list[dict[str, Any]]:
    """Return the schemas of tools. A tool whose `config_injector` fails is left out.

    So the turn still gets an answer. `left_out` has the names of the tools that failed the last
    time, and is changed to those that fail now. A failure is logged when it is new.
    """
    schemas: list[dict[str, Any]] = []
    for each in tools:
        try:
            schemas.append(await each.aschema())
        except ToolError as exc:
            if each.name not in left_out:
                log.warning("tool.left_out", extra={"tool": each.name, "why": str(exc)})
            left_out.add(each.name)
        else:
            left_out.discard(each.name)
    return schemas


def batches(
    calls: Sequence[ToolCall], may_run_beside_others: Callable[[ToolCall], bool]
) -> list[list[int]]:
    """Return the indexes of the calls in batches. The calls of a batch may run at the same time.

    The batches are in the order of the calls. A call that must run alone is a batch.
    """
    groups: list[list[int]] = []
    last_is_safe = False
    for index, call in enumerate(calls):
        is_safe = may_run_beside_others(call)
        if is_safe and last_is_safe:
            groups[-1].append(index)
        else:
            groups.append([index])
        last_is_safe = is_safe
    return groups


def unknown_tool(name: str, known: Collection[str]) -> str:
    """Return the text of the error for an unknown tool, which says which tools exist."""
    text = f"Unknown tool {quoted(name)}. Available: {list(known)!r}"
    similar = nearest(name, known)
    if similar:
        text += f". Did you mean {similar!r}?"
    return text
