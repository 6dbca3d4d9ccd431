"""Settings: the configuration of a simulated Sayso: any, with its platforms replaced by the fakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from sayso.channels.fakes import platforms as fakes
from sayso.channels.fakes.platforms import FakePlatforms
from sayso.config.simulation.plan import Plan

#: The credentials that the fakes take, as the environment names them.
CREDENTIALS = {
    "SIMULATED_TWILIO_TOKEN": fakes.TWILIO_AUTH_TOKEN,
    "SIMULATED_TELEGRAM_TOKEN": fakes.TELEGRAM_TOKEN,
    "SIMULATED_TELEGRAM_SECRET": fakes.TELEGRAM_SECRET,
    "SIMULATED_SLACK_TOKEN": fakes.SLACK_BOT_TOKEN,
    "SIMULATED_SLACK_SECRET": fakes.SLACK_SIGNING_SECRET,
}
#: The people of a simulation are quicker than people, and nobody tells them to write slower, nor a group to wait.
UNHURRIED = {"per_minute": 60_000, "in_one_go": 60_000, "waiting": 1000}
#: The configuration when none is given.
DEFAULT: dict[str, Any] = {
    "agent": {"model": "offline"},
    "tools": ["sayso.config.simulation.tools"],
    "channels": {
        "shop-wa": {"platform": "whatsapp", "confirm_ttl": 300},
        "ops-tg": {"platform": "telegram", "confirm_ttl": 300},
        "desk": {"platform": "slack", "confirm_ttl": 300},
    },
}


class MachineError(Exception):
    """Raised when the parts do not come up. The message names the cure."""


def simulated(plan: Plan, platforms: FakePlatforms, url: str) -> dict[str, Any]:
    """The plan's configuration with its platforms replaced by the fakes, without the channels that have none.

    Raises MachineError.
    """
    config = plan.config
    told = DEFAULT if config is None else yaml.safe_load(config.read_text(encoding="utf-8"))
    credentials: dict[str, dict[str, str]] = {
        "whatsapp": {
            "account_sid": fakes.TWILIO_ACCOUNT_SID,
            "auth_token": "${SIMULATED_TWILIO_TOKEN}",
            "from": "whatsapp:+14155238886",
            "api_url": platforms.twilio_url,
        },
        "telegram": {
            "token": "${SIMULATED_TELEGRAM_TOKEN}",
            "secret_token": "${SIMULATED_TELEGRAM_SECRET}",
            "api_url": platforms.telegram_url,
        },
        "slack": {
            "bot_token": "${SIMULATED_SLACK_TOKEN}",
            "signing_secret": "${SIMULATED_SLACK_SECRET}",
            "api_url": platforms.slack_url,
        },
    }
    channels = {
        name: {**channel, **credentials[channel["platform"]], **_changed(plan)}
        for name, channel in told["channels"].items()
        if channel["platform"] in credentials
    }
    if not channels:
        raise MachineError(f"{config}: no channel to simulate: add one of {', '.join(credentials)}")
    tools = [_absolute(tool, config) for tool in told.get("tools", [])]
    limits = {**told.get("limits", {}), **UNHURRIED}
    return {
        **told,
        **({"spool": True} if plan.spool else {}),
        "limits": limits,
        # What tells a person to wait answers nothing that they did: the judge could not tell it from a stray message.
        "workers": {**told.get("workers", {}), "still_after": 0},
        "public_url": url,
        "redis_url": "${REDIS_URL}",
        "tools": tools,
        "channels": channels,
    }


def _changed(plan: Plan) -> dict[str, Any]:
    """What a plan changes in every channel. A group is answered by many, and its platform's pace is not the subject."""
    pace: dict[str, Any] = {"messages_per_second": 0} if plan.strangers else {}
    return {**pace, "confirm_ttl": plan.window} if plan.window else pace


def _absolute(tool: str, config: Path | None) -> str:
    """A module given by its file is looked for beside the configuration."""
    return str((config.parent / tool).resolve()) if config and tool.endswith(".py") else tool
