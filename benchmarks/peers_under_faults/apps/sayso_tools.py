"""Sayso: one tool, and `sayso.yaml` beside it. `sayso web` and `sayso worker` run it on Redis.

docs/how-to/ask-before-acting.md, docs/how-to/use-a-real-model.md

An author would have to add: `reconcile` or an idempotency key, so that an effect that was cut short
is not told as "cannot tell"; `version=` where a tool's code may change while a question is open.
"""

from benchmarks.peers_under_faults import effects
from sayso.agent import tool


@tool(requires_approval=True, preview="Refund order {order}?")
def refund_order(order: int) -> str:
    """Refund an order."""
    return effects.refund(order)
