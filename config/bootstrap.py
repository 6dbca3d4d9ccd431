"""Bootstrap: the one place that names concrete classes and puts them together."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from redis import Redis
from redis.exceptions import ResponseError

from agent import Agent, AgentConfig, ChannelAgent, ConversationMemory, OfflineProvider, Tool, ToolPolicy
from agent.decision import decide
from agent.escalation import Escalation
from agent.long_texts import TextStore
from agent.policy import Decision
from agent.providers import Provider
from agent.text_files import FOLDER as TEXTS
from agent.text_files import TextFiles
from agent.tools.loader import LoadedTools
from agent.tools.reload import Reload
from channels.base import Channel, MediaSource, Notebook, Pace
from channels.console import ConsoleChannel
from channels.feed import Feed, RedisFeed
from channels.media import LocalMediaStore
from channels.sdks import load_sdks
from channels.types import Conversation, Turn
from config.embedded import running_url
from config.keys import secret_keys
from config.loader import ConfigError
from config.providers import is_remote
from config.schema import (
    AnyChannel,
    ConsoleSettings,
    PolicySettings,
    Settings,
    SlackSettings,
    TelegramSettings,
    WhatsAppSettings,
)
from config.selection import build_selector, misnamed
from config.sources import OpenTools, open_tools
from pending import InMemoryPendingStore, RedisPendingStore, RegexConfirmParser
from pending.audit.auditor import Auditor
from pending.audit.ledger import FILE as LEDGER
from pending.audit.ledger import Ledger
from pending.audit.signer import Signer
from pending.redis_records import LUA as PENDING_LUA
from pending.store import BasePendingStore
from pending.texts import speak
from workers.connections import Connections
from workers.deliveries import Deliveries, RedisDeliveries
from workers.drain import Drain
from workers.founding import check_alone, found
from workers.journals import Journals, RedisJournals
from workers.lifeline import ALIVE, Lifeline
from workers.mailbox import LUA, Limits, Mailbox, RedisMailbox
from workers.notebook import RedisNotebook
from workers.outbox import Postman, RedisOutbox
from workers.queue import WakeUps
from workers.reaper import Reaper
from workers.receipts import FOLDER as RECEIPTS
from workers.receipts import ReceiptFiles
from workers.redis import RedisUnfit, Scripts, check_fit, connect, hurry
from workers.shards import Primary, RoutedScripts, ShardMap
from workers.shared_clock import SharedClock
from workers.spool import Spool
from workers.spool_file import FOLDER as SPOOL
from workers.spool_file import SpoolFile
from workers.tide import Tide
from workers.tide_file import FILE as TIDE
from workers.tide_file import TideFile
from workers.wire import Wire
from workers.words import Voice, Words

if TYPE_CHECKING:  # a process loads the adapters of its own platforms only
    from channels.slack import SlackChannel
    from channels.telegram import TelegramChannel
    from channels.whatsapp import WhatsAppChannel

log = logging.getLogger(__name__)

#: Seconds a console may wait for Redis: longer than a read of its feed blocks.
FEED_SECONDS = 4.0
#: What becomes of a call, as `sayso check` says it.
_WORDS: Mapping[Decision, str] = {"allow": "runs at once", "review": "asks first", "deny": "never runs"}
#: Where the bot is reached when nothing else is configured.
DEFAULT_URL = "http://127.0.0.1:8000"
#: The first version of Redis that has all commands we use.
OLDEST_REDIS = (6, 2)


@dataclass(frozen=True, slots=True)
class Services:
    """The wired parts of one process."""

    settings: Settings
    public_url: str
    redis_url: str
    redis: Redis
    primaries: tuple[Primary, ...]
    mailbox: Mailbox
    channels: Mapping[str, Channel]
    media: LocalMediaStore
    clock: SharedClock
    texts: TextFiles
    lifeline: Lifeline
    drain: Drain
    reaper: Reaper
    auditor: Auditor
    deliveries: Deliveries
    spool: Spool | None = None
    tides: tuple[Tide, ...] = ()


def bootstrap(
    settings: Settings,
    *,
    data: Path,
    redis_url: str = "",
    public_url: str = "",
    patient: bool = False,
    shard: str = "",
    provider: Provider | None = None,
    reload: bool = False,
) -> Services:
    """Wire a process. `patient` is for workers, which ride out a restart of Redis; the web refuses fast instead.

    `shard` names the primary that a worker works for; `provider` answers in place of the configured model; with
    `reload` tools follow the edits of their files. Raises ConfigError and RedisUnfit, each naming the cure.
    """
    if patient:
        _check_shard(settings, shard)
    keys = _open_data(data)
    os.environ.setdefault("SAYSO_DATA", str(data))
    redis_url = redis_url or find_redis(settings, data)
    public_url = settings.public_url or (public_url or os.environ.get("SAYSO_PUBLIC_URL", DEFAULT_URL)).rstrip("/")
    client = _open_redis(redis_url, patient=patient)
    primaries = open_primaries(settings, redis_url, client, patient=patient)
    if not patient:
        _hurry([client, *(primary.client for primary in primaries)])
    own = next((primary for primary in primaries if primary.name == shard), primaries[0])
    gated = bool(settings.shards)
    wake_up = WakeUps(client)
    scripts, pending_scripts = (_scripts(client, primaries, folder) for folder in (LUA, PENDING_LUA))
    clock = SharedClock(client)
    media = LocalMediaStore(data / "media", keys=keys, public_url=public_url, link_clock=clock)
    feed = RedisFeed(connect(redis_url, answer_seconds=FEED_SECONDS))
    shelf = _Shelf(RedisNotebook(client), feed, media, keys, public_url)
    channels = {name: _sound_channel(name, settings, shelf) for name in settings.channels}
    texts = TextFiles(data / TEXTS)
    toolbox = load_toolbox(settings, remote=patient)
    for problem in toolbox.problems:
        log.warning("tools.missing", extra={"problem": problem})
    agents = _agents(settings, toolbox, pending_scripts, media, keys, RedisJournals(scripts), texts, provider)
    if reload:
        _follow(toolbox, settings, agents)
    voice = _voice(agents)
    mailbox = RedisMailbox(scripts, voice, wake_up, limits=_limits(settings))
    lifeline, workers = Lifeline(data / ALIVE, own.name), settings.workers
    postman = Postman(
        RedisOutbox(scripts, wake_up),
        channels,
        speak,
        paces=_paces(settings, channels, len(primaries)),
        receipts=ReceiptFiles(data / RECEIPTS, lifeline.name),
    )
    return Services(
        settings=settings,
        public_url=public_url,
        redis_url=own.url,
        redis=client,
        primaries=primaries,
        mailbox=mailbox,
        channels=channels,
        media=media,
        clock=clock,
        texts=texts,
        lifeline=lifeline,
        drain=Drain(
            mailbox, postman, channels, agents, voice, media, workers.turn_timeout, workers.join_bursts, lifeline.name
        ),
        reaper=Reaper(own.client, Scripts(own.client, LUA, gated=gated), wake_up, lifeline, queue=wake_up.queue),
        auditor=Auditor(own.client, Ledger(data / LEDGER, Signer(keys)), gated=gated),
        deliveries=RedisDeliveries(scripts, wake_up),
        spool=Spool(SpoolFile(data / SPOOL), mailbox) if settings.spool else None,
        tides=open_tides(primaries, data),
    )


def preload(settings: Settings) -> None:
    """What a worker needs and every one has alike: the vendors' libraries, and what a yes is in its languages."""
    load_sdks(channel.platform for channel in settings.channels.values())
    for channel in settings.channels.values():
        _parser(channel)


