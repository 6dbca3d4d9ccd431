"""TopicGuardrail: texts without the words that an operator denies."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from sayso.agent.guards.guardrail import Guardrail, GuardrailAction, GuardrailResult
from sayso.agent.tools.reading import plain

#: Scripts that put no space between words: there, a word is found inside others.
_UNSPACED = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")


class TopicGuardrail(Guardrail):
    """None of the words or phrases in `deny` may stand in a text, as whole words, however they are written: capitals,
    accents, hidden characters and look-alike letters make no difference.
    """

    name = "topic"
    blocking = False

    def __init__(self, deny: Iterable[str], *, action: GuardrailAction = GuardrailAction.BLOCK) -> None:
        several = [] if isinstance(deny, str) else [_folded(word) for word in deny]
        if not several or not all(several):
            raise ValueError(f"deny={deny!r} is no list of words: give at least one, none of them empty")
        if action == GuardrailAction.REWRITE:
            raise ValueError("a TopicGuardrail rewrites nothing: use BLOCK or WARN, or a PatternGuardrail")
        self.action = GuardrailAction(action)
        self._deny = several

    def check(self, content: str) -> GuardrailResult:
        """The reason names words by their numbers in `deny`, from 1: they are also what the person wrote."""
        text = _folded(content)
        found = [str(number) for number, word in enumerate(self._deny, 1) if _stands_in(text, word)]
        return self.tripped(content, f"denied: word {', '.join(found)}") if found else self.passed(content)


def _folded(text: str) -> str:
    return " ".join(plain(text).split())


def _stands_in(text: str, word: str) -> bool:
    at = text.find(word)
    while at >= 0:
        end = at + len(word)
        if not _joined(text[at - 1 : at], word[0]) and not _joined(word[-1], text[end : end + 1]):
            return True
        at = text.find(word, at + 1)
    return False


def _joined(left: str, right: str) -> bool:
    """Whether two neighbours, of which one may be missing, belong to one word. Signs of Indic scripts do, which the
    `\\w` of regular expressions does not know.
    """
    return all(each and unicodedata.category(each)[0] in "LMN" and not _UNSPACED.match(each) for each in (left, right))
