"""Tools that list, read and search the text files of one folder. They never write."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated

from pydantic import Field

from sayso.agent.tools.definition import ToolMetadata, ToolTag
from sayso.agent.tools.tool import Tool

#: Bytes of the largest file that is read.
MAX_READ_BYTES = 2_000_000
#: Characters of the longest name, folders included.
MAX_NAME_CHARS = 300
#: Files and folders that one call looks at.
MAX_WALKED = 5_000
#: The name of a file or folder: not hidden, without blanks around it, without a character that has
#: a meaning for Windows, a shell or a terminal, and without half of a surrogate pair.
_PART = r"""(?![.\s])[^/\\:*?"<>|~\x00-\x1f\x7f\ud800-\udfff]+(?<!\s)"""
#: The names, with their folders, that are accepted and listed. In a list, a name with a line break
#: would look like two names.
_NAME = re.compile(rf"(?=.{{1,{MAX_NAME_CHARS}}}$){_PART}(?:/{_PART})*/?")
#: Files in one list.
MAX_LISTED = 200
#: Lines that one call reads.
MAX_LINES = 500
#: Characters that one call reads.
MAX_READ_CHARS = 20_000
#: Matching lines that one search returns.
MAX_MATCHES = 50
#: Characters shown of a matching line.
MAX_LINE_CHARS = 200
#: Bytes that one search reads.
MAX_SEARCHED_BYTES = 20_000_000
FolderName = Annotated[
    str, Field(max_length=MAX_NAME_CHARS, description="A folder such as 'reports'; empty for all")
]


@dataclass(frozen=True, slots=True)
class Folder:
    """One folder and what is below it, as the tools see it.

    For the tools, hidden files and links that lead out of the folder do not exist.
    """

    root: Path

    def find(self, name: str) -> Path:
        """Return the path of a name such as `reports/may.csv`; "" is the folder itself.

        Raise ValueError for a name that is not allowed or does not exist.
        """
        if name not in ("", ".") and not _NAME.fullmatch(name.removeprefix("./")):
            raise ValueError(
                f"{name!r} is not a name here: write it as list_files shows it, such as 'reports/may.csv'"
            )
        try:
            path = (self.root / name).resolve(strict=True)
        except (OSError, RuntimeError):
            # Nothing is there, or links lead in a circle. The error is not passed on, because its
            # message has the whole path in it.
            path = None
        if path is None or not self._is_shown(path):
            raise ValueError(f"there is no {name!r} here: list_files shows what there is")
        return path

    def _is_shown(self, path: Path) -> bool:
        """Return whether a resolved path is in the folder and its name is not hidden.

        The name that led here may be a link to a hidden file, or through a hidden folder.
        """
        root = self.root.resolve()
        if path == root:
            return True
        if not path.is_relative_to(root):
            return False
        return _NAME.fullmatch(path.relative_to(root).as_posix()) is not None

    def text(self, name: str) -> str:
        """Return the text of a file.

        Raise ValueError if it does not exist, is too large or is not UTF-8 text.
        """
        try:
            text = _read(name, self.find(name)).decode("utf-8-sig")
        except UnicodeDecodeError as exc:
            raise ValueError(f"{name!r} is not UTF-8 text: only text files can be read") from exc
        if "\0" in text:
            raise ValueError(f"{name!r} is not text: only text files can be read")
        return text

    def walk(self, name: str = "") -> Iterator[tuple[str, int]]:
        """Yield the name and the size in bytes of each file below a folder. No link is followed.

        At most MAX_WALKED files and folders are looked at. Raise ValueError for an unknown folder.
        """
        top = self.find(name)
        root = self.root.resolve()
        visited = 0
        for parent, folders, files in os.walk(top):
            # The list is changed in place, so that `os.walk` skips the hidden folders.
            folders[:] = sorted(folder for folder in folders if not folder.startswith("."))
            for file in sorted(files):
                visited += 1
                if visited > MAX_WALKED:
                    return
                path = Path(parent) / file
                file_name = path.relative_to(root).as_posix()
                size = _size(path)
                if size is not None and _NAME.fullmatch(file_name):
                    yield file_name, size
            visited += len(folders)
            if visited > MAX_WALKED:
                return


def _size(path: Path) -> int | None:
    """Return the number of bytes of a plain file.

    Return None for a hidden file, a missing one, and anything that is not a plain file.
    """
    try:
        status = path.lstat()
    except OSError:
        return None
    if stat.S_ISREG(status.st_mode) and not path.name.startswith("."):
        return status.st_size
    return None


def _read(name: str, path: Path) -> bytes:
    """Return the contents of a plain file. `name` is what the user calls it.

    Raise ValueError for one that is too large, and for anything that is not a plain file: a pipe
    would block, and a device may be endless.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)
    try:
        handle = os.open(path, flags)
    except OSError as exc:
        raise ValueError(f"{name!r} cannot be read: {exc.strerror}") from exc
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise ValueError(f"{name!r} is not a file")
    with os.fdopen(handle, "rb") as file:
        data = file.read(MAX_READ_BYTES + 1)
    if len(data) > MAX_READ_BYTES:
        raise ValueError(f"{name!r} has more than {MAX_READ_BYTES} bytes")
    return data


def list_files(_folder: Folder, folder: FolderName = "") -> str:
    """List the files that can be read, with their sizes."""
    files = list(islice(_folder.walk(folder), MAX_LISTED + 1))
    if not files:
        if folder:
            return f"There are no files in {folder!r}."
        return "There are no files."

    lines = []
    for name, size in files[:MAX_LISTED]:
        if size < 10_000:
            lines.append(f"{name} ({size} bytes)")
        else:
            lines.append(f"{name} ({size // 1000} kB)")
    if len(files) > MAX_LISTED:
        lines.append(f"... and more: only the first {MAX_LISTED} are listed; name a folder")
    return "\n".join(lines)


def read_file(
    _folder: Folder,
    file: Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)],
    first_line: Annotated[int, Field(ge=1, le=MAX_READ_BYTES)] = 1,
    lines: Annotated[int, Field(ge=1, le=MAX_LINES)] = 200,
) -> str:
    """Read lines of a text file.

    Args:
        file: The file's name as list_files shows it, such as 'reports/may.csv'
        first_line: Where to begin; 1 is the first line
        lines: How many lines to read
    """
    all_lines = _folder.text(file).splitlines()
    if first_line > max(1, len(all_lines)):
        raise ValueError(
            f"{file!r} has {len(all_lines)} lines: first_line {first_line} is past its end"
        )

    start = first_line - 1
    selected = all_lines[start : start + lines]
    text = "\n".join(selected)
    last_line = start + len(selected)
    heading = f"{file}, lines {first_line} to {last_line} of {len(all_lines)}"
    if len(text) > MAX_READ_CHARS:
        heading += f" (cut off after {MAX_READ_CHARS} characters)"
    return f"{heading}:\n{text[:MAX_READ_CHARS]}"


def search_files(
    _folder: Folder,
    words: Annotated[str, Field(min_length=1, max_length=200)],
    folder: FolderName = "",
) -> str:
    """Find the lines that hold certain words in the files.

    Args:
        words: The words as they stand in the text; capitals do not matter
    """
    folded_words = words.casefold()
    skipped_files = 0
    remaining_bytes = MAX_SEARCHED_BYTES
    # One more than is shown, to know whether there are more.
    matches: list[str] = []
    for name, size in _folder.walk(folder):
        remaining_bytes -= size
        if remaining_bytes < 0 or len(matches) > MAX_MATCHES:
            break
        try:
            text = _folder.text(name)
        except ValueError:
            skipped_files += 1
            continue
        for number, line in enumerate(text.splitlines(), 1):
            place = line.casefold().find(folded_words)
            if place >= 0 and len(matches) <= MAX_MATCHES:
                start = max(0, place - MAX_LINE_CHARS // 2)
                excerpt = line[start : start + MAX_LINE_CHARS].strip()
                matches.append(f"{name}:{number}: {excerpt}")
    return _write_matches(words, matches, skipped_files, is_complete=remaining_bytes >= 0)


def tools(folder: Path, _hosts: Sequence[str] = ()) -> list[Tool]:
    """Return the tools of this family for one folder."""
    return folder_tools(folder, list_files, read_file, search_files)


def folder_tools(folder: Path, *functions: Callable[..., str]) -> list[Tool]:
    """Return functions with a parameter `_folder` as tools of this folder.

    What they return is screened, because files may have instructions for the model in them.
    """
    decorate = partial(
        Tool.from_function,
        injected_kwargs={"_folder": Folder(folder)},
        read_only=True,
        screen_output=True,
        metadata=ToolMetadata(tags={ToolTag.FILE_SYSTEM}),
    )
    return [decorate(function) for function in functions]


def _write_matches(words: str, matches: list[str], skipped_files: int, *, is_complete: bool) -> str:
    """Return the answer of `search_files`. `is_complete`: all files were read."""
    lines = matches[:MAX_MATCHES] or [f"No line holds {words!r}."]
    if len(matches) > MAX_MATCHES:
        lines.append(f"... and more: only the first {MAX_MATCHES} lines are shown")
    if skipped_files:
        lines.append(f"({skipped_files} files are not text, or too large, and were not searched)")
    if not is_complete:
        lines.append("(there are more files than one search can read: name a folder)")
    return "\n".join(lines)
