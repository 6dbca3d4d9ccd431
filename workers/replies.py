"""The replies of a turn as messages of its platform.

Before a turn is committed, `replace_draft` puts a reply in place of the draft, if one was shown.
Then `split_replies` joins replies where each message costs money, and splits those that are too
long for one message. All are pure functions over a `TurnChange` and its replies.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from sayso.channels.base import Channel
from sayso.channels.types import Reply
from sayso.pending.turn_changes import TurnChange, TurnReply

log = logging.getLogger(__name__)

#: The text that replaces a draft when the answer has no text for it, as after a /stop, and the
#: platform cannot delete the draft.
NO_WORDS = "…"


def has_new_message(change: TurnChange) -> bool:
    """Return whether a turn's replies add a message that all members of the conversation see."""
    replies = [turn_reply.reply for turn_reply in change.replies]
    messages = [reply for reply in replies if reply.text or reply.media]
    return any(not (reply.edits or reply.only_for) for reply in messages)


def replace_draft(shown: str, replies: tuple[TurnReply, ...]) -> tuple[TurnReply, ...]:
    """Let the first text that all people see replace a draft. Without one the draft is removed.

    `shown`: the platform's id of the draft message.
    """
    for at, turn_reply in enumerate(replies):
        reply = turn_reply.reply
        is_for_all = not (reply.only_for or reply.answers_tap)
        if reply.text and is_for_all and not (reply.media or reply.edits):
            edit = replace(turn_reply, reply=replace(reply, edits=shown))
            return (*replies[:at], edit, *replies[at + 1 :])

    # `removes`: the platform deletes the draft. Where it cannot, NO_WORDS replaces it.
    removal = Reply(NO_WORDS, edits=shown, optional=True, removes=True)
    return (TurnReply(removal), *replies)


def join_replies(change: TurnChange, channel: Channel) -> TurnChange:
    """Join each text with the reply behind it where both fit into one message of the platform.

    One message costs less than two. The reply behind it may be a text, a question, which stays at
    the end, or a file, whose caption the text becomes.
    """
    joined: list[TurnReply] = []
    for below in change.replies:
        if not (below.reply.text or below.reply.media):
            continue
        both = None
        if joined:
            both = _joined(joined[-1], below, channel)
        if both:
            joined[-1] = both
        else:
            joined.append(below)
    return replace(change, replies=tuple(joined))


def _joined(above: TurnReply, below: TurnReply, channel: Channel) -> TurnReply | None:
    """Return two replies as one, None if they must stay apart."""
    first = above.reply
    second = below.reply
    # Buttons stand below a whole message, so a reply with buttons can only be the lower one. So can a
    # question, whose action the joined reply gets. Both must be for the same readers. If that is one
    # person, both answer the same act (`only_for_act`), because both are of one turn.
    is_plain = bool(first.text) and not (first.media or first.buttons or above.action_id)
    if not is_plain or first.only_for != second.only_for:
        return None

    # These stay alone: an edit of a sent message, a notice that replaces one that still waits to be
    # sent, and a text that the platform shows over the tapped button.
    if any(each.edits or each.collapse or each.answers_tap for each in (first, second)):
        return None

    text = first.text
    if second.text:
        text = f"{first.text}\n\n{second.text}"
    both = replace(
        second,
        text=text,
        language=second.language or first.language,  # that of the buttons, which are the second's
        cause=first.cause or second.cause,
    )
    pieces = _pieces(both, channel)
    if pieces is None or len(pieces) > 1:
        return None
    return replace(below, reply=both)


def split_replies(
    change: TurnChange, channel: Channel | None, *, joins: bool = False
) -> TurnChange:
    """Split each reply into the platform messages it needs.

    `channel`: None where no adapter knows the platform, so that each reply is one message. `joins`:
    join replies that fit into one message first.

    Where the platform edits no messages, new actions also lose their `ending`, the edit that would
    close the message of the question later.
    """
    if joins and channel:
        change = join_replies(change, channel)
    messages: list[TurnReply] = []
    for turn_reply in change.replies:
        if turn_reply.reply.text or turn_reply.reply.media:
            messages += _messages_of(turn_reply, channel)
    change = replace(change, replies=tuple(messages))

    if not change.new_actions or _can_edit(channel):
        return change
    new_actions = tuple(replace(action, ending="") for action in change.new_actions)
    return replace(change, new_actions=new_actions)


def _messages_of(turn_reply: TurnReply, channel: Channel | None) -> list[TurnReply]:
    """Return a reply as the messages it needs. A question counts as shown with the last of them.

    An optional edit needs none on a platform that edits no messages. A question is sent all the
    same.
    """
    reply = turn_reply.reply
    pieces: Sequence[Reply] | None = None
    if channel:
        pieces = _pieces(reply, channel)
    # If the adapter fails, the whole reply is sent, and the platform decides about it.
    if pieces is None or (not pieces and turn_reply.action_id):
        pieces = [reply]
    if not pieces:
        return []

    *firsts, last = pieces
    role_of_firsts = turn_reply.role
    if role_of_firsts == "question":
        role_of_firsts = "question_part"
    messages = [
        replace(turn_reply, reply=_as_piece(first, reply), role=role_of_firsts) for first in firsts
    ]

    last = _as_piece(last, reply)
    # A reply with `collapse` replaces one waiting message by one message, so a longer one does not.
    if not firsts:
        last = replace(last, collapse=reply.collapse)
    return [*messages, replace(turn_reply, reply=last)]


def _as_piece(piece: Reply, reply: Reply) -> Reply:
    """Return a piece of a reply with what holds for each piece, and which `split` may leave out.

    Which piece has the buttons, the file and the edit, the adapter has decided.
    """
    return replace(
        piece,
        collapse="",
        language=reply.language,
        only_for=reply.only_for,
        only_for_act=reply.only_for_act,
        answers_tap=reply.answers_tap,
        cause=reply.cause,
    )


def _can_edit(channel: Channel | None) -> bool:
    """Return whether the platform can replace a sent message: then an optional edit has a piece."""
    if channel is None:
        return False
    edit = Reply(NO_WORDS, edits="the id of any message", optional=True)
    return bool(_pieces(edit, channel))


def _pieces(reply: Reply, channel: Channel) -> Sequence[Reply] | None:
    """Return the pieces of a reply, None if the adapter fails to split it.

    Its error is only logged. Otherwise the turn would fail again and again.
    """
    try:
        return channel.split(reply)
    except Exception:
        log.exception("reply.not_split")
        return None
