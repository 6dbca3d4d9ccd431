"""docs/how-to/write-tools.md: what it shows is run; the figures of docs/explanation/security.md are those of today."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

import pytest

from benchmarks.screening.__main__ import table
from sayso.agent import ToolConfig
from tests.docs.pages import ROOT, part

PAGE = part(
    "write-tools.md", begin="What the model reads of a result", end="Ready-made tools: the toolbox"
)
#: Each block of code, and what the page says that it prints.
SHOWN = re.findall(r"```python\n(.*?)```\n\n((?:    [^\n]*\n)+)", PAGE, re.DOTALL)


def test_the_examples_of_the_page_print_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    """One after the other, to the letter."""
    names: dict[str, Any] = {}
    assert len(SHOWN) == 4
    for code, printed in SHOWN:
        exec(compile(code, "docs/how-to/write-tools.md", "exec"), names)
        assert capsys.readouterr().out.splitlines() == [line[4:] for line in printed.splitlines()]


def test_the_table_of_the_page_is_the_one_that_is_printed() -> None:
    """Hits and false alarms cannot be better on paper."""
    assert "\n".join(table()) in (ROOT / "docs" / "explanation" / "security.md").read_text()


def test_every_option_has_a_line() -> None:
    """On the page, as every option must have."""
    options = [field.name for field in fields(ToolConfig)]
    assert [option for option in options if f"{option}=" not in PAGE] == []
