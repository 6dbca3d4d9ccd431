"""The tools that query CSV and JSON, from a text or from a file.

Rows are filtered, grouped and summed here and not in SQL: cells hold amounts with units, sums are
exact decimals, and text is compared without case in every script. SQLite computes in floats and
folds the case of ASCII letters only.
"""

from __future__ import annotations

import csv
import functools
import io
import json
import operator
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from sayso.agent.toolbox import list_names, need, plural
from sayso.agent.toolbox.calculator import Amount, format_number, parse_amount
from sayso.agent.toolbox.files import MAX_NAME_CHARS, Folder, folder_tools
from sayso.agent.tools.tool import Tool, tool

#: Characters of the longest text that a call may carry. Files may have more: `files.MAX_READ_BYTES`.
MAX_DATA_CHARS = 200_000
#: Cells, rows and columns of the largest table.
MAX_CELLS = 500_000
MAX_ROWS = 50_000
MAX_COLUMNS = 200
#: Characters of the longest column name in a question.
MAX_COLUMN_CHARS = 200
#: Conditions, groups and measures of one question.
MAX_CLAUSES = 10
#: Rows and characters of the longest answer.
MAX_ANSWER_ROWS = 100
MAX_ANSWER_CHARS = 10_000
#: Characters of the longest JMESPath expression.
MAX_QUERY_CHARS = 300
#: Steps and values that one expression may take.
MAX_WORK = 2_000_000
_DELIMITERS = ",;\t|"
#: JMESPath nodes whose value may be larger than what it is made of.
_GROWING_NODES = frozenset(
    {"multi_select_list", "multi_select_dict", "function_expression", "literal"}
)
Operator = Literal[
    "=", "!=", "<", "<=", ">", ">=", "contains", "starts with", "is empty", "is not empty"
]
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
    """A number computed from a column, over all rows or over the rows of each group."""

    model_config = ConfigDict(extra="forbid")

    function: Function
    column: str = Field(
        "", max_length=MAX_COLUMN_CHARS, description="A column's name; count needs none"
    )

    @property
    def name(self) -> str:
        """The name of its column in the answer, such as `sum(amount)`."""
        if self.column:
            return f"{self.function}({self.column})"
        return self.function


ColumnName = Annotated[str, Field(max_length=MAX_COLUMN_CHARS)]
Columns = Annotated[
    list[ColumnName] | None,
    Field(max_length=MAX_COLUMNS, description="The columns to show; left out, all"),
]
Where = Annotated[
    list[Condition] | None,
    Field(max_length=MAX_CLAUSES, description="Conditions that rows must all fulfil"),
]
GroupBy = Annotated[
    list[ColumnName] | None,
    Field(max_length=MAX_CLAUSES, description="Columns to group by: one row for each value"),
]
Measures = Annotated[
    list[ColumnMeasure] | None,
    Field(
        max_length=MAX_CLAUSES,
        description="Numbers to compute, such as the sum of a column, of all rows or of each group",
    ),
]
SortBy = Annotated[
    str,
    Field(
        max_length=200,
        description="The column to sort by; a measure is called like 'sum(amount)' or 'count'",
    ),
]
Descending = Annotated[bool, Field(description="Whether the largest comes first")]
RowLimit = Annotated[int, Field(ge=1, le=MAX_ANSWER_ROWS, description="Rows to show at most")]
Query = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MAX_QUERY_CHARS,
        description="A JMESPath expression such as 'people[?age > `30`].name' or 'length(items)'",
    ),
]
TableFile = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MAX_NAME_CHARS,
        description="The file's name as list_files shows it",
    ),
]
Data = Annotated[str, Field(min_length=1, max_length=MAX_DATA_CHARS)]

need("tables")


