"""CSV and JSON questions; CSV on an in-memory sqlite3 with an authorizer."""

from __future__ import annotations

import csv
import functools
import io
import json
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from sayso.agent.toolbox import list_names, need
from sayso.agent.toolbox.files import MAX_NAME_CHARS, Folder
from sayso.agent.tools.definition import ToolMetadata, ToolTag
from sayso.agent.tools.tool import Tool, tool

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
            raise ValueError(f"unknown column {column!r}; known: {list_names(self.columns)}")
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


#: Significant digits of the longest number that is shown as it is, where it is not whole.
EXACT_DIGITS = 30


#: Significant digits shown of a number that has more than EXACT_DIGITS.
SHOWN_DIGITS = 15


#: Digits of the longest whole number that is shown in full.
MAX_WHOLE_DIGITS = 50


#: Characters of the longest text that is read as a number.
MAX_NUMBER_CHARS = 60


#: Not every three capitals: INV100 is an invoice, and of the codes that are words, such as ALL and TOP, none is here.
_CURRENCIES = (
    "AED|AUD|BGN|BRL|CAD|CHF|CLP|CNY|COP|CZK|DKK|EGP|EUR|GBP|HKD|HUF|IDR|ILS|INR|ISK|JPY|KES|KRW|MAD|MXN|MYR|NGN|NOK|"
    "NZD|PEN|PHP|PKR|PLN|QAR|RON|RSD|RUB|SAR|SEK|SGD|THB|TRY|TWD|UAH|USD|VND|ZAR"
)


_SIGNS = {"€": "EUR", "£": "GBP", "₹": "INR"}


_UNIT = rf"(?:{_CURRENCIES}|[$€£¥₹%])"


_WITH_UNIT = re.compile(rf"({_UNIT})?\s*(.*?)\s*({_UNIT})?", re.DOTALL)


_PLAIN = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?", re.ASCII)


_COMMAS_GROUP = re.compile(r"[+-]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?", re.ASCII)


_POINTS_GROUP = re.compile(r"[+-]?[1-9]\d{0,2}(?:\.\d{3})+,\d+", re.ASCII)


_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Figure:
    """A number with its unit: a currency, `%` or ""."""

    number: Decimal
    unit: str


def shown(value: Decimal) -> str:
    """The number for a reader: in full up to EXACT_DIGITS, else rounded; very large and small ones as 1.5E+60.

    A number that is rounded keeps at least SHOWN_DIGITS, and two places after the point where there is room.
    """
    if value == value.to_integral_value() and value.adjusted() < MAX_WHOLE_DIGITS:
        return "0" if value == 0 else f"{value:.0f}"
    tidy = Context(prec=EXACT_DIGITS).normalize(value)
    if tidy != value:
        digits = min(EXACT_DIGITS, max(SHOWN_DIGITS, value.adjusted() + 3 if value.adjusted() < EXACT_DIGITS else 0))
        tidy = Context(prec=digits).normalize(value)
    return f"{tidy:f}" if -7 <= tidy.adjusted() < MAX_WHOLE_DIGITS else f"{tidy:E}"


def figure_in(text: str) -> Figure | None:
    """The number in a cell, with or without its unit: `12.50`, `1,234.50`, `1.234,50`, `12,5`, `$5`, `8 EUR`, `7%`.

    `1,234` is a thousand and `1.234` is not: one comma before three digits groups, one point never does. Nothing
    is grouped after a zero: `0,125` is an eighth.
    """
    found = _WITH_UNIT.fullmatch(text.strip()) if len(text) <= MAX_NUMBER_CHARS else None
    if not found or (found[1] and found[3]):
        return None
    number = _number(found[2])
    unit = found[1] or found[3] or ""
    return None if number is None else Figure(number, _SIGNS.get(unit, unit))


def number_in(text: str) -> Decimal | None:
    """The number in a cell, whatever its unit."""
    figure = figure_in(text)
    return figure.number if figure else None


def _number(bare: str) -> Decimal | None:
    if _PLAIN.fullmatch(bare):
        return Decimal(bare)
    if _COMMAS_GROUP.fullmatch(bare):
        return Decimal(bare.replace(",", ""))
    if _POINTS_GROUP.fullmatch(bare) or _DECIMAL_COMMA.fullmatch(bare):
        return Decimal(bare.replace(".", "").replace(",", "."))
    return None


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


