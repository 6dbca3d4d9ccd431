"""Consent: decide whether a message is a yes or a no to the open question.

The whole message is looked up in tables of phrases, one data file per language. Before that it
becomes plain words, or none at all when its letters could deceive.
"""

from __future__ import annotations

import itertools
import re
import tomllib
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache, lru_cache
from pathlib import Path
from typing import Literal, Protocol

from sayso.channels.i18n.texts import texts_for
from sayso.channels.types import Turn
from sayso.pending.action import PendingAction, split_button_token
from sayso.pending.stored_action import StoredAction

#: Longer messages are never a decision. The limit also bounds the work on hostile input.
MAX_DECISION_CHARS = 60
#: Longer messages, in characters or words, are never an unclear answer.
MAX_UNCLEAR_CHARS = 30
MAX_UNCLEAR_WORDS = 3
#: Words that begin with so many equal letters count as forms of one word.
STEM_LETTERS = 5
#: Longer messages carry no code. The limit also bounds the work on hostile input.
MAX_CODED_CHARS = 80

_EMOJI_YES = frozenset("👍✅")
_EMOJI_NO = frozenset("👎❌")
#: Asks for the colored form of the character before it.
_EMOJI_STYLE = "\ufe0f"
#: Message ids of Telegram and of Slack.
_NUMERIC_ID = re.compile(r"[0-9]{1,20}(\.[0-9]{1,20})?")
#: Words and a code of four digits, with the punctuation that Chinese,
#: Japanese and Hindi keyboards put around it.
_CODED = re.compile(r"(.*?)[\s:,*_\uff1a\uff0c\u3001-]*(\d{4})[\s*_.!\u3002\uff01\u0964]*")
_FOLDER = Path(__file__).parent / "languages"
#: The languages that have a phrase file.
SHIPPED_LANGUAGES = tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))
_SPACES = r" \t\r\n\u00a0\u202f"
_PUNCTUATION = r".,!\u2026"
#: The characters of each script, including separate accent marks. A message must be written in one
#: script only. Invisible characters, direction marks, digits, quotes, question marks and look-alike
#: letters are in none of them. The Latin letters include those of Central Europe, up to U+017E.
#: Left out are two look-alikes, and the long s after them, which `casefold` would make an "s".
_ALPHABETS = (
    r"A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u0137\u0139-\u0148\u014a-\u017e"
    r"\u0300-\u0304\u0306-\u0308\u030a-\u030c\u0327\u0328'\u2019\u00a1-",
    r"\u0410-\u044f\u0401\u0451\u0308\u0306-",
    r"\u0621-\u063a\u0640-\u0655\u0670\u060c",
    r"\u0901-\u0939\u093c\u093e-\u094d\u0958-\u095f\u0964",
    r"\u3041-\u3096\u30a1-\u30fa\u30fc\u3005\u3099\u309a\u4e00-\u9fff\u3001\u3002",
)
#: Arabic in Latin letters writes some sounds as digits, behind a letter: "na3am".
_ARABIC_DIGIT = r"(?<=[A-Za-z])[237]"
_READABLE = re.compile(
    "|".join(f"(?:[{_SPACES}{_PUNCTUATION}{each}]|{_ARABIC_DIGIT})+" for each in _ALPHABETS)
)
#: One "~" behind Chinese or Japanese, which ends a friendly word. With another one before it,
#: the word is struck out.
_TILDE = re.compile(r"(?<=[\u3041-\u9fff])[~\u301c](?=[\s!\u3002]*$)")
_WIDE = re.compile(r"[\uff01-\uff9f\u3000]")
#: For `str.translate`. Makes apostrophes one, and Arabic as it is typed in a hurry: no vowel marks,
#: no stretching, no hamza on an alef.
TYPED = str.maketrans(
    "\u2019أإآ", "'" + "\u0627" * 3, "\u0640\u0670" + "".join(map(chr, range(0x064B, 0x0653)))
)
#: Dots or commas in a row, or a comma at the end: the sentence is not finished.
_TRAILING_OFF = re.compile(
    r"[.,\u3001\u3002\u060c](?:\s*[.,\u3001\u3002\u060c])+|\u2026+|[,\u3001\u060c](?=[\s!]*$)"
)
#: Text that `plain_words` returns unchanged: words of small letters without accent marks,
#: stops and hurried spellings.
_PLAIN = re.compile(
    "|".join(
        f"[{each}]+(?: [{each}]+)*"
        for each in (
            r"a-z\u00e0-\u00f6\u00f8-\u00fe",
            r"\u0430-\u044f",
            r"\u0627-\u063a\u0641-\u064a",
            r"\u0904-\u0928\u092a-\u0939\u093e-\u094d",
            r"\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fff",
        )
    )
)
_STOPS = re.compile(r"[.,!\u00a1\u060c\u0964\u3001\u3002]")
#: One emoji for "please" or "thanks" behind an answer, in any skin tone. It decides nothing.
_MANNERS = re.compile(r"\s*(?:🙏[\U0001f3fb-\U0001f3ff]?|😊)\ufe0f?\s*$")
#: One other emoji behind an answer in words, that goes with a yes or with a no.
_WITH_YES = re.compile(
    r"\s*(?:[👍👌🤝🙌👏][\U0001f3fb-\U0001f3ff]?|[✅✔☑💯🙂😀😃😄😁☺🤗❤])\ufe0f?\s*$"
)
_WITH_NO = re.compile(r"\s*(?:[👎✋][\U0001f3fb-\U0001f3ff]?|[❌✖🚫🙂😀😃😄😁☺🤗])\ufe0f?\s*$")
#: A letter three times or more, or twice at the end of a word,
#: in alphabets in which people stretch words.
_STRETCHED = re.compile(
    r"([a-z\u00df-\u017e\u0430-\u044f\u0451\u0621-\u064a])(?:\1{2,}|\1+(?= |$))"
)
_LATIN_MARKS = re.compile(r"[\u0300-\u036f]")
#: Letters with a stroke or without a dot, which Unicode does not compose of a letter and an accent.
_STROKES = str.maketrans("\u0131\u00f8\u0111\u0142", "iodl")
#: The characters that `_without_accents` changes in words of composed letters.
_ACCENTED = re.compile(r"['\u00c0-\u017f\u0300-\u036f\u0451]")
_SYLLABIC = re.compile(r"[\u3041-\u9fff]")
_EMOJI = re.compile(r"\s*(?:(?P<thumb>[👍👎])[\U0001f3fb-\U0001f3ff]?|(?P<mark>[✅❌]))\ufe0f?\s*")


