"""What `sayso check` warns of in the workspaces that have installed the app of a channel.

On Slack one app can be installed in many workspaces. Each installation has a separate token, which
may lack a permission or be revoked.
"""

from __future__ import annotations

import asyncio
from itertools import chain
from pathlib import Path

from sayso.channels.registry import open_setup
from sayso.channels.setup import CheckResult, SetupOptions
from sayso.config.settings.loader import find_public_url
from sayso.config.settings.schema import Settings
from sayso.config.wiring.bot_state import find_state


def workspace_warnings(settings: Settings, data: Path) -> list[str]:
    """Return a line for each thing that is wrong with a workspace.

    Asks the platform, for about 15 seconds at most. Nothing is asked for channels of one workspace,
    nor where the Redis of the bot, which stores the installations, is not known.
    """
    names = [name for name, channel in settings.channels.items() if channel.has_many_workspaces]
    if not names:
        return []
    state = find_state(settings, data)
    if state is None:
        return []

    async def check_all() -> list[CheckResult]:
        url = find_public_url(settings)
        options = SetupOptions(state=state)
        setups = [open_setup(name, settings.channels[name], url, options) for name in names]
        checks = await asyncio.gather(*(setup.check() for setup in setups if setup))
        return list(chain.from_iterable(checks))

    findings = [result for result in asyncio.run(check_all()) if result.state != "ok"]
    return [f"{each.channel} {each.check}: {each.says}; {each.cure}" for each in findings]
