"""Pending: actions that wait for a person's yes, and what runs each confirmed one once.

A tool that would destroy something does not run when a model calls it. Its call is stored as a
pending action, and the person is asked. These names are public; `action.py` says what an action is.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sayso.pending.action import (
        DEFAULT_IGNORE_TTL_SECONDS,
        DEFAULT_TTL_SECONDS,
        ActionDeniedError,
        PendingAction,
        PendingActionExistsError,
        PendingError,
        compute_args_digest,
    )
    from sayso.pending.action_outcomes import ConfirmOutcome
    from sayso.pending.approval_rule import (
        ApprovalEscalation,
        ApprovalPlace,
        ApprovalRule,
        Deciders,
    )
    from sayso.pending.call_context import Confirmation
    from sayso.pending.consent.parser import ConfirmParser, RegexConfirmParser
    from sayso.pending.effect import EffectRefused
    from sayso.pending.executors import PendingConfirmation, idempotency_key
    from sayso.pending.proposals import (
        current_context,
        current_user,
        executor_factory,
        stash_pending,
    )
    from sayso.pending.standing_rule import Bound, StandingLimit, StandingRule
    from sayso.pending.store import InMemoryPendingStore, PendingActionStore, RedisPendingStore
    from sayso.pending.tool_context import Person, ToolContext

__all__ = [
    "DEFAULT_IGNORE_TTL_SECONDS",
    "DEFAULT_TTL_SECONDS",
    "ActionDeniedError",
    "ApprovalEscalation",
    "ApprovalPlace",
    "ApprovalRule",
    "Bound",
    "ConfirmOutcome",
    "ConfirmParser",
    "Confirmation",
    "Deciders",
    "EffectRefused",
    "InMemoryPendingStore",
    "PendingAction",
    "PendingActionExistsError",
    "PendingActionStore",
    "PendingConfirmation",
    "PendingError",
    "Person",
    "RedisPendingStore",
    "RegexConfirmParser",
    "StandingLimit",
    "StandingRule",
    "ToolContext",
    "compute_args_digest",
    "current_context",
    "current_user",
    "executor_factory",
    "idempotency_key",
    "stash_pending",
]

#: The modules that define these names, in the order in which they are searched. They are imported
#: on first use. Each import of a module in this package runs this file first, and most commands of
#: an operator need none of these modules.
_MODULES = (
    "action",
    "approval_rule",
    "standing_rule",
    "consent",
    "call_context",
    "tool_context",
    "effect",
    "executors",
    "proposals",
    "action_outcomes",
    "store",
)


def __getattr__(name: str) -> Any:
    """Import a public name on first use. Raises AttributeError for any other."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for module_name in _MODULES:
        module = importlib.import_module(f"{__name__}.{module_name}")
        if name in vars(module):
            value = getattr(module, name)
            globals()[name] = value  # so that Python does not ask for it again
            return value
    raise AttributeError(f"none of {_MODULES} defines {name!r}")


def __dir__() -> list[str]:
    """Return all public names, imported or not."""
    return sorted({*globals(), *__all__})
