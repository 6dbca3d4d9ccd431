"""Convert Markdown to a message as each platform formats it."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from html import unescape
from typing import NamedTuple

from markdown_it.tree import SyntaxTreeNode

from sayso.channels.markdown.dialects import (
    ANSI,
    GAP,
    HTML,
    MAYBE_GAP,
    MRKDWN,
    PLAIN,
    TERMINAL,
    WHATSAPP,
    Dialect,
    bare_link,
    hides_host,
    own_hosts,
    plain_host,
    without_maybe_gaps,
)
from sayso.channels.markdown.emphasis import is_letter, is_unspaced, joins_word
from sayso.channels.markdown.list_numbers import list_numbers
from sayso.channels.markdown.parser import parser, source_lines
from sayso.channels.markdown.tables import aligned, is_overfull, records, widths
from sayso.channels.types import Button

#: The URL schemes of links. All others (javascript:, tg:, relative paths) are shown as text.
SCHEMES = ("http", "https", "mailto", "tel")
#: The beginning of an address that a link may lead to.
ALLOWED_ADDRESS = re.compile(rf"(?:{'|'.join(SCHEMES)}):", re.IGNORECASE)
#: The language after the marks that open a code block, which is not shown: one word.
LANGUAGE = re.compile(r"\s*([\w+#.-]{1,20})(?=\s|$)", re.ASCII)
#: Text that is the same in Markdown and on every platform: one line without marks and addresses.
_PLAIN_TEXT = re.compile(r"[^\W\d_](?:[^\W_]|[ ,.;:?'\"()!%])*(?<! )")
#: How many rendered texts a process caches, a few megabytes: a piece of a reply is rendered to be
#: measured, and again to be sent. A reply of 100,000 characters has about 60 pieces.
_CACHED_TEXTS = 64


def telegram_html(md: str) -> str:
    """Return Markdown as Telegram's subset of HTML."""
    return _telegram_html_and_text(md)[0]


def slack_mrkdwn(md: str) -> str:
    """Return Markdown as mrkdwn, Slack's own markup.

    `& < >` are escaped everywhere, so that no text can notify a whole channel.
    """
    return _message_in(md, MRKDWN)


def whatsapp_text(md: str) -> str:
    """Return Markdown as WhatsApp formats it: `*bold* _italic_ ~strike~` and bare links."""
    return _message_in(md, WHATSAPP)


def plain(md: str) -> str:
    """Return Markdown as plain text."""
    return _message_in(md, PLAIN)


def button_text(button: Button, limit: int) -> str:
    """Return what a button says: the effect of a tap, or its label if that is too long.

    `limit` is in UTF-16 code units.
    """
    effect = " ".join(plain(button.effect).split())
    if effect and utf16_len(effect) <= limit:
        return effect
    return button.label


def terminal_text(md: str, *, styled: bool = False) -> str:
    """Return Markdown as text for a terminal, with ANSI styles if `styled`.

    Control characters, which could move the cursor or hide text, are shown as visible symbols.
    """
    return _message_in(md, ANSI if styled else TERMINAL)


def trust_hosts(hosts: Iterable[str]) -> None:
    """Set the hosts whose links need not show their address.

    They are the bot's own host and those in its configuration.
    """
    own_hosts.clear()
    own_hosts.update(plain_host(host) for host in hosts if host)
    # The cached texts show or leave out addresses by the hosts of before.
    _telegram_html_and_text.cache_clear()
    _message_in.cache_clear()


def utf16_len(text: str) -> int:
    """Return the length as Telegram counts it, in UTF-16 code units."""
    return len(text) + sum(char > "\uffff" for char in text)


def telegram_length(md: str) -> int:
    """Return the length that Telegram counts against its limits.

    A message may be sent as HTML or as plain text. It is the length of the longer one, without
    tags.
    """
    html, text = _telegram_html_and_text(md)
    visible = text
    # Both are the same object if the text has no marks.
    if html is not text:
        visible = unescape(re.sub(r"<[^>]*>", "", html))
    return max(utf16_len(visible), utf16_len(text))


