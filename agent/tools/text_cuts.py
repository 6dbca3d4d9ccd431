"""Cuts a text that is too long, where possible between lines, elements of JSON or words."""

from __future__ import annotations

#: The share of a cut text that is taken from its end, where totals, errors and the last lines of
#: logs are.
TAIL_SHARE = 0.25
#: The share of a cut text within which a better place for the cut is looked for.
BOUNDARY_SHARE = 0.2
#: Where a text can be cut: the ends of a line, of an element of JSON, and of a word, best first.
_BOUNDARIES = ("\n", "}, ", "},", "], ", "],", ", ", " ")


def truncate(text: str, most: int | None) -> str:
    """Return the text, or its beginning and end with a marker that says how much is left out.

    `most` counts characters (code points) without the marker; None for the whole text.
    """
    if most is None or len(text) <= most:
        return text
    head, tail = cut_ends(text, most)
    shown = f"the first {len(head)} and the last {len(tail)}"
    marker = f"[... {len(head) + len(tail)} of {len(text)} characters are shown: {shown} ...]"
    return "\n".join((head.removesuffix("\n"), marker, tail))


def cut_ends(text: str, most: int) -> tuple[str, str]:
    """Return the beginning and the end of a text, together at most `most` characters.

    Both are cut between lines, elements of JSON or words, where there is such a place nearby.
    """
    most = min(most, len(text))
    tail_chars = int(most * TAIL_SHARE)
    end = last_boundary(text, 0, most - tail_chars)
    start = next_boundary(text, len(text) - tail_chars, len(text))
    return text[:end], text[start:]


def last_boundary(text: str, start: int, end: int) -> int:
    """Return where to end a part of a text that goes from `start` to about `end`.

    It is looked for in the last fifth of the part: the last line end there or, if there is none,
    the last end of an element of JSON, and so on. `end` if there is no boundary at all.
    """
    if end >= len(text):
        return end
    earliest = end - int((end - start) * BOUNDARY_SHARE)
    for boundary in _BOUNDARIES:
        at = text.rfind(boundary, earliest, end)
        if at >= 0:
            return at + len(boundary)
    return end


def next_boundary(text: str, start: int, end: int) -> int:
    """Return where to begin a part of a text that goes from about `start` to `end`.

    It is looked for in the first fifth of the part, in the same order as by `last_boundary`.
    `start` if there is no boundary.
    """
    if start <= 0:
        return start
    latest = start + int((end - start) * BOUNDARY_SHARE)
    for boundary in _BOUNDARIES:
        at = text.find(boundary, start, latest)
        if at >= 0:
            return at + len(boundary)
    return start


def shorten(text: str, max_chars: int) -> str:
    """Return the text in at most `max_chars` characters.

    A note at the end tells how many it had; `max_chars` must have room for the note.
    """
    if len(text) <= max_chars:
        return text
    note = f" [cut, was {len(text)} characters]"
    return text[: max(0, max_chars - len(note))] + note
