"""Scale: numbers beside a chart that differ where the numbers do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sayso.agent.toolbox.charts import short, ticks


@pytest.mark.parametrize(
    ("values", "written"),
    [
        ([100.01, 100.015, 100.02], ["100.010", "100.015", "100.020"]),
        ([1002100, 1002200], ["1.0021M", "1.0022M"]),
        ([1000.2, 1000.4], ["1,000.2", "1,000.4"]),
        ([0, 500_000, 1_000_000], ["0", "0.5M", "1.0M"]),
        ([-20, 0, 20], ["-20", "0", "20"]),
        ([1e9, 1e9 + 1], ["1,000,000,000", "1,000,000,001"]),
        ([1e-7, 2e-7], ["1e-07", "2e-07"]),
        ([5], ["5"]),
        ([], []),
    ],
)
def test_ticks_take_the_digits_that_tell_them_apart(values: list[float], written: list[str]):
    """And no more."""
    assert ticks(values) == written


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
    ("value", "words"),
    [
        (99.998, "99.998"), (100 / 3, "33.333"), (1234, "1,234"), (1002100, "1.0021M"), (1234567, "1.2346M"),
        (12345.678, "12,346"), (-0.0, "0"), (1e15, "1,000T"), (2e-5, "2.00e-05"), (0.00012, "0.00012"),
    ],
)  # fmt: skip
def test_a_number_of_six_digits_is_shown_as_it_is(value: float, words: str):
    """Others are rounded."""
    assert short(value) == words
