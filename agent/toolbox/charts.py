"""The tool `draw_chart`: numbers as a picture (PNG), drawn by matplotlib."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from sayso.agent.toolbox import need, plural
from sayso.agent.toolbox.documents import filename, refuse_undrawable, visible
from sayso.agent.tools.environment import emit_artifact
from sayso.agent.tools.tool import tool

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import Formatter

#: Points of the longest line or scatter chart.
MAX_POINTS = 500
#: Bars of the fullest chart, all series together.
MAX_BARS = 120
#: Slices of the fullest pie.
MAX_SLICES = 12
#: Series of the fullest chart.
MAX_SERIES = 8
#: The largest value, on either side of zero.
MAX_VALUE = 1e15
#: Characters of the longest label.
MAX_LABEL_CHARS = 60
#: Characters of the longest title.
MAX_TITLE_CHARS = 120
#: How many labels fit below a chart.
_MAX_TICK_LABELS = 16
#: Characters of a line of the legend and of an axis title that stands upright.
_LINE_CHARS = 40
#: The most columns of a legend below the chart.
_LEGEND_COLUMNS = 4
#: The widest legend at the side of a pie, in inches.
_LEGEND_INCHES = 3.0
#: The width of a picture, in inches.
_WIDTH = 8.0
#: The height of most pictures without the legend, in inches.
_HEIGHT = 5.0
#: Height of the thinnest horizontal bar whose number fits beside it, in inches.
_BAR_INCHES = 0.15
#: The share of the width of a label that its bars take.
_BAR_SHARE = 0.8
#: Share of a chart that stays free below the zero line if any bar goes down, for the bar's number.
_FREE_BELOW = 0.1
#: Easy to tell apart in print and with color blindness.
_COLORS = ("#4f46e5", "#f59e0b", "#10b981", "#ef4444", "#0ea5e9", "#a855f7", "#84cc16", "#64748b")
_PIE_COLORS = (*_COLORS, "#818cf8", "#fbbf24", "#34d399", "#f87171")
_DARK = "#111827"
_GREY = "#6b7280"
_LIGHT = "#e5e7eb"
#: Powers of ten that are written as a letter.
_SUFFIXES = {12: "T", 9: "B", 6: "M"}
#: Smaller numbers are written like 1.5e-07.
_SMALLEST_PLAIN = 1e-4
#: From here on numbers have thousands separators, also where they may be years.
_AFTER_YEARS = 10_000
ChartKind = Literal["bar", "horizontal bar", "line", "pie", "scatter"]
Label = Annotated[str, Field(max_length=MAX_LABEL_CHARS)]
Value = Annotated[float, Field(ge=-MAX_VALUE, le=MAX_VALUE)]

need("charts")


class Series(BaseModel):
    """One row of numbers, with a name for the legend."""

    model_config = ConfigDict(extra="forbid")

    values: list[Value] = Field(
        min_length=1, max_length=MAX_POINTS, description="One number for each label"
    )
    name: str = Field("", max_length=MAX_LABEL_CHARS, description="What the legend calls it")


@tool(read_only=True)
def draw_chart(
    kind: ChartKind,
    labels: Annotated[list[Label], Field(min_length=1, max_length=MAX_POINTS)],
    series: Annotated[list[Series], Field(min_length=1, max_length=MAX_SERIES)],
    title: Annotated[str, Field(max_length=MAX_TITLE_CHARS)] = "",
    x_label: Label = "",
    y_label: Label = "",
) -> str:
    """Draw a chart of numbers as a picture (PNG) for the user: bars, lines, a pie, points.

    Args:
        kind: bar compares, line shows a course over time, pie shows shares, scatter shows pairs
        labels: What stands under each value, in order; for scatter, the x numbers
        series: The numbers: one series, or several to compare; a pie has one
        title: What the chart shows, with the unit
        x_label: What the labels are
        y_label: What the numbers are, with the unit
    """
    _check(kind, labels, series)
    refuse_undrawable("chart", [title, x_label, y_label, *labels, *(one.name for one in series)])
    emit_artifact(
        _png(kind, labels, series, title, x_label, y_label),
        filename=filename(title or "chart", "png"),
        mime_type="image/png",
    )
    of_series = ""
    if len(series) > 1:
        of_series = f" in {len(series)} series"
    return f"The {kind} chart is made and goes to the user with your reply: {plural(len(labels), 'value')}{of_series}."


def _check(kind: ChartKind, labels: Sequence[str], series: Sequence[Series]) -> None:
    """Raise ValueError for a chart that would be wrong or illegible, and say what to send instead."""
    for one in series:
        if len(one.values) != len(labels):
            raise ValueError(
                f"series {one.name!r} has {len(one.values)} values for {len(labels)} labels: give one for each"
            )
    if "bar" in kind and len(labels) * len(series) > MAX_BARS:
        raise ValueError(
            f"{len(labels) * len(series)} bars: at most {MAX_BARS} can be read; use a line, or fewer"
        )
    if len(series) > 1 and any(not one.name for one in series):
        raise ValueError("give every series a name: the legend tells them apart by it")
    values = series[0].values
    if kind == "pie" and (len(series) > 1 or len(values) > MAX_SLICES):
        raise ValueError(
            f"a pie has one series of at most {MAX_SLICES} values: sum the smallest up as 'other', or use bars"
        )
    if kind == "pie" and (min(values) < 0 or sum(values) <= 0):
        raise ValueError(
            "a pie shows shares: its values must not be negative, nor all zero; use bars"
        )
    if kind == "scatter":
        try:
            numbers = [float(label) for label in labels]
        except ValueError as exc:
            raise ValueError(f"the labels of a scatter chart are its x numbers: {exc}") from exc
        if not all(abs(number) <= MAX_VALUE for number in numbers):
            raise ValueError(f"the x numbers must be between -{MAX_VALUE:g} and {MAX_VALUE:g}")


def _png(
    kind: ChartKind,
    labels: Sequence[str],
    series: Sequence[Series],
    title: str,
    x_label: str,
    y_label: str,
) -> bytes:
    """Return the chart as a PNG picture.

    It is drawn without pyplot, which shares its figures between threads.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    labels = [_plain(label) for label in labels]
    layout = ConstrainedLayoutEngine(w_pad=0.15, h_pad=0.15)  # inches
    figure = Figure(
        figsize=(_WIDTH, _height(kind, labels, series)), dpi=150, layout=layout, facecolor="white"
    )
    FigureCanvasAgg(figure)  # registers itself with the figure
    axes = figure.add_subplot()
    handles = _DRAW[kind](axes, labels, series)
    _add_titles(axes, kind, title, x_label, y_label)
    if kind == "pie":
        total = sum(series[0].values)
        shares = zip(labels, series[0].values, strict=True)
        _add_legend(
            figure,
            handles,
            [f"{label}: {short(value)} ({value / total:.1%})" for label, value in shares],
        )
    elif len(series) > 1:
        _add_legend(figure, handles, [_plain(one.name) for one in series])
    if kind == "bar":
        _remove_crowded_numbers(figure, axes)
    out = io.BytesIO()
    figure.savefig(out, format="png")
    return out.getvalue()


