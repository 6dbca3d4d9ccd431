"""The totals of an agent: AgentUsage counts what its model asks for, AgentAnalytics what tools do.

AgentUsage has the tokens, the cost and the tool calls that the model asked for. AgentAnalytics has
the calls that ran, with their failures and durations. Both live as long as the agent, and count from its creation or the last reset.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sayso.agent.messages import NO_USAGE, UsageStats

#: How many tool names are counted separately. A model may invent any name, so there must be a
#: limit. OTHER_TOOLS may come on top of them.
MAX_TOOLS = 1000
#: The name under which the calls of all further names are counted, also those of real tools.
OTHER_TOOLS = "(other)"


def _counted_name(tool_name: str, counted: Collection[str]) -> str:
    """Return the name under which a call is counted. `counted` are the names counted so far."""
    if tool_name in counted or len(counted) < MAX_TOOLS:
        return tool_name
    return OTHER_TOOLS


@dataclass(frozen=True, slots=True)
class ToolMetrics:
    """The counts of one tool. Durations are in seconds."""

    name: str
    total_calls: int = 0
    successful_calls: int = 0
    failed_calls: int = 0
    total_duration: float = 0.0
    longest_duration: float = 0.0
    #: Pieces of results that the tool sent while it ran.
    total_chunks: int = 0
    #: Calls with at least one argument.
    calls_with_parameters: int = 0

    @property
    def success_rate(self) -> float:
        """The share of successful calls, from 0 to 1; 0 without a call."""
        if self.total_calls:
            return self.successful_calls / self.total_calls
        return 0.0

    @property
    def avg_duration(self) -> float:
        """The mean duration of a call, in seconds; 0 without a call."""
        if self.total_calls:
            return self.total_duration / self.total_calls
        return 0.0


class AgentAnalytics:
    """Counts the tool calls of an agent that ran. Thread-safe.

    Arguments may be personal data, so only the number of calls with arguments is counted.
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
        """Count one call, which took `duration` seconds and sent `chunk_count` chunks.

        `params` are its arguments; None or {} for a call without any. The agent loop counts neither
        a call that was denied nor one that waits for a yes: their tools did not run.
        """
        with self._lock:
            name = _counted_name(tool_name, self._tools)
            metrics = self._tools.get(name) or ToolMetrics(name)
            # In a sum, True is 1 and False is 0.
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
        """Return the counts of a tool, by its name.

        None if it was never called, or first called after MAX_TOOLS others. Such calls are counted
        together under the name OTHER_TOOLS.
        """
        # One look-up in a dict needs no lock.
        return self._tools.get(tool_name)

    def get_all_metrics(self) -> dict[str, ToolMetrics]:
        """Return the counts of all tools by name."""
        with self._lock:
            return dict(self._tools)

    def summary(self) -> str:
        """Return one line of text for each tool, most calls first."""
        tools = sorted(
            self.get_all_metrics().values(), key=lambda tool: (-tool.total_calls, tool.name)
        )
        if not tools:
            return "No tool was called."
        lines = []
        for tool in tools:
            succeeded = f"{_percent(tool.success_rate)}% succeeded"
            duration = f"{tool.avg_duration:.3f} s each"
            lines.append(f"{tool.name}: {tool.total_calls} calls, {succeeded}, {duration}")
        return "\n".join(lines)

    def reset(self) -> None:
        """Set all counts to zero."""
        with self._lock:
            self._tools.clear()


def _percent(rate: float) -> int:
    """Return a rate from 0 to 1 in whole percent. Only 0 and 1 themselves become 0 and 100."""
    if 0 < rate < 1:
        return min(max(round(100 * rate), 1), 99)
    return round(100 * rate)


class AgentUsage:
    """Counts an agent's model calls: their tokens, cost and the tools they call. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Set all totals to zero."""
        with self._lock:
            #: The sum of the usage of all model calls. Only this class writes it.
            self.total = NO_USAGE
            self._calls = 0
            self._tools: Counter[str] = Counter()

    def add_usage(self, stats: UsageStats, tool_name: str | None = None) -> None:
        """Count a model call, and a tool call in its answer.

        `tool_name` is the tool that the answer calls; None if it calls none. An answer may have
        several calls: the agent loop passes None and counts each of them with `count_tool`.
        """
        with self._lock:
            self.total += stats
            self._calls += 1
        if tool_name:
            self.count_tool(tool_name)

    def count_tool(self, tool_name: str) -> None:
        """Count a tool call by a model, whether or not the tool exists."""
        with self._lock:
            self._tools[_counted_name(tool_name, self._tools)] += 1

    @property
    def total_cost_usd(self) -> float:
        """The cost of all model calls in dollars."""
        return self.total.cost_usd

    @property
    def total_tokens(self) -> int:
        """The tokens of all prompts and answers."""
        return self.total.total_tokens

    @property
    def tool_usage(self) -> dict[str, int]:
        """How often the model called each tool."""
        with self._lock:
            return dict(self._tools)

    def __str__(self) -> str:
        with self._lock:
            total = self.total
            calls = self._calls
            tools = sorted(self._tools.items())
        cached_note = ""
        if total.cache_read_tokens:
            cached_note = f", {total.cache_read_tokens:,} of them cached"
        prompt = f"{total.prompt_tokens:,} prompt{cached_note}"
        tokens = f"{prompt}, {total.completion_tokens:,} completion"
        lines = [
            f"Tokens: {total.total_tokens:,} ({tokens})",
            f"Cost: ${total.cost_usd:.6f}",
            f"Model calls: {calls:,}",
        ]
        if tools:
            lines += ["Tools:", *(f"  {name}: {count}" for name, count in tools)]
        return "\n".join(lines)
