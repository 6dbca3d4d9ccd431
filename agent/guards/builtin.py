"""Length, pattern, topic, injection."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from sayso.agent.guards.pipeline import Guardrail, GuardrailAction, GuardrailResult
from sayso.agent.tools.screening import plain, suspicions


class InjectionGuardrail(Guardrail):
    """Looks for what the screening of tool output looks for: cheap, incomplete, and at times wrong about harmless
    words. What guards against harm is that side effects need a yes.
    """

    name = "injection"
    blocking = False

    def __init__(self, *, action: GuardrailAction = GuardrailAction.BLOCK) -> None:
        if action == GuardrailAction.REWRITE:
            raise ValueError("an InjectionGuardrail rewrites nothing: use BLOCK or WARN")
        self.action = GuardrailAction(action)

    def check(self, content: str) -> GuardrailResult:
        """The reason names kinds of suspicion."""
        found = suspicions(content)
        return self.tripped(content, f"suspicious: {', '.join(found)}") if found else self.passed(content)


class LengthGuardrail(Guardrail):
    """At most `max_chars` and at least `min_chars` characters, not counting space around them. REWRITE cuts."""

    name = "length"
    blocking = False

    def __init__(
        self, max_chars: int | None = None, min_chars: int = 0, *, action: GuardrailAction = GuardrailAction.BLOCK
    ) -> None:
        if max_chars is not None and max_chars < max(min_chars, 1):
            raise ValueError(f"max_chars={max_chars!r} lets no text through: use {max(min_chars, 1)} or more")
        if min_chars and action == GuardrailAction.REWRITE:
            raise ValueError(f"min_chars={min_chars!r} cannot be had by rewriting: use BLOCK or WARN")
        self.action = GuardrailAction(action)
        self._max_chars = max_chars
        self._min_chars = min_chars

    def check(self, content: str) -> GuardrailResult:
        """The counts, and nothing else, are the reason."""
        chars = len(content.strip())
        if self._max_chars is not None and chars > self._max_chars:
            cut = content.strip()[: self._max_chars]
            return self.tripped(cut, f"{chars} characters, at most {self._max_chars} are allowed")
        if chars < self._min_chars:
            return self.tripped(content, f"{chars} characters, at least {self._min_chars} are needed")
        return self.passed(content)


#: What stands where a match stood.
REDACTED = "[redacted]"


class PatternGuardrail(Guardrail):
    """None of `patterns` may be found. REWRITE puts "[redacted]" in place of each match.

    Patterns are the operator's, and run on anybody's text: nested repetition, as in `(a+)+`, can take for ever.
    """

    name = "pattern"
    blocking = False

    def __init__(
        self, patterns: Iterable[str | re.Pattern[str]], action: GuardrailAction = GuardrailAction.BLOCK
    ) -> None:
        self.action = GuardrailAction(action)
        self._patterns = [re.compile(pattern) for pattern in _several(patterns)]
        for pattern in self._patterns:
            if pattern.search(""):
                raise ValueError(f"the pattern {pattern.pattern!r} is found in an empty text: it would stop everything")

    def check(self, content: str) -> GuardrailResult:
        """The reason names patterns by their numbers, from 1."""
        found = [number for number, pattern in enumerate(self._patterns, 1) if pattern.search(content)]
        if not found:
            return self.passed(content)
        for number in found:
            content = self._patterns[number - 1].sub(REDACTED, content)
        return self.tripped(content, f"found: pattern {', '.join(map(str, found))}")


def _several(patterns: Iterable[str | re.Pattern[str]]) -> list[str | re.Pattern[str]]:
    if isinstance(patterns, str) or not (several := list(patterns)):
        raise ValueError(f"patterns={patterns!r} is no list of patterns: give at least one, in a list")
    return several


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
