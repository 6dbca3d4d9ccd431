"""What Telegram accepts as the text and the buttons of a message."""

from __future__ import annotations

import html
import json
import re
from itertools import chain
from typing import Any

_TAGS = frozenset(
    (
        "b",
        "strong",
        "i",
        "em",
        "u",
        "ins",
        "s",
        "strike",
        "del",
        "a",
        "code",
        "pre",
        "blockquote",
        "span",
    )
)
_TAG = re.compile(r"<(/?)([A-Za-z][\w-]*)((?:\s+[\w-]+(?:=\"[^\"<>]*\")?)*)\s*>")
#: The actions that a button of an inline keyboard may have.
_ACTIONS = frozenset(
    (
        *(
            "url",
            "callback_data",
            "web_app",
            "login_url",
            "switch_inline_query",
            "switch_inline_query_current_chat",
        ),
        *("switch_inline_query_chosen_chat", "copy_text", "callback_game", "pay", "disabled"),
    )
)


class TelegramRefusal(Exception):
    """Raised when Telegram would answer 400 with this description."""


def plain_text(text: str, parse_mode: str | None) -> str:
    """Return the text that people see.

    Raises TelegramRefusal for HTML that Telegram cannot parse.
    """
    if parse_mode is None:
        return text
    if parse_mode != "HTML":
        raise TelegramRefusal("unsupported parse_mode")
    open_tags: list[str] = []
    for closing, name, _ in _TAG.findall(text):
        _check_tag(open_tags, bool(closing), name.lower())
    if open_tags:
        raise TelegramRefusal(
            f"can't parse entities: Can't find end tag corresponding to start tag \"{open_tags[-1]}\""
        )
    plain = _TAG.sub("", text)
    if "<" in plain:
        raise TelegramRefusal("can't parse entities: Unsupported start tag")
    return html.unescape(plain)


def _check_tag(open_tags: list[str], closing: bool, name: str) -> None:
    if name not in _TAGS:
        raise TelegramRefusal(f'can\'t parse entities: Unsupported start tag "{name}"')
    if not closing:
        if name == "blockquote" and "blockquote" in open_tags:
            raise TelegramRefusal("can't parse entities: blockquotes can't be nested")
        # Telegram keeps one of the addresses: a caller does not mean that.
        if name == "a" and "a" in open_tags:
            raise TelegramRefusal("can't parse entities: links can't be nested")
        open_tags.append(name)
    elif not open_tags or open_tags.pop() != name:
        raise TelegramRefusal(f'can\'t parse entities: Unexpected end tag "{name}"')


def check_length(text: str, limit: int, field: str) -> None:
    """Raise TelegramRefusal for an empty message, or more UTF-16 code units than the limit."""
    if len(text.encode("utf-16-le")) // 2 > limit:
        raise TelegramRefusal(
            "message is too long" if field == "text" else "message caption is too long"
        )
    if field == "text" and not text.strip():
        raise TelegramRefusal("message text is empty")


def buttons(markup: Any) -> list[dict[str, str]]:
    """Return the buttons of an inline keyboard that have an effect.

    It has at most 100, each with text and one action. Data has 1 to 64 bytes.
    """
    if markup:
        keyboard = json_list(markup, "inline keyboard", "inline_keyboard")
    else:
        keyboard = []
    if not all(isinstance(row, list) for row in keyboard):
        raise TelegramRefusal("can't parse inline keyboard: rows must be arrays")
    keys = [key for row in keyboard for key in row]
    if len(keys) > 100 or any(len(row) > 8 for row in keyboard):
        raise TelegramRefusal("reply markup is too long")
    for key in keys:
        _check_key(key)
    active = [key for key in keys if "disabled" not in key]
    return [{"label": key["text"], "data": key.get("callback_data", "")} for key in active]


def disabled_labels(markup: Any) -> list[str]:
    """Return the labels of the buttons that do nothing."""
    if not markup:
        return []
    keyboard = json_list(markup, "inline keyboard", "inline_keyboard")
    keys = chain.from_iterable(keyboard)
    return [key["text"] for key in keys if "disabled" in key]


def _check_key(key: Any) -> None:
    if not isinstance(key, dict) or not key.get("text"):
        raise TelegramRefusal("inline keyboard button text must be non-empty")
    actions = _ACTIONS & key.keys()
    if not actions:
        raise TelegramRefusal(
            "can't parse inline keyboard button: Text buttons are unallowed in the inline keyboard"
        )
    if len(actions) > 1:  # Telegram does one of them: a caller does not mean that
        raise TelegramRefusal(
            f"can't parse inline keyboard button: one action, not {sorted(actions)}"
        )
    if "callback_data" in key and not 1 <= len(str(key["callback_data"]).encode()) <= 64:
        raise TelegramRefusal("BUTTON_DATA_INVALID")
    if key.get("disabled", {}) != {}:
        rule = 'field "disabled" must be an empty object'
        raise TelegramRefusal(f"can't parse inline keyboard button: {rule}")
    if key.get("style", "primary") not in ("danger", "success", "primary"):
        raise TelegramRefusal("invalid button style specified")


def json_list(value: Any, what: str, key: str = "") -> list[Any]:
    """Return a list, or the list under a key. Forms carry it as JSON."""
    try:
        if isinstance(value, str):
            items = json.loads(value)
        else:
            items = value
    except ValueError:
        items = None
    if key and isinstance(items, dict):
        items = items.get(key)
    if not isinstance(items, list):
        raise TelegramRefusal(f"can't parse {what} JSON object")
    return items
