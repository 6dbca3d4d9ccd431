"""PatternGuardrail: texts without what a regular expression finds, such as card numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable

from sayso.agent.guards.guardrail import Guardrail, GuardrailAction, GuardrailResult

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
