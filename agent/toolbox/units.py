"""The tool `convert_units`: converts physical quantities with the library pint.

pint evaluates expressions, so a unit is checked before pint reads it: it may have up to six names
with products, quotients and powers of one digit, and no sums or large powers.

A unit is read in three steps: `_pint_spelling` brings it into pint's form and replaces `_ALIASES`;
`_convert` reads C, F and K as temperatures where both units may be one; `_parse` asks pint, and
asks again in lower case for a spelling that pint does not know.
"""

from __future__ import annotations

import functools
import re
from decimal import Context, Decimal, DecimalException, localcontext
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from sayso.agent.toolbox import need
from sayso.agent.toolbox.calculator import format_number
from sayso.agent.tools.tool import tool
from sayso.infra.spelling import did_you_mean

if TYPE_CHECKING:
    import pint

#: Characters of the longest unit.
MAX_UNIT_CHARS = 60
#: The largest amount, on either side of zero.
MAX_AMOUNT = 1e100
#: Digits of the calculation; the answer shows fewer.
DIGITS = 60
#: Spelling of a unit -> that of pint, which does not know the first one or reads it differently (mb
#: as millibarn). People write kb for kilobytes, Mb for megabits, and kwh for kWh. MBps (bytes) is
#: here because `_parse` would else read it in lower case, as mbps (bits).
_ALIASES = dict(
    pair.split("=")
    for pair in """
    %=percent °=degree fl_oz=fluid_ounce sqft=ft^2 sqm=m^2 sqkm=km^2 sqmi=mile^2 mo=month kmh=km/hour
    kb=kilobyte mb=megabyte gb=gigabyte tb=terabyte Kb=kilobit Mb=megabit Gb=gigabit Tb=terabit
    kbps=kilobit/second mbps=megabit/second gbps=gigabit/second tbps=terabit/second
    Kbps=kilobit/second Mbps=megabit/second Gbps=gigabit/second Tbps=terabit/second
    Bps=byte/second kBps=kilobyte/second KBps=kilobyte/second MBps=megabyte/second
    GBps=gigabyte/second TBps=terabyte/second PBps=petabyte/second
    mbit=megabit mbits=megabit gbit=gigabit gbits=gigabit tbit=terabit tbits=terabit
    mbyte=megabyte mbytes=megabyte gbyte=gigabyte gbytes=gigabyte tbyte=terabyte tbytes=terabyte
    wh=Wh kwh=kWh mwh=MWh gwh=GWh twh=TWh hz=Hz khz=kHz mhz=MHz ghz=GHz thz=THz kw=kW kj=kJ mj=MJ
    pa=Pa hpa=hPa kpa=kPa mpa=MPa ah=Ah mah=mAh
    """.split()
)
#: Letter -> the temperature that it means if the other unit is one too. F is also the farad.
_TEMPERATURES = {"c": "degC", "f": "degF", "k": "kelvin"}
#: Names of money alone. "pound" is a weight.
_CURRENCIES = frozenset("eur usd gbp chf jpy cny inr brl euro euros dollar dollars € $ £".split())
_SIGN_REPLACEMENTS = str.maketrans({"²": "^2", "³": "^3", "·": "*", "µ": "μ"})
#: "square feet", "sq. ft", and "cubic meters", "cu m".
_AREA = re.compile(r"\b(?:sq(?:uare)?\.? )(\w+)")
_VOLUME = re.compile(r"\b(?:cu(?:bic)?\.? )(\w+)")
#: A unit with its power as a digit: "m2".
_SUFFIXED = re.compile(r"\b([^\W\d_]{1,20})([23])\b")
#: The name of one unit, and a unit in pint's spelling: up to six names with their powers.
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

# Without pint the import of this module fails, and the error names the extra `units` to install.
need("units")


@tool(read_only=True)
def convert_units(
    amount: Annotated[
        float, Field(ge=-MAX_AMOUNT, le=MAX_AMOUNT, description="How much, such as 5 or 36.6")
    ],
    from_unit: Unit,
    to_unit: Unit,
) -> str:
    """Convert an amount from one unit to another: length, weight, temperature, speed, volume, data."""
    for unit in (from_unit, to_unit):
        if unit.strip().lower() in _CURRENCIES:
            raise ValueError(f"{unit!r} is money: exchange rates change, and this tool has none")
    exact_amount = Decimal(repr(amount))
    with localcontext(Context(prec=DIGITS)):
        value = _convert(exact_amount, _pint_spelling(from_unit), _pint_spelling(to_unit))
        return f"{format_number(exact_amount)} {from_unit.strip()} = {format_number(value)} {to_unit.strip()}"


def _pint_spelling(unit: str) -> str:
    """Return the unit in pint's spelling.

    Raise ValueError for anything but names, *, / and powers of one digit.
    """
    text = " ".join(unit.split())
    text = text.translate(_SIGN_REPLACEMENTS).replace("**", "^")

    # These have spaces in them, so they come before a space becomes "_".
    text = _AREA.sub(r"\1^2", text)
    text = _VOLUME.sub(r"\1^3", text)
    text = text.replace(" per ", "/")
    text = re.sub(r" ?([*/^]) ?", r"\1", text)
    text = text.replace(" ", "_")

    text = _replace_aliases(text)
    text = _SUFFIXED.sub(r"\1^\2", text)
    if not _UNIT.fullmatch(text):
        raise ValueError(
            f"{unit!r} is not a unit: write it like 'km', 'km/h', 'm^2' or 'kg*m/s^2', and the number as amount"
        )
    return text


