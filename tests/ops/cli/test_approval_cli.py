"""Operators read who would be asked before a call: `sayso explain` of one call, `sayso check` of all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from sayso.ops.cli.main import main

TOOLS = '''
from sayso.agent import tool
from sayso.pending import stash_pending


@tool(typed_code=True, editable=["order"])
def refund_order(order: int) -> str:
    """Refund an order."""
    return ""


@tool
def refund_small(order: int) -> str:
    """Refund a small order."""
    return ""


@tool
def drop_order(order: int) -> str:
    """Drop an order."""
    return ""


@tool
def send_order(order: int) -> str:
    """Send an order."""
    return ""


@tool
def ask_by_itself(order: int) -> None:
    """Ask whether an order may be closed."""
    stash_pending(kind="close", preview="Close")
'''
YAML = """\
tools: [./tools.py]
people:
  ana: {accounts: {shop: U1, team: U0ANA}, roles: [manager]}
  ben: {accounts: {team: U0BEN}, roles: [manager]}
  dora: {accounts: {team: U0DORA}}
roles:
  director: {groups: [{channel: team, group: S0DIRECT}]}
channels:
  shop:
    platform: console
    policy:
      allow: ["*"]
      deny: [drop_*]
      approval:
        refund_small: {by: asker}
        refund_*:
          by: {role: manager}
          need: 2
          denials: 2
          on: team
          within: 2h
          reminder: 30m
          escalate: {after: 1h, by: {role: director}}
          reason: on_deny
        drop_*: {by: {people: [dora]}}
        send_*: {by: {people: [ana, ben]}, need: 2, on: {channel: team, chat: C0123ABCD, thread: "1.2"}}
        ask_*: {by: anyone_else}
        refnud_*: {by: anyone_else}
  team: {platform: slack, bot_token: "${SECRET}", signing_secret: "${SECRET}"}
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch):
    """Return a function that runs a command, and returns its lines without the folder's name."""
    monkeypatch.setenv("SECRET", "s3cret")
    (tmp_path / "tools.py").write_text(TOOLS)
    (tmp_path / "sayso.yaml").write_text(YAML)

    def ran(*args: str) -> list[str]:
        result = CliRunner().invoke(main, [*args, "--config", str(tmp_path / "sayso.yaml")])
        assert isinstance(result.exception, SystemExit | None)
        return [line.strip() for line in result.output.replace(f"{tmp_path}/", "").splitlines()]

    return ran


def test_explain_says_who_would_be_asked_where_and_until_when(run):
    """An operator sees the whole rule, with the names of the people whom the YAML names."""
    lines = run("explain", "shop", "refund_order", "order=17")
    start = lines.index("decision: asks first: approval: refund_* (sayso.yaml:16:9)")
    assert lines[start + 1 :] == [
        "preview: refund_order: order = 17",
        "approval: by 2 of the people with the role manager (ana, ben)",
        "asked: each in a direct chat on team, within 2h, reminded after 30m",
        "escalation: after 1h also the people with the role director (those in its groups)",
        "denial: by 2 people",
        "reason: needed for each no",
        "after the outcome: the bot's own text is all: the default of its model",
        "It asks first.",
    ]


def test_explain_without_arguments_says_it_too(run):
    """The tool's name alone decides who is asked."""
    lines = run("explain", "shop", "refund_order")
    assert "approval: by 2 of the people with the role manager (ana, ben)" in lines


def test_user_who_asks_is_left_out(run):
    """Ana is a manager, known on this channel as U1. She does not decide about her own request."""
    lines = run("explain", "shop", "refund_order", "order=17", "--user", "U1")
    assert "approval: by 2 of the people with the role manager (ben)" in lines
    assert "approval: not by ana, who asks" in lines


def test_user_who_is_nobody_of_them_is_not_named(run):
    """Nobody is excluded who could not decide anyway."""
    lines = run("explain", "shop", "refund_order", "order=17", "--user", "U9")
    assert "approval: by 2 of the people with the role manager (ana, ben)" in lines
    assert not [line for line in lines if "who asks" in line]


def test_too_few_without_the_user_is_said(run):
    """Both are needed, and one of them asks."""
    lines = run("explain", "shop", "send_order", "order=17", "--user", "U1")
    assert "approval: by 2 of ben" in lines
    assert "approval: impossible: too few people may decide when U1 asks" in lines
    assert "asked: in chat C0123ABCD on team, thread 1.2, within 1d" in lines


