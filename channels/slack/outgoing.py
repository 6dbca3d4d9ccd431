"""A reply as Slack messages: how it is split, and its text and buttons in Block Kit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sayso.channels.markdown.convert import button_text, slack_mrkdwn
from sayso.channels.markdown.literal import as_markdown
from sayso.channels.markdown.split import fits, head, split
from sayso.channels.slack.address import is_user, join_place, split_place
from sayso.channels.slack.incoming import ROW_MARK, THREAD_MARK, USER_MARK
from sayso.channels.types import Button, Conversation, Media, Reply, joined_labels, readable_size

#: The most characters of a section after escaping. A section is a block of Slack that shows text.
SECTION_LIMIT = 3000
#: The most characters of a button.
LABEL_LIMIT = 75
#: The most buttons in a row.
ROW_LIMIT = 5
#: The most buttons in a message. More are hard to choose from, so their labels are listed in the
#: text, and people answer by typing.
BUTTON_LIMIT = 25
#: What Slack could look up in a file's comment: our links, bare URLs, bare names.
_LINKS_AND_NAMES = re.compile(r"[<@]|://")

#: A part of Slack's Block Kit as JSON: a block, an element of a block, or the view of a modal.
Block = dict[str, Any]


def pieces_of(reply: Reply) -> Sequence[Reply]:
    """Return the messages of a reply: one for each section of its text.

    * The first message edits, and the last one has the buttons.
    * More than BUTTON_LIMIT buttons are listed in the text.
    * A file is a separate message. It has the text as its comment if that is one section without
      links and names: Slack looks these up in a comment, and cannot be told not to.
    * An edit without text and buttons is left out: Slack takes no message without text.

    The caller copies to all messages what holds for each of them, such as `only_for`.
    """
    if reply.preview:
        reply = reply.with_preview(format_preview)
    if len(reply.buttons) > BUTTON_LIMIT:
        reply = _with_listed_buttons(reply)

    is_only_file = reply.media and not (reply.buttons or reply.edits)
    if is_only_file and fits(reply.text, SECTION_LIMIT, _length):
        has_links = _LINKS_AND_NAMES.search(slack_mrkdwn(reply.text))
        if not has_links:
            return (reply,)

    texts = split(reply.text, SECTION_LIMIT, _length)
    pieces = [Reply(text) for text in texts if text.strip()]
    if reply.buttons:
        # Slack takes no message without text.
        if not pieces:
            pieces = [Reply(as_markdown(joined_labels(reply.buttons)))]
        pieces[-1] = replace(pieces[-1], buttons=reply.buttons)
    if reply.edits and pieces:
        pieces[0] = replace(
            pieces[0],
            edits=reply.edits,
            optional=reply.optional,
            removes=reply.removes,
        )

    if not reply.media:
        return tuple(pieces)
    file = Reply(media=reply.media)
    # An edit cannot change a file, so the file follows the edited text.
    if reply.edits:
        return (*pieces, file)
    return (file, *pieces)


def _with_listed_buttons(reply: Reply) -> Reply:
    """Return the reply with the labels of its buttons as a numbered list below the text."""
    lines = []
    for number, button in enumerate(reply.buttons, 1):
        label = " ".join(button.label.split())
        lines.append(f"{number}. {as_markdown(label)}")
    text = "\n\n".join(part for part in (reply.text, "\n".join(lines)) if part)
    return replace(reply, text=text, buttons=())


def format_preview(md: str) -> str:
    """Return the preview of a question as Slack shows it: unchanged, like the text around it.

    Each platform has such a function. Marks that set a preview apart, such as those of bold text,
    would be added in it.
    """
    return md


def first_section(md: str) -> str:
    """Return the beginning of a text that fits in one section."""
    return head(md, SECTION_LIMIT, _length)


def message_of(
    texts: Sequence[str], buttons: Sequence[Button], chat: str, conversation: Conversation
) -> dict[str, Any]:
    """Return the parameters of Slack's methods for a message: a section for each text, then rows of buttons.

    * `texts`: in mrkdwn, Slack's own markup.
    * `chat`: where the message is posted.
    * `conversation`: where it belongs. Its buttons name it, so that a tap is answered there.
    """
    # With `verbatim` a bare "@channel" stays text.
    blocks: list[Block] = [
        {"type": "section", "text": {"type": "mrkdwn", "text": text, "verbatim": True}}
        for text in texts
    ]

    # A tap names the block id of its row. No two block ids of a message may be the same, so the
    # rows after the first one have a number.
    mark = _mark_of(conversation)
    elements = [_button(number, button) for number, button in enumerate(buttons)]
    for start in range(0, len(elements), ROW_LIMIT):
        row = start // ROW_LIMIT
        block_id = f"{mark}{ROW_MARK}{row}" if row else mark
        row_elements = elements[start : start + ROW_LIMIT]
        blocks.append({"type": "actions", "block_id": block_id, "elements": row_elements})

    return {
        "channel": split_place(chat).id,
        # For notifications.
        "text": "\n".join(texts),
        "blocks": blocks,
        # Without these an edit would turn bare names into mentions.
        "parse": "none",
        "link_names": False,
    }


def _button(number: int, button: Button) -> Block:
    """Return the element of a button. `number` is its place in the message, from 0."""
    # `button_text` leaves out an effect that is too long, but does not cut a label.
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
    """Return how the block ids of a conversation begin: "thread:1700000000.000100", for example.

    Slack's other fields of a tap do not always name the thread and the workspace in which the
    message was sent. The workspace stands before the mark, as it stands before other ids.
    """
    team, chat = split_place(conversation.chat)
    # Slack's tap names the id of a direct message, but the conversation has that of the person. It
    # has no thread.
    if is_user(chat):
        return join_place(team, f"{USER_MARK}{chat}")
    return join_place(team, f"{THREAD_MARK}{conversation.thread}")


def link_text(media: Media, size: int, url: str) -> str:
    """Return the Markdown for a file that Slack does not accept: its name, its size and its URL.

    `size` is in bytes.
    """
    return f"{shown_name(media)} ({readable_size(size)}): {url}"


def shown_name(media: Media) -> str:
    """Return the Markdown for a file's name.

    It is code, because Slack would make a link of a name such as a.zip. A name with a backtick
    cannot be code, and is shown as text.
    """
    name = media.filename or "file"
    if "`" in name:
        return as_markdown(name)
    return f"`{name}`"


def _length(md: str) -> int:
    """Return the length of a text as Slack counts it: in its own markup, with escapes."""
    return len(slack_mrkdwn(md))
