"""Inference: what a function's signature says of the tool made from it."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from pydantic import Field
from pydantic.fields import FieldInfo

from sayso.agent.tools.choices import is_union
from sayso.agent.tools.errors import ToolValidationError
from sayso.agent.tools.parameter import ToolParameter, default_description
from sayso.agent.tools.parameters import Parameters
from sayso.pending.context import is_context

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def infer_parameters(
    function: Callable[..., Any],
    metadata: Mapping[str, Mapping[str, Any]],
    described: Mapping[str, str],
    injected: Collection[str] = (),
) -> tuple[ToolParameter, ...]:
    """The visible parameters of a function: not private, not variadic, not injected.

    What a `functools.partial` binds is the program's own, too. Raises ToolValidationError when there is no signature to
    read, a hint cannot be resolved, or `metadata` names a parameter that is not there.
    """
    own = list(_signature(function).items())
    hints = _hints(function)
    injected = {*injected, *_bound(function), *(name for name, hint in hints.items() if is_context(hint))}
    visible = {
        name: param
        for name, param in (own[1:] if is_method(function) else own)
        if not name.startswith("_") and name not in injected and param.kind not in _VARIADIC
    }
    unknown = sorted(set(metadata) - set(visible))
    if unknown:
        has = list(visible)
        raise ToolValidationError(f"param_metadata of {name_of(function)!r} names unknown {unknown!r}; it has {has!r}")
    for name, said in metadata.items():
        if not isinstance(said, Mapping):
            cure = f"give a dict such as {{'description': {said!r}}}"
            raise ToolValidationError(f"param_metadata[{name!r}] of {name_of(function)!r} is {said!r}: {cure}")
    return tuple(
        _parameter(param, hints.get(name, str), metadata.get(name, {}), described.get(name, ""))
        for name, param in visible.items()
    )


def _signature(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (ValueError, TypeError) as exc:
        raise ToolValidationError(
            f"no tool can be read from {function!r} ({exc}): give Tool(name, description, parameters, function)"
        ) from exc


def _bound(function: Any) -> set[str]:
    """What `functools.partial` binds by name: Python lets a call overrule it, and a model must not."""
    bound: set[str] = set()
    while isinstance(function, functools.partial):
        bound |= set(function.keywords)
        function = function.func
    return bound


def with_own_defaults(parameters: Parameters, function: Callable[..., Any] | None) -> Parameters:
    """Parameters declared by hand: where one may be left out and names no default, its function's own counts."""
    try:
        own = inspect.signature(function).parameters if function else {}
    except (ValueError, TypeError):  # some built-ins have none
        return parameters
    defaults = {name: param.default for name, param in own.items() if param.default is not inspect.Parameter.empty}
    return Parameters(
        replace(each, default=defaults[each.name])
        if not each.required and each.default is None and defaults.get(each.name) is not None
        else each
        for each in parameters
    )


def is_method(function: Callable[..., Any] | None) -> bool:
    """Whether it is a function written in a class, whose first argument is the instance or the class.

    Elsewhere `self` and `cls` are names like any other.
    """
    if not inspect.isfunction(function):
        return False
    _, dot, holder = function.__qualname__.rpartition(".")[0].rpartition(".")
    in_class = bool(dot or holder) and holder != "<locals>"
    return in_class and next(iter(inspect.signature(function).parameters), "") in ("self", "cls")


def name_of(function: Callable[..., Any]) -> str:
    """What a function is called; an instance that can be called is called like its class."""
    return getattr(function, "__name__", "") or type(function).__name__


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Resolved hints of the parameters alone: a return type that only type checkers can see must not matter."""
    target = _annotated(function)
    own = {name: hint for name, hint in getattr(target, "__annotations__", {}).items() if name != "return"}
    holder = types.SimpleNamespace(__annotations__=own)
    try:
        return typing.get_type_hints(holder, getattr(target, "__globals__", {}), include_extras=True)
    except Exception as exc:  # text that is no expression, or one that fails in its own way
        raise ToolValidationError(
            f"cannot resolve the type hints of {name_of(function)!r}: {exc}; "
            "define what they name in the function's module, or import it there at run time"
        ) from exc


def _annotated(function: Callable[..., Any]) -> Any:
    """What carries the hints: behind decorators, partials and instances that can be called."""
    target: Any = inspect.unwrap(function)
    while hasattr(target, "func"):
        target = inspect.unwrap(target.func)
    if not hasattr(target, "__annotations__") or isinstance(target, type):
        target = getattr(type(target), "__call__", target)  # noqa: B004  # what carries its hints
    return target


def _parameter(param: inspect.Parameter, hint: Any, meta: Mapping[str, Any], described: str) -> ToolParameter:
    default = param.default
    if isinstance(default, FieldInfo):  # `x: int = Field(3, description=...)` says what Annotated does
        hint, default = typing.Annotated[(hint, *_said_by(default))], _default_of(default)
    has_default = default is not inspect.Parameter.empty
    return ToolParameter(
        name=param.name,
        param_type=hint,
        description=meta.get("description", described) or _described_by(hint) or default_description(param.name),
        required=not has_default and not _may_be_none(hint),
        enum=meta.get("enum", _literal_choices(hint)),
        default=default if has_default else None,
    )


def _literal_choices(hint: Any) -> tuple[Any, ...] | None:
    """Return the values of a Literal, also inside Optional (seed: Literal Types); None for any other hint."""
    inside = typing.get_args(hint)
    if is_union(hint):
        others = [each for each in inside if each is not types.NoneType]
        return _literal_choices(others[0]) if len(others) == 1 else None
    is_plain = typing.get_origin(hint) is typing.Literal and all(
        type(each) in (str, int, float, bool) for each in inside
    )
    return inside if is_plain else None


def _described_by(hint: Any) -> str:
    """Return what `Annotated[..., Field(description=...)]` says; "" for any other hint."""
    said = getattr(hint, "__metadata__", ())
    return next((each.description for each in reversed(said) if isinstance(each, FieldInfo) and each.description), "")


def _said_by(field: FieldInfo) -> list[Any]:
    """What it says but for the default: a hint has none."""
    told = ("description", "discriminator", "examples", "json_schema_extra")
    return [*field.metadata, Field(**{name: getattr(field, name) for name in told})]


def _default_of(field: FieldInfo) -> Any:
    return inspect.Parameter.empty if field.is_required() else field.get_default(call_default_factory=True)


def _may_be_none(hint: Any) -> bool:
    bare = typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Annotated else hint
    return is_union(bare) and types.NoneType in typing.get_args(bare)
