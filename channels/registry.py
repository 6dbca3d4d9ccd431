"""The registry of platforms: the settings, adapter, setup and other parts of each.

Another distribution adds a platform with an entry point in the group
`sayso.channels` that names a `Platform`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pkgutil import resolve_name
from typing import Any

from sayso.channels.base import AdapterDeps, Channel, PlatformSettings
from sayso.channels.console.settings import ConsoleSettings
from sayso.channels.setup import PlatformCommand, PlatformSetup, SetupOptions
from sayso.channels.slack.settings import SlackSettings
from sayso.channels.telegram.settings import TelegramSettings
from sayso.channels.whatsapp.settings import WhatsAppSettings

#: The entry-point group of platforms from other distributions.
GROUP = "sayso.channels"

#: A callable, or its place as `package.module:name`. It is loaded when needed,
#: since no process needs all platforms.
Factory = Callable[..., Any] | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """The parts of a platform.

    `adapter(name, settings, deps)` returns a Channel. `setup(name, settings, public_url, options)`
    returns a PlatformSetup. `poller(channel, store, lock)` returns an object whose `run()` polls.
    `pages(*channels, public_url=, admit=, stage=, why_waiting=)` returns a Flask blueprint.
    `sdk_modules` are imported by a worker before its first turn, since an import blocks all others.
    The packages that the built-in platforms name there log warnings only.
    `commands()` returns PlatformCommands: those of `sayso channel` that only this platform has.
    `missed_messages(channel, message_log, inbox, identities, per_minute=, clock=)` returns an object
    whose `run()` yields FoundMessages, and `media_deletion(channel, message_log, inbox, identities)`
    one whose `run()` yields DeletedFiles; both need the `message_log()` of the setup.
    """

    settings: type[PlatformSettings]
    adapter: Factory
    setup: Factory | None = None
    poller: Factory | None = None
    pages: Factory | None = None
    sdk_modules: tuple[str, ...] = ()
    commands: Factory | None = None
    #: Kinds of its keys in Redis that stay when a person is erased: they hold nothing of a person's,
    #: or end within hours.
    kept_keys: tuple[str, ...] = ()
    missed_messages: Factory | None = None
    media_deletion: Factory | None = None


BUILT_IN: Mapping[str, Platform] = {
    "whatsapp": Platform(
        settings=WhatsAppSettings,
        adapter="sayso.channels.whatsapp.adapter:WhatsAppChannel",
        setup="sayso.channels.whatsapp.setup:TwilioSetup",
        sdk_modules=("twilio.rest.api", "aiohttp"),
        missed_messages="sayso.channels.whatsapp.message_log:MissedMessages",
        media_deletion="sayso.channels.whatsapp.message_log:MediaDeletion",
    ),
    "telegram": Platform(
        settings=TelegramSettings,
        adapter="sayso.channels.telegram.adapter:TelegramChannel",
        setup="sayso.channels.telegram.setup:TelegramSetup",
        poller="sayso.channels.telegram.poller:Poller",
        sdk_modules=("telegram", "aiohttp"),
    ),
    "slack": Platform(
        settings=SlackSettings,
        adapter="sayso.channels.slack.adapter:SlackChannel",
        setup="sayso.channels.slack.setup:SlackSetup",
        pages="sayso.channels.slack.install_pages:install_pages",
        sdk_modules=("slack_sdk.web.async_client",),
        commands="sayso.channels.slack.commands:slack_commands",
        # Tokens of workspaces, and who installed them: encrypted, until a workspace removes the app.
        kept_keys=("slack",),
    ),
    "console": Platform(
        settings=ConsoleSettings,
        adapter="sayso.channels.console.adapter:ConsoleChannel",
        pages="sayso.channels.console.views:console_pages",
        # The lists of conversations among them, `console:chats`, are the person's, and are deleted.
        kept_keys=("console",),
    ),
}


@cache
def find_platform(name: str) -> Platform | None:
    """Return the platform of this name, None if there is none.

    Entry points are read for other than built-in names.
    """
    if name in BUILT_IN:
        entry = None
    else:
        entry = _entry_points().get(name)
    if entry is None:
        return BUILT_IN.get(name)
    platform = entry.load()
    if not isinstance(platform, Platform):
        raise TypeError(
            f"entry point {name!r} in {GROUP!r} is {platform!r}: it must name a {Platform.__qualname__}"
        )
    return platform


def platform_of(settings: PlatformSettings) -> Platform:
    """Return the platform of a configured channel."""
    platform = find_platform(settings.platform)
    if platform is None:
        raise LookupError(
            f"unknown platform {settings.platform!r}; known: {', '.join(platform_names())}"
        )
    return platform


def platform_names() -> list[str]:
    """Return the names of all platforms, those of other distributions included."""
    return [*BUILT_IN, *sorted(_entry_points().keys() - BUILT_IN.keys())]


def open_channel(name: str, settings: PlatformSettings, deps: AdapterDeps) -> Channel:
    """Return the adapter of a channel. Raises ValueError for settings that it refuses."""
    channel: Channel = load(platform_of(settings).adapter)(name, settings, deps)
    return channel


def open_setup(
    name: str, settings: PlatformSettings, public_url: str, options: SetupOptions | None = None
) -> PlatformSetup | None:
    """Return the setup of a channel at its platform, None for a platform without one."""
    factory = platform_of(settings).setup
    if factory is None:
        return None
    setup: PlatformSetup = load(factory)(name, settings, public_url, options or SetupOptions())
    return setup


def platform_commands(name: str) -> Sequence[PlatformCommand]:
    """Return the commands of `sayso channel` that only this platform has."""
    platform = find_platform(name)
    if platform is None or platform.commands is None:
        return ()
    commands: Sequence[PlatformCommand] = load(platform.commands)()
    return commands


def platform_keys() -> list[str]:
    """Return the kinds of keys that the built-in platforms store and that no erasure deletes."""
    return [kind for platform in BUILT_IN.values() for kind in platform.kept_keys]


def polled_platforms() -> list[str]:
    """Return the names of the platforms that can be polled."""
    return [
        name
        for name in platform_names()
        if (platform := find_platform(name)) and platform.poller is not None
    ]


def load_sdks(platforms: Iterable[str]) -> None:
    """Import the modules that sending on these platforms needs."""
    for name in platforms:
        platform = find_platform(name)
        for module in platform.sdk_modules if platform else ():
            import_module(module)


def load(factory: Factory) -> Callable[..., Any]:
    """Return a factory. It is imported if only its place is given."""
    if isinstance(factory, str):
        loaded: Callable[..., Any] = resolve_name(factory)
        return loaded
    return factory


@cache
def _entry_points() -> Mapping[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}
