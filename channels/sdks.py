"""SDKs: the vendors' libraries a worker loads before its first turn, so that none of its turns waits for an import."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

#: What sending needs, by platform. Adapters load it late, when it is not there: the web may never need it.
_SENDS_WITH = {
    "whatsapp": ("twilio.rest.api", "aiohttp"),
    "telegram": ("telegram", "sayso.channels.bot_api"),
    "slack": ("slack_sdk.web.async_client",),
}


def load_sdks(platforms: Iterable[str]) -> None:
    """Import what sending on these platforms needs, once. A platform without a vendor's library needs nothing."""
    for platform in platforms:
        for module in _SENDS_WITH.get(platform, ()):
            import_module(module)
