"""CsvQuery: the rows of a CSV text, filtered, grouped, summed up and sorted; sums are exact."""

from __future__ import annotations

import csv
import functools
import io
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from sayso.agent.toolbox.csv_table import Table, table_of
from sayso.agent.toolbox.figures import Figure, figure_in, number_in, shown

#: Characters of the longest column name that can be asked for.
MAX_COLUMN_CHARS = 200
#: Conditions, groups and measures of one question.
MAX_ASKED = 10
#: Rows of the longest answer.
MAX_SHOWN_ROWS = 100
#: Characters of the longest answer.
MAX_ANSWER_CHARS = 10_000

Operator = Literal["=", "!=", "<", "<=", ">", ">=", "contains", "starts with", "is empty", "is not empty"]
Function = Literal["count", "sum", "average", "median", "min", "max"]


class Condition(BaseModel):
    """What a row must fulfil."""

    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=True)

    column: str = Field(max_length=MAX_COLUMN_CHARS, description="A column's name")
    operator: Operator = "="
    value: str = Field(
        "",
        max_length=1000,
        description="What the cell is compared with: numbers as numbers, for = and != with their unit ('8 EUR'), "
        "other text as text",
    )


class Measure(BaseModel):
    """A number made of a column, over all rows or over those of each group."""

    model_config = ConfigDict(extra="forbid")

    function: Function
    column: str = Field("", max_length=MAX_COLUMN_CHARS, description="A column's name; count needs none")


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of a table."""

    columns: Sequence[str]
    where: Sequence[Condition]
    group_by: Sequence[str]
    measures: Sequence[Measure]
    sort_by: str
    descending: bool
    limit: int


def answered(text: str, ask: Question) -> str:
    """The rows of a CSV text that remain, as CSV, after a sentence on how many. Raises ValueError."""
    table = table_of(text)
    kept = _filtered(table, ask.where)
    made, notes = _measured(kept, ask) if ask.measures or ask.group_by else (kept, [])
    if table.longer:
        notes = [
            f"Careful: {_rows(table.longer)} with more cells than columns; what is past the last column is left out. "
            "A cell with the delimiter in it, as in 1,5, must be in quotes",
            *notes,
        ]
    ordered = _sorted(made, ask.sort_by, descending=ask.descending)
    shown_rows = _chosen(ordered, ask.columns)
    return _told(table, kept, shown_rows, ask.limit, notes)


def _filtered(table: Table, where: Sequence[Condition]) -> Table:
    tests = [(table.index(condition.column), _test(condition)) for condition in where]
    return Table(table.columns, [row for row in table.rows if all(test(row[at]) for at, test in tests)])


def _test(condition: Condition) -> Callable[[str], bool]:
    value = condition.value.strip()
    match condition.operator:
        case "contains":
            return lambda cell: value.casefold() in cell.casefold()
        case "starts with":
            return lambda cell: cell.strip().casefold().startswith(value.casefold())
        case "is empty":
            return lambda cell: not cell.strip()
        case "is not empty":
            return lambda cell: bool(cell.strip())
        case operator:
            return functools.partial(_compares, operator, value, figure_in(value))


def _compares(operator: str, value: str, figure: Figure | None, cell: str) -> bool:
    """As numbers where both are, else as text; an empty cell is neither smaller nor larger than anything.

    Only numbers of one unit are equal: 5 USD are not 5 EUR, and an id that looks like money is not its number.
    """
    held, exactly = figure_in(cell), operator in ("=", "!=")
    if figure is not None and held is not None:
        return _ORDERS[operator](held, figure) if exactly else _ORDERS[operator](held.number, figure.number)
    if exactly:
        return _ORDERS[operator](cell.strip().casefold(), value.casefold())
    if figure is not None or not cell.strip():
        return False
    return _ORDERS[operator](cell.strip().casefold(), value.casefold())


_ORDERS: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": lambda left, right: bool(left == right),
    "!=": lambda left, right: bool(left != right),
    "<": lambda left, right: bool(left < right),
    "<=": lambda left, right: bool(left <= right),
    ">": lambda left, right: bool(left > right),
    ">=": lambda left, right: bool(left >= right),
}


def _measured(table: Table, ask: Question) -> tuple[Table, list[str]]:
    """One row for each group, and notes on what could not be counted in."""
    keys = [table.index(column) for column in ask.group_by]
    measures = list(ask.measures) or [Measure(function="count", column="")]
    places = [table.index(measure.column) if measure.column else -1 for measure in measures]
    groups: dict[tuple[str, ...], list[list[str]]] = {} if keys else {(): []}
    for row in table.rows:
        groups.setdefault(tuple(row[at] for at in keys), []).append(row)
    names = [table.columns[at] for at in keys] + [_name(measure) for measure in measures]
    rows = [
        [*key, *(_computed(measure, at, rows) for measure, at in zip(measures, places, strict=True))]
        for key, rows in groups.items()
    ]
    return Table(names, rows), _notes(table.columns, groups.values(), measures, places)


def _name(measure: Measure) -> str:
    return f"{measure.function}({measure.column})" if measure.column else measure.function


def _computed(measure: Measure, at: int, rows: list[list[str]]) -> str:
    if measure.function == "count":
        return str(len(rows) if at < 0 else sum(bool(row[at].strip()) for row in rows))
    if at < 0:
        raise ValueError(
            f"{measure.function} needs a column, such as {{'function': {measure.function!r}, 'column': 'amount'}}"
        )
    numbers = [number for row in rows if (number := number_in(row[at])) is not None]
    if not numbers:
        return "0" if measure.function == "sum" else ""
    with localcontext(Context(prec=60)):
        return shown(_FUNCTIONS[measure.function](numbers))


_FUNCTIONS: Mapping[str, Callable[[list[Decimal]], Decimal]] = {
    "sum": lambda numbers: sum(numbers, Decimal(0)),
    "average": lambda numbers: sum(numbers, Decimal(0)) / len(numbers),
    "median": statistics.median,
    "min": min,
    "max": max,
}


def _notes(
    columns: Sequence[str], groups: Iterable[list[list[str]]], measures: Sequence[Measure], places: Sequence[int]
) -> list[str]:
    """What the numbers do not say of themselves: cells that are none, and sums of apples and pears."""
    notes = []
    for measure, at in zip(measures, places, strict=True):
        if measure.function == "count" or at < 0:
            continue
        odd, mixed = _oddities(at, groups)
        if odd:
            notes.append(f"{odd} cells of {columns[at]!r} are no numbers and are not in {_name(measure)}")
        if mixed:
            notes.append(
                f"Careful: {columns[at]!r} mixes {', '.join(mixed)}, and {_name(measure)} takes them for one unit; "
                "filter with 'contains'"
            )
    return notes


def _oddities(at: int, groups: Iterable[list[list[str]]]) -> tuple[int, list[str]]:
    """How many cells of a column are no numbers, and the units that meet in one group."""
    odd, mixed = 0, set[str]()
    for rows in groups:
        figures = [figure_in(row[at]) for row in rows if row[at].strip()]
        units = {figure.unit for figure in figures if figure and figure.unit}
        odd += figures.count(None)
        mixed |= units if len(units) > 1 else set()
    return odd, sorted(mixed)


def _sorted(table: Table, column: str, *, descending: bool) -> Table:
    if not column:
        return table
    at = table.index(column)
    return Table(table.columns, sorted(table.rows, key=lambda row: _rank(row[at]), reverse=descending))


def _rank(cell: str) -> tuple[int, Decimal, str]:
    """Numbers by size before text by letters, and empty cells first."""
    number = number_in(cell)
    return (0 if not cell.strip() else 2 if number is None else 1, number or Decimal(0), cell.casefold())


def _chosen(table: Table, columns: Sequence[str]) -> Table:
    if not columns:
        return table
    places = [table.index(column) for column in columns]
    return Table([table.columns[at] for at in places], [[row[at] for at in places] for row in table.rows])


def _told(table: Table, kept: Table, answer: Table, limit: int, notes: Sequence[str]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(answer.columns)
    shown_rows = 0
    for row in answer.rows[:limit]:
        if text.tell() > MAX_ANSWER_CHARS:
            break
        writer.writerow([cell[:1000] for cell in row])
        shown_rows += 1
    head = (
        f"{len(kept.rows)} of {_rows(len(table.rows))} match"
        if len(kept.rows) < len(table.rows)
        else _rows(len(table.rows))
    )
    cut = f"; the first {shown_rows} of {len(answer.rows)} are shown" if shown_rows < len(answer.rows) else ""
    return "\n".join([f"{head}{cut}.", *notes, "", text.getvalue()[: 2 * MAX_ANSWER_CHARS].rstrip("\n")])


def _rows(count: int) -> str:
    return f"{count} row{'' if count == 1 else 's'}"
