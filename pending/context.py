"""ToolContext: what a tool can learn about the person and the conversation it works for,
and CallContext behind it.
"""

from __future__ import annotations

import functools
import inspect
import logging
import types
import typing
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from sayso.pending.effect import EffectBlock, EffectStart, begin_effect

if TYPE_CHECKING:
    from sayso.pending.proposals import ChannelRun, ProposedAction  # which imports this module

T = TypeVar("T")


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
    """The yes that an action runs by: id and preview of the action, who confirmed it, and when,
    in Unix seconds.
    """

    action_id: str
    preview: str
    by: str
    at: float


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

    `channel` is the channel's name in the YAML, `conversation` its address there, `language` a BCP
    47 tag. Outside a conversation `person` is None and the texts are "". `confirmed` is None unless
    the call runs by a person's yes.
    """

    person: Person | None = None
    channel: str = ""
    conversation: str = ""
    language: str = ""
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


@dataclass
class CallContext:
    """What the code that runs now belongs to and may use, in one context variable.

    Tasks and threads inherit it.

    Its fields are set only where the block of an `own_context` begins: afterwards, others share it.
    """

    run: ChannelRun | None = None
    #: Where proposals are collected, besides in their run.
    proposals: list[ProposedAction] | None = None
    #: The position of the running call in its model answer: calls may run at once,
    #: but a plan keeps their order.
    position: int = 0
    #: Where the effect of the call that runs now begins; None if it began with the call.
    effect: EffectStart | None = None
    #: The key of the effect that runs now, for services that support idempotency; "" without one.
    idempotency_key: str = ""
    #: What names the turn in log lines: conversation and number of the turn. Empty outside a turn.
    log_fields: Mapping[str, Any] = field(default_factory=dict)


C = TypeVar("C", bound=CallContext)
_context: ContextVar[CallContext] = ContextVar("sayso_call_context", default=CallContext())  # noqa: B039  # see there


def call_context() -> CallContext:
    """Return the context of the code that runs now."""
    return _context.get()


def add_log_fields(record: logging.LogRecord) -> bool:
    """Add the conversation and the number of the turn to a log record of a turn:
    a filter for log handlers.
    """
    for name, value in _context.get().log_fields.items():
        vars(record).setdefault(name, value)
    return True


class own_context(Generic[C]):  # noqa: N801  # used like a function
    """Give a block a copy of the CallContext to set fields of:
    `with own_context(CallContext) as own: own.run = run`.

    A subclass as `kind` has more fields. Not a `contextmanager`, which takes four times as long.
    """

    __slots__ = ("_kind", "_token")
    _token: Token[CallContext]

    def __init__(self, kind: type[C]) -> None:
        self._kind = kind

    def __enter__(self) -> C:
        outer = _context.get()
        if isinstance(outer, self._kind):
            kind = type(outer)
        else:
            kind = self._kind
        own = kind(**vars(outer))
        self._token = _context.set(own)
        return own

    def __exit__(self, *_: object) -> None:
        _context.reset(self._token)


@contextmanager
def context_field(name: str, value: T, **others: Any) -> Iterator[T]:
    """Set one field of the CallContext, or several, for a block,
    which yields the value of the first.
    """
    with own_context(CallContext) as own:
        for each, given in {name: value, **others}.items():
            setattr(own, each, given)
        yield value


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
