"""The tool `calculate`: decimal arithmetic with a limited number of digits, and so in limited time.

An expression is parsed by Python's own parser. Only the parts of the tree that are listed here are
calculated; nothing is run as Python.

Other tools use two functions of this module to read and write numbers: `parse_amount`, also for
amounts with a currency, and `format_number`.
"""

from __future__ import annotations

import ast
import functools
import math
import re
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import (
    ROUND_CEILING,
    ROUND_FLOOR,
    ROUND_HALF_UP,
    Context,
    Decimal,
    DecimalException,
    DivisionByZero,
    Inexact,
    InvalidOperation,
    Overflow,
    getcontext,
    localcontext,
)
from typing import Annotated, NamedTuple

from pydantic import Field

from sayso.agent.tools.tool import tool

#: Characters of the longest expression.
MAX_EXPRESSION_CHARS = 500
#: Significant digits of the calculation. They limit the cost of a power, also of a large exponent.
DIGITS = 60
#: Largest power of ten that a result may have.
MAX_EXPONENT = 9999
#: Largest n of factorial, comb and perm.
MAX_COUNTED = 1000
#: Significant digits of the longest number that is written exactly, if it is not whole.
EXACT_DIGITS = 30
#: Significant digits of a number that has more than EXACT_DIGITS.
ROUNDED_DIGITS = 15
#: Digits of the longest whole number that is written in full.
MAX_WHOLE_DIGITS = 50
#: Characters of the longest text that is read as a number.
MAX_NUMBER_CHARS = 60
_NAMES: Mapping[str, Decimal] = {
    "pi": Decimal("3.14159265358979323846264338327950288419716939937510582097494459"),
    "e": Decimal("2.71828182845904523536028747135266249775724709369995957496696763"),
    "tau": Decimal("6.28318530717958647692528676655900576839433879875021164194988918"),
}
#: Signs that people write -> those of Python.
_SIGN_REPLACEMENTS = str.maketrans(
    {
        "\u00d7": "*",
        "·": "*",
        "⋅": "*",
        "÷": "/",
        "\u2212": "-",
        "\u2013": "-",
        "^": "**",
        "π": " pi ",
    }
)
#: `% of` becomes `**percent_of**`, as a power comes before all other operations: 200 / 10% of 50 is
#: 200 / 5.
_PERCENT_OF = re.compile(r"%\s{0,9}of\b", re.IGNORECASE)
#: A % that is followed by no number, so that it cannot be the remainder.
_LONE_PERCENT = re.compile(r"%\s*(?:$|[-+*/)])")


@tool(read_only=True)
def calculate(
    expression: Annotated[str, Field(min_length=1, max_length=MAX_EXPRESSION_CHARS)],
) -> str:
    """Calculate an arithmetic expression exactly; use it for every calculation.

    Args:
        expression: Such as '1299.90 * 0.19', '15% of 80', '(3 + 4) ** 2', 'round(1 / 3, 2)'. Operators: + - * / // %
            **. Functions: sqrt abs round floor ceil min max sum mean median exp ln log10 log2 log(x, base) factorial
            comb perm gcd lcm sin cos tan asin acos atan degrees radians; angles are in radians. Constants: pi e tau.
            Write no thousands separators
    """
    text = expression.strip().rstrip("=? ")
    with _limited_context(text) as context:
        value = _value(_parse(text))
    if not value.is_finite():
        raise ValueError(f"{text!r} is infinite")

    result = format_number(value)
    is_exact = Decimal(result) == value and not context.flags[Inexact]
    sign = "=" if is_exact else "≈"
    return f"{text} {sign} {result}"


@contextmanager
def _limited_context(text: str) -> Iterator[Context]:
    """Limit digits and exponents in the block, and raise its errors as ValueError with a reason.

    Yield the context. Its flag Inexact tells whether a result was rounded.
    """
    context = Context(
        prec=DIGITS,
        Emax=MAX_EXPONENT,
        Emin=-MAX_EXPONENT,
        traps=[InvalidOperation, DivisionByZero, Overflow],
    )
    try:
        with localcontext(context) as active:
            yield active
    except DivisionByZero as exc:
        raise ValueError(f"{text!r} divides by zero") from exc
    except (Overflow, OverflowError) as exc:
        raise ValueError(f"{text!r} is too large: results end at 1E+{MAX_EXPONENT}") from exc
    except (DecimalException, ZeroDivisionError) as exc:
        raise ValueError(
            f"{text!r} has no real value, or is beyond {DIGITS} digits: check roots, logarithms and %"
        ) from exc
    except (RecursionError, MemoryError) as exc:
        raise ValueError(f"{text!r} is nested too deeply: calculate it in steps") from exc


