"""Markdown, converted to the formatting of each platform: blocks, paragraphs and tables."""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from html import unescape

from markdown_it.token import Token

from sayso.channels.markdown.dialects import (
    ANSI,
    HTML,
    MRKDWN,
    PLAIN,
    TERMINAL,
    WHATSAPP,
    Dialect,
    bare_link,
    hides_host,
)
from sayso.channels.markdown.parse import ALLOWED, LANGUAGE, is_overfull, parser

#: Text that is the same in Markdown and on every platform: one line without marks and addresses.
_PLAIN_TEXT = re.compile(r"[^\W\d_](?:[^\W_]|[ ,.;:?'\"()!%])*(?<! )")


def telegram_html(md: str) -> str:
    """Return Markdown as Telegram's subset of HTML."""
    return _render(md, HTML)


def slack_mrkdwn(md: str) -> str:
    """Return Markdown as Slack mrkdwn. `& < >` are escaped everywhere, so that no text can notify a channel."""
    return _render(md, MRKDWN)


def whatsapp_text(md: str) -> str:
    """Return Markdown as WhatsApp formats it: `*bold* _italic_ ~strike~` and bare links."""
    return _render(md, WHATSAPP)


def plain(md: str) -> str:
    """Return Markdown as plain text."""
    return _render(md, PLAIN)


def terminal_text(md: str, *, styled: bool = False) -> str:
    """Return Markdown as text for a terminal, with ANSI styles if `styled`.

    Control characters, which could move the cursor or hide text, are shown as visible symbols.
    """
    return _render(md, ANSI if styled else TERMINAL)


def utf16_len(text: str) -> int:
    """Return the length as Telegram counts it, in UTF-16 code units."""
    return len(text) + sum(char > "\uffff" for char in text)


def telegram_length(md: str) -> int:
    """Return the length that Telegram counts against its limits: of the HTML or the plain text, whichever is longer."""
    html, text = _renderings(md, HTML, PLAIN)
    visible = text if html is text else unescape(re.sub(r"<[^>]*>", "", html))
    return max(utf16_len(visible), utf16_len(text))


def _render(md: str, dialect: Dialect) -> str:
    return next(_renderings(md, dialect))


def _renderings(md: str, *dialects: Dialect) -> Iterator[str]:
    """Yield the Markdown in each of the dialects. It is parsed once."""
    if _PLAIN_TEXT.fullmatch(md):  # parsing takes as long as sending
        return itertools.repeat(md, len(dialects))
    tokens = parser().parse(md)
    return (_rendered(md, tokens, dialect) for dialect in dialects)


def _rendered(md: str, tokens: Sequence[Token], dialect: Dialect) -> str:
    blocks = Blocks(dialect, md.split("\n"))
    for token in tokens:
        blocks.add(token)
    text = blocks.text()
    # Markdown that renders to nothing, such as an empty link, is shown as its source.
    return text if text.strip() else dialect.escape(md)


@dataclass(frozen=True, slots=True)
class _Block:
    text: str
    pre: bool = False


