"""docs/reference/python.md and agent.md: every public name is there."""

from __future__ import annotations

import re

import sayso
import sayso.agent
import sayso.pending
from tests.docs.pages import ROOT


def test_every_public_name_is_on_a_page() -> None:
    """Constants excepted. That each can be found is the matter of the strict build of the site."""
    pages = [(ROOT / "docs" / "reference" / page).read_text() for page in ("python.md", "agent.md")]
    shown = {name for page in pages for name in re.findall(r"^::: [\w.]*?(\w+)$", page, re.MULTILINE)}
    public = {*sayso.__all__, *sayso.agent.__all__, *sayso.pending.__all__}
    assert sorted(name for name in public - shown if not name.isupper()) == []
