"""Truncation: of a text that is too long, its beginning and its end."""

from __future__ import annotations

#: Of what is shown, the share that is the end: totals, errors and the last lines of logs stand there.
TAIL_SHARE = 0.25


def truncate(text: str, most: int | None) -> str:
    """The text, or so many of its characters around a marker that says how many are shown, of how many.

    `most` counts characters (code points) of the text, None for any number; the marker comes on top.
    """
    if most is None or len(text) <= most:
        return text
    tail = int(most * TAIL_SHARE)
    head = most - tail
    marker = f"[... {most} of {len(text)} characters are shown: the first {head} and the last {tail} ...]"
    return f"{text[:head]}\n{marker}\n{text[len(text) - tail :]}"
