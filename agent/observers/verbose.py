"""VerboseObserver: prints what happens, for somebody who watches a run at a terminal (seed: Verbose Mode)."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from sayso.agent.messages import UsageStats
from sayso.agent.observers.base import AgentObserver
from sayso.agent.result import AgentResult

#: Characters of an argument or a result that are printed.
SHOWN_CHARS = 120


class VerboseObserver(AgentObserver):
    """Writes lines that begin with `[agent]`. They hold what people and tools said: not for a log."""

    def on_usage(self, run_id: str, usage: UsageStats) -> None:
        """Tokens and cost of one call of the model."""
        counts = f"{usage.prompt_tokens} + {usage.completion_tokens} tokens"
        _say(f"{usage.model or 'model'}: {counts}, ${usage.cost_usd:.6f}")

    def on_cache_hit(self, run_id: str, model: str, response: str) -> None:
        """The provider was not asked."""
        _say("cache hit -- skipping provider call")

    def on_llm_retry(
        self, run_id: str, attempt: int, max_retries: int, error: BaseException, backoff_seconds: float
    ) -> None:
        """It failed, and is asked again."""
        _say(f"attempt {attempt} failed ({error}); again in {backoff_seconds:.1f} s")

    def on_tool_start(self, run_id: str, call_id: str, tool_name: str, tool_args: Mapping[str, Any]) -> None:
        """A call begins."""
        _say(f"{tool_name}({', '.join(f'{name}={_short(value)}' for name, value in tool_args.items())})")

    def on_tool_end(self, run_id: str, call_id: str, tool_name: str, result: str, duration_ms: float) -> None:
        """Its result."""
        _say(f"{tool_name} -> {_short(result)} ({duration_ms:.0f} ms)")

    def on_tool_error(
        self,
        run_id: str,
        call_id: str,
        tool_name: str,
        error: BaseException,
        tool_args: Mapping[str, Any],
        duration_ms: float,
    ) -> None:
        """Why there is none."""
        _say(f"{tool_name} failed: {error} ({duration_ms:.0f} ms)")

    def on_run_end(self, run_id: str, result: AgentResult) -> None:
        """What it came to."""
        usage, steps = result.usage, result.iterations
        _say(f"{result.stop_reason} after {steps} steps, {usage.total_tokens} tokens, ${usage.cost_usd:.6f}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}…"


def _say(line: str) -> None:
    sys.stdout.write(f"[agent] {line}\n")
