"""config/demo.yaml loads as it is, and with every commented channel switched on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sayso.agent import ToolPolicy
from sayso.agent.tools.loading import load_tools
from sayso.config.settings.loader import load_settings

DEMO = Path(__file__).parents[2] / "config" / "demo.yaml"
TOOLS = {
    tool.name for name in ("invoices", "reminders") for tool in load_tools(f"examples.{name}").tools
}


def test_demo_needs_no_environment_variable():
    """The demo needs no account, no key and no variable."""
    settings = load_settings(DEMO, {})
    assert settings.agent.model == "offline"
    assert set(settings.channels["web"].tools) == TOOLS


@pytest.mark.parametrize("tool", sorted(TOOLS))
def test_policy_reviews_only_destructive_tools(tool: str):
    """The policy allows every other tool by name; the refund asks by itself."""
    asks = ("delete_invoice", "write_off_overdue", "reset_demo")
    policy = load_settings(DEMO, {}).channels["web"].policy
    decision = ToolPolicy(policy.allow, policy.review, policy.deny).evaluate(tool, {}).decision
    assert decision == ("review" if tool in asks else "allow")


def test_every_commented_channel_is_ready_to_use(tmp_path: Path):
    """The file loads once the comment signs are removed and the variables are set."""
    text = re.sub(r"^  # (?=wa:|telegram:|slack:|  \S)", "  ", DEMO.read_text(), flags=re.MULTILINE)
    (tmp_path / "demo.yaml").write_text(text)
    names = set(re.findall(r"\$\{([A-Z_]+)\}", text))
    environ = dict.fromkeys(names, "x") | {"TWILIO_WHATSAPP_FROM": "whatsapp:+14155238886"}
    settings = load_settings(tmp_path / "demo.yaml", environ)
    assert [channel.platform for channel in settings.channels.values()] == [
        "console",
        "whatsapp",
        "telegram",
        "slack",
    ]
    assert all(set(channel.tools) <= TOOLS for channel in settings.channels.values())
