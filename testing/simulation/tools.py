"""The tools of a simulation, and the file that records their effects."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from sayso.agent import emit_artifact, tool
from sayso.pending import PendingAction, idempotency_key

#: The steps of a payment. Only `effect` moves money; `repeat` is an effect under an idempotency key
#: used before. What comes before `begin` may happen again: `prepare`.
EffectStep = Literal["prepare", "begin", "effect", "repeat", "refused"]
#: The longest time from the beginning to the effect, and from the effect to the result, in seconds.
BEFORE_SECONDS = 0.06
AFTER_SECONDS = 0.03
#: Environment variable with the milliseconds that a model takes, such as 20-200.
MODEL_MS = "SAYSO_SIMULATION_MODEL_MS"


@dataclass(frozen=True, slots=True)
class EffectEntry:
    """One step of one payment."""

    bill: str
    step: EffectStep
    #: The idempotency key, "" for a payment without one.
    key: str
    process: int
    #: The time just before, on the monotonic clock that all processes of a machine share; 0 if
    #: unknown.
    at: float = 0.0


class Effects:
    """A file in a data folder.

    Each step is one write: it is there completely or not at all, without a lock.
    """

    def __init__(self, data: Path) -> None:
        self.file = data / "effects.jsonl"

    def write(self, bill: str, step: EffectStep, key: str = "") -> None:
        """Add a step. It is on disk when this returns."""
        line = (
            json.dumps(asdict(EffectEntry(bill, step, key, os.getpid(), time.monotonic()))) + "\n"
        )
        file = os.open(self.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            os.write(file, line.encode())
            os.fsync(file)
        finally:
            os.close(file)

    def read(self) -> list[EffectEntry]:
        """Return all steps in order.

        Of the effects under one key only the first counts, as at a payment service.
        """
        entries = []
        used_keys = set[str]()
        for entry in self.tail(0)[0]:
            is_repeated = entry.step == "effect" and entry.key in used_keys
            entries.append(replace(entry, step="repeat") if is_repeated else entry)
            if entry.step == "effect" and entry.key:
                used_keys.add(entry.key)
        return entries

    def tail(self, offset: int) -> tuple[list[EffectEntry], int]:
        """Return the steps written after an offset, and the offset for the next call."""
        if not self.file.exists() or self.file.stat().st_size == offset:
            return [], offset
        with self.file.open("rb") as file:
            file.seek(offset)
            content = file.read()
        lines = content[: content.rfind(b"\n") + 1]  # the last line may not be complete yet
        return [EffectEntry(**json.loads(line)) for line in lines.splitlines()], offset + len(lines)


def effects() -> Effects:
    """Return the effects file of the system under test, to which its tools write."""
    return Effects(Path(os.environ["SAYSO_DATA"]))


def _take_effect(bill: str, key: str = "", *, refused: bool = False) -> None:
    """Record the steps of a payment, as slowly as a real one."""
    effects().write(bill, "begin", key)
    time.sleep(random.random() * BEFORE_SECONDS)
    if refused:
        effects().write(bill, "refused")
        raise RuntimeError("the desk is closed")
    effects().write(bill, "effect", key)
    time.sleep(random.random() * AFTER_SECONDS)


@tool(requires_approval=True, preview="Pay {bill}")
def pay(bill: str) -> str:
    """Pay a bill; run twice, it is paid twice."""
    _take_effect(bill)
    return f"Paid {bill}."


@tool(requires_approval=True, preview="Book {bill}")
def book(bill: str) -> str:
    """Book a bill; every third is refused before anything happens."""
    _take_effect(bill, refused=random.random() < 1 / 3)
    return f"Booked {bill}."


@tool(requires_approval=True, preview="Charge {bill}", idempotent=True)
def charge(bill: str) -> str:
    """Charge a bill with a service that knows idempotency keys."""
    _take_effect(bill, idempotency_key())
    return f"Charged {bill}."


@tool(requires_approval=True, preview="Settle {bill}", after="continue")
def settle(bill: str) -> str:
    """Settle a bill as one step of a request; run twice, it is settled twice."""
    _take_effect(bill)
    return f"Settled {bill}."


def is_refunded(record: PendingAction) -> bool:
    """Return whether an interrupted refund took effect."""
    return any(
        entry.step == "effect" and entry.bill == record.args["bill"] for entry in effects().read()
    )


@tool(requires_approval=True, preview="Refund {bill}", reconcile=is_refunded)
def refund(bill: str) -> str:
    """Refund a bill; whether it was done can be asked afterwards."""
    _take_effect(bill)
    return f"Refunded {bill}."


@tool(idempotent=True)
async def think(about: str) -> str:
    """Wait as long as a language model would, without blocking the worker."""
    low, _, high = os.environ.get(MODEL_MS, "0-0").partition("-")
    await asyncio.sleep(random.uniform(float(low), float(high or low)) / 1000)
    return f"I thought about {about}."


@tool(idempotent=True)
def draw(title: str) -> str:
    """Make a small PDF of this name, which every platform can show."""
    emit_artifact(
        f"%PDF-1.4\n% {title}\n".encode(), mime_type="application/pdf", filename=f"{title}.pdf"
    )
    return f"Here is {title}."
