"""Bootstrap: the one place that names concrete classes and puts them together."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from redis import Redis
from redis.exceptions import ResponseError

from sayso.agent import ChannelAgent
from sayso.agent.providers import Provider
from sayso.agent.text_files import FOLDER as TEXTS
from sayso.agent.text_files import TextFiles
from sayso.channels.base import Channel
from sayso.channels.console_logins import RedisLogins
from sayso.channels.disk import NotLocal, check_local
from sayso.channels.feed import RedisFeed
from sayso.channels.markup.links import trust_hosts
from sayso.channels.media import LocalMediaStore
from sayso.channels.media_room import MediaLimits
from sayso.channels.sdks import load_sdks
from sayso.channels.types import Turn
from sayso.config.access import guard_of
from sayso.config.agents import agents_of, follow, load_tools_of, parser_of
from sayso.config.data_folder import open_data
from sayso.config.embedded import running_url
from sayso.config.loader import ConfigError, check_consoles
from sayso.config.outfit import Outfit, idle_outfit, preload_models, worker_outfit
from sayso.config.platforms import Shelf, open_channel, paces_of, relayed
from sayso.config.schema import AnyChannel, Settings, TelegramSettings, WhatsAppSettings
from sayso.config.sources import OpenTools
from sayso.pending.audit.auditor import Auditor
from sayso.pending.audit.ledger import FILE as LEDGER
from sayso.pending.audit.ledger import Ledger
from sayso.pending.audit.signer import Signer
from sayso.pending.redis_records import LUA as PENDING_LUA
from sayso.pending.texts import speak
from sayso.workers.alerts import Alerts, RedisAlerts
from sayso.workers.connections import Connections
from sayso.workers.deliveries import Deliveries, RedisDeliveries
from sayso.workers.deployment import Deployment
from sayso.workers.drain import Drain
from sayso.workers.founding import check_alone, found
from sayso.workers.gate import Gate
from sayso.workers.journals import RedisJournals
from sayso.workers.lifeline import ALIVE, Lifeline
from sayso.workers.mailbox import LUA, Limits, Mailbox, RedisMailbox
from sayso.workers.notebook import RedisNotebook
from sayso.workers.outbox import Postman, RedisOutbox
from sayso.workers.people import RedisPeople
from sayso.workers.queue import WakeUps
from sayso.workers.reaper import Reaper
from sayso.workers.receipts import FOLDER as RECEIPTS
from sayso.workers.receipts import ReceiptFiles
from sayso.workers.redis import RedisUnfit, Scripts, check_fit, check_guarded, connect, hurry
from sayso.workers.shards import Primary, RoutedScripts, ShardMap
from sayso.workers.shared_clock import SharedClock
from sayso.workers.spool import Spool
from sayso.workers.spool_file import FOLDER as SPOOL
from sayso.workers.spool_file import SpoolFile
from sayso.workers.tide import Tide
from sayso.workers.tide_file import FILE as TIDE
from sayso.workers.tide_file import TideFile
from sayso.workers.wire import Wire
from sayso.workers.words import Voice, Words

log = logging.getLogger(__name__)

#: Seconds a console may wait for Redis: longer than a read of its feed blocks.
FEED_SECONDS = 4.0
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
    gate: Gate
    channels: Mapping[str, Channel]
    media: LocalMediaStore
    clock: SharedClock
    texts: TextFiles
    lifeline: Lifeline
    drain: Drain
    reaper: Reaper
    auditor: Auditor
    deliveries: Deliveries
    alerts: Alerts
    spool: Spool | None = None
    tides: tuple[Tide, ...] = ()
    tools: OpenTools = field(default_factory=OpenTools)
    outfit: Outfit | None = None
    deployment: Deployment | None = None
    #: Whether this process answers turns.
    is_worker: bool = False


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
    keys = open_data(data)
    os.environ.setdefault("SAYSO_DATA", str(data))
    redis_url = redis_url or find_redis(settings, data)
    public_url = find_public_url(settings, public_url)
    check_consoles(settings, public_url)
    trust_hosts([urlsplit(public_url).hostname or "", *settings.link_hosts])
    client = _open_redis(redis_url, patient=patient)
    primaries = open_primaries(settings, redis_url, client, patient=patient)
    if not patient:
        _hurry([client, *(primary.client for primary in primaries)])
    _check_disks(settings, data, is_worker=patient)
    own = next((primary for primary in primaries if primary.name == shard), primaries[0])
    gated = bool(settings.shards)
    prefix, state = settings.key_prefix, settings.state_folder(data)
    wake_up = WakeUps(client, settings.queue)
    scripts, pending_scripts = (_scripts(settings, client, primaries, folder) for folder in (LUA, PENDING_LUA))
    clock = SharedClock(client)
    media = LocalMediaStore(
        data / "media", keys=keys, public_url=public_url, link_clock=clock, limits=media_limits(settings)
    )
    feed = RedisFeed(connect(redis_url, answer_seconds=FEED_SECONDS), prefix)
    notebook = RedisNotebook(client, prefix=prefix)
    shelf = Shelf(notebook, feed, RedisLogins(client, prefix), media, keys, public_url)
    channels = {name: open_channel(name, settings, shelf) for name in settings.channels}
    texts = TextFiles(data / TEXTS)
    opened = _open_tools(settings, patient=patient)
    outfit = (
        worker_outfit(settings, data, media=media, redis=client, redis_url=redis_url, provider=provider)
        if patient
        else idle_outfit(settings, data, provider)
    )
    agents = agents_of(outfit, opened, pending_scripts, media, keys, RedisJournals(scripts), texts)
    if reload:
        follow(opened, settings, agents)
    voice = _voice(agents)
    mailbox = RedisMailbox(scripts, voice, wake_up, limits=_limits(settings))
    gate = Gate(mailbox, voice, guard_of(settings, client, redis_url))
    lifeline = Lifeline(state / ALIVE, own.name)
    paces, receipts = paces_of(settings, channels, len(primaries)), ReceiptFiles(state / RECEIPTS, lifeline.name)
    alerts = RedisAlerts(client, prefix=prefix)
    outbox = RedisOutbox(scripts, wake_up)
    postman = Postman(outbox, channels, speak, paces=paces, receipts=receipts, alerts=alerts)
    answers = relayed(agents, channels, mailbox)
    drain = Drain(
        mailbox, postman, channels, answers, voice, media, worker=lifeline.name, notes=notebook, **_habits(settings)
    )
    return Services(
        settings=settings,
        public_url=public_url,
        redis_url=own.url,
        redis=client,
        primaries=primaries,
        mailbox=mailbox,
        gate=gate,
        channels=channels,
        media=media,
        clock=clock,
        texts=texts,
        lifeline=lifeline,
        drain=drain,
        reaper=Reaper(
            own.client,
            Scripts(own.client, LUA, prefix=prefix, gated=gated),
            wake_up,
            lifeline,
            queue=wake_up.queue,
            prefix=prefix,
        ),
        auditor=Auditor(own.client, Ledger(state / LEDGER, Signer(keys)), prefix=prefix, gated=gated),
        deliveries=RedisDeliveries(scripts, wake_up),
        alerts=alerts,
        spool=Spool(SpoolFile(state / SPOOL), gate) if settings.spool else None,
        tides=open_tides(settings, primaries, data),
        tools=opened,
        outfit=outfit,
        deployment=_deployment(settings, keys),
        is_worker=patient,
    )


def _deployment(settings: Settings, keys: Sequence[str]) -> Deployment | None:
    """Return what tells this bot from another of its name; None for settings that were read from no file."""
    if not settings.name:
        return None
    return Deployment(settings.name, keys, {name: _account(each) for name, each in settings.channels.items()})


def _account(channel: AnyChannel) -> str:
    """Return what tells a channel from another of its name. It stays the same when a token is renewed."""
    match channel:
        case TelegramSettings():
            return f"telegram {channel.bot_id}"
        case WhatsAppSettings():
            return f"whatsapp {channel.account_sid} {channel.from_}"
        case _:
            return channel.platform


def _habits(settings: Settings) -> dict[str, Any]:
    """How the workers of this configuration go about a turn, as `Drain` takes it."""
    workers, streaming = settings.workers, (name for name, each in settings.channels.items() if each.streaming)
    return {
        "turn_timeout": workers.turn_timeout,
        "joins": workers.join_bursts,
        "still_after": workers.still_after,
        "streams": frozenset(streaming),
    }


def _open_tools(settings: Settings, *, patient: bool) -> OpenTools:
    """Remote ones are for those that answer turns."""
    opened = load_tools_of(settings, remote=patient)
    for problem in opened.problems:
        log.warning("tools.missing", extra={"problem": problem})
    return opened


def preload(settings: Settings) -> None:
    """What a worker needs and every one has alike: the vendors' libraries, and what a yes is in its languages.

    Raises ConfigError for a model that cannot be asked.
    """
    preload_models(settings)
    load_sdks(channel.platform for channel in settings.channels.values())
    for channel in settings.channels.values():
        parser_of(channel)


def find_public_url(settings: Settings, given: str = "") -> str:
    """Where platforms reach the web: by the configuration, as given, by the environment, or on this machine."""
    return settings.public_url or (given or os.environ.get("SAYSO_PUBLIC_URL", DEFAULT_URL)).rstrip("/")


def _limits(settings: Settings) -> Limits:
    given = settings.limits
    return Limits(given.waiting, given.per_minute, given.in_one_go, given.conversations)


def _check_disks(settings: Settings, data: Path, *, is_worker: bool) -> None:
    """Refuse SQLite files of this machine on a disk that others share. Raises ConfigError."""
    state = settings.state_folder(data)
    files = {"the audit ledger": state} if is_worker else {"the spool": state / SPOOL} if settings.spool else {}
    for name, folder in files.items():
        try:
            check_local(folder)
        except NotLocal as exc:
            cure = f"give each machine a --data of its own, or mount a local disk at {folder}"
            raise ConfigError([f"{exc}, and {name} is a SQLite file of one machine: {cure}"]) from exc


def media_limits(settings: Settings) -> MediaLimits:
    """Return how much room files may take."""
    given = settings.media
    return MediaLimits(given.per_person_bytes, given.total_bytes, given.reserve_bytes, given.reserve_percent)


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


def open_tides(settings: Settings, primaries: Sequence[Primary], data: Path) -> tuple[Tide, ...]:
    """The tides of all servers that hold conversations, which each new connection to them looks at from here on."""
    notes, prefix = TideFile(settings.state_folder(data) / TIDE), settings.key_prefix
    tides = tuple(Tide(connect(primary.url), notes, name=primary.name, prefix=prefix) for primary in primaries)
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


def _scripts(settings: Settings, client: Redis, primaries: Sequence[Primary], folder: Path) -> Scripts:
    prefix = settings.key_prefix
    if not primaries[0].name:
        return Scripts(client, folder, prefix=prefix)
    by_name = {primary.name: primary.client for primary in primaries}
    return RoutedScripts(ShardMap(client, prefix=prefix), by_name, folder, prefix=prefix)


def open_deliveries(settings: Settings, data: Path) -> Deliveries:
    """The deliveries alone, for the command line. Raises ConfigError."""
    url = find_redis(settings, data)
    client = _connect(url, patient=False)
    scripts = _scripts(settings, client, open_primaries(settings, url, client), LUA)
    return RedisDeliveries(scripts, WakeUps(client, settings.queue))


def open_people(settings: Settings, data: Path) -> tuple[RedisPeople, RedisOutbox]:
    """Who is approved, blocked or waiting, and where they are told, for the command line. Raises ConfigError."""
    url = find_redis(settings, data)
    client = _connect(url, patient=False)
    scripts = _scripts(settings, client, open_primaries(settings, url, client), LUA)
    people = RedisPeople(client, prefix=settings.key_prefix)
    return people, RedisOutbox(scripts, WakeUps(client, settings.queue))


def open_door(settings: Settings, data: Path) -> tuple[Gate, RedisNotebook]:
    """Where turns go in, and what adapters noted, for the command line. Raises ConfigError."""
    url = find_redis(settings, data)
    client = _connect(url, patient=False)
    scripts = _scripts(settings, client, open_primaries(settings, url, client), LUA)
    wake_up = WakeUps(client, settings.queue)
    voice = _voice({})
    mailbox = RedisMailbox(scripts, voice, wake_up, limits=_limits(settings))
    return Gate(mailbox, voice, guard_of(settings, client, url)), RedisNotebook(client, prefix=settings.key_prefix)


def open_alerts(settings: Settings, data: Path) -> Alerts:
    """The alerts alone, for the command line. Raises ConfigError."""
    return RedisAlerts(_connect(find_redis(settings, data), patient=False), prefix=settings.key_prefix)


def find_redis(settings: Settings, data: Path) -> str:
    """The Redis of the configuration, of the environment, or of a running `sayso up`. Raises ConfigError."""
    url = settings.redis_url or os.environ.get("REDIS_URL", "") or running_url(data)
    if not url:
        raise ConfigError([f"no Redis: set REDIS_URL, or run `sayso up`, which brings its own, on {data}"])
    return url


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
        if not services.settings.allow_open_redis:
            check_guarded(client)
        for warning in risks_of(client):
            log.warning("redis.risk", extra={"advice": warning})
    cache = services.settings.agent.cache
    if cache and cache.redis_url and not services.settings.allow_open_redis:
        with connect(cache.redis_url) as client:
            check_guarded(client)
    if services.settings.shards:
        found(services.redis, services.primaries, prefix=services.settings.key_prefix)
    else:
        check_alone(services.redis, prefix=services.settings.key_prefix)
    if services.deployment is not None:
        _claim_name(services, services.deployment)


def _claim_name(services: Services, deployment: Deployment) -> None:
    """Claim the deployment name. A worker is seen to be alive first, so that of two bots that start at once one stops.

    Raises RedisUnfit while workers of another bot use the name, redis.RedisError.
    """
    prefix, presence = services.settings.key_prefix, services.reaper.presence
    if not services.is_worker:
        deployment.claim(services.redis, prefix=prefix)
        return
    presence.beat()
    try:
        deployment.claim(services.redis, prefix=prefix, worker=services.lifeline.name)
    except RedisUnfit:
        presence.leave()
        raise


def risks_of(client: Redis) -> list[str]:
    """Refuse a server that would lose what we keep; return what is risky. Raises RedisUnfit, redis.RedisError."""
    _check_version(client)
    return check_fit(client)


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


def _voice(agents: Mapping[str, ChannelAgent]) -> Voice:
    """The words for whoever wrote a turn, as its channel's agent finds them."""

    def words(turn: Turn) -> Words:
        agent = agents.get(turn.conversation.channel)
        return agent.words(turn) if agent else speak(turn.language)

    return words
