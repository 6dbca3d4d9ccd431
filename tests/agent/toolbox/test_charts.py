"""Charts: a picture of what was said, or a word on why there is none."""

from __future__ import annotations

import io
import math
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from sayso.agent import Artifact, ToolExecutionError, ToolParameterError
from sayso.agent.toolbox.charts import (
    MAX_BARS,
    MAX_POINTS,
    MAX_SLICES,
    MAX_VALUE,
    Series,
    draw_chart,
)
from sayso.agent.tools.environment import collect_artifacts
from tests.agent.toolbox.words import said

KINDS = draw_chart.schema()["parameters"]["properties"]["kind"]["enum"]


def drawn(**asked: object) -> Artifact:
    """The one file that a call makes."""
    with collect_artifacts() as files:
        assert "goes to the user" in draw_chart.execute(
            {"labels": ["1", "2", "3"], "series": [{"values": [1, 2, 3]}], **asked}
        )
    (file,) = files
    return file


def size(file: Artifact) -> tuple[int, int]:
    """Its width and height, from the picture itself."""
    with Image.open(io.BytesIO(file.data or b"")) as picture:
        picture.load()
        assert picture.format == "PNG"
        return picture.size


@pytest.mark.parametrize(
    "values",
    [
        [1.0] * 1_000_000,
        [1.0] * (MAX_POINTS + 1),
        [],
        [float("inf")],
        [float("nan")],
        [MAX_VALUE * 2],
        ["x"],
        [None],
    ],
)
def test_values_beyond_their_bounds_are_refused_by_the_schema(values: list):
    """A chart of a million points cannot be read."""
    with pytest.raises(ToolParameterError):
        drawn(kind="line", labels=["a"], series=[{"values": values}])


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"kind": "bar", "labels": ["a"], "series": [{"values": [1, 2]}]}, "2 values for 1 labels"),
        (
            {"kind": "bar", "labels": ["a"] * 121, "series": [{"values": [1] * 121}]},
            f"at most {MAX_BARS}",
        ),
        (
            {"kind": "bar", "labels": ["a"], "series": [{"values": [1]}, {"values": [2]}]},
            "give every series a name",
        ),
        (
            {"kind": "pie", "labels": ["a"] * 13, "series": [{"values": [1] * 13}]},
            f"at most {MAX_SLICES} values",
        ),
        (
            {"kind": "pie", "labels": ["a", "b"], "series": [{"values": [1, -1]}]},
            "must not be negative",
        ),
        ({"kind": "pie", "labels": ["a"], "series": [{"values": [0]}]}, "nor all zero"),
        ({"kind": "scatter", "labels": ["a"], "series": [{"values": [1]}]}, "are its x numbers"),
        (
            {"kind": "scatter", "labels": ["inf"], "series": [{"values": [1]}]},
            "x numbers must be between",
        ),
        (
            {"kind": "scatter", "labels": ["nan"], "series": [{"values": [1]}]},
            "x numbers must be between",
        ),
        ({"kind": "bar", "title": "漢字 🚀"}, "cannot draw '漢'"),
    ],
)
def test_what_would_be_drawn_wrongly_is_refused_with_the_cure(asked: dict, words: str):
    """Examples are letters that the font lacks, and bars that are too thin to see."""
    with pytest.raises(ToolExecutionError, match=words):
        drawn(**asked)


