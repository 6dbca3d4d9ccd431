"""ToolPolicy: deny, deny_when, approval, review, allow, else review; nothing slips through by its shape."""

from __future__ import annotations

import re
from dataclasses import replace
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sayso.agent import KnowledgeMemory, Tool, ToolPolicy, tool
from sayso.agent.guards.policy import (
    Rule,
    editable_names,
    effective_after,
    effective_decision,
)
from sayso.agent.tools.definition import ToolMetadata, ToolTag
from sayso.channels.i18n.invisible import INVISIBLE
from sayso.pending.approval_rule import ApprovalRule, Deciders

POLICY = ToolPolicy(
    allow=["read_*", "send_*"],
    review=["send_money"],
    deny=["delete_*"],
    deny_when=[{"tool": "send_*", "arg": "to", "pattern": "*@external.com"}],
)
#: An address in letters of double width.
WIDE = "".join(chr(ord(letter) + 0xFEE0) for letter in "a@external.com")
WIDE_NUMBER = "".join(chr(ord(digit) + 0xFEE0) for digit in "1200") + " EUR"
#: The policy of the seed, word for word.
SEED = ToolPolicy(
    allow=["search_*", "read_*", "get_*"],
    review=["send_*", "create_*", "update_*"],
    deny=["delete_*", "drop_*"],
    deny_when=[{"tool": "send_email", "arg": "to", "pattern": "*@external.com"}],
)


def denies(pattern: str, value: Any, matches: str = "text") -> bool:
    """Whether a rule with this pattern denies a call whose only argument is the value."""
    rule = {"tool": "act", "arg": "what", "pattern": pattern, "matches": matches}
    policy = ToolPolicy(allow=["*"], deny_when=[rule])
    return policy.evaluate("act", {"what": value}).decision == "deny"


@pytest.mark.parametrize(
    ("name", "args", "decision"),
    [
        ("delete_all", {}, "deny"),
        ("send_money", {"to": "a@external.com"}, "deny"),
        ("send_mail", {"to": "a@external.com"}, "deny"),
        ("send_mail", {"to": ["b@home.org", "a@external.com"]}, "deny"),
        ("send_mail", {"to": {"cc": "a@external.com"}}, "deny"),
        ("send_money", {"to": "b@home.org"}, "review"),
        ("send_mail", {"to": "b@home.org"}, "allow"),
        ("send_mail", {}, "allow"),
        ("read_mail", {}, "allow"),
        ("READ_mail", {}, "review"),
        ("unheard_of", {}, "review"),
    ],
)
def test_rules_are_read_in_order(name, args, decision):
    """The stricter rule always comes first, and a tool without a rule is reviewed."""
    assert POLICY.evaluate(name, args).decision == decision


@pytest.mark.parametrize(
    ("name", "args", "decision"),
    [
        ("drop_table", {}, "deny"),
        ("send_email", {"to": "eve@external.com"}, "deny"),
        ("send_email", {"to": "bob@corp.com"}, "review"),
        ("send_letter", {"to": "eve@external.com"}, "review"),
        ("get_weather", {}, "allow"),
        ("format_disk", {}, "review"),
    ],
)
def test_policy_of_the_seed_decides_as_the_seed_says(name, args, decision):
    """Deny, then review, then allow; unknown defaults to review."""
    assert SEED.evaluate(name, args).decision == decision


@pytest.mark.parametrize(
    ("name", "decision"), [("DELETE_x", "deny"), ("Send_Money", "review"), ("Read_x", "review")]
)
def test_doubt_about_case_goes_to_the_stricter_rule(name, decision):
    """`allow` means exactly what it says; what restricts is not escaped by another spelling of the tool."""
    assert POLICY.evaluate(name, {}).decision == decision


