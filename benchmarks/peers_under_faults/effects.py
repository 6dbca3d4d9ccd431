"""Effects: what a refund does in the outside world, written by every app's tool in the same way.

An effect is one line of a file, on disk when `refund` returns. Before and after it, the tool tells
the harness where it is, and waits for the answer: that is where the harness kills.

Nothing here imports an app's framework, so each app runs the same code.
"""

from __future__ import annotations

import json
import os
import urllib.request
from collections import Counter
from pathlib import Path

#: Environment variables of each app: the file of the effects, the harness, and what the code means.
FILE, HARNESS, MEANING = "FAULTS_EFFECTS", "FAULTS_HARNESS", "FAULTS_MEANING"
#: How long a tool waits for the harness, in seconds. A tool that waits longer goes on.
WAIT_SECONDS = 60


def refund(order: int) -> str:
    """Refund an order: tell the harness, write the effect, tell the harness. Return the result."""
    _reach("before_effect", order)
    write(order, os.environ.get(MEANING, "refund"))
    _reach("after_effect", order)
    return f"Refunded order {order}."


def write(order: int, meaning: str) -> None:
    """Append one effect. It is on disk when this returns."""
    line = json.dumps({"order": order, "meaning": meaning}) + "\n"
    file = os.open(os.environ[FILE], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(file, line.encode())
        os.fsync(file)
    finally:
        os.close(file)


def read(file: Path) -> Counter[tuple[int, str]]:
    """Return how often each effect took place: order and meaning, such as (17, "refund")."""
    if not file.exists():
        return Counter()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return Counter((line["order"], line["meaning"]) for line in lines)


def _reach(stage: str, order: int) -> None:
    """Tell the harness that a tool reached this stage. It answers, or kills this process."""
    url = f"{os.environ[HARNESS]}/stage/{stage}/{order}"
    with urllib.request.urlopen(url, data=b"", timeout=WAIT_SECONDS):
        pass