@dataclass(slots=True)
class Blocks:
    """Builds the message block by block. Open containers are frames on a stack."""

    dialect: Dialect
    source: Sequence[str]
    frames: list[list[_Block]] = field(default_factory=lambda: [[]])
    numbers: list[int | None] = field(default_factory=list)
    quotes: int = 0
    heading: bool = False
    rows: list[list[str]] | None = None
    rights: list[bool] = field(default_factory=list)
    overfull: Sequence[str] = ()

    def add(self, token: Token) -> None:
        """Add the next token, by the method of its type."""
        method = getattr(self, f"_{token.type}", None)
        if method is not None:
            method(token)

    def text(self) -> str:
        """Return the whole message."""
        return "\n\n".join(block.text for block in self.frames[0] if block.text)

    def _add_block(self, text: str, pre: bool = False) -> None:
        self.frames[-1].append(_Block(text, pre))

    def _inline(self, token: Token) -> None:
        if self.rows is not None:
            self.rows[-1].append(" ".join(inline_text(token.children or [], PLAIN).split()))
            return
        text = inline_text(token.children or [], self.dialect, bold=self.heading)
        opening, closing = self.dialect.marks["strong"] if self.heading and text else ("", "")
        self._add_block(f"{opening}{text}{closing}")

    def _heading_open(self, token: Token) -> None:
        self.heading = True

    def _heading_close(self, token: Token) -> None:
        self.heading = False

    def _fence(self, token: Token) -> None:
        language = LANGUAGE.match(token.info)
        # A title after the language is part of the text, so it is shown.
        title = token.info[language.end() :].strip() if language else token.info.strip()
        text = "\n".join(part for part in (title, token.content.rstrip("\n")) if part)
        self._add_block(self.dialect.pre(text, language.group(1) if language else ""), pre=True)

    def _code_block(self, token: Token) -> None:
        self._add_block(self.dialect.pre(token.content.rstrip("\n"), ""), pre=True)

    def _hr(self, token: Token) -> None:
        self._add_block("———")

    def _blockquote_open(self, token: Token) -> None:
        self.quotes += 1
        self.frames.append([])

    def _blockquote_close(self, token: Token) -> None:
        inner = "\n\n".join(block.text for block in self.frames.pop())
        self._add_block(self.dialect.quote(inner, self.quotes))
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
        self._add_block("\n".join(block.text for block in self.frames.pop()))

    _ordered_list_close = _bullet_list_close

    def _list_item_open(self, token: Token) -> None:
        self.frames.append([])

    def _list_item_close(self, token: Token) -> None:
        number = self.numbers[-1]
        # Each level has a bullet of its own, because an indent of two narrow spaces is hard to see.
        marker = f"{'•◦▪'[(self.numbers.count(None) - 1) % 3]} " if number is None else f"{number}. "
        if number is not None:
            self.numbers[-1] = number + 1
        self._add_block(_item(marker, self.frames.pop()))

    def _table_open(self, token: Token) -> None:
        self.rows, self.rights = [], []
        lines = self.source[slice(*token.map)] if token.map else []
        # The parser drops cells beyond the last column, so such a table is shown as its source.
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
            self._add_block(self.dialect.pre("\n".join(self.overfull), ""), pre=True)
        elif columns <= self.dialect.columns:
            self._add_block(self.dialect.pre(aligned(rows, self.rights), ""), pre=True)
        else:
            self._add_block(records(rows, self.dialect))


def _item(marker: str, blocks: Sequence[_Block]) -> str:
    """Return one list item. Code keeps its own margin, everything else is indented under the marker."""
    indent = " " * len(marker)
    lines = [block.text if block.pre else indent + block.text.replace("\n", f"\n{indent}") for block in blocks]
    return marker + "\n".join(lines).removeprefix(indent)


def inline_text(tokens: Sequence[Token], dialect: Dialect, bold: bool = False) -> str:
    """Return one paragraph. `bold` says that it is inside bold text already."""
    paragraph = _Paragraph(dialect, ["strong"] if bold else [])
    for index, token in enumerate(tokens):
        following = tokens[index + 1] if index + 1 < len(tokens) else None
        paragraph.add(token, following.content[:1] if following and following.type == "text" else "")
    return "".join(paragraph.frames[0])