def _parse(text: str) -> ast.expr:
    """Return the tree of an expression. Raise ValueError for a text that is none."""
    if _LONE_PERCENT.search(text):
        raise ValueError(
            f"{text!r}: a percentage of what? Write '15% of 80', or 0.15; a % b is the remainder"
        )
    source = _PERCENT_OF.sub("**percent_of**", text.translate(_SIGN_REPLACEMENTS)).strip()
    try:
        tree = ast.parse(source, mode="eval").body
    except (SyntaxError, ValueError) as exc:
        raise ValueError(
            f"{text!r} is not an expression: write it like '(2 + 3) * 4', with * for every multiplication"
        ) from exc

    # Each number is read again from the text: a float has 17 digits, and ends at 1E+308.
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, float):
            digits = ast.get_source_segment(source, node) or repr(node.value)
            vars(node)["value"] = Decimal(digits)
    return tree


def _value(node: ast.expr) -> Decimal:
    """Return the value of a part of an expression. Raise ValueError for what is not calculated."""
    match node:
        case ast.Constant(value=bool()):
            raise ValueError("True and False are not numbers")
        case ast.Constant(value=int() | Decimal() as number):
            return +Decimal(number)  # the plus rounds to DIGITS
        case ast.BinOp():
            return _binary_value(node)
        case ast.UnaryOp(op=ast.USub()):
            return -_value(node.operand)
        case ast.UnaryOp(op=ast.UAdd()):
            return +_value(node.operand)
        case ast.Name(id=name) if name.lower() in _NAMES:
            return _NAMES[name.lower()]
        case ast.Call(func=ast.Name(id=name), keywords=[]):
            return _call(name, [_value(argument) for argument in node.args])
        case ast.Name(id=name):
            raise ValueError(
                f"unknown name {name!r}; known: {sorted(_NAMES)!r} and the functions {sorted(_FUNCTIONS)!r}"
            )
        case ast.Tuple():
            raise ValueError(
                "a comma separates arguments only: write 1234.5 without thousands separators"
            )
    raise ValueError(
        "only numbers, + - * / // % ** and functions are calculated; write * for every multiplication. "
        f"Functions: {sorted(_FUNCTIONS)!r}"
    )


def _binary_value(node: ast.BinOp) -> Decimal:
    """Return the value of an operation on two values."""
    match node:
        case ast.BinOp(
            op=ast.Pow(), left=share, right=ast.BinOp(left=ast.Name(id="percent_of"), right=whole)
        ):
            return _value(share) / 100 * _value(whole)
        case ast.BinOp(
            op=ast.Pow(), right=ast.BinOp(right=ast.BinOp(left=ast.Name(id="percent_of")))
        ):
            raise ValueError(
                "a power beside '% of' may mean two things: write 10 / 100 * 50 for 10% of 50"
            )
    if type(node.op) not in _OPERATORS:
        raise ValueError("only the operators + - * / // % ** are calculated")
    return _OPERATORS[type(node.op)](_value(node.left), _value(node.right))


def _call(name: str, arguments: list[Decimal]) -> Decimal:
    """Return the value of a function. Raise ValueError for an unknown one, or a wrong count."""
    function = _FUNCTIONS.get(name.lower())
    if function is None:
        raise ValueError(f"unknown function {name!r}; known: {sorted(_FUNCTIONS)!r}")
    if not function.fewest <= len(arguments) <= function.most:
        raise ValueError(f"{name}() takes {function.counts} arguments, not {len(arguments)}")
    return function.calculate(*arguments)


def _divide(left: Decimal, right: Decimal) -> tuple[Decimal, Decimal]:
    """Return the whole quotient and the remainder.

    The remainder has the sign of the divisor: -7 % 3 is 2. Raise InvalidOperation if the quotient
    has more than DIGITS digits, since the remainder would then be wrong.
    """
    if not right:
        raise DivisionByZero
    quotient, remainder = divmod(left, right)
    if remainder and remainder.is_signed() != right.is_signed():
        return quotient - 1, remainder + right
    return quotient, remainder


