"""The settings of a Slack channel."""

from __future__ import annotations

from typing import Literal

from sayso.channels.settings import Secret, VendorSettings


class SlackSettings(VendorSettings):
    """A Slack app."""

    platform: Literal["slack"]
    bot_token: Secret
    signing_secret: Secret
