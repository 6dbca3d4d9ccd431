"""SlackManifest: the description from which Slack makes the app of a channel, with exactly what the channel needs."""

from __future__ import annotations

import re
from typing import Any

from sayso.config.setup.desk import SetupError, check_https, hook_url
from sayso.config.setup.slack_needs import View, events, scopes

#: Slack's limits, in characters.
NAME_LIMIT, BOT_LIMIT, COMMAND_LIMIT = 35, 80, 32
#: What a slash command is called unless one is given.
COMMAND = "/sayso"

_DESCRIPTION = "Does what you ask, and asks before it destroys anything."
_COMMAND = re.compile(r"/[a-z0-9_-]+")

Json = dict[str, Any]


def manifest(channel: str, public_url: str, *, name: str, command: str = COMMAND, view: View = "assistant") -> Json:
    """The manifest of a channel's app, as plain data. Raises SetupError for what Slack would refuse."""
    _check(name, command, public_url)
    url = hook_url(public_url, channel)
    bot = re.sub(r"[^A-Za-z0-9 ._-]", "", name).strip() or "sayso"
    return {
        "_metadata": {"major_version": 1, "minor_version": 1},
        "display_information": {"name": name, "description": _DESCRIPTION},
        "features": {
            "app_home": {
                "home_tab_enabled": False,
                # Without it nobody can write to the bot directly.
                "messages_tab_enabled": True,
                "messages_tab_read_only_enabled": False,
            },
            "bot_user": {"display_name": bot[:BOT_LIMIT], "always_online": True},
            "slash_commands": [
                {
                    "command": command,
                    "url": url,
                    "description": "Ask the bot; alone it lists what it can do",
                    "usage_hint": "[what you want]",
                    "should_escape": True,
                }
            ],
            f"{view}_view": {f"{view}_description": _DESCRIPTION},
        },
        "oauth_config": {"scopes": {"bot": list(scopes())}},
        "settings": {
            "event_subscriptions": {"request_url": url, "bot_events": events(view)},
            "interactivity": {"is_enabled": True, "request_url": url, "message_menu_options_url": url},
            "org_deploy_enabled": False,
            "socket_mode_enabled": False,
            "token_rotation_enabled": False,
        },
    }


def _check(name: str, command: str, public_url: str) -> None:
    if not 1 <= len(name) <= NAME_LIMIT:
        raise SetupError(f"the name has {len(name)} characters", f"give 1 to {NAME_LIMIT} with --name")
    if not _COMMAND.fullmatch(command) or len(command) > COMMAND_LIMIT:
        cure = f"give a slash and up to {COMMAND_LIMIT - 1} lower-case letters, digits, _ and -"
        raise SetupError(f"--command {command!r} is no slash command", cure)
    check_https("Slack", public_url)
