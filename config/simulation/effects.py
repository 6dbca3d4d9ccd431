"""Effects: what tools really did, in a file that outlives every process and belongs to none of Sayso's own."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

#: What can happen to a bill. Only `effect` moves money; a `repeat` is an effect whose key has had one before.
Step = Literal["begin", "effect", "repeat", "refused"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One step of one payment. `key` is the idempotency key, "" for a payment that has none.

    `at` is the moment just before, of the monotonic clock that all processes of a machine share; 0 when unknown.
    """

    bill: str
    step: Step
    key: str
    process: int
    at: float = 0.0


class Effects:
    """One file in a data folder. A step is one write: it is there wholly or not at all, and nobody holds a lock."""

    def __init__(self, data: Path) -> None:
        self.file = data / "effects.jsonl"

    def write(self, bill: str, step: Step, key: str = "") -> None:
        """Add a step, on disk when this returns."""
        line = json.dumps(asdict(Entry(bill, step, key, os.getpid(), time.monotonic()))) + "\n"
        file = os.open(self.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            os.write(file, line.encode())
            os.fsync(file)
        finally:
            os.close(file)

    def read(self) -> list[Entry]:
        """All steps, in order. Of the effects under one key only the first counts, as at any payment service."""
        return list(_once_by_key(self.tail(0)[0]))

    def tail(self, offset: int) -> tuple[list[Entry], int]:
        """What was written since an earlier look, as written, and where the next look begins."""
        if not self.file.exists() or self.file.stat().st_size == offset:
            return [], offset
        with self.file.open("rb") as file:
            file.seek(offset)
            read = file.read()
        lines = read[: read.rfind(b"\n") + 1]  # the last may be on its way into the next page of the file
        return [Entry(**json.loads(line)) for line in lines.splitlines()], offset + len(lines)


def effects() -> Effects:
    """The effects of the system that this process belongs to: what a tool under test writes to."""
    return Effects(Path(os.environ["SAYSO_DATA"]))


def _once_by_key(entries: Iterable[Entry]) -> Iterable[Entry]:
    seen: set[str] = set()
    for entry in entries:
        again = entry.step == "effect" and entry.key in seen
        yield replace(entry, step="repeat") if again else entry
        if entry.step == "effect" and entry.key:
            seen.add(entry.key)