def _limits(settings: Settings) -> Limits:
    given = settings.limits
    return Limits(given.waiting, given.per_minute, given.in_one_go, given.conversations)


def _check_shard(settings: Settings, shard: str) -> None:
    names = ", ".join(settings.shards)
    if settings.shards and shard not in settings.shards:
        raise ConfigError([f"a worker works for one primary: give --shard (or SAYSO_SHARD), one of {names}"])
    if shard and not settings.shards:
        raise ConfigError([f"--shard {shard}: the configuration has no `shards`: leave it out"])


def open_primaries(settings: Settings, redis_url: str, client: Redis, *, patient: bool = False) -> tuple[Primary, ...]:
    """All servers that hold conversations; the one of `redis_url` where no others are named. Raises ConfigError."""
    named = settings.shards.items()
    found = [Primary(name, url, _open_redis(url, patient=patient)) for name, url in named]
    return tuple(found or [Primary("", redis_url, client)])


def open_tides(primaries: Sequence[Primary], data: Path) -> tuple[Tide, ...]:
    """The tides of all servers that hold conversations, which each new connection to them looks at from here on."""
    notes = TideFile(data / TIDE)
    tides = tuple(Tide(connect(primary.url), notes, name=primary.name) for primary in primaries)
    for tide, primary in zip(tides, primaries, strict=True):
        tide.guard(primary.client)
    return tides


