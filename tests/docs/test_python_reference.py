"""docs/reference/python.md: every public name is there, and its import works."""

from __future__ import annotations

import re

import sayso
import sayso.agent
import sayso.pending
from tests.docs.pages import ROOT


def test_every_public_name_is_on_the_page() -> None:
    """Constants excepted. That each can be found is the matter of the strict build of the site."""
    page = (ROOT / "docs" / "reference" / "python.md").read_text()
    shown = set(re.findall(r"^::: [\w.]*?(\w+)$", page, re.MULTILINE))
    public = {*sayso.__all__, *sayso.agent.__all__, *sayso.pending.__all__}
    assert sorted(name for name in public - shown if not name.isupper()) == []


def test_the_import_of_the_page_works() -> None:
    """As shown."""
    (block,) = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "reference" / "python.md").read_text(), re.DOTALL
    )
    exec(compile(block, "docs/reference/python.md", "exec"), {})
