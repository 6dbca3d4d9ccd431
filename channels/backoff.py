"""The pause between two attempts: it doubles with each failure."""

from __future__ import annotations

#: Doublings after which a pause is at its longest: a number of failures that grows for days would overflow.
_MAX_DOUBLINGS = 32


def backoff_seconds(failures: int, *, first: float, longest: float, chance: float = 1.0) -> float:
    """Return the seconds to wait after so many failures in a row: `first` after one, then twice as much each time.

    `longest` is the limit. `chance`, a random number from 0 to 1, takes up to half of the pause away (jitter), so that
    clients that failed together do not try again together.
    """
    return min(first * 2.0 ** min(failures - 1, _MAX_DOUBLINGS), longest) * (0.5 + chance / 2)
