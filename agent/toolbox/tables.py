"""Tools that query CSV and JSON, from a text or from a file.

Rows are filtered, grouped and summed here and not in SQL. Cells have amounts with units, sums are
exact decimals, and text is compared without case in every script. SQLite computes in floats, and
ignores the case of ASCII letters only.
"""

from __future__ import annotations

import csv
import functools
import io
import itertools
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

#: Characters of the longest text in a call. Files may have more: `files.MAX_READ_BYTES`.
MAX_DATA_CHARS = 200_000
#: The largest table.
MAX_CELLS = 500_000
MAX_ROWS = 50_000
MAX_COLUMNS = 200
#: Characters of the longest column name in a query.
MAX_COLUMN_CHARS = 200
#: The most conditions, groups or measures of one query.
MAX_CLAUSES = 10
#: Characters of the longest cell in an answer.
MAX_CELL_CHARS = 1000
#: The longest answer. The row of a CSV answer that passes MAX_ANSWER_CHARS is its last one, and is
#: cut at twice as many.
MAX_ANSWER_ROWS = 100
MAX_ANSWER_CHARS = 10_000
#: Characters of the longest JMESPath expression.
MAX_QUERY_CHARS = 300
#: The most steps of one JMESPath expression, and values in their results.
MAX_WORK = 2_000_000
_DELIMITERS = ",;\t|"
#: Parts of a JMESPath expression whose result may be larger than the values that it is made of.
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
        """The name of its column in the answer, such as `sum(amount)` or `count`."""
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
    Field(
        max_length=MAX_CLAUSES,
        description="Columns to group by: one row for each value, without regard to case",
    ),
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

