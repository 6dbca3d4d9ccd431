"""Observers of runs, and the counting of their tokens, cost and tool calls.

| what | where |
|---|---|
| the base classes of observers, and all events | `observer.py` |
| how a run calls its observers and writes its trace | `run_events.py` |
| observers for logs, for metrics, for hooks and for `verbose=True` | `builtin.py` |
| spans and metrics for OpenTelemetry | `otel.py` |
| totals of an agent: tokens, cost, calls of tools | `usage.py` |
"""