def _round_half_up(value: Decimal, places: Decimal = Decimal(0)) -> Decimal:
    """Return the value with this number of decimal places.

    A half is rounded away from zero, as on an invoice.
    """
    place_count = _whole(places, MAX_COUNTED)
    if value.adjusted() + place_count >= DIGITS:
        return value
    # In a separate context, because a rounding that was asked for does not make the result inexact.
    separate_context = getcontext().copy()
    return value.quantize(Decimal(1).scaleb(-place_count), ROUND_HALF_UP, separate_context)


def _of_floats(function: Callable[[float], float]) -> Callable[[Decimal], Decimal]:
    """Return a function of decimals for a function of floats.

    Its result is rounded to 15 places, so that sin(pi) is 0. Unless it is whole, it is inexact.
    """

    def wrapped(value: Decimal) -> Decimal:
        try:
            result = round(function(float(value)), 15)
        except ValueError as exc:
            raise InvalidOperation from exc
        getcontext().flags[Inexact] |= not result.is_integer()
        return Decimal(repr(result))

    return wrapped


def _of_whole_numbers(
    function: Callable[..., int], most: int = MAX_COUNTED, *, may_be_negative: bool = False
) -> Callable[..., Decimal]:
    """Return a function of decimals for a function of whole numbers up to `most`."""

    @functools.wraps(function)
    def wrapped(*values: Decimal) -> Decimal:
        numbers = [_whole(value, most, may_be_negative=may_be_negative) for value in values]
        return +Decimal(function(*numbers))

    return wrapped


def _whole(value: Decimal, most: int, *, may_be_negative: bool = False) -> int:
    """Return a whole number of at most `most`. Raise ValueError for any other value."""
    if value != value.to_integral_value() or abs(value) > most:
        raise ValueError(f"{format_number(value)} must be a whole number of at most {most}")
    if value < 0 and not may_be_negative:
        raise ValueError(f"{format_number(value)} must not be negative")
    return int(value)


_OPERATORS: Mapping[type[ast.operator], Callable[[Decimal, Decimal], Decimal]] = {
    ast.Add: lambda left, right: left + right,
    ast.Sub: lambda left, right: left - right,
    ast.Mult: lambda left, right: left * right,
    ast.Div: lambda left, right: left / right,
    ast.FloorDiv: lambda left, right: _divide(left, right)[0],
    ast.Mod: lambda left, right: _divide(left, right)[1],
    ast.Pow: lambda base, exponent: Decimal(1) if exponent == 0 else base**exponent,
}


class _Function(NamedTuple):
    """A function of an expression."""

    calculate: Callable[..., Decimal]
    #: The smallest and the largest number of arguments that it takes.
    fewest: int = 1
    most: int = 1

    @property
    def counts(self) -> str:
        """How many arguments the function takes, for a message."""
        if self.fewest == self.most:
            return str(self.fewest)
        return f"{self.fewest} to {self.most}"


#: The most arguments of functions like max and sum.
_MANY = 200
_FUNCTIONS: Mapping[str, _Function] = {
    "sin": _Function(_of_floats(math.sin)),
    "cos": _Function(_of_floats(math.cos)),
    "tan": _Function(_of_floats(math.tan)),
    "asin": _Function(_of_floats(math.asin)),
    "acos": _Function(_of_floats(math.acos)),
    "atan": _Function(_of_floats(math.atan)),
    "abs": _Function(abs),
    "ceil": _Function(lambda value: value.to_integral_value(ROUND_CEILING)),
    "comb": _Function(_of_whole_numbers(math.comb), 2, 2),
    "degrees": _Function(lambda value: value * 180 / _NAMES["pi"]),
    "exp": _Function(Decimal.exp),
    "factorial": _Function(_of_whole_numbers(math.factorial)),
    "floor": _Function(lambda value: value.to_integral_value(ROUND_FLOOR)),
    "gcd": _Function(_of_whole_numbers(math.gcd, 10**DIGITS, may_be_negative=True), 1, _MANY),
    "lcm": _Function(_of_whole_numbers(math.lcm, 10**DIGITS, may_be_negative=True), 1, _MANY),
    "ln": _Function(Decimal.ln),
    "log": _Function(lambda value, base: value.ln() / base.ln(), 2, 2),
    "log10": _Function(Decimal.log10),
    "log2": _Function(lambda value: value.ln() / Decimal(2).ln()),
    "max": _Function(max, 1, _MANY),
    "mean": _Function(lambda *values: sum(values, Decimal(0)) / len(values), 1, _MANY),
    "median": _Function(lambda *values: statistics.median(values), 1, _MANY),
    "min": _Function(min, 1, _MANY),
    "perm": _Function(_of_whole_numbers(math.perm), 2, 2),
    "radians": _Function(lambda value: value * _NAMES["pi"] / 180),
    "round": _Function(_round_half_up, 1, 2),
    "sqrt": _Function(Decimal.sqrt),
    "sum": _Function(lambda *values: sum(values, Decimal(0)), 1, _MANY),
}

