"""Built-in guardrails: length, pattern, topic, and signs of prompt injection (seed)."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from sayso.agent.guards.pipeline import Guardrail, GuardrailAction, GuardrailResult
from sayso.agent.tools.screening import plain, suspicions

#: What PatternGuardrail puts in place of a match.
REDACTED = "[redacted]"
#: Letters of scripts without spaces between words: there, a denied word is also found inside a longer run of letters.
_UNSPACED_SCRIPT = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")


class LengthGuardrail(Guardrail):
    """Requires `min_chars` to `max_chars` characters, without surrounding whitespace. REWRITE shortens the text."""

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
        """Check the length. The reason has the actual and the allowed number of characters."""
        chars = len(content.strip())
        if self._max_chars is not None and chars > self._max_chars:
            shortened = content.strip()[: self._max_chars]
            return self.tripped(shortened, f"{chars} characters, at most {self._max_chars} are allowed")
        if chars < self._min_chars:
            return self.tripped(content, f"{chars} characters, at least {self._min_chars} are needed")
        return self.passed(content)


class PatternGuardrail(Guardrail):
    """Forbids regular expressions. REWRITE replaces each match by "[redacted]".

    The patterns run on untrusted text: nested repetition, as in `(a+)+`, can take exponential time.
    """

    name = "pattern"
    blocking = False

    def __init__(
        self, patterns: Iterable[str | re.Pattern[str]], action: GuardrailAction = GuardrailAction.BLOCK
    ) -> None:
        pattern_list = [] if isinstance(patterns, str) else list(patterns)
        if not pattern_list:
            raise ValueError(f"patterns={patterns!r} is no list of patterns: give at least one, in a list")
        self.action = GuardrailAction(action)
        self._patterns = [re.compile(pattern) for pattern in pattern_list]
        for pattern in self._patterns:
            if pattern.search(""):
                raise ValueError(f"the pattern {pattern.pattern!r} is found in an empty text: it would stop everything")

    def check(self, content: str) -> GuardrailResult:
        """Search for the patterns. The reason names them by their position, from 1."""
        positions = [position for position, pattern in enumerate(self._patterns, 1) if pattern.search(content)]
        if not positions:
            return self.passed(content)
        for position in positions:
            content = self._patterns[position - 1].sub(REDACTED, content)
        return self.tripped(content, f"found: pattern {', '.join(map(str, positions))}")


class TopicGuardrail(Guardrail):
    """Forbids the words and phrases in `deny`, as whole words.

    Case, accents, invisible characters and look-alike letters make no difference.
    """

    name = "topic"
    blocking = False

    def __init__(self, deny: Iterable[str], *, action: GuardrailAction = GuardrailAction.BLOCK) -> None:
        phrases = [] if isinstance(deny, str) else [_normalized(phrase) for phrase in deny]
        if not phrases or not all(phrases):
            raise ValueError(f"deny={deny!r} is no list of words: give at least one, none of them empty")
        if action == GuardrailAction.REWRITE:
            raise ValueError("a TopicGuardrail rewrites nothing: use BLOCK or WARN, or a PatternGuardrail")
        self.action = GuardrailAction(action)
        self._phrases = phrases

    def check(self, content: str) -> GuardrailResult:
        """Search for the phrases. The reason names them by their position in `deny`, from 1, and quotes none."""
        text = _normalized(content)
        positions = [str(position) for position, phrase in enumerate(self._phrases, 1) if _contains(text, phrase)]
        return self.tripped(content, f"denied: word {', '.join(positions)}") if positions else self.passed(content)


def _normalized(text: str) -> str:
    return " ".join(plain(text).split())


def _contains(text: str, phrase: str) -> bool:
    """Return whether the text contains the phrase as whole words."""
    start = text.find(phrase)
    while start >= 0:
        end = start + len(phrase)
        if not _are_one_word(text[start - 1 : start], phrase[0]) and not _are_one_word(phrase[-1], text[end : end + 1]):
            return True
        start = text.find(phrase, start + 1)
    return False


def _are_one_word(left: str, right: str) -> bool:
    """Return whether two neighboring characters belong to one word; either may be "".

    Combining marks of Indic scripts count as parts of a word, which `\\w` in regular expressions does not.
    """
    return all(
        each and unicodedata.category(each)[0] in "LMN" and not _UNSPACED_SCRIPT.match(each) for each in (left, right)
    )


class InjectionGuardrail(Guardrail):
    """Searches for signs of prompt injection, with the patterns of the tool output screening.

    It misses attacks and at times blocks harmless text. The real protection is that side effects need a yes.
    """

    name = "injection"
    blocking = False

    def __init__(self, *, action: GuardrailAction = GuardrailAction.BLOCK) -> None:
        if action == GuardrailAction.REWRITE:
            raise ValueError("an InjectionGuardrail rewrites nothing: use BLOCK or WARN")
        self.action = GuardrailAction(action)

    def check(self, content: str) -> GuardrailResult:
        """Search for the patterns. The reason names the kinds of suspicion."""
        kinds = suspicions(content)
        return self.tripped(content, f"suspicious: {', '.join(kinds)}") if kinds else self.passed(content)
