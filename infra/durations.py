"""Durations as people write them: a number of seconds, or text such as `30m`."""

from __future__ import annotations

import re

#: The seconds of each unit, by the letter that stands for it, the longest unit first.
_UNITS = {"d": 86_400, "h": 3600, "m": 60, "s": 1}
#: A number with the letter of a unit.
WITH_UNIT = r"^[0-9]+(\.[0-9]+)? ?[smhd]$"
#: A number as text, which is what a reference such as `${WITHIN}` in a YAML yields.
_BARE_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")


def duration_text(seconds: float) -> str:
    """Return a number of seconds as people may write it, in the longest unit that fits: `2h`."""
    for letter, unit_seconds in _UNITS.items():
        if seconds >= unit_seconds and seconds % unit_seconds == 0:
            return f"{seconds / unit_seconds:g}{letter}"
    return f"{seconds:g}s"


def seconds_of(value: object) -> float:
    """Return the seconds of a text with a unit, and any number as it is.

    Raises ValueError for anything else.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        text = value.strip()
        if re.match(WITH_UNIT, text):
            return float(text[:-1]) * _UNITS[text[-1]]
        if _BARE_NUMBER.fullmatch(text):
            return float(text)
    raise ValueError(
        "is no duration: write seconds, such as 90, or a number with s, m, h or d, such as 30m"
    )
