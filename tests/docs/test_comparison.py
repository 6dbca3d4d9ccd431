"""docs/explanation/comparison.md: its tables are those of the published results."""

from __future__ import annotations

from benchmarks.peers_under_faults import page, results
from benchmarks.peers_under_faults.profiles import FAULTS
from benchmarks.peers_under_faults.systems import NAMES


def test_page_shows_the_published_results() -> None:
    """`python -m benchmarks.peers_under_faults page` would change nothing."""
    assert page.tables(results.read()) in page.PAGE.read_text(encoding="utf-8")


def test_each_system_ran_each_fault_as_often_as_published() -> None:
    """No cell of the table is missing, and none has fewer runs than the page says."""
    published = results.read()
    assert list(published.results) == [fault.name for fault in FAULTS]
    for systems in published.results.values():
        counts = {name: sum(figures.verdicts.values()) for name, figures in systems.items()}
        assert counts == dict.fromkeys(NAMES, published.count)


def test_published_lines_are_those_of_the_apps() -> None:
    """An app that changes after the run has its lines counted again, and is run again."""
    assert results.read().lines == results.lines()
