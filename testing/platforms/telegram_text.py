"""What Telegram accepts as the text and the buttons of a message."""

from __future__ import annotations

import html
import json
import re
from itertools import chain
from typing import Any

#: The HTML tags that Telegram knows.
_TAGS = frozenset(
    {
        "a",
        "b",
        "blockquote",
        "code",
        "del",
        "em",
        "i",
        "ins",
        "pre",
        "s",
        "span",
        "strike",
        "strong",
        "u",
    }
)
#: One tag. Its groups: "/" if it is an end tag, its name, and its attributes.
_TAG = re.compile(r"<(/?)([A-Za-z][\w-]*)((?:\s+[\w-]+(?:=\"[^\"<>]*\")?)*)\s*>")
#: The fields that say what a button of an inline keyboard does. Each button has one of them.
_BUTTON_ACTIONS = frozenset(
    {
        "callback_data",
        "callback_game",
        "copy_text",
        "disabled",
        "login_url",
        "pay",
        "switch_inline_query",
        "switch_inline_query_chosen_chat",
        "switch_inline_query_current_chat",
        "url",
        "web_app",
    }
)


class TelegramRefusal(Exception):
    """Raised when Telegram would answer 400 with this description."""


def plain_text(text: str, parse_mode: str | None) -> str:
    """Return the text that people see.

    `parse_mode` is "HTML", or None for a text without formatting. Raises TelegramRefusal for HTML
    that Telegram cannot parse.
    """
    if parse_mode is None:
        return text
    if parse_mode != "HTML":
        raise TelegramRefusal("unsupported parse_mode")
    open_tags: list[str] = []
    for slash, name, _ in _TAG.findall(text):
        _check_tag(open_tags, name.lower(), is_end=bool(slash))
    if open_tags:
        rule = f'Can\'t find end tag corresponding to start tag "{open_tags[-1]}"'
        raise TelegramRefusal(f"can't parse entities: {rule}")
    plain = _TAG.sub("", text)
    if "<" in plain:
        raise TelegramRefusal("can't parse entities: Unsupported start tag")
    return html.unescape(plain)


def _check_tag(open_tags: list[str], name: str, *, is_end: bool) -> None:
    """Check the next tag of a text, and add it to the open tags or remove the one it closes.

    Raises TelegramRefusal.
    """
    if name not in _TAGS:
        raise TelegramRefusal(f'can\'t parse entities: Unsupported start tag "{name}"')
    if not is_end:
        if name == "blockquote" and "blockquote" in open_tags:
            raise TelegramRefusal("can't parse entities: blockquotes can't be nested")
        # Telegram uses one of the two addresses, so a link inside a link is a mistake of the bot.
        if name == "a" and "a" in open_tags:
            raise TelegramRefusal("can't parse entities: links can't be nested")
        open_tags.append(name)
    elif not open_tags or open_tags.pop() != name:
        raise TelegramRefusal(f'can\'t parse entities: Unexpected end tag "{name}"')


def check_length(text: str, limit: int, field: str) -> None:
    """Raise TelegramRefusal for an empty text, or a text or caption over the limit.

    `limit` is in UTF-16 code units, as Telegram counts. `field` is "text" or "caption".
    """
    if len(text.encode("utf-16-le")) // 2 > limit:
        what = "message" if field == "text" else "message caption"
        raise TelegramRefusal(f"{what} is too long")
    if field == "text" and not text.strip():
        raise TelegramRefusal("message text is empty")


def buttons(markup: Any) -> list[dict[str, str]]:
    """Return the buttons of an inline keyboard that do something, as `label` and `data`.

    `markup` is the parameter `reply_markup`, or nothing. Raises TelegramRefusal for a keyboard that
    Telegram refuses: it has at most 100 buttons, eight in a row. Each has a text and one action,
    and data of 1 to 64 bytes if the action is to send data.
    """
    rows: list[Any] = []
    if markup:
        rows = json_list(markup, "inline keyboard", "inline_keyboard")
    if not all(isinstance(row, list) for row in rows):
        raise TelegramRefusal("can't parse inline keyboard: rows must be arrays")
    all_buttons = list(chain.from_iterable(rows))
    if len(all_buttons) > 100 or any(len(row) > 8 for row in rows):
        raise TelegramRefusal("reply markup is too long")

    for button in all_buttons:
        _check_button(button)
    enabled = [button for button in all_buttons if "disabled" not in button]
    return [{"label": each["text"], "data": each.get("callback_data", "")} for each in enabled]


def disabled_labels(markup: Any) -> list[str]:
    """Return the labels of the disabled buttons of an inline keyboard, which do nothing."""
    if not markup:
        return []
    rows = json_list(markup, "inline keyboard", "inline_keyboard")
    all_buttons = chain.from_iterable(rows)
    return [button["text"] for button in all_buttons if "disabled" in button]


def _check_button(button: Any) -> None:
    """Raise TelegramRefusal for a button that Telegram refuses."""
    if not isinstance(button, dict) or not button.get("text"):
        raise TelegramRefusal("inline keyboard button text must be non-empty")

    actions = _BUTTON_ACTIONS & button.keys()
    if not actions:
        raise TelegramRefusal(
            "can't parse inline keyboard button: Text buttons are unallowed in the inline keyboard"
        )
    # Telegram obeys one of several actions, so a button with two is a mistake of the bot.
    if len(actions) > 1:
        raise TelegramRefusal(
            f"can't parse inline keyboard button: one action, not {sorted(actions)}"
        )

    if "callback_data" in button and not 1 <= len(str(button["callback_data"]).encode()) <= 64:
        raise TelegramRefusal("BUTTON_DATA_INVALID")
    if "disabled" in button and button["disabled"] != {}:
        rule = 'field "disabled" must be an empty object'
        raise TelegramRefusal(f"can't parse inline keyboard button: {rule}")
    if "style" in button and button["style"] not in ("danger", "success", "primary"):
        raise TelegramRefusal("invalid button style specified")


def json_list(value: Any, what: str, key: str = "") -> list[Any]:
    """Return the list that a parameter holds, or the list under a key of its object.

    In a form the parameter is JSON text. `what` names the parameter in the error. Raises
    TelegramRefusal if there is no list.
    """
    items = value
    if isinstance(value, str):
        try:
            items = json.loads(value)
        except ValueError:
            items = None
    if key and isinstance(items, dict):
        items = items.get(key)
    if not isinstance(items, list):
        raise TelegramRefusal(f"can't parse {what} JSON object")
    return items
