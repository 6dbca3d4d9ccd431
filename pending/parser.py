"""Confirm parsing: which whole messages mean yes, and which mean no."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Protocol

from pending.normalise import emoji_of, words_of
from pending.phrasebook import phrasebook

#: Longer messages are never a decision; the cap also bounds the work on hostile input.
MAX_DECISION_CHARS = 60
_EMOJI_YES = frozenset("👍✅")
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
        self.version = f"regex-v3:{'-'.join(languages)}{'+emoji' if emoji else ''}"

    def only(self, language: str) -> RegexConfirmParser:
        """A parser of one language, for an answer to a question in it: no other language's false friends there."""
        return _parser(language, self._emoji) if language in self.languages else self

    def is_confirm(self, msg: str) -> bool:
        """Whether the whole message, give or take politeness and punctuation, is a yes."""
        words = self._read(msg)
        if words in self._book.confirm or words in _EMOJI_YES:
            return True
        return not self._book.confirm.isdisjoint(self._without_thanks(words))

    def is_cancel(self, msg: str) -> bool:
        """Whether the whole message is a no. Unlike a yes, it may trail off or begin with a "please"."""
        words = self._read(msg).removesuffix(" …")
        forms = {words, *self._without_thanks(words), *self._without_please(words)}
        return words in _EMOJI_NO or not self._book.cancel.isdisjoint(forms)

    def _read(self, msg: str) -> str:
        if len(msg) > MAX_DECISION_CHARS:
            return ""
        return (self._emoji and emoji_of(msg)) or words_of(msg)

    def _without_thanks(self, words: str) -> set[str]:
        """The words less any one polite ending."""
        return {words.removesuffix(f" {polite}") for polite in self._book.polite}

    def _without_please(self, words: str) -> set[str]:
        """The words less any one polite beginning."""
        return {words.removeprefix(f"{polite} ") for polite in self._book.polite}


@cache
def _parser(language: str, emoji: bool) -> RegexConfirmParser:
    return RegexConfirmParser((language,), emoji)
