"""Finding: what one check came to, and what an operator does about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from sayso.channels.redaction import redact

State = Literal["ok", "warn", "fail"]

#: Characters of anything that somebody else wrote, such as a platform's last error.
MAX_WORDS = 300
#: Columns of a check's name.
WIDTH = 22


@dataclass(frozen=True, slots=True)
class Finding:
    """One check. `channel` is "" for what is of no channel; `cure` is "" exactly where `state` is ok."""

    check: str
    state: State
    says: str
    cure: str = ""
    channel: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "says", redact(self.says))  # platforms may repeat what they were sent

    def __str__(self) -> str:
        name = f"{self.channel} {self.check}".strip()
        cure = f"\n{'':4}  {'':{WIDTH}}  cure: {plain(self.cure)}" if self.cure else ""
        return f"{self.state:4}  {name:{WIDTH}}  {plain(self.says)}{cure}"


def plain(words: str) -> str:
    """Somebody's words on one line of a terminal, and nothing that would command it."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in words).split())
    return line if len(line) <= MAX_WORDS else f"{line[: MAX_WORDS - 1]}…"


def shown(url: str) -> str:
    """An address without what may be secret in it: its user and its query."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()
