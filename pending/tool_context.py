"""ToolContext: what a tool can learn about the person and the conversation it works for."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from sayso.pending.call_context import Confirmation, call_context
from sayso.pending.effect import EffectBlock, EffectStart, begin_effect


@dataclass(frozen=True, slots=True)
class Person:
    """The person a turn comes from. `id` is the platform's; `phone` has the form +4915100000042.

    A value that the platform does not give is "", as is the role when none is configured.
    """

    id: str
    name: str = ""
    role: str = ""
    phone: str = ""


class _EffectHolder:
    """Holds where the effect of a call begins.

    It is no field of a ToolContext: `asdict` and `==` leave it out.
    """

    __slots__ = ("_effect",)
    _effect: EffectStart


@dataclass(frozen=True, slots=True)
class ToolContext(_EffectHolder):
    """The person, the conversation and the yes of a call.

    Sayso fills parameters with this type; models never see them.
    """

    person: Person | None = None
    #: The channel's name in the YAML, `conversation` its address there, `language` a BCP 47 tag.
    #: Outside a conversation `person` is None and the texts are "".
    channel: str = ""
    conversation: str = ""
    language: str = ""
    #: None unless the call runs by a person's yes.
    confirmed: Confirmation | None = None

    def effect(self) -> EffectBlock:
        """Return the block of the tool's effect: `with context.effect():`,
        in an async tool `async with`.

        Only for a tool with `marks_effect=True`. What the tool does before the block is
        preparation: it runs again if its worker dies there. From the beginning of the block on the
        call never runs again. Outside of a conversation the block does nothing.

        The block raises EffectRefused, and is not entered, if the effect must not begin: another
        worker has taken over the call. In an async tool, `with` blocks the event loop while the
        beginning is stored.
        """
        return EffectBlock(self._effect_start)

    def effect_begins(self) -> Awaitable[None]:
        """Say that the effect begins now: `await context.effect_begins()`,
        in a sync tool without `await`.

        It does what entering the block of `effect` does.
        """
        return begin_effect(self._effect_start)

    def begins_at(self, effect: EffectStart | None) -> ToolContext:
        """Set where the effect of the call begins.

        Return this context. Only Sayso calls it, before the tool runs.
        """
        if effect is not None:
            object.__setattr__(self, "_effect", effect)
        return self

    def __reduce__(self) -> tuple[Callable[..., ToolContext], tuple[Any, ...]]:
        """Return what makes a copy, in this or another process.

        A copy cannot say that the effect begins.
        """
        return _copied_context, tuple(getattr(self, each.name) for each in fields(self))

    @property
    def _effect_start(self) -> EffectStart | None:
        # A context made by `replace`, or by a test, has none of its own.
        return getattr(self, "_effect", None) or call_context().effect


def _copied_context(*values: Any) -> ToolContext:
    async def refuse() -> None:
        raise RuntimeError(
            "a copy of a ToolContext cannot begin the effect: use the one that the tool was given"
        )

    return ToolContext(*values).begins_at(EffectStart(refuse))


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


def with_context(
    function: Callable[..., Any], context: Callable[[], ToolContext]
) -> Mapping[str, ToolContext]:
    """Return the context arguments of a function; none if it has no such parameter."""
    names = context_parameters(function)
    if names:
        return dict.fromkeys(names, context())
    return {}


def own_function(function: Any) -> Any:
    """Return the function behind decorators and partials; for a callable instance, its `__call__`."""
    target = inspect.unwrap(function)
    # Other objects may have any attribute, as a Mock does.
    while isinstance(target, functools.partial):
        target = inspect.unwrap(target.func)
    if not hasattr(target, "__annotations__") or isinstance(target, type):
        target = getattr(type(target), "__call__", target)  # noqa: B004  # the method itself is wanted
    return target


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Resolve the annotations that may name ToolContext.

    Others may use names that only type checkers know.
    """
    target = own_function(function)
    names = {**getattr(target, "__globals__", {})}
    names.setdefault("ToolContext", ToolContext)
    hints: dict[str, Any] = {}
    for name, hint in (getattr(target, "__annotations__", None) or {}).items():
        if isinstance(hint, str):
            if "ToolContext" not in hint:
                continue
            try:
                hint = eval(hint, names)  # noqa: S307, PLW2901  # the author's own annotation, as typing evaluates it
            except Exception:  # noqa: BLE001, S112  # an annotation that cannot be evaluated is not ToolContext
                continue
        hints[name] = hint
    return hints
