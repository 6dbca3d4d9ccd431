"""ConfirmParser, intent of a message."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache, cached_property
from typing import Literal, Protocol

from sayso.channels.types import Turn
from sayso.pending.consent.normalize import emoji_of, is_syllabic, unstretched, without_emoji, words_of
from sayso.pending.consent.phrases import phrasebook
from sayso.pending.repository import StoredAction
from sayso.pending.signing import split_button

#: Longer messages are never a decision; the cap also bounds the work on hostile input.
MAX_DECISION_CHARS = 60


#: Longer messages, in characters and in words, are never an unclear answer.
MAX_UNCLEAR_CHARS = 30


MAX_UNCLEAR_WORDS = 3


_EMOJI_YES = frozenset("👍✅")


#: It asks for the colored form of the sign before it.
_EMOJI_STYLE = "\ufe0f"


_EMOJI_NO = frozenset("👎❌")


class ConfirmParser(Protocol):
    """Reads a whole message as a decision (seed). Pluggable; `version` is kept in every record it judged."""

    version: str

    def is_confirm(self, msg: str) -> bool:
        """Whether the message is an unambiguous yes."""

    def is_cancel(self, msg: str) -> bool:
        """Whether the message is an unambiguous no."""


class RegexConfirmParser:
    """A finite table of whole phrases: no phrase inside a longer sentence ever decides.

    "ok", "claro", "pode", "sure" and "go" acknowledge many things and confirm nothing (seed). A question, a
    condition or a second object makes it another sentence, which is not in the table. Raises ValueError for a
    language that has no table.
    """

    def __init__(self, languages: Sequence[str] = ("pt", "en", "es"), emoji: bool = False) -> None:
        self.languages = tuple(languages)
        self._book = phrasebook(languages)
        self._emoji = emoji
        self.version = f"regex-v4:{'-'.join(languages)}{'+emoji' if emoji else ''}"

    def only(self, language: str) -> RegexConfirmParser:
        """A parser of one language, for an answer to a question in it: no other language's false friends there."""
        return _parser(language, self._emoji) if language in self.languages else self

    def is_confirm(self, msg: str) -> bool:
        """Whether the whole message, give or take politeness and punctuation, is a yes."""
        words = self._read(msg, "yes")
        return words in _EMOJI_YES or self._is_in(self._book.confirm, words)

    def is_cancel(self, msg: str) -> bool:
        """Whether the whole message is a no. Unlike a yes, it may trail off or begin with a "please"."""
        words = self._read(msg, "no").removesuffix(" …")
        if words in _EMOJI_NO or self._is_in(self._book.cancel, words):
            return True
        return not self._book.cancel.isdisjoint(self._without_please(words))

    def is_ok(self, msg: str) -> bool:
        """Return whether the whole message is a plain "ok", which is a yes only where a channel says so."""
        return self._is_in(self._book.ok, self._read(msg, "yes"))

    def is_unclear(self, msg: str) -> bool:
        """Return whether a message may be meant as an answer, although it decides nothing: short, and no new request.

        It is an emoji or a number alone, an acknowledgement, a decision that is questioned or unfinished, a misspelt
        one, or a few words with one of these among them. A command with another word beside it is a new request.
        """
        if not msg.strip() or len(msg) > MAX_UNCLEAR_CHARS:
            return False
        if not any(char.isalpha() for char in msg):
            return True
        words = _letters_of(msg)
        parts = words.split()
        return 0 < len(parts) <= MAX_UNCLEAR_WORDS and (
            self._is_in(self._answers, words)
            or any(part in self._answers and part not in self._book.commands for part in parts)
            or (len(parts) == 1 and self._is_misspelt(words))
        )

    def is_half_answer(self, msg: str) -> bool:
        """Return whether the whole message is an acknowledgement or a decision that is questioned or unfinished.

        Unlike `is_unclear`, nothing is searched for in it: so it may be read in all languages at once.
        """
        return len(msg) <= MAX_UNCLEAR_CHARS and self._is_in(self._answers, _letters_of(msg))

    @cached_property
    def _answers(self) -> frozenset[str]:
        return self._book.confirm | self._book.cancel | self._book.ok | self._book.unclear

    def _is_misspelt(self, word: str) -> bool:
        """Return whether one letter of the word is wrong, missing or too many to be a decision.

        Of a script whose letters are syllables or words, another letter is another word.
        """
        if not 3 <= len(word) <= 10 or is_syllabic(word):
            return False
        decisions = self._book.confirm | self._book.cancel
        return any(
            abs(len(word) - len(each)) <= 1 and _one_letter_off(word, each) for each in decisions if len(each) > 2
        )

    def _is_in(self, phrases: frozenset[str], words: str) -> bool:
        """Return whether the words are one of the phrases, with a polite ending or stretched letters or without."""
        forms = {words, unstretched(words), unstretched(words, keep=2)}
        return not phrases.isdisjoint(forms.union(*map(self._without_thanks, forms)))

    def _read(self, msg: str, answer: Literal["yes", "no"]) -> str:
        if len(msg) > MAX_DECISION_CHARS:
            return ""
        return (self._emoji and emoji_of(msg)) or words_of(_one_emoji_less(msg, answer))

    def _without_thanks(self, words: str) -> set[str]:
        """The words less any one polite ending."""
        return {words.removesuffix(f" {polite}") for polite in self._book.polite}

    def _without_please(self, words: str) -> set[str]:
        """The words less any one polite beginning."""
        return {words.removeprefix(f"{polite} ") for polite in self._book.polite}


