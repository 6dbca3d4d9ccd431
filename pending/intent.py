"""Intent: what a whole message says about the action that waits, with the code typed after it."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from sayso.channels.types import Turn
from sayso.pending.parser import ConfirmParser, RegexConfirmParser
from sayso.pending.records import StoredAction
from sayso.pending.seal import split_button

#: Longer messages carry no code; the cap also bounds the work on hostile input.
MAX_CODED_CHARS = 80
#: The ids of Telegram's messages and of Slack's.
_NUMBER = re.compile(r"[0-9]{1,20}(\.[0-9]{1,20})?")
#: With the marks that the keyboards of Chinese, Japanese and Hindi put around it as well.
_CODED = re.compile(r"(.*?)[\s:,*_\uff1a\uff0c\u3001-]*(\d{4})[\s*_.!\u3002\uff01\u0964]*")


@dataclass(frozen=True, slots=True)
class Words:
    """A decision in words; "" when the message is none. `code` is what was typed after a yes."""

    says: Literal["confirm", "cancel", ""]
    code: str = ""


def quotes_another(turn: Turn, question: StoredAction) -> bool:
    """Return whether the turn quotes a message that does not show this question."""
    button = split_button(turn.replied_to_button)
    if not turn.replied_to or (button and button[0] == question.pid):
        return False
    return turn.replied_to not in (question.prompt, *question.prompts)


def written_before(turn: Turn, question: StoredAction) -> bool:
    """Return whether the platform says that the turn was written before it showed the question.

    Dates may have whole seconds; within one, message ids that are numbers tell the order.
    """
    if not turn.written_at:
        return False
    if question.written_at and turn.written_at != question.written_at:
        return turn.written_at < question.written_at
    ids = (turn.message_id, question.prompt)
    return all(_NUMBER.fullmatch(each) for each in ids) and Decimal(ids[0]) < Decimal(ids[1])


def read_answer(parser: ConfirmParser, message: str, language: str) -> Words:
    """What the message says as an answer to a question in this language, in which "ja" may mean more than elsewhere."""
    words = read_words(parser, message)
    if words.says or not isinstance(parser, RegexConfirmParser):
        return words
    return read_words(parser.only(language), message)


def is_ok(parser: ConfirmParser, message: str, language: str) -> bool:
    """Return whether the message is a plain "ok" to a question in this language."""
    return isinstance(parser, RegexConfirmParser) and (parser.is_ok(message) or parser.only(language).is_ok(message))


def is_unclear(parser: ConfirmParser, message: str, language: str) -> bool:
    """Return whether the message may be meant as an answer to a question in this language, and decides nothing.

    People also answer in a language of their own.
    """
    if not isinstance(parser, RegexConfirmParser):
        return False
    return parser.only(language).is_unclear(message) or parser.is_half_answer(message)


def read_words(parser: ConfirmParser, message: str) -> Words:
    """What the message says: a yes, a yes with a code of four digits, a no, or something else."""
    if parser.is_confirm(message):
        return Words("confirm")
    if parser.is_cancel(message):
        return Words("cancel")
    coded = _CODED.fullmatch(message.strip()) if len(message) <= MAX_CODED_CHARS else None
    if coded and parser.is_confirm(coded[1]):
        return Words("confirm", "".join(str(unicodedata.digit(digit)) for digit in coded[2]))
    return Words("")
