"""Table: measured ratios beside their goals, as Markdown that a document can take over."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """What was measured, what ran beside it, and the goal of the ratio: at least, or at most.

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
        goal, verdict = (f"{sign} {self.goal:g}", "yes" if met else "**no**") if self.goal else ("", "")
        return f"| {self.what} | {self.ours} | {self.beside} | {self.ratio:.2f} | {goal} | {verdict} |"


def table(rows: list[Row]) -> str:
    """All rows under one head."""
    head = "| what | ours | beside it | ratio | goal | met |\n|---|---|---|---|---|---|"
    return "\n".join([head, *map(str, rows)])
