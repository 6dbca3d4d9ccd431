"""Tables: tools that ask CSV and JSON, in a text or in a file of the folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from sayso.agent.toolbox.csv_query import (
    MAX_ASKED,
    MAX_COLUMN_CHARS,
    MAX_SHOWN_ROWS,
    Condition,
    Measure,
    Question,
    answered,
)
from sayso.agent.toolbox.csv_table import MAX_COLUMNS
from sayso.agent.toolbox.folder import MAX_NAME_CHARS, Folder
from sayso.agent.toolbox.json_query import MAX_QUERY_CHARS, searched
from sayso.agent.toolbox.libraries import need
from sayso.agent.tools.decorator import tool
from sayso.agent.tools.metadata import ToolMetadata, ToolTag
from sayso.agent.tools.tool import Tool

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
    list[Measure] | None,
    Field(
        max_length=MAX_ASKED,
        description="Numbers to compute, such as the sum of a column, of all rows or of each group",
    ),
]
SortBy = Annotated[
    str, Field(max_length=200, description="The column to sort by; a measure is called like 'sum(amount)' or 'count'")
]
Descending = Annotated[bool, Field(description="Whether the largest comes first")]
Limit = Annotated[int, Field(ge=1, le=MAX_SHOWN_ROWS, description="Rows to show at most")]
Query = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MAX_QUERY_CHARS,
        description="A JMESPath expression such as 'people[?age > `30`].name' or 'length(items)'",
    ),
]
File = Annotated[
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
    limit: Limit = 20,
) -> str:
    """The rows that remain, as CSV. Raises ValueError."""
    question = Question(columns or [], where or [], group_by or [], measures or [], sort_by, descending, limit)
    return answered(csv_text, question)


@tool(read_only=True, description="Pick values out of a JSON text with a JMESPath expression")
def query_json(json_text: Annotated[Data, Field(description="The JSON text")], expression: Query) -> str:
    """What the expression finds, as JSON. Raises ValueError."""
    return searched(json_text, expression)


def query_csv_file(
    _folder: Folder,
    file: File,
    columns: Columns = None,
    where: Where = None,
    group_by: GroupBy = None,
    measures: Measures = None,
    sort_by: SortBy = "",
    descending: Descending = False,
    limit: Limit = 20,
) -> str:
    """As query_csv, of a file. Raises ValueError."""
    question = Question(columns or [], where or [], group_by or [], measures or [], sort_by, descending, limit)
    return answered(_folder.text(file), question)


def query_json_file(_folder: Folder, file: File, expression: Query) -> str:
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
