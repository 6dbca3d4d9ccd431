"""Legend: which colour is what, outside of the chart, where it covers nothing and nothing of it is cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from sayso.agent.toolbox.lettering import plain, width

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_Place = Literal["outside right center", "outside lower center"]

#: Characters of a line; longer names take several.
LINE_CHARS = 40
#: The widest names that stand beside a pie, and the most columns below a chart.
_BESIDE_INCHES, _MOST_COLUMNS = 2.4, 4
#: What the colour and the gaps take of a column, and a line of a name.
_KEY_INCHES, _LINE_INCHES = 0.75, 0.21


@dataclass(frozen=True, slots=True)
class Legend:
    """The names, on lines that fit, and where they stand."""

    names: Sequence[str]
    columns: int
    beside: bool = False

    @property
    def height(self) -> float:
        """The inches that it takes below the chart."""
        return 0.0 if self.beside or not self.names else 0.2 + _LINE_INCHES * sum(self._rows())

    def _rows(self) -> list[int]:
        """The lines of the fullest column, which matplotlib fills from above."""
        lines = [name.count("\n") + 1 for name in self.names]
        length = -(-len(lines) // self.columns)
        return max((lines[at : at + length] for at in range(0, len(lines), length)), key=sum)

    def draw(self, figure: Figure, handles: Sequence[Any], colour: str) -> None:
        """Put it beside or below. Names are set afterwards: matplotlib leaves those out that begin with "_"."""
        place: _Place = "outside right center" if self.beside else "outside lower center"
        blank = [" "] * len(handles)
        drawn = figure.legend(
            handles, blank, loc=place, ncols=self.columns, frameon=False, fontsize=10, labelcolor=colour
        )
        for text, name in zip(drawn.get_texts(), self.names, strict=True):
            text.set_text(name)


def planned(names: Sequence[str], inches: float, *, pie: bool) -> Legend:
    """As many columns as fit into the width; beside a pie where the names are short."""
    lines = [plain(name, LINE_CHARS) for name in names]
    widest = max(map(width, lines), default=0.0)
    if pie and widest <= _BESIDE_INCHES:
        return Legend(lines, 1, beside=True)
    return Legend(lines, max(1, min(_MOST_COLUMNS, len(lines), int(inches / (widest + _KEY_INCHES)))))
