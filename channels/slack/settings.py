"""The settings of a Slack channel."""

from __future__ import annotations

from typing import Literal

from sayso.channels.base import Secret, VendorSettings

#: How Slack shows the bot to people: as an agent, as an assistant (apps that are older than July 2026), or as an app
#: with plain direct messages.
View = Literal["agent", "assistant", "none"]


class SlackSettings(VendorSettings):
    """A Slack app."""

    platform: Literal["slack"]
    """A Slack app. Example: `slack`."""
    bot_token: Secret
    """The token of the app's bot user. Example: `${SLACK_BOT_TOKEN}`."""
    signing_secret: Secret
    """The secret that signs the app's requests. Example: `${SLACK_SIGNING_SECRET}`."""
    view: View = "agent"
    """The view that the app has at Slack. `agent`: each message that a person does not write in a thread begins a
    thread, with a conversation of its own. `assistant`: Slack makes the threads. `none`: an app without either view,
    whose direct messages are one conversation. Example: `agent`.
    """
