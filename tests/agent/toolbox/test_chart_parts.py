"""Parts of a chart: the legend names every series, and numbers are legible and differ where the values do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from sayso.agent.toolbox.charts import (
    Series,
    _add_legend,
    _draw_bars,
    _draw_points,
    _remove_crowded_numbers,
    number_formatter,
    short,
)


def new_figure() -> Figure:
    """Return an empty figure as wide as a chart."""
    figure = Figure(figsize=(8, 5), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def axes_of(draw, labels: list[str], *rows: list[float]):
    """Return what a drawing function draws of these rows."""
    axes = new_figure().add_subplot()
    draw(axes, labels, [Series(values=row) for row in rows])
    return axes


def legend_of(names: list[str], *, pie: bool = False):
    """Return the legend of a chart with these names."""
    figure = new_figure()
    axes = figure.add_subplot()
    handles = axes.pie([1] * len(names))[0] if pie else [axes.plot([1], [1])[0] for _ in names]
    _add_legend(figure, handles, names, may_be_beside=pie)
    return figure.legends[0]


def ticks(values: list[float], *, years: bool = False) -> list[str]:
    """Return the numbers as an axis from the first to the last shows them."""
    axis = new_figure().add_subplot().yaxis
    if values:
        axis.axes.set_ylim(min(values), max(values) + (len(set(values)) == 1))
    axis.set_major_formatter(number_formatter(may_be_years=years))
    return axis.get_major_formatter().format_ticks(values)


def test_a_legend_names_every_series():
    """Also one whose name begins with an underscore, which matplotlib may hide."""
    texts = [text.get_text() for text in legend_of(["_hidden", "$x$"]).get_texts()]
    assert texts == ["_hidden", r"\$x\$"]


def test_a_long_name_in_a_legend_is_broken_beside_its_dollar_sign():
    """The sign is escaped after that, so no backslash is left alone at the end of a line."""
    [text, _] = legend_of(["a" * 40 + "$", "b"]).get_texts()
    assert text.get_text() == "a" * 40 + "\n" + r"\$"


def test_a_legend_has_as_many_columns_as_fit():
    """Long names are broken into lines; only short ones stand beside a pie."""
    assert legend_of(list("abcdef"))._ncols == 4
    assert legend_of(["x" * 30] * 4)._ncols == 2
    wide = legend_of(["W" * 60] * 3, pie=True)
    assert (wide._ncols, wide.get_texts()[0].get_text().count("\n")) == (1, 1)
    assert (wide._outside_loc, legend_of(["Rent: 5 (50%)"], pie=True)._outside_loc) == (
        "lower",
        "right",
    )


def test_numbers_stand_over_bars_that_are_wide_enough():
    """Narrower bars have none: the numbers would cover each other."""
    months = [f"Month {number}" for number in range(8)]
    crowded = axes_of(_draw_bars, months, [1234567.0] * 8, [1334567.0] * 8)
    roomy = axes_of(_draw_bars, months, [1.0] * 8, [2.0] * 8)
    for axes in (crowded, roomy):
        _remove_crowded_numbers(axes.figure, axes)
    assert (len(crowded.texts), len(roomy.texts)) == (0, 16)


def test_the_number_of_a_small_loss_has_room():
    """Beside a large gain it would fall on the labels."""
    low, high = axes_of(_draw_bars, ["gain", "loss"], [5e8, -120.0]).get_ylim()
    assert low < -0.05 * high


def test_whole_numbers_across_have_whole_ticks():
    """There is no year 2019.5."""
    axis = axes_of(_draw_points, ["2019", "2020", "2021", "2022"], [1.0, 2.0, 3.0, 4.0]).xaxis
    labels = axis.get_major_formatter().format_ticks(axis.get_majorticklocs())
    assert {"2019", "2020", "2021", "2022"} <= set(labels)
    assert len(set(labels)) == len(labels)


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([100.01, 100.015, 100.02], ["100.010", "100.015", "100.020"]),
        ([1002100, 1002200], ["1.0021M", "1.0022M"]),
        ([1000.2, 1000.4], ["1,000.2", "1,000.4"]),
        ([0, 500_000, 1_000_000], ["0", "0.5M", "1.0M"]),
        ([-20, 0, 20], ["-20", "0", "20"]),
        ([1e9, 1e9 + 1], ["1,000,000,000", "1,000,000,001"]),
        ([1e-7, 2e-7], ["1e-7", "2e-7"]),
        ([5], ["5"]),
        ([], []),
    ],
)
def test_ticks_have_the_digits_that_tell_them_apart(values: list[float], labels: list[str]):
    """And no more."""
    assert ticks(values) == labels


def test_years_have_no_separator():
    """Larger numbers have."""
    assert ticks([2019, 2020], years=True) == ["2019", "2020"]
    assert ticks([0, 10_000], years=True) == ["0", "10,000"]


@given(st.floats(-1e15, 1e15), st.integers(-6, 14), st.integers(2, 9))
def test_no_two_ticks_look_alike(start: float, power: int, count: int):
    """As long as a float can hold their distance."""
    step = 10.0**power
    values = [round(start / step) * step + number * step for number in range(count)]
    if len(set(values)) == count and step > abs(start) * 1e-9:
        assert len(set(ticks(values))) == count


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (99.998, "99.998"), (100 / 3, "33.333"), (1234, "1,234"), (1002100, "1.0021M"), (1234567, "1.2346M"),
        (12345.678, "12,346"), (-0.0, "0"), (1e15, "1,000T"), (2e-5, "2.00e-05"), (0.00012, "0.00012"),
    ],
)  # fmt: skip
def test_a_number_of_six_digits_is_shown_as_it_is(value: float, text: str):
    """Longer numbers are rounded."""
    assert short(value) == text
