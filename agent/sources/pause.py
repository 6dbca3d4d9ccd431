"""Pause: how long a source that failed is left alone before it is tried again."""

from __future__ import annotations

#: Doublings after which any pause is at its longest; a number that grows for days could be held by nothing.
_MAX_DOUBLINGS = 32


def pause_seconds(failures: int, first: float, longest: float) -> float:
    """`first`, doubled with each failure before this one, and at most `longest`."""
    return min(first * 2.0 ** min(failures, _MAX_DOUBLINGS), longest)