@pytest.mark.parametrize(
    "words", ["$\\frac{1}{$", "$$", "$5 and $6", "\\", "%s {0} {x}", "_x_", "a\nb", "\0\x07"]
)
def test_words_are_drawn_as_they_are(words: str):
    """No formula, no format, no escape is seen in them."""
    assert size(drawn(kind="bar", title=words, x_label=words, labels=[words] * 3))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_draws_words_of_many_scripts_and_signs(kind: str):
    """In all the places where words stand."""
    words = "$x$ Größe Łódź Привет مرحبا"
    labels = ["1", "2", "3"] if kind == "scatter" else [words] * 3
    series = [{"values": [1, 2, 3], "name": words}, {"values": [3, 2, 1], "name": "b"}][
        : 1 if kind == "pie" else 2
    ]
    assert size(
        drawn(kind=kind, title=words, x_label=words, y_label=words, labels=labels, series=series)
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("values", [[0, 1e-300, MAX_VALUE], [5, 5, 5]])
def test_the_largest_and_the_smallest_numbers_are_drawn(kind: str, values: list[float]):
    """Side by side, too."""
    assert size(drawn(kind=kind, series=[{"values": values}]))


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from(KINDS),
    st.lists(st.floats(-MAX_VALUE, MAX_VALUE), min_size=1, max_size=20),
    st.text(max_size=60),
)
def test_any_numbers_are_drawn_or_refused_in_words(kind: str, values: list[float], title: str):
    """Nothing but ValueError leaves it."""
    labels = [str(number) for number in range(len(values))]
    assert said(lambda: draw_chart(kind, labels, [Series(values=values)], title))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_a_picture_of_a_sensible_size(kind: str):
    """Also with as much in it as may be."""
    many = {"pie": MAX_SLICES, "bar": MAX_BARS, "horizontal bar": MAX_BARS}.get(kind, MAX_POINTS)
    values = [abs(math.sin(number)) * 1e6 for number in range(many)]
    file = drawn(
        kind=kind, labels=[str(number) for number in range(many)], series=[{"values": values}]
    )
    width, height = size(file)
    assert 900 <= width <= 1300
    assert 500 <= height <= 2500
    assert file.size < 500_000


LONG = [
    f"Position {number:02} of the budget with a long explanatory name he" for number in range(12)
]


@pytest.mark.parametrize(
    "asked",
    [
        {"kind": "line", "series": [{"values": [1, 2, 3], "name": name[:26]} for name in LONG[:4]]},
        {"kind": "bar", "series": [{"values": [1, 2, 3], "name": name} for name in LONG[:8]]},
        {"kind": "bar", "y_label": LONG[0].upper(), "x_label": LONG[0], "title": LONG[0]},
        {"kind": "horizontal bar", "y_label": LONG[0], "x_label": LONG[0]},
        {
            "kind": "pie",
            "labels": LONG,
            "series": [{"values": range(1, 13)}],
            "title": " ".join(LONG[:2]),
        },
    ],
)
def test_no_words_are_cut_at_the_rim(asked: dict):
    """However long the names are."""
    with Image.open(io.BytesIO(drawn(**asked).data or b"")) as picture:
        grey = picture.convert("L")
    wide, high = grey.size
    for rim in (
        (0, 0, 6, high),
        (wide - 6, 0, wide, high),
        (0, 0, wide, 6),
        (0, high - 6, wide, high),
    ):
        assert grey.crop(rim).getextrema() == (255, 255)


@pytest.mark.parametrize("letters", [20, 60])
def test_a_pie_is_large_however_long_its_labels_are(letters: int):
    """At least three inches of the picture are its own."""
    file = drawn(
        kind="pie",
        labels=[label[:letters] for label in LONG],
        series=[{"values": [1] * 12}],
        title=LONG[0],
    )
    with Image.open(io.BytesIO(file.data or b"")) as picture:
        rows = picture.convert("RGB").resize((100, picture.height)).tobytes()
    coloured = [any(value < 60 for value in rows[at : at + 300]) for at in range(0, len(rows), 300)]
    assert sum(coloured) > 450


def test_the_file_is_called_like_its_title():
    """A name that every disk takes."""
    file = drawn(kind="bar", title="../../Umsatz: 2026 / Köln?")
    assert (file.filename, file.mime_type) == ("Umsatz-2026-Köln.png", "image/png")
    assert drawn(kind="bar", title="%%%").filename == "file.png"
    assert drawn(kind="bar").filename == "chart.png"


def test_charts_drawn_at_once_do_not_mix():
    """No figure is shared between threads."""
    with ThreadPoolExecutor(4) as pool:
        pictures = list(pool.map(lambda _: drawn(kind="line", title="same").data, range(4)))
    assert len(set(pictures)) == 1