def test_rule_by_the_asker_shows_the_question_of_the_user(run):
    """The user decides as without a rule, and is always asked."""
    lines = run("explain", "shop", "refund_small", "order=17")
    assert "decision: asks first: approval: refund_small (sayso.yaml:15:9)" in lines
    assert [line for line in lines if line.startswith("confirm: only the user who asks")]
    assert not [line for line in lines if line.startswith("approval:")]


def test_denied_tool_asks_nobody(run):
    """The denial comes first."""
    lines = run("explain", "shop", "drop_order", "order=17")
    assert "decision: never runs: deny: drop_* (sayso.yaml:13:14)" in lines
    assert not [line for line in lines if line.startswith("approval:")]


def test_anyone_else_is_asked_where_the_user_asks(run):
    """The rule names no place, so the question is in that conversation."""
    lines = run("explain", "shop", "ask_by_itself", "order=17", "--user", "U9")
    assert "approval: by 1 of the other people in the conversation" in lines
    assert "asked: where U9 asks, within 1d" in lines


def test_json_has_the_approval(run):
    """Programs read the same."""
    output = run("explain", "shop", "refund_order", "order=17", "--user", "U1", "--json")
    told = json.loads("\n".join(output))
    assert told["decision"]["rule"] == {"kind": "approval", "index": 1, "pattern": "refund_*"}
    assert told["question"]["within_seconds"] == 7200
    assert (told["question"]["typed_code"], told["question"]["editable"]) == (False, [])
    assert told["approval"] == {
        "by": {"kind": "role", "names": ["manager"], "people": ["ben"], "has_more": False},
        "need": 2,
        "denials": 2,
        "on": {"channel": "team", "chat": "", "thread": ""},
        "within_seconds": 7200.0,
        "reminder_seconds": 1800.0,
        "escalation_seconds": 3600.0,
        "escalation": {"kind": "role", "names": ["director"], "people": [], "has_more": True},
        "reason": "on_deny",
        "excluded": "ana",
    }


def test_check_lists_the_rule_of_each_tool(run):
    """One line a tool, as for all other decisions."""
    lines = run("check", "--offline")
    assert (
        "refund_order: asks 2 of the people with the role manager (ana, ben), each in a direct chat "
        "on team, within 2h, reminded after 30m, after 1h also the people with the role director "
        "(those in its groups), denied by 2 people, with a reason for each no"
    ) in lines
    assert "refund_small: asks first" in lines
    assert "drop_order: never runs" in lines
    assert (
        "send_order: asks 2 of ana, ben, in chat C0123ABCD on team, thread 1.2, within 1d" in lines
    )
    assert any(line.startswith("ask_by_itself: asks by itself: 1 of the other") for line in lines)


def test_check_warns_of_a_rule_that_names_no_tool_or_too_few_people(run):
    """A misspelled pattern asks nobody. Where all who may decide are needed, none of them may ask."""
    lines = run("check", "--offline")
    assert (
        "sayso.yaml:28:9: warning: channels.shop.policy.approval.refnud_*: 'refnud_*' names no "
        "tool, did you mean 'refund_*'?"
    ) in lines
    (too_few,) = [line for line in lines if "so a call that ana asks for" in line]
    assert too_few.startswith("sayso.yaml:26:44: warning: channels.shop.policy.approval.send_*: ")


def test_check_as_json_has_the_approvals(run):
    """Programs read the rules of each tool, too."""
    told = json.loads("\n".join(run("check", "--offline", "--json")))
    shop, team = told["channels"]
    assert list(shop["approvals"]) == ["refund_order", "send_order", "ask_by_itself"]
    assert shop["approvals"]["send_order"]["by"]["people"] == ["ana", "ben"]
    assert team["approvals"] == {}


def test_impossible_rule_is_a_problem_of_the_check(run, tmp_path):
    """It has the line and the cure, and the command fails."""
    text = (tmp_path / "sayso.yaml").read_text()
    (tmp_path / "sayso.yaml").write_text(text.replace("role: manager}", "role: finance}"))
    problem = (
        "sayso.yaml:17:16: channels.shop.policy.approval.refund_*.by.role: nobody has the role"
    )
    for command in (["check", "--offline"], ["explain", "shop", "refund_order"]):
        assert [line for line in run(*command) if problem in line]
