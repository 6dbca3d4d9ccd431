"""AgentUsage: what an agent has spent in all its runs (seed: Usage Tracking Convenience Methods)."""

from __future__ import annotations

import threading
from collections import Counter, deque
from dataclasses import replace
from typing import Any

from sayso.agent.messages import UsageStats

#: Questions that are remembered one by one, and tools that are told apart.
MOST_ITERATIONS, MOST_TOOLS = 1000, 1000
#: What tools beyond those are counted as.
OTHER_TOOLS = "(other)"
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
            known = tool_name in self._tools or len(self._tools) < MOST_TOOLS
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