@pytest.mark.parametrize(
    ("pattern", "value"),
    [
        ("*@external.com", "A@EXTERNAL.COM"),
        ("*@external.com", WIDE),
        ("*@external.com", "a@external.com\n"),
        ("a@external.com", "\u3000a@external.com\u200b "),
        ("*@external.com", "a@exter\u200bnal.com"),
        ("*@external.com", {"a@external.com": "cc"}),
        ("*@external.com", [[{"deep": [{"er": ["a@external.com"]}]}]]),
        ("*straße*", "HAUPTSTRASSE 5"),
        ("500", 500),
        ("500", 500.0),
        ("0500", [500]),
        ("5e2", {"n": 500}),
        ("0.10", 0.1),
        ("5", "5.00"),
        ("5", " 05 "),
        ("*000000*", 1e21),
        ("true", True),
        ("Yes", [True]),
        ("1", True),
        ("n?", False),
        ("[[]]", []),
        ("*", {}),
        ("*", ""),
        ("*", 0),
        ("*", False),
    ],
)
def test_forbidden_argument_is_found_in_any_shape(pattern, value):
    """Case, width, unseen marks, nesting, keys, and the type it was coerced to make no difference."""
    assert denies(pattern, value)


@pytest.mark.parametrize(
    ("pattern", "value"),
    [
        ("*@external.com", "a@external.com.de"),
        ("500", 5000),
        ("5", 55),
        ("true", False),
        ("*", None),
        ("5", "5x"),
    ],
)
def test_other_arguments_are_not_denied(pattern, value):
    """Stricter is not blind: what is not the pattern passes, and an optional argument left out is none."""
    assert not denies(pattern, value)


@pytest.mark.slow
@pytest.mark.parametrize("at", [0, 6, 14])
def test_no_unseen_character_gets_around_a_rule(at):
    """Wherever it stands: fillers, blanks, selectors, controls, ends of lines, and halves of a character."""
    address = "a@external.com"
    unseen = [
        char
        for char in map(chr, range(0x110000))
        if re.match(f"[{INVISIBLE}\t-\r\x85\u2028\u2029]", char)
    ]
    assert [
        hex(ord(char))
        for char in unseen
        if not denies("*@external.com", address[:at] + char + address[at:])
    ] == []


def test_nesting_deeper_than_python_recurses_is_read():
    """Neither an error nor a way around the rule."""
    value: Any = "a@external.com"
    for _ in range(100_000):
        value = [value]
    assert denies("*@external.com", value)


@pytest.mark.parametrize(
    "gap",
    [
        "\t",
        "\n",
        "\r\n",
        "  ",
        "\u00a0",
        "\u1680",
        "\u2003",
        "\u2028",
        "\u2800",
        "\u3000",
        "\x1f",
        " \u200b ",
    ],
)
def test_white_space_of_any_kind_is_one_space(gap):
    """A tab instead of a space got around a rule over a command."""
    assert denies("rm *", f"rm{gap}-rf /")
    assert denies("rm * /", f" {gap}RM{gap}-rf{gap}/{gap}")
    assert not denies("rm *", f"form{gap}7")


@pytest.mark.parametrize(
    ("matches", "pattern", "value"),
    [
        ("text", "*@external.com", "<eve@external.com>"),
        ("text", "*@external.com", '"Eve, E." <eve@external.com>, bob@home.org'),
        ("text", "eve@external.com", "mailto:EVE%40external.com?subject=hi"),
        ("email", "*@external.com", "eve @ (a comment)external.com."),
        ("email", "eve@external.com", "eve+tag@external.com"),
        ("email", "*@*.external.com", ["x", {"cc": "e@mail.external\u3002com"}]),
        ("email", "*@bücher.example", "eve@xn--bcher-kva.example"),
        ("email", "*@xn--bcher-kva.example", "eve@BÜCHER.example"),
        ("domain", "external.com", "https://home.org@external.com/x"),
        ("domain", "external.com", "https://external.com\\@home.org/x"),
        ("domain", "external.com", "see HTTP://Mail.External.COM:8443, or call"),
        ("domain", "external.com", "eve@external.com"),
        ("domain", "external.com", "external.com./path"),
        ("domain", "external.com", "//external.com:80"),
        ("domain", "external.com", "jdbc:postgresql://db.external.com/x"),
        ("domain", "127.0.0.1", "http://2130706433/admin"),
        ("domain", "127.0.0.1", "http://0x7f.1/"),
        ("domain", "127.0.0.1", "http://[::ffff:127.0.0.1]/"),
        ("path", "/etc/*", "/srv/../etc//./passwd"),
        ("path", "/etc/*", "file:///etc/passwd"),
        ("path", "/etc/*", "/%65tc/passwd"),
        ("path", "/etc/*", "/etc"),
        ("path", "/etc/", "/etc/x/.."),
        ("path", "c:/windows/*", "C:\\Windows\\System32"),
        ("number", "500", "$ 500.00"),
        ("number", ">500", "1,200"),
        ("number", ">500", "€ 1.200"),
        ("number", ">500", "1\u2019200"),
        ("number", ">500", WIDE_NUMBER),
        ("number", ">=500", 500),
        ("number", "<0", "-€5"),
        ("number", "<0", "-.5"),
        ("number", "<0", "Rs.-600"),
        ("number", ">=500", "0" * 100 + "600"),
        ("number", ">500", {"amount": [501.5]}),
    ],
)
def test_argument_whose_form_is_known_is_found_however_it_is_written(matches, pattern, value):
    """Addresses, hosts, paths and numbers have many spellings and one meaning."""
    assert denies(pattern, value, matches)


