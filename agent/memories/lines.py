"""Lines: a text as one line that shows all there is in it, and forges no other line beside it."""

from __future__ import annotations

from sayso.agent.tools.fence import HIDDEN


def one_line(text: str, most: int) -> str:
    """The text without ends of lines, controls and hidden characters, of so many characters at most."""
    return " ".join(HIDDEN.sub("", text).split())[:most].rstrip()


def fitting(lines: list[str], chars: int) -> list[str]:
    """The first of the lines that have room in so many characters, each with the end of its line."""
    kept = []
    for line in lines:
        chars -= len(line) + 1
        if chars < 0:
            break
        kept.append(line)
    return kept


def section(title: str, lines: list[str], chars: int) -> str:
    """The title and the first of the lines that fit, the title counted; "" where no line does."""
    kept = fitting(lines, chars - len(title) - 1)
    return "\n".join([title, *kept]) if kept else ""
