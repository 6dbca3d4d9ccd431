"""The tool `draw_chart`: numbers as a picture (PNG), drawn by matplotlib.

A chart shows one or more series of numbers over labels. In matplotlib's words, a picture is a
figure, the part with the two axes in it is its axes, and a tick is a marked place on an axis. A
handle is what the legend shows next to the name of a series.
"""

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

#: The colors of the series. They are easy to tell apart in print and with color blindness.
_COLORS = ("#4f46e5", "#f59e0b", "#10b981", "#ef4444", "#0ea5e9", "#a855f7", "#84cc16", "#64748b")
#: The colors of the slices of a pie.
_PIE_COLORS = (*_COLORS, "#818cf8", "#fbbf24", "#34d399", "#f87171")
#: Points of the longest line or scatter chart.
MAX_POINTS = 500
#: Bars of the fullest chart, all series together.
MAX_BARS = 120
#: Slices of the fullest pie, each with a color for itself.
MAX_SLICES = len(_PIE_COLORS)
#: Series of the fullest chart, each with a color for itself.
MAX_SERIES = len(_COLORS)
#: The largest value, on either side of zero.
MAX_VALUE = 1e15
#: Characters of the longest label.
MAX_LABEL_CHARS = 60
#: Characters of the longest title.
MAX_TITLE_CHARS = 120
#: How many labels fit below a chart.
_MAX_TICK_LABELS = 16
#: Labels below a chart are slanted if one of them has more characters than this.
_MAX_UPRIGHT_CHARS = 14
#: They are also slanted if together they have more characters than this.
_MAX_UPRIGHT_CHARS_TOGETHER = 80
#: Characters of a line in the legend, and in the title of the vertical axis.
_LINE_CHARS = 40
#: The most columns of a legend below the chart.
_LEGEND_COLUMNS = 4
#: The widest legend at the side of a pie, in inches.
_LEGEND_INCHES = 3.0
#: The space that a legend below the chart leaves free at the sides of the picture, in inches.
_LEGEND_MARGIN = 0.3
#: The width of a picture, in inches.
_WIDTH = 8.0
#: The height of most pictures without the legend, in inches.
_HEIGHT = 5.0
#: The lowest and the highest picture of horizontal bars, in inches.
_BARS_HEIGHTS = (3.5, 16.0)
#: What such a picture needs besides the bars, for its titles and numbers, in inches.
_TITLES_INCHES = 1.6
#: The least height of the place of a label beside horizontal bars, in inches: a line of text.
_LABEL_INCHES = 0.34
#: Height of the thinnest horizontal bar whose number fits at its end, in inches.
_BAR_INCHES = 0.15
#: The most horizontal bars with numbers. So many are thick enough in the highest picture.
_MAX_NUMBERED_BARS = 64
#: The share of the place of a label that its bars take together. The rest separates the labels.
_BAR_SHARE = 0.8
#: The share of a chart that stays free for the number of a negative bar, at its end.
_FREE_SHARE = 0.1
#: The colors of text, of what is less important, and of lines.
_DARK = "#111827"
_GREY = "#6b7280"
_LIGHT = "#e5e7eb"
#: Power of ten -> the letter that is written for it. The first power that a number reaches is used,
#: so the largest one stands first.
_SUFFIXES = {12: "T", 9: "B", 6: "M"}
#: Smaller numbers are written with a power of ten, like 1.50e-07.
_SMALLEST_PLAIN = 1e-4
#: Numbers below it may be years, which have no thousands separator.
_YEAR_LIMIT = 10_000
ChartKind = Literal["bar", "horizontal bar", "line", "pie", "scatter"]
Label = Annotated[str, Field(max_length=MAX_LABEL_CHARS)]
Value = Annotated[float, Field(ge=-MAX_VALUE, le=MAX_VALUE)]

# Where a library is missing, the import of this module fails with the command that installs it.
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
    names = [each.name for each in series]
    # The font lacks some characters, such as emoji. In their place it would draw empty boxes.
    refuse_undrawable("chart", [title, x_label, y_label, *labels, *names])

    picture = _png(kind, labels, series, title, x_label, y_label)
    emit_artifact(picture, filename=filename(title or "chart", "png"), mime_type="image/png")

    values = plural(len(labels), "value")
    if len(series) > 1:
        values += f" in {len(series)} series"
    return f"The {kind} chart is made and goes to the user with your reply: {values}."