@pytest.mark.parametrize(
    ("matches", "pattern", "value"),
    [
        ("email", "*@external.com", "eve@external.com.de"),
        ("email", "*@external.com", "external.com"),
        ("domain", "external.com", "https://notexternal.com/?to=home.org"),
        ("domain", "external.com", "external.com.de"),
        ("path", "/etc/*", "/etcetera/x"),
        ("number", ">500", "500"),
        ("number", ">500", "INV-900"),
        ("number", "500", "five hundred"),
    ],
)
def test_argument_of_a_known_form_that_is_another_one_passes(matches, pattern, value):
    """A rule over a form forbids what it names and nothing else."""
    assert not denies(pattern, value, matches)


@pytest.mark.parametrize(
    ("matches", "pattern"), [("mail", "x"), ("number", "many"), ("email", "eve")]
)
def test_rule_whose_form_can_match_nothing_fails_at_boot(matches, pattern):
    """It would silently deny nothing."""
    with pytest.raises(ValueError, match=f"deny_when.*{matches}|deny_when.*{pattern}"):
        denies(pattern, "x", matches)


TEXTS = st.text(max_size=20).filter(lambda text: not set(text) & set("*?["))
SCALARS = (
    TEXTS
    | st.integers(-(10**9), 10**9)
    | st.booleans()
    | st.floats(allow_nan=False, allow_infinity=False)
)
WRAPS = st.lists(st.booleans(), max_size=4)


@given(
    SCALARS,
    st.booleans(),
    WRAPS,
    st.sampled_from([str, str.upper, str.lower, lambda text: f"*{text[1:]}"]),
)
def test_what_is_denied_as_it_stands_is_denied_whatever_the_shape(value, as_key, wraps, bend):
    """However it is wrapped, and however its pattern is spelled."""
    pattern, wrapped = str(value), {str(value): None} if as_key else value
    for in_list in wraps:
        wrapped = [0, wrapped] if in_list else {"k": wrapped}
    assert denies(pattern, value)
    assert denies(pattern, wrapped)
    assert denies(bend(pattern) if pattern.isascii() else pattern, value)


class Colour(Enum):
    """What a tool may take."""

    RED = "red"


@tool
def act(
    number: int = 0,
    ratio: float = 0.0,
    flag: bool = False,
    colour: Colour = Colour.RED,
    words: str = "",
) -> str:
    """Act on arguments of every kind."""
    return "done"


@pytest.mark.parametrize(
    ("arg", "sent"),
    [
        ("number", "42"),
        ("number", 42.0),
        ("ratio", "1e3"),
        ("ratio", 1000),
        ("flag", "true"),
        ("flag", "on"),
        ("flag", 1),
        ("colour", "red"),
        ("words", "Eve"),
    ],
)
def test_coercion_opens_no_door(arg, sent):
    """What a rule denies as the model wrote it is denied as validation passes it on."""
    policy = ToolPolicy(allow=["*"], deny_when=[{"tool": "act", "arg": arg, "pattern": str(sent)}])
    decision = effective_decision(act, act.validate_json({arg: sent}), policy)
    assert decision.decision == "deny"


