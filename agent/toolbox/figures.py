"""Figures: numbers as people write them, read exactly and shown without noise."""

from __future__ import annotations

import re
from decimal import Context, Decimal

#: Significant digits shown of a number that is not whole.
SHOWN_DIGITS = 15
#: Digits of the longest whole number that is shown in full.
MAX_WHOLE_DIGITS = 50
#: Characters of the longest text that is read as a number.
MAX_NUMBER_CHARS = 60

_MONEY = re.compile(r"^(?:[A-Z]{3}|[$€£¥₹%])?\s*(.*?)\s*(?:[A-Z]{3}|[$€£¥₹%])?$", re.DOTALL)
_PLAIN = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?", re.ASCII)
_COMMAS_GROUP = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?", re.ASCII)
_POINTS_GROUP = re.compile(r"[+-]?\d{1,3}(?:\.\d{3})+,\d+", re.ASCII)
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+", re.ASCII)


def shown(value: Decimal) -> str:
    """The number for a reader: whole ones in full, others to SHOWN_DIGITS, very large and small ones as 1.5E+60."""
    if value == value.to_integral_value() and value.adjusted() < MAX_WHOLE_DIGITS:
        return f"{value:.0f}".replace("-0", "0") if value == 0 else f"{value:.0f}"
    rounded = Context(prec=SHOWN_DIGITS).plus(value)
    tidy = rounded.normalize(Context(prec=SHOWN_DIGITS))
    return f"{tidy:f}" if -7 <= tidy.adjusted() < MAX_WHOLE_DIGITS else f"{tidy:E}"


def number_in(text: str) -> Decimal | None:
    """The number in a cell, with or without its unit: `12.50`, `1,234.50`, `1.234,50`, `12,5`, `$5`, `8 EUR`, `7%`.

    `1,234` is a thousand and `1.234` is not: one comma before three digits groups, one point never does.
    """
    if len(text) > MAX_NUMBER_CHARS:
        return None
    found = _MONEY.match(text.strip())
    bare = found[1] if found else text
    if _PLAIN.fullmatch(bare):
        return Decimal(bare)
    if _COMMAS_GROUP.fullmatch(bare):
        return Decimal(bare.replace(",", ""))
    if _POINTS_GROUP.fullmatch(bare) or _DECIMAL_COMMA.fullmatch(bare):
        return Decimal(bare.replace(".", "").replace(",", "."))
    return None
