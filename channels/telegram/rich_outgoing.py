"""Markdown as the blocks of a rich message of Telegram (Bot API 10.2).

A rich message can show tables, and up to 32,768 characters, which other messages cannot. A block is
a JSON object: a paragraph, a list, a table and so on. It may hold other blocks.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from itertools import chain
from typing import Any
from urllib.parse import unquote

from markdown_it.tree import SyntaxTreeNode

from sayso.channels.markdown.convert import LANGUAGE, inline
from sayso.channels.markdown.dialects import HTML
from sayso.channels.markdown.list_numbers import list_numbers
from sayso.channels.markdown.parser import parser
from sayso.channels.markdown.tables import is_overfull

#: The most characters of text in a rich message. This limit and the next three are Telegram's.
MAX_CHARS = 32_768
#: The most blocks, items of lists and rows of tables together.
MAX_BLOCKS = 500
#: The most levels of blocks and formatting in each other.
MAX_DEPTH = 16
#: The most columns of a table.
MAX_COLUMNS = 20
#: The most characters of Markdown that are parsed for one rich message.
_MAX_SOURCE_CHARS = 2 * MAX_CHARS
#: How Telegram names the formatting of our HTML.
_KINDS = {"b": "bold", "i": "italic", "s": "strikethrough", "code": "code"}
#: Unicode's directions of letters ("strong" ones, as signs have none of their own): from the left,
#: from the right, and from the right in Arabic.
_STRONG = ("L", "R", "AL")
#: The kinds of objects that are a part of a text, and no block.
_TEXT_KINDS = frozenset({*_KINDS.values(), "url", "email_address", "phone_number"})

#: A block, or a part of one, as a JSON object of the Bot API.
RichBlock = dict[str, Any]


class Unfit(Exception):
    """Raised where a rich message would show another text, or is beyond Telegram's limits."""


def has_table(md: str) -> bool:
    """Return whether a text has a table."""
    if "|" not in md:
        return False
    tree = SyntaxTreeNode(parser().parse(md))
    return any(node.type == "table" for node in tree.walk())


def reads_right_to_left(md: str) -> bool:
    """Return whether the first letter of a text is of a script from the right, such as Arabic."""
    directions = map(unicodedata.bidirectional, md)
    first = next((each for each in directions if each in _STRONG), "L")
    return first != "L"


@functools.lru_cache(maxsize=16)
def rich_blocks(md: str) -> tuple[RichBlock, ...] | None:
    """Return Markdown as blocks; None if a rich message cannot show it exactly.

    The last results are cached: splitting a reply and sending it both ask for its blocks.
    """
    if len(md) > _MAX_SOURCE_CHARS:
        return None
    tree = SyntaxTreeNode(parser().parse(md))
    try:
        blocks = list(_RichBlocks(md.split("\n")).render(tree))
    except Unfit:
        return None

    size = _size_of(blocks)
    # Telegram refuses a message without text, such as a single line across.
    has_text = 0 < size.chars <= MAX_CHARS
    if not has_text or size.blocks > MAX_BLOCKS or size.depth > MAX_DEPTH:
        return None
    return tuple(blocks)


@dataclass(frozen=True, slots=True)
class _RichBlocks:
    """Renders the parsed Markdown of one message as blocks."""

    #: The lines of the Markdown.
    source: Sequence[str]

    def render(self, container: SyntaxTreeNode) -> Iterator[RichBlock]:
        """Yield the blocks of a container. Raises Unfit."""
        for node in container.children:
            match node.type:
                case "paragraph":
                    yield {"type": "paragraph", "text": _rich_text(node.children[0])}
                case "heading":
                    yield {
                        "type": "heading",
                        "text": _rich_text(node.children[0]),
                        "size": int(node.tag[1:]),
                    }
                case "fence" | "code_block":
                    yield _code(node)
                case "hr":
                    yield {"type": "divider"}
                case "blockquote":
                    yield {"type": "blockquote", "blocks": list(self.render(node))}
                case "bullet_list" | "ordered_list":
                    yield {"type": "list", "items": self._items(node)}
                case "table":
                    yield self._table(node)

    def _items(self, node: SyntaxTreeNode) -> list[RichBlock]:
        """Return the items of a list. Raises Unfit for numbers that would look otherwise."""
        items: list[RichBlock] = [{"blocks": list(self.render(item))} for item in node.children]
        if node.type == "bullet_list":
            return items

        numbers = list_numbers(node.children)
        for item, number in zip(items, numbers, strict=True):
            value = number.strip().removesuffix(".")
            # Telegram would show "5)" as "5.", and "007." as "7.".
            if not value.isdecimal() or str(int(value)) != value:
                raise Unfit(number)
            item["value"] = int(value)
            item["type"] = "1"  # digits, and not letters or Roman numerals
        return items

    def _table(self, node: SyntaxTreeNode) -> RichBlock:
        """Return a table. Raises Unfit if it has too many columns."""
        lines: Sequence[str] = []
        if node.map:
            lines = self.source[slice(*node.map)]
        # The parser drops cells beyond the last column, so such a table is shown as it was written.
        if is_overfull(lines):
            return {"type": "pre", "text": "\n".join(lines)}

        # The children are the head and the body.
        row_nodes = chain.from_iterable(part.children for part in node.children)
        rows = [[_cell(cell) for cell in row_node.children] for row_node in row_nodes]
        if len(rows[0]) > MAX_COLUMNS:
            raise Unfit("too many columns")
        return {"type": "table", "cells": rows, "is_bordered": True}


