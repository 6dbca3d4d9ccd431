"""Picture: a chart as PNG, drawn on matplotlib with a figure of its own."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from sayso.agent.toolbox.legend import planned
from sayso.agent.toolbox.lettering import plain, width
from sayso.agent.toolbox.scale import short, ticked

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Kind = Literal["bar", "horizontal bar", "line", "pie", "scatter"]

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
class Words:
    """The title, and what the labels and the numbers are."""

    title: str
    x_label: str
    y_label: str


def png(kind: Kind, labels: Sequence[str], rows: Sequence[Row], words: Words) -> bytes:
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


def _names(kind: Kind, labels: Sequence[str], rows: Sequence[Row]) -> list[str]:
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


def _up(kind: Kind, labels: Sequence[str], rows: Sequence[Row]) -> float:
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


_DRAWN: Mapping[Kind, Any] = {
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


def _dress(axes: Axes, kind: Kind, words: Words) -> None:
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
