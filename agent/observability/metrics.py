"""MetricsObserver: count calls of models and tools for Prometheus."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sayso.agent.observability.observer import AgentObserver, LlmCall
from sayso.agent.providers.base import ProviderError
from sayso.agent.tools.errors import ToolNotFoundError
from sayso.channels import metrics


class MetricsObserver(AgentObserver):
    """Counts what runs do in `sayso.channels.metrics`. Keeps no state."""

    def on_llm_call(self, run_id: str, call: LlmCall) -> None:
        """Count a model call, its tokens and its cost."""
        model, error = metrics.bounded("model", call.model), call.error
        outcome = "ok" if error is None else error.kind if isinstance(error, ProviderError) else "failed"
        metrics.MODEL_CALLS.labels(model, outcome).inc()
        metrics.MODEL_SECONDS.labels(model).observe(call.seconds)
        if call.usage is not None:
            metrics.MODEL_TOKENS.labels(model, "input").inc(max(0, call.usage.prompt_tokens))
            metrics.MODEL_TOKENS.labels(model, "output").inc(max(0, call.usage.completion_tokens))
            metrics.MODEL_COST.labels(model).inc(max(0.0, call.usage.cost_usd))

    def on_tool_end(self, run_id: str, call_id: str, tool_name: str, result: str, duration_ms: float) -> None:
        """Count a tool call that returned."""
        self._count(metrics.bounded("tool", tool_name), "ok", duration_ms)

    def on_tool_error(
        self,
        run_id: str,
        call_id: str,
        tool_name: str,
        error: BaseException,
        tool_args: Mapping[str, Any],
        duration_ms: float,
    ) -> None:
        """Count a tool call that failed. A name that the model invented may hold anything: it counts as OTHER."""
        is_invented = isinstance(error, ToolNotFoundError)
        self._count(metrics.OTHER if is_invented else metrics.bounded("tool", tool_name), "failed", duration_ms)

    def _count(self, tool: str, outcome: str, duration_ms: float) -> None:
        metrics.TOOL_CALLS.labels(tool, outcome).inc()
        metrics.TOOL_SECONDS.labels(tool).observe(duration_ms / 1000)
