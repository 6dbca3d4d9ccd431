"""Pending: proposals that wait for a yes, and the kernel that runs each confirmed one once."""

from sayso.pending.action import (
    DEFAULT_IGNORE_TTL_SECONDS,
    DEFAULT_TTL_SECONDS,
    PendingAction,
    PendingActionExistsError,
    PendingError,
    compute_args_digest,
)
from sayso.pending.consent import ConfirmParser, RegexConfirmParser
from sayso.pending.context import Confirmation, Person, ToolContext
from sayso.pending.executors import PendingConfirmation, idempotency_key
from sayso.pending.proposals import current_context, current_user, executor_factory, stash_pending
from sayso.pending.settlement import ConfirmOutcome
from sayso.pending.store import InMemoryPendingStore, PendingActionStore, RedisPendingStore

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