@pytest.mark.parametrize(
    ("name", "args", "rule"),
    [
        ("delete_all", {}, Rule("deny", 0, "delete_*")),
        ("send_mail", {"to": "a@external.com"}, Rule("deny_when", 0, "*@external.com")),
        ("send_money", {}, Rule("review", 0, "send_money")),
        ("send_mail", {}, Rule("allow", 1, "send_*")),
        ("unheard_of", {}, None),
    ],
)
def test_decision_carries_the_rule_that_made_it(name, args, rule):
    """So that a person is shown the very line."""
    assert POLICY.evaluate(name, args).rule == rule


MANAGERS = ApprovalRule(Deciders("role", ("manager",)))
BY_ASKER = ApprovalRule(Deciders("asker"))
WITH_APPROVAL = ToolPolicy(
    allow=["*"],
    deny=["refund_all"],
    deny_when=[{"tool": "refund_*", "arg": "to", "pattern": "eve"}],
    approval={"refund_small": BY_ASKER, "refund_*": MANAGERS},
)


@pytest.mark.parametrize(
    ("name", "args", "decision", "rule"),
    [
        ("refund_order", {}, "review", Rule("approval", 1, "refund_*")),
        ("REFUND_order", {}, "review", Rule("approval", 1, "refund_*")),
        ("refund_small", {}, "review", Rule("approval", 0, "refund_small")),
        ("refund_all", {}, "deny", Rule("deny", 0, "refund_all")),
        ("refund_order", {"to": "eve"}, "deny", Rule("deny_when", 0, "eve")),
        ("read", {}, "allow", Rule("allow", 0, "*")),
    ],
)
def test_tool_with_an_approval_rule_is_reviewed_even_where_it_is_allowed(
    name, args, decision, rule
):
    """An operator who names who decides wants a decision. What is denied stays denied."""
    decided = WITH_APPROVAL.evaluate(name, args)
    assert (decided.decision, decided.rule) == (decision, rule)


def test_approval_comes_before_review_in_traces():
    """Both ask. The rule that says who decides is the one that a reader wants to see."""
    policy = ToolPolicy(review=["refund_*"], approval={"refund_*": MANAGERS})
    decided = policy.evaluate("refund_order", {})
    assert decided.rule == Rule("approval", 0, "refund_*")
    assert decided.reason == "'refund_order' matches the approval rule 'refund_*'"


def test_first_pattern_in_any_case_names_who_decides():
    """A rule that restricts is not escaped by another spelling of the tool."""
    assert WITH_APPROVAL.approval_rule("refund_small") == BY_ASKER
    assert WITH_APPROVAL.approval_rule("Refund_Order") == MANAGERS
    assert WITH_APPROVAL.approval_rule("read") is None


@pytest.mark.parametrize(
    ("approval", "problem"),
    [
        (["refund_*"], "must be a dict of patterns"),
        ({"refund_*": "manager"}, "must be a pattern with an ApprovalRule"),
        ({1: MANAGERS}, "must be a pattern with an ApprovalRule"),
    ],
)
def test_malformed_approval_fails_when_the_policy_is_made(approval, problem):
    """A rule that cannot be read would let calls run without the approval."""
    with pytest.raises(ValueError, match=problem):
        ToolPolicy(approval=approval)


def test_person_who_asks_changes_nothing_that_others_decide_about():
    """The others would decide about another call than the one that was asked for."""
    policy = replace(WITH_APPROVAL, editable={"*": ["note"]})
    assert editable_names(replace(PLAIN, name="refund_order"), policy) == ()
    assert editable_names(replace(PLAIN, name="refund_small"), policy) == ("note",)
    assert editable_names(replace(PLAIN, name="read"), policy) == ("note",)


def test_reason_names_the_rule():
    """A person can find the rule that denied."""
    assert "'delete_*'" in POLICY.evaluate("delete_all", {}).reason


