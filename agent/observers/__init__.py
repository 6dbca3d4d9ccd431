"""Observers: who is told what happens in runs."""

from sayso.agent.observers.asynchronous import AsyncAgentObserver
from sayso.agent.observers.base import EVENTS, AgentObserver
from sayso.agent.observers.hooks import HOOKS, hooks_observer, warn_of_hooks
from sayso.agent.observers.lines import LoggingObserver
from sayso.agent.observers.otel import OpenTelemetryObserver

__all__ = [
    "EVENTS",
    "HOOKS",
    "AgentObserver",
    "AsyncAgentObserver",
    "LoggingObserver",
    "OpenTelemetryObserver",
    "hooks_observer",
    "warn_of_hooks",
]
