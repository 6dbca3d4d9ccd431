"""ConfirmParser: whether a message is a yes or a no to the open question."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache, cached_property
from typing import Literal, Protocol

from sayso.channels.types import Turn
from sayso.pending.consent.normalize import is_syllabic, only_emoji, plain_words, strip_answer_emoji, unstretch
from sayso.pending.consent.phrases import phrasebook
from sayso.pending.repository import StoredAction
from sayso.pending.signing import split_button_token

#: Longer messages are never a decision. The limit also bounds the work on hostile input.
MAX_DECISION_CHARS = 60
#: Longer messages, in characters or words, are never an unclear answer.
MAX_UNCLEAR_CHARS = 30
MAX_UNCLEAR_WORDS = 3
#: Longer messages carry no code. The limit also bounds the work on hostile input.
MAX_CODED_CHARS = 80

_EMOJI_YES = frozenset("👍✅")
_EMOJI_NO = frozenset("👎❌")
#: Asks for the colored form of the character before it.
_EMOJI_STYLE = "\ufe0f"
#: Message ids of Telegram and of Slack.
_NUMERIC_ID = re.compile(r"[0-9]{1,20}(\.[0-9]{1,20})?")
#: Words and a code of four digits, with the punctuation that Chinese, Japanese and Hindi keyboards put around it.
_CODED = re.compile(r"(.*?)[\s:,*_\uff1a\uff0c\u3001-]*(\d{4})[\s*_.!\u3002\uff01\u0964]*")


@dataclass(frozen=True, slots=True)
class ParsedAnswer:
    """What a message says as an answer: an intent, "" for none, and the `code` that was typed after a yes."""

    intent: Literal["confirm", "cancel", ""]
    code: str = ""


class ConfirmParser(Protocol):
    """Decides whether a whole message is a yes or a no (seed). Replaceable; each action records its `version`."""

    version: str

    def is_confirm(self, msg: str) -> bool:
        """Return whether the message is an unambiguous yes."""

    def is_cancel(self, msg: str) -> bool:
        """Return whether the message is an unambiguous no."""


class RegexConfirmParser:
    """Looks the whole message up in a table of phrases: a phrase inside a longer sentence never decides.

    "ok", "claro", "pode", "sure" and "go" acknowledge many things and confirm nothing (seed). With a question, a
    condition or a second object the message is another sentence, which is not in the table.
    Raises ValueError for a language that has no table.
    """

    def __init__(self, languages: Sequence[str] = ("pt", "en", "es"), emoji: bool = False) -> None:
        self.languages = tuple(languages)
        self._book = phrasebook(languages)
        self._emoji = emoji
        self.version = f"regex-v4:{'-'.join(languages)}{'+emoji' if emoji else ''}"

    def only(self, language: str) -> RegexConfirmParser:
        """Return the parser of one language alone, without the false friends of the others."""
        return _parser(language, self._emoji) if language in self.languages else self

    def is_confirm(self, msg: str) -> bool:
        """Return whether the whole message is a yes, apart from politeness and punctuation."""
        words = self._normalize(msg, "yes")
        return words in _EMOJI_YES or self._is_in(self._book.confirm, words)

    def is_cancel(self, msg: str) -> bool:
        """Return whether the whole message is a no. Unlike a yes, it may trail off or begin with a "please"."""
        words = self._normalize(msg, "no").removesuffix(" …")
        if words in _EMOJI_NO or self._is_in(self._book.cancel, words):
            return True
        return not self._book.cancel.isdisjoint(self._without_please(words))

    def is_ok(self, msg: str) -> bool:
        """Return whether the whole message is a plain "ok", which is a yes only where a channel allows it."""
        return self._is_in(self._book.ok, self._normalize(msg, "yes"))

    def is_unclear(self, msg: str) -> bool:
        """Return whether a short message may be meant as an answer although it decides nothing.

        That is an emoji or a number alone, an acknowledgement, a questioned, unfinished or misspelled decision, or a
        few words with one of these among them. A command with another word beside it is a new request.
        """
        if not msg.strip() or len(msg) > MAX_UNCLEAR_CHARS:
            return False
        if not any(char.isalpha() for char in msg):
            return True
        words = _bare_words(msg)
        parts = words.split()
        return 0 < len(parts) <= MAX_UNCLEAR_WORDS and (
            self._is_in(self._answers, words)
            or any(part in self._answers and part not in self._book.commands for part in parts)
            or (len(parts) == 1 and self._is_misspelled(words))
        )

    def is_half_answer(self, msg: str) -> bool:
        """Return whether the whole message is an acknowledgement, or a questioned or unfinished decision.

        Unlike `is_unclear` it does not search inside the message, so it is safe to use in all languages at once.
        """
        return len(msg) <= MAX_UNCLEAR_CHARS and self._is_in(self._answers, _bare_words(msg))

    @cached_property
    def _answers(self) -> frozenset[str]:
        return self._book.confirm | self._book.cancel | self._book.ok | self._book.unclear

    def _is_misspelled(self, word: str) -> bool:
        """Return whether one letter is wrong, missing or too many in a decision of one word.

        Does not apply to scripts whose letters are syllables or words, where another letter makes another word.
        """
        if not 3 <= len(word) <= 10 or is_syllabic(word):
            return False
        decisions = self._book.confirm | self._book.cancel
        return any(
            abs(len(word) - len(each)) <= 1 and _one_letter_off(word, each) for each in decisions if len(each) > 2
        )

    def _is_in(self, phrases: frozenset[str], words: str) -> bool:
        """Return whether the words are one of the phrases, apart from a polite ending and stretched letters."""
        forms = {words, unstretch(words), unstretch(words, keep=2)}
        return not phrases.isdisjoint(forms.union(*map(self._without_thanks, forms)))

    def _normalize(self, msg: str, answer: Literal["yes", "no"]) -> str:
        if len(msg) > MAX_DECISION_CHARS:
            return ""
        return (self._emoji and only_emoji(msg)) or plain_words(_strip_emoji(msg, answer))

    def _without_thanks(self, words: str) -> set[str]:
        """Return the words without any one of the polite endings."""
        return {words.removesuffix(f" {polite}") for polite in self._book.polite}

    def _without_please(self, words: str) -> set[str]:
        """Return the words without any one of the polite beginnings."""
        return {words.removeprefix(f"{polite} ") for polite in self._book.polite}


def _bare_words(msg: str) -> str:
    """Return the plain words of a message, without anything between and around them."""
    return unstretch(plain_words("".join(char if _is_word_char(char) else " " for char in msg)))


def _is_word_char(char: str) -> bool:
    """Return whether the character is a letter, a mark on one, a digit or an apostrophe."""
    return char == "'" or (unicodedata.category(char)[0] in "LMN" and char != _EMOJI_STYLE)


def _strip_emoji(msg: str, answer: Literal["yes", "no"]) -> str:
    """Return the message without one emoji at its end that goes with the answer; "" when there are more emoji."""
    shorter = strip_answer_emoji(msg, answer)
    return shorter if shorter.isascii() or shorter == msg or plain_words(shorter + "🙏") else ""


def _one_letter_off(one: str, other: str) -> bool:
    """Return whether the words differ by one letter added, missing or changed, or by two that are swapped."""
    start = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    one, other = one[start:], other[start:]
    return one[1:] in (other, other[1:]) or one == other[1:] or one[:2] + one[2:] == other[1::-1] + other[2:]


@cache
def _parser(language: str, emoji: bool) -> RegexConfirmParser:
    return RegexConfirmParser((language,), emoji)


def quotes_another(turn: Turn, question: StoredAction) -> bool:
    """Return whether the turn quotes a message that does not show this question."""
    button = split_button_token(turn.replied_to_button)
    if not turn.replied_to or (button and button[0] == question.pid):
        return False
    return turn.replied_to not in (question.prompt, *question.prompts)


def written_before(turn: Turn, question: StoredAction) -> bool:
    """Return whether the platform says that the turn was written before it showed the question.

    Platforms may round times to seconds; within the same second numeric message ids give the order.
    """
    if not turn.written_at:
        return False
    if question.written_at and turn.written_at != question.written_at:
        return turn.written_at < question.written_at
    ids = (turn.message_id, question.prompt)
    return all(_NUMERIC_ID.fullmatch(each) for each in ids) and Decimal(ids[0]) < Decimal(ids[1])


def read_answer(parser: ConfirmParser, message: str, language: str) -> ParsedAnswer:
    """Read a message as an answer to a question in this language.

    A word such as "ja" may be an answer in this language although it is none in all languages together.
    """
    answer = parse_answer(parser, message)
    if answer.intent or not isinstance(parser, RegexConfirmParser):
        return answer
    return parse_answer(parser.only(language), message)


def parse_answer(parser: ConfirmParser, message: str) -> ParsedAnswer:
    """Read a message as a yes, a yes with a code of four digits, a no, or no answer."""
    if parser.is_confirm(message):
        return ParsedAnswer("confirm")
    if parser.is_cancel(message):
        return ParsedAnswer("cancel")
    coded = _CODED.fullmatch(message.strip()) if len(message) <= MAX_CODED_CHARS else None
    if coded and parser.is_confirm(coded[1]):
        return ParsedAnswer("confirm", "".join(str(unicodedata.digit(digit)) for digit in coded[2]))
    return ParsedAnswer("")


def is_ok(parser: ConfirmParser, message: str, language: str) -> bool:
    """Return whether the message is a plain "ok" to a question in this language."""
    return isinstance(parser, RegexConfirmParser) and (parser.is_ok(message) or parser.only(language).is_ok(message))


def is_unclear(parser: ConfirmParser, message: str, language: str) -> bool:
    """Return whether the message may be meant as an answer to a question in this language, but decides nothing.

    A half answer counts in every language, since people also answer in their own.
    """
    if not isinstance(parser, RegexConfirmParser):
        return False
    return parser.only(language).is_unclear(message) or parser.is_half_answer(message)
