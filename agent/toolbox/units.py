"""Units: conversion of physical quantities, on pint; units are read by a grammar without sums and large powers."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Sequence
from decimal import Decimal, DecimalException
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from agent.toolbox.figures import shown
from agent.toolbox.libraries import need
from agent.tools.decorator import tool
from agent.tools.tool import Tool

if TYPE_CHECKING:
    import pint

#: Characters of the longest unit.
MAX_UNIT_CHARS = 60
#: The largest and, as its inverse, the smallest amount.
MAX_AMOUNT = 1e100

#: Spellings that pint takes for something else, or for nothing.
_ALIASES = {
    "%": "percent",
    "fl_oz": "fluid_ounce",
    "floz": "fluid_ounce",
    "fluid_ounces": "fluid_ounce",
    "sqft": "ft^2",
    "sqm": "m^2",
    "sqkm": "km^2",
    "sqmi": "mile^2",
    "°": "degree",
    "mo": "month",
    "kmh": "km/hour",
    "kph": "km/hour",
    "nautical_miles": "nautical_mile",
    "metric_tons": "metric_ton",
    "sec": "second",
    "mins": "minute",
    "hrs": "hour",
    "yrs": "year",
    "tbsp": "tablespoon",
    "tsp": "teaspoon",
}
#: Letters that mean a temperature only among themselves.
_TEMPERATURES = {"c": "degC", "f": "degF", "k": "kelvin"}
#: Temperatures, not differences of them; pint's names.
_ABSOLUTE = ("degree_Celsius", "degree_Fahrenheit")
_CURRENCIES = frozenset(
    ("eur", "usd", "gbp", "chf", "jpy", "cny", "inr", "brl", "euro", "euros", "dollar", "dollars", "€", "$", "£")
)
_AREA = re.compile(r"\b(?:sq(?:uare)?\.? )(\w+)")
_VOLUME = re.compile(r"\b(?:cu(?:bic)?\.? )(\w+)")
_SUFFIXED = re.compile(r"\b([^\W\d_]{1,20})([23])\b")
_NAME = r"(?:°?[^\W\d]\w*|%|°)"
_UNIT = re.compile(rf"{_NAME}(?:\^-?[1-9])?(?:[*/]{_NAME}(?:\^-?[1-9])?){{0,5}}")

Unit = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MAX_UNIT_CHARS,
        description="A unit such as 'km', 'miles', 'celsius', 'kWh', 'm^2', 'km/h', 'cup', 'GB', 'MiB'",
    ),
]

need("units", "pint")


@tool(
    read_only=True,
    description="Convert an amount from one unit to another: length, weight, temperature, speed, volume, data",
)
def convert_units(
    amount: Annotated[float, Field(ge=-MAX_AMOUNT, le=MAX_AMOUNT, description="How much, such as 5 or 36.6")],
    from_unit: Unit,
    to_unit: Unit,
) -> str:
    """The amount in the other unit. Raises ValueError, which names the nearest unit."""
    _refuse_money(from_unit, to_unit)
    source, target = _spelled(from_unit), _spelled(to_unit)
    if {source.lower(), target.lower()} <= set(_TEMPERATURES):
        source, target = _TEMPERATURES[source.lower()], _TEMPERATURES[target.lower()]
    given = Decimal(repr(amount))
    return f"{shown(given)} {from_unit.strip()} = {shown(_converted(given, source, target))} {to_unit.strip()}"


def tools(_folder: Path | None = None, _hosts: Sequence[str] = ()) -> list[Tool]:
    """The tools of this family."""
    return [convert_units]


def _refuse_money(*units: str) -> None:
    for unit in units:
        if unit.strip().lower() in _CURRENCIES:
            raise ValueError(f"{unit!r} is money: exchange rates change, and this tool has none")


def _spelled(unit: str) -> str:
    """The unit in pint's spelling. Raises ValueError for anything but names, * and /, and powers of one digit."""
    text = (
        " ".join(unit.split())
        .replace("²", "^2")
        .replace("³", "^3")
        .replace("·", "*")
        .replace("**", "^")
        .replace("µ", "μ")
    )
    text = _VOLUME.sub(r"\1^3", _AREA.sub(r"\1^2", text)).replace(" per ", "/")
    text = re.sub(r" ?([*/^]) ?", r"\1", text).replace(" ", "_")
    text = "".join(_ALIASES.get(part, part) for part in re.split(r"([*/])", text))
    text = _SUFFIXED.sub(r"\1^\2", text)
    if not _UNIT.fullmatch(text):
        raise ValueError(
            f"{unit!r} is no unit: write it like 'km', 'km/h', 'm^2' or 'kg*m/s^2', and the number as amount"
        )
    return text


def _converted(amount: Decimal, source: str, target: str) -> Decimal:
    import pint

    try:
        quantity = _registry().Quantity(amount, _parsed(source))
        if str(quantity.units) in _ABSOLUTE and quantity.to("kelvin").magnitude < 0:
            raise ValueError(f"{shown(amount)} {source} is below absolute zero: check the amount and the unit")
        value: Decimal = quantity.to(_parsed(target)).magnitude
        return value
    except pint.DimensionalityError as exc:
        raise ValueError(
            f"{source!r} measures {exc.dim1 or 'a number'}, {target!r} {exc.dim2 or 'a number'}: name units of one kind"
        ) from exc
    except (pint.PintError, DecimalException, ArithmeticError, TypeError, AttributeError) as exc:
        raise ValueError(f"cannot convert {source!r} to {target!r}: name plain units such as 'km' and 'mile'") from exc


def _parsed(unit: str) -> pint.Unit:
    """As written, since case tells mega from milli; in small letters where that is nothing."""
    import pint

    try:
        return _registry().parse_units(unit)
    except pint.UndefinedUnitError as exc:
        try:
            return _registry().parse_units(unit.lower())
        except pint.UndefinedUnitError:
            raise ValueError(_unknown(unit)) from exc
    except (ValueError, AssertionError) as exc:  # pint asserts what its tokenizer does not keep, of "¼" for example
        raise ValueError(f"{unit!r} is no unit: write it like 'km', 'km/h' or 'm^2'") from exc


def _unknown(unit: str) -> str:
    names = [name for name in re.split(r"[*/^]", unit) if name and name not in _registry()]
    close = difflib.get_close_matches(names[0] if names else unit, list(_registry()), n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ": write it in full, in English, such as 'kilometer'"
    return f"unknown unit {unit!r}{hint}"


@functools.lru_cache(maxsize=1)
def _registry() -> pint.UnitRegistry[Decimal]:
    """Read once per process, which takes half a second."""
    import pint

    return pint.UnitRegistry(non_int_type=Decimal)
