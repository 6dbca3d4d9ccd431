"""Schemas: what a model is shown of the tools, without those that cannot say now what they take."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from sayso.agent.tools.errors import ToolError
from sayso.agent.tools.tool import Tool
from sayso.workers.offload import in_thread

log = logging.getLogger(__name__)


class Schemas:
    """Reads tools for one agent. One that fails is left out, with one warning until it works again: a turn that has no
    need of it is answered.
    """

    def __init__(self) -> None:
        self._failing: set[str] = set()

    async def of(self, tools: Iterable[Tool]) -> list[dict[str, Any]]:
        """Return the schemas of the tools that work. An injector is asked in a thread: it may block."""
        return [schema for tool in tools if (schema := await self._of(tool)) is not None]

    async def _of(self, tool: Tool) -> dict[str, Any] | None:
        try:
            schema = tool.schema() if tool.knows_its_schema else await in_thread(tool.schema)
        except ToolError as exc:
            if tool.name not in self._failing:
                log.warning("tool.left_out", extra={"tool": tool.name, "why": str(exc)})
            self._failing.add(tool.name)
            return None
        self._failing.discard(tool.name)
        return schema
