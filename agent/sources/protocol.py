"""ToolProviderProtocol: the port behind which tools are listed and run elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from sayso.agent.sources.confirming import Confirm, asking, idle
from sayso.agent.sources.names import legal_names
from sayso.agent.tools.errors import EffectUnknownError, ToolExecutionError
from sayso.agent.tools.outcome import ToolOutcome
from sayso.agent.tools.tool import Tool

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class UnclearOutcome(ToolOutcome):
    """The outcome of a call that was made and never answered: it may have taken effect."""


@runtime_checkable
class ToolProviderProtocol(Protocol):
    """Provides and executes tools (seed). Its methods may be called from any event loop."""

    async def list_tools(self) -> list[Tool]:
        """The definitions of all tools. Raises ToolError when the provider cannot be asked."""
        ...

    async def execute_tool(self, tool_name: str, parameters: dict[str, Any]) -> ToolOutcome:
        """Run one tool. What its provider knows to have failed is an outcome, never an exception."""
        ...


def provided(
    provider: ToolProviderProtocol, tools: Iterable[Tool], namespace: str = "", confirm: Confirm = "hints"
) -> list[Tool]:
    """The listed definitions as tools that can be run: each calls `provider.execute_tool` by its listed name.

    `namespace` goes before every name, as in `files-read`; `confirm` says which ask first. A provider whose source
    calls its tools otherwise than it lists them has a method `own_name`, from the listed name to the source's own.
    """
    listed = list(tools)
    names = legal_names([tool.name for tool in listed], namespace)
    own_name: Callable[[str], str] = getattr(provider, "own_name", lambda name: name)
    own = {tool.name: own_name(tool.name) for tool in listed}
    if unused := idle(confirm, [*own.values(), *names.values()]):
        log.warning("source.confirm_matches_nothing", extra={"source": _name(provider), "patterns": unused})
    return [
        asking(
            called(replace(tool, function=_calls(provider, tool)), names[tool.name], namespace), own[tool.name], confirm
        )
        for tool in listed
    ]


def called(tool: Tool, name: str, namespace: str) -> Tool:
    """The tool by its name here, in front of which the namespace stands as its operator wrote it."""
    if not namespace:
        return replace(tool, name=name)
    return replace(tool, name=name, namespace=namespace, method_name=name.removeprefix(f"{namespace}-"))


def _name(provider: ToolProviderProtocol) -> str:
    return str(getattr(provider, "name", "")) or type(provider).__name__


def _calls(provider: ToolProviderProtocol, tool: Tool) -> Callable[..., Coroutine[Any, Any, Any]]:
    #: None is how these are not given; their schemas have no null.
    unset = {each.name for each in tool.parameters if not each.required and each.default is None}
    omissible = unset if tool.input_schema is None else set()

    async def call(**parameters: Any) -> Any:
        given = {name: value for name, value in parameters.items() if value is not None or name not in omissible}
        outcome = await provider.execute_tool(tool.name, given)
        if not outcome.success:
            kind = EffectUnknownError if isinstance(outcome, UnclearOutcome) else ToolExecutionError
            raise kind(outcome.error or f"{tool.name!r} failed without saying why", tool_name=tool.name)
        return outcome.result

    return call
