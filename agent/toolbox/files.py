"""One folder, read only."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated

from pydantic import Field

from sayso.agent.tools.definition import ToolMetadata, ToolTag
from sayso.agent.tools.errors import ToolLoadError
from sayso.agent.tools.tool import Tool, tool

#: Bytes of the largest file that is read.
MAX_FILE_BYTES = 2_000_000


#: Characters of the longest name, folders included.
MAX_NAME_CHARS = 300


#: Files and folders that are looked at in one call.
MAX_WALKED = 5_000


#: What Windows, a shell or a terminal reads as something else than a name.
_FORBIDDEN = frozenset('\\:*?"<>|~') | frozenset(map(chr, range(32))) | {"\x7f"}


@dataclass(frozen=True, slots=True)
class Folder:
    """One folder and what is beneath it. Hidden files, and links that lead out, are not there for anybody."""

    root: Path

    def find(self, name: str) -> Path:
        """The file or folder of a name such as `reports/may.csv`; "" is the folder itself. Raises ValueError."""
        parts = _parts(name)
        path = _resolved(self.root.joinpath(*parts))
        if path is None or not path.is_relative_to(self.root.resolve()):
            raise ValueError(f"there is no {name!r} here: list_files tells what there is")
        return path

    def text(self, name: str) -> str:
        """The text of a file. Raises ValueError when it is none, is too large or is no text."""
        return decoded(name, _read(name, self.find(name)))

    def walk(self, name: str = "") -> Iterator[tuple[str, int]]:
        """The files beneath by name, with their sizes, MAX_WALKED at most; no link is followed. Raises ValueError."""
        top, root = self.find(name), self.root.resolve()
        left = MAX_WALKED
        for here, folders, files in os.walk(top):
            folders[:] = sorted(folder for folder in folders if not folder.startswith("."))
            for file in sorted(files):
                path = Path(here) / file
                if (left := left - 1) < 0:
                    return
                name = path.relative_to(root).as_posix()
                size = _size(path)
                if size is not None and _can_be_named(name):
                    yield name, size
            if (left := left - len(folders)) < 0:
                return


def _resolved(path: Path) -> Path | None:
    """Where it really is. None where nothing is, where links lead in a circle, and of what no disk can hold."""
    try:
        return path.resolve(strict=True)
    except (OSError, RuntimeError):  # whose words hold the whole path
        return None


def _size(path: Path) -> int | None:
    """The bytes of a plain file; None of a hidden one, of what is no file, and of one that is gone by now."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) and not path.name.startswith(".") else None


def _can_be_named(name: str) -> bool:
    """Whether it can be asked for: one with a line break in it would look like two."""
    try:
        return bool(_parts(name))
    except ValueError:
        return False


def decoded(name: str, data: bytes) -> str:
    """The bytes as text, which is UTF-8 or nothing. Raises ValueError."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise ValueError(f"{name!r} is no UTF-8 text: only text files are read") from exc
    if "\0" in text:
        raise ValueError(f"{name!r} is no text: only text files are read")
    return text


def _parts(name: str) -> list[str]:
    """The folders and the file of a name. What is absolute, hidden, or means another place is refused, not mended."""
    if len(name) > MAX_NAME_CHARS:
        raise ValueError(f"that name has {len(name)} characters: at most {MAX_NAME_CHARS}")
    parts = [part for part in name.split("/") if part != "."] if name else []
    if parts and parts[-1] == "":
        parts.pop()  # a folder may be written with its slash
    if any(not part or part.startswith(".") or part != part.strip() for part in parts) or _FORBIDDEN & set(name):
        raise ValueError(f"{name!r} is no name here: write it as list_files shows it, such as 'reports/may.csv'")
    try:
        name.encode()
    except UnicodeEncodeError as exc:
        raise ValueError(f"{name!r} is no name here: it holds half a character") from exc
    return parts


def _read(name: str, path: Path) -> bytes:
    """The bytes, of a plain file only: a pipe would be waited for, a device would never end."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0))
    except OSError as exc:
        raise ValueError(f"{name!r} cannot be read: {exc.strerror}") from exc
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise ValueError(f"{name!r} is no file")
    with os.fdopen(handle, "rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise ValueError(f"{name!r} has more than {MAX_FILE_BYTES} bytes")
    return data


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


FilePath = Annotated[
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
    lines = [f"{name} ({_size_of_files(size)})" for name, size in found[:MAX_LISTED]]
    if len(found) > MAX_LISTED:
        lines.append(f"... and more: only the first {MAX_LISTED} are listed; name a folder")
    return "\n".join(lines)


def read_file(
    _folder: Folder,
    file: FilePath,
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


def _size_of_files(size: int) -> str:
    return f"{size} bytes" if size < 10_000 else f"{size // 1000} kB"
