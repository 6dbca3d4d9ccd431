"""McpToolProvider: the tools of one MCP server."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sayso.agent.tools.definition import ToolMetadata, ToolTag
from sayso.agent.tools.errors import ToolValidationError
from sayso.agent.tools.results import ToolOutcome
from sayso.agent.tools.tool import Tool
from sayso.agent.toolsets.base import (
    MAX_TOOLS,
    AnswerLost,
    CallRefused,
    SourceUnreachable,
    ToolFilter,
    UnclearOutcome,
    UnusableSchema,
    bounded_description,
    digest,
    legal_names,
    safe_schema,
    scrub,
    scrub_value,
)
from sayso.agent.toolsets.mcp_connection import McpServer, ReconnectingConnection
from sayso.agent.toolsets.mcp_results import error_text, value_of
from sayso.pending.concurrency import call_in_thread

if TYPE_CHECKING:
    from mcp.types import Tool as Definition

log = logging.getLogger(__name__)
#: Time limit to start a server and list its tools, in seconds. Some are downloaded at their first start.
CONNECT_SECONDS = 20.0
#: Time limit of one call, in seconds.
CALL_SECONDS = 60.0


class McpToolProvider:
    """Lists and calls the tools of one MCP server: a program (`command`, `args`, `env`, `cwd`) or a URL with `headers`.

    Lives as long as the process. The connection is made at the first call, by each process for itself, and again after
    it broke. May be called from any thread and any event loop. A program inherits no environment but HOME, LOGNAME,
    PATH, SHELL, TERM, USER and `env`. `include` and `exclude` are patterns over the server's names.

    A server's annotations become hints (MCP specification, ToolAnnotations). For a server that you do not trust, the
    policy must say which tools need a confirmation, whatever the server says of itself.
    """

    def __init__(
        self,
        command: str = "",
        args: Sequence[str] = (),
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        url: str = "",
        headers: Mapping[str, str] | None = None,
        name: str = "",
        include: Sequence[str] | None = None,
        exclude: Sequence[str] = (),
        connect_seconds: float = CONNECT_SECONDS,
        call_seconds: float = CALL_SECONDS,
    ) -> None:
        if bool(command) == bool(url):
            raise ValueError("an MCP server is a command or a url: give one of them")
        self.name = name or (Path(command).name if command else urlsplit(url).hostname or "server")
        command_line = (command, *args) if command else ()
        self._server = McpServer(self.name, command_line, env or {}, cwd, url, headers or {})
        self._connection = ReconnectingConnection(
            self._server, connect_seconds=connect_seconds, call_seconds=call_seconds
        )
        self._filter = ToolFilter(include, exclude)
        self._own_names: dict[str, str] = {}

    async def list_tools(self) -> list[Tool]:
        """Return the server's tools under names that every vendor accepts. Raises SourceUnreachable."""
        definitions = self._selected(await self._connection.definitions())
        names = legal_names(list(definitions))
        self._own_names = {name: own for own, name in names.items()}
        # In a thread: a server's schemas may take long to process.
        return await call_in_thread(
            lambda: [tool for own, name in names.items() for tool in self._tools(definitions[own], name)]
        )

    async def execute_tool(self, tool_name: str, parameters: dict[str, Any]) -> ToolOutcome:
        """Call a tool. Its files are sent to the user as artifacts; an error says whether the call took effect."""
        own = self.own_name(tool_name)
        try:
            result = await self._connection.call(own, parameters)
        except SourceUnreachable as exc:
            return _failed(f"{exc}; {own!r} was not called")
        except AnswerLost as exc:
            error = f"{exc}: whether {own!r} took effect is not known, so look before it is called again"
            return UnclearOutcome(success=False, error=error)
        except CallRefused as exc:
            return _failed(f"{self._server} refused {own!r}: {exc}")
        if result.is_error:
            return _failed(f"{own!r} of {self._server} failed: {error_text(result, self._server.secrets)}")
        return ToolOutcome(success=True, result=scrub_value(value_of(result), self._server.secrets))

    def own_name(self, tool_name: str) -> str:
        """Return the server's own name of a tool that was listed under this name."""
        return self._own_names.get(tool_name, tool_name)

    def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever the tools should be listed again, on the connection's thread."""
        self._connection.changed = changed

    def close(self) -> None:
        """Close the connection; a program is ended. The next call connects again."""
        self._connection.close()

    def _selected(self, definitions: list[Definition]) -> dict[str, Definition]:
        """Return the definitions by name: the first of each name, and at most MAX_TOOLS."""
        selected: dict[str, Definition] = {}
        for definition in definitions:
            if self._filter.accepts(definition.name):
                selected.setdefault(definition.name, definition)
        if len(selected) > MAX_TOOLS:
            log.warning("mcp.too_many_tools", extra={"server": self.name, "tools": len(selected), "taken": MAX_TOOLS})
        return dict(list(selected.items())[:MAX_TOOLS])

    def _tools(self, definition: Definition, name: str) -> Iterator[Tool]:
        """Yield the definition as a tool. One that is unusable is logged and left out; the others are still offered."""
        try:
            yield Tool(
                name,
                bounded_description(scrub(definition.description or "", self._server.secrets), definition.name),
                safe_schema(definition.input_schema),
                screen_output=True,
                version=digest(definition.model_dump(mode="json", by_alias=True, exclude_none=True)),
                metadata=replace(_metadata(definition), source_detail=self.name),
                read_only=_is_read_only(definition),
                idempotent=bool(definition.annotations and definition.annotations.idempotent_hint),
            )
        except (UnusableSchema, ToolValidationError) as exc:
            log.warning("mcp.tool_left_out", extra={"server": self.name, "tool": name, "why": str(exc)})


def _metadata(definition: Definition) -> ToolMetadata:
    """Return the server's hints, with the specification's defaults: a tool not declared harmless is destructive."""
    hints, tags = definition.annotations, set()
    if _is_read_only(definition):
        tags.add(ToolTag.READ_ONLY)
    elif hints is None or hints.destructive_hint is not False:
        tags.add(ToolTag.DESTRUCTIVE)
    if hints is None or hints.open_world_hint is not False:
        tags.add(ToolTag.NETWORK)
    return ToolMetadata(tags=frozenset(tags), source="mcp")


def _is_read_only(definition: Definition) -> bool:
    return bool(definition.annotations and definition.annotations.read_only_hint)


def _failed(error: str) -> ToolOutcome:
    return ToolOutcome(success=False, error=error)
