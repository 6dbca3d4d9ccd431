"""InjectionGuardrail: texts that do not instruct the model in somebody else's name."""

from __future__ import annotations

from sayso.agent.guards.guardrail import Guardrail, GuardrailAction, GuardrailResult
from sayso.agent.tools.screening import suspicions


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
