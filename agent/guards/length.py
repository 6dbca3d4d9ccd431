"""LengthGuardrail: texts of a reasonable length."""

from __future__ import annotations

from sayso.agent.guards.guardrail import Guardrail, GuardrailAction, GuardrailResult


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
