"""ToolRegistry: tools by name, with their sources; tools of modules and classes."""

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
from sayso.agent.tools.call_texts import ToolOutcome
from sayso.agent.tools.definition import ToolOptions, normalize_namespace
from sayso.agent.tools.errors import (
    ToolError,
    ToolExecutionError,
    ToolNotFoundError,
    ToolValidationError,
)
from sayso.agent.tools.screening import result_for_model
from sayso.agent.tools.signature import is_method, name_of
from sayso.agent.tools.tool import FunctionP, FunctionR, Tool
from sayso.agent.tools.vendor_schemas import ApiFormat
from sayso.infra.concurrency import run_sync
from sayso.infra.spelling import nearest

log = logging.getLogger(__name__)


def tools_of(target: Any, namespace: bool | str = False) -> list[Tool]:
    """Return the public functions of a module as tools, or the methods of a class or instance.

    A class is instantiated first. A Tool among the members is returned unchanged. Raises
    ToolValidationError if there are no tools, or if a class cannot be instantiated.
    """
    if isinstance(target, ModuleType):
        functions = _functions_of(target)
    else:
        functions = _methods_of(target)
    tools = []
    for name, each in functions:
        is_lambda = name_of(each) == "<lambda>"  # it gets the name of its attribute
        tools.append(Tool.from_function(each, name=name if is_lambda else None))
    if not tools:
        raise ToolValidationError(
            f"{name_of(target)!r} has no public functions: nothing to register"
        )
    space = namespace or ""
    if space is True:
        space = name_of(target).rpartition(".")[2]
    normalized = normalize_namespace(space) if space else None
    return [tool.update_namespace(normalized, force=True) for tool in tools]


def _functions_of(module: ModuleType) -> Iterator[tuple[str, Any]]:
    for name, value in _unique(vars(module)):
        own = type(value) is FunctionType and value.__module__ == module.__name__
        if issubclass(type(value), Tool) or (own and not name.startswith("_")):
            yield name, value


def _methods_of(target: Any) -> Iterator[tuple[str, Any]]:
    try:
        if inspect.isclass(target):
            instance = target()
        else:
            instance = target
    except TypeError as exc:
        raise ToolValidationError(
            f"{target.__name__!r} cannot be made without arguments ({exc}): register an instance"
        ) from exc
    names = dict.fromkeys(
        name for base in reversed(type(instance).__mro__[:-1]) for name in vars(base)
    )
    for name, static in _unique({name: inspect.getattr_static(instance, name) for name in names}):
        is_method = inspect.isroutine(static) or isinstance(
            static, staticmethod | classmethod | Tool
        )
        if is_method and not name.startswith("_"):
            yield name, getattr(instance, name)


