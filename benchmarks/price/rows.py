"""Rows of the table: one measure, each contender's figure, and the goal for Sayso."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

CONTENDERS = ("Sayso", "pydantic-ai", "LangChain")
HEAD = f"| measure | {' | '.join(CONTENDERS)} | goal | met |\n|---|---|---|---|---|---|"


@dataclass(frozen=True, slots=True)
class Row:
    """One measure. `sayso` is compared with `goal`: it must be at most that, or `at_least`.

    `unit` is "k" for thousands, "%" for a share, else it follows the figure. Without a goal the row
    is for information.
    """

    what: str
    sayso: float
    goal: float | None = None
    at_least: bool = False
    unit: str = ""
    peers: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_met(self) -> bool:
        """Whether Sayso reaches the goal; true without one."""
        if self.goal is None:
            return True
        return self.sayso >= self.goal if self.at_least else self.sayso <= self.goal

    def __str__(self) -> str:
        figures = {"Sayso": self.sayso, **self.peers}
        cells = [self._figure(figures[name]) if name in figures else "" for name in CONTENDERS]
        if self.goal is None:
            return f"| {self.what} | {' | '.join(cells)} | | |"
        goal = f"{'≥' if self.at_least else '≤'} {self._figure(self.goal)}"
        verdict = "yes" if self.is_met else "**no**"
        return f"| {self.what} | {' | '.join(cells)} | {goal} | {verdict} |"

    def _figure(self, value: float) -> str:
        if self.unit == "k":
            return f"{value / 1000:.1f}k"
        if self.unit == "%":
            return f"{value:.0%}".replace("%", " %")
        text = f"{value:,.2f}".rstrip("0").rstrip(".")
        return f"{text} {self.unit}".strip()