@tool(read_only=True)
def query_csv(
    csv_text: Annotated[
        Data, Field(description="The CSV text, with column names in its first line")
    ],
    columns: Columns = None,
    where: Where = None,
    group_by: GroupBy = None,
    measures: Measures = None,
    sort_by: SortBy = "",
    descending: Descending = False,
    limit: RowLimit = 20,
) -> str:
    """Filter, sort, group and sum the rows of a CSV text."""
    table = parse_csv(csv_text)
    tests = [(table.index(condition.column), _cell_test(condition)) for condition in where or ()]
    matching = Table(
        table.columns, [row for row in table.rows if all(test(row[at]) for at, test in tests)]
    )
    notes = []
    if table.long_rows:
        notes.append(
            f"Careful: {plural(table.long_rows, 'row')} with more cells than columns; what is past the last column is "
            "left out. A cell with the delimiter in it, as in 1,5, must be in quotes"
        )
    result = matching
    if measures or group_by:
        result, measure_notes = _aggregate(matching, group_by or [], measures or [])
        notes += measure_notes
    if sort_by:
        at = result.index(sort_by)
        result.rows.sort(key=lambda row: _sort_key(row[at]), reverse=descending)
    if columns:
        places = [result.index(column) for column in columns]
        rows = [[row[at] for at in places] for row in result.rows]
        result = Table([result.columns[at] for at in places], rows)
    return _write_answer(table, matching, result, limit, notes)


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
    """Filter, sort, group and sum the rows of a CSV file."""
    return str(
        query_csv(
            _folder.text(file), columns, where, group_by, measures, sort_by, descending, limit
        )
    )


@tool(read_only=True)
def query_json(
    json_text: Annotated[Data, Field(description="The JSON text")], expression: Query
) -> str:
    """Pick values out of a JSON text with a JMESPath expression."""
    import jmespath
    from jmespath.exceptions import JMESPathError

    try:
        document = json.loads(json_text)
    except RecursionError as exc:
        raise ValueError("the JSON is nested too deeply") from exc
    except ValueError as exc:
        raise ValueError(f"that is not JSON: {exc}") from exc
    try:
        value = _bounded_interpreter().visit(jmespath.compile(expression).parsed, document)
        answer = json.dumps(value, ensure_ascii=False)
    except (JMESPathError, TypeError, ValueError, AttributeError, ArithmeticError) as exc:
        reason = " ".join(str(exc).split())[:200]
        raise ValueError(
            f"{expression!r} does not work here: {reason}. {_describe_json(document)}"
        ) from exc
    except RecursionError as exc:
        raise ValueError(
            f"{expression!r} or the JSON is nested too deeply: query a part of it"
        ) from exc
    if value is None:
        return f"null: nothing is there. {_describe_json(document)}"
    if len(answer) > MAX_ANSWER_CHARS:
        return f"{answer[:MAX_ANSWER_CHARS]}\n... cut off: {len(answer)} characters in all; ask for less, such as [:10]"
    return answer


def query_json_file(_folder: Folder, file: TableFile, expression: Query) -> str:
    """Pick values out of a JSON file with a JMESPath expression."""
    return str(query_json(_folder.text(file), expression))


def tools(folder: Path | None = None, _hosts: Sequence[str] = ()) -> list[Tool]:
    """Return the tools of this family, with a folder also those that read its files."""
    found: list[Tool] = [query_csv, query_json]
    if folder:
        found += folder_tools(folder, query_csv_file, query_json_file)
    return found


@dataclass(frozen=True, slots=True)
class Table:
    """Column names, and rows of as many cells.

    `long_rows` counts the rows that had more cells, which were cut off.
    """

    columns: list[str]
    rows: list[list[str]]
    long_rows: int = 0

    def index(self, column: str) -> int:
        """Return the position of a column. Case does not matter. Raises ValueError."""
        folded = [name.casefold() for name in self.columns]
        if column.strip().casefold() not in folded:
            raise ValueError(f"unknown column {column!r}; known: {list_names(self.columns)}")
        return folded.index(column.strip().casefold())


