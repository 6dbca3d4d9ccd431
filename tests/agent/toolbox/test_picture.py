"""Picture: its legend names everything, and its numbers do not cover each other."""

from __future__ import annotations

from matplotlib.figure import Figure

from sayso.agent.toolbox.charts import Row, _bars, _points, planned


def axes_of(draw, labels: list[str], *rows: list[float]):
    """What is drawn, before it is a picture."""
    axes = Figure().add_subplot()
    draw(axes, labels, [Row("", row) for row in rows])
    return axes


def test_a_legend_names_every_series():
    """Also one whose name begins with the sign by which matplotlib hides it."""
    figure = Figure()
    planned(["_hidden", "$x$"], 8.0, pie=False).draw(figure, figure.add_subplot().plot([1], [1], [2], [2]), "black")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["_hidden", r"\$x\$"]


def test_a_legend_has_as_many_columns_as_fit():
    """Long names are broken into lines; beside a pie only short ones stand."""
    assert planned(list("abcdef"), 7.7, pie=False).columns == 4
    assert planned(["x" * 26] * 4, 7.7, pie=False).columns == 2
    wide = planned(["W" * 60] * 3, 7.7, pie=True)
    assert (wide.columns, wide.beside, wide.names[0].count("\n")) == (1, False, 1)
    assert planned(["Rent: 5 (50%)"], 7.7, pie=True).beside


def test_numbers_stand_over_bars_that_are_wide_enough():
    """Else they would print over each other."""
    months = [f"Month {number}" for number in range(8)]
    assert len(axes_of(_bars, months, [1234567.0] * 8, [1334567.0] * 8).texts) == 0
    assert len(axes_of(_bars, months, [1.0] * 8, [2.0] * 8).texts) == 16


def test_the_number_of_a_small_loss_has_room():
    """Beside a large gain it would fall on the labels."""
    low, high = axes_of(_bars, ["gain", "loss"], [5e8, -120.0]).get_ylim()
    assert low < -0.05 * high


def test_whole_numbers_across_have_whole_ticks():
    """There is no year 2019.5."""
    axis = axes_of(_points, ["2019", "2020", "2021", "2022"], [1.0, 2.0, 3.0, 4.0]).xaxis
    written = axis.get_major_formatter().format_ticks(axis.get_majorticklocs())
    assert {"2019", "2020", "2021", "2022"} <= set(written)
    assert len(set(written)) == len(written)
