"""The calculator: exact, and bounded for every input."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sayso.agent import ToolParameterError
from sayso.agent.toolbox.calculator import MAX_EXPRESSION_CHARS, calculate
from tests.agent.toolbox.words import said

BOMBS = [
    "9**9**9", "9**9**9**9", "10**10**10", "factorial(10**9)", "factorial(factorial(999))", "(9**999)**(9**999)",
    "exp(exp(exp(9)))", "comb(10**9, 5*10**8)", "1e9999*10", "1e10000", "lcm(" + ",".join(["9"] * 210) + ")",
    "round(2, 10**9)",
    "2**" * 200 + "2",
]  # fmt: skip


@pytest.mark.parametrize("expression", BOMBS)
def test_a_bomb_is_refused_at_once(expression: str):
    """Digits and exponents are bounded, so that no power costs more than another."""
    with pytest.raises(ValueError, match=r"too large|whole number|arguments|beyond"):
        calculate(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "__import__('os').system('x')", "(1).__class__", "().__class__.__bases__", "open('/etc/passwd')",
        "'a' * 10**9", "[0] * 10**9",
        "lambda: 1", "[x for x in (1, 2)]", "1 if 1 else 2", "x := 5", "abs.__self__", "f'{1}'", "eval('1')",
        "{1: 2}", "1 < 2", "1 and 2",
        "max(*[1, 2])", "round(2.5, ndigits=1)", "True + 1", "2j", "...", "None", "1 << 9999999999", "~5", "x",
        "\ud800", "a\0b", "1;2",
        "#", "\\", "(", "2(3 + 4)", "1,234 * 2", "log(5)", "sqrt()", "''", "yield 1", "await 1",
    ],
)  # fmt: skip
def test_what_is_no_arithmetic_is_refused(expression: str):
    """Only numbers, operators and named functions are ever evaluated."""
    with pytest.raises(ValueError, match=r".{10,}"):
        calculate(expression)


@given(st.text(max_size=MAX_EXPRESSION_CHARS))
def test_any_text_is_calculated_or_refused_in_words(text: str):
    """Nothing but ValueError leaves it."""
    assert said(lambda: calculate(text))


@given(st.text(alphabet="0123456789.+-*/%()eE, sqrtlnfaco", max_size=60))
def test_anything_like_an_expression_is_calculated_or_refused(text: str):
    """The same, where most of it can be parsed."""
    assert said(lambda: calculate(text))


def test_a_long_expression_is_refused_by_its_schema():
    """Before anything looks at it."""
    with pytest.raises(ToolParameterError, match="at most 500 characters"):
        calculate.execute({"expression": "1+" * 300 + "1"})


def test_deep_nesting_is_calculated_or_refused_in_words():
    """Neither Python's parser nor the walk through it may break."""
    assert calculate("(" * 150 + "7" + ")" * 150).endswith("= 7")
    assert calculate("-" * 300 + "7").endswith("= 7")


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("0.1 + 0.2", "0.3"), ("1299.90 * 0.19", "246.981"), ("15% of 80", "12"), ("(3 + 4)^2", "49"),
        ("7 // -2", "-4"), ("-7 % 3", "2"),
        ("2**100", "1267650600228229401496703205376"),
        ("0**0", "1"), ("sqrt(2.25)", "1.5"),
        ("round(2.675, 2)", "2.68"), ("round(-2.5)", "-3"), ("sin(pi)", "0"),
        ("comb(49, 6)", "13983816"), ("median(1, 2, 3, 4)", "2.5"), ("gcd(12, 18)", "6"),
        ("2 \u00d7 3 ÷ 4 \u2212 1", "0.5"),
        ("12 =", "12"), ("factorial(20)", "2432902008176640000"), ("1e-30", "1E-30"),
        ("SQRT(16)", "4"), ("1_000.5 + 0x10", "1016.5"),
        ("12345678901234567.89 - 12345678901234567", "0.89"),
        ("0.12345678901234567890123 * 10**23", "12345678901234567890123"),
        ("123456789012345.67 * 1", "123456789012345.67"), ("1e400", "1E+400"), ("1e-400 * 1e300 * 1e300", "1E+200"),
    ],
)  # fmt: skip
def test_results_are_those_on_paper(expression: str, value: str):
    """Decimal: what people write down is what is counted in."""
    assert calculate(expression).endswith(f" = {value}")


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1/3", "0.333333333333333"), ("1/3 * 3", "1"), ("sqrt(2)", "1.4142135623731"), ("sin(1)", "0.841470984807897"),
        ("2**200", "1.60693804425899E+60"), ("2 * π", "6.28318530717959"),
        ("1e100 + 1", "1E+100"), ("1e-9999/1e99", "0"),
        ("round(100/3, 2)", "33.33"), ("200000000000000000.1 / 7", "28571428571428571.44"),
    ],
)  # fmt: skip
def test_what_is_rounded_says_so(expression: str, value: str):
    """A sign of its own, for it is not the result on paper."""
    assert calculate(expression) == f"{expression} ≈ {value}"


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("200 / 10% of 50", "40"), ("100 / 50% of 10", "20"), ("10% of 50 * 2", "10"), ("15% of 20% of 300", "9"),
        ("-10% of 50", "-5"), ("(2 + 3)% of 40", "2"), ("10% of 2^3", "0.8"), ("sqrt(4)% of 50", "1"),
    ],
)  # fmt: skip
def test_a_percentage_of_something_is_one_value(expression: str, value: str):
    """Also where it is divided or multiplied."""
    assert calculate(expression) == f"{expression} = {value}"


@pytest.mark.parametrize("expression", ["10**61 % 7", "10**70 % 7", "10**70 // 7"])
def test_a_remainder_that_would_be_noise_is_refused(expression: str):
    """The quotient has more digits than are counted in."""
    with pytest.raises(ValueError, match="beyond 60 digits"):
        calculate(expression)


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("1/0", "divides by zero"), ("sqrt(-1)", "no real value"), ("ln(0)", "infinite"),
        ("200 + 10%", "percentage of what"),
        ("1,234 * 2", "without thousands separators"), ("2(3 + 4)", r"write \* for every multiplication"),
        ("foo(1)", "unknown function 'foo'"),
        ("log(5)", "takes 2 arguments, not 1"), ("factorial(2.5)", "must be a whole number"),
        ("factorial(-1)", "must not be negative"),
        ("asin(2)", "no real value"), ("5 % 0", "divides by zero"), ("0 // 0", "divides by zero"),
        ("2**10% of 50", "may mean two things"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_cure(expression: str, words: str):
    """The model corrects itself from it."""
    with pytest.raises(ValueError, match=words):
        calculate(expression)


@given(st.integers(-(10**12), 10**12), st.integers(-(10**12), 10**12))
def test_whole_numbers_are_exact(left: int, right: int):
    """Sums, differences and products of any two."""
    assert calculate(f"{left} + {right}").endswith(f" = {left + right}")
    assert calculate(f"({left}) * ({right})").endswith(f" = {left * right}")


@given(st.integers(-(10**6), 10**6), st.integers(1, 10**6), st.integers(0, 4))
def test_remainders_and_floors_agree_with_python(value: int, divisor: int, places: int):
    """Also for numbers below zero."""
    number = Fraction(value, 10**places)
    shown = f"({value} / {10**places})"
    assert calculate(f"{shown} // {divisor}").endswith(f" = {number // divisor}")
