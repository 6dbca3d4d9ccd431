"""The replies of a turn as messages of its platform: joined, split, or put in place of a draft.

Pure functions over a `TurnChange` and its replies.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from sayso.channels.base import Channel
from sayso.channels.types import Reply
from sayso.pending.turn_changes import TurnChange, TurnReply

log = logging.getLogger(__name__)

#: Replaces a draft whose answer has no text, only a file or nothing after a stop, where it cannot
#: be deleted.
NO_WORDS = "…"


def has_new_message(change: TurnChange) -> bool:
    """Return whether a turn's replies add a message that all members of the conversation see."""
    replies = [turn_reply.reply for turn_reply in change.replies]
    messages = [reply for reply in replies if reply.text or reply.media]
    return any(not (reply.edits or reply.only_for) for reply in messages)


def replace_draft(shown: str, replies: tuple[TurnReply, ...]) -> tuple[TurnReply, ...]:
    """Let the first text replace a draft. Without a text the draft is removed.

    `shown`: the platform's id of the draft message.
    """
    for at, turn_reply in enumerate(replies):
        reply = turn_reply.reply
        if reply.text and not (reply.media or reply.edits):
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
    # question, whose action the joined reply gets. Both must be for the same readers.
    is_plain = bool(first.text) and not (first.media or first.buttons or above.action_id)
    if not is_plain or first.only_for != second.only_for:
        return None

    # What replaces another message, or is shown in a tap, has a place of its own.
    if any(each.edits or each.collapse or each.answers_tap for each in (first, second)):
        return None
    text = first.text
    if second.text:
        text = f"{first.text}\n\n{second.text}"
    both = replace(
        second,
        text=text,
        language=second.language or first.language,
        cause=first.cause or second.cause,
    )
    if len(_pieces(both, channel)) > 1:
        return None
    return replace(below, reply=both)


def split_replies(
    change: TurnChange, channel: Channel | None, *, joins: bool = False
) -> TurnChange:
    """Split each reply into the platform messages it needs.

    A question counts as shown with its last piece. `channel`: None where no adapter knows the
    platform, so that each reply is one message. `joins`: join replies that fit into one message
    first.
    """
    if joins and channel:
        change = join_replies(change, channel)
    pieces: list[TurnReply] = []
    for turn_reply in change.replies:
        reply = turn_reply.reply
        if not (reply.text or reply.media):
            continue
        pieces_of_reply: Sequence[Reply] = [reply]
        if channel:
            pieces_of_reply = _pieces(reply, channel)
        # An edit has no pieces on a platform that edits no messages. A question is sent all the
        # same.
        if not pieces_of_reply and not turn_reply.action_id:
            continue

        *firsts, last = pieces_of_reply or [reply]
        # A reply of several messages replaces no other.
        if reply.collapse and not firsts:
            last = replace(last, collapse=reply.collapse)
        role_of_firsts = turn_reply.role
        if role_of_firsts == "question":
            role_of_firsts = "question_part"
        for first in firsts:
            piece = _as_piece(first, reply)
            pieces.append(replace(turn_reply, reply=piece, role=role_of_firsts))
        pieces.append(replace(turn_reply, reply=_as_piece(last, reply)))

    new_actions = change.new_actions
    if new_actions and not _can_edit(channel):
        # The platform cannot close the question later.
        new_actions = tuple(replace(action, ending="") for action in new_actions)
    return replace(change, replies=tuple(pieces), new_actions=new_actions)


def _as_piece(piece: Reply, reply: Reply) -> Reply:
    """Return a piece of a reply with what holds for the whole reply."""
    return replace(
        piece,
        only_for=reply.only_for,
        only_for_act=reply.only_for_act,
        answers_tap=reply.answers_tap,
        cause=reply.cause,
    )


def _can_edit(channel: Channel | None) -> bool:
    """Return whether a message that was sent can be replaced: an edit is a message then."""
    if channel is None:
        return False
    return bool(_pieces(Reply(NO_WORDS, edits=NO_WORDS, optional=True), channel))


def _pieces(reply: Reply, channel: Channel) -> Sequence[Reply]:
    """Return the pieces of a reply, the whole reply if the adapter fails to split it.

    Otherwise the turn would fail again and again.
    """
    try:
        return channel.split(reply)
    except Exception:
        log.exception("reply.not_split")
        return [reply]
