"""docs/how-to/guard-the-agent.md: what it shows is run."""

from __future__ import annotations

import re
from typing import Any

from sayso import agent
from sayso.agent.guards.guardrails import Guardrail, GuardrailAction
from sayso.channels.i18n.catalogue import catalogue
from tests.docs.pages import part

PAGE = part("guard-the-agent.md", begin="Guardrails, budgets and loops")


def test_the_python_of_the_page_runs() -> None:
    """One block after the other, with what they assert."""
    names: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    for block in blocks:
        exec(compile(block, "docs/how-to/guard-the-agent.md", "exec"), names)
    assert len(blocks) == 6


def test_every_ready_guardrail_and_action_has_a_line() -> None:
    """On the page."""
    ready = [
        name for name in agent.__all__ if name.endswith("Guardrail") and name != Guardrail.__name__
    ]
    assert [name for name in ready if f"| `{name}(" not in PAGE] == []
    assert [action.name for action in GuardrailAction if f"| `{action.name}` |" not in PAGE] == []


def test_the_words_of_the_page_are_in_the_catalogues() -> None:
    """By the names it gives them."""
    named = re.findall(r"`(\w+)`", PAGE[PAGE.index("## What people read") :].split("```")[0])
    assert {"budget_spent", "refused", "in_circles", "stopped"} <= catalogue("en").keys() & set(
        named
    )