# Where a library is missing, the import of this module fails with the command that installs it.
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
    matching = _filter(table, where or [])

    # What the model must know to read the answer.
    notes = []
    if table.long_rows:
        notes.append(
            f"Careful: {plural(table.long_rows, 'row')} with more cells than columns; what is past the last column is "
            "left out. A cell with the delimiter in it, as in 1,5, must be in quotes"
        )

    # The answer shows the matching rows, or one row for each group of them.
    result = matching
    if measures or group_by:
        result, measure_notes = _aggregate(matching, group_by or [], measures or [])
        notes += measure_notes
    if sort_by:
        sort_column = result.index(sort_by)
        result.rows.sort(key=lambda row: _sort_key(row[sort_column]), reverse=descending)
    if columns:
        result = _select(result, columns)
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
    # Called as a plain function: its arguments are not checked again, and MAX_DATA_CHARS is not a
    # limit for files.
    return query_csv(
        _folder.text(file),
        columns=columns,
        where=where,
        group_by=group_by,
        measures=measures,
        sort_by=sort_by,
        descending=descending,
        limit=limit,
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
        return (
            f"{answer[:MAX_ANSWER_CHARS]}\n"
            f"... cut off: {len(answer)} characters in all; ask for less, such as [:10]"
        )
    return answer


def query_json_file(_folder: Folder, file: TableFile, expression: Query) -> str:
    """Pick values out of a JSON file with a JMESPath expression."""
    return query_json(_folder.text(file), expression)


def tools(folder: Path | None = None, _hosts: Sequence[str] = ()) -> list[Tool]:
    """Return the tools of this family. With a folder, those that read its files are among them.

    `open_toolbox` calls all families with the same arguments; this one has no use for hosts.
    """
    family: list[Tool] = [query_csv, query_json]
    if folder:
        family += folder_tools(folder, query_csv_file, query_json_file)
    return family


@dataclass(frozen=True, slots=True)
class Table:
    """The rows of a CSV text, or of an answer."""

    #: The names of the columns. No two are the same, also without regard to case.
    columns: list[str]
    #: Each row has one cell for each column.
    rows: list[list[str]]
    #: How many rows had more cells than columns. The cells past the last column are not in `rows`.
    long_rows: int = 0

    def index(self, column: str) -> int:
        """Return the position of a column. Case does not matter.

        Raise ValueError for an unknown one.
        """
        folded_names = [name.casefold() for name in self.columns]
        folded_column = column.strip().casefold()
        if folded_column not in folded_names:
            raise ValueError(f"unknown column {column!r}; known: {list_names(self.columns)}")
        return folded_names.index(folded_column)


def parse_csv(text: str) -> Table:
    """Return the table of a CSV text, without its empty rows.

    Raise ValueError for a text that is not CSV or too large.
    """
    lines = _csv_lines(text)
    columns = [name.strip() for name in next(lines, [])]
    if not any(columns) or len(columns) > MAX_COLUMNS:
        raise ValueError(
            f"the first line must name 1 to {MAX_COLUMNS} columns, such as 'name,amount'; it has {len(columns)}"
        )

    rows: list[list[str]] = []
    long_rows = 0
    for row in lines:
        if not any(row):
            continue
        if any(row[len(columns) :]):
            long_rows += 1
        padded_row = row + [""] * len(columns)
        rows.append(padded_row[: len(columns)])
        if len(rows) > MAX_ROWS or len(rows) * len(columns) > MAX_CELLS:
            raise ValueError(
                f"the table has more than {MAX_ROWS} rows or {MAX_CELLS} cells: query a part of it"
            )

    names = [name or f"column {number}" for number, name in enumerate(columns, 1)]
    return Table(_different_names(names), rows, long_rows)


def _different_names(names: Sequence[str]) -> list[str]:
    """Return the names of columns. The second column of the same name is called `name (2)`.

    Case does not matter. A column that is called `name (2)` in the text keeps this name, and the
    second column `name` is called `name (3)`.
    """
    given_names = {name.casefold() for name in names}
    used_names: set[str] = set()
    different: list[str] = []
    for name in names:
        new_name = name
        if name.casefold() in used_names:
            numbered = (f"{name} ({number})" for number in itertools.count(2))
            taken = given_names | used_names
            new_name = next(each for each in numbered if each.casefold() not in taken)
        used_names.add(new_name.casefold())
        different.append(new_name)
    return different


def _csv_lines(text: str) -> Iterator[list[str]]:
    """Yield the rows of a CSV text, with the names of its columns. Raise ValueError."""
    content = text.lstrip("\ufeff\r\n")
    delimiter = _delimiter_of(content)
    try:
        yield from csv.reader(io.StringIO(content), delimiter=delimiter)
    except csv.Error as exc:
        raise ValueError(
            f"that is not CSV: {exc}. Put cells with a {delimiter!r} or a line break in quotes"
        ) from exc


def _delimiter_of(csv_text: str) -> str:
    """Return the most frequent delimiter in the first line, outside of quotes if there is any.

    There may be none outside, because a quote that is not a pair hides them: `size 5",price`.
    """
    outside_quotes = "".join(csv_text.split('"')[::2])
    for text in (outside_quotes, csv_text):
        first_line = text.partition("\n")[0]
        delimiter = max(_DELIMITERS, key=first_line.count)
        if delimiter in first_line:
            return delimiter
    return _DELIMITERS[0]


def _filter(table: Table, conditions: Sequence[Condition]) -> Table:
    """Return the table with the rows that fulfil all conditions. Raise ValueError."""
    tests = [(table.index(condition.column), _cell_test(condition)) for condition in conditions]
    rows = [row for row in table.rows if all(test(row[column]) for column, test in tests)]
    return Table(table.columns, rows)


def _select(table: Table, columns: Sequence[str]) -> Table:
    """Return the table with these columns alone, in this order. Raise ValueError."""
    positions = [table.index(column) for column in columns]
    rows = [[row[position] for position in positions] for row in table.rows]
    return Table([table.columns[position] for position in positions], rows)


def _cell_test(condition: Condition) -> Callable[[str], bool]:
    """Return the function that tells whether a cell fulfils a condition."""
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
        case comparison:
            amount = parse_amount(condition.value)
            return functools.partial(_compare, _COMPARISONS[comparison], value, amount)


def _compare(
    compare: Callable[[Any, Any], bool], value: str, amount: Amount | None, cell: str
) -> bool:
    """Return whether a cell compares with a value as `compare` says.

    `value` is a text in lower case; `amount` is the same as a number, None if it is none. Two
    numbers are compared as numbers, two texts as texts without regard to case. Only numbers of one
    unit are equal: 5 USD is not 5 EUR, and an id that looks like money is not the number in it. Of
    a number and a text, neither is smaller, and an empty cell is neither smaller nor larger than
    anything.
    """
    cell_amount = parse_amount(cell)
    cell_text = cell.strip().casefold()
    is_equality = compare in (operator.eq, operator.ne)
    if amount is not None and cell_amount is not None:
        if is_equality:
            return compare(cell_amount, amount)
        return compare(cell_amount.number, amount.number)

    if is_equality:
        return compare(cell_text, value)
    if amount is not None or cell_amount is not None or not cell_text:
        return False
    return compare(cell_text, value)


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
    """Return one row for each group, and notes about cells that were not counted and mixed units.

    Without `group_by`, all rows are one group. Without measures, the rows are counted. The case of
    cells does not matter, nor do spaces around them: a group shows the cells of its first row.
    """
    positions = [table.index(column) for column in group_by]
    measures = measures or [ColumnMeasure(function="count", column="")]

    groups: dict[tuple[str, ...], list[list[str]]] = {}
    if not positions:
        groups[()] = []  # all rows are a group, also when there are none
    for row in table.rows:
        group = tuple(row[position].strip().casefold() for position in positions)
        groups.setdefault(group, []).append(row)

    result_rows = [[rows[0][position] for position in positions] for rows in groups.values()]
    notes: list[str] = []
    for measure in measures:
        results, measure_notes = _measure(table, measure, groups.values())
        notes += measure_notes
        for row, result in zip(result_rows, results, strict=True):
            row.append(result)

    # A measure keeps its name, which the model sorts by, if a column is called `count` too.
    measure_names = [measure.name for measure in measures]
    column_names = [table.columns[position] for position in positions]
    names = _different_names([*measure_names, *column_names])
    columns = [*names[len(measures) :], *names[: len(measures)]]
    return Table(columns, result_rows), notes


def _measure(
    table: Table, measure: ColumnMeasure, groups: Iterable[list[list[str]]]
) -> tuple[list[str], list[str]]:
    """Return the measure of each group, and notes about cells without numbers and mixed units."""
    if measure.function == "count":
        return _counts(table, measure.column, groups), []
    if not measure.column:
        example = {"function": measure.function, "column": "amount"}
        raise ValueError(f"{measure.function} needs a column, such as {example}")

    position = table.index(measure.column)
    column = table.columns[position]
    results: list[str] = []
    not_numbers = 0
    mixed_units: set[str] = set()
    for rows in groups:
        amounts = [parse_amount(row[position]) for row in rows if row[position].strip()]
        numbers = [amount.number for amount in amounts if amount]
        results.append(_result(measure.function, numbers))

        not_numbers += amounts.count(None)
        units = {amount.unit for amount in amounts if amount and amount.unit}
        if len(units) > 1:
            mixed_units |= units

    notes = []
    if not_numbers:
        notes.append(
            f"{not_numbers} cells of {column!r} are no numbers and are not in {measure.name}"
        )
    if mixed_units:
        units_text = ", ".join(sorted(mixed_units))
        notes.append(
            f"Careful: {column!r} mixes {units_text}, and {measure.name} takes them for one unit; "
            "filter with 'contains'"
        )
    return results, notes


def _counts(table: Table, column: str, groups: Iterable[list[list[str]]]) -> list[str]:
    """Return the number of rows of each group; with a column, of rows whose cell is not empty."""
    if not column:
        return [str(len(rows)) for rows in groups]
    position = table.index(column)
    counts = [sum(bool(row[position].strip()) for row in rows) for rows in groups]
    return [str(count) for count in counts]


def _result(function: Function, numbers: list[Decimal]) -> str:
    """Return the result of a function over the numbers of a group; "" where there is none."""
    if not numbers:
        return "0" if function == "sum" else ""
    with localcontext(Context(prec=60)):
        return format_number(_FUNCTIONS[function](numbers))


_FUNCTIONS: Mapping[str, Callable[[list[Decimal]], Decimal]] = {
    "sum": lambda numbers: sum(numbers, Decimal(0)),
    "average": lambda numbers: sum(numbers, Decimal(0)) / len(numbers),
    "median": statistics.median,
    "min": min,
    "max": max,
}


def _sort_key(cell: str) -> tuple[int, Decimal, str]:
    """Return what a cell is sorted by: empty cells come first, then numbers by size, then text."""
    if not cell.strip():
        return 0, Decimal(0), cell.casefold()
    amount = parse_amount(cell)
    if amount:
        return 1, amount.number, cell.casefold()
    return 2, Decimal(0), cell.casefold()


def _write_answer(
    table: Table, matching: Table, result: Table, limit: int, notes: Sequence[str]
) -> str:
    """Return the answer to a query: how many rows matched, the notes, and the result as CSV.

    `matching` are the rows of `table` that fulfil the conditions. At most `limit` rows of `result`
    are written.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(result.columns)
    written_rows: list[list[str]] = []
    for row in result.rows[:limit]:
        if text.tell() > MAX_ANSWER_CHARS:
            break
        writer.writerow([cell[:MAX_CELL_CHARS] for cell in row])
        written_rows.append(row)
    rows_as_csv = text.getvalue().rstrip("\n")

    heading = plural(len(table.rows), "row")
    if len(matching.rows) < len(table.rows):
        heading = f"{len(matching.rows)} of {heading} match"
    if len(written_rows) < len(result.rows):
        heading += f"; the first {len(written_rows)} of {len(result.rows)} are shown"

    cut_notes = []
    if any(len(cell) > MAX_CELL_CHARS for row in written_rows for cell in row):
        cut_notes.append(f"Cells are cut to {MAX_CELL_CHARS} characters.")
    if len(rows_as_csv) > 2 * MAX_ANSWER_CHARS:
        rows_as_csv = rows_as_csv[: 2 * MAX_ANSWER_CHARS]
        cut_notes.append("The last line is cut off: ask for fewer columns.")
    return "\n".join([f"{heading}.", *notes, *cut_notes, "", rows_as_csv])


def _describe_json(document: Any) -> str:
    """Return what a JSON document is, so that the model's next expression fits it."""
    if isinstance(document, dict):
        return f"The JSON is an object with the keys {list_names(list(document))}."
    if isinstance(document, list):
        text = f"The JSON is a list of {len(document)}"
        if document and isinstance(document[0], dict):
            return f"{text}; the first: {_describe_json(document[0])}"
        return f"{text}."
    return f"The JSON is {str(document)[:60]!r}."


def _bounded_interpreter() -> Any:
    """Return a JMESPath interpreter that counts its work, and raises ValueError after MAX_WORK.

    Without a limit, `[@,@]|[@,@]|...` would double the value with every step.
    """
    from jmespath.visitor import TreeInterpreter

    class BoundedInterpreter(TreeInterpreter):  # type: ignore[misc]  # jmespath has no types
        """Evaluates one expression."""

        remaining_work = MAX_WORK

        def visit(self, node: Any, *args: Any, **kwargs: Any) -> Any:
            """Return the value of a part of the expression."""
            self.remaining_work -= 1
            value = super().visit(node, *args, **kwargs)
            if node["type"] in _GROWING_NODES:
                self.remaining_work = _subtract_size(value, self.remaining_work)
            if self.remaining_work < 0:
                raise ValueError(f"it takes more than {MAX_WORK} steps and values, ask for less")
            return value

    return BoundedInterpreter()


def _subtract_size(value: Any, remaining: int) -> int:
    """Return `remaining` minus the number of values in `value`, where ten characters count as one.

    The counting stops below zero.
    """
    parts = [value]
    while parts and remaining >= 0:
        part = parts.pop()
        remaining -= 1
        if isinstance(part, str):
            remaining -= len(part) // 10
        elif isinstance(part, dict):
            parts.extend(part.values())
        elif isinstance(part, list):
            parts.extend(part)
    return remaining
