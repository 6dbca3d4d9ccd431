"""CsvTable: the column names and rows of a CSV text, whatever it puts between its cells."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass

from sayso.agent.toolbox.listing import listed

#: Cells of the largest table.
MAX_CELLS = 500_000
#: Rows of the longest table.
MAX_ROWS = 50_000
#: Columns of the widest table.
MAX_COLUMNS = 200

_DELIMITERS = ",;\t|"


@dataclass(frozen=True, slots=True)
class Table:
    """Column names, and rows that each have as many cells; of `longer` rows cells were left out."""

    columns: list[str]
    rows: list[list[str]]
    longer: int = 0

    def index(self, column: str) -> int:
        """Where a column is. Raises ValueError."""
        folded = [name.casefold() for name in self.columns]
        if column.strip().casefold() not in folded:
            raise ValueError(f"unknown column {column!r}; known: {listed(self.columns)}")
        return folded.index(column.strip().casefold())


def table_of(text: str) -> Table:
    """The table that a CSV text holds. Raises ValueError."""
    lines = _lines(text)
    columns = [name.strip() for name in next(lines, [])]
    if not any(columns) or len(columns) > MAX_COLUMNS:
        raise ValueError(
            f"the first line must name 1 to {MAX_COLUMNS} columns, such as 'name,amount'; it has {len(columns)}"
        )
    columns = _distinct(columns)
    rows: list[list[str]] = []
    cells = longer = 0
    for row in lines:
        longer += any(row[len(columns) :])
        if (cells := cells + len(columns)) > MAX_CELLS or len(rows) >= MAX_ROWS:
            raise ValueError(f"the table has more than {MAX_ROWS} rows or {MAX_CELLS} cells: query a part of it")
        if any(row):
            rows.append((row + [""] * len(columns))[: len(columns)])
    return Table(columns, rows, longer)


def _distinct(columns: list[str]) -> list[str]:
    """Of columns with one name, the second is `name (2)`."""
    folded = [name.casefold() for name in columns]
    before = [folded[:at].count(name) for at, name in enumerate(folded)]
    return [f"{name} ({twice + 1})" if twice else name for name, twice in zip(columns, before, strict=True)]


def _lines(text: str) -> Iterator[list[str]]:
    """The cells of each line."""
    delimiter = _delimiter(text.lstrip("\ufeff\r\n"))
    try:
        yield from csv.reader(io.StringIO(text.lstrip("\ufeff\r\n")), delimiter=delimiter)
    except csv.Error as exc:
        raise ValueError(f"that is no CSV: {exc}. Put cells with a {delimiter!r} or a line break in quotes") from exc


def _delimiter(text: str) -> str:
    """What the first line has most of outside of quotes; anywhere in it, where a quote is a plain character."""
    for head in ("".join(text.split('"')[::2]), text):
        counted = {mark: head.partition("\n")[0].count(mark) for mark in _DELIMITERS}
        if any(counted.values()):
            break
    return max(_DELIMITERS, key=lambda mark: counted[mark])
