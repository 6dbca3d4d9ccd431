"""ToolRegistry."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import FunctionType, ModuleType
from typing import Any, Protocol, runtime_checkable

from sayso.agent.tools.arguments import quoted
from sayso.agent.tools.definition import normalize_namespace
from sayso.agent.tools.errors import ToolError, ToolExecutionError, ToolNotFoundError, ToolValidationError, nearest
from sayso.agent.tools.results import ToolOutcome
from sayso.agent.tools.schema.vendors import ApiFormat
from sayso.agent.tools.signature import name_of
from sayso.agent.tools.tool import Tool, result_for_model
from sayso.pending.concurrency import run_sync


def members(target: Any, namespace: bool | str = False) -> list[Tool]:
    """The public functions of a module that are its own, or the public methods of a class or an instance, as tools.

    A class is made an instance of first, unless all it has are static and class methods. What is a Tool already stays
    what it is. Raises ToolValidationError when there are none, or a class cannot be made an instance of.
    """
    found = _of_module(target) if isinstance(target, ModuleType) else _of_class(target)
    tools = [_as_tool(name, each) for name, each in found]
    if not tools:
        raise ToolValidationError(f"{_name(target)!r} has no public functions: nothing to register")
    space = _name(target).rpartition(".")[2] if namespace is True else namespace or None
    return [tool.update_namespace(space and normalize_namespace(space), force=True) for tool in tools]


def _as_tool(name: str, value: Any) -> Tool:
    """What it is already, or made of it; a lambda is called like the attribute it is."""
    if isinstance(value, Tool):
        return value
    return Tool.from_function(value, name=name if name_of(value) == "<lambda>" else None)


def _of_module(module: ModuleType) -> Iterator[tuple[str, Any]]:
    for name, value in _once(vars(module)):
        own = type(value) is FunctionType and value.__module__ == module.__name__
        if issubclass(type(value), Tool) or (own and not name.startswith("_")):
            yield name, value


def _of_class(target: Any) -> Iterator[tuple[str, Any]]:
    holder = _instance(target) if inspect.isclass(target) else target
    kind = holder if inspect.isclass(holder) else type(holder)
    names = dict.fromkeys(name for base in reversed(kind.__mro__[:-1]) for name in vars(base))
    for name, static in _once({name: inspect.getattr_static(holder, name) for name in names}):
        is_method = inspect.isroutine(static) or isinstance(static, staticmethod | classmethod)
        if not name.startswith("_") and (is_method or isinstance(static, Tool)):
            yield name, getattr(holder, name)


def _once(named: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """What has several names, by its first public one."""
    seen: set[int] = set()
    for name, value in sorted(named.items(), key=lambda item: item[0].startswith("_")):
        if id(value) not in seen:
            seen.add(id(value))
            yield name, value


def _instance(kind: type) -> Any:
    own = [value for name, value in vars(kind).items() if not name.startswith("_") and inspect.isroutine(value)]
    if own and all(isinstance(value, staticmethod | classmethod) for value in own):
        return kind
    try:
        return kind()
    except TypeError as exc:
        raise ToolValidationError(
            f"{kind.__name__!r} cannot be made without arguments ({exc}): register an instance"
        ) from exc


def _name(target: Any) -> str:
    return str(getattr(target, "__name__", "") or type(target).__name__)


log = logging.getLogger(__name__)


class CallLike(Protocol):
    """A call as a model makes it; `agent.ToolCall` is one."""

    @property
    def tool_name(self) -> str:
        """Whom it calls."""

    @property
    def parameters(self) -> Mapping[str, Any]:
        """With what."""


@runtime_checkable
class Toolset(Protocol):
    """Tools that may change while their agent lives; a ToolRegistry is one."""

    def all(self) -> list[Tool]:
        """Those there are now."""
        ...


class ToolRegistry:
    """Holds the tools of one module, one channel or one agent; names are unique in it.

    An agent that is given the registry itself, and not its `all()`, sees at each run what is in it then. Each tool has
    a source, which is how the tools of one file or server are replaced together. Reading is safe from any thread;
    changes put a new table in the old one's place. With `think_augment` models are asked for a reason with each call of
    a tool that does not say otherwise.
    """

    def __init__(self, tools: Iterable[Tool] = (), *, think_augment: bool = False) -> None:
        self._tools: dict[str, Tool] = {}
        self._sources: dict[str, str] = {}
        self._disabled: dict[str, str] = {}
        #: The tools as they were given; with `think_augment` those that are called are others.
        self._given: dict[str, Tool] = {}
        self._think_augment = think_augment
        self._changes = threading.RLock()
        for tool in tools:
            self.register(tool)

    def tool(self, **options: Any) -> Callable[[Callable[..., Any]], Tool]:
        """The `tool` decorator with the same options, which also registers."""
        return lambda function: self.register(Tool.from_function(function, **options))

    def register(self, tool: Tool | Callable[..., Any], *, namespace: str | None = None, source: str = "") -> Tool:
        """Add a tool, or a function as one, and hand it back as it is called here.

        Raises ToolValidationError when another one has its name.
        """
        given = (tool if isinstance(tool, Tool) else Tool.from_function(tool)).update_namespace(namespace)
        with self._changes:
            if given.name in self._tools and self._given[given.name] is not given:
                self._check_free([given], source="")
            self._sources = {**self._sources, given.name: source}
            self._given = {**self._given, given.name: given}
            self._tools = {**self._tools, given.name: self._asking_why(given)}
            return self._tools[given.name]

    def register_from(self, target: Any, *, namespace: bool | str = False, source: str = "") -> list[Tool]:
        """Add the public functions of a module, or the public methods of a class or an instance.

        `namespace=True` takes the target's own name for it. Raises ToolValidationError, and then adds none.
        """
        tools = members(target, namespace)
        with self._changes:
            self._check_free(tools, source)
            return [self.register(tool, source=source) for tool in tools]

    def replace_source(self, source: str, tools: Iterable[Tool]) -> None:
        """From now on a source has these tools. Raises ToolValidationError, and then changes nothing."""
        made = list(tools)
        with self._changes:
            self._check_free(made, source)
            kept = {name: each for name, each in self._tools.items() if self._sources[name] != source}
            self._sources = {**{name: self._sources[name] for name in kept}, **{each.name: source for each in made}}
            self._given = {**{name: self._given[name] for name in kept}, **{each.name: each for each in made}}
            self._tools = {**kept, **{each.name: self._asking_why(each) for each in made}}

    def remove(self, name: str) -> Tool:
        """Take a tool out. Raises ToolNotFoundError."""
        with self._changes:
            tool = self.get(name)
            self._tools = {other: each for other, each in self._tools.items() if other != name}
            self._disabled.pop(name, None)
        return tool

    def get(self, name: str) -> Tool:
        """The tool of that name, switched off or not. Raises ToolNotFoundError."""
        tool = self._tools.get(name)
        if tool is None:
            raise ToolNotFoundError(unknown_tool(name, self._tools))
        return tool

    def all(self, *, tags: Collection[str] = (), exclude_tags: Collection[str] = ()) -> list[Tool]:
        """Every tool that is switched on, in the order of registration: with any of `tags`, and none of the others."""
        if not tags and not exclude_tags:
            if not self._disabled:
                return list(self._tools.values())
            return [tool for name, tool in self._tools.items() if name not in self._disabled]
        return [
            tool
            for name, tool in self._tools.items()
            if name not in self._disabled
            and (not tags or tool.metadata.all_tags.intersection(tags))
            and not tool.metadata.all_tags.intersection(exclude_tags)
        ]

    def disable(self, name: str, reason: str = "") -> None:
        """Switch a tool off: no model sees it, and it is not called. Raises ToolNotFoundError."""
        self.get(name)
        self._disabled[name] = reason

    def enable(self, name: str) -> None:
        """Switch it on again. Raises ToolNotFoundError."""
        self.get(name)
        self._disabled.pop(name, None)

    def get_schemas(self, api_format: ApiFormat = "openai-chat", *, strict: bool = False) -> list[dict[str, Any]]:
        """The definitions of all tools that are switched on, for one vendor's API.

        One whose `config_injector` fails is left out, with a warning. Raises ToolValidationError for one that cannot be
        said in that API, or not strictly.
        """
        made = []
        for tool in self.all():
            try:
                made.append(tool.get_schema(api_format, strict=strict))
            except ToolExecutionError as exc:
                log.warning("tool.left_out", extra={"tool": tool.name, "why": str(exc)})
        return made

    def execute_tool(self, tool_name: str, /, **parameters: Any) -> Any:
        """Run a tool and return its own value. Raises ToolError, and what the tool raises."""
        return self._enabled(tool_name).run_raw(parameters)

    async def aexecute_tool(self, tool_name: str, /, **parameters: Any) -> Any:
        """`execute_tool` in an event loop."""
        return await self._enabled(tool_name).arun_raw(parameters)

    def execute_tool_calls(self, tool_calls: Sequence[CallLike]) -> list[ToolOutcome]:
        """`aexecute_tool_calls` for sync code."""
        return run_sync(self.aexecute_tool_calls(tool_calls))

    async def aexecute_tool_calls(self, tool_calls: Sequence[CallLike]) -> list[ToolOutcome]:
        """Run the calls of one answer, at once where their tools are `is_concurrency_safe`; nothing is raised.

        The outcomes come in the order of the calls; results are texts, as the agent would show them. No policy
        is asked: that is the agent's business.
        """
        outcomes: dict[int, ToolOutcome] = {}
        for group in batches(tool_calls, self._may_run_beside_others):
            ran = await asyncio.gather(*(self._outcome(tool_calls[at]) for at in group))
            outcomes.update(zip(group, ran, strict=True))
        return [outcomes[at] for at in range(len(tool_calls))]

    async def _outcome(self, call: CallLike) -> ToolOutcome:
        try:
            tool = self._enabled(call.tool_name)
            return ToolOutcome(True, await result_for_model(tool, await tool.aexecute(call.parameters)))
        except ToolError as exc:
            return ToolOutcome(False, error=str(exc))

    def _may_run_beside_others(self, call: CallLike) -> bool:
        tool = self._tools.get(call.tool_name)
        return tool is None or tool.metadata.is_concurrency_safe

    def _asking_why(self, tool: Tool) -> Tool:
        if not self._think_augment or tool.metadata.think_augment is not None:
            return tool
        return replace(tool, metadata=replace(tool.metadata, think_augment=True))

    def _enabled(self, name: str) -> Tool:
        tool = self.get(name)
        if name in self._disabled:
            why = f": {self._disabled[name]}" if self._disabled[name] else ""
            raise ToolNotFoundError(f"tool {name!r} is switched off{why}; enable({name!r}) switches it on")
        return tool

    def _check_free(self, tools: Sequence[Tool], source: str) -> None:
        names = [tool.name for tool in tools]
        twice = sorted({name for name in names if names.count(name) > 1})
        taken = sorted(name for name in names if name in self._tools and (not source or self._sources[name] != source))
        if twice or taken:
            name = (twice or taken)[0]
            raise ToolValidationError(f"two tools are called {name!r}: rename one with name=, or use a namespace")


def batches(calls: Sequence[CallLike], may_run_beside_others: Callable[[CallLike], bool]) -> list[list[int]]:
    """The calls, by index, in groups that run at once: one after the other, in order, those that must be alone."""
    groups: list[list[int]] = []
    joinable = False
    for at, call in enumerate(calls):
        safe = may_run_beside_others(call)
        if safe and joinable:
            groups[-1].append(at)
        else:
            groups.append([at])
        joinable = safe
    return groups


def unknown_tool(name: str, known: Collection[str]) -> str:
    """The sentence that tells a person or a model which names exist."""
    meant = nearest(name, known)
    return f"Unknown tool {quoted(name)}. Available: {list(known)!r}" + (f". Did you mean {meant!r}?" if meant else "")
