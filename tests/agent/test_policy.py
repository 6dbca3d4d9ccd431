"""ToolPolicy: deny, deny_when, review, allow, else review."""

import pytest

from agent import ToolPolicy

POLICY = ToolPolicy(
    allow=["read_*", "send_*"],
    review=["send_money"],
    deny=["delete_*"],
    deny_when=[{"tool": "send_*", "arg": "to", "pattern": "*@external.com"}],
)


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
    """The stricter rule always comes first, and what nobody named is reviewed."""
    assert POLICY.evaluate(name, args).decision == decision


def test_reason_names_the_rule():
    """A person can find the rule that denied."""
    assert "'delete_*'" in POLICY.evaluate("delete_all", {}).reason


def test_misspelt_rule_fails_at_boot():
    """A deny_when rule without its keys would silently deny nothing."""
    with pytest.raises(ValueError, match="deny_when"):
        ToolPolicy(deny_when=[{"tool": "x", "argument": "to", "pattern": "*"}])
