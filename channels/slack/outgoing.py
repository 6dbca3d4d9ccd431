"""A reply as Slack messages: how it is split, and its text and buttons in Block Kit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sayso.channels.markdown import button_text, slack_mrkdwn
from sayso.channels.markdown.literal import as_markdown
from sayso.channels.markdown.split import fits, head, split
from sayso.channels.slack.address import is_user, join_place, split_place
from sayso.channels.slack.incoming import ROW_MARK, THREAD_MARK, USER_MARK
from sayso.channels.types import Button, Conversation, Media, Reply, joined_labels, readable_size

#: Characters in one section after escaping, and on a button.
SECTION_LIMIT = 3000
LABEL_LIMIT = 75
#: Buttons in a row, and in a message. More are hard to choose from, so they are listed in the text.
ROW_LIMIT = 5
BUTTON_LIMIT = 25
#: What Slack could look up in a file's comment: our links, bare URLs, bare names.
_LOOKED_UP = re.compile(r"[<@]|://")

#: A block of Block Kit, or an element of one, as Slack's JSON.
Block = dict[str, Any]


def pieces_of(reply: Reply) -> Sequence[Reply]:
    """Return one message per section of text. The first one edits; the last one has the buttons.

    A file carries the text only if that is one section without links and names, because only for a
    message can Slack be told not to look them up. Buttons and edits need a message beside the file.
    More than 25 buttons are listed.
    """
    if reply.preview:
        reply = reply.with_preview(format_preview)
    is_only_file = reply.media and not (reply.buttons or reply.edits)
    if is_only_file and fits(reply.text, SECTION_LIMIT, _length):
        may_be_looked_up = _LOOKED_UP.search(slack_mrkdwn(reply.text))
        if not may_be_looked_up:
            return (reply,)

    if len(reply.buttons) > BUTTON_LIMIT:
        lines = []
        for number, button in enumerate(reply.buttons, 1):
            label = " ".join(button.label.split())
            lines.append(f"{number}. {as_markdown(label)}")
        text = "\n\n".join(part for part in (reply.text, "\n".join(lines)) if part)
        return pieces_of(replace(reply, text=text, buttons=()))

    texts = [Reply(text) for text in split(reply.text, SECTION_LIMIT, _length) if text.strip()]
    if reply.buttons:
        if not texts:
            texts = [Reply(as_markdown(joined_labels(reply.buttons)))]
        texts[-1] = replace(texts[-1], buttons=reply.buttons)
    if reply.edits and texts:
        texts[0] = replace(
            texts[0],
            edits=reply.edits,
            optional=reply.optional,
            removes=reply.removes,
        )
    if not reply.media:
        return tuple(texts)
    file = Reply(media=reply.media)
    if reply.edits:
        return (*texts, file)
    return (file, *texts)


def format_preview(md: str) -> str:
    """Return the preview of a question in Markdown: like the text around it.

    It may have several lines.
    """
    return md


def first_section(md: str) -> str:
    """Return the beginning of a text that fits in one section."""
    return head(md, SECTION_LIMIT, _length)


def message_of(
    texts: Sequence[str], buttons: Sequence[Button], chat: str, conversation: Conversation
) -> Block:
    """Return the parameters of a message: a section for each mrkdwn text, then rows of buttons.

    `text` is for notifications. Without `parse` an edit would turn bare names into mentions.
    """
    # With `verbatim` a bare "@channel" stays text.
    blocks: list[Block] = [
        {"type": "section", "text": {"type": "mrkdwn", "text": text, "verbatim": True}}
        for text in texts
    ]
    mark = _mark_of(conversation)
    elements = [_button(number, button) for number, button in enumerate(buttons)]
    for start in range(0, len(elements), ROW_LIMIT):
        row = start // ROW_LIMIT
        block_id = f"{mark}{ROW_MARK}{row}" if row else mark
        in_row = elements[start : start + ROW_LIMIT]
        blocks.append({"type": "actions", "block_id": block_id, "elements": in_row})
    return {
        "channel": split_place(chat).id,
        "text": "\n".join(texts),
        "blocks": blocks,
        "parse": "none",
        "link_names": False,
    }


def _button(number: int, button: Button) -> Block:
    """Return the element of a button. `number` is its place in the message, from 0."""
    label = button_text(button, LABEL_LIMIT)
    if len(label) > LABEL_LIMIT:
        label = f"{label[: LABEL_LIMIT - 1]}…"
    element: Block = {
        "type": "button",
        "action_id": f"button-{number}",
        "text": {"type": "plain_text", "text": label},
        "value": button.data,
    }
    if button.style != "default":
        element["style"] = button.style
    return element


def _mark_of(conversation: Conversation) -> str:
    """Return the beginning of the block ids of a conversation, by which a tap finds it again.

    A tap's own fields do not always name the workspace that its message was sent in.
    """
    team, chat = split_place(conversation.chat)
    mark = f"{THREAD_MARK}{conversation.thread}"
    if is_user(chat):
        mark = f"{USER_MARK}{chat}"
    return join_place(team, mark)


def link_text(media: Media, size: int, url: str) -> str:
    """Return the Markdown for a file that Slack does not accept: its name, its size and its URL.

    `size` is in bytes.
    """
    return f"{shown_name(media)} ({readable_size(size)}): {url}"


def shown_name(media: Media) -> str:
    """Return the Markdown for a file's name.

    It is code, because Slack would make a link of a name such as a.zip.
    """
    name = media.filename or "file"
    if "`" in name:
        return as_markdown(name)
    return f"`{name}`"


def _length(md: str) -> int:
    return len(slack_mrkdwn(md))
