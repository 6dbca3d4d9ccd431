"""Read a message as a yes or a no.

Begin with `read_answer`, which also reads an answer with its code. What decides nothing, such as a
message that is nearly a yes, is read by `is_unclear` and `names_effect`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, Protocol, TypeGuard

from sayso.channels.i18n.texts import texts_for
from sayso.pending.action import PendingAction
from sayso.pending.consent.phrases import (
    SHIPPED_LANGUAGES,
    AskingPhrases,
    ChangePhrases,
    PhraseBook,
    RefusalPhrases,
    answers_and_half_answers,
    asking_phrases,
    change_phrases,
    check_languages,
    phrasebook,
    refusal_phrases,
)
from sayso.pending.consent.words import (
    bare_words,
    ends_in_polite_emoji,
    is_syllabic,
    lettered_words,
    one_letter_off,
    only_emoji,
    plain_words,
    same_stem,
    unstretch,
    word_splits,
)

#: Messages of more characters are never a decision. This bounds the work on hostile input, too.
MAX_DECISION_CHARS = 60
#: In messages of more characters or words, no half answer is searched for.
MAX_UNCLEAR_CHARS = 30
MAX_UNCLEAR_WORDS = 3
#: Messages of more characters have no code. This bounds the work on hostile input, too.
MAX_CODED_CHARS = 80
#: How many letters a word may have that is taken for a misspelled decision.
_MISSPELLED_LETTERS = range(3, 11)

_EMOJI_YES = frozenset("👍✅")
_EMOJI_NO = frozenset("👎❌")
#: One other emoji behind an answer in words, that goes with a yes or with a no.
_WITH_YES = re.compile(
    r"\s*(?:[👍👌🤝🙌👏][\U0001f3fb-\U0001f3ff]?|[✅✔☑💯🙂😀😃😄😁☺🤗❤])\ufe0f?\s*$"
)
_WITH_NO = re.compile(r"\s*(?:[👎✋][\U0001f3fb-\U0001f3ff]?|[❌✖🚫🙂😀😃😄😁☺🤗])\ufe0f?\s*$")
#: Words and a code of four digits, with the punctuation that Chinese, Japanese and Hindi keyboards
#: put around it.
_CODED = re.compile(r"(.*?)[\s:,*_\uff1a\uff0c\u3001-]*(\d{4})[\s*_.!\u3002\uff01\u0964]*")


@dataclass(frozen=True, slots=True)
class ParsedAnswer:
    """What a message says as an answer to a question."""

    #: "confirm" is a yes, "cancel" a no, "" no answer.
    intent: Literal["confirm", "cancel", ""]
    #: The four digits that were typed after a yes, "" for none.
    code: str = ""


class ConfirmParser(Protocol):
    """Decides whether a whole message is a yes or a no.

    Replaceable: pass an object of another class to a store or a ChannelAgent.
    """

    #: Names the phrases that are read. Each action records the version with which it was proposed,
    #: so that a later reader of the record knows what counted as a yes.
    version: str

    def is_confirm(self, msg: str) -> bool:
        """Return whether the message is an unambiguous yes."""

    def is_cancel(self, msg: str) -> bool:
        """Return whether the message is an unambiguous no."""


class RegexConfirmParser:
    """The usual ConfirmParser: looks the whole message up in a table of phrases.

    "ok", "claro", "pode", "sure" and "go" acknowledge many things and confirm nothing. With
    a question, a condition or a second object the message is another sentence, which is not in the
    table. The tables are read with the first message, since most processes get none.

    A subclass counts as a parser of the bot's own: only its `is_confirm` and `is_cancel` are asked.

    `languages` are codes of SHIPPED_LANGUAGES, which are read together. `emoji`: a message that is
    only 👍 or ✅ is a yes, and only 👎 or ❌ a no. Raises ValueError for a language without a table.
    """

    def __init__(self, languages: Sequence[str] = ("pt", "en", "es"), emoji: bool = False) -> None:
        check_languages(languages)
        self.languages = tuple(languages)
        self._emoji = emoji
        self.version = f"regex-v4:{'-'.join(languages)}{'+emoji' if emoji else ''}"

    @property
    def _book(self) -> PhraseBook:
        return phrasebook(self.languages)

    def only(self, language: str) -> RegexConfirmParser:
        """Return a parser of one language alone, without the false friends of the others.

        It reads an answer to a question in that language. For a language that this parser does not
        read, return this parser.
        """
        if language in self.languages:
            return _parser((language,), self._emoji)
        return self

    def reading(self, languages: Iterable[str]) -> RegexConfirmParser:
        """Return a parser that reads these languages too, those of them that have a table.

        A channel may ask in a language that its parser was not made for. It must understand the
        answer that its question proposes.
        """
        unread = [each for each in languages if each not in self.languages]
        further = [each for each in unread if each in SHIPPED_LANGUAGES]
        if not further:
            return self
        return _parser((*self.languages, *further), self._emoji)

    def is_confirm(self, msg: str) -> bool:
        """Return whether the whole message is a yes, apart from politeness and punctuation."""
        words = self._decision_words(msg, _WITH_YES)
        return words in _EMOJI_YES or self._is_in(self._book.confirm, words)

    def is_cancel(self, msg: str) -> bool:
        """Return whether the whole message is a no.

        Unlike a yes, it may trail off ("no...") or begin with a "please".
        """
        book = self._book
        # "…" is what `plain_words` makes of "...".
        words = self._decision_words(msg, _WITH_NO).removesuffix(" …")
        if words in _EMOJI_NO or self._is_in(book.cancel, words):
            return True
        for before, after in word_splits(words):
            if before in book.polite and self._is_in(book.cancel, after):
                return True
        return False

    def is_ok(self, msg: str) -> bool:
        """Return whether the whole message is "ok", apart from politeness and punctuation.

        It is a yes only where a channel allows it.
        """
        return self._is_in(self._book.ok, self._decision_words(msg, _WITH_YES))

    def is_plain(self, msg: str) -> bool:
        """Return whether an answer has only words that are a yes or a no and nothing else.

        These are the words of `PhraseBook.plain`. Politeness and a code may follow. An answer with
        a command, such as "stop", is not plain.
        """
        if self._emoji and only_emoji(msg):
            return True
        without_code = "".join(char for char in msg if not char.isdecimal())
        words = self._without_politeness(bare_words(without_code))
        return bool(words) and all(self._is_in(self._book.plain, word) for word in words.split())

    def _without_politeness(self, words: str) -> str:
        """Return the words without the polite phrases at their end: "yes" of "yes please thanks".

        The longest phrase is dropped first: "muito obrigado" before "obrigado".
        """
        polite = self._book.polite
        while True:
            rests = (before for before, after in word_splits(words) if after in polite)
            rest = next(rests, None)
            if rest is None:
                return words
            words = rest

    def is_unclear(self, msg: str) -> bool:
        """Return whether a short message that decides nothing may be meant as an answer.

        That is an emoji or a number alone, an acknowledgement, a questioned, unfinished or
        misspelled decision, or a few words with one of these among them. A command with another
        word beside it is a new request. Ask `parse_answer` first: this is True for a "yes", too.
        """
        if not msg.strip() or len(msg) > MAX_UNCLEAR_CHARS:
            return False
        if not any(char.isalpha() for char in msg):
            return True
        words = bare_words(msg)
        parts = unstretch(words).split()
        if not 0 < len(parts) <= MAX_UNCLEAR_WORDS:
            return False

        answers = answers_and_half_answers(self._book)
        if self._is_in(answers, words):
            return True
        # A command beside another word is a new request, so it does not count here.
        if any(part in answers and part not in self._book.commands for part in parts):
            return True
        return len(parts) == 1 and self._is_misspelled(parts[0])

    def is_answer_or_half_answer(self, msg: str) -> bool:
        """Return whether the whole message decides, half decides or acknowledges something.

        A half decision is a questioned or unfinished one, such as "yes?". Unlike `is_unclear` this
        does not search inside the message, so it is safe to use in all languages at once.
        """
        if len(msg) > MAX_UNCLEAR_CHARS:
            return False
        return self._is_in(answers_and_half_answers(self._book), bare_words(msg))

    @property
    def asking_phrases(self) -> AskingPhrases:
        """Return what people write to ask about an open question, or for time."""
        return asking_phrases(self._book)

    @property
    def refusal_phrases(self) -> RefusalPhrases:
        """Return how a no with more words begins, and what takes it back."""
        return refusal_phrases(self._book)

    @property
    def change_phrases(self) -> ChangePhrases:
        """Return how a yes begins that asks for a change."""
        return change_phrases(self._book)

    def is_refusal(self, words: str) -> bool:
        """Return whether plain words are a no that may have more words behind it."""
        return self._is_in(self._book.refuses, words)

    def is_yes_or_half_answer(self, words: str) -> bool:
        """Return whether plain words are a yes, or acknowledge something."""
        # One after the other: a union of these sets would be made for each message.
        return any(
            self._is_in(each, words)
            for each in (self._book.confirm, self._book.ok, self._book.unclear)
        )

    def _is_misspelled(self, word: str) -> bool:
        """Return whether one letter is wrong, missing or too many in a decision of one word.

        Does not apply to scripts whose letters are syllables or words, where another letter makes
        another word.
        """
        if len(word) not in _MISSPELLED_LETTERS or is_syllabic(word):
            return False
        for decision in self._book.confirm | self._book.cancel:
            # Of a shorter decision, one wrong letter makes any other word.
            if len(decision) < 3 or abs(len(word) - len(decision)) > 1:
                continue
            if one_letter_off(word, decision):
                return True
        return False

    def _is_in(self, phrases: frozenset[str], words: str) -> bool:
        """Return whether plain words are one of the phrases.

        A polite ending and stretched letters do not matter.
        """
        polite = self._book.polite
        for form in {words, unstretch(words), unstretch(words, keep=2)}:
            if form in phrases:
                return True
            # Search by the few words of the message, not by the many polite phrases of the book:
            # every message is read here.
            if any(after in polite and before in phrases for before, after in word_splits(form)):
                return True
        return False

    def _decision_words(self, msg: str, fitting_emoji: re.Pattern[str]) -> str:
        """Return the plain words of a message that may decide, "" for one that cannot.

        One emoji of `fitting_emoji` at the end is dropped. The result is the emoji itself if the
        message is a deciding emoji alone and this parser reads them.
        """
        if len(msg) > MAX_DECISION_CHARS:
            return ""
        emoji = only_emoji(msg) if self._emoji else ""
        if emoji:
            return emoji

        match = fitting_emoji.search(msg)
        if not match:
            return plain_words(msg)
        without_emoji = msg[: match.start()]
        # `plain_words` would drop a second emoji. A message with two of them decides nothing.
        if ends_in_polite_emoji(without_emoji):
            return ""
        return plain_words(without_emoji)


@cache
def _parser(languages: tuple[str, ...], emoji: bool) -> RegexConfirmParser:
    return RegexConfirmParser(languages, emoji)


def reads_phrases(parser: ConfirmParser) -> TypeGuard[RegexConfirmParser]:
    """Return whether a parser reads the shipped phrases and nothing else.

    A bot's own parser knows its own words of yes and no. Nothing is guessed beside it: a shipped
    phrase may mean something else to that bot. So a subclass does not count: it may refuse what
    RegexConfirmParser takes for a yes.
    """
    return type(parser) is RegexConfirmParser


def all_languages() -> Iterable[RegexConfirmParser]:
    """Return a parser of each shipped language alone."""
    return (_parser((language,), emoji=False) for language in SHIPPED_LANGUAGES)


def read_answer(parser: ConfirmParser, message: str, language: str) -> ParsedAnswer:
    """Read a message as an answer to a question in this language.

    A word such as "ja" may be an answer in this language although it is none in all languages
    together: it is a false friend in one of them.
    """
    answer = parse_answer(parser, message)
    if answer.intent or not reads_phrases(parser):
        return answer
    return parse_answer(parser.only(language), message)


def parse_answer(parser: ConfirmParser, message: str) -> ParsedAnswer:
    """Read a message as a yes, a yes with a code of four digits, a no, or no answer."""
    if parser.is_confirm(message):
        return ParsedAnswer("confirm")
    if parser.is_cancel(message):
        return ParsedAnswer("cancel")

    if len(message) > MAX_CODED_CHARS:
        return ParsedAnswer("")
    coded = _CODED.fullmatch(message.strip())
    if coded and parser.is_confirm(coded[1]):
        # The digits of other scripts, such as Hindi, count too.
        digits = [str(unicodedata.digit(digit)) for digit in coded[2]]
        return ParsedAnswer("confirm", code="".join(digits))
    return ParsedAnswer("")


def is_ok(parser: ConfirmParser, message: str, language: str) -> bool:
    """Return whether the message is an "ok" and nothing more, to a question in this language."""
    if not reads_phrases(parser):
        return False
    return parser.is_ok(message) or parser.only(language).is_ok(message)


def is_unclear(parser: ConfirmParser, message: str, language: str) -> bool:
    """Return whether a message that decides nothing may be meant as an answer to a question.

    Ask `read_answer` first: this is True for most decisions, too. `language` is that of the
    question. A half answer counts in every language that the parser reads, since people also answer
    in their own. A yes or a no counts in every shipped language, such as "oui" to an English
    question.
    """
    if not reads_phrases(parser):
        return False
    if parser.only(language).is_unclear(message) or parser.is_answer_or_half_answer(message):
        return True
    return any(parse_answer(each, message).intent for each in all_languages())


def names_effect(parser: ConfirmParser, message: str, action: PendingAction) -> bool:
    """Return whether a no may mean the effect: "cancel it" as an answer to "Cancel appointment 9?".

    `message` is one that `read_answer` takes for a no. If this is True, the person is asked again.
    It is False for a message of more than MAX_DECISION_CHARS, which only a bot's own parser takes
    for a no: the work grows with the square of the length.

    The message must have a word of the effect, and must be a no from that word on. So "cancel it"
    may mean the effect of a cancellation, but "don't delete it" is a no to a deletion. A message
    that begins with the word for "no" never means the effect.
    """
    if len(message) > MAX_DECISION_CHARS:
        return False
    words = lettered_words(message)
    effect_words = lettered_words(f"{action.preview} {action.kind}")
    if not words or words[0] in _words_for_no():
        return False

    def is_no(text: str) -> bool:
        return read_answer(parser, text, action.language).intent == "cancel"

    for at, word in enumerate(words):
        if is_syllabic(word):
            # These scripts put no spaces between words, so "word" may be a whole sentence. Any
            # part of it may be the no.
            for part in _parts(word):
                if any(part in each for each in effect_words) and is_no(part):
                    return True
        elif any(same_stem(word, each) for each in effect_words) and is_no(" ".join(words[at:])):
            return True
    return False


def _parts(word: str) -> Iterator[str]:
    """Yield all parts of a word that have at least two characters."""
    for start in range(len(word)):
        for end in range(start + 2, len(word) + 1):
            yield word[start:end]


@cache
def _words_for_no() -> frozenset[str]:
    """Return the word for "no" of each shipped language, as questions propose it."""
    noes: set[str] = set()
    for language in SHIPPED_LANGUAGES:
        noes.update(lettered_words(texts_for(language).no))
    return frozenset(noes)
