"""AgentUsage counts tokens and cost; AgentAnalytics counts tool calls (seed)."""

from __future__ import annotations

import csv
import json
import threading
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from sayso.agent.messages import NO_USAGE, UsageStats

#: How many tool names are counted separately, as a model may invent any name; calls of others count as OTHER_TOOLS.
MAX_TOOLS, OTHER_TOOLS = 1000, "(other)"
#: How many model calls `AgentUsage.iterations` keeps.
MAX_ITERATIONS = 1000


@dataclass(frozen=True, slots=True)
class ToolMetrics:
    """The counts of one tool. Durations are in seconds."""

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
        """The share of successful calls, from 0 to 1; 0 without a call."""
        return self.successful_calls / self.total_calls if self.total_calls else 0.0

    @property
    def failure_rate(self) -> float:
        """The share of failed calls, from 0 to 1; 0 without a call."""
        return self.failed_calls / self.total_calls if self.total_calls else 0.0

    @property
    def avg_duration(self) -> float:
        """The mean duration of a call; 0 without a call."""
        return self.total_duration / self.total_calls if self.total_calls else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the counts, rates and durations as plain data."""
        return {name: getattr(self, name) for name in METRICS_COLUMNS}


#: The columns of the CSV file and the keys of `ToolMetrics.to_dict`, in this order.
METRICS_COLUMNS = (*(part.name for part in fields(ToolMetrics)), "success_rate", "failure_rate", "avg_duration")


class AgentAnalytics:
    """Counts tool calls since it was created or reset. Thread-safe.

    Arguments may be personal data, so only whether a call had any is counted.
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
        """Count one call, which took `duration` seconds."""
        with self._lock:
            name = tool_name if tool_name in self._tools or len(self._tools) < MAX_TOOLS else OTHER_TOOLS
            metrics = self._tools.get(name) or ToolMetrics(name)
            self._tools[name] = replace(
                metrics,
                total_calls=metrics.total_calls + 1,
                successful_calls=metrics.successful_calls + success,
                failed_calls=metrics.failed_calls + (not success),
                total_duration=metrics.total_duration + duration,
                longest_duration=max(metrics.longest_duration, duration),
                total_chunks=metrics.total_chunks + chunk_count,
                calls_with_parameters=metrics.calls_with_parameters + bool(params),
            )

    def get_metrics(self, tool_name: str) -> ToolMetrics | None:
        """Return the counts of a tool, or None if it was never called."""
        return self._tools.get(tool_name)

    def get_all_metrics(self) -> dict[str, ToolMetrics]:
        """Return the counts of all tools by name."""
        with self._lock:
            return dict(self._tools)

    def summary(self) -> str:
        """Return one line of text for each tool, most calls first."""
        tools = sorted(self.get_all_metrics().values(), key=lambda tool: (-tool.total_calls, tool.name))
        if not tools:
            return "No tool was called."
        return "\n".join(
            f"{tool.name}: {tool.total_calls} calls, {tool.success_rate:.0%} succeeded, {tool.avg_duration:.3f} s each"
            for tool in tools
        )

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return the counts of each tool as plain data, by name."""
        return {name: tool.to_dict() for name, tool in self.get_all_metrics().items()}

    def to_json(self, path: str | Path) -> None:
        """Write the counts to a JSON file. Raise OSError."""
        Path(path).write_text(json.dumps(self.to_dict(), indent=2), encoding="utf-8")

    def to_csv(self, path: str | Path) -> None:
        """Write the counts to a CSV file with one row for each tool. Raise OSError."""
        with Path(path).open("w", newline="", encoding="utf-8") as file:
            rows = csv.DictWriter(file, METRICS_COLUMNS)
            rows.writeheader()
            rows.writerows(self.to_dict().values())

    def reset(self) -> None:
        """Set all counts to zero."""
        with self._lock:
            self._tools.clear()


class AgentUsage:
    """Tokens and cost since it was created or reset. Thread-safe. `iterations` keeps the latest model calls only."""

    def __init__(self, *, max_iterations: int = MAX_ITERATIONS) -> None:
        self._lock = threading.Lock()
        self._iterations: deque[UsageStats] = deque(maxlen=max_iterations)
        self._tools: Counter[str] = Counter()
        self.reset()

    def reset(self) -> None:
        """Set all totals to zero."""
        with self._lock:
            self._total, self._calls, self._cut_off = NO_USAGE, 0, 0
            self._iterations.clear()
            self._tools.clear()

    def add_usage(self, stats: UsageStats, tool_name: str | None = None) -> None:
        """Count a model call, and the tool that its answer called, if any."""
        with self._lock:
            self._total += stats
            self._calls += 1
            self._iterations.append(stats)
        if tool_name:
            self.count_tool(tool_name)

    def count_tool(self, tool_name: str) -> None:
        """Count a tool call by a model, whether or not the tool exists."""
        with self._lock:
            is_known = tool_name in self._tools or len(self._tools) < MAX_TOOLS
            self._tools[tool_name if is_known else OTHER_TOOLS] += 1

    def count_cut_off(self) -> None:
        """Count an answer that reached its length limit."""
        with self._lock:
            self._cut_off += 1

    @property
    def cut_off_answers(self) -> int:
        """The number of answers that reached their length limit."""
        return self._cut_off

    @property
    def total_cost_usd(self) -> float:
        """The cost of all model calls in dollars."""
        return self._total.cost_usd

    @property
    def total_tokens(self) -> int:
        """The tokens of all prompts and answers."""
        return self._total.total_tokens

    @property
    def total_prompt_tokens(self) -> int:
        """The tokens of all prompts."""
        return self._total.prompt_tokens

    @property
    def total_completion_tokens(self) -> int:
        """The tokens of all answers."""
        return self._total.completion_tokens

    @property
    def iterations(self) -> list[UsageStats]:
        """The usage of the latest model calls, oldest first."""
        with self._lock:
            return list(self._iterations)

    @property
    def tool_usage(self) -> dict[str, int]:
        """The number of calls of each tool."""
        with self._lock:
            return dict(self._tools)

    def to_dict(self) -> dict[str, Any]:
        """Return all totals of one moment as plain data; `iterations` is the number of model calls."""
        with self._lock:
            return {
                "total_prompt_tokens": self._total.prompt_tokens,
                "total_completion_tokens": self._total.completion_tokens,
                "total_tokens": self._total.total_tokens,
                "total_cost_usd": self._total.cost_usd,
                "iterations": self._calls,
                "tool_usage": dict(self._tools),
            }

    def __str__(self) -> str:
        totals = self.to_dict()
        lines = [
            f"Tokens: {totals['total_tokens']:,} "
            f"({totals['total_prompt_tokens']:,} prompt, {totals['total_completion_tokens']:,} completion)",
            f"Cost: ${totals['total_cost_usd']:.6f}",
            f"Model calls: {totals['iterations']:,}",
        ]
        if totals["tool_usage"]:
            tools = (f"  {name}: {count}" for name, count in sorted(totals["tool_usage"].items()))
            lines += ["Tools:", *tools]
        return "\n".join(lines)
