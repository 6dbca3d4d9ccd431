"""Which question a turn belongs to: the message that it quotes, and when it was written.

A yes must never reach a question that its person had not seen when they wrote it.
"""

from __future__ import annotations

import re
from decimal import Decimal

from sayso.channels.types import Turn
from sayso.pending.action import split_button_token
from sayso.pending.stored_action import StoredAction

#: Message ids of Telegram and of Slack, which grow with time.
_NUMERIC_ID = re.compile(r"[0-9]{1,20}(\.[0-9]{1,20})?")


def quotes_another(turn: Turn, question: StoredAction) -> bool:
    """Return whether the turn quotes a message that does not show this question."""
    return bool(turn.replied_to) and not quotes(turn, question)


def quotes(turn: Turn, question: StoredAction) -> bool:
    """Return whether the turn quotes a message that shows this question."""
    button = split_button_token(turn.replied_to_button)
    if button:
        action_id, _, _ = button
        if action_id == question.action_id:
            return True
    return bool(turn.replied_to) and turn.replied_to in _messages_of(question)


def written_before(turn: Turn, question: StoredAction) -> bool:
    """Return whether the platform says that the turn was written before it showed the question.

    A platform states all its times with the same precision, and Telegram only in seconds. So where
    the two times are equal, the ids decide, if the platform numbers the messages of a chat. Where a
    question was shown again, the id of its newest message counts.

    False for a turn without a time: such a platform says nothing about the order.
    """
    if not turn.written_at:
        return False
    if question.written_at and turn.written_at != question.written_at:
        return turn.written_at < question.written_at

    newest_message = _messages_of(question)[-1]
    # On Telegram an id has its chat in front, as in "-1001:5", if the chat is not the one that the
    # conversation began in. Each chat counts its messages from 1.
    turn_chat, _, turn_number = turn.message_id.rpartition(":")
    question_chat, _, question_number = newest_message.rpartition(":")
    if turn_chat != question_chat:
        return False
    if not _NUMERIC_ID.fullmatch(turn_number) or not _NUMERIC_ID.fullmatch(question_number):
        return False
    return Decimal(turn_number) < Decimal(question_number)


def _messages_of(question: StoredAction) -> tuple[str, ...]:
    """Return the ids of the messages that show a question, the newest one last.

    `question_messages` holds only the newest ones, and none on a platform that gives no ids.
    """
    return (question.question_message, *question.question_messages)
