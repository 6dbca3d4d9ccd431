"""The tool `calculate`: decimal arithmetic with a limited number of digits, and so in limited time.

It also has the functions with which other tools read and write numbers: `parse_amount` for amounts
with a currency, and `format_number`.
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
from typing import Annotated

from pydantic import Field

from sayso.agent.tools.tool import tool

#: Characters of the longest expression.
MAX_EXPRESSION_CHARS = 500
#: Significant digits of the calculation. They bound the cost of powers, whatever the exponent.
DIGITS = 60
#: Largest power of ten that a result may have.
MAX_EXPONENT = 9999
#: Largest n of factorial, comb and perm.
MAX_COUNTED = 1000
#: Significant digits of the longest number that is written as it is, if it is not whole.
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
#: `% of` is replaced by `**percent_of**`, since powers bind tightest: 200 / 10% of 50 is 200 / 5.
_PERCENT_OF = re.compile(r"%\s{0,9}of\b", re.IGNORECASE)
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
    exact = Decimal(result) == value and not context.flags[Inexact]
    return f"{text} {'=' if exact else '≈'} {result}"


@contextmanager
def _limited_context(text: str) -> Iterator[Context]:
    """Limit digits and exponents inside the block, and raise its errors as ValueError with a reason."""
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
    for node in ast.walk(tree):
        # Keep each number as the text has it: a float would keep 17 digits, and nothing above 1E+308.
        if isinstance(node, ast.Constant) and isinstance(node.value, float):
            vars(node)["value"] = Decimal(ast.get_source_segment(source, node) or repr(node.value))
    return tree


def _value(node: ast.expr) -> Decimal:
    match node:
        case ast.Constant(value=bool()):
            raise ValueError("True and False are not numbers")
        case ast.Constant(value=int() | Decimal() as number):
            return +Decimal(number)
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


def _call(name: str, args: list[Decimal]) -> Decimal:
    if name.lower() not in _FUNCTIONS:
        raise ValueError(f"unknown function {name!r}; known: {sorted(_FUNCTIONS)!r}")
    function, fewest, most = _FUNCTIONS[name.lower()]
    if not fewest <= len(args) <= most:
        raise ValueError(
            f"{name}() takes {fewest if fewest == most else f'{fewest} to {most}'} arguments, not {len(args)}"
        )
    return function(*args)


def _divide(left: Decimal, right: Decimal) -> tuple[Decimal, Decimal]:
    """Return the whole quotient and the remainder.

    The remainder has the sign of the divisor: -7 % 3 is 2. Raises InvalidOperation if the quotient
    has more than DIGITS digits, since the remainder would then be wrong.
    """
    if not right:
        raise DivisionByZero
    quotient, remainder = divmod(left, right)
    if remainder and remainder.is_signed() != right.is_signed():
        return quotient - 1, remainder + right
    return quotient, remainder


def _round_half_up(value: Decimal, places: Decimal = Decimal(0)) -> Decimal:
    """Round half away from zero, as on an invoice."""
    digits = _whole(places, MAX_COUNTED)
    if value.adjusted() + digits >= DIGITS:
        return value
    separate = getcontext().copy()  # rounding on request does not make the result inexact
    return value.quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP, separate)


def _of_floats(function: Callable[[float], float]) -> Callable[[Decimal], Decimal]:
    """Return a function of decimals for a function of floats.

    The result is rounded to 15 places, so that sin(pi) is 0, and inexact unless it is whole.
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
    function: Callable[..., int], most: int = MAX_COUNTED
) -> Callable[..., Decimal]:
    """Wrap a function of whole numbers up to `most`."""

    @functools.wraps(function)
    def wrapped(*values: Decimal) -> Decimal:
        return +Decimal(function(*(_whole(value, most) for value in values)))

    return wrapped


def _whole(value: Decimal, most: int) -> int:
    if value != value.to_integral_value() or abs(value) > most:
        raise ValueError(f"{format_number(value)} must be a whole number of at most {most}")
    if value < 0 and most == MAX_COUNTED:
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

#: The most arguments of functions like max and sum.
_MANY = 200