@dataclass(slots=True)
class _Paragraph:
    """Builds one paragraph. `active` names the open marks, so that none is nested in itself."""

    dialect: Dialect
    active: list[str]
    frames: list[list[str]] = field(default_factory=lambda: [[]])
    hrefs: list[str] = field(default_factory=list)
    titles: list[str] = field(default_factory=list)

    def add(self, token: Token, following: str) -> None:
        if token.type in ("softbreak", "hardbreak"):
            self.frames[-1].append("\n")
        elif token.type == "code_inline":
            self.frames[-1].append(self.dialect.code(token.content))
        elif token.type == "image":
            inside = _without_links(self.dialect)
            alt = inline_text(token.children or [], inside) + self._title(token)
            self.frames[-1].append(_link(inside if self.hrefs else self.dialect, alt, str(token.attrGet("src") or "")))
        elif token.nesting == 1:
            self._open(token)
        elif token.nesting == -1:
            self._close(token, following)
        else:
            self.frames[-1].append(self.dialect.escape(token.content))

    def _title(self, token: Token) -> str:
        """Return the title of a link, which chats cannot show on hovering, to follow the label."""
        title = token.attrGet("title")
        return self.dialect.escape(f' "{title}"') if title else ""

    def _open(self, token: Token) -> None:
        self.frames.append([])
        if token.type == "link_open":
            self.hrefs.append(str(token.attrGet("href") or ""))
            self.titles.append(self._title(token))
        else:
            self.active.append(token.type.removesuffix("_open"))

    def _close(self, token: Token, following: str) -> None:
        text = "".join(self.frames.pop())
        if token.type == "link_close":
            # The label of a bare URL is the URL, which must not be formatted.
            label = "" if token.markup == "autolink" else text + self.titles[-1]
            self.titles.pop()
            self.frames[-1].append(_link(self.dialect, label, self.hrefs.pop()))
            return
        opening, closing = self._marks(self.active.pop(), token.markup, following)
        self.frames[-1].append(f"{opening}{text}{closing}")

    def _marks(self, name: str, markup: str, following: str) -> tuple[str, str]:
        before = next((part[-1] for part in reversed(self.frames[-1]) if part), "")
        touching = before.isalnum(), following.isalnum()
        if all(touching) or (any(touching) and self.dialect.solid and name == "em"):
            # 2*3*4 is arithmetic: no preview may show it as 234.
            return markup, markup
        if name in self.active or (any(touching) and self.dialect.solid):
            return "", ""
        return self.dialect.marks[name]


def _without_links(dialect: Dialect) -> Dialect:
    """Return the dialect for text inside a link: of two addresses a platform would show one, or neither."""
    return (
        replace(dialect, link=lambda label, href: bare_link(label, dialect.escape(href)), hides=False)
        if dialect.hides
        else dialect
    )


def _link(dialect: Dialect, label: str, href: str) -> str:
    if not ALLOWED.match(href):
        address = dialect.escape(href)
        return label if address in ("", label) else f"{label} ({address})".strip()
    link = dialect.link(label, href)
    return f"{link} ({dialect.address(href)})" if dialect.hides and hides_host(label, href) else link


def aligned(rows: Sequence[Sequence[str]], rights: Sequence[bool]) -> str:
    """Return a table with aligned columns, for a monospaced block."""
    if not rows:
        return ""
    columns = widths(rows)
    lines = []
    for row in rows:
        gaps = [" " * (width - _width(cell)) for cell, width in zip(row, columns, strict=True)]
        cells = (gap + cell if right else cell + gap for cell, gap, right in zip(row, gaps, rights, strict=True))
        lines.append(" | ".join(cells).rstrip())
    return "\n".join([lines[0], "-+-".join("-" * width for width in columns), *lines[1:]])


def widths(rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the width of each column on the screen."""
    return [max(map(_width, column)) for column in zip(*rows, strict=True)]


def records(rows: Sequence[Sequence[str]], dialect: Dialect) -> str:
    """Return a table that is too wide: one paragraph per row, one line per cell with the name of its column."""
    names, *body = rows
    size = sum(len(cell) for row in rows for cell in row)
    if not body or len(body) * sum(map(len, names)) > 4 * size + 4000:  # long names would hide values
        return "\n".join(" | ".join(map(dialect.escape, row)) for row in rows)
    return "\n\n".join(_record(names, row, dialect) for row in body)


def _record(names: Sequence[str], cells: Sequence[str], dialect: Dialect) -> str:
    opening, closing = dialect.marks["strong"]
    first, *others = (
        (dialect.escape(name) + ": " if name else "", dialect.escape(cell))
        for name, cell in zip(names, cells, strict=True)
    )
    title = f"{opening}{first[1]}{closing}" if first[1] else ""
    return "\n".join([(first[0] + title).rstrip(), *((name + cell).rstrip() for name, cell in others)])


def _width(text: str) -> int:
    """Return the width on the screen: CJK characters and emoji take two columns, combining marks none."""
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(unicodedata.combining(char) > 0 for char in text)
