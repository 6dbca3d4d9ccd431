"""Backoff: the pauses between attempts that fail, each longer than the one before."""

from __future__ import annotations

#: Doublings after which a backoff is at its longest. Without this limit, a number of failures that
#: grows for days would overflow a float.
_MAX_DOUBLINGS = 32


def backoff_seconds(failures: int, *, first: float, longest: float, chance: float = 1.0) -> float:
    """Return the seconds to wait after a number of failures in a row, at least 1.

    The pause is `first` after one failure, and doubles with each further one up to `longest`.
    `chance`, a random number from 0 to 1, takes up to half of the pause away (jitter), so that
    clients that failed together do not try again together.
    """
    doublings = min(failures - 1, _MAX_DOUBLINGS)
    pause = min(first * 2.0**doublings, longest)
    return pause * (0.5 + chance / 2)
