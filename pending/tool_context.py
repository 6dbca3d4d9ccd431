"""ToolContext: what a tool can learn about the person and the conversation that it works for."""

from __future__ import annotations

import contextlib
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
    """The person a turn comes from. A value that is not known is ""."""

    #: The platform's id of the person.
    id: str
    #: What the platform calls the person.
    name: str = ""
    #: The role by the configuration, "" if none is configured.
    role: str = ""
    #: In the form +4915100000042.
    phone: str = ""


class _EffectHolder:
    """Holds the EffectStart of a call, which stores that the effect of the call begins.

    A base class with a slot, and no field of ToolContext: so `asdict`, `==` and `repr` leave it
    out.
    """

    __slots__ = ("_effect_start",)
    _effect_start: EffectStart


@dataclass(frozen=True, slots=True)
class ToolContext(_EffectHolder):
    """The person, the conversation and the yes of a call.

    A tool that has a parameter of this type gets one; models never see the parameter. Outside a
    conversation `person` is None and the texts are "".
    """

    person: Person | None = None
    #: The channel's name in the YAML.
    channel: str = ""
    #: The address of the conversation in the channel.
    conversation: str = ""
    #: The language of the conversation, as a BCP 47 tag.
    language: str = ""
    #: The yes by which the call runs; None if it runs without one.
    confirmed: Confirmation | None = None

    def effect(self) -> EffectBlock:
        """Return the block of the tool's effect, for `with` and, in an async tool, `async with`.

        Only for a tool with `marks_effect=True`. What the tool does before the block is
        preparation: it runs again if its worker dies there. From the beginning of the block on the
        call never runs again. Outside of a conversation the block does nothing.

        The block raises EffectRefused, and is not entered, if the effect must not begin: another
        worker has taken over the call. In an async tool, `with` blocks the event loop while the
        beginning is stored.
        """
        return EffectBlock(self._find_effect_start())

    def effect_begins(self) -> Awaitable[None]:
        """Say that the effect begins now, as entering the block of `effect` does.

        An async tool must await the result: the effect begins in the `await`. In a sync tool the
        effect has begun when this method returns, and the result is to be ignored.
        """
        return begin_effect(self._find_effect_start())

    def set_effect_start(self, effect: EffectStart | None) -> ToolContext:
        """Set the EffectStart of the call, and return this context.

        Only Sayso calls it, before the tool runs. None sets nothing.
        """
        if effect is not None:
            # The dataclass is frozen.
            object.__setattr__(self, "_effect_start", effect)
        return self

    def __reduce__(self) -> tuple[Callable[..., ToolContext], tuple[Any, ...]]:
        """Return how pickle and `copy` make a copy, in this or another process.

        Such a copy refuses to begin the effect, because it could outlive the call. A context that
        `dataclasses.replace` made is no such copy: it begins the effect of the running call.
        """
        return _copied_context, tuple(getattr(self, each.name) for each in fields(self))

    def _find_effect_start(self) -> EffectStart | None:
        """Return the EffectStart of this context or else of the running call, None without one."""
        # The slot is empty in a context that `dataclasses.replace` or a test made.
        own: EffectStart | None = getattr(self, "_effect_start", None)
        return own or call_context().effect


def _copied_context(*values: Any) -> ToolContext:
    """Return a context with these values that refuses to begin the effect."""

    async def refuse() -> None:
        raise RuntimeError(
            "a copy of a ToolContext cannot begin the effect: use the one that the tool was given"
        )

    return ToolContext(*values).set_effect_start(EffectStart(refuse))


def context_parameters(function: Callable[..., Any] | None) -> tuple[str, ...]:
    """Return the names of a function's parameters that are annotated with ToolContext."""
    if function is None:
        return ()
    try:
        names = inspect.signature(function).parameters
        hints = _hints(function)
    except (ValueError, TypeError):
        # Some built-ins have no signature.
        return ()
    return tuple(name for name in names if is_context(hints.get(name)))


def is_context(hint: Any) -> bool:
    """Return whether an annotation is ToolContext, alone or with None, also inside `Annotated`."""
    if typing.get_origin(hint) is typing.Annotated:
        hint = typing.get_args(hint)[0]
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return ToolContext in typing.get_args(hint)
    return hint is ToolContext


def context_arguments(
    function: Callable[..., Any], context: Callable[[], ToolContext]
) -> Mapping[str, ToolContext]:
    """Return the arguments for a function's parameters of type ToolContext; {} if it has none.

    `context` returns the context, and is only called if there is such a parameter.
    """
    names = context_parameters(function)
    if not names:
        return {}
    return dict.fromkeys(names, context())


def innermost_function(function: Any) -> Any:
    """Return the function behind decorators and partials, or the `__call__` of an instance.

    It has the annotations that the author wrote, and the module in which they are resolved.
    """
    target = inspect.unwrap(function)
    # Not `hasattr(target, "func")`: other objects may have any attribute, as a Mock does.
    while isinstance(target, functools.partial):
        target = inspect.unwrap(target.func)

    # The annotations of a class are those of its attributes, and those of a call are wanted.
    is_class = isinstance(target, type)
    # An instance has no annotations: its parameters are those of `__call__`.
    is_instance = not hasattr(target, "__annotations__")
    if is_class or is_instance:
        target = getattr(type(target), "__call__", target)  # noqa: B004  # the method itself is wanted
    return target


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of a function that may be ToolContext, by the parameter's name.

    `typing.get_type_hints` would evaluate all annotations. Some use names that only type checkers
    know, and it would fail.
    """
    target = innermost_function(function)
    names = {**getattr(target, "__globals__", {})}
    names.setdefault("ToolContext", ToolContext)
    annotations = getattr(target, "__annotations__", None) or {}
    hints: dict[str, Any] = {}
    for name, annotation in annotations.items():
        if not isinstance(annotation, str):
            hints[name] = annotation
        elif "ToolContext" in annotation:
            # An annotation that cannot be evaluated is not ToolContext.
            with contextlib.suppress(Exception):
                # It is the author's code, and `typing` evaluates annotations in the same way.
                hints[name] = eval(annotation, names)  # noqa: S307
    return hints
