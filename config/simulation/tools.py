"""Tools of the simulation: four kinds of payment whose effects are counted, one that thinks, one that draws."""

from __future__ import annotations

import asyncio
import os
import random
import time

from sayso.agent import emit_artifact, tool
from sayso.config.simulation.effects import effects
from sayso.pending import PendingAction, idempotency_key

#: Seconds at most from the beginning to the effect, and from the effect to the result.
BEFORE_SECONDS, AFTER_SECONDS = 0.06, 0.03
#: The environment's word for how many milliseconds a model takes, such as 20-200.
MODEL_MS = "SAYSO_SIMULATION_MODEL_MS"


@tool(requires_approval=True, preview="Pay {bill}")
def pay(bill: str) -> str:
    """Pay a bill; run twice, it is paid twice."""
    effects().write(bill, "begin")
    _dawdle(BEFORE_SECONDS)
    effects().write(bill, "effect")
    _dawdle(AFTER_SECONDS)
    return f"Paid {bill}."


@tool(requires_approval=True, preview="Book {bill}")
def book(bill: str) -> str:
    """Book a bill; the desk refuses every third, before anything happens."""
    effects().write(bill, "begin")
    _dawdle(BEFORE_SECONDS)
    if random.random() < 1 / 3:  # noqa: S311  # no secret
        effects().write(bill, "refused")
        raise RuntimeError("the desk is closed")
    effects().write(bill, "effect")
    _dawdle(AFTER_SECONDS)
    return f"Booked {bill}."


@tool(requires_approval=True, preview="Charge {bill}", idempotent=True)
def charge(bill: str) -> str:
    """Charge a bill with a service that knows idempotency keys."""
    key = idempotency_key()
    effects().write(bill, "begin", key)
    _dawdle(BEFORE_SECONDS)
    effects().write(bill, "effect", key)
    _dawdle(AFTER_SECONDS)
    return f"Charged {bill}."


def is_refunded(record: PendingAction) -> bool:
    """What the world says of a refund that was interrupted."""
    return any(entry.step == "effect" and entry.bill == record.args["bill"] for entry in effects().read())


@tool(requires_approval=True, preview="Refund {bill}", reconcile=is_refunded)
def refund(bill: str) -> str:
    """Refund a bill; whether it was done can be asked afterwards."""
    effects().write(bill, "begin")
    _dawdle(BEFORE_SECONDS)
    effects().write(bill, "effect")
    _dawdle(AFTER_SECONDS)
    return f"Refunded {bill}."


@tool(idempotent=True)
async def think(about: str) -> str:
    """Think, for as long as a language model would: the turn waits, and the worker need not."""
    low, _, high = os.environ.get(MODEL_MS, "0-0").partition("-")
    await asyncio.sleep(random.uniform(float(low), float(high or low)) / 1000)  # noqa: S311  # no secret
    return f"I thought about {about}."


@tool(idempotent=True)
def draw(title: str) -> str:
    """Make a small file of this name, of a type that every platform shows."""
    emit_artifact(data=f"%PDF-1.4\n% {title}\n".encode(), mime_type="application/pdf", filename=f"{title}.pdf")
    return f"Here is {title}."


def _dawdle(seconds: float) -> None:
    time.sleep(random.random() * seconds)  # noqa: S311  # no secret
