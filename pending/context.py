"""ToolContext: what a tool can learn about the person and the conversation it works for, and CallContext behind it."""

from __future__ import annotations

import inspect
import logging
import types
import typing
from collections.abc import Callable, Mapping
from contextvars import ContextVar, Token
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

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
    """The yes that an action runs by: id and preview of the action, who confirmed it, and when, in Unix seconds."""

    action_id: str
    preview: str
    by: str
    at: float


@dataclass(frozen=True, slots=True)
class ToolContext:
    """The person, the conversation and the yes of a call. Sayso fills parameters with this type; models never see them.

    `channel` is the channel's name in the YAML, `conversation` its address there, `language` a BCP 47 tag. Outside a
    conversation `person` is None and the texts are "". `confirmed` is None unless the call runs by a person's yes.
    """

    person: Person | None = None
    channel: str = ""
    conversation: str = ""
    language: str = ""
    confirmed: Confirmation | None = None


class CallContext(NamedTuple):
    """What the code that runs now belongs to and may use, in one context variable. Tasks and threads inherit it.

    A named tuple, because its `_replace` takes a third of the time of `dataclasses.replace`, and each call of a tool
    replaces several fields.
    """

    run: ChannelRun | None = None
    #: Where proposals are collected, besides in their run.
    proposals: list[ProposedAction] | None = None
    #: The position of the running call in its model answer: calls may run at once, but a plan keeps their order.
    position: int = 0
    #: The key of the effect that runs now, for services that support idempotency; "" without one.
    idempotency_key: str = ""
    #: The ToolEnvironment of the agent package: what tools hand over and can look up. None where no agent runs.
    environment: Any = None
    #: What names the turn in log lines: conversation and number of the turn. Empty outside a turn.
    log_fields: Mapping[str, Any] = types.MappingProxyType({})


_OUTSIDE = CallContext()
_context: ContextVar[CallContext] = ContextVar("sayso_call_context", default=_OUTSIDE)


def call_context() -> CallContext:
    """Return the context of the code that runs now."""
    return _context.get()


def add_log_fields(record: logging.LogRecord) -> bool:
    """Add the conversation and the number of the turn to a log record of a turn: a filter for log handlers."""
    for name, value in _context.get().log_fields.items():
        vars(record).setdefault(name, value)
    return True


class context_field(Generic[T]):  # noqa: N801  # used like a function
    """Set one field of the CallContext, or several, for a block: `with context_field("run", run):`.

    Not a `contextmanager`, which takes four times as long.
    """

    __slots__ = ("_changes", "_token", "_value")
    _token: Token[CallContext]

    def __init__(self, field: str, value: T, **others: Any) -> None:
        self._value = value
        self._changes: dict[str, Any] = {field: value, **others}

    def __enter__(self) -> T:
        self._token = _context.set(_context.get()._replace(**self._changes))
        return self._value

    def __exit__(self, *_: object) -> None:
        _context.reset(self._token)


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


def own_function(function: Any) -> Any:
    """Return the function behind decorators and partials; for a callable instance, its `__call__`."""
    target = inspect.unwrap(function)
    while hasattr(target, "func"):  # a partial
        target = inspect.unwrap(target.func)
    if not hasattr(target, "__annotations__") or isinstance(target, type):
        target = getattr(type(target), "__call__", target)  # noqa: B004  # the method itself is wanted
    return target


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Resolve the annotations that may name ToolContext. Others may use names that only type checkers know."""
    target = own_function(function)
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
