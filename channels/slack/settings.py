"""The settings of a Slack channel."""

from __future__ import annotations

from typing import Literal

from sayso.channels.base import Secret, VendorSettings


class SlackSettings(VendorSettings):
    """A Slack app."""

    platform: Literal["slack"]
    """A Slack app. Example: `slack`."""
    bot_token: Secret
    """The token of the app's bot user. Example: `${SLACK_BOT_TOKEN}`."""
    signing_secret: Secret
    """The secret that signs the app's requests. Example: `${SLACK_SIGNING_SECRET}`."""
