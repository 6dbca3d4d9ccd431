"""Amounts: numbers in cells, read exactly and shown without noise."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sayso.agent.toolbox.calculator import Amount, format_number, parse_amount


@pytest.mark.parametrize(
    ("cell", "number"),
    [
        ("12", "12"), (" 12.50 ", "12.50"), ("1,234", "1234"), ("1,234.50", "1234.50"), ("1.234,50", "1234.50"),
        ("12,5", "12.5"), ("1.234", "1.234"),
        ("$5", "5"), ("5 €", "5"), ("EUR 8", "8"), ("8 EUR", "8"), ("7%", "7"), ("-3", "-3"), ("+49", "49"),
        ("1e3", "1000"), (".5", "0.5"),
        ("0,125", "0.125"), ("-0,500", "-0.5"), ("100,000", "100000"),
    ],
)  # fmt: skip
def test_a_cell_is_read_as_people_mean_it(cell: str, number: str):
    """With thousands, decimals of both kinds, and money around it."""
    amount = parse_amount(cell)
    assert amount
    assert amount.number == Decimal(number)


@pytest.mark.parametrize(
    "cell",
    [
        "",
        " ",
        "x",
        "1-2",
        "2026-01-01",
        "1,23,4",
        "1.2.3",
        "12 34",
        "nan",
        "inf",
        "1e9999",
        "--1",
        "٣",
        "9" * 61,
        "$",
        "EUR",
        "INV100",
        "SKU5",
        "100 ORD",
        "$5 EUR",
        "0,125,000",
        "0.125.000,5",
    ],
)
def test_what_is_no_number_is_none(cell: str):
    """It is text, and compared as text."""
    assert parse_amount(cell) is None


def test_a_unit_is_read_by_its_currency():
    """However it is written, and on either side."""
    assert parse_amount("€ 8") == parse_amount("8.0 EUR") == Amount(Decimal(8), "EUR")
    assert parse_amount("8") == Amount(Decimal(8), "")
    assert parse_amount("8 %") == Amount(Decimal(8), "%")


@given(st.text(max_size=80))
def test_any_cell_is_a_number_or_none(cell: str):
    """Nothing is raised."""
    amount = parse_amount(cell)
    assert amount is None or amount.number.is_finite()


@given(
    st.decimals(
        allow_nan=False, allow_infinity=False, min_value=-(10**20), max_value=10**20, places=4
    )
)
def test_what_is_shown_reads_back_to_fifteen_digits(value: Decimal):
    """Whole numbers in full."""
    back = Decimal(format_number(value))
    assert abs(back - value) <= abs(value) * Decimal("1e-14")
    assert "E" not in format_number(value) or value == 0 or abs(value) < 1


def test_noise_is_not_shown():
    """Neither trailing zeros, nor a minus before zero, nor forty digits."""
    assert [
        format_number(Decimal(text))
        for text in (
            "1.500",
            "-0.0",
            "1E+3",
            "1E+60",
            "0.1" + "0" * 40 + "1",
            "123456789012345.67",
            "12345678901234567.8" + "1" * 20,
        )
    ] == [
        "1.5",
        "0",
        "1000",
        "1E+60",
        "0.1",
        "123456789012345.67",
        "12345678901234567.81",
    ]