def _check(kind: ChartKind, labels: Sequence[str], series: Sequence[Series]) -> None:
    """Raise ValueError for a chart that would be wrong or illegible, with what to send instead."""
    for each in series:
        if len(each.values) != len(labels):
            raise ValueError(
                f"series {each.name!r} has {len(each.values)} values for {len(labels)} labels: "
                "give one for each"
            )
    bars = len(labels) * len(series)
    if kind in ("bar", "horizontal bar") and bars > MAX_BARS:
        raise ValueError(f"{bars} bars: at most {MAX_BARS} can be read; use a line, or fewer")
    if len(series) > 1 and any(not each.name for each in series):
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

    plain_labels = [_plain(label) for label in labels]
    layout = ConstrainedLayoutEngine(w_pad=0.15, h_pad=0.15)  # inches
    size = (_WIDTH, _height(kind, plain_labels, series))
    figure = Figure(figsize=size, dpi=150, layout=layout, facecolor="white")
    FigureCanvasAgg(figure)  # registers itself with the figure
    axes = figure.add_subplot()
    handles = _DRAW[kind](axes, plain_labels, series)
    _add_titles(axes, kind, title, x_label, y_label)

    if kind == "pie":
        slice_names = _slice_names(labels, series[0].values)
        _add_legend(figure, handles, slice_names, may_be_beside=True)
    elif len(series) > 1:
        _add_legend(figure, handles, [each.name for each in series])
    if kind == "bar":
        _remove_crowded_numbers(figure, axes)

    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()


def _slice_names(labels: Sequence[str], values: Sequence[float]) -> list[str]:
    """Return what the legend of a pie says of each slice: its label, value and share."""
    total = sum(values)
    slices = zip(labels, values, strict=True)
    return [f"{label}: {short(value)} ({value / total:.1%})" for label, value in slices]


