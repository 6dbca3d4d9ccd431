"""AgentUsage, AgentAnalytics."""

from __future__ import annotations

import csv
import json
import threading
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from sayso.agent.messages import UsageStats

#: Tools that are told apart, and what those beyond are counted as: a model may think of any name.
MAX_TOOLS, OTHER_TOOLS = 1000, "(other)"


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
            name = tool_name if tool_name in self._tools or len(self._tools) < MAX_TOOLS else OTHER_TOOLS
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


#: Questions that are remembered one by one.
MOST_ITERATIONS = 1000


#: Tokens, and dollars, of one question beyond which a number is none: a float holds so many exactly.
MOST = 2**53


_NUMBER = (int, float)


def countable(usage: UsageStats) -> UsageStats:
    """The usage that can be added up: what is below nothing or beyond measure is nothing, and a total is never less
    than its parts. One in which something has not the type that it should have counts nothing. One strange number would
    else spoil every sum that it is in.
    """
    parts = usage.prompt_tokens, usage.completion_tokens, usage.cache_read_tokens, usage.cache_write_tokens
    if not _is_typed(usage):
        return UsageStats()
    are_sound = min(parts) >= 0 and max(parts) <= MOST and 0 <= usage.cost_usd <= MOST
    if are_sound and parts[0] + parts[1] <= usage.total_tokens <= MOST:
        return usage
    prompt, completion, read, written, total = (
        each if 0 <= each <= MOST else 0 for each in (*parts, usage.total_tokens)
    )
    return replace(
        usage,
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=max(total, prompt + completion),
        cost_usd=usage.cost_usd if 0 <= usage.cost_usd <= MOST else 0.0,
        cache_read_tokens=read,
        cache_write_tokens=written,
    )


def _is_typed(usage: UsageStats) -> bool:
    # Written out: each answer is asked.
    prompt, completion, total = type(usage.prompt_tokens), type(usage.completion_tokens), type(usage.total_tokens)
    read, written = type(usage.cache_read_tokens), type(usage.cache_write_tokens)
    counts = prompt is completion is total is read is written is int
    named = isinstance(usage.model, str) and isinstance(usage.provider, str)
    return counts and named and isinstance(usage.cost_usd, _NUMBER)


class AgentUsage:
    """Totals since it was made. Threads may add to it at once; `iterations` are the last questions only."""

    def __init__(self, *, most_iterations: int = MOST_ITERATIONS) -> None:
        self._lock = threading.Lock()
        self._prompt = self._completion = self._tokens = self._questions = 0
        self._cost, self._cut_off = 0.0, 0
        self._iterations: deque[UsageStats] = deque(maxlen=most_iterations)
        self._tools: Counter[str] = Counter()

    def add_usage(self, stats: UsageStats, tool_name: str | None = None) -> None:
        """Count a question to a model, and the tool that its answer called, if any."""
        with self._lock:
            self._prompt += stats.prompt_tokens
            self._completion += stats.completion_tokens
            self._tokens += stats.total_tokens
            self._cost += stats.cost_usd
            self._questions += 1
            self._iterations.append(stats)
        if tool_name:
            self.count_tool(tool_name)

    def count_tool(self, tool_name: str) -> None:
        """Count a call that a model made, of whatever name."""
        with self._lock:
            known = tool_name in self._tools or len(self._tools) < MAX_TOOLS
            self._tools[tool_name if known else OTHER_TOOLS] += 1

    def count_cut_off(self) -> None:
        """Count an answer that ended at its length limit."""
        with self._lock:
            self._cut_off += 1

    def reset(self) -> None:
        """Begin again at nothing."""
        with self._lock:
            self._prompt = self._completion = self._tokens = self._questions = 0
            self._cost, self._cut_off = 0.0, 0
            self._iterations.clear()
            self._tools.clear()

    @property
    def cut_off_answers(self) -> int:
        """Answers that ended at their length limit."""
        return self._cut_off

    @property
    def total_cost_usd(self) -> float:
        """Dollars."""
        return self._cost

    @property
    def total_tokens(self) -> int:
        """Of questions and answers."""
        return self._tokens

    @property
    def total_prompt_tokens(self) -> int:
        """Of questions."""
        return self._prompt

    @property
    def total_completion_tokens(self) -> int:
        """Of answers."""
        return self._completion

    @property
    def iterations(self) -> list[UsageStats]:
        """The last questions, oldest first."""
        with self._lock:
            return list(self._iterations)

    @property
    def tool_usage(self) -> dict[str, int]:
        """How often each tool was called."""
        with self._lock:
            return dict(self._tools)

    def to_dict(self) -> dict[str, Any]:
        """The totals as plain data, all of one moment; `iterations` is how many questions there were."""
        with self._lock:
            return {
                "total_prompt_tokens": self._prompt,
                "total_completion_tokens": self._completion,
                "total_tokens": self._tokens,
                "total_cost_usd": self._cost,
                "iterations": self._questions,
                "tool_usage": dict(self._tools),
            }

    def __str__(self) -> str:
        told = self.to_dict()
        tools = (f"  {name}: {count}" for name, count in sorted(told["tool_usage"].items()))
        return "\n".join(
            (
                f"Tokens: {told['total_tokens']:,} "
                f"({told['total_prompt_tokens']:,} prompt, {told['total_completion_tokens']:,} completion)",
                f"Cost: ${told['total_cost_usd']:.6f}",
                f"Questions to models: {told['iterations']:,}",
                *(("Tools:", *tools) if told["tool_usage"] else ()),
            )
        )
