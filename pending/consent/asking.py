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
from sayso.pending.consent.parser import (
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

#: The most words of a phrase that are looked up. No phrase that asks has more: a test reads each.
MAX_PHRASE_WORDS = 8
#: The fewest characters of a phrase in which one letter may be wrong, missing or too many, but not
#: the first letter. In a shorter phrase a wrong letter makes another word.
MIN_MISSPELLED_LETTERS = 5
#: The fewest characters of a phrase in which two neighboring letters may be swapped: "wiat".
MIN_SWAPPED_LETTERS = 4
#: The most words of the effect at the end of a message: "which order?", "which delivery address?".
MAX_EFFECT_WORDS = 2

_QUESTION_MARKS = frozenset("?？؟¿⁇⁈‽❓❔⁉")  # noqa: RUF001
_EXCLAMATION_MARKS = frozenset("!！¡")  # noqa: RUF001
#: Quotes, and the bold of Markdown.
_EMPHASIS = (("**", "**"), ("“", "”"), ("「", "」"), ("『", "』"), ('"', '"'))
#: Emoji that ask for time.
_WAITING_EMOJI = frozenset("🤔🧐💭⏳⌛⏱⏲⏰🕐✋🖐")
#: What changes the look of the emoji before it: its style and its skin tones. A table for
#: `str.translate`, which removes them.
_EMOJI_LOOKS = dict.fromkeys((0xFE0F, *range(0x1F3FB, 0x1F400)))


def read_asking(parser: ConfirmParser, message: str, action: PendingAction) -> Asking:
    """Return what the message asks of the question about this action; "" if it asks neither.

    It asks in one of three forms:

    * question marks alone, or emoji that ask for time alone
    * known phrases of one shipped language, such as "wait, what is it?"
    * in the language of the question, exactly one phrase such as "which" and then one or two words
      of the effect: "which order?", but not "wait, which order?"

    A parser of the bot's own knows its own phrases, so nothing is read beside it.
    """
    if not reads_phrases(parser) or len(message) > MAX_DECISION_CHARS:
        return ""

    characters = set("".join(message.translate(_EMOJI_LOOKS).split()))
    # Exclamation marks may be among the question marks, as in "?!".
    characters_but_exclamation = characters - _EXCLAMATION_MARKS
    if characters_but_exclamation and characters_but_exclamation <= _QUESTION_MARKS:
        return "asks"
    if characters and characters <= _WAITING_EMOJI:
        return "waits"

    words = bare_words(message).split()
    asking = _asking_in_any_language(words)
    if asking:
        return asking

    # Only in the language of the question: the words of its effect are in that language.
    phrases = parser.only(action.language).asking_phrases
    if _asks_about_effect(phrases, words, action):
        return "asks"
    return ""


def is_asking(message: str) -> bool:
    """Return whether the words of a message are phrases that ask about a question or for time.

    They must be of one shipped language. Unlike `read_asking`, it needs no action: `refusing.py`
    asks it about a part of a message, such as the words behind a no.
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

    It may if the text has a question mark, or the word for yes in this language, also in "Yes, I
    deleted it". A text that is wrongly counted costs little: the next yes goes to the model, instead
    of being told the outcome again. A yes that was meant for a text that is wrongly left out would
    be told an old outcome.

    In Chinese and Japanese the word for yes is part of others, so it counts in quotes or bold only.
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
    # "waaait" is "wait" with one letter for each repeated one, and "sooon" is "soon" with two.
    forms = {words, unstretch(words), unstretch(words, keep=2)}
    if not phrases.asks.isdisjoint(forms):
        return "asks"
    if not phrases.waits.isdisjoint(forms):
        return "waits"
    if not phrases.fillers.isdisjoint(forms):
        return ""
    return None


def _asks_about_effect(phrases: AskingPhrases, words: Sequence[str], action: PendingAction) -> bool:
    """Return whether the words are a phrase such as "which", and then words of the effect.

    The words of the effect are those of the action's preview and kind.
    """
    effect_words = lettered_words(f"{action.preview} {action.kind}")
    for count in range(1, min(MAX_EFFECT_WORDS, len(words)) + 1):
        if not any(same_stem(words[-count], each) for each in effect_words):
            return False
        if " ".join(words[:-count]) in phrases.before_effect:
            return True
    return False


@lru_cache(maxsize=256)
def _is_misspelled(phrases: AskingPhrases, words: str) -> bool:
    """Return whether the words are one of the phrases, misspelled.

    One letter is wrong, missing or too many, or two neighboring letters are swapped.
    """
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
