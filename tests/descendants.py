"""Descendants of a process.

Imports nothing of Sayso: `tests.groups` needs it at once after Ctrl-C.
"""

from __future__ import annotations

from pathlib import Path


def family(pid: int) -> list[int]:
    """Return all descendants of a process, from Linux's /proc."""
    try:
        children = [
            int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ]
    except (FileNotFoundError, ProcessLookupError):
        return []
    found = list(children)
    for child in children:
        found += family(child)
    return found
