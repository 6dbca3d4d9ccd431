"""Tables: in columns of equal width, or row by row where they are too wide."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from sayso.channels.markup.dialects import Dialect


def aligned(rows: Sequence[Sequence[str]], rights: Sequence[bool]) -> str:
    """A table as columns of equal width, for a monospaced block."""
    if not rows:
        return ""
    columns = widths(rows)
    lines = [" | ".join(_padded(*cell) for cell in zip(row, columns, rights, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "-+-".join("-" * width for width in columns), *lines[1:]])


def _padded(cell: str, width: int, right: bool) -> str:
    gap = " " * (width - _width(cell))
    return gap + cell if right else cell + gap


def widths(rows: Sequence[Sequence[str]]) -> list[int]:
    """Of each column, on screen."""
    return [max(map(_width, column)) for column in zip(*rows, strict=True)]


def records(rows: Sequence[Sequence[str]], dialect: Dialect) -> str:
    """A table that is too wide to be one: a paragraph for each row, a line for each cell behind its column's name."""
    names, *body = rows
    size = sum(len(cell) for row in rows for cell in row)
    if not body or len(body) * sum(map(len, names)) > 4 * size + 4000:  # names that long would drown what they name
        return "\n".join(" | ".join(map(dialect.escape, row)) for row in rows)
    return "\n\n".join(_record(names, row, dialect) for row in body)


def _record(names: Sequence[str], cells: Sequence[str], dialect: Dialect) -> str:
    opening, closing = dialect.marks["strong"]
    first, *others = (
        (dialect.escape(name) + ": " if name else "", dialect.escape(cell))
        for name, cell in zip(names, cells, strict=True)
    )
    title = f"{opening}{first[1]}{closing}" if first[1] else ""
    return "\n".join([(first[0] + title).rstrip(), *((name + cell).rstrip() for name, cell in others)])


def _width(text: str) -> int:
    """Columns on screen: CJK and emoji take two, combining marks none."""
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(unicodedata.combining(char) > 0 for char in text)
