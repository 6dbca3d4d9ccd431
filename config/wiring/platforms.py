"""Builds the adapters of the configured channels, and loads the vendors' SDKs ahead of the first turn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING

from sayso.channels.base import Channel, MediaStore, RateLimit, SharedCache
from sayso.channels.console.adapter import ConsoleChannel
from sayso.channels.console.feed import Feed
from sayso.channels.console.logins import Logins
from sayso.channels.types import Conversation
from sayso.config.settings.channels import (
    AnyChannel,
    ConsoleSettings,
    SlackSettings,
    TelegramSettings,
    WhatsAppSettings,
)
from sayso.config.settings.loader import ConfigError
from sayso.config.settings.schema import Settings
from sayso.pending.turns.queued import TurnHandler
from sayso.workers.mailbox import AliasForwarder, HasAliases, Inbox

if TYPE_CHECKING:
    from sayso.channels.slack.adapter import SlackChannel
    from sayso.channels.telegram.adapter import TelegramChannel
    from sayso.channels.whatsapp.adapter import WhatsAppChannel


#: What sending needs, by platform. Adapters load it late, when it is not there: the web may never need it.
_SENDS_WITH = {
    "whatsapp": ("twilio.rest.api", "aiohttp"),
    "telegram": ("telegram", "sayso.channels.telegram.client"),
    "slack": ("slack_sdk.web.async_client",),
}


def load_sdks(platforms: Iterable[str]) -> None:
    """Import what sending on these platforms needs, once. A platform without a vendor's library needs nothing."""
    for platform in platforms:
        for module in _SENDS_WITH.get(platform, ()):
            import_module(module)


@dataclass(frozen=True, slots=True)
class AdapterDeps:
    """What channels are made with, besides their own settings."""

    notebook: SharedCache
    feed: Feed
    logins: Logins
    media: MediaStore
    keys: list[str]
    public_url: str


def open_channel(name: str, settings: Settings, shelf: AdapterDeps) -> Channel:
    """The channel of this name. Raises ConfigError for settings that its adapter refuses."""
    try:
        return _channel(name, settings.channels[name], shelf)
    except ValueError as exc:
        raise ConfigError([f"{settings.origin.at('channels', name)}channels.{name}: {exc}"]) from exc


def _channel(name: str, settings: AnyChannel, shelf: AdapterDeps) -> Channel:
    match settings:
        case WhatsAppSettings():
            return _whatsapp(name, settings, shelf)
        case TelegramSettings():
            return _telegram(name, settings, shelf)
        case SlackSettings():
            return _slack(name, settings, shelf)
        case ConsoleSettings():
            return _console(name, settings, shelf)


def _whatsapp(name: str, settings: WhatsAppSettings, shelf: AdapterDeps) -> WhatsAppChannel:
    from sayso.channels.whatsapp.adapter import WhatsAppChannel

    return WhatsAppChannel(
        name,
        account_sid=settings.account_sid,
        auth_token=settings.auth_token.get_secret_value(),
        from_=settings.from_ or "",
        media=shelf.media,
        notebook=shelf.notebook,
        api_url=settings.api_url,
        messaging_service_sid=settings.messaging_service_sid,
        shared_key=settings.shared_key.get_secret_value() if settings.shared_key else "",
        template=settings.template,
        confirm_template=settings.confirm_template,
        status_callback=f"{shelf.public_url}/hooks/{name}/status",
    )


def _telegram(name: str, settings: TelegramSettings, shelf: AdapterDeps) -> TelegramChannel:
    from sayso.channels.telegram.adapter import TelegramChannel

    return TelegramChannel(
        name,
        token=settings.token.get_secret_value(),
        secret_token=settings.webhook_secret,
        media=shelf.media,
        notebook=shelf.notebook,
        username=settings.username,
        api_url=settings.api_url,
    )


def _slack(name: str, settings: SlackSettings, shelf: AdapterDeps) -> SlackChannel:
    from sayso.channels.slack.adapter import SlackChannel

    return SlackChannel(
        name,
        bot_token=settings.bot_token.get_secret_value(),
        signing_secret=settings.signing_secret.get_secret_value(),
        media=shelf.media,
        api_url=settings.api_url,
    )


def _console(name: str, settings: ConsoleSettings, shelf: AdapterDeps) -> ConsoleChannel:
    return ConsoleChannel(
        name,
        feed=shelf.feed,
        media=shelf.media,
        keys=shelf.keys,
        password=settings.password.get_secret_value() if settings.password else "",
        title=settings.title,
        suggestions=settings.suggestions,
        logins=shelf.logins,
        commands=settings.commands,
    )


def relayed(agents: Mapping[str, TurnHandler], channels: Mapping[str, Channel], inbox: Inbox) -> dict[str, TurnHandler]:
    """The agents as workers ask them: where a conversation has two names, whoever writes under one is answered under
    the other.
    """
    answering: dict[str, TurnHandler] = {
        name: AliasForwarder(agent, channel, inbox) if isinstance(channel := channels[name], HasAliases) else agent
        for name, agent in agents.items()
    }
    return answering


def paces_of(settings: Settings, channels: Mapping[str, Channel]) -> dict[str, Callable[[Conversation], RateLimit]]:
    """Return how fast each channel may send to a conversation."""
    return {name: _pace(channel, settings.channels[name].messages_per_second) for name, channel in channels.items()}


def _pace(channel: Channel, per_second: float | None) -> Callable[[Conversation], RateLimit]:
    """Return the platform's own limit, with the account's rate in place of the platform's where one is configured."""
    if per_second == 0:
        return lambda _: RateLimit()
    if per_second is None:
        return channel.pace
    return lambda conversation: replace(channel.pace(conversation), per_second=per_second)