def _plain(text: str, line_chars: int = 0) -> str:
    """Return the text on one line, or on lines of `line_chars` if that is not 0.

    Each $ is escaped, because matplotlib reads a formula between two of them.
    """
    plain = " ".join(visible(text).split())
    if line_chars:
        plain = textwrap.fill(plain, line_chars)
    return plain.replace("$", r"\$")


def _height(kind: ChartKind, labels: Sequence[str], series: Sequence[Series]) -> float:
    """Return the height of the picture without its legend, in inches.

    Horizontal bars and slanted labels need more than other charts.
    """
    if kind == "horizontal bar":
        inches_a_label = max(0.34, _BAR_INCHES / _BAR_SHARE * len(series))
        return min(16.0, max(3.5, 1.6 + len(labels) * inches_a_label))
    if kind in ("bar", "line") and _are_slanted(labels):
        return _HEIGHT + max(0.0, 0.05 * max(map(len, labels)) - 1.0)
    return _HEIGHT


def _add_titles(axes: Axes, kind: ChartKind, title: str, x_label: str, y_label: str) -> None:
    axes.set_title(
        _plain(title), loc="left", fontsize=14, fontweight="bold", color=_DARK, pad=14, wrap=True
    )
    if kind == "pie":
        return
    horizontal = kind == "horizontal bar"
    below, beside = (y_label, x_label) if horizontal else (x_label, y_label)
    axes.set_xlabel(_plain(below), color=_GREY, fontsize=10)
    axes.set_ylabel(_plain(beside, _LINE_CHARS), color=_GREY, fontsize=10)
    (axes.xaxis if horizontal else axes.yaxis).set_major_formatter(number_formatter())
    axes.grid(axis="x" if horizontal else "y", color=_LIGHT, zorder=0)
    axes.tick_params(length=0, colors=_GREY, labelsize=10)
    axes.spines[:].set_visible(False)