PLAIN = Tool("wipe", "Wipe it", (), lambda: "wiped")
HINTED = replace(PLAIN, metadata=ToolMetadata(tags=frozenset({ToolTag.DESTRUCTIVE})))
CAREFUL = replace(PLAIN, requires_approval=True)
REMEMBER = KnowledgeMemory().tool()


@pytest.mark.parametrize(
    ("tool", "policy", "decision", "source"),
    [
        (PLAIN, None, "allow", "no_policy"),
        (PLAIN, ToolPolicy(), "review", "unknown"),
        (PLAIN, ToolPolicy(allow=["*"]), "allow", "rule"),
        (HINTED, None, "review", "destructive"),
        (HINTED, ToolPolicy(), "review", "destructive"),
        (HINTED, ToolPolicy(allow=["wipe"]), "allow", "rule"),
        (HINTED, ToolPolicy(deny=["wipe"]), "deny", "rule"),
        (CAREFUL, None, "review", "requires_approval"),
        (CAREFUL, ToolPolicy(allow=["*"]), "review", "requires_approval"),
        (CAREFUL, ToolPolicy(review=["*"]), "review", "rule"),
        (CAREFUL, ToolPolicy(deny=["*"]), "deny", "rule"),
        (
            replace(HINTED, requires_approval=True),
            ToolPolicy(allow=["*"]),
            "review",
            "requires_approval",
        ),
        (REMEMBER, None, "allow", "no_policy"),
        (REMEMBER, ToolPolicy(allow=["find_*"]), "allow", "memory"),
        (REMEMBER, ToolPolicy(review=["*"]), "review", "rule"),
        (
            replace(REMEMBER, requires_approval=True),
            ToolPolicy(allow=["find_*"]),
            "review",
            "unknown",
        ),
        (replace(PLAIN, name="remember"), ToolPolicy(allow=["find_*"]), "review", "unknown"),
    ],
)
def test_author_and_hint_ask_where_no_rule_does(tool, policy, decision, source):
    """`requires_approval` overrules an allow rule. The tag "destructive" counts only where no rule names the tool, and
    so does the permission that turning on a memory gives to its tools.
    """
    decided = effective_decision(tool, {}, policy)
    assert (decided.decision, decided.decided_by) == (decision, source)


@pytest.mark.parametrize(
    "rules",
    [
        {"deny_when": [{"tool": "x", "argument": "to", "pattern": "*"}]},
        {"deny_when": [{"tool": "x", "arg": "to", "pattern": 5}]},
        {"deny": "delete_*"},
        {"allow": [5]},
        {"after": {"wipe": "stop"}},
        {"after": {5: "say"}},
        {"after": ["wipe"]},
    ],
)
def test_misspelt_rule_fails_at_boot(rules):
    """A deny_when rule without its keys would silently deny nothing; a text for a list would be read by letters."""
    with pytest.raises(ValueError, match=r"deny|allow|after"):
        ToolPolicy(**rules)


@pytest.mark.parametrize(
    ("policy", "of_tool", "after"),
    [
        (None, "", ""),
        (None, "say", "say"),
        (ToolPolicy(after={"drop_*": "say"}), "", ""),
        (ToolPolicy(after={"WIPE": "say", "*": "continue"}), "", "say"),
        (ToolPolicy(after={"*": "continue", "wipe": "say"}), "say", "continue"),
    ],
)
def test_policy_says_what_follows_an_outcome_before_the_tool_does(policy, of_tool, after):
    """The first pattern that names the tool counts; "" leaves it to the channel."""
    assert effective_after("wipe", replace(PLAIN, after=of_tool), policy) == after


def test_default_of_a_json_schema_is_what_runs_where_nothing_is_given():
    """Its source fills it in: a rule over it holds all the same, and one over what was given holds instead."""
    schema = {"type": "object", "properties": {"permanent": {"type": "boolean", "default": True}}}
    erase = Tool("erase", "Erase it", schema, lambda **args: "erased")
    rule = {"tool": "erase", "arg": "permanent", "pattern": "true"}
    policy = ToolPolicy(allow=["*"], deny_when=[rule])
    said = [
        effective_decision(erase, args, policy).decision
        for args in ({}, {"permanent": True}, {"permanent": False})
    ]
    assert said == ["deny", "deny", "allow"]