def _replace_aliases(text: str) -> str:
    """Return the unit with pint's names for those of its parts that are aliases.

    A part in capitals only, such as KWH, is also looked for in lower case. Mixed case is not, since
    Mb and mb differ. A part with a power is no alias.
    """
    parts = []
    operator = ""
    for part in re.split(r"([*/])", text):
        spelling = _ALIASES.get(part)
        if not spelling and part.isupper():
            spelling = _ALIASES.get(part.lower())
        spelling = spelling or part
        if operator == "/" and spelling != "/":
            # To divide by km/hour is to divide by km and multiply by hour.
            spelling = spelling.replace("/", "*")
        parts.append(spelling)
        operator = part
    return "".join(parts)


def _convert(amount: Decimal, source: str, target: str) -> Decimal:
    """Return the amount of `source` in `target`. Both are units in pint's spelling.

    Raise ValueError for units of different kinds, unknown ones, and less than zero kelvin.
    """
    import pint

    try:
        # pint would read a single C as coulomb and F as farad.
        if _may_be_temperature(source) and _may_be_temperature(target):
            source = _TEMPERATURES.get(source.lower(), source)
            target = _TEMPERATURES.get(target.lower(), target)
        source_unit = _parse(source)
        target_unit = _parse(target)

        # A difference of temperatures may be negative. One unit named as such is enough: "kelvin"
        # to "delta_degC" is a difference too.
        is_difference = "delta_" in f"{source_unit} {target_unit}"
        if _is_temperature(source_unit) and not is_difference:
            kelvin = _registry().Quantity(amount, source_unit).to("kelvin").magnitude
            if kelvin < 0:
                raise ValueError(
                    f"{format_number(amount)} {source} is below absolute zero: check the amount "
                    "and the unit; a difference of temperatures is 'delta_degC' or 'delta_degF'"
                )

        quantity = _registry().Quantity(amount, _hertz_as_turns(source_unit, target_unit))
        value: Decimal = quantity.to(_hertz_as_turns(target_unit, source_unit)).magnitude
        return value
    except pint.DimensionalityError as exc:
        raise ValueError(
            f"{source!r} measures {exc.dim1 or 'a number'}, {target!r} {exc.dim2 or 'a number'}: name units of one kind"
        ) from exc
    except (pint.PintError, DecimalException, ArithmeticError, TypeError, AttributeError) as exc:
        raise ValueError(
            f"cannot convert {source!r} to {target!r}: name plain units such as 'km' and 'mile'"
        ) from exc


def _may_be_temperature(unit: str) -> bool:
    """Return whether a unit in pint's spelling measures temperature, or is a letter for one."""
    return unit.lower() in _TEMPERATURES or _is_temperature(_parse(unit))


def _is_temperature(unit: pint.Unit) -> bool:
    """Return whether a unit measures temperature."""
    return bool(unit.dimensionality == {"[temperature]": 1})


def _hertz_as_turns(unit: pint.Unit, other: pint.Unit) -> pint.Unit:
    """Return `unit` with turns a second for each hertz in it, if `other` measures rotation.

    `other` is the unit on the other side of the conversion. It measures rotation if it has an angle
    in it, such as rpm. pint would take hertz for radians a second.
    """
    _, root_units_of_other = _registry().get_root_units(other)
    if "radian" not in str(root_units_of_other):
        return unit
    for name, power in _registry().Quantity(1, unit).unit_items():
        # With its prefix the name may be "kilohertz".
        if name.endswith("hertz"):
            unit = unit * _registry().turn ** power
    return unit


def _parse(unit: str) -> pint.Unit:
    """Return pint's unit for a spelling. Raise ValueError for an unknown one.

    The case of letters matters, since it tells mega from milli. A spelling that pint does not know
    is read in lower case: "Meter", "KM".
    """
    import pint

    try:
        return _registry().parse_units(unit)
    except pint.UndefinedUnitError as exc:
        try:
            return _registry().parse_units(_replace_aliases(unit.lower()))
        except pint.UndefinedUnitError:
            raise ValueError(f"unknown unit {unit!r}{_cure_of(unit)}") from exc
    except (ValueError, AssertionError) as exc:  # pint fails an assertion for characters such as ¼
        raise ValueError(f"{unit!r} is not a unit: write it like 'km', 'km/h' or 'm^2'") from exc


def _cure_of(unit: str) -> str:
    """Return what to write for a unit with an unknown name: a similar name, or else advice."""
    # Without its power, which pint's registry would refuse as a name.
    names = re.findall(_NAME, unit)
    unknown_names = [name for name in names if name not in _registry()]
    unknown = unknown_names[0] if unknown_names else unit
    hint = did_you_mean(unknown, _registry(), "; {}")
    return hint or ": write it in full, in English, such as 'kilometer'"


@functools.lru_cache(maxsize=1)
def _registry() -> pint.UnitRegistry[Decimal]:
    """Return pint's list of units. It is loaded once per process, which takes half a second."""
    import pint

    return pint.UnitRegistry(non_int_type=Decimal)