#: The codes of currencies that an amount may have. Only these, because INV100 is an invoice. Codes
#: that are words, such as ALL and TOP, are left out.
_CURRENCIES = (
    "AED|AUD|BGN|BRL|CAD|CHF|CLP|CNY|COP|CZK|DKK|EGP|EUR|GBP|HKD|HUF|IDR|ILS|INR|ISK|JPY|KES|KRW|MAD|MXN|MYR|NGN|NOK|"
    "NZD|PEN|PHP|PKR|PLN|QAR|RON|RSD|RUB|SAR|SEK|SGD|THB|TRY|TWD|UAH|USD|VND|ZAR"
)
_CURRENCY_SIGNS = {"€": "EUR", "£": "GBP", "₹": "INR"}
#: What may stand before or after the number of an amount.
_UNIT = rf"(?:{_CURRENCIES}|[$€£¥₹%])"
_AMOUNT = re.compile(rf"({_UNIT})?\s*(.*?)\s*({_UNIT})?", re.DOTALL)
_PLAIN_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?", re.ASCII)
_GROUPED_BY_COMMAS = re.compile(r"[+-]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?", re.ASCII)
_GROUPED_BY_POINTS = re.compile(r"[+-]?[1-9]\d{0,2}(?:\.\d{3})+,\d+", re.ASCII)
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Amount:
    """A number with its unit: a currency, `%` or ""."""

    number: Decimal
    unit: str


def parse_amount(text: str) -> Amount | None:
    """Return the number that a text is, with its unit; None for any other text.

    Numbers are written `12.50`, `1,234.50`, `1.234,50` or `12,5`, amounts `$5`, `8 EUR` or `7%`.
    `1,234` is a thousand and `1.234` is not: one comma before three digits separates thousands, one
    point never does. In a number that begins with zero nothing does: `0,125` is an eighth.
    """
    if len(text) > MAX_NUMBER_CHARS:
        return None
    match = _AMOUNT.fullmatch(text.strip())
    if match is None:
        return None
    unit_before, number, unit_after = match.groups()
    if unit_before and unit_after:
        return None

    unit = unit_before or unit_after or ""
    if _GROUPED_BY_COMMAS.fullmatch(number):
        number = number.replace(",", "")
    elif _GROUPED_BY_POINTS.fullmatch(number) or _DECIMAL_COMMA.fullmatch(number):
        number = number.replace(".", "").replace(",", ".")
    if not _PLAIN_NUMBER.fullmatch(number):
        return None
    return Amount(Decimal(number), _CURRENCY_SIGNS.get(unit, unit))


def format_number(value: Decimal) -> str:
    """Return the text of a number: exact if it has at most EXACT_DIGITS, else rounded.

    Whole numbers are exact up to MAX_WHOLE_DIGITS. A rounded number has at least ROUNDED_DIGITS,
    and two places after the point where EXACT_DIGITS leave room for them. Very large and very small
    numbers look like 1.5E+60.
    """
    if value == value.to_integral_value() and value.adjusted() < MAX_WHOLE_DIGITS:
        if value == 0:
            return "0"
        return f"{value:.0f}"

    shown = Context(prec=EXACT_DIGITS).normalize(value)
    if shown != value:
        digits = ROUNDED_DIGITS
        if value.adjusted() < EXACT_DIGITS:
            digits_to_second_place = value.adjusted() + 3
            digits = min(EXACT_DIGITS, max(ROUNDED_DIGITS, digits_to_second_place))
        shown = Context(prec=digits).normalize(value)
    if -7 <= shown.adjusted() < MAX_WHOLE_DIGITS:
        return f"{shown:f}"
    return f"{shown:E}"