def _code(node: SyntaxTreeNode) -> RichBlock:
    """Return a block of code, below its title if it has one.

    In Markdown the language and the title stand behind the opening fence (`info`).
    """
    title = node.info.strip()
    language = LANGUAGE.match(node.info)
    if language:
        # What follows the language is a title. It is a part of the text, so it is shown.
        title = node.info[language.end() :].strip()
    text = "\n".join(filter(None, (title, node.content.rstrip("\n"))))
    block: RichBlock = {"type": "pre", "text": text}
    if language:
        block["language"] = language.group(1)
    return block


def _cell(node: SyntaxTreeNode) -> RichBlock:
    """Return a cell of a table."""
    style = str(node.attrGet("style") or "")
    align = next((side for side in ("right", "center") if side in style), "left")
    cell: RichBlock = {"text": _rich_text(node.children[0]), "align": align, "valign": "middle"}
    if node.tag == "th":
        cell["is_header"] = True
    return cell


def _rich_text(node: SyntaxTreeNode) -> Any:
    """Return a text with its formatting, made from the HTML of Telegram's other messages."""
    reader = _TelegramHtml()
    reader.feed(inline(node, HTML))
    reader.close()
    return reader.text


@dataclass(slots=True)
class _OpenTag:
    """A tag whose end was not read yet."""

    name: str = ""
    #: The address of a link, "" for other tags.
    href: str = ""
    #: The texts and formatted parts inside, so far.
    parts: list[Any] = field(default_factory=list)


class _TelegramHtml(HTMLParser):
    """Reads the HTML of a Telegram message as rich text. Lives for one text."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._root = _OpenTag()
        self._open_tags = [self._root]

    @property
    def text(self) -> Any:
        """The rich text: a string, a formatted part, or a list of these."""
        return _joined(self._root.parts)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begin a formatted part."""
        href = dict(attrs).get("href") or ""
        self._open_tags.append(_OpenTag(tag, href))

    def handle_endtag(self, tag: str) -> None:
        """End a formatted part."""
        ended = self._open_tags.pop()
        text = _joined(ended.parts)
        if ended.name in _KINDS:
            part = {"type": _KINDS[ended.name], "text": text}
        else:  # a link: our HTML has no other tags
            part = _link(ended.href, text)
        self._open_tags[-1].parts.append(part)

    def handle_data(self, data: str) -> None:
        """Add a text."""
        self._open_tags[-1].parts.append(data)


def _joined(parts: list[Any]) -> Any:
    """Return parts as one rich text."""
    if not parts:
        return ""
    if len(parts) == 1:
        return parts[0]
    return parts


def _link(href: str, text: Any) -> RichBlock:
    """Return a link to a web page, an e-mail address or a phone number."""
    scheme, _, rest = href.partition(":")
    address = unquote(rest.partition("?")[0])
    if scheme.lower() == "mailto":
        return {"type": "email_address", "text": text, "email_address": address}
    if scheme.lower() == "tel":
        return {"type": "phone_number", "text": text, "phone_number": address}
    return {"type": "url", "text": text, "url": href}


@dataclass(frozen=True, slots=True)
class _Size:
    """What Telegram limits in a rich message."""

    #: Characters of text.
    chars: int = 0
    #: Blocks, items of lists and rows of tables together.
    blocks: int = 0
    #: Levels of blocks and formatting in each other.
    depth: int = 0


def _size_of(part: Any) -> _Size:
    """Return the size of a text, of a block, of formatting, or of a list of these."""
    if isinstance(part, str):
        return _Size(chars=len(part))

    if isinstance(part, dict):
        contents = [part[name] for name in ("text", "blocks", "items", "cells") if name in part]
        inner = _size_of(contents)
        blocks = inner.blocks
        is_cell = "align" in part  # only cells have this key, and they have no type
        is_text = part.get("type") in _TEXT_KINDS
        if not (is_cell or is_text):
            # The block itself, and the rows of a table.
            blocks += 1 + len(part.get("cells", ()))
        return _Size(inner.chars, blocks, inner.depth + 1)

    sizes = [_size_of(each) for each in part]
    return _Size(
        chars=sum(size.chars for size in sizes),
        blocks=sum(size.blocks for size in sizes),
        depth=max((size.depth for size in sizes), default=0),
    )
