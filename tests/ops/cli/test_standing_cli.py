"""Operators read of standing yeses: in checks before they are given, and in the log afterwards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from sayso.ops.checks.story import answers
from sayso.ops.checks.trace import Tracer
from sayso.ops.cli.main import main
from sayso.pending.audit.collector import AuditCollector
from sayso.pending.audit.ledger import FILE, AuditLedger
from sayso.pending.audit.receipt_check import check_receipt, describe_receipt
from sayso.pending.audit.receipts import make_receipt
from tests.agent.channel.till import Till
from tests.pending.audit.receipt_story import public_keys
from tests.pending.state_log import KEY, SIGNER

TOOLS = '''
from sayso.agent import tool

RULE = {"for": "1h", "times": 10, "where": {"amount": "<= 50"}, "same": ["customer"]}


@tool(requires_approval=True, standing=RULE)
def refund(amount: float, customer: str, note: str = "") -> str:
    """Refund an amount."""
    return ""


@tool(requires_approval=True, standing=RULE)
def pay(amount: float, customer: str) -> str:
    """Pay an amount."""
    return ""


@tool(requires_approval=True)
def drop(amount: float) -> str:
    """Drop an amount."""
    return ""
'''
YAML = """\
tools: [./tools.py]
channels:
  shop:
    platform: console
    policy:
      standing:
        refund: {for: 30m, times: 3, where: {amount: "<= 20"}}
        p?y: off
        drop: {for: 1h, times: 3, where: {amount: "<= 20"}}
        nothing_*: off
"""


@pytest.fixture
def bot(tmp_path: Path) -> Path:
    """Return the YAML of a bot."""
    (tmp_path / "tools.py").write_text(TOOLS)
    yaml = tmp_path / "sayso.yaml"
    yaml.write_text(YAML)
    return yaml


def run(*args: str) -> str:
    """Return what a command prints."""
    result = CliRunner().invoke(main, list(args))
    assert result.exit_code == 0, result.output
    return result.output


def test_check_shows_what_is_bound_and_what_is_free(bot):
    """And limits that offer nothing."""
    lines = run("check", "--config", str(bot)).splitlines()
    narrowed = "30m, 3 times, amount <= 50, amount <= 20, same customer; free: note"
    assert any(f"refund: asks first, a yes may stand: {narrowed}" in line for line in lines)
    assert any(line.strip() == "pay: asks first" for line in lines)
    assert any(line.strip() == "drop: asks first" for line in lines)
    assert any("offers nothing for 'drop': its author allows no" in line for line in lines)
    assert any("nothing_*" in line for line in lines)


def test_explain_shows_it_of_one_tool(bot):
    """Below how the question is answered."""
    arguments = ("amount=5", "customer=c1")
    output = run("explain", "shop", "refund", *arguments, "--config", str(bot))
    assert "standing yes: 30m, 3 times, amount <= 50, amount <= 20, same customer" in output
    output = run("explain", "shop", "pay", *arguments, "--config", str(bot))
    assert "standing yes" not in output


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("{for: 2d, times: 3}", "less than or equal to 86400"),
        ("{for: 1h, times: 0}", "greater than or equal to 1"),
        ("{for: 1h, where: {amount: '<= many'}}", "compares with no number"),
        ("{hours: 1}", "hours"),
        ("maybe", "write off, or a section"),
    ],
)
def test_limit_that_cannot_be_read(bot, value, problem):
    """The place in the YAML is named."""
    bot.write_text(YAML.replace("off\n        drop", f"{value}\n        drop"))
    result = CliRunner().invoke(main, ["check", "--config", str(bot)])
    assert result.exit_code != 0
    assert problem in result.output


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch) -> AuditLedger:
    """Return an empty ledger."""
    monkeypatch.setenv("SAYSO_SECRET_KEYS", KEY)
    monkeypatch.delenv("SAYSO_CONFIG", raising=False)
    monkeypatch.delenv("REDIS_URL", raising=False)
    return AuditLedger(tmp_path / FILE, SIGNER)


@pytest.fixture
def till(ledger) -> Till:
    """Return a bot that has run a call under a standing yes."""
    till = Till(30, 40)
    till.stand()
    till.ask()
    AuditCollector(till.rig.client, ledger).collect()
    return till


def test_audit_log_ties_the_run_to_the_yes(till, tmp_path):
    """The claim of the run names the action whose yes it was, and the use."""
    first, second = till.actions()
    lines = run("audit", "show", "--data", str(tmp_path)).splitlines()
    claims = [line for line in lines if " claimed " in line]
    assert first.action_id in claims[0]
    assert "gives a standing yes for 3 calls until " in claims[0]
    assert second.action_id in claims[1]
    assert f"standing yes of {first.action_id} (1 of 3)" in claims[1]
    entries = json.loads(run("audit", "show", "--json", "--data", str(tmp_path)))
    assert [each["standing"] for each in entries if "standing" in each] == [
        claims[0].partition("to c1")[2].strip(),
        f"standing yes of {first.action_id} (1 of 3)",
    ]


def test_audit_log_verifies(till, tmp_path):
    """A claim without a question is no fault where a standing yes covers the action."""
    output = run("audit", "verify", "--offline", "--whole", "--data", str(tmp_path))
    assert "0 faults" in output


def test_receipt_names_the_yes(till, ledger):
    """It proves the decision, and says that the person was not asked again."""
    first, second = till.actions()
    receipts = [
        make_receipt(ledger, each.action_id, (KEY,), bot="till", now=9.0)
        for each in (first, second)
    ]
    assert [each.decisions[0].form for each in receipts] == ["tap", "standing"]
    assert {each.decisions[0].standing_yes for each in receipts} == {first.action_id}
    genuine = check_receipt(receipts[1].to_json().encode(), public_keys(KEY))
    (sentence,) = [line for line in describe_receipt(genuine) if " said yes " in line]
    assert f"by the standing yes to the action {first.action_id}" in sentence


def test_trace_names_the_yes(till, ledger):
    """From the message to the run that nobody was asked about."""
    first, second = till.actions()
    tracer = Tracer(till.rig.client, till.rig.scripts, ledger, prefix="sayso:")
    (story,) = tracer.stories(second.action_id)
    said = answers(story)
    (sentence,) = said["confirmed_by"]
    assert f"under the standing yes of {first.action_id}" in sentence
    assert any("is covered by a standing yes" in line for lines in said.values() for line in lines)
