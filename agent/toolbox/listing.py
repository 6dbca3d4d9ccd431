"""Listing: names in a message, as many and as much of them as leave it a message."""

from __future__ import annotations

from collections.abc import Sequence

#: Names that are shown, and characters of each.
SHOWN, SHOWN_CHARS = 20, 60


def listed(names: Sequence[str]) -> str:
    """The first of the names, and how many more there are."""
    some = [name[:SHOWN_CHARS] for name in names[:SHOWN]]
    return f"{some!r} and {len(names) - SHOWN} more" if len(names) > SHOWN else f"{some!r}"