def _hurry(clients: Sequence[Redis]) -> None:
    for client in dict.fromkeys(clients):
        hurry(client)


def _open_redis(url: str, *, patient: bool) -> Redis:
    client = _connect(url, patient=patient)
    if patient:
        Connections.of(client).wire = Wire(url)
    return client


def _scripts(client: Redis, primaries: Sequence[Primary], folder: Path) -> Scripts:
    if not primaries[0].name:
        return Scripts(client, folder)
    return RoutedScripts(ShardMap(client), {primary.name: primary.client for primary in primaries}, folder)


def open_deliveries(settings: Settings, data: Path) -> Deliveries:
    """The deliveries alone, for the command line. Raises ConfigError."""
    url = find_redis(settings, data)
    client = _connect(url, patient=False)
    scripts = _scripts(client, open_primaries(settings, url, client), LUA)
    return RedisDeliveries(scripts, WakeUps(client))


def find_redis(settings: Settings, data: Path) -> str:
    """The Redis of the configuration, of the environment, or of a running `sayso up`. Raises ConfigError."""
    url = settings.redis_url or os.environ.get("REDIS_URL", "") or running_url(data)
    if not url:
        raise ConfigError([f"no Redis: set REDIS_URL, or run `sayso up`, which brings its own, on {data}"])
    return url


def _open_data(data: Path) -> list[str]:
    """Make the data folder and read the keys in it."""
    try:
        data.mkdir(parents=True, exist_ok=True)
        keys = secret_keys(data)
    except OSError as exc:
        raise ConfigError(
            [f"data folder {str(data)!r}: {exc.strerror}: give one you may write to with --data"]
        ) from exc
    if not keys:
        raise ConfigError([f"{data / 'secret_keys'} is empty: put the old key back, or delete the file for a new one"])
    return keys


def _connect(url: str, *, patient: bool) -> Redis:
    try:
        return connect(url, patient=patient)
    except ValueError as exc:  # its message may repeat a password
        cure = "write it as redis://host:6379/0, rediss://... or unix:///path"
        raise ConfigError([f"REDIS_URL (or redis_url) is no URL of a Redis: {cure}"]) from exc


def check_redis(services: Services) -> None:
    """Refuse a Redis that would lose what we keep, and say what is risky. Raises RedisUnfit, redis.RedisError."""
    services.clock()  # before there is a loop, which would not wait for it
    for client in dict.fromkeys([services.redis, *(primary.client for primary in services.primaries)]):
        _check_version(client)
        for warning in check_fit(client):
            log.warning("redis.risk", extra={"advice": warning})
    if services.settings.shards:
        found(services.redis, services.primaries)
    else:
        check_alone(services.redis)


def _check_version(client: Redis) -> None:
    """Refuse a server that lacks commands we use; one that hides its INFO is taken at its word."""
    try:
        version = str(client.info("server").get("redis_version", ""))
    except ResponseError:
        return
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers and numbers < OLDEST_REDIS:
        oldest = ".".join(str(part) for part in OLDEST_REDIS)
        raise RedisUnfit(f"this Redis is {version}: use {oldest} or newer, or run `sayso up`, which brings its own")


def load_toolbox(settings: Settings, *, remote: bool = False, strict: bool = False) -> OpenTools:
    """Load the tools the configuration names; relative files start beside it. Raises ConfigError.

    With `remote` those of MCP servers and of documents at a URL too. What cannot be loaded stops nobody, unless it is
    `strict`: it is among the `problems`.
    """
    toolbox = open_tools(settings, remote=remote, strict=strict)
    may_change = not strict and any(map(is_remote, settings.tools))
    if toolbox.problems or may_change:  # names that are not known now may be later
        return toolbox
    known = ", ".join(tool.name for tool in toolbox.tools) or "none"
    problems = [
        f"{settings.origin.at('channels', name, 'tools', index)}channels.{name}.tools: {pattern!r} names no tool; "
        f"known: {known}"
        for name, channel in settings.channels.items()
        for index, pattern in enumerate(channel.tools or ())
        if not select_tools(toolbox, [pattern])
    ]
    for name, channel in settings.channels.items():
        problems += misnamed(settings, name, select_tools(toolbox, channel.tools))
    if problems:
        raise ConfigError(problems)
    return toolbox


