"""Undo: what takes back a tool's effect, called with the tool's own arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from sayso.agent.tools.errors import ToolValidationError
from sayso.pending.context import context_parameters, with_context
from sayso.pending.proposals import current_context
from sayso.workers.offload import in_thread

#: Takes any of the tool's arguments by name, and `result`, the text that the tool returned; sync or async.
Undo = Callable[..., Any]

#: For how many seconds an effect can be undone, unless the tool says otherwise.
UNDO_SECONDS = 300.0


def check_undo(tool_name: str, undo: Undo | None, names: Collection[str]) -> None:
    """Refuse an undo that asks for something nobody can give it."""
    if undo is None:
        return
    known_names = {*names, *context_parameters(undo)}
    unknown = sorted(
        name for name, param in _parameters(undo).items() if name not in known_names and _must_be_given(param)
    )
    if unknown:
        known = sorted({*names, "result"})
        raise ToolValidationError(f"undo of {tool_name!r} needs unknown {unknown!r}; it may take {known!r}")


async def call_undo(undo: Undo, given: Mapping[str, Any]) -> Any:
    """Call it with as much of what is given as it takes."""
    parameters = _parameters(undo)
    kwargs = {name: value for name, value in given.items() if name in parameters}
    kwargs |= with_context(undo, current_context)
    if inspect.iscoroutinefunction(undo):
        return await undo(**kwargs)
    result = await in_thread(lambda: undo(**kwargs))
    return await result if inspect.isawaitable(result) else result


def _parameters(undo: Undo) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(undo).parameters


def _must_be_given(param: inspect.Parameter) -> bool:
    variadic = param.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return param.name != "result" and param.default is inspect.Parameter.empty and not variadic
