"""docs/how-to/memory.md: what it shows is run, and what can be called has a line."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from sayso import agent
from sayso.agent import ConversationMemory
from tests.docs.pages import part

PAGE = part("memory.md", end="Remember things beyond the conversation")
#: Each block of code, and what the page says that it prints.
SHOWN = re.findall(r"```python\n(.*?)```\n\n((?:    [^\n]*\n)+)", PAGE, re.DOTALL)


def test_the_examples_of_the_page_print_what_it_says(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other, to the letter."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    assert len(SHOWN) == PAGE.count("```python") == 5
    for code, printed in SHOWN:
        exec(compile(code, "docs/how-to/memory.md", "exec"), names)
        assert capsys.readouterr().out.splitlines() == [line[4:] for line in printed.splitlines()]


def test_every_method_has_a_line() -> None:
    """On the page."""
    public = [
        name for name, _ in inspect.getmembers(ConversationMemory) if not name.startswith("_")
    ]
    assert [name for name in public if name not in PAGE] == []


@pytest.mark.parametrize(
    "name", ["JsonFileSessionStore", "SQLiteSessionStore", "RedisSessionStore"]
)
def test_parameters_of_stores_are_those_of_the_page(name: str) -> None:
    """With their defaults; clients and clocks are for tests and for those who have one."""
    parameters = inspect.signature(getattr(agent, name)).parameters.values()
    shown = [
        f'{each.name}="{each.default}"' for each in parameters if isinstance(each.default, str)
    ]
    assert f"{name}({', '.join([*shown, 'default_ttl=None'])})" in PAGE
