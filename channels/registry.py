"""The registry of platforms: the settings, adapter, setup and other parts of each.

A platform is a chat service, such as Telegram. A channel is one account of the bot there, and its
`platform` in the YAML names a row of this registry. Another Python distribution adds a platform
with an entry point in the group `sayso.channels` that names a `Platform`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from itertools import chain
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

#: A callable, or the place of one as `package.module:name`. A place is imported when it is needed,
#: since no process needs the SDKs of all platforms.
Factory = Callable[..., Any] | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """The parts of a platform. A part that it does not have is None, or an empty tuple."""

    #: The class that reads the platform's part of the YAML.
    settings: type[PlatformSettings]
    #: `adapter(name, settings, deps)` returns a Channel.
    adapter: Factory
    #: `setup(name, settings, public_url, options)` returns a PlatformSetup.
    setup: Factory | None = None
    #: `poller(channel, store, lock)` returns an object whose coroutine `run()` polls until it is
    #: cancelled. `channel` is the adapter, `store` a StoreReceived, and `lock` the LeaderLock of the
    #: account: of several processes, the one that has it polls.
    poller: Factory | None = None
    #: `pages(*channels, public_url=, admit=, turn_status=, why_waiting=)` returns a Flask blueprint
    #: with the platform's web pages. `channels` are the adapters of all its channels. `Views` in
    #: `channels/console/views.py` says what the last three are.
    pages: Factory | None = None
    #: Modules that a worker imports before its first turn, since an import blocks all other turns.
    #: Of the built-in platforms, the packages of these modules log warnings and errors only.
    sdk_modules: tuple[str, ...] = ()
    #: `commands()` returns the PlatformCommands of `sayso channel` that only this platform has.
    commands: Factory | None = None
    #: The first words of the Redis keys that a built-in platform stores for itself. They are in the
    #: table of what an erasure of a person leaves, `FATES` in `workers/erasure.py`. Keys of another
    #: distribution's platform are in no table and stay as well.
    kept_keys: tuple[str, ...] = ()
    #: `missed_messages(channel, message_log, inbox, identities, per_minute=, clock=)` returns an
    #: object whose `run()` yields FoundMessages. `channel` is the channel's name, `message_log` a
    #: MessageLog from the platform's setup, `inbox` a RecoveryInbox and `identities` the Identities.
    #: `per_minute` limits the messages of a person, 0 for no limit, and `clock` returns Unix
    #: seconds. A platform with this factory has a `setup` too.
    missed_messages: Factory | None = None
    #: `media_deletion(channel, message_log, inbox, identities)` returns an object whose `run()`
    #: yields DeletedFiles. The arguments are those of `missed_messages`.
    media_deletion: Factory | None = None


class PlatformUnusable(ValueError):
    """Raised for a platform of another distribution that does not load.

    The message names the distribution and the cure. As a ValueError it becomes a problem of the
    YAML, at the line of the channel.
    """


#: The platforms of this distribution, by their name in the YAML.
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
        # The tokens of workspaces, and who installed the app. They serve a whole workspace, so they
        # stay until it removes the app. They are encrypted.
        kept_keys=("slack",),
    ),
    "console": Platform(
        settings=ConsoleSettings,
        adapter="sayso.channels.console.adapter:ConsoleChannel",
        pages="sayso.channels.console.views:console_pages",
        # Counts of failed log-ins and ended sessions, which expire. `console:chats` is the list of
        # one person's conversations: an erasure deletes it (`_lists_of` in `workers/erasure.py`).
        kept_keys=("console",),
    ),
}


@cache
def find_platform(name: str) -> Platform | None:
    """Return the platform of this name, None if there is none.

    An entry point with the name of a built-in platform is ignored. Raises PlatformUnusable.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]
    entry = _entry_points().get(name)
    if entry is None:
        return None

    owner = entry.dist.name if entry.dist else "an unknown distribution"
    what = f"platform {name!r} of {owner} ({entry.value})"
    try:
        platform = entry.load()
    except (Exception, SystemExit) as exc:  # the code of another distribution
        reason = f"{type(exc).__name__}: {exc}"
        raise PlatformUnusable(
            f"{what} does not load: {reason}: reinstall or remove {owner}"
        ) from exc
    if not isinstance(platform, Platform):
        raise PlatformUnusable(
            f"{what} is no {Platform.__qualname__}: ask for it where {owner} comes from"
        )
    return platform


def platform_of(settings: PlatformSettings) -> Platform:
    """Return the platform of a configured channel.

    Raises LookupError if there is none, and PlatformUnusable.
    """
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
    """Return the adapter of a channel.

    Raises ValueError for settings that it refuses, and LookupError for an unknown platform.
    """
    open_adapter = load(platform_of(settings).adapter)
    channel: Channel = open_adapter(name, settings, deps)
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
    """Return the commands of `sayso channel` that only this platform has.

    Raises PlatformUnusable.
    """
    platform = find_platform(name)
    if platform is None or platform.commands is None:
        return ()
    commands: Sequence[PlatformCommand] = load(platform.commands)()
    return commands


def kept_platform_keys() -> list[str]:
    """Return the first words of the keys that the built-in platforms store for themselves.

    See `Platform.kept_keys`.
    """
    return list(chain.from_iterable(platform.kept_keys for platform in BUILT_IN.values()))


def polled_platforms() -> list[str]:
    """Return the names of the platforms that can be polled. One that does not load is left out."""
    names = []
    for name in platform_names():
        with suppress(PlatformUnusable):
            platform = find_platform(name)
            if platform and platform.poller is not None:
                names.append(name)
    return names


def load_sdks(platforms: Iterable[str]) -> None:
    """Import the modules that sending on these platforms needs. Raises ImportError."""
    for name in platforms:
        platform = find_platform(name)
        if platform is None:
            continue
        for module in platform.sdk_modules:
            import_module(module)


def load(factory: Factory) -> Callable[..., Any]:
    """Return the callable of a factory, imported from its place if it names one."""
    if isinstance(factory, str):
        loaded: Callable[..., Any] = resolve_name(factory)
        return loaded
    return factory


@cache
def _entry_points() -> Mapping[str, EntryPoint]:
    """Return the entry points of platforms from other distributions, by name."""
    return {entry.name: entry for entry in entry_points(group=GROUP)}
