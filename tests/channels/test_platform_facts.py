"""Platform facts: each one has a test that cites it, or a reason why Sayso need not handle it."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FACTS = tomllib.loads(Path(__file__).with_name("platform_facts.toml").read_text(encoding="utf-8"))
SECTIONS = [f"{part}.{number}" for part in (1, 2, 3) for number in (1, 2, 3, 4, 5)]
#: The pains that concern adapters, workers and setup.
PAINS = [f"pains {number}" for number in (4, 5, 6, 7, 11, 12, 13, 15)]
TESTED = [
    (section, test)
    for section, facts in FACTS.items()
    for fact in facts
    for test in fact.get("tests", ())
]


@cache
def promises(file: str) -> dict[str, str]:
    """Return the tests of a file with their docstrings, without running it."""
    nodes = ast.parse((ROOT / file).read_text(encoding="utf-8")).body
    return {
        node.name: ast.get_docstring(node) or ""
        for node in nodes
        if isinstance(node, ast.FunctionDef)
    }


def cites(promise: str, section: str) -> bool:
    """Return whether a docstring cites this section or pain."""
    if section in PAINS:
        return bool(
            re.search(rf"pains\.md ([\d, ]*\D)?{section.removeprefix('pains ')}\b", promise)
        )
    return "platforms.md" in promise and bool(
        re.search(rf"(?<![\d.]){re.escape(section)}(?!\.?\d)", promise)
    )


@pytest.mark.parametrize(
    ("promise", "section", "cited"),
    [
        ("platforms.md 1.1, 2.4: a", "2.4", True),
        ("platforms.md 1.3: a; 1.4 says b", "1.4", True),
        ("platforms.md 11.1: a", "1.1", False),
        ("platforms.md 1.12: a", "1.1", False),
        ("1.1: a", "1.1", False),
        ("platforms.md 1.3, pains.md 5, 12: a", "pains 12", True),
        ("pains.md 12: a", "pains 2", False),
        ("pains.md 5: a", "pains 15", False),
        ("platforms.md 1.5: a", "pains 5", False),
    ],
)
def test_citations_are_recognized(promise: str, section: str, *, cited: bool):
    """A check that accepts everything would prove nothing."""
    assert cites(promise, section) is cited


def test_every_section_is_there():
    """They are in order, and none is empty."""
    assert list(FACTS) == [*SECTIONS, *PAINS]
    assert all(FACTS.values())


@pytest.mark.parametrize("section", FACTS)
def test_each_fact_has_tests_or_a_reason(section: str):
    """It has one of the two."""
    for fact in FACTS[section]:
        assert set(fact) in ({"fact", "tests"}, {"fact", "not_ours"}), fact
        assert all(fact.values()), fact


@pytest.mark.parametrize(("section", "test"), TESTED)
def test_each_test_is_there_and_cites_its_section(section: str, test: str):
    """A renamed or removed test is reported with its fact."""
    file, _, name = test.partition("::")
    assert name.startswith("test_")
    assert name in promises(file), f"{test} is gone: name another test of this fact"
    assert cites(promises(file)[name], section), (
        f"say in the docstring of {test} that it is for {section}"
    )
