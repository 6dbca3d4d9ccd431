"""Table: measured ratios beside their goals, as Markdown for a document."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement, the figure beside it, and the goal of their ratio: at least, or at most.

    `ours` and `beside` carry their units; a row without a goal is for information.
    """

    what: str
    ours: str
    beside: str
    ratio: float
    goal: float = 0.0
    at_least: bool = False

    def __str__(self) -> str:
        sign = "≥" if self.at_least else "≤"
        met = self.ratio >= self.goal if self.at_least else self.ratio <= self.goal
        goal, verdict = (
            (f"{sign} {self.goal:g}", "yes" if met else "**no**") if self.goal else ("", "")
        )
        return (
            f"| {self.what} | {self.ours} | {self.beside} | {self.ratio:.2f} | {goal} | {verdict} |"
        )


HEAD = "| what | ours | beside it | ratio | goal | met |\n|---|---|---|---|---|---|"


def show(rows: Iterable[Row]) -> None:
    """Print rows, one below the other."""
    for row in rows:
        print(row, flush=True)
