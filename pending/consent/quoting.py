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
    if button and button[0] == question.action_id:
        return True
    shown_in = (question.question_message, *question.question_messages)
    return turn.replied_to in filter(None, shown_in)


def written_before(turn: Turn, question: StoredAction) -> bool:
    """Return whether the platform says that the turn was written before it showed the question.

    Platforms may round times to seconds; within the same second numeric message ids of one chat
    give the order. Of a question that was asked again, the last message counts. False where the
    platform gives no time.
    """
    if not turn.written_at:
        return False
    if question.written_at and turn.written_at != question.written_at:
        return turn.written_at < question.written_at

    question_message = (question.question_message, *question.question_messages)[-1]
    turn_chat, _, turn_number = turn.message_id.rpartition(":")
    question_chat, _, question_number = question_message.rpartition(":")
    if turn_chat != question_chat:
        return False
    if not _NUMERIC_ID.fullmatch(turn_number) or not _NUMERIC_ID.fullmatch(question_number):
        return False
    return Decimal(turn_number) < Decimal(question_number)
