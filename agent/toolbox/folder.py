"""Folder: the one folder whose files tools may read; no name leads out of it, and nothing in it can hang a reader."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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
