"""Tables as text: with aligned columns, or a paragraph for each row."""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Sequence

from sayso.channels.markdown.dialects import Dialect


def aligned(rows: Sequence[Sequence[str]], are_right_aligned: Sequence[bool]) -> str:
    """Return a table with aligned columns, for a monospaced block.

    The first row is the head. `are_right_aligned` says of each column whether its text stands at
    the right.
    """
    if not rows:
        return ""
    columns = widths(rows)
    lines = []
    for row in rows:
        cells = []
        for cell, width, is_right in zip(row, columns, are_right_aligned, strict=True):
            gap = " " * (width - _width(cell))
            cells.append(gap + cell if is_right else cell + gap)
        lines.append(" | ".join(cells).rstrip())
    rule = "-+-".join("-" * width for width in columns)
    return "\n".join([lines[0], rule, *lines[1:]])


def widths(rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the width of each column on the screen."""
    return [max(map(_width, column)) for column in zip(*rows, strict=True)]


def records(rows: Sequence[Sequence[str]], dialect: Dialect) -> str:
    """Return a table that is too wide: a paragraph for each row, a line for each of its cells.

    Each line begins with the name of its column.
    """
    names, *body = rows
    # The names are repeated for each row. If that would make the text several times as long, the
    # rows are shown as lines.
    size = sum(len(cell) for cell in itertools.chain.from_iterable(rows))
    repeated_size = len(body) * sum(map(len, names))
    if not body or repeated_size > 4 * size + 4000:
        return "\n".join(" | ".join(map(dialect.escape, row)) for row in rows)

    opening, closing = dialect.marks["strong"]
    paragraphs = []
    for row in body:
        lines = []
        for column, (name, cell) in enumerate(zip(names, row, strict=True)):
            label = f"{dialect.escape(name)}: " if name else ""
            text = dialect.escape(cell)
            # The cell of the first column is the title of the paragraph.
            if column == 0 and text:
                text = f"{opening}{text}{closing}"
            lines.append(f"{label}{text}".rstrip())
        paragraphs.append("\n".join(lines))
    return "\n\n".join(paragraphs)


def _width(text: str) -> int:
    """Return the width of a text on the screen, in columns.

    Chinese, Japanese and Korean characters and emoji take two columns, combining marks none.
    """
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(unicodedata.combining(char) > 0 for char in text)


def is_overfull(lines: Sequence[str]) -> bool:
    """Return whether a row of a table has cells beyond its last column. `lines` are its source."""
    return any(inner_bars(line) > inner_bars(lines[0]) for line in lines[2:])


def inner_bars(line: str) -> int:
    """Return the number of bars between the cells of a row of a table."""
    return len(re.findall(r"(?<!\\)\|", line.strip().strip("|")))
