"""The `tool` decorator: makes a Tool of a function, from its signature and docstring."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, overload

from agent.tools.preview import Preview
from agent.tools.schema import describe, infer_parameters
from agent.tools.tool import Tool
from agent.tools.undo import UNDO_SECONDS, Undo
from pending.executors import Reconciler


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    param_metadata: Mapping[str, Mapping[str, Any]] | None = None,
    streaming: bool = False,
    screen_output: bool = False,
    terminal: bool = False,
    requires_approval: bool = False,
    config_injector: Callable[[], Mapping[str, Any] | None] | None = None,
    injected_kwargs: Mapping[str, Any] | None = None,
    idempotent: bool = False,
    preview: Preview | None = None,
    undo: Undo | None = None,
    undo_seconds: float = UNDO_SECONDS,
    reconcile: Reconciler | None = None,
    typed_code: bool = False,
    version: str = "",
    read_only: bool = False,
) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(function: Callable[..., Any] | None = None, /, **options: Any) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a Tool of a function; works bare and with options, see `Tool` for what they mean."""
    if function is not None:
        return make_tool(function)
    return lambda decorated: make_tool(decorated, **options)


def make_tool(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    description: str | None = None,
    param_metadata: Mapping[str, Mapping[str, Any]] | None = None,
    injected_kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> Tool:
    """The Tool of a function; what is not given comes from its signature and docstring."""
    documented, described = describe(function)
    injected = injected_kwargs or {}
    return Tool(
        name=name or function.__name__,
        description=description or documented,
        parameters=infer_parameters(function, param_metadata or {}, described, injected),
        function=function,
        injected_kwargs=injected,
        **options,
    )