def select_tools(toolbox: OpenTools, patterns: Sequence[str] | None) -> list[Tool]:
    """The tools whose names match, in the order loaded; all when there are no patterns."""
    return toolbox.select(patterns).all()


def _agents(
    settings: Settings,
    toolbox: OpenTools,
    scripts: Scripts,
    media: LocalMediaStore,
    keys: list[str],
    journals: Journals,
    texts: TextStore,
    provider: Provider | None,
) -> dict[str, ChannelAgent]:
    return {
        name: _agent(settings, name, toolbox, _redis_store(channel, scripts, keys), media, journals, texts, provider)
        for name, channel in settings.channels.items()
    }


def _follow(toolbox: OpenTools, settings: Settings, agents: Mapping[str, ChannelAgent]) -> None:
    """Take edits of the tools' files up as they are saved."""

    def replaced(source: str, loaded: LoadedTools) -> None:
        toolbox.replace(source, loaded)
        for kind, factory in loaded.executor_factories.items():
            for agent in agents.values():
                agent.store.register_executor_factory(kind, factory)

    Reload(toolbox.watched, settings.origin.folder, replaced).start()


def _voice(agents: Mapping[str, ChannelAgent]) -> Voice:
    """The words for whoever wrote a turn, as its channel's agent finds them."""

    def words(turn: Turn) -> Words:
        agent = agents.get(turn.conversation.channel)
        return agent.words(turn) if agent else speak(turn.language)

    return words


def _redis_store(channel: AnyChannel, scripts: Scripts, keys: list[str]) -> RedisPendingStore:
    return RedisPendingStore(parser=_parser(channel), scripts=scripts, secret_keys=keys)


def _parser(channel: AnyChannel) -> RegexConfirmParser:
    return RegexConfirmParser(channel.languages, emoji=channel.confirm_emoji)


def _agent(
    settings: Settings,
    name: str,
    toolbox: OpenTools,
    store: BasePendingStore,
    media: LocalMediaStore | None,
    journals: Journals | None = None,
    texts: TextStore | None = None,
    provider: Provider | None = None,
) -> ChannelAgent:
    for kind, factory in toolbox.executor_factories.items():
        store.register_executor_factory(kind, factory)
    channel = settings.channels[name]
    config = AgentConfig(
        model=settings.agent.model,
        system_prompt=settings.agent.system_prompt,
        max_iterations=settings.agent.max_iterations,
        tool_policy=tool_policy(channel.policy),
    )
    agent = Agent(
        toolbox.select(channel.tools),
        provider or OfflineProvider(),
        config,
        ConversationMemory(),
        build_selector(settings, name),
    )
    return ChannelAgent(
        agent,
        store,
        confirm_ttl=channel.confirm_ttl,
        media=media,
        journals=journals,
        texts=texts,
        language=channel.speaks,
        languages=channel.languages,
        expiry_notice=channel.expiry_notice,
        escalation=_escalation(settings, channel),
    )


def _escalation(settings: Settings, channel: AnyChannel) -> Escalation | None:
    """Operators are told in the language of the channel that they are on."""
    if channel.escalate is None:
        return None
    after, to = channel.escalate.after, channel.escalate.to
    return Escalation(after, Conversation(to.channel, to.chat, to.thread), settings.channels[to.channel].speaks)


def tool_policy(settings: PolicySettings | None) -> ToolPolicy | None:
    """The policy as it is configured."""
    if settings is None:
        return None
    deny_when = [rule.model_dump() for rule in settings.deny_when]
    return ToolPolicy(settings.allow, settings.review, settings.deny, deny_when)


def _paces(
    settings: Settings, channels: Mapping[str, Channel], shares: int = 1
) -> dict[str, Callable[[Conversation], Pace]]:
    return {
        name: _pace(channel, settings.channels[name].messages_per_second, shares) for name, channel in channels.items()
    }


def _pace(channel: Channel, per_second: float | None, shares: int) -> Callable[[Conversation], Pace]:
    """The platform's own pace, unless the configuration knows this account's; each primary keeps to its share of it."""
    if per_second == 0:
        return lambda _: Pace()
    if per_second is None and shares == 1:
        return channel.pace

    def pace(conversation: Conversation) -> Pace:
        own = channel.pace(conversation)
        return replace(own, per_second=(own.per_second if per_second is None else per_second) / shares)

    return pace


