"""Units: conversion of physical quantities, on pint; units are read by a grammar without sums and large powers."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from decimal import Context, Decimal, DecimalException, localcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from sayso.agent.toolbox import need
from sayso.agent.toolbox.tables import shown
from sayso.agent.tools.errors import did_you_mean
from sayso.agent.tools.tool import Tool, tool

if TYPE_CHECKING:
    import pint

#: Characters of the longest unit.
MAX_UNIT_CHARS = 60
#: The largest and, as its inverse, the smallest amount.
MAX_AMOUNT = 1e100
#: Digits that are counted in; fewer are shown.
DIGITS = 60

#: The sizes of data that people name.
_SIZES = {"k": "kilo", "m": "mega", "g": "giga", "t": "tera"}
#: kb is what people write for kB; whoever writes Mb means bits.
_DATA = {
    spelling: unit
    for short, size in _SIZES.items()
    for spelling, unit in (
        (f"{short}b", f"{size}byte"),
        (f"{short.upper()}b", f"{size}bit"),
        (f"{short}bps", f"{size}bit/second"),
        (f"{short.upper()}bps", f"{size}bit/second"),
    )
}
_CAPITALS = (
    "Wh", "kWh", "MWh", "GWh", "TWh", "Hz", "kHz", "MHz", "GHz", "THz", "kW", "kJ", "MJ", "Pa", "hPa", "kPa", "MPa",
    "Ah", "mAh",
)  # fmt: skip
#: Units that people write in small letters where only one size of them can be meant.
_SMALL = {unit.lower(): unit for unit in _CAPITALS}

#: Spellings that pint takes for something else (mb is a millibarn there, mbps a millibaud), or for nothing.
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
    **_SMALL,
    **_DATA,
}
#: Letters that mean a temperature only beside another one: F is a farad too.
_TEMPERATURES = {"c": "degC", "f": "degF", "k": "kelvin"}
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
    given = Decimal(repr(amount))
    with localcontext(Context(prec=DIGITS)):
        value = _converted(given, _spelled(from_unit), _spelled(to_unit))
        return f"{shown(given)} {from_unit.strip()} = {shown(value)} {to_unit.strip()}"


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
    text = _SUFFIXED.sub(r"\1^\2", _renamed(text))
    if not _UNIT.fullmatch(text):
        raise ValueError(
            f"{unit!r} is no unit: write it like 'km', 'km/h', 'm^2' or 'kg*m/s^2', and the number as amount"
        )
    return text


def _renamed(text: str) -> str:
    """With pint's names for the parts: KWH as kwh, but Mb not as mb."""
    parts = re.split(r"([*/])", text)
    return "".join(_ALIASES.get(part) or _ALIASES.get(part.lower() if part.isupper() else part, part) for part in parts)


def _as_temperatures(*units: str) -> list[str]:
    """The units, with single letters as degrees where all of them are temperatures: F and celsius."""
    if not all(unit.lower() in _TEMPERATURES or _is_temperature(unit) for unit in units):
        return list(units)
    return [_TEMPERATURES.get(unit.lower(), unit) for unit in units]


def _is_temperature(unit: str) -> bool:
    return _parsed(unit).dimensionality == {"[temperature]": 1}


def _converted(amount: Decimal, source: str, target: str) -> Decimal:
    import pint

    try:
        source, target = _as_temperatures(source, target)
        units = _parsed(source), _parsed(target)
        if _is_frozen(amount, *units):
            raise ValueError(
                f"{shown(amount)} {source} is below absolute zero: check the amount and the unit; a difference of "
                "temperatures is 'delta_degC' or 'delta_degF'"
            )
        value: Decimal = _registry().Quantity(amount, _turning(*units)).to(_turning(*reversed(units))).magnitude
        return value
    except pint.DimensionalityError as exc:
        raise ValueError(
            f"{source!r} measures {exc.dim1 or 'a number'}, {target!r} {exc.dim2 or 'a number'}: name units of one kind"
        ) from exc
    except (pint.PintError, DecimalException, ArithmeticError, TypeError, AttributeError) as exc:
        raise ValueError(f"cannot convert {source!r} to {target!r}: name plain units such as 'km' and 'mile'") from exc


def _is_frozen(amount: Decimal, source: pint.Unit, target: pint.Unit) -> bool:
    """Whether it is a temperature below absolute zero, and no difference of temperatures."""
    if source.dimensionality != {"[temperature]": 1} or "delta_" in f"{source} {target}":
        return False
    return bool(_registry().Quantity(amount, source).to("kelvin").magnitude < 0)


def _turning(unit: pint.Unit, other: pint.Unit) -> pint.Unit:
    """The unit; hertz beside an angle, as in rpm, as whole turns, where pint takes them for radians."""
    turns = "hertz" in str(unit) and "radian" in str(_registry().get_root_units(other)[1])
    return unit * _registry().turn if turns else unit


def _parsed(unit: str) -> pint.Unit:
    """As written, since case tells mega from milli; in small letters where that is nothing."""
    import pint

    try:
        return _registry().parse_units(unit)
    except pint.UndefinedUnitError as exc:
        try:
            return _registry().parse_units(_renamed(unit.lower()))
        except pint.UndefinedUnitError:
            raise ValueError(_unknown(unit)) from exc
    except (ValueError, AssertionError) as exc:  # pint asserts what its tokenizer does not keep, of "¼" for example
        raise ValueError(f"{unit!r} is no unit: write it like 'km', 'km/h' or 'm^2'") from exc


def _unknown(unit: str) -> str:
    names = [name for name in re.split(r"[*/^]", unit) if name and name not in _registry()]
    hint = did_you_mean(names[0] if names else unit, _registry(), "; {}")
    return f"unknown unit {unit!r}" + (hint or ": write it in full, in English, such as 'kilometer'")


@functools.lru_cache(maxsize=1)
def _registry() -> pint.UnitRegistry[Decimal]:
    """Read once per process, which takes half a second."""
    import pint

    return pint.UnitRegistry(non_int_type=Decimal)