class ColumnMeasure(BaseModel):
    """A number made of a column, over all rows or over those of each group."""

    model_config = ConfigDict(extra="forbid")

    function: Function
    column: str = Field("", max_length=MAX_COLUMN_CHARS, description="A column's name; count needs none")


@dataclass(frozen=True, slots=True)
class TableQuestion:
    """What is asked of a table."""

    columns: Sequence[str]
    where: Sequence[Condition]
    group_by: Sequence[str]
    measures: Sequence[ColumnMeasure]
    sort_by: str
    descending: bool
    limit: int


def answered(text: str, ask: TableQuestion) -> str:
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


def _measured(table: Table, ask: TableQuestion) -> tuple[Table, list[str]]:
    """One row for each group, and notes on what could not be counted in."""
    keys = [table.index(column) for column in ask.group_by]
    measures = list(ask.measures) or [ColumnMeasure(function="count", column="")]
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


def _name(measure: ColumnMeasure) -> str:
    return f"{measure.function}({measure.column})" if measure.column else measure.function


def _computed(measure: ColumnMeasure, at: int, rows: list[list[str]]) -> str:
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
    columns: Sequence[str], groups: Iterable[list[list[str]]], measures: Sequence[ColumnMeasure], places: Sequence[int]
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


#: Characters of the longest expression.
MAX_QUERY_CHARS = 300


#: Steps and values that one expression may come to.
MAX_WORK = 2_000_000


def searched(text: str, expression: str) -> str:
    """What the expression finds in a JSON text, as JSON. Raises ValueError, which says what the text holds."""
    import jmespath
    from jmespath.exceptions import JMESPathError

    data = _document(text)
    try:
        found = _bounded_visitor().visit(jmespath.compile(expression).parsed, data)
        answer = json.dumps(found, ensure_ascii=False)
    except (JMESPathError, TypeError, ValueError, AttributeError, ArithmeticError) as exc:
        raise ValueError(f"{expression!r} does not work here: {_brief(exc)}. {_shape(data)}") from exc
    except RecursionError as exc:
        raise ValueError(f"{expression!r} or the JSON is nested too deeply: query a part of it") from exc
    if found is None:
        return f"null: nothing is there. {_shape(data)}"
    if len(answer) > MAX_ANSWER_CHARS:
        return f"{answer[:MAX_ANSWER_CHARS]}\n... cut off: {len(answer)} characters in all; ask for less, such as [:10]"
    return answer


def _document(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError as exc:
        raise ValueError("the JSON is nested too deeply") from exc
    except ValueError as exc:
        raise ValueError(f"that is no JSON: {exc}") from exc


def _brief(exc: Exception) -> str:
    return " ".join(str(exc).split())[:200]


def _shape(data: Any) -> str:
    """What the document is, so that the next expression fits."""
    if isinstance(data, dict):
        return f"The JSON is an object with the keys {list_names(list(data))}."
    if isinstance(data, list):
        return f"The JSON is a list of {len(data)}" + (
            f"; the first: {_shape(data[0])}" if data and isinstance(data[0], dict) else "."
        )
    return f"The JSON is {str(data)[:60]!r}."


def _bounded_visitor() -> Any:
    """A JMESPath interpreter that counts: `[@,@]|[@,@]|...` doubles its value with every step."""
    from jmespath.visitor import TreeInterpreter

    class Bounded(TreeInterpreter):  # type: ignore[misc]  # it has no types
        left = MAX_WORK

        def visit(self, node: Any, *args: Any, **kwargs: Any) -> Any:
            self.left -= 1
            value = super().visit(node, *args, **kwargs)
            if node["type"] in _GROWING:
                self.left = _after_weighing(value, self.left)
            if self.left < 0:
                raise ValueError(f"it comes to more than {MAX_WORK} steps and values, ask for less")
            return value

    return Bounded()


#: The expressions whose value may be larger than what it is made of.
_GROWING = frozenset({"multi_select_list", "multi_select_dict", "function_expression", "literal"})


def _after_weighing(value: Any, left: int) -> int:
    """What is left of the work once every value in it, and every character of text, is counted; stops below zero."""
    stack = [value]
    while stack and left >= 0:
        part = stack.pop()
        left -= 1
        if isinstance(part, str):
            left -= len(part) // 10
        elif isinstance(part, dict):
            stack.extend(part.values())
        elif isinstance(part, list):
            stack.extend(part)
    return left


#: Characters of the longest table or document that a call may carry. Files may have more: `folder.MAX_FILE_BYTES`.
MAX_DATA_CHARS = 200_000


need("tables", "jmespath")


ColumnName = Annotated[str, Field(max_length=MAX_COLUMN_CHARS)]


Columns = Annotated[
    list[ColumnName] | None, Field(max_length=MAX_COLUMNS, description="The columns to show; left out, all")
]


Where = Annotated[
    list[Condition] | None, Field(max_length=MAX_ASKED, description="Conditions that rows must all fulfil")
]


GroupBy = Annotated[
    list[ColumnName] | None, Field(max_length=MAX_ASKED, description="Columns to group by: one row for each value")
]


Measures = Annotated[
    list[ColumnMeasure] | None,
    Field(
        max_length=MAX_ASKED,
        description="Numbers to compute, such as the sum of a column, of all rows or of each group",
    ),
]


SortBy = Annotated[
    str, Field(max_length=200, description="The column to sort by; a measure is called like 'sum(amount)' or 'count'")
]


Descending = Annotated[bool, Field(description="Whether the largest comes first")]


RowLimit = Annotated[int, Field(ge=1, le=MAX_SHOWN_ROWS, description="Rows to show at most")]


Query = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MAX_QUERY_CHARS,
        description="A JMESPath expression such as 'people[?age > `30`].name' or 'length(items)'",
    ),
]


