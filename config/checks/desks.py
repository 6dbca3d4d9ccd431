"""Desks: the desk of a channel, by its platform."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sayso.channels.setup import MAX_CONNECTIONS, PlatformSetup, SetupError
from sayso.config.settings.channels import AnyChannel, SlackSettings, TelegramSettings, WhatsAppSettings
from sayso.config.settings.schema import Settings

if TYPE_CHECKING:  # as each desk: a command loads only what it needs
    from sayso.channels.whatsapp.message_log import TwilioMessageLog


def desk_of(
    settings: Settings,
    name: str,
    public_url: str,
    *,
    max_connections: int = MAX_CONNECTIONS,
    drop_pending: bool = False,
) -> PlatformSetup:
    """The desk of the channel of this name. Raises SetupError for a channel that there is not, or without a webhook.

    `max_connections` and `drop_pending` are Telegram's; the second is refused for any other platform.
    """
    channel = _channel(settings, name)
    if drop_pending and not isinstance(channel, TelegramSettings):
        raise SetupError(f"{channel.platform} keeps no updates that could be dropped", "leave out --drop-pending")
    match channel:
        case TelegramSettings():
            from sayso.channels.telegram.setup import TelegramSetup

            return TelegramSetup(name, channel, public_url, max_connections=max_connections, drop_pending=drop_pending)
        case WhatsAppSettings():
            from sayso.channels.whatsapp.setup import TwilioSetup

            return TwilioSetup(name, channel, public_url)
        case SlackSettings():
            from sayso.channels.slack.setup import SlackSetup

            return SlackSetup(name, channel, public_url)
    raise SetupError(f"{name} is a page in the browser", "it needs no webhook")


def list_of(settings: Settings, name: str) -> TwilioMessageLog:
    """What the channel's platform keeps of what people sent. Raises SetupError where that is no concern of a bot's."""
    match channel := _channel(settings, name):
        case WhatsAppSettings():
            from sayso.channels.whatsapp.message_log import TwilioMessageLog

            return TwilioMessageLog(channel)
        case TelegramSettings():
            says = "Telegram keeps no list for bots: what we did not take it sends again for 24 hours, by itself"
            cure = (
                f"see with `sayso channel status {name}` how many updates wait; files there are not a bot's to delete"
            )
        case SlackSettings():
            says = "Slack keeps no list of events: what we did not take it sends again three times, within 5 minutes"
            cure = (
                'turn on "Delayed Events" in the app for a try an hour more; files there are the workspace\'s to delete'
            )
        case _:
            says, cure = f"{name} is a page in the browser", "what it could not send, it asks its person to send again"
    raise SetupError(says, cure)


def _channel(settings: Settings, name: str) -> AnyChannel:
    """The channel of this name. Raises SetupError."""
    if name not in settings.channels:
        raise SetupError(f"no channel {name!r}", f"name one of {', '.join(settings.channels)}")
    return settings.channels[name]
