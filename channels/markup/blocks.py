"""Blocks: a message's tokens in a dialect.

Their flat stream is walked with a stack of its own: nesting that would exhaust a recursive renderer is harmless.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from markdown_it.token import Token

from sayso.channels.markup.dialects import PLAIN, Dialect
from sayso.channels.markup.inline import inline_text
from sayso.channels.markup.reading import LANGUAGE, is_overfull
from sayso.channels.markup.tables import aligned, records, widths


@dataclass(frozen=True, slots=True)
class _Block:
    text: str
    pre: bool = False


@dataclass(slots=True)
class Blocks:
    """Builds the message block by block; containers are frames on a stack."""

    dialect: Dialect
    source: Sequence[str]
    frames: list[list[_Block]] = field(default_factory=lambda: [[]])
    numbers: list[int | None] = field(default_factory=list)
    quotes: int = 0
    heading: bool = False
    rows: list[list[str]] | None = None
    rights: list[bool] = field(default_factory=list)
    overfull: Sequence[str] = ()

    def take(self, token: Token) -> None:
        """The next token of the message."""
        step = getattr(self, f"_{token.type}", None)
        if step is not None:
            step(token)

    def text(self) -> str:
        """All that was taken."""
        return "\n\n".join(block.text for block in self.frames[0] if block.text)

    def _add(self, text: str, pre: bool = False) -> None:
        self.frames[-1].append(_Block(text, pre))

    def _inline(self, token: Token) -> None:
        if self.rows is not None:
            self.rows[-1].append(" ".join(inline_text(token.children or [], PLAIN).split()))
            return
        text = inline_text(token.children or [], self.dialect, bold=self.heading)
        opening, closing = self.dialect.marks["strong"] if self.heading and text else ("", "")
        self._add(f"{opening}{text}{closing}")

    def _heading_open(self, token: Token) -> None:
        self.heading = True

    def _heading_close(self, token: Token) -> None:
        self.heading = False

    def _fence(self, token: Token) -> None:
        language = LANGUAGE.match(token.info)
        # A title behind the language is part of what was said, so it is shown.
        title = token.info[language.end() :].strip() if language else token.info.strip()
        text = "\n".join(part for part in (title, token.content.rstrip("\n")) if part)
        self._add(self.dialect.pre(text, language.group(1) if language else ""), pre=True)

    def _code_block(self, token: Token) -> None:
        self._add(self.dialect.pre(token.content.rstrip("\n"), ""), pre=True)

    def _hr(self, token: Token) -> None:
        self._add("———")

    def _blockquote_open(self, token: Token) -> None:
        self.quotes += 1
        self.frames.append([])

    def _blockquote_close(self, token: Token) -> None:
        inner = "\n\n".join(block.text for block in self.frames.pop())
        self._add(self.dialect.quote(inner, self.quotes))
        self.quotes -= 1

    def _bullet_list_open(self, token: Token) -> None:
        self._open_list(None)

    def _ordered_list_open(self, token: Token) -> None:
        start = token.attrGet("start")
        self._open_list(int(start) if start is not None else 1)

    def _open_list(self, number: int | None) -> None:
        self.numbers.append(number)
        self.frames.append([])

    def _bullet_list_close(self, token: Token) -> None:
        self.numbers.pop()
        self._add("\n".join(block.text for block in self.frames.pop()))

    _ordered_list_close = _bullet_list_close

    def _list_item_open(self, token: Token) -> None:
        self.frames.append([])

    def _list_item_close(self, token: Token) -> None:
        number = self.numbers[-1]
        marker = f"{_bullet(self.numbers)} " if number is None else f"{number}. "
        if number is not None:
            self.numbers[-1] = number + 1
        self._add(_item(marker, self.frames.pop()))

    def _table_open(self, token: Token) -> None:
        self.rows, self.rights = [], []
        lines = self.source[slice(*token.map)] if token.map else []
        # The parser drops cells beyond the last column; such a table is shown as it was written.
        self.overfull = lines if is_overfull(lines) else []

    def _th_open(self, token: Token) -> None:
        self.rights.append("right" in str(token.attrGet("style") or ""))

    def _tr_open(self, token: Token) -> None:
        if self.rows is not None:
            self.rows.append([])

    def _table_close(self, token: Token) -> None:
        rows, self.rows = self.rows or [], None
        columns = sum(widths(rows)) + 3 * max(0, len(rows[0]) - 1) if rows else 0
        if self.overfull:
            self._add(self.dialect.pre("\n".join(self.overfull), ""), pre=True)
        elif columns <= self.dialect.columns:
            self._add(self.dialect.pre(aligned(rows, self.rights), ""), pre=True)
        else:
            self._add(records(rows, self.dialect))


def _bullet(numbers: Sequence[int | None]) -> str:
    """Another one on each level: where an indent is two narrow spaces, it alone would tell too little."""
    return "•◦▪"[(numbers.count(None) - 1) % 3]


def _item(marker: str, blocks: Sequence[_Block]) -> str:
    """One list item: code keeps its own margin, everything else is indented under the marker."""
    indent = " " * len(marker)
    lines = [block.text if block.pre else indent + block.text.replace("\n", f"\n{indent}") for block in blocks]
    return marker + "\n".join(lines).removeprefix(indent)
