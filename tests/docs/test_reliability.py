"""docs/explanation/reliability.md: each fault that the page lists has the tests that it names."""

from __future__ import annotations

import re

from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "explanation" / "reliability.md").read_text(encoding="utf-8")


def test_each_fault_of_decisions_by_others_is_tested() -> None:
    """The last column of the table names test functions."""
    section = PAGE.partition("## When other people decide\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 10
    sources = "".join(
        path.read_text(encoding="utf-8")
        for folder in ("agent/channel", "model")
        for path in sorted((ROOT / "tests" / folder).glob("test_*.py"))
    )
    for row in rows:
        tests = re.findall(r"`(test_\w+)`", row.rpartition("| ")[2])
        assert tests, row
        assert [name for name in tests if f"def {name}(" not in sources] == []
