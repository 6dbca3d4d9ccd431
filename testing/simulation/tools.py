"""Tools whose effects are counted."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from sayso.agent import emit_artifact, tool
from sayso.pending import PendingAction, idempotency_key

#: What can happen to a bill. Only `effect` moves money; a `repeat` is an effect whose key has had one before.
EffectStep = Literal["begin", "effect", "repeat", "refused"]


@dataclass(frozen=True, slots=True)
class EffectEntry:
    """One step of one payment. `key` is the idempotency key, "" for a payment that has none.

    `at` is the moment just before, of the monotonic clock that all processes of a machine share; 0 when unknown.
    """

    bill: str
    step: EffectStep
    key: str
    process: int
    at: float = 0.0


class Effects:
    """One file in a data folder. A step is one write: it is there wholly or not at all, and nobody holds a lock."""

    def __init__(self, data: Path) -> None:
        self.file = data / "effects.jsonl"

    def write(self, bill: str, step: EffectStep, key: str = "") -> None:
        """Add a step, on disk when this returns."""
        line = json.dumps(asdict(EffectEntry(bill, step, key, os.getpid(), time.monotonic()))) + "\n"
        file = os.open(self.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            os.write(file, line.encode())
            os.fsync(file)
        finally:
            os.close(file)

    def read(self) -> list[EffectEntry]:
        """All steps, in order. Of the effects under one key only the first counts, as at any payment service."""
        return list(_once_by_key(self.tail(0)[0]))

    def tail(self, offset: int) -> tuple[list[EffectEntry], int]:
        """What was written since an earlier look, as written, and where the next look begins."""
        if not self.file.exists() or self.file.stat().st_size == offset:
            return [], offset
        with self.file.open("rb") as file:
            file.seek(offset)
            read = file.read()
        lines = read[: read.rfind(b"\n") + 1]  # the last may be on its way into the next page of the file
        return [EffectEntry(**json.loads(line)) for line in lines.splitlines()], offset + len(lines)


def effects() -> Effects:
    """The effects of the system that this process belongs to: what a tool under test writes to."""
    return Effects(Path(os.environ["SAYSO_DATA"]))


def _once_by_key(entries: Iterable[EffectEntry]) -> Iterable[EffectEntry]:
    seen: set[str] = set()
    for entry in entries:
        again = entry.step == "effect" and entry.key in seen
        yield replace(entry, step="repeat") if again else entry
        if entry.step == "effect" and entry.key:
            seen.add(entry.key)


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
