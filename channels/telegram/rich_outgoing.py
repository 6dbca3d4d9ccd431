"""Markdown as the blocks of a rich message of Telegram (Bot API 10.2).

A rich message can show tables, and up to 32,768 characters, which other messages cannot.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any
from urllib.parse import unquote

from markdown_it.tree import SyntaxTreeNode

from sayso.channels.markdown import LANGUAGE, inline, is_overfull, list_numbers, parser
from sayso.channels.markdown.dialects import HTML

#: The most characters of text in a rich message. This and the next three are Telegram's limits.
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
#: Unicode's directions of letters: from the left, from the right, and from the right in Arabic.
_STRONG = ("L", "R", "AL")
#: What is a part of a text, not a block.
_TEXT_KINDS = frozenset({*_KINDS.values(), "url", "email_address", "phone_number"})

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
    return next((each for each in directions if each in _STRONG), "L") != "L"


@functools.lru_cache(maxsize=16)
def rich_blocks(md: str) -> tuple[RichBlock, ...] | None:
    """Return a text as blocks; None if a rich message cannot show it exactly."""
    if len(md) > _MAX_SOURCE_CHARS:
        return None
    tree = SyntaxTreeNode(parser().parse(md))
    try:
        blocks = list(_RichBlocks(md.split("\n")).render(tree))
        size = _measured(blocks)
    except Unfit:
        return None
    fits = 0 < size.chars <= MAX_CHARS and size.blocks <= MAX_BLOCKS and size.depth <= MAX_DEPTH
    return tuple(blocks) if fits else None


@dataclass(frozen=True, slots=True)
class _RichBlocks:
    """Renders the blocks of a message. `source` is its lines."""

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
        items: list[RichBlock] = [{"blocks": list(self.render(item))} for item in node.children]
        if node.type == "bullet_list":
            return items
        numbers = list_numbers([(item.info, item.markup) for item in node.children])
        for item, number in zip(items, numbers, strict=True):
            value = number.strip().removesuffix(".")
            if str(int(value) if value.isdecimal() else "") != value:
                raise Unfit(number)  # "5)" and "007." would be shown as "5." and "7."
            item["value"] = int(value)
            item["type"] = "1"
        return items

    def _table(self, node: SyntaxTreeNode) -> RichBlock:
        if node.map:
            lines = self.source[slice(*node.map)]
        else:
            lines = []
        if is_overfull(lines):  # the parser drops cells beyond the last column
            return {"type": "pre", "text": "\n".join(lines)}
        rows: list[list[RichBlock]] = []
        for part in node.children:  # the header and the body
            rows.extend([_cell(cell) for cell in row.children] for row in part.children)
        if len(rows[0]) > MAX_COLUMNS:
            raise Unfit("too many columns")
        return {"type": "table", "cells": rows, "is_bordered": True}


def _code(node: SyntaxTreeNode) -> RichBlock:
    language = LANGUAGE.match(node.info)
    # A title after the language is part of the text, so it is shown.
    end = language.end() if language else 0
    title = node.info[end:].strip()
    text = "\n".join(filter(None, (title, node.content.rstrip("\n"))))
    block: RichBlock = {"type": "pre", "text": text}
    if language:
        block["language"] = language.group(1)
    return block


def _cell(node: SyntaxTreeNode) -> RichBlock:
    style = str(node.attrGet("style") or "")
    align = next((side for side in ("right", "center") if side in style), "left")
    cell: RichBlock = {"text": _rich_text(node.children[0]), "align": align, "valign": "middle"}
    if node.tag == "th":
        cell["is_header"] = True
    return cell


def _rich_text(node: SyntaxTreeNode) -> Any:
    """Return a text with its formatting. It is made of the HTML of Telegram's other messages."""
    reader = _TelegramHtml()
    reader.feed(inline(node, HTML))
    reader.close()
    return reader.text


class _TelegramHtml(HTMLParser):
    """Reads the HTML of a Telegram message as rich text. Lives for one text."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._open: list[tuple[str, str, list[Any]]] = [("", "", [])]

    @property
    def text(self) -> Any:
        """The rich text: a string, or a list."""
        return _joined(self._open[0][2])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begin a formatted part."""
        self._open.append((tag, dict(attrs).get("href") or "", []))

    def handle_endtag(self, tag: str) -> None:
        """End a formatted part."""
        name, href, parts = self._open.pop()
        text = _joined(parts)
        part = _link(href, text)
        if name in _KINDS:
            part = {"type": _KINDS[name], "text": text}
        self._open[-1][2].append(part)

    def handle_data(self, data: str) -> None:
        """Add a text."""
        self._open[-1][2].append(data)


def _joined(parts: list[Any]) -> Any:
    if not parts:
        return ""
    if len(parts) == 1:
        return parts[0]
    return parts


def _link(href: str, text: Any) -> RichBlock:
    scheme, _, rest = href.partition(":")
    address = unquote(rest.partition("?")[0])
    if scheme.lower() == "mailto":
        return {"type": "email_address", "text": text, "email_address": address}
    if scheme.lower() == "tel":
        return {"type": "phone_number", "text": text, "phone_number": address}
    return {"type": "url", "text": text, "url": href}


@dataclass(frozen=True, slots=True)
class _Size:
    """What Telegram limits: characters; blocks, items and rows; and levels."""

    chars: int = 0
    blocks: int = 0
    depth: int = 0


def _measured(part: Any) -> _Size:
    """Return the size of blocks, of one block or of a text."""
    if isinstance(part, str):
        return _Size(chars=len(part))
    if isinstance(part, dict):
        contents = [part[name] for name in ("text", "blocks", "items", "cells") if name in part]
        inner = _measured(contents)
        is_cell = "align" in part
        is_block = not is_cell and part.get("type") not in _TEXT_KINDS
        if is_block:
            own = 1 + len(part.get("cells", ()))
        else:
            own = 0
        return _Size(inner.chars, inner.blocks + own, inner.depth + 1)
    sizes = [_measured(each) for each in part]
    return _Size(
        sum(size.chars for size in sizes),
        sum(size.blocks for size in sizes),
        max((size.depth for size in sizes), default=0),
    )