def _letters_of(msg: str) -> str:
    """Return the plain words of a message, whatever stands between and around them."""
    return unstretched(words_of("".join(char if _is_written(char) else " " for char in msg)))


def _is_written(char: str) -> bool:
    """Return whether it is a letter, a mark upon one, a digit or an apostrophe."""
    return char == "'" or (unicodedata.category(char)[0] in "LMN" and char != _EMOJI_STYLE)


def _one_emoji_less(msg: str, answer: Literal["yes", "no"]) -> str:
    """Return the message less the one emoji at its end that goes with the answer; "" where more stand there."""
    shorter = without_emoji(msg, answer)
    return shorter if shorter.isascii() or shorter == msg or words_of(shorter + "🙏") else ""


def _one_letter_off(one: str, other: str) -> bool:
    """Return whether one letter more, less or other, or two that changed places, make one word of the other."""
    start = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    one, other = one[start:], other[start:]
    return one[1:] in (other, other[1:]) or one == other[1:] or one[:2] + one[2:] == other[1::-1] + other[2:]


@cache
def _parser(language: str, emoji: bool) -> RegexConfirmParser:
    return RegexConfirmParser((language,), emoji)


#: Longer messages carry no code; the cap also bounds the work on hostile input.
MAX_CODED_CHARS = 80


#: The ids of Telegram's messages and of Slack's.
_NUMBER = re.compile(r"[0-9]{1,20}(\.[0-9]{1,20})?")


#: With the marks that the keyboards of Chinese, Japanese and Hindi put around it as well.
_CODED = re.compile(r"(.*?)[\s:,*_\uff1a\uff0c\u3001-]*(\d{4})[\s*_.!\u3002\uff01\u0964]*")


@dataclass(frozen=True, slots=True)
class ParsedAnswer:
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


def read_answer(parser: ConfirmParser, message: str, language: str) -> ParsedAnswer:
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


def read_words(parser: ConfirmParser, message: str) -> ParsedAnswer:
    """What the message says: a yes, a yes with a code of four digits, a no, or something else."""
    if parser.is_confirm(message):
        return ParsedAnswer("confirm")
    if parser.is_cancel(message):
        return ParsedAnswer("cancel")
    coded = _CODED.fullmatch(message.strip()) if len(message) <= MAX_CODED_CHARS else None
    if coded and parser.is_confirm(coded[1]):
        return ParsedAnswer("confirm", "".join(str(unicodedata.digit(digit)) for digit in coded[2]))
    return ParsedAnswer("")