def _unique(named: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each member once, under its first public name."""
    seen: set[int] = set()
    for name, value in sorted(named.items(), key=lambda item: item[0].startswith("_")):
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
class _Registered:
    """A tool of a registry: as models see it, as it was registered, and where it comes from."""

    tool: Tool
    given: Tool
    source: str


class ToolRegistry:
    """Holds the tools of one module, one channel or one agent under unique names.

    An agent that is given the registry itself, and not its `all()`, reads it anew at each run. Each
    tool has a source, so that the tools of one file or server are replaced together. Reading is
    safe from any thread: changes replace the whole table. With `think_augment` models give a reason
    with each call, unless the tool says otherwise.

    A source keeps its place among the others for the life of the registry, also while it has no
    tools: tools stand first in a request, and a vendor's cache holds only as much of it as stays
    byte-identical.
    """

    def __init__(self, tools: Iterable[Tool] = (), *, think_augment: bool = False) -> None:
        self._tools: dict[str, _Registered] = {}
        #: Why tools are disabled, by name. A tool that is loaded again stays disabled.
        self._disabled: dict[str, str] = {}
        #: The places of sources, and of tools that were registered one by one:
        #: in the order in which they came first.
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
        """Add a tool, or a function as a tool, and return it as it is registered.

        Raises ToolValidationError if another tool has its name, and for a method without its
        instance.
        """
        given = Tool.from_function(tool)
        if is_method(given.function):
            problem = f"{given.name!r} is a method without its instance, so no call could be made"
            cure = "give the method of an instance, or the class to ToolRegistry.register_from"
            raise ToolValidationError(f"{problem}: {cure}", tool_name=given.name)
        with self._changes:
            if given.name in self._tools and self._tools[given.name].given is not given:
                self._check_free([given])
            self._tools = self._in_order({**self._tools, given.name: self._registered(given)})
            return cast("Tool[FunctionP, FunctionR]", self._tools[given.name].tool)

    def register_from(self, target: Any, *, namespace: bool | str = False) -> list[Tool]:
        """Add the public functions of a module, or the public methods of a class or an instance.

        `namespace=True` takes the target's own name. Raises ToolValidationError,
        and then adds none.
        """
        tools = tools_of(target, namespace)
        with self._changes:
            self._check_free(tools)
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

        Return why other sources lost tools to it.

        Of two sources that have a tool of the same name, one is refused as a whole. Those in
        `gives_way` lose their tools to this source. Raises ToolValidationError for the name of any
        other tool, and then changes nothing.
        """
        return self.replace_sources({source: tools}, gives_way=gives_way)

    def replace_sources(
        self, contents: Mapping[str, Iterable[Tool]], *, gives_way: Collection[str] = ()
    ) -> dict[str, str]:
        """Replace the tools of several sources at once, as `replace_source` does:
        a tool may move between them.
        """
        new = {source: list(tools) for source, tools in contents.items()}
        all_new = [tool for tools in new.values() for tool in tools]
        names = {tool.name for tool in all_new}
        with self._changes:
            losers = {
                each.source: f"{_same_name(name)}, and the tool of an earlier source counts"
                for name, each in self._tools.items()
                if name in names and each.source in gives_way
            }
            replaced = {*new, *losers}
            self._check_free(all_new, replaced)
            tools = {
                name: each for name, each in self._tools.items() if each.source not in replaced
            }
            for source, own in new.items():
                tools.update((each.name, self._registered(each, source)) for each in own)
            self._tools = self._in_order(tools)
        return losers

    def _in_order(self, tools: Mapping[str, _Registered]) -> dict[str, _Registered]:
        """Return the tools by the places of their sources.

        Within a source they keep their order.
        """
        places = {}
        for name, each in tools.items():
            place = (each.source, "" if each.source else name)
            places[name] = self._places.setdefault(place, len(self._places))
        return {name: tools[name] for name in sorted(tools, key=places.__getitem__)}

    def remove(self, name: str) -> Tool:
        """Remove a tool and return it. Raises ToolNotFoundError."""
        with self._changes:
            tool = self.get(name)
            self._tools = {other: each for other, each in self._tools.items() if other != name}
            self._disabled.pop(name, None)
        return tool

    def get(self, name: str) -> Tool:
        """Return the tool of that name, also a disabled one. Raises ToolNotFoundError."""
        if name not in self._tools:
            raise ToolNotFoundError(unknown_tool(name, self._tools))
        return self._tools[name].tool

    def all(self, *, tags: Collection[str] = (), exclude_tags: Collection[str] = ()) -> list[Tool]:
        """Return the enabled tools, in the order of their sources.

        Only those with any of `tags` and none of `exclude_tags`.
        """
        enabled = [each.tool for name, each in self._tools.items() if name not in self._disabled]
        if not tags and not exclude_tags:
            return enabled
        return [
            tool
            for tool in enabled
            if (not tags or tool.metadata.all_tags.intersection(tags))
            and not tool.metadata.all_tags.intersection(exclude_tags)
        ]

    def disable(self, name: str, reason: str = "") -> None:
        """Disable a tool: no model sees it, and it cannot be called. Raises ToolNotFoundError."""
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
        """Run the calls of one answer, concurrently where their tools are `is_concurrency_safe`.

        Raises no ToolError.

        Returns the outcomes in the order of the calls; results are texts as the model sees them. No
        policy is applied: the agent does that.
        """
        alone = {
            name for name, each in self._tools.items() if not each.tool.metadata.is_concurrency_safe
        }
        outcomes: dict[int, ToolOutcome] = {}
        for group in batches(tool_calls, lambda call: call.tool_name not in alone):
            results = await asyncio.gather(*(self._outcome(tool_calls[index]) for index in group))
            outcomes.update(zip(group, results, strict=True))
        return [outcomes[index] for index in range(len(tool_calls))]

    async def _outcome(self, call: ToolCall) -> ToolOutcome:
        try:
            tool = self._enabled(call.tool_name)
            return ToolOutcome(
                True, await result_for_model(tool, await tool.aexecute(call.parameters))
            )
        except ToolError as exc:
            return ToolOutcome(False, error=str(exc))

    def _registered(self, given: Tool, source: str = "") -> _Registered:
        if not self._think_augment or given.metadata.think_augment is not None:
            return _Registered(given, given, source)
        augmented = replace(given, metadata=replace(given.metadata, think_augment=True))
        return _Registered(augmented, given, source)

    def _enabled(self, name: str) -> Tool:
        tool = self.get(name)
        if name in self._disabled:
            why = ""
            if self._disabled[name]:
                why = f": {self._disabled[name]}"
            raise ToolNotFoundError(
                f"tool {name!r} is switched off{why}; enable({name!r}) switches it on"
            )
        return tool

    def _check_free(self, tools: Sequence[Tool], sources: Collection[str] = ()) -> None:
        """Raise ToolValidationError for a name that is taken.

        It comes twice, or a tool of another than these sources has it.
        """
        names = [tool.name for tool in tools]
        twice = sorted({name for name in names if names.count(name) > 1})
        own = set(sources) - {""}  # tools that were registered one by one have no source
        others = {name for name, each in self._tools.items() if each.source not in own}
        taken = sorted(others.intersection(names))
        if twice or taken:
            problem = _same_name((twice or taken)[0])
            raise ToolValidationError(f"{problem}: rename one with name=, or use a namespace")


def _same_name(name: str) -> str:
    return f"two tools are called {name!r}"


async def schemas_for_model(tools: Iterable[Tool], left_out: set[str]) -> list[dict[str, Any]]:
    """Return the schemas of tools.

    A tool whose `config_injector` fails is left out, so that the turn gets an answer.

    `left_out` are the tools that failed the last time. A failure is logged when it is new.
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
    """Return the indexes of the calls in groups that run concurrently, in order.

    A call that must run alone is a group.
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
    """Return the error that tells a person or a model which tools exist."""
    similar = nearest(name, known)
    return f"Unknown tool {quoted(name)}. Available: {list(known)!r}" + (
        f". Did you mean {similar!r}?" if similar else ""
    )