@dataclass(frozen=True, slots=True)
class _Shelf:
    """What channels are made with, besides their own settings."""

    notebook: Notebook
    feed: Feed
    media: MediaSource
    keys: list[str]
    public_url: str


def _sound_channel(name: str, settings: Settings, shelf: _Shelf) -> Channel:
    try:
        return _channel(name, settings.channels[name], shelf)
    except ValueError as exc:
        raise ConfigError([f"{settings.origin.at('channels', name)}channels.{name}: {exc}"]) from exc


def _channel(name: str, settings: AnyChannel, shelf: _Shelf) -> Channel:
    match settings:
        case WhatsAppSettings():
            return _whatsapp(name, settings, shelf)
        case TelegramSettings():
            return _telegram(name, settings, shelf)
        case SlackSettings():
            return _slack(name, settings, shelf)
        case ConsoleSettings():
            return _console(name, settings, shelf)


def _whatsapp(name: str, settings: WhatsAppSettings, shelf: _Shelf) -> WhatsAppChannel:
    from channels.whatsapp import WhatsAppChannel

    return WhatsAppChannel(
        name,
        account_sid=settings.account_sid,
        auth_token=settings.auth_token.get_secret_value(),
        from_=settings.from_,
        media=shelf.media,
        notebook=shelf.notebook,
        api_url=settings.api_url,
        status_callback=f"{shelf.public_url}/hooks/{name}/status",
    )


def _telegram(name: str, settings: TelegramSettings, shelf: _Shelf) -> TelegramChannel:
    from channels.telegram import TelegramChannel

    return TelegramChannel(
        name,
        token=settings.token.get_secret_value(),
        secret_token=settings.secret_token.get_secret_value(),
        media=shelf.media,
        api_url=settings.api_url,
    )


def _slack(name: str, settings: SlackSettings, shelf: _Shelf) -> SlackChannel:
    from channels.slack import SlackChannel

    return SlackChannel(
        name,
        bot_token=settings.bot_token.get_secret_value(),
        signing_secret=settings.signing_secret.get_secret_value(),
        media=shelf.media,
        api_url=settings.api_url,
    )


def _console(name: str, settings: ConsoleSettings, shelf: _Shelf) -> ConsoleChannel:
    return ConsoleChannel(
        name,
        feed=shelf.feed,
        media=shelf.media,
        keys=shelf.keys,
        password=settings.password.get_secret_value(),
        title=settings.title,
        suggestions=settings.suggestions,
    )


def terminal_agent(
    settings: Settings, *, data: Path, channel: str | None, tell: Callable[[str], object] = lambda _: None
) -> ChannelAgent:
    """One channel's agent with everything in memory, for `sayso chat`; `tell` hears of tools that are missing.

    Raises ConfigError.
    """
    os.environ.setdefault("SAYSO_DATA", str(data))
    _open_data(data)
    name = channel or next(iter(settings.channels))
    if name not in settings.channels:
        raise ConfigError([f"no channel {name!r}; known: {', '.join(settings.channels)}"])
    chosen = settings.channels[name]
    toolbox = load_toolbox(settings, remote=True)
    for problem in toolbox.problems:
        tell(problem)
    return _agent(settings, name, toolbox, InMemoryPendingStore(_parser(chosen)), None)


def describe(settings: Settings) -> str:
    """What each channel may do, a line a tool, and what is missing. Raises ConfigError."""
    toolbox = load_toolbox(settings, remote=True, strict=True)
    toolbox.close()
    lines = []
    for name, channel in settings.channels.items():
        lines.append(f"{name} ({channel.platform}), a yes is good for {channel.confirm_ttl:g} s")
        build_selector(settings, name)
        config = AgentConfig(tool_policy=tool_policy(channel.policy))
        tools = select_tools(toolbox, channel.tools)
        lines += [f"  {tool.name}: {_WORDS[decide(tool, {}, config).decision]}" for tool in tools]
        if channel.selector:
            lines.append("  (of these its selector shows some)")
    if any(line.endswith("runs at once") for line in lines):
        lines.append("(a tool may also ask by itself)")
    return "\n".join([*lines, *toolbox.problems])
