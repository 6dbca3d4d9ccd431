"""The bounds of a standing yes: how they are written, and which values are within them."""

from __future__ import annotations

import math

import pytest

from sayso.pending.standing_rule import (
    Bound,
    StandingLimit,
    StandingRule,
    offered_rule,
    parse_limit,
)

RULE = StandingRule.parse(
    {"for": "1h", "times": 10, "where": {"amount": "<= 50"}, "same": ["customer"]}
)


@pytest.mark.parametrize(
    ("value", "is_within"),
    [
        (50, True),
        (50.0, True),
        (-7, True),
        ("50", True),
        ("50.00", True),
        (50.01, False),
        ("50.000000000000000000001", False),
        (50.00000000000001, False),
        (51, False),
        (True, False),
        (None, False),
        ("NaN", False),
        ("-inf", False),
        ("5e1", False),
        (" 50", False),
        ("\u0665\u0660", False),
        ("", False),
        ([50], False),
        ({}, False),
        (math.nan, False),
        (-math.inf, False),
    ],
)
def test_value_and_upper_bound(value, is_within):
    """Numbers are compared exactly, and nothing else is a number."""
    assert Bound.parse("amount", "<= 50").holds(value) is is_within


@pytest.mark.parametrize(
    ("bound", "inside", "outside"),
    [
        (">= 5", [5, 5.0, 6], [4.99, None]),
        ("< 1", [0, 0.99, -3], [1, 1.0]),
        ("> 0", [0.01], [0, -1]),
        ("== 5", [5, 5.0], [5.1, "five", True]),
        (5, [5, 5.0], [6]),
        ("EUR", ["EUR"], ["eur", "EUR ", None, 1]),
        ("== EUR", ["EUR"], ["USD"]),
        (True, [True], [1, "true", False]),
        ("== true", [True], [1, "true"]),
        ("<=50.5", [50.5], [50.51]),
    ],
)
def test_bounds(bound, inside, outside):
    """Each form that an author may write."""
    parsed = Bound.parse("a", bound)
    assert [value for value in inside if not parsed.holds(value)] == []
    assert [value for value in outside if parsed.holds(value)] == []


@pytest.mark.parametrize("bound", ["<= ", "<= many", "!= 5", "= 5", None, [1], math.nan, "< NaN"])
def test_bound_that_says_nothing(bound):
    """It is refused, and never read as another one."""
    with pytest.raises(ValueError, match=r"bound|comparison|number"):
        Bound.parse("amount", bound)


@pytest.mark.parametrize(
    ("args", "is_covered"),
    [
        ({"amount": 50, "customer": "c1"}, True),
        ({"amount": 50, "customer": "c1", "note": "anything"}, True),
        ({"amount": 51, "customer": "c1"}, False),
        ({"amount": 50, "customer": "c2"}, False),
        ({"amount": 50, "customer": None}, False),
        ({"amount": 50}, False),
        ({"customer": "c1"}, False),
        ({"amount": None, "customer": "c1"}, False),
        ({}, False),
    ],
)
def test_calls_that_a_rule_covers(args, is_covered):
    """All bounds hold, and `same` compares with the confirmed call."""
    assert RULE.covers(args, {"amount": 30, "customer": "c1"}) is is_covered


def test_same_tells_types_apart():
    """1, 1.0, "1" and True are four values."""
    rule = StandingRule(60, 1, same=("id",))
    values = [1, 1.0, "1", True, None]
    for value in values:
        same = [each for each in values if rule.covers({"id": each}, {"id": value})]
        assert [repr(each) for each in same] == [repr(value)]
    assert rule.covers({}, {})
    assert not rule.covers({"id": None}, {})


@pytest.mark.parametrize(
    "rule",
    [
        {"for": "1h"},
        {"times": 3},
        {"for": "25h", "times": 3},
        {"for": 0, "times": 3},
        {"for": "soon", "times": 3},
        {"for": "1h", "times": 0},
        {"for": "1h", "times": 101},
        {"for": "1h", "times": True},
        {"for": "1h", "times": 2.5},
        {"for": "1h", "times": 3, "wher": {}},
        {"for": "1h", "times": 3, "where": {"a": "<= x"}},
    ],
)
def test_rule_out_of_range(rule):
    """It is refused where it is written."""
    with pytest.raises((ValueError, TypeError)):
        StandingRule.parse(rule)


@pytest.mark.parametrize("same", ["customer", 5, [1]])
def test_same_is_a_list_of_names(same):
    """A text would be read as one name a character."""
    with pytest.raises(TypeError, match="same"):
        parse_limit({"same": same})


def test_limit_only_narrows():
    """The stricter of both counts, and all bounds hold."""
    limit = StandingLimit(
        for_seconds=7200, times=3, where=(Bound("amount", "<=", 80), Bound("amount", ">=", 1))
    )
    narrowed = RULE.narrowed(limit)
    assert (narrowed.for_seconds, narrowed.times) == (3600, 3)
    assert narrowed.same == ("customer",)
    confirmed = {"customer": "c1"}
    assert narrowed.covers({"amount": 50, "customer": "c1"}, confirmed)
    assert not narrowed.covers({"amount": 60, "customer": "c1"}, confirmed)
    assert not narrowed.covers({"amount": 0, "customer": "c1"}, confirmed)


def test_rule_survives_its_record():
    """What is signed is what is read."""
    assert StandingRule.from_dict(RULE.to_dict()) == RULE


def test_call_outside_of_its_own_bounds_offers_nothing():
    """Later calls would not be the same."""
    assert offered_rule(RULE.to_dict(), {"amount": 50, "customer": "c1"})
    assert offered_rule(RULE.to_dict(), {"amount": 51, "customer": "c1"}) is None
    assert offered_rule(None, {}) is None
