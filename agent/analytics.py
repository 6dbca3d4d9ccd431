"""AgentAnalytics: how often each tool of an agent is called, fails, and how long it takes (seed: enable_analytics)."""

from __future__ import annotations

import csv
import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

#: Tools that are told apart, and what those beyond are counted as: a model may think of any name.
MOST_TOOLS, OTHER_TOOLS = 1000, "(other)"


@dataclass(frozen=True, slots=True)
class ToolMetrics:
    """One tool's figures; durations are in seconds."""

    name: str
    total_calls: int = 0
    successful_calls: int = 0
    failed_calls: int = 0
    total_duration: float = 0.0
    longest_duration: float = 0.0
    total_chunks: int = 0
    calls_with_parameters: int = 0

    @property
    def success_rate(self) -> float:
        """From 0 to 1; 0 without a call."""
        return self.successful_calls / self.total_calls if self.total_calls else 0.0

    @property
    def failure_rate(self) -> float:
        """From 0 to 1; 0 without a call."""
        return self.failed_calls / self.total_calls if self.total_calls else 0.0

    @property
    def avg_duration(self) -> float:
        """Of a call; 0 without one."""
        return self.total_duration / self.total_calls if self.total_calls else 0.0

    def to_dict(self) -> dict[str, Any]:
        """The figures as plain data."""
        return {name: getattr(self, name) for name in COLUMNS}


#: What is told of a tool, in this order.
COLUMNS = (*(part.name for part in fields(ToolMetrics)), "success_rate", "failure_rate", "avg_duration")


class AgentAnalytics:
    """Counts calls since it was made, or reset. Threads may use it at once.

    What a tool was called with is somebody's: of `params` it keeps only whether there were any.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tools: dict[str, ToolMetrics] = {}

    def record_tool_call(
        self,
        tool_name: str,
        success: bool,
        duration: float,
        params: Mapping[str, Any] | None = None,
        chunk_count: int = 0,
    ) -> None:
        """Count a call that took `duration` seconds."""
        with self._lock:
            name = tool_name if tool_name in self._tools or len(self._tools) < MOST_TOOLS else OTHER_TOOLS
            so_far = self._tools.get(name) or ToolMetrics(name)
            self._tools[name] = replace(
                so_far,
                total_calls=so_far.total_calls + 1,
                successful_calls=so_far.successful_calls + success,
                failed_calls=so_far.failed_calls + (not success),
                total_duration=so_far.total_duration + duration,
                longest_duration=max(so_far.longest_duration, duration),
                total_chunks=so_far.total_chunks + chunk_count,
                calls_with_parameters=so_far.calls_with_parameters + bool(params),
            )

    def get_metrics(self, tool_name: str) -> ToolMetrics | None:
        """A tool's figures; None where it was never called."""
        return self._tools.get(tool_name)

    def get_all_metrics(self) -> dict[str, ToolMetrics]:
        """Those of all tools, by name, as they are now."""
        with self._lock:
            return dict(self._tools)

    def summary(self) -> str:
        """A line for each tool, the one called most first."""
        tools = sorted(self.get_all_metrics().values(), key=lambda tool: (-tool.total_calls, tool.name))
        if not tools:
            return "No tool was called."
        return "\n".join(
            f"{tool.name}: {tool.total_calls} calls, {tool.success_rate:.0%} succeeded, {tool.avg_duration:.3f} s each"
            for tool in tools
        )

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """The figures of each tool as plain data, by name."""
        return {name: tool.to_dict() for name, tool in self.get_all_metrics().items()}

    def to_json(self, path: str | Path) -> None:
        """Write them to a file. Raises OSError."""
        Path(path).write_text(json.dumps(self.to_dict(), indent=2), encoding="utf-8")

    def to_csv(self, path: str | Path) -> None:
        """Write a row for each tool. Raises OSError."""
        with Path(path).open("w", newline="", encoding="utf-8") as file:
            rows = csv.DictWriter(file, COLUMNS)
            rows.writeheader()
            rows.writerows(self.to_dict().values())

    def reset(self) -> None:
        """Count from nothing."""
        with self._lock:
            self._tools.clear()
