"""Answers with more words: "no, wrong order" denies, and "yes, but blue" asks for a change.

A no with more words begins with a word that is a no and nothing else, and a break behind it, or
with one of the usual forms without a break ("no because"). Nothing behind it may take the no back:
"no, go ahead". A yes with more words is never a yes.
"""

from __future__ import annotations

import re
import unicodedata

from sayso.pending.consent.asking import MAX_PHRASE_WORDS, is_asking
from sayso.pending.consent.parser import (
    MAX_DECISION_CHARS,
    ConfirmParser,
    RegexConfirmParser,
    all_languages,
    reads_phrases,
)
from sayso.pending.consent.phrases import ChangePhrases
from sayso.pending.consent.words import TYPED, is_syllabic, plain_words

#: Characters behind a no in which it may be taken back. The limit bounds the work on long messages.
MAX_REASON_CHARS = 400
#: Words, and characters in scripts without spaces, of a short question behind a no: "no, why not?".
MAX_TAG_WORDS = 2
MAX_TAG_CHARS = 6

#: What ends a no: punctuation, a line end, or a dash or parenthesis with a space. A full stop or
#: colon before a number does not: "No. 17" is a number.
_BREAK = re.compile(
    r"\s*(?:[,;!\u2026\n\u060c\u061b\u0964\u3001\u3002\uff0c\uff01\uff1b\u2013\u2014]"
    r"|[.:\uff1a](?!\s*\d)|\s-|-\s|\s\()[\s.,!\u2026\u3002\uff01-]*"
)
_CLAUSE_ENDS = re.compile(
    r"[.,;:!\u2026\n\u060c\u061b\u0964\u3001\u3002\uff0c\uff01\uff1b\uff1a?\uff1f\u061f()\u2013\u2014]"
)
_QUESTION_MARKS = frozenset("?\uff1f\u061f\u2047\u203d")
_YES_EMOJI = frozenset("👍👌🤝🙌👏✅✔☑💯")


def is_no_with_more(parser: ConfirmParser, message: str, language: str) -> bool:
    """Return whether a message denies what a question in this language asks, and says more.

    For a plain no this is False: `read_answer` reads it. In doubt it is False, too.
    """
    if not reads_phrases(parser):
        return False
    message = unicodedata.normalize("NFC", message.strip())
    return any(_denies(each, message) for each in (parser, parser.only(language)))


def is_yes_with_change(parser: ConfirmParser, message: str, language: str) -> bool:
    """Return whether a message wants something else than a question asks: "yes, but blue".

    `language` is that of the question. Such a message decides nothing, and is a new request.
    """
    if not reads_phrases(parser) or len(message) > MAX_DECISION_CHARS:
        return False
    text = _as_phrase(message)
    return any(
        _asks_for_change(each.change_phrases, text) for each in (parser, parser.only(language))
    )


def _asks_for_change(phrases: ChangePhrases, text: str) -> bool:
    """Return whether a text begins with a yes and a "but", and goes on behind them."""
    head = _longest_start(text, phrases.heads)
    if not head:
        return False
    rest = _behind(text, head)
    but = _longest_start(rest, phrases.but)
    return bool(but and _behind(rest, but))


def _behind(text: str, phrase: str) -> str:
    """Return what stands behind a phrase that a text begins with."""
    if is_syllabic(phrase):
        solid_phrase = phrase.replace(" ", "")
        return text.replace(" ", "")[len(solid_phrase) :]
    return text[len(phrase) :].strip()


def _denies(parser: RegexConfirmParser, message: str) -> bool:
    """Return whether a message begins with a no of this parser, which nothing behind takes back."""
    rest = _behind_no(parser, message)
    if rest is None:
        return False
    rest = rest[:MAX_REASON_CHARS]
    if not any(char.isalnum() for char in rest):  # a plain no
        return False
    # "no, now 👍": the emoji may agree to the action.
    if not _YES_EMOJI.isdisjoint(rest):
        return False
    # "no, why not?" and "no, what is it?" ask about the question, which must stay open.
    if _is_short_question(rest) or is_asking(rest):
        return False
    # Each language that reads the beginning as a no may also read the rest as "go ahead".
    readers = [each for each in all_languages() if _behind_no(each, message) is not None]
    return not any(_takes_back(each, rest) for each in readers)


def _behind_no(parser: RegexConfirmParser, message: str) -> str | None:
    """Return what stands behind the no that a message begins with; None if there is no such no."""
    # There may be several breaks before the no is complete: "sorry, no, wrong order".
    for ending in _BREAK.finditer(message, 0, MAX_DECISION_CHARS):
        if parser.is_refusal(plain_words(message[: ending.start()])):
            return message[ending.end() :]

    # Without a break only the usual forms count: "no because". What follows the "no" is the rest.
    start = _as_phrase(message[:MAX_DECISION_CHARS])
    phrases = parser.refusal_phrases
    if not _longest_start(start, phrases.openings):
        return None
    rest = message[len(_longest_start(start, phrases.heads)) :]
    # "no?" asks.
    if rest[:1] in _QUESTION_MARKS:
        return None
    return rest


def _takes_back(parser: RegexConfirmParser, rest: str) -> bool:
    """Return whether the words behind a no take it back in the language of this parser."""
    phrases = parser.refusal_phrases
    text = _as_phrase(rest)
    # "go ahead" counts anywhere in the rest.
    if is_syllabic(text):
        solid = [each.replace(" ", "") for each in phrases.takes_back if is_syllabic(each)]
        if any(each in text for each in solid):
            return True
    elif any(f" {each} " in f" {text} " for each in phrases.takes_back):
        return True

    # "yes" counts at the beginning of a clause alone: "no wait, yes".
    for clause in _CLAUSE_ENDS.split(rest):
        words = plain_words(clause.strip())
        if words and parser.is_yes_or_half_answer(words):
            return True
        if not phrases.yeses.isdisjoint(words.split()[:1]):
            return True
    return False


def _is_short_question(rest: str) -> bool:
    """Return whether the rest is a question of a word or two, which asks about the no itself."""
    if _QUESTION_MARKS.isdisjoint(rest):
        return False
    words = _as_phrase(rest).split()
    solid = "".join(words)
    if is_syllabic(solid):
        return len(solid) <= MAX_TAG_CHARS
    return len(words) <= MAX_TAG_WORDS


def _longest_start(text: str, phrases: frozenset[str]) -> str:
    """Return the longest of the phrases with which a text begins, "" for none.

    It ends with a word where a script has spaces.
    """
    if is_syllabic(text[:1]):
        solid = text.replace(" ", "")
        starts = [each for each in phrases if solid.startswith(each.replace(" ", ""))]
        return max(starts, key=len, default="")

    words = text.split()[:MAX_PHRASE_WORDS]
    for count in range(len(words), 0, -1):
        start = " ".join(words[:count])
        if start in phrases:
            return start
    return ""


def _as_phrase(text: str) -> str:
    """Return a text of any script as small letters, digits and single spaces.

    It is spelled as the phrases are. Unlike `plain_words` this reads every text.
    """
    spelled = unicodedata.normalize("NFC", text).casefold().translate(TYPED)
    letters = "".join(map(_letter_or_space, spelled))
    return " ".join(letters.split())


def _letter_or_space(char: str) -> str:
    """Return a letter, mark, digit or apostrophe, and a space for any other character."""
    if char == "'" or unicodedata.category(char)[0] in "LMN":
        return char
    return " "
