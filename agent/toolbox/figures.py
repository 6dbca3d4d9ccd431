"""Figures: numbers as people write them, read exactly and shown without noise."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Context, Decimal

#: Significant digits of the longest number that is shown as it is, where it is not whole.
EXACT_DIGITS = 30
#: Significant digits shown of a number that has more than EXACT_DIGITS.
SHOWN_DIGITS = 15
#: Digits of the longest whole number that is shown in full.
MAX_WHOLE_DIGITS = 50
#: Characters of the longest text that is read as a number.
MAX_NUMBER_CHARS = 60

#: Not every three capitals: INV100 is an invoice, and of the codes that are words, such as ALL and TOP, none is here.
_CURRENCIES = (
    "AED|AUD|BGN|BRL|CAD|CHF|CLP|CNY|COP|CZK|DKK|EGP|EUR|GBP|HKD|HUF|IDR|ILS|INR|ISK|JPY|KES|KRW|MAD|MXN|MYR|NGN|NOK|"
    "NZD|PEN|PHP|PKR|PLN|QAR|RON|RSD|RUB|SAR|SEK|SGD|THB|TRY|TWD|UAH|USD|VND|ZAR"
)
_SIGNS = {"€": "EUR", "£": "GBP", "₹": "INR"}
_UNIT = rf"(?:{_CURRENCIES}|[$€£¥₹%])"
_WITH_UNIT = re.compile(rf"({_UNIT})?\s*(.*?)\s*({_UNIT})?", re.DOTALL)
_PLAIN = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?", re.ASCII)
_COMMAS_GROUP = re.compile(r"[+-]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?", re.ASCII)
_POINTS_GROUP = re.compile(r"[+-]?[1-9]\d{0,2}(?:\.\d{3})+,\d+", re.ASCII)
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Figure:
    """A number with its unit: a currency, `%` or ""."""

    number: Decimal
    unit: str


def shown(value: Decimal) -> str:
    """The number for a reader: in full up to EXACT_DIGITS, else rounded; very large and small ones as 1.5E+60.

    A number that is rounded keeps at least SHOWN_DIGITS, and two places after the point where there is room.
    """
    if value == value.to_integral_value() and value.adjusted() < MAX_WHOLE_DIGITS:
        return "0" if value == 0 else f"{value:.0f}"
    tidy = Context(prec=EXACT_DIGITS).normalize(value)
    if tidy != value:
        digits = min(EXACT_DIGITS, max(SHOWN_DIGITS, value.adjusted() + 3 if value.adjusted() < EXACT_DIGITS else 0))
        tidy = Context(prec=digits).normalize(value)
    return f"{tidy:f}" if -7 <= tidy.adjusted() < MAX_WHOLE_DIGITS else f"{tidy:E}"


def figure_in(text: str) -> Figure | None:
    """The number in a cell, with or without its unit: `12.50`, `1,234.50`, `1.234,50`, `12,5`, `$5`, `8 EUR`, `7%`.

    `1,234` is a thousand and `1.234` is not: one comma before three digits groups, one point never does. Nothing
    is grouped after a zero: `0,125` is an eighth.
    """
    found = _WITH_UNIT.fullmatch(text.strip()) if len(text) <= MAX_NUMBER_CHARS else None
    if not found or (found[1] and found[3]):
        return None
    number = _number(found[2])
    unit = found[1] or found[3] or ""
    return None if number is None else Figure(number, _SIGNS.get(unit, unit))


def number_in(text: str) -> Decimal | None:
    """The number in a cell, whatever its unit."""
    figure = figure_in(text)
    return figure.number if figure else None


def _number(bare: str) -> Decimal | None:
    if _PLAIN.fullmatch(bare):
        return Decimal(bare)
    if _COMMAS_GROUP.fullmatch(bare):
        return Decimal(bare.replace(",", ""))
    if _POINTS_GROUP.fullmatch(bare) or _DECIMAL_COMMA.fullmatch(bare):
        return Decimal(bare.replace(".", "").replace(",", "."))
    return None
