"""Matrix: rows at a size for a laptop, at the full one, and at any that is given."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from click.testing import CliRunner

from sayso.testing.simulation.cli import simulate
from sayso.testing.simulation.judge import SimulationResult
from sayso.testing.simulation.plan import FULL_SIZES, ROWS, SIZES, Plan, plan_of_row
from sayso.testing.simulation.report import SimulationReport


@pytest.mark.parametrize(
    ("row", "asked"),
    [
        ("load", {"rate": 100.0, "minutes": 10.0, "conversations": 500, "figures": "speed"}),
        ("workers", {"kill": {"worker": 1.0}, "workers": 3, "turns": 30_000}),
        ("outage", {"outage": 300.0, "conversations": 1000}),
        ("pauses", {"pause": 3.0, "minutes": 11.0}),
        ("replies", {"cut": 0.08, "slow_ms": 5.0}),
        ("restarts", {"restart": 20.0, "rate": 100.0, "minutes": 10.0}),
        ("deliveries", {"late": 600.0, "webs": 2, "shuffle": 0.3}),
        ("strangers", {"strangers": 45, "only": ("taps five times at once",)}),
        ("idle", {"turns": 12_000, "conversations": 12_000}),
        ("platforms", {"turns": 20_000, "conversations": 500}),
    ],
)
def test_a_row_at_full_size_is_as_large_as_was_promised(row: str, asked: dict[str, Any]) -> None:
    """What it breaks stays what it is; only how much of it there is changes."""
    plan = plan_of_row(row, Plan(), full_size=True)
    assert {name: getattr(plan, name) for name in asked} == asked


def test_only_rows_have_sizes_and_what_is_given_counts() -> None:
    """A size of no row would be reached by no command."""
    assert {*SIZES, *FULL_SIZES} <= set(ROWS)
    assert plan_of_row("load", Plan(rate=40.0, workers=2), full_size=True).rate == 40.0
    assert plan_of_row("workers", Plan(), full_size=False).turns == Plan().turns


def test_the_full_size_is_of_rows() -> None:
    """By itself it would silently be an ordinary run."""
    found = CliRunner().invoke(simulate, ["--full-size"])
    assert found.exit_code == 3
    assert "--full-size is of rows of the matrix" in found.output


def test_a_row_that_happened_too_rarely_shows_too_little() -> None:
    """Faults, and what people did, are held against what was asked for."""
    plan = Plan(least={"pauses": 200, "confirmed": 10, "lost replies": 3})
    few = SimulationReport(plan, SimulationResult(confirmed=9), 0, Counter(pauses=200), lost_replies=3)
    assert few.exceeded == ["confirmed: 9, too few: 10 were asked for"]
