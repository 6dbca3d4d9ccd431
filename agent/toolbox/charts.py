"""Charts, with matplotlib's own legend, ticks and layout."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from sayso.agent.toolbox import need
from sayso.agent.toolbox.documents import filename, font_file, refuse_undrawable, visible
from sayso.agent.tools.context import emit_artifact
from sayso.agent.tools.tool import Tool, tool

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import Formatter


#: Points to the inch.
_POINTS = 72.0


def plain(text: str, line_chars: int = 0) -> str:
    """Without mathematics: matplotlib would read what stands between two dollar signs as a formula.

    On one line, or on lines of as many characters.
    """
    words = " ".join(visible(text).split())
    lines = textwrap.wrap(words, line_chars) if line_chars else [words]
    return "\n".join(lines).replace("$", r"\$")


def width(text: str, points: float = 10.0) -> float:
    """The inches of the longest line."""
    from matplotlib.font_manager import get_font

    font = get_font(str(font_file()))
    font.set_size(points, _POINTS)
    return max((_line_width(font, line.replace(r"\$", "$")) for line in text.split("\n")), default=0.0)


def _line_width(font: object, line: str) -> float:
    font.set_text(line)  # type: ignore[attr-defined]  # matplotlib keeps its type to itself
    return float(font.get_width_height()[0]) / 64 / _POINTS  # type: ignore[attr-defined]  # in 26.6 fixed point


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


#: What a large number is written in.
_SIZES = ((1e12, "T"), (1e9, "B"), (1e6, "M"))


#: The smallest number that is written out; smaller ones are like 1.5e-07.
_SMALLEST = 1e-4


#: Places after the point of a number with its size, of a plain one, and of one like 1.5e-07.
_SIZED_PLACES, _PLACES, _SMALL_PLACES = 4, 9, 16


#: Numbers that count from here on have separators where years may stand beside them.
_AFTER_YEARS = 10_000


def short(value: float) -> str:
    """One number: 1,234 and 1.2M. With up to six digits it is the number itself, with more it is rounded to five."""
    if not value:
        return "0"
    if abs(value) < _SMALLEST:
        return f"{value:.2e}"
    size, sign = _size(abs(value))
    number = Decimal(repr(value)) / Decimal(size)
    digits = 6 if Decimal(f"{number:.6g}") == number else 5
    return f"{Decimal(f'{number:.{digits}g}').normalize():,f}{sign}"


def ticks(values: Sequence[float], *, years: bool = False) -> list[str]:
    """The numbers at the lines of an axis, with as many places as tell each to a hundredth of their distance."""
    distances = [high - low for low, high in pairwise(sorted(set(values)))]
    nearness = min(distances, default=max(map(abs, values), default=1.0)) / 100
    written: list[str] = []
    for written in _written(values, years=years):
        if all(abs(_read(text) - value) <= nearness for text, value in zip(written, values, strict=True)):
            break
    return written


def ticked(*, years: bool = False) -> Formatter:
    """What has matplotlib write an axis so."""
    from matplotlib.ticker import Formatter

    class Ticks(Formatter):
        def __call__(self, value: float, _position: int | None = None) -> str:
            return short(value)

        def format_ticks(self, values: Sequence[float]) -> list[str]:
            return ticks([float(value) for value in values], years=years)

    return Ticks()


def _written(values: Sequence[float], *, years: bool) -> Iterator[list[str]]:
    """All of them in the same manner, from the shortest on."""
    largest = max(map(abs, values), default=0.0)
    size, sign = _size(largest)
    mark = "" if years and largest < _AFTER_YEARS else ","
    if largest >= _SMALLEST:
        if sign:
            for places in range(_SIZED_PLACES + 1):
                yield [f"{value / size:,.{places}f}{sign}" if value else "0" for value in values]
        for places in range(_PLACES + 1):
            yield [f"{value:{mark}.{places}f}" if value else "0" for value in values]
    for places in range(_SMALL_PLACES + 1):
        yield [f"{value:.{places}e}" if value else "0" for value in values]


def _read(text: str) -> float:
    sizes = {sign: size for size, sign in _SIZES}
    size = sizes.get(text[-1], 1.0)
    return float(text.rstrip("TBM").replace(",", "")) * size


def _size(value: float) -> tuple[float, str]:
    return next(((size, sign) for size, sign in _SIZES if value >= size), (1.0, ""))


ChartKind = Literal["bar", "horizontal bar", "line", "pie", "scatter"]


#: Labels that fit under a chart.
SHOWN_LABELS = 16


#: Told apart in print and by people who see few colours; the first is the one of the demo's chart.
_COLOURS = ("#4f46e5", "#f59e0b", "#10b981", "#ef4444", "#0ea5e9", "#a855f7", "#84cc16", "#64748b")


_PIE_COLOURS = (*_COLOURS, "#818cf8", "#fbbf24", "#34d399", "#f87171")


_DARK, _GREY, _LIGHT = "#111827", "#6b7280", "#e5e7eb"


#: Inches: across a picture, up a pie and up any other; and across the part of it that bars stand in.
_ACROSS, _UP_PIE, _UP, _BARS_ACROSS = 8.0, 5.0, 5.0, 6.8


#: Inches of a lying bar that its number fits beside, and the share of a label's place that its bars take.
_BAR_INCHES, _FILLED = 0.15, 0.8


#: Characters of a line of what stands upright beside a chart.
_UPRIGHT_CHARS = 40


#: The share of a chart below a bar that goes down, for its number.
_BELOW = 0.1


@dataclass(frozen=True, slots=True)
class Row:
    """Numbers of one colour, and what they are."""

    name: str
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class ChartTexts:
    """The title, and what the labels and the numbers are."""

    title: str
    x_label: str
    y_label: str


def png(kind: ChartKind, labels: Sequence[str], rows: Sequence[Row], words: ChartTexts) -> bytes:
    """The picture. Drawn without pyplot, whose figures all threads would share."""
    labels = [plain(label) for label in labels]
    legend = planned(_names(kind, labels, rows), _ACROSS - 0.3, pie=kind == "pie")
    figure = _figure(_up(kind, labels, rows) + legend.height)
    axes = figure.add_subplot()
    handles = _DRAWN[kind](axes, labels, rows)
    _dress(axes, kind, words)
    if legend.names:
        legend.draw(figure, handles, _DARK)
    out = io.BytesIO()
    figure.savefig(out, format="png")
    return out.getvalue()


def _names(kind: ChartKind, labels: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """What the legend says: of a pie the shares too, where small ones cannot cover each other."""
    if kind != "pie":
        return [row.name for row in rows] if len(rows) > 1 else []
    values = rows[0].values
    total = sum(values)
    shares = zip(labels, values, strict=True)
    return [f"{label}: {short(value)} ({value / total:.1%})".replace(r"\$", "$") for label, value in shares]


def _figure(up: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=0.15, h_pad=0.15)  # inches
    figure = Figure(figsize=(_ACROSS, up), dpi=150, layout=layout, facecolor="white")
    FigureCanvasAgg(figure)  # the figure draws on it from here on
    return figure


def _up(kind: ChartKind, labels: Sequence[str], rows: Sequence[Row]) -> float:
    """Inches without the legend: lying bars need height for each, slanted labels for their length."""
    if kind == "horizontal bar":
        return min(16.0, max(3.5, 1.6 + len(labels) * max(0.34, _BAR_INCHES / _FILLED * len(rows))))
    if kind == "pie":
        return _UP_PIE
    return _UP + max(0.0, 0.57 * max(map(width, labels)) - 1.0) if kind != "scatter" and _slanted(labels) else _UP


def _bars(axes: Axes, labels: Sequence[str], rows: Sequence[Row]) -> list[Any]:
    drawn = _side_by_side(axes.bar, labels, rows)
    numbers = [[short(value) for value in row.values] for row in rows]
    if max(width(number, 9) for each in numbers for number in each) < _BARS_ACROSS / len(labels) * _thickness(rows):
        _number(axes, drawn, numbers)
    _mark(axes, labels)
    axes.margins(y=0.12)
    _leave_room_below(axes, rows)
    axes.axhline(0, color=_GREY, linewidth=0.8, zorder=3)
    return drawn


def _lying_bars(axes: Axes, labels: Sequence[str], rows: Sequence[Row]) -> list[Any]:
    drawn = _side_by_side(axes.barh, labels, rows)
    if len(labels) * len(rows) <= 4 * SHOWN_LABELS:
        _number(axes, drawn, [[short(value) for value in row.values] for row in rows])
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.margins(x=0.12, y=0.02)
    return drawn


def _side_by_side(draw: Callable[..., Any], labels: Sequence[str], rows: Sequence[Row]) -> list[Any]:
    """A bar for each row, around the place of each label."""
    thick = _thickness(rows)
    drawn = []
    for index, row in enumerate(rows):
        places = [at - _FILLED / 2 + thick * (index + 0.5) for at in range(len(labels))]
        drawn.append(draw(places, row.values, thick * 0.92, color=_COLOURS[index], zorder=2))
    return drawn


def _thickness(rows: Sequence[Row]) -> float:
    return _FILLED / len(rows)


def _number(axes: Axes, drawn: Sequence[Any], numbers: Sequence[Sequence[str]]) -> None:
    """The number of each bar at its end."""
    for bars, each in zip(drawn, numbers, strict=True):
        axes.bar_label(bars, each, padding=3, fontsize=9, color=_DARK)


def _leave_room_below(axes: Axes, rows: Sequence[Row]) -> None:
    """A small loss beside a large gain has its number between the zero and the labels."""
    low, high = axes.get_ylim()
    if min(min(row.values) for row in rows) < 0:
        axes.set_ylim(min(low, -_BELOW * (high - low)), max(high, _BELOW * (high - low)))


def _lines(axes: Axes, labels: Sequence[str], rows: Sequence[Row]) -> list[Any]:
    marker = "o" if len(labels) <= 2 * SHOWN_LABELS else None
    look: dict[str, Any] = {"marker": marker, "markersize": 5, "linewidth": 2, "zorder": 2}
    places = range(len(labels))
    drawn = [axes.plot(places, row.values, color=_COLOURS[at], **look)[0] for at, row in enumerate(rows)]
    _mark(axes, labels)
    return drawn


def _points(axes: Axes, labels: Sequence[str], rows: Sequence[Row]) -> list[Any]:
    from matplotlib.ticker import MaxNLocator

    places = [float(label) for label in labels]
    axes.xaxis.set_major_formatter(ticked(years=True))
    if all(place.is_integer() for place in places):
        axes.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True))
    look: dict[str, Any] = {"s": 28, "alpha": 0.8, "zorder": 2}
    return [axes.scatter(places, row.values, color=_COLOURS[at], **look) for at, row in enumerate(rows)]


def _pie(axes: Axes, _labels: Sequence[str], rows: Sequence[Row]) -> list[Any]:
    edges = {"edgecolor": "white", "linewidth": 1.5}
    look: dict[str, Any] = {"startangle": 90, "counterclock": False, "radius": 1.15, "wedgeprops": edges}
    return list(axes.pie(rows[0].values, colors=_PIE_COLOURS, **look)[0])


_DRAWN: Mapping[ChartKind, Any] = {
    "bar": _bars,
    "horizontal bar": _lying_bars,
    "line": _lines,
    "pie": _pie,
    "scatter": _points,
}


def _mark(axes: Axes, labels: Sequence[str]) -> None:
    """At most SHOWN_LABELS labels under a chart, slanted where they are long."""
    some = _marked(labels)
    slanted = _slanted(labels)
    places = range(0, len(labels), math.ceil(len(labels) / SHOWN_LABELS))
    axes.set_xticks(places, some, rotation=35 if slanted else 0, ha="right" if slanted else "center")
    if slanted:
        for label in axes.get_xticklabels():
            label.set_rotation_mode("anchor")


def _marked(labels: Sequence[str]) -> Sequence[str]:
    return labels[:: math.ceil(len(labels) / SHOWN_LABELS)]


def _slanted(labels: Sequence[str]) -> bool:
    some = _marked(labels)
    return sum(map(len, some)) > 80 or max(map(len, some)) > 14


def _dress(axes: Axes, kind: ChartKind, words: ChartTexts) -> None:
    axes.set_title(plain(words.title), loc="left", fontsize=14, fontweight="bold", color=_DARK, pad=14, wrap=True)
    if kind == "pie":
        return
    across = kind == "horizontal bar"
    below, beside = (words.y_label, words.x_label) if across else (words.x_label, words.y_label)
    axes.set_xlabel(plain(below), color=_GREY, fontsize=10)
    axes.set_ylabel(plain(beside, _UPRIGHT_CHARS), color=_GREY, fontsize=10)
    (axes.xaxis if across else axes.yaxis).set_major_formatter(ticked())
    axes.grid(axis="x" if across else "y", color=_LIGHT, zorder=0)
    axes.tick_params(length=0, colors=_GREY, labelsize=10)
    axes.spines[:].set_visible(False)


#: Points of the longest line or scatter.
MAX_POINTS = 500


#: Bars of the fullest chart, all series together.
MAX_BARS = 120


#: Slices of the fullest pie.
MAX_SLICES = 12


#: Series of the fullest chart.
MAX_SERIES = 8


#: The largest value, either side of zero.
MAX_VALUE = 1e15


#: Characters of a label and of a title.
MAX_LABEL_CHARS, MAX_TITLE_CHARS = 60, 120


need("charts", "matplotlib")


Label = Annotated[str, Field(max_length=MAX_LABEL_CHARS)]


Value = Annotated[float, Field(ge=-MAX_VALUE, le=MAX_VALUE)]


class Series(BaseModel):
    """One row of numbers, with a name for the legend."""

    model_config = ConfigDict(extra="forbid")

    values: list[Value] = Field(min_length=1, max_length=MAX_POINTS, description="One number for each label")
    name: str = Field("", max_length=MAX_LABEL_CHARS, description="What the legend calls it")


@tool(read_only=True, description="Draw a chart of numbers as a picture (PNG) for the user: bars, lines, a pie, points")
def draw_chart(
    kind: Annotated[
        ChartKind,
        Field(description="bar compares, line shows a course over time, pie shows shares, scatter shows pairs"),
    ],
    labels: Annotated[
        list[Label],
        Field(
            min_length=1,
            max_length=MAX_POINTS,
            description="What stands under each value, in order; for scatter, the x numbers",
        ),
    ],
    series: Annotated[
        list[Series],
        Field(
            min_length=1,
            max_length=MAX_SERIES,
            description="The numbers: one series, or several to compare; a pie has one",
        ),
    ],
    title: Annotated[str, Field(max_length=MAX_TITLE_CHARS, description="What the chart shows, with the unit")] = "",
    x_label: Annotated[str, Field(max_length=MAX_LABEL_CHARS, description="What the labels are")] = "",
    y_label: Annotated[str, Field(max_length=MAX_LABEL_CHARS, description="What the numbers are, with the unit")] = "",
) -> str:
    """Hand the picture over and say what is in it. Raises ValueError."""
    _check(kind, labels, series)
    refuse_undrawable("chart", [title, x_label, y_label, *labels, *(one.name for one in series)])
    rows = [Row(one.name, one.values) for one in series]
    picture = png(kind, labels, rows, ChartTexts(title, x_label, y_label))
    emit_artifact(data=picture, filename=filename(title or "chart", "png"), mime_type="image/png")
    points = "1 value" if len(labels) == 1 else f"{len(labels)} values"
    return f"The {kind} chart is made and goes to the user with your reply: {points}" + (
        f" in {len(series)} series." if len(series) > 1 else "."
    )


def tools(_folder: Path | None = None, _hosts: Sequence[str] = ()) -> list[Tool]:
    """The tools of this family."""
    return [draw_chart]


def _check(kind: ChartKind, labels: Sequence[str], series: Sequence[Series]) -> None:
    """Refuse what would be drawn wrongly or illegibly, in words that say what to send instead."""
    for one in series:
        if len(one.values) != len(labels):
            raise ValueError(
                f"series {one.name!r} has {len(one.values)} values for {len(labels)} labels: give one for each"
            )
    if "bar" in kind and len(labels) * len(series) > MAX_BARS:
        raise ValueError(f"{len(labels) * len(series)} bars: at most {MAX_BARS} can be read; use a line, or fewer")
    if len(series) > 1 and any(not one.name for one in series):
        raise ValueError("give every series a name: the legend tells them apart by it")
    if kind == "pie":
        _check_pie(series)
    if kind == "scatter":
        _numbers(labels)


def _check_pie(series: Sequence[Series]) -> None:
    values = series[0].values
    if len(series) > 1 or len(values) > MAX_SLICES:
        raise ValueError(
            f"a pie has one series of at most {MAX_SLICES} values: sum the smallest up as 'other', or use bars"
        )
    if min(values) < 0 or sum(values) <= 0:
        raise ValueError("a pie shows shares: its values must not be negative, nor all zero; use bars")


def _numbers(labels: Sequence[str]) -> list[float]:
    try:
        numbers = [float(label) for label in labels]
    except ValueError as exc:
        raise ValueError(f"the labels of a scatter chart are its x numbers: {exc}") from exc
    if not all(abs(number) <= MAX_VALUE for number in numbers):
        raise ValueError(f"the x numbers must be between -{MAX_VALUE:g} and {MAX_VALUE:g}")
    return numbers
