"""What the YAML says of standing yeses reaches the agent of a channel."""

from __future__ import annotations

from sayso.channels.base import PlatformSettings
from sayso.channels.whatsapp.settings import WhatsAppSettings
from sayso.config.settings.channels import PolicySettings
from sayso.config.wiring.agents import tool_policy
from sayso.pending.standing_rule import Bound, StandingLimit


def test_limits_of_the_policy():
    """In their order, `off` as no standing yes at all. YAML reads `off` as false."""
    settings = PolicySettings.model_validate(
        {
            "standing": {
                "refund_*": {"for": "30m", "times": 3, "where": {"amount": "<= 20"}},
                "delete_*": False,
                "drop_*": "off",
                "*": {"same": ["customer"]},
            }
        }
    )
    policy = tool_policy(settings)
    assert policy is not None
    assert policy.standing == {
        "refund_*": StandingLimit(1800.0, 3, (Bound("amount", "<=", 20),)),
        "delete_*": None,
        "drop_*": None,
        "*": StandingLimit(same=("customer",)),
    }
    assert list(policy.standing) == ["refund_*", "delete_*", "drop_*", "*"]


def test_whatsapp_has_room_for_three_buttons():
    """The other platforms show four."""
    assert WhatsAppSettings.max_buttons == 3
    assert PlatformSettings.max_buttons == 4
