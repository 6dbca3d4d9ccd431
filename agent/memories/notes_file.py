"""NotesFile: a list of notes in a text file that people may read and edit, and several processes write."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sayso.agent.memories.lines import one_line
from sayso.channels.disk import write_atomically

#: Characters of one note and of its category.
NOTE_CHARS, CATEGORY_CHARS = 500, 40
#: How a note's line begins. Other lines, such as headings, are people's own, and stay.
_NOTE = re.compile(r"- (?:(?P<time>\d\d:\d\d) )?(?:\[(?P<category>[^\]]*)\] )?(?P<content>.+)")


@dataclass(frozen=True, slots=True)
class Note:
    """One line worth keeping; `time` is HH:MM, or "" where it does not matter."""

    content: str
    category: str = "general"
    time: str = ""

    def __post_init__(self) -> None:
        category = one_line(self.category.replace("[", "").replace("]", ""), CATEGORY_CHARS)
        object.__setattr__(self, "category", category or "general")
        object.__setattr__(self, "content", one_line(self.content, NOTE_CHARS))

    @property
    def key(self) -> str:
        """What two spellings of one note share: neither case, nor category, nor the time."""
        return self.content.casefold().rstrip(".! ")

    @property
    def line(self) -> str:
        """The note as it stands in its file, and as the model reads it."""
        return " ".join(filter(None, ("-", self.time, f"[{self.category}]", self.content)))


class NotesFile:
    """A file of at most `most` notes, oldest first. Only its owner reads it; it is there whole or not at all."""

    def __init__(self, path: Path, most: int) -> None:
        self.path = path
        self._most = most

    def notes(self) -> list[Note]:
        """What is kept. Raises OSError."""
        return [note for line in self._lines() if (note := parsed(line))]

    def add(self, note: Note) -> bool:
        """Keep a note, on disk when this returns; False when it was there already. Raises OSError."""
        with locked(self.path.parent):
            lines = self._lines()
            if note.key in {known.key for line in lines if (known := parsed(line))}:
                return False
            lines = self._pruned([*lines, note.line])
            write_atomically(self.path, "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape"))
            return True

    def _pruned(self, lines: list[str]) -> list[str]:
        """Without the oldest notes past the limit; what is no note stays."""
        places = [index for index, line in enumerate(lines) if parsed(line)]
        gone = set(places[: -self._most])
        return [line for index, line in enumerate(lines) if index not in gone]

    def _lines(self) -> list[str]:
        try:  # what somebody wrote in another encoding must come out of it as it was
            return self.path.read_text("utf-8", "surrogateescape").splitlines()
        except FileNotFoundError:
            return []


def parsed(line: str) -> Note | None:
    """The note in a line; None where there is none."""
    found = _NOTE.fullmatch(line.strip())
    if found is None:
        return None
    note = Note(found["content"], found["category"] or "general", found["time"] or "")
    return note if note.content else None


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Alone in a folder among all threads and processes; it is made where it is missing."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(folder / ".lock", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)  # which unlocks it