def _add_legend(figure: Figure, handles: Sequence[Any], names: Sequence[str]) -> None:
    """Add the legend below the chart in as many columns as fit.

    The legend of a pie stands at its side if the names are short.
    """
    wrapped = [textwrap.fill(name, _LINE_CHARS) for name in names]
    look: dict[str, Any] = {"frameon": False, "fontsize": 10, "labelcolor": _DARK}
    if figure.axes[0].get_aspect() == 1:  # a pie
        legend = figure.legend(handles, wrapped, loc="outside right center", **look)
        if legend.get_window_extent().width <= _LEGEND_INCHES * figure.dpi:
            return
        legend.remove()
    for columns in range(min(_LEGEND_COLUMNS, len(names)), 0, -1):
        legend = figure.legend(handles, wrapped, loc="outside lower center", ncols=columns, **look)
        box = legend.get_window_extent()
        if box.width <= figure.bbox.width - 0.3 * figure.dpi or columns == 1:
            figure.set_figheight(figure.get_figheight() + box.height / figure.dpi)
            return
        legend.remove()


def _draw_bars(axes: Axes, labels: Sequence[str], series: Sequence[Series]) -> list[Any]:
    bars = _draw_groups(axes, axes.bar, labels, series)
    _set_tick_labels(axes, labels)
    axes.margins(y=0.12)
    low, high = axes.get_ylim()
    # Else the number of a small loss would cover the labels.
    if min(min(one.values) for one in series) < 0:
        axes.set_ylim(min(low, -_FREE_BELOW * (high - low)), max(high, _FREE_BELOW * (high - low)))
    axes.axhline(0, color=_GREY, linewidth=0.8, zorder=3)
    return bars


def _draw_horizontal_bars(axes: Axes, labels: Sequence[str], series: Sequence[Series]) -> list[Any]:
    numbered = len(labels) * len(series) <= 4 * _MAX_TICK_LABELS
    bars = _draw_groups(axes, axes.barh, labels, series, numbered=numbered)
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.margins(x=0.12, y=0.02)
    axes.locator_params(axis="x", nbins=6, steps=[1, 2, 5, 10])
    low, high = axes.get_xlim()
    # Else the number of the longest bar would cover the labels.
    if min(min(one.values) for one in series) < 0:
        axes.set_xlim(low - _FREE_BELOW * (high - low), high)
    return bars


def _draw_groups(
    axes: Axes,
    draw: Callable[..., Any],
    labels: Sequence[str],
    series: Sequence[Series],
    *,
    numbered: bool = True,
) -> list[Any]:
    """Draw a bar of each series around the place of each label, with its number at its end."""
    thickness = _BAR_SHARE / len(series)
    drawn = []
    for index, one in enumerate(series):
        places = [
            place - _BAR_SHARE / 2 + thickness * (index + 0.5) for place in range(len(labels))
        ]
        drawn.append(draw(places, one.values, thickness * 0.92, color=_COLORS[index], zorder=2))
        if numbered:
            axes.bar_label(
                drawn[-1],
                [short(value) for value in one.values],
                padding=3,
                fontsize=9,
                color=_DARK,
            )
    return drawn


def _remove_crowded_numbers(figure: Figure, axes: Axes) -> None:
    """Remove the numbers above bars if any is wider than its place: they would cover each other."""
    figure.draw_without_rendering()
    label_share = 1.0 if len(axes.containers) == 1 else _BAR_SHARE
    left, right = axes.get_xlim()
    label_width = axes.bbox.width / (right - left)
    place_width = label_width / len(axes.containers) * label_share
    if any(text.get_window_extent().width > place_width for text in axes.texts):
        for text in list(axes.texts):
            text.remove()


def _draw_lines(axes: Axes, labels: Sequence[str], series: Sequence[Series]) -> list[Any]:
    marker = "o" if len(labels) <= 2 * _MAX_TICK_LABELS else None
    look: dict[str, Any] = {"marker": marker, "markersize": 5, "linewidth": 2, "zorder": 2}
    lines = [
        axes.plot(range(len(labels)), one.values, color=color, **look)[0]
        for one, color in zip(series, _COLORS, strict=False)
    ]
    _set_tick_labels(axes, labels)
    return lines


