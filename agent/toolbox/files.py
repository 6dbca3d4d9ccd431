"""Files: what is in one configured folder, listed, read and searched; nothing is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated

from pydantic import Field

from sayso.agent.toolbox.folder import MAX_FILE_BYTES, MAX_NAME_CHARS, Folder
from sayso.agent.tools.decorator import tool
from sayso.agent.tools.errors import ToolLoadError
from sayso.agent.tools.metadata import ToolMetadata, ToolTag
from sayso.agent.tools.tool import Tool

#: Files that one list names.
MAX_LISTED = 200
#: Lines that are read in one call.
MAX_LINES = 500
#: Characters that are read in one call.
MAX_READ_CHARS = 20_000
#: Lines that a search finds.
MAX_FOUND = 50
#: Characters shown of a line that was found.
MAX_LINE_CHARS = 200
#: Bytes that one search reads.
MAX_SEARCHED_BYTES = 20_000_000

File = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MAX_NAME_CHARS,
        description="The file's name as list_files shows it, such as 'reports/may.csv'",
    ),
]
Beneath = Annotated[str, Field(max_length=MAX_NAME_CHARS, description="A folder such as 'reports'; empty for all")]


def list_files(_folder: Folder, folder: Beneath = "") -> str:
    """The files and their sizes. Raises ValueError."""
    found = list(islice(_folder.walk(folder), MAX_LISTED + 1))
    if not found:
        return f"There are no files in {folder!r}." if folder else "There are no files."
    lines = [f"{name} ({_size(size)})" for name, size in found[:MAX_LISTED]]
    if len(found) > MAX_LISTED:
        lines.append(f"... and more: only the first {MAX_LISTED} are listed; name a folder")
    return "\n".join(lines)


def read_file(
    _folder: Folder,
    file: File,
    first_line: Annotated[int, Field(ge=1, le=MAX_FILE_BYTES, description="Where to begin; 1 is the first line")] = 1,
    lines: Annotated[int, Field(ge=1, le=MAX_LINES, description="How many lines to read")] = 200,
) -> str:
    """Some lines, and which of how many they are. Raises ValueError."""
    every = _folder.text(file).splitlines()
    if first_line > max(1, len(every)):
        raise ValueError(f"{file!r} has {len(every)} lines: first_line {first_line} is past its end")
    some = every[first_line - 1 : first_line - 1 + lines]
    text = "\n".join(some)
    cut = f" (cut off after {MAX_READ_CHARS} characters)" if len(text) > MAX_READ_CHARS else ""
    return f"{file}, lines {first_line} to {first_line - 1 + len(some)} of {len(every)}{cut}:\n{text[:MAX_READ_CHARS]}"


def search_files(
    _folder: Folder,
    words: Annotated[
        str,
        Field(min_length=1, max_length=200, description="The words as they stand in the text; capitals do not matter"),
    ],
    folder: Beneath = "",
) -> str:
    """The lines that hold the words, with file and number. Raises ValueError."""
    wanted, skipped = words.casefold(), 0
    found: list[str] = []
    budget = MAX_SEARCHED_BYTES
    for name, size in _folder.walk(folder):
        budget -= size
        if budget < 0 or len(found) > MAX_FOUND:
            break
        try:
            text = _folder.text(name)
        except ValueError:
            skipped += 1
            continue
        found += _lines_with(name, text, wanted)
    return _told(words, found, skipped, whole=budget >= 0)


_READS_FILES = ToolMetadata(tags={ToolTag.FILE_SYSTEM})

_DESCRIPTIONS: Mapping[Callable[..., str], str] = {
    list_files: "List the files that can be read, with their sizes",
    read_file: "Read lines of a text file",
    search_files: "Find the lines that hold certain words in the files",
}


def tools(folder: Path | None = None, _hosts: Sequence[str] = ()) -> list[Tool]:
    """The tools of this family, for one folder. What files say is screened: they may hold instructions."""
    if folder is None:
        raise ToolLoadError("toolbox 'files' needs folder: the one folder whose files it may read")
    given = {"_folder": Folder(folder)}
    return [
        tool(description=words, injected_kwargs=given, read_only=True, screen_output=True, metadata=_READS_FILES)(
            function
        )
        for function, words in _DESCRIPTIONS.items()
    ]


def _lines_with(name: str, text: str, wanted: str) -> list[str]:
    numbered = enumerate(text.splitlines(), 1)
    hits = ((number, line) for number, line in numbered if wanted in line.casefold())
    return [f"{name}:{number}: {_around(line, wanted)}" for number, line in islice(hits, MAX_FOUND + 1)]


def _around(line: str, wanted: str) -> str:
    at = max(0, line.casefold().find(wanted) - MAX_LINE_CHARS // 2)
    return line[at : at + MAX_LINE_CHARS].strip()


def _told(words: str, found: list[str], skipped: int, *, whole: bool) -> str:
    lines = found[:MAX_FOUND] or [f"No line holds {words!r}."]
    if len(found) > MAX_FOUND:
        lines.append(f"... and more: only the first {MAX_FOUND} lines are shown")
    if skipped:
        lines.append(f"({skipped} files are no text, or too large, and were not searched)")
    if not whole:
        lines.append("(there is more than can be searched at once: name a folder)")
    return "\n".join(lines)


def _size(size: int) -> str:
    return f"{size} bytes" if size < 10_000 else f"{size // 1000} kB"
