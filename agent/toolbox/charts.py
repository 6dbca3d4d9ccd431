"""Charts: pictures of numbers as PNG files beside the reply, on matplotlib."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from agent.toolbox.filenames import filename
from agent.toolbox.glyphs import refuse_undrawable, visible
from agent.toolbox.libraries import need
from agent.tools.artifacts import emit_artifact
from agent.tools.decorator import tool
from agent.tools.tool import Tool

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
#: Labels that fit under a chart.
SHOWN_LABELS = 16

#: Told apart in print and by people who see few colours; the first is the one of the demo's chart.
_COLOURS = ("#4f46e5", "#f59e0b", "#10b981", "#ef4444", "#0ea5e9", "#a855f7", "#84cc16", "#64748b")
_PIE_COLOURS = (*_COLOURS, "#818cf8", "#fbbf24", "#34d399", "#f87171")
_DARK, _GREY, _LIGHT = "#111827", "#6b7280", "#e5e7eb"

need("charts", "matplotlib")

Kind = Literal["bar", "horizontal bar", "line", "pie", "scatter"]
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
        Kind, Field(description="bar compares, line shows a course over time, pie shows shares, scatter shows pairs")
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
    png = _png(kind, labels, series, _Words(title, x_label, y_label))
    emit_artifact(data=png, filename=filename(title or "chart", "png"), mime_type="image/png")
    points = "1 value" if len(labels) == 1 else f"{len(labels)} values"
    return f"The {kind} chart is made and goes to the user with your reply: {points}" + (
        f" in {len(series)} series." if len(series) > 1 else "."
    )


def tools(_folder: Path | None = None, _hosts: Sequence[str] = ()) -> list[Tool]:
    """The tools of this family."""
    return [draw_chart]


@dataclass(frozen=True, slots=True)
class _Words:
    """The title, and what the labels and the numbers are."""

    title: str
    x_label: str
    y_label: str


def _check(kind: Kind, labels: Sequence[str], series: Sequence[Series]) -> None:
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


def _png(kind: Kind, labels: Sequence[str], series: Sequence[Series], words: _Words) -> bytes:
    """Drawn without pyplot, whose figures all threads would share."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=0.15, h_pad=0.15)  # inches
    figure = Figure(figsize=_size(kind, labels), dpi=150, layout=layout, facecolor="white")
    FigureCanvasAgg(figure)  # the figure draws on it from here on
    axes = figure.add_subplot()
    _DRAWN[kind](axes, [_plain(label) for label in labels], series)
    _dress(axes, kind, words)
    if kind == "pie" or len(series) > 1:
        _legend(figure, axes, beside=kind == "pie")
    png = io.BytesIO()
    figure.savefig(png, format="png")
    return png.getvalue()


def _size(kind: Kind, labels: Sequence[str]) -> tuple[float, float]:
    """Inches: lying bars need height for each."""
    if kind == "horizontal bar":
        return 8.0, min(16.0, max(3.5, 1.6 + 0.34 * len(labels)))
    return (7.0, 5.0) if kind == "pie" else (8.0, 5.0)


def _bars(axes: Axes, labels: Sequence[str], series: Sequence[Series]) -> None:
    width = 0.8 / len(series)
    for index, one in enumerate(series):
        places = [at - 0.4 + width * (index + 0.5) for at in range(len(labels))]
        bars = axes.bar(places, one.values, width * 0.92, color=_COLOURS[index], label=_plain(one.name), zorder=2)
        if len(labels) * len(series) <= SHOWN_LABELS:
            axes.bar_label(bars, [_short(value) for value in one.values], padding=3, fontsize=9, color=_DARK)
    _mark(axes, labels)
    axes.margins(y=0.12)
    axes.axhline(0, color=_GREY, linewidth=0.8, zorder=3)


def _lying_bars(axes: Axes, labels: Sequence[str], series: Sequence[Series]) -> None:
    height = 0.8 / len(series)
    for index, one in enumerate(series):
        places = [at - 0.4 + height * (index + 0.5) for at in range(len(labels))]
        bars = axes.barh(places, one.values, height * 0.92, color=_COLOURS[index], label=_plain(one.name), zorder=2)
        if len(labels) * len(series) <= 2 * SHOWN_LABELS:
            axes.bar_label(bars, [_short(value) for value in one.values], padding=3, fontsize=9, color=_DARK)
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.margins(x=0.12, y=0.02)


