"""docs/how-to/use-a-real-model.md: what it shows is run, and its figures are those of the code."""

from __future__ import annotations

import re
from typing import Any

import pytest

from sayso.agent import AgentConfig
from sayso.agent.run.model_call import JITTER, MAX_RETRY_AFTER_SECONDS
from tests.docs.pages import part

PAGE = part(
    "use-a-real-model.md", begin="Fall back to another model, and retry", end="Cache answers"
)
#: Each block of code, and what the page says that it prints.
SHOWN = re.findall(r"```python\n(.*?)```\n\n((?:    [^\n]*\n)+)", PAGE, re.DOTALL)


def test_the_examples_of_the_page_print_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    """One after the other, to the letter."""
    names: dict[str, Any] = {}
    assert len(SHOWN) == PAGE.count("```python") == 3
    for code, printed in SHOWN:
        exec(compile(code, "docs/how-to/use-a-real-model.md", "exec"), names)
        assert capsys.readouterr().out.splitlines() == [line[4:] for line in printed.splitlines()]


def test_the_figures_of_the_page_are_those_of_the_code() -> None:
    """Defaults and limits."""
    config = AgentConfig()
    for words in (f"max_retries={config.max_retries}", f"request_timeout={config.request_timeout}"):
        assert words in PAGE
    assert f"longer than {MAX_RETRY_AFTER_SECONDS:.0f} seconds" in PAGE
    assert (JITTER, "up to a quarter longer" in PAGE) == (0.25, True)
