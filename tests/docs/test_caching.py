"""docs/how-to/use-a-real-model.md: what it shows is run."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.docs.pages import part

PAGE = part("use-a-real-model.md", begin="Cache answers")
#: Each block of code, and what the page says that it prints.
SHOWN = re.findall(r"```python\n(.*?)```\n\n((?:    [^\n]*\n)+)", PAGE, re.DOTALL)


def test_the_examples_of_the_page_print_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    """One after the other, to the letter."""
    names: dict[str, Any] = {}
    assert len(SHOWN) == PAGE.count("```python\n") > 1
    for code, printed in SHOWN:
        exec(compile(code, "docs/how-to/use-a-real-model.md", "exec", dont_inherit=True), names)
        assert capsys.readouterr().out.splitlines() == [line[4:] for line in printed.splitlines()]
