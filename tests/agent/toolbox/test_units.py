"""Units: converted correctly in all common spellings, and nothing but units."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sayso.agent import ToolParameterError
from sayso.agent.toolbox.units import MAX_UNIT_CHARS, convert_units
from tests.agent.toolbox.words import said


@pytest.mark.parametrize(
    "unit",
    [
        "m**9**9**9", "9**9**9", "m^99", "m^-10", "1e999*m", "m*(m", "m+m", "__class__.__init__", "m.__class__",
        "m;m", "m\nm*9", "km*" * 15 + "km", "5 km",
        "lambda:m", "m[0]", "m'", "\0", "m/0", "2m",
    ],
)  # fmt: skip
def test_what_is_no_unit_is_refused(unit: str):
    """Units are names, * and /, and powers of one digit: pint's own reader would calculate the rest."""
    with pytest.raises(ValueError, match=r"is not a unit|unknown unit|cannot convert|measures"):
        convert_units(1, unit, "m")


@given(st.text(min_size=1, max_size=MAX_UNIT_CHARS))
def test_any_text_is_a_unit_or_refused_in_words(unit: str):
    """Nothing but ValueError leaves it."""
    assert said(lambda: convert_units(1, unit, "m"))


@given(
    st.lists(
        st.sampled_from(
            [
                "m",
                "km",
                "s",
                "°C",
                "K",
                "dB",
                "degF",
                "/",
                "*",
                "^",
                "2",
                "per",
                " ",
                "%",
                "kilo",
                "-1",
            ]
        ),
        max_size=8,
    )
)
def test_anything_like_a_unit_is_converted_or_refused(parts: list[str]):
    """The same, where most of it can be read."""
    assert said(lambda: convert_units(1, "".join(parts), "".join(reversed(parts))))


@pytest.mark.parametrize("amount", [1e101, float("inf"), float("nan")])
def test_amounts_have_an_end(amount: float):
    """The largest amount is 1e100."""
    with pytest.raises(ToolParameterError):
        convert_units.execute({"amount": amount, "from_unit": "m", "to_unit": "km"})


@pytest.mark.parametrize(
    ("amount", "from_unit", "to_unit", "value"),
    [
        (20, "celsius", "fahrenheit", "68"), (98.6, "F", "C", "37"), (20, "°C", "K", "293.15"),
        (5, "miles", "km", "8.04672"), (100, "km/h", "mph", "62.1371192237334"),
        (1, "GB", "MiB", "953.67431640625"), (1, "fl oz", "ml", "29.5735295625"), (3, "m2", "cm2", "30000"),
        (9, "square meters", "sqft", "96.8751937503875"),
        (2, "cubic feet", "l", "56.633693184"), (1, "kWh", "kJ", "3600"), (100, "KM", "m", "100000"),
        (1, "km per hour", "m/s", "0.277777777777778"), (1, "µm", "nm", "1000"),
        (1, "kg*m/s^2", "N", "1"), (72, "kg", "lbs", "158.732828773112"), (1, "nautical mile", "km", "1.852"),
        (90, "mins", "hours", "1.5"), (-40, "C", "F", "-40"),
        (72, "F", "celsius", "22.2222222222222"), (20, "C", "fahrenheit", "68"), (5, "F", "mF", "5000"),
        (1, "C", "A*s", "1"), (5, "KB", "MB", "0.005"), (5, "kb", "MB", "0.005"), (1, "gb", "mb", "1000"),
        (1, "Mb", "kB", "125"), (100, "mbps", "MB/s", "12.5"), (1, "kwh", "J", "3600000"), (1, "KWH", "kJ", "3600"),
        (1, "Mhz", "hz", "1000000"), (1, "mHz", "Hz", "0.001"), (1, "mPa", "Pa", "0.001"),
        (3000, "rpm", "Hz", "50"), (50, "Hz", "rpm", "3000"), (360, "degree/s", "Hz", "1"), (50, "Hz", "s^-1", "50"),
        (3000, "rpm", "rad/s", "314.159265358979"), (1, "Hz^2", "rpm^2", "3600"), (3600, "rpm^2", "Hz^2", "1"),
        (1, "GBps", "MB/s", "1000"), (100, "MBps", "Mbps", "800"), (1, "kBps", "Bps", "1000"),
        (100, "MBit/s", "MB/s", "12.5"), (1, "MByte", "kB", "1000"), (1, "MBIT", "kBit", "1000"), (1, "GBits", "Mbit", "1000"),
        (1, "GB/Mbps", "s", "8000"), (36, "l/kmh", "l*s/m", "129.6"),
    ],
)  # fmt: skip
def test_conversions_are_those_of_the_tables(
    amount: float, from_unit: str, to_unit: str, value: str
):
    """In Decimal, to fifteen digits."""
    assert convert_units(amount, from_unit, to_unit).endswith(f" = {value} {to_unit}")


@pytest.mark.parametrize(
    ("from_unit", "to_unit", "words"),
    [
        ("kilometrs", "m", "did you mean 'kilometer'"),
        ("kilometrs^2", "m^2", "unknown unit 'kilometrs\\^2'; did you mean 'kilometer'"),
        ("yard^2/zecond", "m^2/s", "unknown unit .*did you mean 'second'"),
        ("EUR", "USD", "exchange rates"),
        ("m", "s", r"measures \[length\], 's' \[time\]"),
    ],
)
def test_a_mistake_is_told_with_its_cure(from_unit: str, to_unit: str, words: str):
    """A misspelt unit, money, and two things that are not alike."""
    with pytest.raises(ValueError, match=words):
        convert_units(1, from_unit, to_unit)


@given(st.floats(-1e12, 1e12, allow_nan=False))
def test_there_and_back_is_the_same(amount: float):
    """To the digits that are shown."""
    there = float(convert_units(amount, "mile", "km").split(" = ")[1].split()[0])
    assert float(convert_units(there, "km", "mile").split(" = ")[1].split()[0]) == pytest.approx(
        amount, rel=1e-12, abs=1e-12
    )


@pytest.mark.parametrize(
    ("amount", "unit"), [(-300, "C"), (-500, "fahrenheit"), (-500, "kelvin"), (-1, "K")]
)
def test_what_is_colder_than_absolute_zero_is_refused(amount: float, unit: str):
    """There is no such temperature; a difference of temperatures may be."""
    with pytest.raises(ValueError, match="below absolute zero"):
        convert_units(amount, unit, "celsius")
    assert convert_units(-300, "delta_degC", "delta_degF") == "-300 delta_degC = -540 delta_degF"
