"""The tools of a simulation, and the file in which they log their effects.

All these tools pay a bill in some way, and none moves money: an effect is a line in a file, which
the judge reads. They differ in what a bot can know after a worker was killed: `pay` cannot be asked
afterwards, `charge` may be run again with the same idempotency key, `refund` can be asked.
"""

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

#: The steps of a payment:
#:
#: * prepare: something before the effect begins, which may happen again.
#: * begin: from here on a second run would pay twice.
#: * effect: the money moves.
#: * repeat: an effect under an idempotency key that was used before; no money moves.
#: * refused: the payment failed before any money moved.
EffectStep = Literal["prepare", "begin", "effect", "repeat", "refused"]
#: The longest time from the beginning to the effect, in seconds.
BEFORE_SECONDS = 0.06
#: The longest time from the effect to the result, in seconds.
AFTER_SECONDS = 0.03
#: Environment variable with the milliseconds that a model takes, such as 20-200.
MODEL_MS = "SAYSO_SIMULATION_MODEL_MS"


@dataclass(frozen=True, slots=True)
class EffectEntry:
    """One step of one payment: a line of the file."""

    bill: str
    step: EffectStep
    #: The idempotency key; "" for a payment without one.
    key: str
    #: The id of the process that did it.
    process: int
    #: When the step was written, on the monotonic clock that all processes of a machine share; 0
    #: if unknown.
    at: float = 0.0


class Effects:
    """The file of effects in a data folder, to which all processes append.

    Each step is one write, so it is there completely or not at all, and needs no lock.
    """

    def __init__(self, data: Path) -> None:
        self.file = data / "effects.jsonl"

    def write(self, bill: str, step: EffectStep, key: str = "") -> None:
        """Append a step. It is on disk when this returns."""
        entry = EffectEntry(bill=bill, step=step, key=key, process=os.getpid(), at=time.monotonic())
        line = json.dumps(asdict(entry)) + "\n"
        file = os.open(self.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            os.write(file, line.encode())
            os.fsync(file)
        finally:
            os.close(file)

    def read(self) -> list[EffectEntry]:
        """Return all steps in order.

        Of the effects under one key only the first counts, as at a payment service. Later ones
        become the step `repeat`.
        """
        entries, _ = self.tail(0)
        counted = []
        used_keys = set[str]()
        for entry in entries:
            if entry.step == "effect" and entry.key in used_keys:
                counted.append(replace(entry, step="repeat"))
                continue
            if entry.step == "effect" and entry.key:
                used_keys.add(entry.key)
            counted.append(entry)
        return counted

    def tail(self, offset: int) -> tuple[list[EffectEntry], int]:
        """Return the steps after an offset in bytes, and the offset for the next call."""
        if not self.file.exists() or self.file.stat().st_size == offset:
            return [], offset
        with self.file.open("rb") as file:
            file.seek(offset)
            content = file.read()
        # The last line may not be complete yet.
        lines = content[: content.rfind(b"\n") + 1]
        entries = [EffectEntry(**json.loads(line)) for line in lines.splitlines()]
        return entries, offset + len(lines)


def effects() -> Effects:
    """Return the file of effects of the bot that this process belongs to."""
    return Effects(Path(os.environ["SAYSO_DATA"]))


def _take_effect(bill: str, key: str = "", *, refused: bool = False) -> None:
    """Write the steps of a payment, as slowly as a real one takes.

    Raises RuntimeError, before anything is paid, if the payment is `refused`.
    """
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


@tool(requires_approval=True, preview="Wire {bill}")
def wire(bill: str) -> str:
    """Wire a bill, which another person must agree to."""
    _take_effect(bill)
    return f"Wired {bill}."


@tool(requires_approval=True, preview="Transfer {bill}")
def transfer(bill: str) -> str:
    """Transfer a bill, which two other people must agree to."""
    _take_effect(bill)
    return f"Transferred {bill}."


def is_refunded(record: PendingAction) -> bool:
    """Return whether an interrupted refund took effect."""
    bill = record.args["bill"]
    return any(entry.step == "effect" and entry.bill == bill for entry in effects().read())


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
