"""McpToolProvider: the tools of an MCP server."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sayso.agent.sources.errors import AnswerLost, CallRefused, SourceUnreachable, scrub, scrub_value
from sayso.agent.sources.mcp_link import McpLink
from sayso.agent.sources.mcp_result import complaint, value_of
from sayso.agent.sources.mcp_server import McpServer
from sayso.agent.sources.names import MAX_TOOLS, Choice, described, digest, legal_names
from sayso.agent.sources.protocol import UnclearOutcome
from sayso.agent.sources.schemas import UnusableSchema, outside_schema
from sayso.agent.tools.errors import ToolValidationError
from sayso.agent.tools.metadata import ToolMetadata, ToolTag
from sayso.agent.tools.outcome import ToolOutcome
from sayso.agent.tools.tool import Tool
from sayso.workers.offload import offload

if TYPE_CHECKING:
    from mcp.types import Tool as Definition

log = logging.getLogger(__name__)

#: Seconds to start a server and list its tools. Some are downloaded at their first start.
CONNECT_SECONDS = 20.0
#: Seconds one call may take.
CALL_SECONDS = 60.0


class McpToolProvider:
    """Lists and calls the tools of one MCP server: a program (`command`, `args`, `env`, `cwd`) or a URL with `headers`.

    Lives as long as the program; the connection is made at the first call, by each process for itself, and again after
    it broke. May be called from any thread and any event loop. A program inherits no environment but HOME, LOGNAME,
    PATH, SHELL, TERM, USER and what `env` says. `include` and `exclude` are patterns over the server's names.

    Annotations of tools become hints (MCP specification, ToolAnnotations): who does not trust a server says in the
    policy what asks first, and does not rest on what the server says of itself.
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
        whole = (command, *args) if command else ()
        self._server = McpServer(self.name, whole, env or {}, cwd, url, headers or {})
        self._link = McpLink(self._server, connect_seconds=connect_seconds, call_seconds=call_seconds)
        self._choice = Choice(include, exclude)
        self._own_names: dict[str, str] = {}

    async def list_tools(self) -> list[Tool]:
        """The server's tools under names that every vendor accepts. Raises SourceUnreachable."""
        chosen = self._chosen(await self._link.definitions())
        legal = legal_names(list(chosen))
        self._own_names = {name: own for own, name in legal.items()}
        # Not on the loop: the schemas of others may take long to look at.
        return await offload(lambda: [tool for own, name in legal.items() for tool in self._tool(chosen[own], name)])

    async def execute_tool(self, tool_name: str, parameters: dict[str, Any]) -> ToolOutcome:
        """Call a tool. Files it answers with are handed to the user as artifacts; errors say whether it took effect."""
        own = self.own_name(tool_name)
        try:
            result = await self._link.call(own, parameters)
        except SourceUnreachable as exc:
            return _failed(f"{exc}; {own!r} was not called")
        except AnswerLost as exc:
            error = f"{exc}: whether {own!r} took effect is not known, so look before it is called again"
            return UnclearOutcome(success=False, error=error)
        except CallRefused as exc:
            return _failed(f"{self._server} refused {own!r}: {exc}")
        if result.is_error:
            return _failed(f"{own!r} of {self._server} failed: {complaint(result, self._server.secrets)}")
        return ToolOutcome(success=True, result=scrub_value(value_of(result), self._server.secrets))

    def own_name(self, tool_name: str) -> str:
        """What the server calls a tool that was listed under this name."""
        return self._own_names.get(tool_name, tool_name)

    def watch(self, changed: Callable[[], None]) -> None:
        """Call this, on a thread of our own, whenever the tools should be listed again."""
        self._link.changed = changed

    def close(self) -> None:
        """Leave the server; a program is ended. The next call connects again."""
        self._link.close()

    def _chosen(self, definitions: list[Definition]) -> dict[str, Definition]:
        """By name; of two with one name the first, of too many the first ones."""
        chosen: dict[str, Definition] = {}
        for definition in definitions:
            if self._choice.takes(definition.name):
                chosen.setdefault(definition.name, definition)
        if len(chosen) > MAX_TOOLS:
            log.warning("mcp.too_many_tools", extra={"server": self.name, "tools": len(chosen), "taken": MAX_TOOLS})
        return dict(list(chosen.items())[:MAX_TOOLS])

    def _tool(self, definition: Definition, name: str) -> Iterator[Tool]:
        """The definition as a tool; nothing for one that cannot be: the others go on."""
        try:
            yield Tool(
                name,
                described(scrub(definition.description or "", self._server.secrets), definition.name),
                outside_schema(definition.input_schema),
                screen_output=True,
                version=digest(definition.model_dump(mode="json", by_alias=True, exclude_none=True)),
                metadata=replace(_metadata(definition), source_detail=self.name),
                read_only=_is_read_only(definition),
                idempotent=bool(definition.annotations and definition.annotations.idempotent_hint),
            )
        except (UnusableSchema, ToolValidationError) as exc:
            log.warning("mcp.tool_left_out", extra={"server": self.name, "tool": name, "why": str(exc)})


def _metadata(definition: Definition) -> ToolMetadata:
    """Hints of the server, with the specification's defaults: what does not call itself harmless is destructive."""
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
