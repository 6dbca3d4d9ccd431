"""Rows: somebody's words as commands show them, on one line of a terminal."""

from __future__ import annotations

from sayso.channels.redaction import redact


def plain(words: str, width: int) -> str:
    """The words on one line of at most so many characters, and nothing that would command a terminal."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in redact(words)).split())
    return line if len(line) <= width else f"{line[: width - 1]}…"
