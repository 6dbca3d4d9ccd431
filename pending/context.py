"""ToolContext: what a tool can learn about the person and the conversation that it works for."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Person:
    """The person a turn comes from. `id` is the platform's; `phone` has the form +4915100000042.

    A value that the platform does not give is "", as is the role when none is configured.
    """

    id: str
    name: str = ""
    role: str = ""
    phone: str = ""


@dataclass(frozen=True, slots=True)
class Confirmation:
    """The yes that an action runs by: id and preview of the action, who confirmed it, and when, in Unix seconds."""

    action_id: str
    preview: str
    by: str
    at: float


@dataclass(frozen=True, slots=True)
class ToolContext:
    """The person, the conversation and the yes of a call. Sayso fills parameters with this type; models never see them.

    `channel` is the channel's name in the YAML, `conversation` its address there, `language` a BCP 47 tag. Outside a
    conversation `person` is None and the texts are "". `confirmed` is None unless the call runs by somebody's yes.
    """

    person: Person | None = None
    channel: str = ""
    conversation: str = ""
    language: str = ""
    confirmed: Confirmation | None = None


def context_parameters(function: Callable[..., Any] | None) -> tuple[str, ...]:
    """Return the names of a function's parameters that are annotated with ToolContext."""
    if function is None:
        return ()
    try:
        names = inspect.signature(function).parameters
        hints = _hints(function)
    except (ValueError, TypeError):  # some built-ins have no signature
        return ()
    return tuple(name for name in names if is_context(hints.get(name)))


def is_context(hint: Any) -> bool:
    """Return whether an annotation is ToolContext, alone or with None, also inside `Annotated`."""
    if typing.get_origin(hint) is typing.Annotated:
        hint = typing.get_args(hint)[0]
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return ToolContext in typing.get_args(hint)
    return hint is ToolContext


def with_context(function: Callable[..., Any], context: Callable[[], ToolContext]) -> Mapping[str, ToolContext]:
    """Return the context arguments of a function; none if it has no such parameter."""
    names = context_parameters(function)
    return dict.fromkeys(names, context()) if names else {}


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Resolve the annotations that may name ToolContext. Others may use names that only type checkers know."""
    target: Any = inspect.unwrap(function)
    while hasattr(target, "func"):
        target = inspect.unwrap(target.func)
    if not hasattr(target, "__annotations__") or isinstance(target, type):
        target = getattr(type(target), "__call__", target)  # noqa: B004  # the annotations are on its __call__
    names = {**getattr(target, "__globals__", {})}
    names.setdefault("ToolContext", ToolContext)
    hints: dict[str, Any] = {}
    for name, hint in getattr(target, "__annotations__", {}).items():
        if isinstance(hint, str):
            if "ToolContext" not in hint:
                continue
            try:
                hint = eval(hint, names)  # noqa: S307, PLW2901  # the author's own annotation, as typing evaluates it
            except Exception:  # noqa: BLE001, S112  # an annotation that cannot be evaluated is not ToolContext
                continue
        hints[name] = hint
    return hints
