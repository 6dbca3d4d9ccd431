"""Documents: PDF and CSV files beside the reply; a PDF is set from Markdown, on reportlab."""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from sayso.agent.toolbox.filenames import MAX_STEM_CHARS, filename
from sayso.agent.toolbox.glyphs import named, undrawable, visible
from sayso.agent.toolbox.libraries import need
from sayso.agent.tools.artifacts import emit_artifact
from sayso.agent.tools.decorator import tool
from sayso.agent.tools.tool import Tool

#: Characters of the longest text of a PDF: about twenty pages, set in a second or two whatever they say.
MAX_PDF_CHARS = 60_000
#: Rows, columns and characters of a cell of the largest CSV.
MAX_CSV_ROWS, MAX_CSV_COLUMNS, MAX_CELL_CHARS = 2_000, 50, 2_000
#: Characters of the largest CSV.
MAX_CSV_CHARS = 500_000

#: What a spreadsheet reads as a formula that it runs.
_FORMULA = re.compile(r"[=+\-@\t\r]")
_NUMBER = re.compile(r"[+-]?[\d.,]+(?:[eE][+-]?\d+)?%?", re.ASCII)

Title = Annotated[str, Field(min_length=1, max_length=120, description="The title, also shown on top")]
Name = Annotated[
    str, Field(max_length=MAX_STEM_CHARS, description="The file's name without its ending; empty: the title")
]
Cell = str | float | int | bool | None

need("documents", "reportlab", "matplotlib")


@tool(read_only=True, description="Make a PDF file for the user from a text in Markdown")
def make_pdf(
    title: Title,
    text: Annotated[
        str,
        Field(
            min_length=1,
            max_length=MAX_PDF_CHARS,
            description=(
                "Markdown: # headings, **bold**, *italic*, `code`, - and 1. lists, > quotes, | tables |, ---, "
                "links. No pictures, no HTML"
            ),
        ),
    ],
    file_name: Name = "",
) -> str:
    """Hand the PDF over and say how many pages it has. Raises ValueError when its letters cannot be drawn."""
    from sayso.agent.toolbox.pdf import pdf_of_markdown

    left_out = _left_out(title + text)
    pdf, pages = pdf_of_markdown(_without(title, left_out), _without(text, left_out))
    name = filename(file_name or title, "pdf")
    emit_artifact(data=pdf, filename=name, mime_type="application/pdf")
    told = f"{name} is made ({pages} page{'s' if pages > 1 else ''}) and goes to the user with your reply."
    return f"{told} Left out, because its font cannot draw it: {named(left_out)}." if left_out else told


@tool(read_only=True, description="Make a CSV file for the user, which opens in a spreadsheet, from rows of cells")
def make_csv(
    columns: Annotated[
        list[str], Field(min_length=1, max_length=MAX_CSV_COLUMNS, description="The names of the columns")
    ],
    rows: Annotated[
        list[list[Cell]],
        Field(max_length=MAX_CSV_ROWS, description="The rows; each has one cell for each column: text, number or null"),
    ],
    file_name: Name = "table",
) -> str:
    """Hand the CSV over and say how many rows it has. Raises ValueError."""
    for number, row in enumerate(rows, 1):
        if len(row) != len(columns):
            raise ValueError(f"row {number} has {len(row)} cells for {len(columns)} columns: give each one, or null")
    text = io.StringIO()
    writer = csv.writer(text)
    every: list[Sequence[Cell]] = [columns, *rows]
    for cells in every:
        writer.writerow([_cell(cell) for cell in cells])
        if text.tell() > MAX_CSV_CHARS:
            raise ValueError(f"the table has more than {MAX_CSV_CHARS} characters: make several files")
    name = filename(file_name or "table", "csv")
    data = text.getvalue().encode("utf-8-sig", "replace")  # without the mark, Excel garbles umlauts
    emit_artifact(data=data, filename=name, mime_type="text/csv")
    return f"{name} is made ({len(rows)} row{'' if len(rows) == 1 else 's'}) and goes to the user with your reply."


def tools(_folder: Path | None = None, _hosts: Sequence[str] = ()) -> list[Tool]:
    """The tools of this family."""
    return [make_pdf, make_csv]


def _cell(value: Cell) -> str | float | int:
    """A cell's value. What a spreadsheet would run as a formula gets the apostrophe that makes it text."""
    if value is None or isinstance(value, bool) or not isinstance(value, str):
        return "" if value is None else str(value).lower() if isinstance(value, bool) else value
    if len(value) > MAX_CELL_CHARS:
        raise ValueError(f"a cell has {len(value)} characters: at most {MAX_CELL_CHARS}")
    return f"'{value}" if _FORMULA.match(value) and not _NUMBER.fullmatch(value) else value


def _left_out(text: str) -> list[str]:
    """What the PDF has to do without: emoji and signs. Raises ValueError when letters or digits are among it."""
    missing = undrawable(text) + [char for char in dict.fromkeys(text) if _runs_right_to_left(char)]
    letters = [char for char in missing if unicodedata.category(char)[0] in "LMN"]
    if letters:
        raise ValueError(
            f"no PDF was made: it cannot set {named(letters)}. It sets Latin, Greek and Cyrillic letters; "
            "answer in a message instead, or write the words in Latin letters"
        )
    return missing


def _runs_right_to_left(char: str) -> bool:
    """reportlab sets Arabic and Hebrew letter by letter, from the wrong side."""
    return unicodedata.bidirectional(char) in ("R", "AL", "AN")


def _without(text: str, characters: Sequence[str]) -> str:
    return visible(text).translate(dict.fromkeys(map(ord, characters)))
