"""Percentiles of measured values, for the reports of `sayso simulate` and `sayso bench`."""

from __future__ import annotations

from collections.abc import Sequence


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which a share (0 to 1) of the values lies; 0 without values."""
    if not values:
        return 0.0
    place = min(len(values) - 1, int(len(values) * share))
    return sorted(values)[place]