def _draw_points(axes: Axes, labels: Sequence[str], series: Sequence[Series]) -> list[Any]:
    from matplotlib.ticker import MaxNLocator

    places = [float(label) for label in labels]
    axes.xaxis.set_major_formatter(number_formatter(years=True))
    if all(place.is_integer() for place in places):
        axes.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True))
    look: dict[str, Any] = {"s": 28, "alpha": 0.8, "zorder": 2}
    return [
        axes.scatter(places, one.values, color=color, **look)
        for one, color in zip(series, _COLORS, strict=False)
    ]


def _draw_pie(axes: Axes, _labels: Sequence[str], series: Sequence[Series]) -> list[Any]:
    edges = {"edgecolor": "white", "linewidth": 1.5}
    look: dict[str, Any] = {
        "startangle": 90,
        "counterclock": False,
        "radius": 1.15,
        "wedgeprops": edges,
    }
    return list(axes.pie(series[0].values, colors=_PIE_COLORS, **look)[0])


_DRAW: Mapping[ChartKind, Callable[[Axes, Sequence[str], Sequence[Series]], list[Any]]] = {
    "bar": _draw_bars,
    "horizontal bar": _draw_horizontal_bars,
    "line": _draw_lines,
    "pie": _draw_pie,
    "scatter": _draw_points,
}


def _set_tick_labels(axes: Axes, labels: Sequence[str]) -> None:
    """Write at most _MAX_TICK_LABELS labels below a chart, slanted if they are long."""
    step = math.ceil(len(labels) / _MAX_TICK_LABELS)
    look: dict[str, Any] = {}
    if _are_slanted(labels):
        look = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"}
    axes.set_xticks(range(0, len(labels), step), labels[::step], **look)


def _are_slanted(labels: Sequence[str]) -> bool:
    lengths = [len(label) for label in labels[:: math.ceil(len(labels) / _MAX_TICK_LABELS)]]
    return sum(lengths) > 80 or max(lengths) > 14


def short(value: float) -> str:
    """Return a number like 1,234 or 1.2M: exact if it has at most six digits, else rounded to five."""
    if not value:
        return "0"
    if abs(value) < _SMALLEST_PLAIN:
        return f"{value:.2e}"
    power = next((power for power in _SUFFIXES if abs(value) >= 10.0**power), 0)
    number = Decimal(repr(value)).scaleb(-power)
    digits = 6 if Decimal(f"{number:.6g}") == number else 5
    return f"{Decimal(f'{number:.{digits}g}').normalize():,f}{_SUFFIXES.get(power, '')}"


def number_formatter(*, years: bool = False) -> Formatter:
    """Return matplotlib's formatter of an axis, with thousands separators and M, B, T for millions on.

    Numbers that differ are written differently. With `years`, numbers below 10,000 may be years and
    get no separator.
    """
    from matplotlib.ticker import ScalarFormatter

    class NumberFormatter(ScalarFormatter):
        def format_ticks(self, values: list[float]) -> list[str]:
            power = _common_power(values)
            self.set_scientific(power != 0)
            self.set_powerlimits((power, power))
            suffix = _SUFFIXES.get(power, f"e{power}" if power else "")
            if years and max(map(abs, values), default=0.0) < _AFTER_YEARS:
                separator = ""
            else:
                separator = ","
            written = [text.replace("\N{MINUS SIGN}", "-") for text in super().format_ticks(values)]
            return [
                f"{Decimal(text):{separator}f}{suffix}" if Decimal(text) else "0"
                for text in written
            ]

        def get_offset(self) -> str:
            return ""  # the power of ten stands at every number

    return NumberFormatter(useOffset=False)


def _common_power(values: Sequence[float]) -> int:
    """Return the power of ten by which all numbers of an axis are divided; 0 to write them in full."""
    largest = max(map(abs, values), default=0.0)
    if 0 < largest < _SMALLEST_PLAIN:
        return math.floor(math.log10(largest))
    step = min((high - low for low, high in pairwise(sorted(set(values)))), default=largest)
    return next(
        (power for power in _SUFFIXES if largest >= 10.0**power and step >= 10.0 ** (power - 4)), 0
    )
