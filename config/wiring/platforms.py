"""Builds the adapters of the configured channels and what surrounds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from sayso.channels import registry
from sayso.channels.base import AdapterDeps, Channel, RateLimit
from sayso.channels.setup import MessageLog, PlatformSetup, SetupError, SetupOptions, hook_url
from sayso.channels.types import Conversation
from sayso.config.settings.channels import AnyChannel
from sayso.config.settings.loader import ConfigError
from sayso.config.settings.schema import Settings
from sayso.pending.turns.queued import TurnHandler
from sayso.workers.mailbox import AliasForwarder, HasAliases, Inbox


def open_channel(name: str, settings: Settings, deps: AdapterDeps) -> Channel:
    """Return the adapter of a channel. Raises ConfigError for settings that it refuses."""
    try:
        return registry.open_channel(name, settings.channels[name], deps)
    except ValueError as exc:
        raise ConfigError([f"{settings.origin.at('channels', name)}channels.{name}: {exc}"]) from exc


def open_setup(settings: Settings, name: str, public_url: str, options: SetupOptions | None = None) -> PlatformSetup:
    """Return what tells a channel's platform about it.

    Raises SetupError for an unknown channel, one whose platform cannot be told anything, and for `drop_pending` where
    the platform keeps no updates.
    """
    channel = channel_of(settings, name)
    if options and options.drop_pending and not channel.can_drop_updates:
        raise SetupError(f"{channel.platform} keeps no updates that could be dropped", "leave out --drop-pending")
    setup = registry.open_setup(name, channel, public_url, options)
    if setup is None and channel.has_page:
        raise SetupError(f"{name} is a page in the browser", "it needs no webhook")
    if setup is None:
        says = f"{channel.platform} cannot be told or asked anything"
        raise SetupError(says, f"have it send to {hook_url(public_url, name)} yourself")
    return setup


def open_message_log(settings: Settings, name: str) -> MessageLog:
    """Return what the channel's platform keeps of what people sent. Raises SetupError if it gives bots nothing."""
    if channel_of(settings, name).has_page:
        says, cure = f"{name} is a page in the browser", "what it could not send, it asks its person to send again"
        raise SetupError(says, cure)
    return open_setup(settings, name, "").message_log()


def channel_of(settings: Settings, name: str) -> AnyChannel:
    """Return the settings of a channel. Raises SetupError."""
    if name not in settings.channels:
        raise SetupError(f"no channel {name!r}", f"name one of {', '.join(settings.channels)}")
    return settings.channels[name]


def forward_aliases(
    agents: Mapping[str, TurnHandler], channels: Mapping[str, Channel], inbox: Inbox
) -> dict[str, TurnHandler]:
    """Return the agents as workers call them: a turn under an alias of a conversation goes to the conversation."""
    handlers: dict[str, TurnHandler] = {
        name: AliasForwarder(agent, channel, inbox) if isinstance(channel := channels[name], HasAliases) else agent
        for name, agent in agents.items()
    }
    return handlers


def rate_limits_of(
    settings: Settings, channels: Mapping[str, Channel]
) -> dict[str, Callable[[Conversation], RateLimit]]:
    """Return how fast each channel may send to a conversation."""
    return {
        name: _rate_limit(channel, settings.channels[name].messages_per_second) for name, channel in channels.items()
    }


def _rate_limit(channel: Channel, per_second: float | None) -> Callable[[Conversation], RateLimit]:
    """Return the platform's limit, with the account's rate in place of the platform's where one is configured."""
    if per_second == 0:
        return lambda _: RateLimit()
    if per_second is None:
        return channel.rate_limit
    return lambda conversation: replace(channel.rate_limit(conversation), per_second=per_second)
