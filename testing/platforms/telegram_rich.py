"""The blocks of a rich message of Telegram (Bot API 10.2): what is accepted, and how it is shown."""

from __future__ import annotations

import json
from typing import Any

from sayso.channels.telegram.rich_incoming import read_rich_message
from sayso.testing.platforms.telegram_text import TelegramRefusal

#: The fields of each kind of block: those that it must have, and those that it may have.
_BLOCKS: dict[str, tuple[set[str], set[str]]] = {
    "paragraph": ({"text"}, set()),
    "heading": ({"text", "size"}, set()),
    "pre": ({"text"}, {"language"}),
    "divider": (set(), set()),
    "blockquote": ({"blocks"}, {"credit"}),
    "list": ({"items"}, set()),
    "table": ({"cells"}, {"is_bordered", "is_striped", "is_compact", "caption"}),
}
_ITEM = ({"blocks"}, {"has_checkbox", "is_checked", "value", "type"})
_CELL = ({"align", "valign"}, {"text", "is_header", "colspan", "rowspan"})
#: The fields of each kind of text beside its text.
_TEXTS = {
    "bold": set(),
    "italic": set(),
    "strikethrough": set(),
    "code": set(),
    "url": {"url"},
    "email_address": {"email_address"},
    "phone_number": {"phone_number"},
}
_MAX_CHARS = 32_768
_MAX_BLOCKS = 500
_MAX_COLUMNS = 20


def rich_text(raw: Any) -> str:
    """Return the text that people see of the parameter `rich_message`. Raises TelegramRefusal."""
    try:
        message = json.loads(raw)
        blocks = message["blocks"]
    except (ValueError, TypeError, KeyError):
        raise TelegramRefusal("can't parse InputRichMessage JSON object") from None
    _check_fields(message, ({"blocks"}, {"is_rtl"}))
    if not blocks:
        raise TelegramRefusal("RICH_MESSAGE_CONTENT_REQUIRED")
    count = _check_blocks(blocks)
    if count > _MAX_BLOCKS:
        raise TelegramRefusal("RICH_MESSAGE_TOO_MANY_BLOCKS")
    text = read_rich_message({"blocks": blocks}).text
    if len(text) > 2 * _MAX_CHARS:
        raise TelegramRefusal("RICH_MESSAGE_TEXT_TOO_LONG")
    return text


def _check_blocks(blocks: Any) -> int:
    """Check blocks, and number the items of lists as Telegram does.

    Return the number of blocks, items and rows.
    """
    if not isinstance(blocks, list):
        raise TelegramRefusal("blocks must be an array")
    return sum(_check_block(block) for block in blocks)


def _check_block(block: Any) -> int:
    kind = block.get("type")
    if kind not in _BLOCKS:
        raise TelegramRefusal(f"unsupported block type {kind!r}")
    _check_fields({name: block[name] for name in block if name != "type"}, _BLOCKS[kind])
    if "text" in block:
        _check_text(block["text"])
    if kind == "heading" and block["size"] not in range(1, 7):
        raise TelegramRefusal("invalid heading size")
    count = 1 + _check_blocks(block.get("blocks", []))
    for item in block.get("items", ()):
        _check_fields(item, _ITEM)
        if "value" in item:
            item["label"] = f"{item['value']}."
        else:
            item["label"] = "•"
        count += 1 + _check_blocks(item["blocks"])
    for row in block.get("cells", ()):
        count += 1
        if len(row) > _MAX_COLUMNS:
            raise TelegramRefusal("RICH_MESSAGE_TABLE_TOO_WIDE")
        for cell in row:
            _check_fields(cell, _CELL)
            _check_text(cell.get("text", ""))
    return count


def _check_fields(values: dict[str, Any], fields: tuple[set[str], set[str]]) -> None:
    needed, possible = fields
    if missing := needed - values.keys():
        raise TelegramRefusal(f"rich message lacks {sorted(missing)}")
    if unknown := values.keys() - needed - possible - {"label"}:
        raise TelegramRefusal(f"rich message takes no {sorted(unknown)}")


def _check_text(text: Any) -> None:
    if isinstance(text, str):
        return
    if isinstance(text, list):
        for part in text:
            _check_text(part)
        return
    if text.get("type") not in _TEXTS:
        raise TelegramRefusal(f"unsupported text type {text.get('type')!r}")
    values = {name: each for name, each in text.items() if name != "type"}
    _check_fields(values, ({"text"} | _TEXTS[text["type"]], set()))
    if "@" not in values.get("email_address", "@"):
        raise TelegramRefusal("RICH_MESSAGE_EMAIL_INVALID")
    _check_text(text["text"])