def _lines(axes: Axes, labels: Sequence[str], series: Sequence[Series]) -> None:
    marker = "o" if len(labels) <= 2 * SHOWN_LABELS else None
    for index, one in enumerate(series):
        axes.plot(
            range(len(labels)),
            one.values,
            color=_COLOURS[index],
            label=_plain(one.name),
            marker=marker,
            markersize=5,
            linewidth=2,
            zorder=2,
        )
    _mark(axes, labels)


def _points(axes: Axes, labels: Sequence[str], series: Sequence[Series]) -> None:
    places = _numbers(labels)
    for index, one in enumerate(series):
        axes.scatter(places, one.values, s=28, color=_COLOURS[index], label=_plain(one.name), alpha=0.8, zorder=2)
    axes.xaxis.set_major_formatter(_short_at)


def _pie(axes: Axes, labels: Sequence[str], series: Sequence[Series]) -> None:
    """Shares in the legend, where small ones cannot cover each other."""
    values = series[0].values
    edges = {"edgecolor": "white", "linewidth": 1.5}
    wedges = axes.pie(values, colors=_PIE_COLOURS, startangle=90, counterclock=False, radius=1.15, wedgeprops=edges)[0]
    for wedge, label, value in zip(wedges, labels, values, strict=True):
        wedge.set_label(f"{label}: {_short(value)} ({value / sum(values):.1%})")


_DRAWN: Mapping[Kind, Any] = {
    "bar": _bars,
    "horizontal bar": _lying_bars,
    "line": _lines,
    "pie": _pie,
    "scatter": _points,
}


def _mark(axes: Axes, labels: Sequence[str]) -> None:
    """At most SHOWN_LABELS labels under a chart, slanted where they are long."""
    step = math.ceil(len(labels) / SHOWN_LABELS)
    some = labels[::step]
    slanted = sum(map(len, some)) > 80 or max(map(len, some)) > 14
    axes.set_xticks(
        range(0, len(labels), step), some, rotation=35 if slanted else 0, ha="right" if slanted else "center"
    )
    if slanted:
        for label in axes.get_xticklabels():
            label.set_rotation_mode("anchor")


def _dress(axes: Axes, kind: Kind, words: _Words) -> None:
    x_label, y_label = _plain(words.x_label), _plain(words.y_label)
    axes.set_title(_plain(words.title), loc="left", fontsize=14, fontweight="bold", color=_DARK, pad=14, wrap=True)
    if kind == "pie":
        return
    across = kind == "horizontal bar"
    axes.set_xlabel(y_label if across else x_label, color=_GREY, fontsize=10)
    axes.set_ylabel(x_label if across else y_label, color=_GREY, fontsize=10)
    (axes.xaxis if across else axes.yaxis).set_major_formatter(_short_at)
    axes.grid(axis="x" if across else "y", color=_LIGHT, zorder=0)
    axes.tick_params(length=0, colors=_GREY, labelsize=10)
    axes.spines[:].set_visible(False)


def _legend(figure: Figure, axes: Axes, *, beside: bool) -> None:
    """Outside of the chart, where it covers nothing."""
    handles, names = axes.get_legend_handles_labels()
    look: dict[str, Any] = {"frameon": False, "fontsize": 10, "labelcolor": _DARK}
    if beside:
        figure.legend(handles, names, loc="outside right center", **look)
    else:
        figure.legend(handles, names, loc="outside lower center", ncols=min(4, len(names)), **look)


def _plain(text: str) -> str:
    """Without mathematics: matplotlib would read what stands between two dollar signs as a formula. On one line."""
    return " ".join(visible(text).split()).replace("$", r"\$")


def _numbers(labels: Sequence[str]) -> list[float]:
    try:
        numbers = [float(label) for label in labels]
    except ValueError as exc:
        raise ValueError(f"the labels of a scatter chart are its x numbers: {exc}") from exc
    if not all(abs(number) <= MAX_VALUE for number in numbers):
        raise ValueError(f"the x numbers must be between -{MAX_VALUE:g} and {MAX_VALUE:g}")
    return numbers


def _short_at(value: float, _position: float) -> str:
    return _short(value)


def _short(value: float) -> str:
    """Few characters: 1,234 and 1.2M, not 1234000."""
    for size, sign in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if abs(value) >= size:
            return f"{value / size:,.4g}{sign}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}" if value == 0 or abs(value) >= 0.0001 else f"{value:.2e}"
