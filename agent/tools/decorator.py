"""The `tool` decorator: makes a Tool of a function, from its signature and docstring."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, overload

from sayso.agent.tools.injection import Injector
from sayso.agent.tools.metadata import ToolMetadata
from sayso.agent.tools.preview import Preview
from sayso.agent.tools.tool import Tool
from sayso.agent.tools.undo import UNDO_SECONDS, Undo
from sayso.pending.executors import Reconciler


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
    config_injector: Injector | None = None,
    injected_kwargs: Mapping[str, Any] | None = None,
    idempotent: bool = False,
    preview: Preview | None = None,
    undo: Undo | None = None,
    undo_seconds: float = UNDO_SECONDS,
    reconcile: Reconciler | None = None,
    typed_code: bool = False,
    version: str = "",
    read_only: bool = False,
    cacheable: bool = False,
    cache_ttl: float = 300,
    namespace: str | None = None,
    method_name: str | None = None,
    metadata: ToolMetadata | None = None,
    proposes: bool | None = None,
) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(function: Callable[..., Any] | None = None, /, **options: Any) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a Tool of a function; works bare and with options, see `Tool` for what they mean."""
    if function is not None:
        return Tool.from_function(function)
    return lambda decorated: Tool.from_function(decorated, **options)
