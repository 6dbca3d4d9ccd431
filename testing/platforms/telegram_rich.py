"""The rich messages of Telegram (Bot API 10.2): what is accepted, and how it is shown.

A rich message is made of blocks, such as paragraphs, lists and tables, instead of one text with
marks. A block may hold texts, and a list or a quotation holds further blocks.

The tables below have the kinds of blocks and texts that Sayso sends, with their fields as the Bot
API documents them. Telegram accepts further kinds, such as photos and underlined text. The fake
refuses those: add a kind here before the adapter sends it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
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
#: The fields of an item of a list. In a numbered list, `value` is the number of the item, and `type`
#: is "1": the number is written in digits. Telegram also knows letters and Roman numerals.
_ITEM = _Fields(("blocks",), optional=("has_checkbox", "is_checked", "value", "type"))
#: The fields of a cell of a table. A cell without a text is empty.
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
#: The fields with the texts of a part, and with the parts inside it.
_CONTENTS = ("text", "credit", "caption", "blocks", "items", "cells")
#: The most characters of text of a whole message.
_MAX_CHARS = 32_768
#: The most blocks, items of lists and rows of tables of a whole message together.
_MAX_BLOCKS = 500
#: The most cells in a row of a table. Cells that span several columns count as one here.
_MAX_CELLS = 20


def checked_rich_text(raw: Any) -> str:
    """Check a rich message. Return it as Markdown, as the adapter reads an incoming one.

    `raw` is the parameter `rich_message` as JSON. Raises TelegramRefusal for a message that
    Telegram refuses, and for a kind of block or text that is not in the tables above.
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
    if _count_chars(blocks) > _MAX_CHARS:
        raise TelegramRefusal("RICH_MESSAGE_TEXT_TOO_LONG")

    # The adapter reads the `label` of each item of a list, as Telegram gives it in an incoming
    # message. A bot sends no labels: Telegram adds them when it accepts the message.
    _label_items(blocks)
    return read_rich_message({"blocks": blocks}).text


def _check_blocks(blocks: Any) -> None:
    """Raise TelegramRefusal for blocks that Telegram refuses, and for all that they hold."""
    for block in _as_array(blocks):
        _check_block(block)


def _check_block(block: Any) -> None:
    """Raise TelegramRefusal for a block that Telegram refuses, and for all that it holds."""
    _check_fields(block, _fields_of(block, _BLOCKS))
    for name in ("text", "credit", "caption"):
        _check_text(block.get(name, ""))
    if block["type"] == "heading" and block["size"] not in range(1, 7):
        raise TelegramRefusal("invalid heading size")

    _check_blocks(block.get("blocks", []))
    for item in _as_array(block.get("items", [])):
        _check_item(item)
    for row in _as_array(block.get("cells", [])):
        _check_row(row)


def _check_item(item: Any) -> None:
    """Raise TelegramRefusal for an item of a list that Telegram refuses."""
    _check_fields(item, _ITEM)
    if not isinstance(item.get("value", 1), int) or item.get("type", "1") != "1":
        raise TelegramRefusal("unsupported number of a list item")
    _check_blocks(item["blocks"])


def _check_row(row: Any) -> None:
    """Raise TelegramRefusal for a row of a table that Telegram refuses."""
    if len(_as_array(row)) > _MAX_CELLS:
        raise TelegramRefusal("RICH_MESSAGE_TABLE_TOO_WIDE")
    for cell in row:
        _check_fields(cell, _CELL)
        _check_text(cell.get("text", ""))


def _check_text(text: Any) -> None:
    """Raise TelegramRefusal for a text that Telegram refuses.

    A text is a string, a list of texts, or an object that formats a text.
    """
    if isinstance(text, str):
        return
    if isinstance(text, list):
        for part in text:
            _check_text(part)
        return

    _check_fields(text, _fields_of(text, _TEXTS))
    if text["type"] == "email_address" and "@" not in str(text["email_address"]):
        raise TelegramRefusal("RICH_MESSAGE_EMAIL_INVALID")
    _check_text(text["text"])


def _fields_of(part: Any, kinds: Mapping[str, _Fields]) -> _Fields:
    """Return the fields of a block or text by its type. `kinds`: _BLOCKS or _TEXTS.

    Raises TelegramRefusal for a part that is no object, or has no type of these.
    """
    kind = None
    if isinstance(part, dict):
        kind = part.get("type")
    if not isinstance(kind, str) or kind not in kinds:
        raise TelegramRefusal(f"unsupported type {kind!r} of a block or a text")
    return kinds[kind]


def _check_fields(part: Any, fields: _Fields) -> None:
    """Raise TelegramRefusal for a part that is no object, lacks a field or has an unknown one."""
    if not isinstance(part, dict):
        raise TelegramRefusal("a part of the rich message must be an object")
    missing = set(fields.required) - part.keys()
    if missing:
        raise TelegramRefusal(f"rich message lacks {sorted(missing)}")
    unknown = part.keys() - {*fields.required, *fields.optional}
    if unknown:
        raise TelegramRefusal(f"rich message takes no {sorted(unknown)}")


def _as_array(value: Any) -> list[Any]:
    """Return a value that is an array. Raises TelegramRefusal for any other."""
    if not isinstance(value, list):
        raise TelegramRefusal("blocks, items, rows and cells must be arrays")
    return value


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


def _count_chars(part: Any) -> int:
    """Return the number of characters of text in a part, such as a block or a list of blocks."""
    if isinstance(part, str):
        return len(part)
    if isinstance(part, list):
        return sum(_count_chars(each) for each in part)
    return sum(_count_chars(part[name]) for name in _CONTENTS if name in part)


def _label_items(blocks: list[dict[str, Any]]) -> None:
    """Give each item of a list its `label`, as Telegram does when it accepts a message."""
    for block in blocks:
        _label_items(block.get("blocks", []))
        for item in block.get("items", ()):
            item["label"] = f"{item['value']}." if "value" in item else "•"
            _label_items(item["blocks"])