#: Each function with the fewest and the most arguments it takes.
_FUNCTIONS: Mapping[str, tuple[Callable[..., Decimal], int, int]] = {
    **{
        name: (_of_floats(getattr(math, name)), 1, 1)
        for name in ("sin", "cos", "tan", "asin", "acos", "atan")
    },
    "abs": (abs, 1, 1),
    "ceil": (lambda value: value.to_integral_value(ROUND_CEILING), 1, 1),
    "comb": (_of_whole_numbers(math.comb), 2, 2),
    "degrees": (lambda value: value * 180 / _NAMES["pi"], 1, 1),
    "exp": (Decimal.exp, 1, 1),
    "factorial": (_of_whole_numbers(math.factorial), 1, 1),
    "floor": (lambda value: value.to_integral_value(ROUND_FLOOR), 1, 1),
    "gcd": (_of_whole_numbers(math.gcd, 10**DIGITS), 1, _MANY),
    "lcm": (_of_whole_numbers(math.lcm, 10**DIGITS), 1, _MANY),
    "ln": (Decimal.ln, 1, 1),
    "log": (lambda value, base: value.ln() / base.ln(), 2, 2),
    "log10": (Decimal.log10, 1, 1),
    "log2": (lambda value: value.ln() / Decimal(2).ln(), 1, 1),
    "max": (max, 1, _MANY),
    "mean": (lambda *values: sum(values, Decimal(0)) / len(values), 1, _MANY),
    "median": (lambda *values: statistics.median(values), 1, _MANY),
    "min": (min, 1, _MANY),
    "perm": (_of_whole_numbers(math.perm), 2, 2),
    "radians": (lambda value: value * _NAMES["pi"] / 180, 1, 1),
    "round": (_round_half_up, 1, 2),
    "sqrt": (Decimal.sqrt, 1, 1),
    "sum": (lambda *values: sum(values, Decimal(0)), 1, _MANY),
}

#: Not all of them: INV100 is an invoice, and codes that are words, such as ALL and TOP, are left out.
_CURRENCIES = (
    "AED|AUD|BGN|BRL|CAD|CHF|CLP|CNY|COP|CZK|DKK|EGP|EUR|GBP|HKD|HUF|IDR|ILS|INR|ISK|JPY|KES|KRW|MAD|MXN|MYR|NGN|NOK|"
    "NZD|PEN|PHP|PKR|PLN|QAR|RON|RSD|RUB|SAR|SEK|SGD|THB|TRY|TWD|UAH|USD|VND|ZAR"
)
_CURRENCY_SIGNS = {"€": "EUR", "£": "GBP", "₹": "INR"}
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
    """Return the number in a cell with its unit: `12.50`, `1,234.50`, `1.234,50`, `12,5`, `$5`, `8 EUR`, `7%`.

    `1,234` is a thousand and `1.234` is not: one comma before three digits groups, one point never does. A number
    that begins with zero is never grouped: `0,125` is an eighth.
    """
    if len(text) <= MAX_NUMBER_CHARS:
        match = _AMOUNT.fullmatch(text.strip())
    else:
        match = None
    if not match or (match[1] and match[3]):
        return None
    bare = match[2]
    unit = match[1] or match[3] or ""
    if _GROUPED_BY_COMMAS.fullmatch(bare):
        bare = bare.replace(",", "")
    elif _GROUPED_BY_POINTS.fullmatch(bare) or _DECIMAL_COMMA.fullmatch(bare):
        bare = bare.replace(".", "").replace(",", ".")
    if _PLAIN_NUMBER.fullmatch(bare):
        return Amount(Decimal(bare), _CURRENCY_SIGNS.get(unit, unit))
    return None


def format_number(value: Decimal) -> str:
    """Return the number in full up to EXACT_DIGITS, else rounded.

    A rounded number keeps at least ROUNDED_DIGITS, and two places after the point if there is room.
    Very large and very small numbers look like 1.5E+60.
    """
    if value == value.to_integral_value() and value.adjusted() < MAX_WHOLE_DIGITS:
        if value == 0:
            return "0"
        return f"{value:.0f}"
    tidy = Context(prec=EXACT_DIGITS).normalize(value)
    if tidy != value:
        digits = min(
            EXACT_DIGITS,
            max(ROUNDED_DIGITS, value.adjusted() + 3 if value.adjusted() < EXACT_DIGITS else 0),
        )
        tidy = Context(prec=digits).normalize(value)
    if -7 <= tidy.adjusted() < MAX_WHOLE_DIGITS:
        return f"{tidy:f}"
    return f"{tidy:E}"
