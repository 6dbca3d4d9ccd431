"""Desks: the desk of a channel, by its platform."""

from __future__ import annotations

from config.schema import Settings, SlackSettings, TelegramSettings, WhatsAppSettings
from config.setup.desk import MAX_CONNECTIONS, Desk, SetupError


def desk_of(
    settings: Settings,
    name: str,
    public_url: str,
    *,
    max_connections: int = MAX_CONNECTIONS,
    drop_pending: bool = False,
) -> Desk:
    """The desk of the channel of this name. Raises SetupError for a channel that there is not, or without a webhook.

    `max_connections` and `drop_pending` are Telegram's; the second is refused for any other platform.
    """
    channel = settings.channels.get(name)
    if channel is None:
        raise SetupError(f"no channel {name!r}", f"name one of {', '.join(settings.channels)}")
    if drop_pending and not isinstance(channel, TelegramSettings):
        raise SetupError(f"{channel.platform} keeps no updates that could be dropped", "leave out --drop-pending")
    match channel:
        case TelegramSettings():
            from config.setup.telegram import TelegramDesk

            return TelegramDesk(name, channel, public_url, max_connections=max_connections, drop_pending=drop_pending)
        case WhatsAppSettings():
            from config.setup.twilio import TwilioDesk

            return TwilioDesk(name, channel, public_url)
        case SlackSettings():
            from config.setup.slack import SlackDesk

            return SlackDesk(name, channel, public_url)
    raise SetupError(f"{name} is a page in the browser", "it needs no webhook")