@functools.lru_cache(maxsize=_CACHED_TEXTS)
def _telegram_html_and_text(md: str) -> tuple[str, str]:
    """Return Markdown as HTML and as plain text. It is parsed once."""
    # Without a mark both are the text itself. Parsing would take as long as sending.
    if _PLAIN_TEXT.fullmatch(md):
        return md, md
    tree = SyntaxTreeNode(parser().parse(md))
    # Neither dialect needs gaps, so nothing has to be finished.
    return _blocks_in(md, tree, HTML), _blocks_in(md, tree, PLAIN)


@functools.lru_cache(maxsize=_CACHED_TEXTS)
def _message_in(md: str, dialect: Dialect) -> str:
    """Return Markdown as a message in a dialect."""
    if _PLAIN_TEXT.fullmatch(md):
        return md
    # Dialects write MAYBE_GAP where a gap may be needed, and `finish` decides. One in the source
    # would be taken for theirs.
    md = md.replace(MAYBE_GAP, "\ufffd")
    tree = SyntaxTreeNode(parser().parse(md))
    return dialect.finish(_blocks_in(md, tree, dialect))


def _blocks_in(md: str, tree: SyntaxTreeNode, dialect: Dialect) -> str:
    """Return the blocks of parsed Markdown in a dialect, not yet finished. `md` is its source."""
    blocks = _Blocks(dialect, source_lines(md)).render(tree)
    text = "\n\n".join(block.text for block in blocks if block.text)
    # Markdown that renders to nothing, such as an empty link, is shown as its source.
    if text.strip():
        return text
    return dialect.escape(md)