def parse_csv(text: str) -> Table:
    """Return the table of a CSV text. Raises ValueError."""
    lines = _csv_lines(text)
    columns = [name.strip() for name in next(lines, [])]
    if not any(columns) or len(columns) > MAX_COLUMNS:
        raise ValueError(
            f"the first line must name 1 to {MAX_COLUMNS} columns, such as 'name,amount'; it has {len(columns)}"
        )
    rows: list[list[str]] = []
    long_rows = 0
    for line_count, row in enumerate(lines, 1):
        long_rows += any(row[len(columns) :])
        if line_count * len(columns) > MAX_CELLS or len(rows) >= MAX_ROWS:
            raise ValueError(
                f"the table has more than {MAX_ROWS} rows or {MAX_CELLS} cells: query a part of it"
            )
        if any(row):
            rows.append((row + [""] * len(columns))[: len(columns)])
    # The second column of the same name is called `name (2)`.
    folded = [name.casefold() for name in columns]
    earlier = [folded[:at].count(name) for at, name in enumerate(folded)]
    names = [
        f"{name} ({count + 1})" if count else name
        for name, count in zip(columns, earlier, strict=True)
    ]
    return Table(names, rows, long_rows)


def _csv_lines(text: str) -> Iterator[list[str]]:
    """Yield the rows of a CSV text. Raises ValueError.

    The delimiter is the most frequent one in the first line, outside of quotes if there is any.
    """
    content = text.lstrip("\ufeff\r\n")
    for head in ("".join(content.split('"')[::2]), content):
        counts = {mark: head.partition("\n")[0].count(mark) for mark in _DELIMITERS}
        if any(counts.values()):
            break
    delimiter = max(_DELIMITERS, key=lambda mark: counts[mark])
    try:
        yield from csv.reader(io.StringIO(content), delimiter=delimiter)
    except csv.Error as exc:
        raise ValueError(
            f"that is not CSV: {exc}. Put cells with a {delimiter!r} or a line break in quotes"
        ) from exc


def _cell_test(condition: Condition) -> Callable[[str], bool]:
    value = condition.value.strip().casefold()
    match condition.operator:
        case "contains":
            return lambda cell: value in cell.casefold()
        case "starts with":
            return lambda cell: cell.strip().casefold().startswith(value)
        case "is empty":
            return lambda cell: not cell.strip()
        case "is not empty":
            return lambda cell: bool(cell.strip())
        case name:
            return functools.partial(
                _compare, _COMPARISONS[name], value, parse_amount(condition.value)
            )


def _compare(
    compare: Callable[[Any, Any], bool], value: str, amount: Amount | None, cell: str
) -> bool:
    """Compare as numbers if both are numbers, else as text. An empty cell is neither smaller nor larger.

    Only numbers of one unit are equal: 5 USD is not 5 EUR, and an id that looks like money is not
    the number in it.
    """
    cell_amount = parse_amount(cell)
    text = cell.strip().casefold()
    for_equality = compare in (operator.eq, operator.ne)
    if amount is not None and cell_amount is not None:
        if for_equality:
            return compare(cell_amount, amount)
        return compare(cell_amount.number, amount.number)
    return (for_equality or (amount is None and bool(text))) and compare(text, value)


_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _aggregate(
    table: Table, group_by: Sequence[str], measures: Sequence[ColumnMeasure]
) -> tuple[Table, list[str]]:
    """Return one row for each group, and notes about cells that were not counted and mixed units."""
    keys = [table.index(column) for column in group_by]
    measures = measures or [ColumnMeasure(function="count", column="")]
    groups: dict[tuple[str, ...], list[list[str]]] = {} if keys else {(): []}
    for row in table.rows:
        groups.setdefault(tuple(row[at] for at in keys), []).append(row)
    rows = [list(key) for key in groups]
    notes = list[str]()
    for measure in measures:
        results, measure_notes = _measure(table, measure, groups.values())
        notes += measure_notes
        for row, result in zip(rows, results, strict=True):
            row.append(result)
    return Table(
        [table.columns[at] for at in keys] + [measure.name for measure in measures], rows
    ), notes


