"""Messages about an open question that decide nothing: they ask what it is about, or for time.

"What is this?" and "later" are answered with a fixed text, without a model, and the question stays
open. The whole message must be made of known phrases, as a yes must.

Two functions are about what follows a decision. If a person repeats a plain yes or no
(`is_plain_answer`), the outcome is told again, unless the bot has said something since that a yes
may answer (`invites_answer`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Literal

from sayso.channels.i18n.texts import texts_for
from sayso.pending.action import PendingAction
from sayso.pending.consent import (
    MAX_DECISION_CHARS,
    ConfirmParser,
    all_languages,
    reads_phrases,
)
from sayso.pending.consent.phrases import AskingPhrases
from sayso.pending.consent.words import (
    bare_words,
    is_syllabic,
    lettered_words,
    one_letter_off,
    same_stem,
    unstretch,
)

#: "asks": what is the question about? "waits": give me time. "" is any other message.
Asking = Literal["asks", "waits", ""]

#: The most words of a phrase.
MAX_PHRASE_WORDS = 8
#: The fewest characters of a phrase in which one wrong letter is forgiven, except for the first one.
#: In a shorter phrase a wrong letter makes another word.
MIN_MISSPELLED_LETTERS = 5
#: The fewest characters of a phrase in which two letters may be swapped: "wiat".
MIN_SWAPPED_LETTERS = 4
#: The most words of the effect at the end of a message: "which order?", "which delivery address?".
MAX_EFFECT_WORDS = 2

_QUESTION_MARKS = frozenset("?？؟¿⁇‽❓❔⁉")  # noqa: RUF001
#: Quotes, and the bold of Markdown.
_EMPHASIS = (("**", "**"), ("“", "”"), ("「", "」"), ("『", "』"), ('"', '"'))
#: Emoji that ask for time.
_WAITING_EMOJI = frozenset("🤔🧐💭⏳⌛⏱⏲⏰🕐✋🖐")
#: What changes the look of the emoji before it: its style and its skin tones. A table for
#: `str.translate`, which removes them.
_EMOJI_LOOKS = dict.fromkeys((0xFE0F, *range(0x1F3FB, 0x1F400)))


def read_asking(parser: ConfirmParser, message: str, action: PendingAction) -> Asking:
    """Return what the message asks of the question about this action; "" if it asks neither.

    The whole message must be made of known phrases of one shipped language. In the language of the
    question, it may end with words of the effect, as "which order?" does.
    """
    if not reads_phrases(parser) or len(message) > MAX_DECISION_CHARS:
        return ""

    characters = set("".join(message.translate(_EMOJI_LOOKS).split()))
    # Only question marks, perhaps with "!" among them, but not "!" alone.
    if characters - {"!"} and characters <= _QUESTION_MARKS | {"!"}:
        return "asks"
    if characters and characters <= _WAITING_EMOJI:
        return "waits"

    words = bare_words(message).split()
    asking = _asking_in_any_language(words)
    if asking:
        return asking

    # "which order?" asks if "order" is a word of the effect and "which" is a phrase before it. Only
    # in the language of the question: the words of its effect are in that language.
    words_before = " ".join(_before_effect(words, action))
    if words_before in parser.only(action.language).asking_phrases.before_effect:
        return "asks"
    return ""


def is_asking(message: str) -> bool:
    """Return whether a message is made of phrases that ask about a question or for time.

    They must be of one shipped language.
    """
    return bool(_asking_in_any_language(bare_words(message).split()))


def is_misspelled_asking(parser: ConfirmParser, message: str, language: str) -> bool:
    """Return whether the message may be a misspelled phrase of `read_asking` in this language.

    It may also be a correct other word, such as "latex" for "later".
    """
    if not reads_phrases(parser) or len(message) > MAX_DECISION_CHARS:
        return False
    phrases = parser.only(language).asking_phrases
    return _is_misspelled(phrases, bare_words(message))


def invites_answer(text: str, language: str) -> bool:
    """Return whether a yes may answer this text of the bot.

    It may if the text has a question mark, or the word for yes in this language. In Chinese and
    Japanese that word is part of others, so it counts in quotes or bold only.
    """
    if not _QUESTION_MARKS.isdisjoint(text):
        return True
    yes = texts_for(language).yes
    if is_syllabic(yes):
        return any(f"{before}{yes}{after}" in text for before, after in _EMPHASIS)
    return yes.casefold() in lettered_words(text)


def is_plain_answer(parser: ConfirmParser, message: str) -> bool:
    """Return whether a yes or no is only that, such as "yes, please".

    "delete it" and "stop" are not: each of them may also be a new request.
    """
    if not reads_phrases(parser):
        return False
    return parser.is_plain(message) or any(each.is_plain(message) for each in all_languages())


def _asking_in_any_language(words: Sequence[str]) -> Asking:
    """Return the strongest reading of the words among those in all shipped languages."""
    return _strongest(_asking_of(each.asking_phrases, words) for each in all_languages())


def _strongest(kinds: Iterable[Asking]) -> Asking:
    """Return the kind that decides about a whole message: "asks" before "waits" before ""."""
    present = set(kinds)
    if "asks" in present:
        return "asks"
    if "waits" in present:
        return "waits"
    return ""


def _asking_of(phrases: AskingPhrases, words: Sequence[str]) -> Asking:
    """Return what words ask that are made of these phrases: "wait, what is it?" is "asks".

    "" if a part of them is no phrase.
    """
    # `kinds_of_first[n]`: what the first n words may ask, by each way in which they are made of
    # phrases. It stays empty if they are not made of phrases.
    kinds_of_first: list[set[Asking]] = [set() for _ in range(len(words) + 1)]
    kinds_of_first[0].add("")
    for start, kinds_before in enumerate(kinds_of_first):
        if not kinds_before:
            continue
        for end in range(start + 1, min(len(words), start + MAX_PHRASE_WORDS) + 1):
            kind = _kind_of(phrases, " ".join(words[start:end]))
            if kind is not None:
                kinds_of_first[end].update(_strongest((each, kind)) for each in kinds_before)
    return _strongest(kinds_of_first[-1])


def _kind_of(phrases: AskingPhrases, words: str) -> Asking | None:
    """Return what one phrase asks, "" for a filler, None for other words."""
    # "waaait" is "wait", and "sooon" is "soon".
    forms = {words, unstretch(words), unstretch(words, keep=2)}
    if not phrases.asks.isdisjoint(forms):
        return "asks"
    if not phrases.waits.isdisjoint(forms):
        return "waits"
    if not phrases.fillers.isdisjoint(forms):
        return ""
    return None


def _before_effect(words: Sequence[str], action: PendingAction) -> Sequence[str]:
    """Return the words without those of the effect at their end; () if there are no such words."""
    effect_words = lettered_words(f"{action.preview} {action.kind}")
    trailing = 0  # how many words at the end belong to the effect
    while trailing < min(MAX_EFFECT_WORDS, len(words)):
        word = words[-1 - trailing]
        if not any(same_stem(word, each) for each in effect_words):
            break
        trailing += 1
    if trailing == 0:
        return ()
    return words[:-trailing]


@lru_cache(maxsize=256)
def _is_misspelled(phrases: AskingPhrases, words: str) -> bool:
    """Return whether one letter of a phrase is wrong, missing or too many, or two are swapped."""
    if len(words) < MIN_SWAPPED_LETTERS or is_syllabic(words):
        return False
    for phrase in phrases.asks | phrases.waits:
        if abs(len(phrase) - len(words)) > 1 or not one_letter_off(words, phrase):
            continue
        is_swap = sorted(words) == sorted(phrase)
        may_be_swap = is_swap and len(phrase) >= MIN_SWAPPED_LETTERS
        may_be_wrong_letter = len(phrase) >= MIN_MISSPELLED_LETTERS and phrase[0] == words[0]
        if may_be_swap or may_be_wrong_letter:
            return True
    return False
