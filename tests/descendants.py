"""Descendants of a process.

Imports nothing of Sayso: `tests.groups` needs it at once after Ctrl-C.
"""

from __future__ import annotations

from pathlib import Path


def family(pid: int) -> list[int]:
    """Return all descendants of a process, from Linux's /proc."""
    try:
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []
    return children + [grandchild for child in children for grandchild in family(child)]