def _plain(text: str, line_chars: int = 0) -> str:
    """Return the text as matplotlib draws it, without characters that no font has.

    It is one line, or several of at most `line_chars` characters if that is not 0. Each $ is
    escaped, because matplotlib reads the text between two of them as a formula.
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
        inches_a_label = max(_LABEL_INCHES, _BAR_INCHES / _BAR_SHARE * len(series))
        lowest, highest = _BARS_HEIGHTS
        return min(highest, max(lowest, _TITLES_INCHES + len(labels) * inches_a_label))
    if kind in ("bar", "line") and _are_slanted(labels):
        # A slanted label is 0.05 inches high for each character. The usual height has room for 20.
        return _HEIGHT + max(0.0, 0.05 * max(map(len, labels)) - 1.0)
    return _HEIGHT


def _add_titles(axes: Axes, kind: ChartKind, title: str, x_label: str, y_label: str) -> None:
    """Write the title and the titles of the axes, and draw the lines behind the numbers."""
    axes.set_title(
        _plain(title), loc="left", fontsize=14, fontweight="bold", color=_DARK, pad=14, wrap=True
    )
    if kind == "pie":
        return

    # In a chart of horizontal bars, the numbers are on the horizontal axis.
    if kind == "horizontal bar":
        axes.set_xlabel(_plain(y_label), color=_GREY, fontsize=10)
        axes.set_ylabel(_plain(x_label, _LINE_CHARS), color=_GREY, fontsize=10)
        axes.xaxis.set_major_formatter(number_formatter())
        axes.grid(axis="x", color=_LIGHT, zorder=0)
    else:
        axes.set_xlabel(_plain(x_label), color=_GREY, fontsize=10)
        axes.set_ylabel(_plain(y_label, _LINE_CHARS), color=_GREY, fontsize=10)
        axes.yaxis.set_major_formatter(number_formatter())
        axes.grid(axis="y", color=_LIGHT, zorder=0)
    axes.tick_params(length=0, colors=_GREY, labelsize=10)
    axes.spines[:].set_visible(False)


def _add_legend(
    figure: Figure,
    handles: Sequence[Any],
    names: Sequence[str],
    *,
    may_be_beside: bool = False,
) -> None:
    """Add the legend below the chart in as many columns as fit.

    With `may_be_beside`, as for a pie, it stands at the side of the chart if the names are short.
    """
    wrapped_names = [_plain(name, _LINE_CHARS) for name in names]
    look: dict[str, Any] = {"frameon": False, "fontsize": 10, "labelcolor": _DARK}
    if may_be_beside:
        legend = figure.legend(handles, wrapped_names, loc="outside right center", **look)
        if legend.get_window_extent().width <= _LEGEND_INCHES * figure.dpi:
            return
        legend.remove()

    # A legend is measured by drawing it. The first one that fits stays, and the picture grows by
    # its height.
    for columns in range(min(_LEGEND_COLUMNS, len(names)), 0, -1):
        legend = figure.legend(
            handles, wrapped_names, loc="outside lower center", ncols=columns, **look
        )
        box = legend.get_window_extent()
        if box.width <= figure.bbox.width - _LEGEND_MARGIN * figure.dpi or columns == 1:
            figure.set_figheight(figure.get_figheight() + box.height / figure.dpi)
            return
        legend.remove()


def _draw_bars(axes: Axes, labels: Sequence[str], series: Sequence[Series]) -> list[Any]:
    """Draw vertical bars. Return the handles of the series."""
    bars = _draw_groups(axes, axes.bar, labels, series)
    _set_tick_labels(axes, labels)
    axes.margins(y=0.12)
    # Without free space below the zero line, the number of a small negative bar would cover the
    # labels. The number of a zero stands above the line, so there is space there, too.
    if _has_negative(series):
        low, high = axes.get_ylim()
        free = _FREE_SHARE * (high - low)
        axes.set_ylim(min(low, -free), max(high, free))
    axes.axhline(0, color=_GREY, linewidth=0.8, zorder=3)
    return bars


def _draw_horizontal_bars(axes: Axes, labels: Sequence[str], series: Sequence[Series]) -> list[Any]:
    """Draw horizontal bars. Return the handles of the series."""
    has_numbers = len(labels) * len(series) <= _MAX_NUMBERED_BARS
    bars = _draw_groups(axes, axes.barh, labels, series, has_numbers=has_numbers)
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.margins(x=0.12, y=0.02)
    axes.locator_params(axis="x", nbins=6, steps=[1, 2, 5, 10])
    # The number of the longest negative bar would cover the labels. Here it needs more than the
    # margin, because a number is wider than it is high.
    if _has_negative(series):
        low, high = axes.get_xlim()
        axes.set_xlim(low - _FREE_SHARE * (high - low), high)
    return bars


def _has_negative(series: Sequence[Series]) -> bool:
    """Return whether any number is below zero."""
    return any(min(each.values) < 0 for each in series)


def _draw_groups(
    axes: Axes,
    draw: Callable[..., Any],
    labels: Sequence[str],
    series: Sequence[Series],
    *,
    has_numbers: bool = True,
) -> list[Any]:
    """Draw a group of bars at each label, one of each series. Return the bars of each series.

    `draw` draws the bars of one series. With `has_numbers`, each has its number at its end.
    """
    thickness = _BAR_SHARE / len(series)
    bars_of_series = []
    for index, each in enumerate(series):
        # The groups stand at 0, 1, 2 and so on, each with its middle there.
        offset = thickness * (index + 0.5) - _BAR_SHARE / 2
        places = [place + offset for place in range(len(labels))]
        bars = draw(places, each.values, thickness * 0.92, color=_COLORS[index], zorder=2)
        bars_of_series.append(bars)
        if has_numbers:
            numbers = [short(value) for value in each.values]
            axes.bar_label(bars, numbers, padding=3, fontsize=9, color=_DARK)
    return bars_of_series


def _remove_crowded_numbers(figure: Figure, axes: Axes) -> None:
    """Remove the numbers above bars if any is wider than its place: they would cover each other."""
    figure.draw_without_rendering()  # computes the widths of the texts
    series_count = len(axes.containers)
    left, right = axes.get_xlim()
    label_width = axes.bbox.width / (right - left)
    # A single bar may use the space between two labels. The bars of a group cannot.
    place_width = label_width
    if series_count > 1:
        place_width = label_width * _BAR_SHARE / series_count
    if any(text.get_window_extent().width > place_width for text in axes.texts):
        for text in list(axes.texts):
            text.remove()


def _draw_lines(axes: Axes, labels: Sequence[str], series: Sequence[Series]) -> list[Any]:
    """Draw a line for each series. Return the handles of the series."""
    # The points of a long line would cover it.
    marker = "o" if len(labels) <= 2 * _MAX_TICK_LABELS else None
    look: dict[str, Any] = {"marker": marker, "markersize": 5, "linewidth": 2, "zorder": 2}
    places = range(len(labels))
    lines = []
    for each, color in zip(series, _COLORS, strict=False):
        [line] = axes.plot(places, each.values, color=color, **look)
        lines.append(line)
    _set_tick_labels(axes, labels)
    return lines


def _draw_points(axes: Axes, labels: Sequence[str], series: Sequence[Series]) -> list[Any]:
    """Draw the points of a scatter chart. Return the handles of the series."""
    from matplotlib.ticker import MaxNLocator

    places = [float(label) for label in labels]
    axes.xaxis.set_major_formatter(number_formatter(may_be_years=True))
    if all(place.is_integer() for place in places):
        axes.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True))
    look: dict[str, Any] = {"s": 28, "alpha": 0.8, "zorder": 2}
    return [
        axes.scatter(places, each.values, color=color, **look)
        for each, color in zip(series, _COLORS, strict=False)
    ]


def _draw_pie(axes: Axes, _labels: Sequence[str], series: Sequence[Series]) -> list[Any]:
    """Draw a pie. Return the handles of its slices."""
    edges = {"edgecolor": "white", "linewidth": 1.5}
    look: dict[str, Any] = {
        "startangle": 90,
        "counterclock": False,
        "radius": 1.15,
        "wedgeprops": edges,
    }
    slices, *_ = axes.pie(series[0].values, colors=_PIE_COLORS, **look)
    return list(slices)


#: Draws a chart into its axes, and returns the handles for the legend.
_DRAW: Mapping[ChartKind, Callable[[Axes, Sequence[str], Sequence[Series]], list[Any]]] = {
    "bar": _draw_bars,
    "horizontal bar": _draw_horizontal_bars,
    "line": _draw_lines,
    "pie": _draw_pie,
    "scatter": _draw_points,
}


def _set_tick_labels(axes: Axes, labels: Sequence[str]) -> None:
    """Write at most _MAX_TICK_LABELS of the labels below a chart, slanted if they are long."""
    step = math.ceil(len(labels) / _MAX_TICK_LABELS)
    look: dict[str, Any] = {}
    if _are_slanted(labels):
        look = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"}
    axes.set_xticks(range(0, len(labels), step), labels[::step], **look)


def _are_slanted(labels: Sequence[str]) -> bool:
    """Return whether the labels that are shown are too long to stand side by side."""
    step = math.ceil(len(labels) / _MAX_TICK_LABELS)
    lengths = [len(label) for label in labels[::step]]
    return sum(lengths) > _MAX_UPRIGHT_CHARS_TOGETHER or max(lengths) > _MAX_UPRIGHT_CHARS


def short(value: float) -> str:
    """Return a number like 1,234 or 1.2M.

    It is exact if it has at most six digits, else rounded to five. A number below 0.0001 is written
    like 1.23e-05, with three digits.
    """
    if not value:
        return "0"
    if abs(value) < _SMALLEST_PLAIN:
        return f"{value:.2e}"
    power = next((power for power in _SUFFIXES if abs(value) >= 10.0**power), 0)
    number = Decimal(repr(value)).scaleb(-power)
    shortened = Decimal(f"{number:.6g}")
    if shortened != number:
        shortened = Decimal(f"{number:.5g}")
    return f"{shortened.normalize():,f}{_SUFFIXES.get(power, '')}"


def number_formatter(*, may_be_years: bool = False) -> Formatter:
    """Return a formatter that writes the numbers of an axis, as matplotlib takes it.

    Numbers have thousands separators, and M, B or T for millions, billions and trillions. Numbers
    that differ are written differently. With `may_be_years`, an axis on which all numbers are below
    10,000 has no separators.
    """
    from matplotlib.ticker import ScalarFormatter

    class NumberFormatter(ScalarFormatter):
        """matplotlib's usual formatter, which decides how many digits are needed."""

        def format_ticks(self, values: list[float]) -> list[str]:
            """Return the texts of the numbers of an axis."""
            power = _common_power(values)
            # The usual formatter divides the numbers by this power of ten.
            self.set_scientific(power != 0)
            self.set_powerlimits((power, power))
            suffix = ""
            if power:
                suffix = _SUFFIXES.get(power, f"e{power}")
            separator = ","
            if may_be_years and max(map(abs, values), default=0.0) < _YEAR_LIMIT:
                separator = ""

            texts = []
            for text in super().format_ticks(values):
                number = Decimal(text.replace("\N{MINUS SIGN}", "-"))
                texts.append(f"{number:{separator}f}{suffix}" if number else "0")
            return texts

        def get_offset(self) -> str:
            """Return no text for the end of the axis: the power of ten stands at every number."""
            return ""

    return NumberFormatter(useOffset=False)


def _common_power(values: Sequence[float]) -> int:
    """Return the power of ten by which all numbers of an axis are divided; 0 to write them in full.

    A power with a letter is used if each step of the axis is still seen in four decimal places.
    """
    largest = max(map(abs, values), default=0.0)
    if 0 < largest < _SMALLEST_PLAIN:
        return math.floor(math.log10(largest))
    steps = [high - low for low, high in pairwise(sorted(set(values)))]
    smallest_step = min(steps, default=largest)
    for power in _SUFFIXES:
        if largest >= 10.0**power and smallest_step >= 10.0 ** (power - 4):
            return power
    return 0
