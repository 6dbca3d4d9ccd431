"""The rich messages of Telegram (Bot API 10.2): what is accepted, and how it is shown.

A rich message is made of blocks, such as paragraphs, lists and tables, instead of one text with
marks. A block may hold texts, and a list or a quotation holds further blocks.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from sayso.channels.telegram.rich_incoming import read_rich_message
from sayso.testing.platforms.telegram_text import TelegramRefusal


class _Fields(NamedTuple):
    """The fields that a part of a rich message must have, and those that it may have."""

    required: tuple[str, ...]
    optional: tuple[str, ...] = ()


_MESSAGE = _Fields(("blocks",), optional=("is_rtl",))
#: The fields of each kind of block.
_BLOCKS = {
    "paragraph": _Fields(("type", "text")),
    "heading": _Fields(("type", "text", "size")),
    "pre": _Fields(("type", "text"), optional=("language",)),
    "divider": _Fields(("type",)),
    "blockquote": _Fields(("type", "blocks"), optional=("credit",)),
    "list": _Fields(("type", "items")),
    # `cells` is the list of the table's rows, each a list of cells.
    "table": _Fields(
        ("type", "cells"), optional=("is_bordered", "is_striped", "is_compact", "caption")
    ),
}
#: The fields of an item of a list, and of a cell of a table. Of an item in a numbered list, `value`
#: is its number, and `type` how the number is written: "1" for digits.
_ITEM = _Fields(("blocks",), optional=("has_checkbox", "is_checked", "value", "type"))
_CELL = _Fields(("align", "valign"), optional=("text", "is_header", "colspan", "rowspan"))
#: The fields of each kind of formatted text.
_TEXTS = {
    "bold": _Fields(("type", "text")),
    "italic": _Fields(("type", "text")),
    "strikethrough": _Fields(("type", "text")),
    "code": _Fields(("type", "text")),
    "url": _Fields(("type", "text", "url")),
    "email_address": _Fields(("type", "text", "email_address")),
    "phone_number": _Fields(("type", "text", "phone_number")),
}
#: The most characters of a whole message.
_MAX_CHARS = 32_768
#: The most blocks, items of lists and rows of tables of a whole message together.
_MAX_BLOCKS = 500
#: The most cells in a row of a table.
_MAX_COLUMNS = 20


def rich_text(raw: Any) -> str:
    """Return a rich message as Markdown, as the adapter reads an incoming one.

    `raw` is the parameter `rich_message` as JSON. Raises TelegramRefusal for a message that
    Telegram refuses.
    """
    try:
        message = json.loads(raw)
        blocks = message["blocks"]
    except (ValueError, TypeError, KeyError):
        raise TelegramRefusal("can't parse InputRichMessage JSON object") from None
    _check_fields(message, _MESSAGE)
    if not blocks:
        raise TelegramRefusal("RICH_MESSAGE_CONTENT_REQUIRED")
    _check_blocks(blocks)
    if _count_blocks(blocks) > _MAX_BLOCKS:
        raise TelegramRefusal("RICH_MESSAGE_TOO_MANY_BLOCKS")

    # The adapter reads the `label` of each item of a list, as Telegram gives it in an incoming
    # message. A bot sends no labels: Telegram adds them when it accepts the message.
    _label_items(blocks)
    text = read_rich_message({"blocks": blocks}).text
    # Telegram does not count the marks of Markdown and the targets of links. Twice the limit leaves
    # room for them, so only a text that is far too long is refused here.
    if len(text) > 2 * _MAX_CHARS:
        raise TelegramRefusal("RICH_MESSAGE_TEXT_TOO_LONG")
    return text


def _check_blocks(blocks: Any) -> None:
    """Raise TelegramRefusal for blocks that Telegram refuses, and for all that they hold."""
    if not isinstance(blocks, list):
        raise TelegramRefusal("blocks must be an array")
    for block in blocks:
        _check_block(block)


def _check_block(block: Any) -> None:
    """Raise TelegramRefusal for a block that Telegram refuses, and for all that it holds.

    A block without a type has the kind None here, and is refused as an unsupported one.
    """
    kind = block.get("type")
    if kind not in _BLOCKS:
        raise TelegramRefusal(f"unsupported block type {kind!r}")
    _check_fields(block, _BLOCKS[kind])
    if "text" in block:
        _check_text(block["text"])
    if kind == "heading" and block["size"] not in range(1, 7):
        raise TelegramRefusal("invalid heading size")

    _check_blocks(block.get("blocks", []))
    for item in block.get("items", ()):
        _check_fields(item, _ITEM)
        _check_blocks(item["blocks"])
    for row in block.get("cells", ()):
        if len(row) > _MAX_COLUMNS:
            raise TelegramRefusal("RICH_MESSAGE_TABLE_TOO_WIDE")
        for cell in row:
            _check_fields(cell, _CELL)
            _check_text(cell.get("text", ""))


def _check_fields(part: dict[str, Any], fields: _Fields) -> None:
    """Raise TelegramRefusal if a field is missing or unknown."""
    missing = set(fields.required) - part.keys()
    if missing:
        raise TelegramRefusal(f"rich message lacks {sorted(missing)}")
    unknown = part.keys() - {*fields.required, *fields.optional}
    if unknown:
        raise TelegramRefusal(f"rich message takes no {sorted(unknown)}")


def _check_text(text: Any) -> None:
    """Raise TelegramRefusal for a text that Telegram refuses.

    A text is a string, a list of texts, or an object that formats a text. An object without a type
    is refused as one of an unsupported type.
    """
    if isinstance(text, str):
        return
    if isinstance(text, list):
        for part in text:
            _check_text(part)
        return
    if text.get("type") not in _TEXTS:
        raise TelegramRefusal(f"unsupported text type {text.get('type')!r}")
    _check_fields(text, _TEXTS[text["type"]])
    if text["type"] == "email_address" and "@" not in text["email_address"]:
        raise TelegramRefusal("RICH_MESSAGE_EMAIL_INVALID")
    _check_text(text["text"])


def _count_blocks(blocks: list[dict[str, Any]]) -> int:
    """Return the number of blocks, items of lists and rows of tables, at all depths."""
    count = len(blocks)
    for block in blocks:
        items = block.get("items", ())
        rows = block.get("cells", ())
        count += len(items) + len(rows)
        count += _count_blocks(block.get("blocks", []))
        count += sum(_count_blocks(item["blocks"]) for item in items)
    return count


def _label_items(blocks: list[dict[str, Any]]) -> None:
    """Give each item of a list its `label`, as Telegram does when it accepts a message."""
    for block in blocks:
        _label_items(block.get("blocks", []))
        for item in block.get("items", ()):
            item["label"] = f"{item['value']}." if "value" in item else "•"
            _label_items(item["blocks"])
