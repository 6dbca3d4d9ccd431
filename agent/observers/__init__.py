"""Observers: who is told what happens in runs."""

from agent.observers.asynchronous import AsyncAgentObserver
from agent.observers.base import EVENTS, AgentObserver
from agent.observers.hooks import HOOKS, hooks_observer, warn_of_hooks
from agent.observers.lines import LoggingObserver

__all__ = [
    "EVENTS",
    "HOOKS",
    "AgentObserver",
    "AsyncAgentObserver",
    "LoggingObserver",
    "hooks_observer",
    "warn_of_hooks",
]
