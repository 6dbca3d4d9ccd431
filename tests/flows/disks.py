"""Disks: a destructive tool that records each effect in a file, which no killed process can lose."""

from __future__ import annotations

import os
import time
from pathlib import Path

from sayso.agent import tool


@tool(description="Wipe a disk", requires_approval=True, preview="Wipe disk {disk}")
def wipe_disk(disk: str) -> str:
    """Wipe one disk: a line in a file, and a moment in which the worker may die before it can say so."""
    ledger = os.open(
        Path(os.environ["SAYSO_DATA"]) / "wiped.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND
    )
    try:
        os.write(ledger, f"{disk}\n".encode())
    finally:
        os.close(ledger)
    time.sleep(0.15)
    return f"Disk {disk} is wiped."
