"""The replies of a turn as messages of its platform.

Before a turn is committed, `replace_draft` puts a reply in place of the draft, if one was shown.
Then `split_replies` joins replies where each message costs money, and splits those that are too
long for one message. For the messages that result, `has_new_message` says whether one of them ends
the typing sign.

Every function returns a new value and stores nothing. The channel's adapter is asked only for
`split`. If it fails, its error is logged, and the reply stays whole.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from sayso.channels.base import Channel
from sayso.channels.types import Reply
from sayso.pending.forwarding import ForwardedQuestion, QuestionEnding
from sayso.pending.turn_changes import Forward, TurnChange, TurnReply

log = logging.getLogger(__name__)

#: The text that replaces a draft when the answer has no text for it, as after a /stop, and the
#: platform cannot delete the draft.
NO_WORDS = "…"


def replace_draft(shown: str, replies: tuple[TurnReply, ...]) -> tuple[TurnReply, ...]:
    """Let the first new text for all members replace a draft. Without one the draft is removed.

    `shown`: the platform's id of the draft message.
    """
    for at, turn_reply in enumerate(replies):
        reply = turn_reply.reply
        if reply.text and not reply.media and _is_new_for_all(reply):
            edit = replace(turn_reply, reply=replace(reply, edits=shown))
            return (*replies[:at], edit, *replies[at + 1 :])

    # `removes`: the platform deletes the draft. Where it cannot, NO_WORDS replaces it.
    removal = Reply(NO_WORDS, edits=shown, optional=True, removes=True)
    return (TurnReply(removal), *replies)


def has_new_message(change: TurnChange) -> bool:
    """Return whether the replies of a turn add a message that all members of the conversation see.

    A platform ends its typing sign at such a message. For any other reply the bot must remove the
    sign. An answer that `replace_draft` has put in place of a draft is an edit, and adds none.
    """
    replies = [turn_reply.reply for turn_reply in change.replies]
    return any(_is_new_for_all(reply) for reply in replies if reply.text or reply.media)


def _is_new_for_all(reply: Reply) -> bool:
    """Return whether a reply is a new message for all members of the conversation.

    It is none if it edits a message, goes to one person, or is only shown over a tapped button.
    """
    return not (reply.edits or reply.only_for or reply.answers_tap)


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
    """Return two replies as one, None if they must stay apart.

    The result is `below` with the text of `above` in front. Nothing else of `above` is lost: a
    plain text has no buttons, file or action, and fields such as `preview` belong to these.
    """
    first = above.reply
    second = below.reply
    # Buttons stand below a whole message, so a reply with buttons can only be the lower one. So can
    # a question, whose action the joined reply gets. Both must be for the same readers. If that is
    # one person, both answer the same tap or message (`only_for_act`): the one of this turn.
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
        # What a platform adds, such as words about buttons, belongs to the second.
        language=second.language or first.language,
        # It tells operators why a message is not an answer. One cause is enough for that.
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

    If the platform edits no messages, the new actions lose their `ending`, too: the message of a
    question cannot be replaced later.
    """
    if joins and channel:
        change = join_replies(change, channel)
    messages: list[TurnReply] = []
    for turn_reply in change.replies:
        if turn_reply.reply.text or turn_reply.reply.media:
            messages += _messages_of(turn_reply, channel)
    change = replace(change, replies=tuple(messages))

    if change.new_actions and not _can_edit(channel):
        change = _without_endings(change)
    return change


def fit_forwards(change: TurnChange, channels: Mapping[str, Channel]) -> TurnChange:
    """Return the change with what goes to other conversations as the platforms there take it."""
    forwards: list[Forward] = []
    for forward in change.forwards:
        match forward:
            case ForwardedQuestion():
                channel = channels.get(forward.to.channel)
                forwards.append(replace(forward, messages=_question_messages(forward, channel)))
            case QuestionEnding():
                # An edit is no message that people must read. Where there are none, a new message
                # tells the end.
                is_edit = _can_edit(channels.get(forward.to.channel))
                reply = replace(forward.reply, optional=is_edit)
                forwards.append(replace(forward, reply=reply))
            case _:
                forwards.append(forward)
    return replace(change, forwards=tuple(forwards))


def _question_messages(forward: ForwardedQuestion, channel: Channel | None) -> tuple[Reply, ...]:
    """Return the messages of a question for another conversation.

    None of them waits until its person writes: other people are asked instead.
    """
    pieces: list[TurnReply] = []
    for message in forward.messages:
        pieces += _messages_of(TurnReply(message), channel)
    return tuple(replace(each.reply, may_wait=False) for each in pieces)


def _messages_of(turn_reply: TurnReply, channel: Channel | None) -> list[TurnReply]:
    """Return a reply as the messages it needs. A question counts as shown with the last of them.

    An adapter returns no pieces only for an optional reply that the platform cannot show, such as
    an edit where messages cannot be edited. Such a reply is left out. One that belongs to an action
    is sent all the same: without it the question would never be shown.
    """
    reply = turn_reply.reply
    pieces: Sequence[Reply] | None = None
    if channel:
        pieces = _pieces(reply, channel)
    # Without an adapter, or if it fails, the whole reply is sent, and the platform decides on it.
    if pieces is None:
        pieces = [reply]
    if not pieces and not turn_reply.action_id:
        return []
    if not pieces:
        pieces = [reply]

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
    """Return a piece with those fields of its reply that each piece has.

    `split` may leave them out. The adapter decides which piece has the buttons, the file and the
    edit.
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


def _without_endings(change: TurnChange) -> TurnChange:
    """Return the change with new actions that have no `ending`.

    An `ending` is the edit that replaces the message of a question when its time has ended.
    """
    new_actions = tuple(replace(action, ending="") for action in change.new_actions)
    return replace(change, new_actions=new_actions)


def _can_edit(channel: Channel | None) -> bool:
    """Return whether the platform can replace a sent message: then an optional edit has a piece.

    An adapter that fails counts as one that cannot.
    """
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
