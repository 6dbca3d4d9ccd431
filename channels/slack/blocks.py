"""Slack blocks: a reply's words and buttons in Block Kit, within its limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sayso.channels.slack.events import ROW_MARK, THREAD_MARK, USER_MARK
from sayso.channels.types import Button, Conversation

#: Characters in one section, after escaping; characters on a button.
SECTION_LIMIT, LABEL_LIMIT = 3000, 75
#: Buttons in a row, and in a message: more are hard to choose from, and listed instead.
ROW_LIMIT, BUTTON_LIMIT = 5, 25

Block = dict[str, Any]


def blocks_of(texts: Sequence[str], buttons: Sequence[Button], to: Conversation) -> list[Block]:
    """A section for each text, which is mrkdwn already, then the buttons in rows."""
    rows = [buttons[start : start + ROW_LIMIT] for start in range(0, len(buttons), ROW_LIMIT)]
    return [*map(_section, texts), *(_row(row, number, to) for number, row in enumerate(rows))]


def listed(buttons: Sequence[Button]) -> str:
    """Choices that are too many for buttons, in words."""
    return "\n".join(f"{number}. {' '.join(button.label.split())}" for number, button in enumerate(buttons, 1))


def is_user(chat: str) -> bool:
    """Whether a chat is named by a person's id: Slack opens the direct message on demand."""
    return chat.startswith(("U", "W"))


def _section(text: str) -> Block:
    # Verbatim: a bare "@channel" in it stays words, as it was written.
    return {"type": "section", "text": {"type": "mrkdwn", "text": text, "verbatim": True}}


def _row(buttons: Sequence[Button], row: int, to: Conversation) -> Block:
    mark = f"{USER_MARK}{to.chat}" if is_user(to.chat) else f"{THREAD_MARK}{to.thread}"
    keys = [_key(row * ROW_LIMIT + number, button) for number, button in enumerate(buttons)]
    return {"type": "actions", "block_id": f"{mark}{ROW_MARK}{row}" if row else mark, "elements": keys}


def _key(number: int, button: Button) -> Block:
    key = {
        "type": "button",
        "action_id": f"button-{number}",
        "text": {"type": "plain_text", "text": _label(button.label)},
        "value": button.data,
    }
    return key if button.style == "default" else {**key, "style": button.style}


def _label(label: str) -> str:
    return label if len(label) <= LABEL_LIMIT else f"{label[: LABEL_LIMIT - 1]}…"