TableFile = Annotated[
    str, Field(min_length=1, max_length=MAX_NAME_CHARS, description="The file's name as list_files shows it")
]


Data = Annotated[str, Field(min_length=1, max_length=MAX_DATA_CHARS)]


@tool(read_only=True, description="Filter, sort, group and sum the rows of a CSV text")
def query_csv(
    csv_text: Annotated[Data, Field(description="The CSV text, with column names in its first line")],
    columns: Columns = None,
    where: Where = None,
    group_by: GroupBy = None,
    measures: Measures = None,
    sort_by: SortBy = "",
    descending: Descending = False,
    limit: RowLimit = 20,
) -> str:
    """The rows that remain, as CSV. Raises ValueError."""
    question = TableQuestion(columns or [], where or [], group_by or [], measures or [], sort_by, descending, limit)
    return answered(csv_text, question)


@tool(read_only=True, description="Pick values out of a JSON text with a JMESPath expression")
def query_json(json_text: Annotated[Data, Field(description="The JSON text")], expression: Query) -> str:
    """What the expression finds, as JSON. Raises ValueError."""
    return searched(json_text, expression)


def query_csv_file(
    _folder: Folder,
    file: TableFile,
    columns: Columns = None,
    where: Where = None,
    group_by: GroupBy = None,
    measures: Measures = None,
    sort_by: SortBy = "",
    descending: Descending = False,
    limit: RowLimit = 20,
) -> str:
    """As query_csv, of a file. Raises ValueError."""
    question = TableQuestion(columns or [], where or [], group_by or [], measures or [], sort_by, descending, limit)
    return answered(_folder.text(file), question)


def query_json_file(_folder: Folder, file: TableFile, expression: Query) -> str:
    """As query_json, of a file. Raises ValueError."""
    return searched(_folder.text(file), expression)


_READS_FILES = ToolMetadata(tags={ToolTag.FILE_SYSTEM})


_OF_FILES: Mapping[Callable[..., str], str] = {
    query_csv_file: "Filter, sort, group and sum the rows of a CSV file",
    query_json_file: "Pick values out of a JSON file with a JMESPath expression",
}


def tools(folder: Path | None = None, _hosts: Sequence[str] = ()) -> list[Tool]:
    """The tools of this family; with a folder, also those that read its files, whose words are screened."""
    if folder is None:
        return [query_csv, query_json]
    given = {"_folder": Folder(folder)}
    return [query_csv, query_json] + [
        tool(description=words, injected_kwargs=given, read_only=True, screen_output=True, metadata=_READS_FILES)(asked)
        for asked, words in _OF_FILES.items()
    ]
