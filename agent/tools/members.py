"""Members: the tools in a module, a class or an instance."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any

from sayso.agent.tools.errors import ToolValidationError
from sayso.agent.tools.inference import name_of
from sayso.agent.tools.names import normalise_namespace
from sayso.agent.tools.tool import Tool


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
    return [tool.update_namespace(space and normalise_namespace(space), force=True) for tool in tools]


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
