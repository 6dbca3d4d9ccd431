"""AgentUsage: what an agent has spent in all its runs (seed: Usage Tracking Convenience Methods)."""

from __future__ import annotations

import math
import threading
from collections import Counter, deque
from dataclasses import replace
from typing import Any

from agent.messages import UsageStats

#: Questions that are remembered one by one, and tools that are told apart.
MOST_ITERATIONS, MOST_TOOLS = 1000, 1000
#: What tools beyond those are counted as.
OTHER_TOOLS = "(other)"


def countable(usage: UsageStats) -> UsageStats:
    """The usage that can be added up: what is below nothing or no number is nothing, and a total is never less than
    its parts. One strange number would else spoil every sum that it is in.
    """
    parts = usage.prompt_tokens, usage.completion_tokens, usage.cache_read_tokens, usage.cache_write_tokens
    if usage.total_tokens >= parts[0] + parts[1] and min(parts) >= 0 and 0 <= usage.cost_usd < math.inf:
        return usage
    prompt, completion, read, written = (max(0, part) for part in parts)
    return replace(
        usage,
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=max(usage.total_tokens, prompt + completion),
        cost_usd=usage.cost_usd if 0 <= usage.cost_usd < math.inf else 0.0,
        cache_read_tokens=read,
        cache_write_tokens=written,
    )


class AgentUsage:
    """Totals since it was made. Threads may add to it at once; `iterations` are the last questions only."""

    def __init__(self, *, most_iterations: int = MOST_ITERATIONS) -> None:
        self._lock = threading.Lock()
        self._total = UsageStats()
        self._questions = 0
        self._iterations: deque[UsageStats] = deque(maxlen=most_iterations)
        self._tools: Counter[str] = Counter()

    def add_usage(self, stats: UsageStats, tool_name: str | None = None) -> None:
        """Count a question to a model, and the tool that its answer called, if any."""
        with self._lock:
            self._total += stats
            self._questions += 1
            self._iterations.append(stats)
            if tool_name:
                known = tool_name in self._tools or len(self._tools) < MOST_TOOLS
                self._tools[tool_name if known else OTHER_TOOLS] += 1

    def reset(self) -> None:
        """Begin again at nothing."""
        with self._lock:
            self._total, self._questions = UsageStats(), 0
            self._iterations.clear()
            self._tools.clear()

    @property
    def total_cost_usd(self) -> float:
        """Dollars."""
        return self._total.cost_usd

    @property
    def total_tokens(self) -> int:
        """Of questions and answers."""
        return self._total.total_tokens

    @property
    def total_prompt_tokens(self) -> int:
        """Of questions."""
        return self._total.prompt_tokens

    @property
    def total_completion_tokens(self) -> int:
        """Of answers."""
        return self._total.completion_tokens

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
                "total_prompt_tokens": self._total.prompt_tokens,
                "total_completion_tokens": self._total.completion_tokens,
                "total_tokens": self._total.total_tokens,
                "total_cost_usd": self._total.cost_usd,
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
