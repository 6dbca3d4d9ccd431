"""Intent: what a whole message says about the action that waits, with the code typed after it."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import Literal

from pending.parser import ConfirmParser, RegexConfirmParser

#: Longer messages carry no code; the cap also bounds the work on hostile input.
MAX_CODED_CHARS = 80
_CODED = re.compile(r"(.*?)[\s:,*_-]*(\d{4})[\s*_.!]*")


@dataclass(frozen=True, slots=True)
class Words:
    """A decision in words; "" when the message is none. `code` is what was typed after a yes."""

    says: Literal["confirm", "cancel", ""]
    code: str = ""


def read_answer(parser: ConfirmParser, message: str, language: str) -> Words:
    """What the message says as an answer to a question in this language, in which "ja" may mean more than elsewhere."""
    words = read_words(parser, message)
    if words.says or not isinstance(parser, RegexConfirmParser):
        return words
    return read_words(parser.only(language), message)


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
