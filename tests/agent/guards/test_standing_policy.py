"""For which later calls a yes may stand, by tool and policy together."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from sayso.agent import Tool, ToolPolicy, tool
from sayso.agent.guards.policy import effective_standing
from sayso.agent.tools.definition import MCP, ToolMetadata
from sayso.agent.tools.errors import ToolValidationError
from sayso.pending import stash_pending
from sayso.pending.approval_rule import ApprovalRule, Deciders
from sayso.pending.standing_rule import Bound, StandingLimit

RULE = {"for": "1h", "times": 10, "where": {"amount": "<= 50"}, "same": ["customer"]}
WHOLE = StandingLimit(for_seconds=600, times=2, where=(Bound("amount", "<=", 20),))


def refund_tool(**options) -> Tool:
    """Return a tool that asks."""

    @tool(requires_approval=True, **options)
    def refund(amount: float, customer: str, note: str = "") -> str:
        """Refund an amount."""
        return "done"

    return refund


def foreign(**options) -> Tool:
    """Return a tool as an MCP server describes one."""
    schema = {
        "type": "object",
        "properties": {"amount": {"type": "number"}, "customer": {"type": "string"}},
    }
    metadata = ToolMetadata(source=MCP)
    return Tool("refund", "Refund", schema, lambda **_: "", metadata=metadata, **options)


def test_author_alone():
    """Without a policy, and with one that says nothing of it."""
    for policy in (None, ToolPolicy(), ToolPolicy(standing={"pay": None})):
        rule = effective_standing(refund_tool(standing=RULE), policy)
        assert rule is not None
        assert (rule.for_seconds, rule.times) == (3600, 10)


def test_operator_forbids():
    """The first pattern counts, in any case."""
    policy = ToolPolicy(standing={"REFUND*": None, "*": WHOLE})
    assert effective_standing(refund_tool(standing=RULE), policy) is None


def test_operator_narrows():
    """Never more than the author allows."""
    wide = StandingLimit(for_seconds=86_400, times=100, where=(Bound("amount", "<=", 1000),))
    rule = effective_standing(refund_tool(standing=RULE), ToolPolicy(standing={"*": wide}))
    assert rule is not None
    assert (rule.for_seconds, rule.times) == (3600, 10)
    assert not rule.covers({"amount": 51, "customer": "a"}, {"customer": "a"})

    rule = effective_standing(refund_tool(standing=RULE), ToolPolicy(standing={"*": WHOLE}))
    assert rule is not None
    assert (rule.for_seconds, rule.times) == (600, 2)
    assert not rule.covers({"amount": 21, "customer": "a"}, {"customer": "a"})


def test_operator_cannot_allow_what_the_author_did_not():
    """A tool of this bot has an author."""
    assert effective_standing(refund_tool(), ToolPolicy(standing={"*": WHOLE})) is None


def test_operator_is_the_author_of_foreign_tools():
    """With a whole rule; without a time or a count there is none."""
    assert effective_standing(foreign(), None) is None
    rule = effective_standing(foreign(), ToolPolicy(standing={"refund": WHOLE}))
    assert rule is not None
    assert rule.times == 2
    part = replace(WHOLE, times=None)
    assert effective_standing(foreign(), ToolPolicy(standing={"refund": part})) is None


@pytest.mark.parametrize(
    "limit",
    [
        replace(WHOLE, where=(Bound("sum", "<=", 20),)),
        replace(WHOLE, where=(Bound("customer", "<=", 20),)),
        replace(WHOLE, where=()),
    ],
)
def test_limit_that_fits_no_argument_offers_nothing(limit):
    """The call is asked about, which is never wrong."""
    assert effective_standing(foreign(), ToolPolicy(standing={"*": limit})) is None


def test_never_where_others_decide_or_a_code_is_typed():
    """Their yes is about one call."""
    rule = ApprovalRule(Deciders("role", ("manager",)))
    policy = ToolPolicy(approval={"refund": rule}, standing={"*": WHOLE})
    assert effective_standing(refund_tool(standing=RULE), policy) is None
    assert effective_standing(foreign(typed_code=True), ToolPolicy(standing={"*": WHOLE})) is None


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ({**RULE, "where": {"sum": "<= 50"}}, "names \\['sum'\\]"),
        ({**RULE, "same": ["who"]}, "names \\['who'\\]"),
        ({**RULE, "where": {"note": "<= 50"}}, "is no number"),
        ({**RULE, "where": {"amount": "EUR"}}, "is a number"),
        ({"for": "1h", "times": 3}, "bounds no argument"),
        ({"for": "2d", "times": 3}, "at most 1d"),
        ("an hour", "no dict"),
    ],
)
def test_standing_that_cannot_be_defined(rule, problem):
    """The mistake shows when the program starts."""
    with pytest.raises(ToolValidationError, match=problem):
        refund_tool(standing=rule)


def test_tool_without_arguments_needs_no_bounds():
    """Each of its calls is the same."""

    @tool(requires_approval=True, standing={"for": "1h", "times": 3})
    def ring() -> str:
        """Ring the bell."""
        return "ding"

    assert effective_standing(ring, None) is not None


def test_decimal_is_a_number():
    """Its record is a text."""

    @tool(requires_approval=True, standing={"for": "1h", "times": 3, "where": {"sum": "<= 50"}})
    def pay(sum: Decimal) -> str:  # noqa: A002
        """Pay."""
        return "paid"

    rule = effective_standing(pay, None)
    assert rule is not None
    assert rule.covers(pay.validate_record({"sum": "50.00"}), {})
    assert not rule.covers(pay.validate_record({"sum": "50.01"}), {})


def test_tool_that_asks_itself_offers_none():
    """Its arguments are not those of what it asks for."""
    with pytest.raises(ToolValidationError, match="its own code asks"):

        @tool(standing={"for": "1h", "times": 3})
        def sell() -> str:
            """Sell."""
            stash_pending(kind="sell", preview="Sell")
            return ""


def test_policy_of_another_type():
    """A misspelled limit would narrow nothing."""
    with pytest.raises(ValueError, match="standing"):
        ToolPolicy(standing={"refund": {"times": 3}})