@dataclass(frozen=True, slots=True)
class ParsedAnswer:
    """What a message says as an answer: an intent, "" for none,
    and the `code` that was typed after a yes.
    """

    intent: Literal["confirm", "cancel", ""]
    code: str = ""


class ConfirmParser(Protocol):
    """Decides whether a whole message is a yes or a no.

    Replaceable; each action records its `version`.
    """

    version: str

    def is_confirm(self, msg: str) -> bool:
        """Return whether the message is an unambiguous yes."""

    def is_cancel(self, msg: str) -> bool:
        """Return whether the message is an unambiguous no."""


class RegexConfirmParser:
    """Looks the whole message up in a table of phrases:
    a phrase inside a longer sentence never decides.

    "ok", "claro", "pode", "sure" and "go" acknowledge many things and confirm nothing. With
    a question, a condition or a second object the message is another sentence, which is not in the
    table. Raises ValueError for a language that has no table. The tables are read with the first
    message, since most processes get none.
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
        """Return the parser of one language alone, without the false friends of the others."""
        if language in self.languages:
            return _parser((language,), self._emoji)
        return self

    def reading(self, languages: Iterable[str]) -> RegexConfirmParser:
        """Return a parser that reads these languages too, as far as they have a table."""
        missing = [
            each for each in languages if each in SHIPPED_LANGUAGES and each not in self.languages
        ]
        if not missing:
            return self
        return _parser((*self.languages, *missing), self._emoji)

    def is_confirm(self, msg: str) -> bool:
        """Return whether the whole message is a yes, apart from politeness and punctuation."""
        words = self._normalize(msg, "yes")
        return words in _EMOJI_YES or self._is_in(self._book.confirm, words)

    def is_cancel(self, msg: str) -> bool:
        """Return whether the whole message is a no.

        Unlike a yes, it may trail off or begin with a "please".
        """
        book = self._book
        words = self._normalize(msg, "no").removesuffix(" …")
        if words in _EMOJI_NO or self._is_in(book.cancel, words):
            return True
        return any(
            before in book.polite and after in book.cancel for before, after in _splits(words)
        )

    def is_ok(self, msg: str) -> bool:
        """Return whether the whole message is a plain "ok",
        which is a yes only where a channel allows it.
        """
        return self._is_in(self._book.ok, self._normalize(msg, "yes"))

    def is_plain(self, msg: str) -> bool:
        """Return whether an answer is made of plain words of yes and no, and of politeness,
        and of no command.
        """
        if self._emoji and only_emoji(msg):
            return True
        words = bare_words("".join(char for char in msg if not char.isdecimal()))
        for polite in self._book.polite:
            words = words.removesuffix(f" {polite}")
        return bool(words) and all(self._is_in(self._book.plain, word) for word in words.split())

    def is_unclear(self, msg: str) -> bool:
        """Return whether a short message may be meant as an answer although it decides nothing.

        That is an emoji or a number alone, an acknowledgement, a questioned, unfinished or
        misspelled decision, or a few words with one of these among them. A command with another
        word beside it is a new request.
        """
        if not msg.strip() or len(msg) > MAX_UNCLEAR_CHARS:
            return False
        if not any(char.isalpha() for char in msg):
            return True
        words = bare_words(msg)
        parts = unstretch(words).split()
        if not 0 < len(parts) <= MAX_UNCLEAR_WORDS:
            return False

        answers = _answers(self._book)
        return (
            self._is_in(answers, words)
            or any(part in answers and part not in self._book.commands for part in parts)
            or (len(parts) == 1 and self._is_misspelled(parts[0]))
        )

    def is_half_answer(self, msg: str) -> bool:
        """Return whether the whole message is an acknowledgement,
        or a questioned or unfinished decision.

        Unlike `is_unclear` it does not search inside the message,
        so it is safe to use in all languages at once.
        """
        return len(msg) <= MAX_UNCLEAR_CHARS and self._is_in(_answers(self._book), bare_words(msg))

    @property
    def asking_phrases(self) -> AskingPhrases:
        """Return what people write to ask about an open question, or for time."""
        return _asking_phrases(self._book)

    @property
    def refusal_phrases(self) -> RefusalPhrases:
        """Return how a no with more words begins, and what takes it back."""
        return _refusal_phrases(self._book)

    @property
    def change_phrases(self) -> ChangePhrases:
        """Return how a yes begins that asks for a change."""
        return _change_phrases(self._book)

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

        Does not apply to scripts whose letters are syllables or words,
        where another letter makes another word.
        """
        if not 3 <= len(word) <= 10 or is_syllabic(word):
            return False
        decisions = self._book.confirm | self._book.cancel
        return any(
            abs(len(word) - len(each)) <= 1 and one_letter_off(word, each)
            for each in decisions
            if len(each) > 2
        )

    def _is_in(self, phrases: frozenset[str], words: str) -> bool:
        """Return whether the words are one of the phrases,
        apart from a polite ending and stretched letters.
        """
        polite = self._book.polite
        for form in {words, unstretch(words), unstretch(words, keep=2)}:
            if form in phrases:
                return True
            # Every message is read here. It has few words, and the book many polite phrases.
            if any(after in polite and before in phrases for before, after in _splits(form)):
                return True
        return False

    def _normalize(self, msg: str, answer: Literal["yes", "no"]) -> str:
        if len(msg) > MAX_DECISION_CHARS:
            return ""
        if self._emoji and (emoji := only_emoji(msg)):
            return emoji
        match = (_WITH_YES if answer == "yes" else _WITH_NO).search(msg)
        shorter = msg[: match.start()] if match else msg
        # A message with more emoji than the one that goes with the answer is not plain.
        is_plain = shorter.isascii() or shorter == msg or plain_words(shorter + "🙏")
        if is_plain:
            return plain_words(shorter)
        return ""


