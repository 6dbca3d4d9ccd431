"""Lettering: the words of a chart as they are drawn, on lines that fit, and how wide they are."""

from __future__ import annotations

import textwrap

from sayso.agent.toolbox.glyphs import font_file, visible

#: Points to the inch.
_POINTS = 72.0


def plain(text: str, line_chars: int = 0) -> str:
    """Without mathematics: matplotlib would read what stands between two dollar signs as a formula.

    On one line, or on lines of as many characters.
    """
    words = " ".join(visible(text).split())
    lines = textwrap.wrap(words, line_chars) if line_chars else [words]
    return "\n".join(lines).replace("$", r"\$")


def width(text: str, points: float = 10.0) -> float:
    """The inches of the longest line."""
    from matplotlib.font_manager import get_font

    font = get_font(str(font_file()))
    font.set_size(points, _POINTS)
    return max((_line_width(font, line.replace(r"\$", "$")) for line in text.split("\n")), default=0.0)


def _line_width(font: object, line: str) -> float:
    font.set_text(line)  # type: ignore[attr-defined]  # matplotlib keeps its type to itself
    return float(font.get_width_height()[0]) / 64 / _POINTS  # type: ignore[attr-defined]  # in 26.6 fixed point