def _measure(
    table: Table, measure: ColumnMeasure, groups: Iterable[list[list[str]]]
) -> tuple[list[str], list[str]]:
    """Return the measure of each group, and notes about cells that are no numbers and mixed units."""
    if measure.function == "count":
        if not measure.column:
            return [str(len(rows)) for rows in groups], []
        counted = table.index(measure.column)
        counts = [sum(bool(row[counted].strip()) for row in rows) for rows in groups]
        return [str(count) for count in counts], []
    if not measure.column:
        example = {"function": measure.function, "column": "amount"}
        raise ValueError(f"{measure.function} needs a column, such as {example}")
    at = table.index(measure.column)
    column = table.columns[at]
    results = list[str]()
    not_numbers = 0
    mixed_units = set[str]()
    for rows in groups:
        amounts = [parse_amount(row[at]) for row in rows if row[at].strip()]
        units = {amount.unit for amount in amounts if amount and amount.unit}
        not_numbers += amounts.count(None)
        mixed_units |= units if len(units) > 1 else set()
        if numbers := [amount.number for amount in amounts if amount]:
            with localcontext(Context(prec=60)):
                results.append(format_number(_FUNCTIONS[measure.function](numbers)))
        else:
            results.append("0" if measure.function == "sum" else "")
    notes = []
    if not_numbers:
        notes.append(
            f"{not_numbers} cells of {column!r} are no numbers and are not in {measure.name}"
        )
    if mixed_units:
        units_text = ", ".join(sorted(mixed_units))
        assumed = f"{measure.name} takes them for one unit; filter with 'contains'"
        notes.append(f"Careful: {column!r} mixes {units_text}, and {assumed}")
    return results, notes


_FUNCTIONS: Mapping[str, Callable[[list[Decimal]], Decimal]] = {
    "sum": lambda numbers: sum(numbers, Decimal(0)),
    "average": lambda numbers: sum(numbers, Decimal(0)) / len(numbers),
    "median": statistics.median,
    "min": min,
    "max": max,
}


def _sort_key(cell: str) -> tuple[int, Decimal, str]:
    """Sort empty cells first, then numbers by size, then text by letters."""
    if not cell.strip():
        return 0, Decimal(0), cell.casefold()
    amount = parse_amount(cell)
    if amount:
        return 1, amount.number, cell.casefold()
    return 2, Decimal(0), cell.casefold()


def _write_answer(
    table: Table, matching: Table, result: Table, limit: int, notes: Sequence[str]
) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(result.columns)
    written = 0
    for row in result.rows[:limit]:
        if text.tell() > MAX_ANSWER_CHARS:
            break
        writer.writerow([cell[:1000] for cell in row])
        written += 1
    head = plural(len(table.rows), "row")
    if len(matching.rows) < len(table.rows):
        head = f"{len(matching.rows)} of {head} match"
    cut = ""
    if written < len(result.rows):
        cut = f"; the first {written} of {len(result.rows)} are shown"
    return "\n".join(
        [f"{head}{cut}.", *notes, "", text.getvalue()[: 2 * MAX_ANSWER_CHARS].rstrip("\n")]
    )


def _describe_json(document: Any) -> str:
    """Return what the document holds, so that the next expression fits."""
    if isinstance(document, dict):
        return f"The JSON is an object with the keys {list_names(list(document))}."
    if isinstance(document, list):
        of_objects = document and isinstance(document[0], dict)
        if of_objects:
            first = f"; the first: {_describe_json(document[0])}"
        else:
            first = "."
        return f"The JSON is a list of {len(document)}{first}"
    return f"The JSON is {str(document)[:60]!r}."


def _bounded_interpreter() -> Any:
    """Return a JMESPath interpreter that counts its work, and raises ValueError beyond MAX_WORK.

    Without a limit `[@,@]|[@,@]|...` would double the value with every step.
    """
    from jmespath.visitor import TreeInterpreter

    class BoundedInterpreter(TreeInterpreter):  # type: ignore[misc]  # jmespath has no types
        left = MAX_WORK

        def visit(self, node: Any, *args: Any, **kwargs: Any) -> Any:
            self.left -= 1
            value = super().visit(node, *args, **kwargs)
            if node["type"] in _GROWING_NODES:
                self.left = _subtract_size(value, self.left)
            if self.left < 0:
                raise ValueError(f"it takes more than {MAX_WORK} steps and values, ask for less")
            return value

    return BoundedInterpreter()


def _subtract_size(value: Any, left: int) -> int:
    """Return `left` minus the number of values in `value`, where ten characters count as one.

    Stops counting below zero.
    """
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