def bare_words(msg: str) -> str:
    """Return the plain words of a message: only its letters, their marks, digits and apostrophes."""
    kept = (
        char
        if char == "'" or (unicodedata.category(char)[0] in "LMN" and char != _EMOJI_STYLE)
        else " "
        for char in msg
    )
    return plain_words("".join(kept))


def _as_bare_words(phrases: frozenset[str]) -> frozenset[str]:
    """Return the phrases and their forms among bare words, which have no hyphens."""
    return phrases | {phrase.replace("-", " ") for phrase in phrases}


def one_letter_off(one: str, other: str) -> bool:
    """Return whether the words differ by one letter added, missing or changed,
    or by two that are swapped.
    """
    start = next(
        (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )
    one = one[start:]
    other = other[start:]
    return (
        one[1:] in (other, other[1:])
        or one == other[1:]
        or one[:2] + one[2:] == other[1::-1] + other[2:]
    )


@cache
def _parser(languages: tuple[str, ...], emoji: bool) -> RegexConfirmParser:
    return RegexConfirmParser(languages, emoji)


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
    give the order. Of a question that was asked again, the last message counts.
    """
    if not turn.written_at:
        return False
    if question.written_at and turn.written_at != question.written_at:
        return turn.written_at < question.written_at
    chat, _, own = turn.message_id.rpartition(":")
    newest_message = (question.question_message, *question.question_messages)[-1]
    question_chat, _, asked = newest_message.rpartition(":")
    are_numbers = all(map(_NUMERIC_ID.fullmatch, (own, asked)))
    return are_numbers and chat == question_chat and Decimal(own) < Decimal(asked)


def read_answer(parser: ConfirmParser, message: str, language: str) -> ParsedAnswer:
    """Read a message as an answer to a question in this language.

    A word such as "ja" may be an answer in this language although it
    is none in all languages together.
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
    if len(message) <= MAX_CODED_CHARS:
        coded = _CODED.fullmatch(message.strip())
    else:
        coded = None
    if coded and parser.is_confirm(coded[1]):
        return ParsedAnswer("confirm", "".join(str(unicodedata.digit(digit)) for digit in coded[2]))
    return ParsedAnswer("")


def is_ok(parser: ConfirmParser, message: str, language: str) -> bool:
    """Return whether the message is a plain "ok" to a question in this language."""
    return isinstance(parser, RegexConfirmParser) and (
        parser.is_ok(message) or parser.only(language).is_ok(message)
    )


def names_effect(parser: ConfirmParser, message: str, action: PendingAction) -> bool:
    """Return whether a no may mean the effect: "cancel it" as an answer to "Cancel appointment 9?".

    The message must have a word of the effect, and must be a no from that word on. So "cancel it"
    may mean the effect of a cancellation, but "don't delete it" is a no to a deletion. A message
    that begins with a plain no never means the effect.
    """
    words = letters_of(message)
    effect = letters_of(f"{action.preview} {action.kind}")
    if not words or words[0] in _plain_noes():
        return False

    def is_no(text: str) -> bool:
        return read_answer(parser, text, action.language).intent == "cancel"

    for at, word in enumerate(words):
        if is_syllabic(word):
            # These scripts put no spaces between words: a part of the word may be the no.
            for part in _parts(word):
                if any(part in each for each in effect) and is_no(part):
                    return True
        elif any(same_stem(word, each) for each in effect) and is_no(" ".join(words[at:])):
            return True
    return False


def _parts(word: str) -> Iterator[str]:
    """Yield all parts of a word that have at least two characters."""
    for start in range(len(word)):
        for end in range(start + 2, len(word) + 1):
            yield word[start:end]


def letters_of(text: str) -> list[str]:
    """Return the words of a text: its letters with their marks, in lower case."""
    spaced = (char if _is_letter(char) else " " for char in text.casefold())
    return "".join(spaced).split()


def _is_letter(char: str) -> bool:
    return char == "'" or unicodedata.category(char)[0] in "LM"


@cache
def _plain_noes() -> frozenset[str]:
    """Return the words that the shipped languages offer as a no."""
    noes: set[str] = set()
    for language in SHIPPED_LANGUAGES:
        noes.update(letters_of(texts_for(language).no))
    return frozenset(noes)


def same_stem(one: str, other: str) -> bool:
    """Return whether two words are equal, or begin with the same letters: "cancel" and "cancelar"."""
    one, other = (
        _LATIN_MARKS.sub("", unicodedata.normalize("NFKD", word)) for word in (one, other)
    )
    return one == other or (len(one) >= STEM_LETTERS and one[:STEM_LETTERS] == other[:STEM_LETTERS])


def is_unclear(parser: ConfirmParser, message: str, language: str) -> bool:
    """Return whether the message may be meant as an answer to a question in this language,
    but decides nothing.

    A half answer counts in every language, since people also answer in their own. So does a yes or
    a no in a language that the parser does not read, such as "oui" to an English question.
    """
    if not isinstance(parser, RegexConfirmParser):
        return False
    if parser.only(language).is_unclear(message) or parser.is_half_answer(message):
        return True
    return any(parse_answer(each, message).intent for each in all_languages())


def all_languages() -> Iterable[RegexConfirmParser]:
    """Return a parser of each shipped language alone."""
    return (_parser((language,), emoji=False) for language in SHIPPED_LANGUAGES)


@dataclass(frozen=True, slots=True)
class AskingPhrases:
    """Phrases as `bare_words` returns them: what asks about a question, alone or (`which`) before a
    word of its effect, what asks for time, and what may stand beside one of them, such as "ok" and
    "please".
    """

    asks: frozenset[str]
    which: frozenset[str]
    waits: frozenset[str]
    fillers: frozenset[str]


@dataclass(frozen=True, slots=True)
class RefusalPhrases:
    """Phrases that begin a no with more words, and those that take it back."""

    #: `heads` stand before a break, `openings` at the beginning of a message without one.
    heads: frozenset[str]
    openings: frozenset[str]
    #: `takes_back` may stand anywhere behind them, and `yeses` at the beginning of a clause.
    takes_back: frozenset[str]
    yeses: frozenset[str]


@dataclass(frozen=True, slots=True)
class ChangePhrases:
    """Words of a yes, or an "ok", and what stands behind it before a change: "yes, but"."""

    heads: frozenset[str]
    but: frozenset[str]


@dataclass(frozen=True, slots=True)
class PhraseBook:
    """The phrases of one or more languages, as `plain_words` returns them."""

    confirm: frozenset[str]
    cancel: frozenset[str]
    polite: frozenset[str]
    false_friends: frozenset[str]
    #: A plain "ok": it decides only where the channel says so.
    ok: frozenset[str]
    #: May be meant as an answer but decides nothing: the user is asked again.
    unclear: frozenset[str]
    #: Asks about the question and decides nothing: the user is told what a yes would do.
    asks: frozenset[str]
    #: Asks about the question with a word of its effect behind it.
    which: frozenset[str]
    #: Asks for time and decides nothing: the user is told once that the question stays open.
    waits: frozenset[str]
    #: Words that are a yes or a no and nothing else,
    #: unlike commands such as "delete it" and "stop".
    plain: frozenset[str]
    #: Words that are a yes when alone, and a new request with another word beside them.
    commands: frozenset[str]
    #: A no that may have more words behind a comma or another break: "no, wrong order".
    refuses: frozenset[str]
    #: A no and the words that follow it where people put no comma: "no because".
    refuses_and: frozenset[str]
    #: Takes a no back, wherever it stands behind it: "no problem", "go ahead".
    takes_back: frozenset[str]
    #: Begins what a person wants otherwise, behind a yes: "yes, but blue".
    but: frozenset[str]


def check_languages(languages: Sequence[str]) -> None:
    """Raise ValueError unless there is a language, and a phrase file for each."""
    if not languages:
        raise ValueError(f"no language: give at least one of {', '.join(SHIPPED_LANGUAGES)}")
    for language in languages:
        if language not in SHIPPED_LANGUAGES:
            raise ValueError(
                f"unknown language {language!r}; known: {', '.join(SHIPPED_LANGUAGES)}"
            )


@cache
def phrasebook(languages: tuple[str, ...]) -> PhraseBook:
    """Return the languages' phrases, except those that mean something else in one of them.

    One object for all parsers of these languages.
    """
    books = [_load(language) for language in languages]
    parts = {
        part: frozenset().union(*(getattr(book, part) for book in books))
        for part in PhraseBook.__slots__
    }
    for part in ("confirm", "cancel", "polite", "refuses"):
        parts[part] -= parts["false_friends"]
    return PhraseBook(**parts)


@cache
def _answers(book: PhraseBook) -> frozenset[str]:
    """Return all that decides or half decides, as bare words."""
    return _as_bare_words(book.confirm | book.cancel | book.ok | book.unclear)


@cache
def _asking_phrases(book: PhraseBook) -> AskingPhrases:
    fillers = book.ok | book.unclear | book.polite
    return AskingPhrases(
        asks=_as_bare_words(book.asks),
        which=_as_bare_words(book.which),
        waits=_as_bare_words(book.waits),
        fillers=_as_bare_words(fillers - book.commands),
    )


@cache
def _refusal_phrases(book: PhraseBook) -> RefusalPhrases:
    yeses = (each for each in book.plain & book.confirm if len(each) > 1 and not is_syllabic(each))
    return RefusalPhrases(
        heads=book.refuses,
        openings=_as_bare_words(book.refuses_and),
        takes_back=_as_bare_words(book.takes_back),
        yeses=frozenset(yeses),
    )


@cache
def _change_phrases(book: PhraseBook) -> ChangePhrases:
    return ChangePhrases(heads=(book.plain & book.confirm) | book.ok, but=book.but)


def expand(pattern: str) -> list[str]:
    """Return all phrases of a pattern such as "yes (delete|remove) it".

    Parentheses hold alternatives, which may be empty; they do not nest.
    """
    parts = re.split(r"[()]", pattern)
    choices = [part.split("|") if index % 2 else [part] for index, part in enumerate(parts)]
    return ["".join(choice) for choice in itertools.product(*choices)]


@cache
def _load(language: str) -> PhraseBook:
    table = tomllib.loads((_FOLDER / f"{language}.toml").read_text(encoding="utf-8"))
    keep = frozenset(plain_words(word) for word in table.get("keep_accents", ()))
    parts: dict[str, frozenset[str]] = {}
    for part in PhraseBook.__slots__:
        patterns = _read_patterns(table.get(part, ()))
        parts[part] = frozenset(
            variant for words in patterns for variant in accent_variants(words, keep)
        )
    # Letters whose capital is not Unicode's default: Turkish "i" is "İ", which reads as "i" with a
    # dot above. The phrases are also known as they read when typed in capitals, or with a capital
    # first letter.
    if capitals := table.get("capitals"):
        letters = str.maketrans(
            {letter: plain_words(capital) for letter, capital in capitals.items()}
        )
        for part, phrases in parts.items():
            shouted = {phrase.translate(letters) for phrase in phrases}
            parts[part] = (
                phrases
                | shouted
                | {phrase[0].translate(letters) + phrase[1:] for phrase in phrases}
            )
    dismissive = frozenset(plain_words(word) for word in table.get("not_doubled", ()))
    for part in ("confirm", "cancel", "false_friends", "refuses"):
        # A word may be said twice and three times: "si si" and "si si si" for "si".
        alone = (each for each in parts[part] - dismissive if len(each) > 1 and " " not in each)
        words = [word for word in alone if not is_syllabic(word)]
        parts[part] |= {" ".join([word] * times) for word in words for times in (2, 3)}
    return PhraseBook(**parts)


def _read_patterns(patterns: Iterable[str]) -> Iterable[str]:
    """Yield the plain words of each phrase.

    Raises ValueError for a phrase that no message could match.
    """
    for pattern in patterns:
        for phrase in expand(pattern):
            words = plain_words(phrase)
            if not words:
                raise ValueError(
                    f"phrase {phrase!r} of {pattern!r} cannot be read: use one script, no digits, no quotes"
                )
            yield words


@lru_cache(
    maxsize=1024
)  # each message is read several times: for a yes, a no and a code, in one language and in all
def plain_words(text: str) -> str:
    """Return the message as lower-case words with composed accents;
    "" when it is not plainly a phrase in one script.

    Wide letters and separately typed accents become plain letters, and one 🙏 or 😊 at the end is
    dropped. The dots of "yes..." stay as a word of their own, because they express hesitation.
    """
    if _PLAIN.fullmatch(text):
        return text
    text = _TILDE.sub(
        "", _WIDE.sub(lambda wide: unicodedata.normalize("NFKC", wide[0]), _MANNERS.sub("", text))
    )
    if not _READABLE.fullmatch(text):
        return ""
    text = unicodedata.normalize("NFC", text).casefold().translate(TYPED)
    text = _TRAILING_OFF.sub(" … ", text)
    return " ".join(_STOPS.sub(" ", text).split())


def _splits(words: str) -> Iterator[tuple[str, str]]:
    """Yield what stands before and after each space."""
    at = words.find(" ")
    while at >= 0:
        yield words[:at], words[at + 1 :]
        at = words.find(" ", at + 1)


def unstretch(words: str, keep: Literal[1, 2] = 1) -> str:
    """Return the words with repeated letters shortened to `keep`: "yesss" to "yes",
    or with 2 "neeee" to "nee".

    Words of one repeated letter stay: "ss" is not shortened to "s".
    """
    short = _STRETCHED.sub(r"\1" * keep, words)
    if all(len(word) > 1 for word in short.split()):
        return short
    return words


def is_syllabic(words: str) -> bool:
    """Return whether the words are Chinese or Japanese, where a letter is a
    syllable and no spaces separate words.
    """
    return _SYLLABIC.search(words) is not None


def only_emoji(text: str) -> str:
    """Return the yes or no emoji that is the whole message, without its skin tone;
    "" for anything else.
    """
    match = _EMOJI.fullmatch(text)
    if match:
        return match["thumb"] or match["mark"]
    return ""


def accent_variants(words: str, keep: frozenset[str]) -> list[str]:
    """Return all spellings of the words with and without accents and apostrophes.

    Words in `keep` need theirs.
    """
    if not _ACCENTED.search(words):  # true for most phrases, and all are read at start-up
        return [words]
    variants = [""]
    for word in words.split():
        if word in keep:
            choices = {word}
        else:
            choices = {word, _without_accents(word)}
        variants = [f"{start} {choice}".strip() for start in variants for choice in choices]
    return variants


@lru_cache(maxsize=4096)  # the same few words make up thousands of phrases
def _without_accents(word: str) -> str:
    """Return the word without accents, strokes and apostrophes, and with a dot on each i.

    In other scripts than Latin and Cyrillic the marks belong to the letter,
    as does the mark of "й".
    """
    bare = re.sub(r"'|(?<!\u0438)[\u0300-\u036f]", "", unicodedata.normalize("NFD", word))
    return unicodedata.normalize("NFC", bare).translate(_STROKES)
