"""Pending: proposals that wait for a yes, and the kernel that runs each confirmed one once."""

from pending.action import (
    DEFAULT_IGNORE_TTL_SECONDS,
    DEFAULT_TTL_SECONDS,
    PendingAction,
    PendingActionExistsError,
    PendingError,
    compute_args_digest,
)
from pending.context import Confirmation, Person, ToolContext
from pending.executors import idempotency_key
from pending.outcome import ConfirmOutcome
from pending.parser import ConfirmParser, RegexConfirmParser
from pending.proposals import current_context, current_user, executor_factory, stash_pending
from pending.results import PendingConfirmation
from pending.store import InMemoryPendingStore, PendingActionStore, RedisPendingStore

__all__ = [
    "DEFAULT_IGNORE_TTL_SECONDS",
    "DEFAULT_TTL_SECONDS",
    "ConfirmOutcome",
    "ConfirmParser",
    "Confirmation",
    "InMemoryPendingStore",
    "PendingAction",
    "PendingActionExistsError",
    "PendingActionStore",
    "PendingConfirmation",
    "PendingError",
    "Person",
    "RedisPendingStore",
    "RegexConfirmParser",
    "ToolContext",
    "compute_args_digest",
    "current_context",
    "current_user",
    "executor_factory",
    "idempotency_key",
    "stash_pending",
]