@dataclass(frozen=True, slots=True)
class _Block:
    """A rendered block."""

    text: str
    #: Whether it is code, or a table as code, whose lines must not be indented.
    pre: bool = False


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Renders the blocks of one message."""

    dialect: Dialect
    #: The lines of the Markdown.
    source: Sequence[str]

    def render(
        self, container: SyntaxTreeNode, quotes: int = 0, bullets: int = 0
    ) -> Iterator[_Block]:
        """Yield the blocks of a container.

        `quotes` and `bullets` are the numbers of quotes and bullet lists around them.
        """
        for node in container.children:
            match node.type:
                case "paragraph":
                    yield _Block(inline(node.children[0], self.dialect))
                case "heading":
                    text = inline(node.children[0], self.dialect, ("strong",))
                    opening, closing = self.dialect.marks["strong"] if text else ("", "")
                    yield _Block(f"{opening}{text}{closing}")
                case "fence" | "code_block":
                    yield self._code(node)
                case "hr":
                    yield _Block("———")
                case "blockquote":
                    blocks = self.render(node, quotes + 1, bullets)
                    inner = "\n\n".join(block.text for block in blocks)
                    yield _Block(self.dialect.quote(inner, quotes + 1))
                case "bullet_list" | "ordered_list":
                    yield self._list(node, quotes, bullets)
                case "table":
                    yield self._table(node)

    def _code(self, node: SyntaxTreeNode) -> _Block:
        """Return a block of code, below its title if it has one."""
        # What follows the language is a title. It is a part of the text, so it is shown.
        language = ""
        title = node.info.strip()
        match = LANGUAGE.match(node.info)
        if match:
            language = match.group(1)
            title = node.info[match.end() :].strip()
        text = "\n".join(part for part in (title, node.content.rstrip("\n")) if part)
        return _Block(self.dialect.pre(text, language), pre=True)

    def _list(self, node: SyntaxTreeNode, quotes: int, bullets: int) -> _Block:
        """Return a list, the blocks of each item indented under its marker."""
        if node.type == "bullet_list":
            # Each level has another bullet, because an indent of two narrow spaces is hard to see.
            markers: Iterator[str] = itertools.repeat(f"{'•◦▪'[bullets % 3]} ")
            bullets += 1
        else:
            markers = iter(list_numbers(node.children))
        texts = []
        for item, marker in zip(node.children, markers, strict=False):
            indent = " " * len(marker)
            blocks = []
            for block in self.render(item, quotes, bullets):
                text = block.text
                if not block.pre:
                    text = indent + text.replace("\n", f"\n{indent}")
                blocks.append(text)
            # The marker stands in place of the first indent.
            texts.append(marker + "\n".join(blocks).removeprefix(indent))
        return _Block("\n".join(texts))

    def _table(self, node: SyntaxTreeNode) -> _Block:
        """Return a table with aligned columns, or a paragraph for each row if it is too wide."""
        lines: Sequence[str] = []
        if node.map:
            lines = self.source[slice(*node.map)]
        # The parser drops cells beyond the last column, so such a table is shown as its source.
        if is_overfull(lines):
            return _Block(self.dialect.pre("\n".join(lines), ""), pre=True)

        # A table has a head and a body, which have the rows.
        parts = [part.children for part in node.children]
        grid = [row.children for row in itertools.chain.from_iterable(parts)]
        rows = [[_cell_text(cell) for cell in row] for row in grid]
        separators = len(" | ") * (len(rows[0]) - 1)
        if sum(widths(rows)) + separators > self.dialect.columns:
            return _Block(records(rows, self.dialect))
        are_right_aligned = ["right" in str(head.attrGet("style") or "") for head in grid[0]]
        return _Block(self.dialect.pre(aligned(rows, are_right_aligned), ""), pre=True)


def _cell_text(cell: SyntaxTreeNode) -> str:
    """Return the text of a cell of a table on one line."""
    return " ".join(inline(cell.children[0], PLAIN).split())


def inline(
    parent: SyntaxTreeNode,
    dialect: Dialect,
    active: tuple[str, ...] = (),
    *,
    in_link: bool = False,
    around: tuple[str, str] = ("", ""),
) -> str:
    """Return the text of a paragraph, or of a part of it such as bold words.

    * `active`: the marks around the part, since no mark is nested in itself.
    * `in_link`: whether the part is the label of a link.
    * `around`: the characters before and after the part, "" where a mark of this message touches
      the part.
    """
    parts: list[str] = []
    children = _visible_children(parent)
    for node, following in itertools.zip_longest(children, children[1:]):
        match node.type:
            case "softbreak" | "hardbreak":
                parts.append("\n")
            case "code_inline":
                parts.append(dialect.code(node.content))
            case "image":
                parts.append(_image(node, dialect, in_link=in_link))
            case "link":
                # The label of a bare URL is the URL, which must not be formatted.
                label = ""
                if node.markup != "autolink":
                    text = inline(node, dialect, active, in_link=True)
                    label = text + _title(node, dialect)
                parts.append(_link(dialect, label, str(node.attrGet("href") or "")))
            case "strong" | "em" | "s":
                # What stands before is written already. What follows is not, so its source is read.
                before = _last_char(parts) or around[0]
                after = around[1]
                if following:
                    after = following.content[:1] if following.type == "text" else ""
                parts.append(_marked(node, dialect, active, (before, after), in_link=in_link))
            case _:
                parts.append(dialect.escape(node.content))
    return "".join(parts)


def _last_char(parts: Sequence[str]) -> str:
    """Return the last character of texts that follow each other, "" if all are empty."""
    return next((part[-1] for part in reversed(parts) if part), "")


def _marked(
    node: SyntaxTreeNode,
    dialect: Dialect,
    active: tuple[str, ...],
    around: tuple[str, str],
    *,
    in_link: bool,
) -> str:
    """Return bold, italic or struck text with its marks. The parameters are those of `inline`."""
    marks = _marks(node, dialect, active, *around)
    if marks.formats:
        around = ("", "")
    text = inline(node, dialect, (*active, node.type), in_link=in_link, around=around)
    whole = f"{marks.opening}{text}{marks.closing}"
    if not (marks.formats and dialect.solid):
        return whole

    first, last = dialect.marks[node.type]
    # A literal mark in the text would end the formatting there, so the text gets no marks.
    if re.search(rf"(?<=\S){re.escape(last)}{MAYBE_GAP}(?!\w)", text):
        return text
    # On these platforms no mark reaches into the next line.
    return whole.replace("\n", f"{last}\n{first}")


def _visible_children(node: SyntaxTreeNode) -> Sequence[SyntaxTreeNode]:
    """Return the parts of a text that are not empty. The parser leaves empty ones between marks."""
    return [child for child in node.children if child.type != "text" or child.content]


class _Marks(NamedTuple):
    """What stands before and after a text, and whether the platform formats the text by it."""

    opening: str
    closing: str
    formats: bool


def _marks(
    node: SyntaxTreeNode,
    dialect: Dialect,
    active: tuple[str, ...],
    before: str,
    after: str,
) -> _Marks:
    """Return what stands before and after a formatted text: marks, its source, or nothing.

    The text stands between the characters `before` and `after`.
    """
    name = node.type
    is_inside_word = joins_word(before) and joins_word(after)
    # A single asterisk may be arithmetic, between any letters. Three of them, as in
    # ***bold and italic***, are not.
    is_only_strong = [child.type for child in _visible_children(node)] == ["strong"]
    may_be_arithmetic = name == "em" and not is_only_strong
    if may_be_arithmetic:
        is_inside_word = is_letter(before) and is_letter(after)

    # `solid` platforms (Slack and WhatsApp) show no marks that touch a word, except with a gap
    # beside letters of unspaced scripts.
    touches_word = joins_word(before) or joins_word(after)
    is_stuck = dialect.solid and touches_word

    # 2*3*4 is arithmetic: no preview may show it as 234.
    if is_inside_word or (is_stuck and may_be_arithmetic):
        return _Marks(node.markup, node.markup, formats=False)
    # No mark is nested in itself, and one that does nothing is left out.
    if name in active or is_stuck:
        return _Marks("", "", formats=False)

    opening, closing = dialect.marks[name]
    formats = opening != ""
    if dialect.solid:
        # An invisible character parts the marks from letters of unspaced scripts: the platform
        # would take the letters and the marks for one word.
        if is_letter(before) and is_unspaced(before):
            opening = f"{GAP}{opening}"
        if is_letter(after) and is_unspaced(after):
            closing = f"{closing}{GAP}"
    return _Marks(opening, closing, formats)


def _image(node: SyntaxTreeNode, dialect: Dialect, *, in_link: bool) -> str:
    """Return an image as a link to it, since an image in a text cannot be shown."""
    # A link inside a link would hide one of the two addresses, so the inner one is written out. On
    # platforms whose links do not hide their address it is written out anyway.
    inside = dialect
    if dialect.hides:
        inside = replace(
            dialect, link=lambda label, href: bare_link(label, dialect.escape(href)), hides=False
        )
    label = inline(node, inside) + _title(node, dialect)
    return _link(inside if in_link else dialect, label, str(node.attrGet("src") or ""))


def _title(node: SyntaxTreeNode, dialect: Dialect) -> str:
    """Return the title of a link as it follows the label, "" for none.

    A web page shows it on hovering, which chats cannot do.
    """
    title = node.attrGet("title")
    if title:
        return dialect.escape(f' "{title}"')
    return ""


def _link(dialect: Dialect, label: str, href: str) -> str:
    """Return a link. Its address is shown if the label hides its host, or if it is not allowed."""
    if not ALLOWED_ADDRESS.match(href):
        address = dialect.escape(href)
        if without_maybe_gaps(address) in ("", without_maybe_gaps(label)):
            return label
        return f"{label} ({address})".strip()
    link = dialect.link(label, href)
    if dialect.hides and hides_host(label, href):
        return f"{link} ({dialect.address(href)})"
    return link
