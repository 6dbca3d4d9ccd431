"""docs/how-to/memory.md: what it shows is run, and every option has a line."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

from sayso.agent.memory import entities as entity
from sayso.agent.memory import extraction, graph
from sayso.agent.memory import knowledge as notes_file
from sayso.agent.memory.entities import EntityMemory
from sayso.agent.memory.graph import KnowledgeGraphMemory
from sayso.agent.memory.knowledge import KnowledgeMemory
from tests.docs.pages import part

PAGE = part("memory.md", begin="Remember things beyond the conversation")
#: Each block of code, and what the page says that it prints.
SHOWN = re.findall(r"```python\n(.*?)```\n\n((?:    [^\n]*\n)+)", PAGE, re.DOTALL)


def test_the_examples_of_the_page_print_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    """One after the other, to the letter."""
    names: dict[str, Any] = {}
    assert len(SHOWN) == 4
    for code, printed in SHOWN:
        exec(compile(code, "docs/how-to/memory.md", "exec"), names)
        assert capsys.readouterr().out.splitlines() == [line[4:] for line in printed.splitlines()]


@pytest.mark.parametrize("memory", [EntityMemory, KnowledgeGraphMemory, KnowledgeMemory])
def test_every_option_has_a_line(memory: type) -> None:
    """All but the clock, which is for tests."""
    options = set(inspect.signature(memory).parameters) - {"clock"}
    assert {
        option for option in options if f"{option}=" not in PAGE and f"`{option}`" not in PAGE
    } == set()


def test_the_bounds_of_the_page_are_those_of_the_code() -> None:
    """They cannot be others on paper."""
    assert f"{extraction.MAX_MESSAGE_CHARS:,} characters of each" in PAGE
    assert f"| things found at a time | {extraction.MAX_OBJECTS} |" in PAGE
    bounds = f"{entity.NAME_CHARS} characters; {entity.VALUE_CHARS} characters; {entity.MAX_ATTRIBUTES} |"
    assert bounds in PAGE
    assert entity.MAX_CONTEXT_CHARS == graph.MAX_CONTEXT_CHARS
    assert f"| a section | {entity.MAX_CONTEXT_CHARS:,} characters |" in PAGE
    assert f"at most {notes_file.NOTE_CHARS} characters" in PAGE
