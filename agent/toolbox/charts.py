"""Charts: pictures of numbers as PNG files beside the reply, on matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from sayso.agent.toolbox.filenames import filename
from sayso.agent.toolbox.glyphs import refuse_undrawable
from sayso.agent.toolbox.libraries import need
from sayso.agent.toolbox.picture import Kind, Row, Words, png
from sayso.agent.tools.artifacts import emit_artifact
from sayso.agent.tools.decorator import tool
from sayso.agent.tools.tool import Tool

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
    rows = [Row(one.name, one.values) for one in series]
    picture = png(kind, labels, rows, Words(title, x_label, y_label))
    emit_artifact(data=picture, filename=filename(title or "chart", "png"), mime_type="image/png")
    points = "1 value" if len(labels) == 1 else f"{len(labels)} values"
    return f"The {kind} chart is made and goes to the user with your reply: {points}" + (
        f" in {len(series)} series." if len(series) > 1 else "."
    )


def tools(_folder: Path | None = None, _hosts: Sequence[str] = ()) -> list[Tool]:
    """The tools of this family."""
    return [draw_chart]


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


def _numbers(labels: Sequence[str]) -> list[float]:
    try:
        numbers = [float(label) for label in labels]
    except ValueError as exc:
        raise ValueError(f"the labels of a scatter chart are its x numbers: {exc}") from exc
    if not all(abs(number) <= MAX_VALUE for number in numbers):
        raise ValueError(f"the x numbers must be between -{MAX_VALUE:g} and {MAX_VALUE:g}")
    return numbers
