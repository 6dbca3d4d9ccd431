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

from sayso.agent import ChannelAgent
from sayso.agent.channel.long_texts import FOLDER as TEXTS
from sayso.agent.channel.long_texts import TextFiles
from sayso.agent.providers.base import Provider
from sayso.agent.run.journal import RedisJournals
from sayso.channels.base import Channel
from sayso.channels.console.feed import RedisFeed
from sayso.channels.console.logins import RedisLogins
from sayso.channels.i18n.texts import SpokenTexts, TextsForTurn, texts_for
from sayso.channels.markdown.dialects import trust_hosts
from sayso.channels.media import LocalMediaStore, MediaLimits, NotLocal, check_local
from sayso.channels.types import Turn
from sayso.config.settings.channels import AnyChannel, TelegramSettings, WhatsAppSettings
from sayso.config.settings.data_folder import open_data
from sayso.config.settings.loader import ConfigError, check_consoles
from sayso.config.settings.schema import Settings
from sayso.config.wiring.access import access_config
from sayso.config.wiring.agents import (
    AgentDeps,
    build_agents,
    confirm_parser,
    load_bot_tools,
    preload_models,
    reload_on_edit,
)
from sayso.config.wiring.platforms import AdapterDeps, load_sdks, open_channel, paces_of, relayed
from sayso.config.wiring.redis import (
    _connect,
    _hurry,
    _open_redis,
    _scripts,
    find_redis,
    open_primaries,
    open_tides,
    risks_of,
)
from sayso.config.wiring.tools import OpenTools
from sayso.pending.audit.collector import AuditCollector
from sayso.pending.audit.entry import EntrySigner
from sayso.pending.audit.ledger import FILE as LEDGER
from sayso.pending.audit.ledger import AuditLedger
from sayso.pending.redis.client import RedisUnfit, SharedClock, check_guarded, connect
from sayso.pending.redis.repository import LUA as PENDING_LUA
from sayso.pending.redis.scripts import LuaScripts
from sayso.workers.access.gate import AccessControl
from sayso.workers.access.people import RedisPeople
from sayso.workers.alerts import Alerts, RedisAlerts, RedisSharedCache
from sayso.workers.mailbox import LUA, InboxLimits, Mailbox, RedisMailbox
from sayso.workers.outbox import FOLDER as RECEIPTS
from sayso.workers.outbox import Deliveries, ReceiptFiles, RedisDeliveries, RedisOutbox
from sayso.workers.processor import ConversationProcessor
from sayso.workers.recovery import ALIVE, Reaper, WorkerLock
from sayso.workers.redis.client import DataLossGuard
from sayso.workers.redis.deployment import Deployment
from sayso.workers.rq.jobs import WakeUps
from sayso.workers.sender import ReplySender
from sayso.workers.sharding.founding import check_alone, found
from sayso.workers.sharding.shards import Primary
from sayso.workers.spool import FOLDER as SPOOL
from sayso.workers.spool import Spool, SpoolFile

log = logging.getLogger(__name__)


#: Seconds a console may wait for Redis: longer than a read of its feed blocks.
FEED_SECONDS = 4.0


#: Where the bot is reached when nothing else is configured.
DEFAULT_URL = "http://127.0.0.1:8000"


@dataclass(frozen=True, slots=True)
class Services:
    """The wired parts of one process."""

    settings: Settings
    public_url: str
    redis_url: str
    redis: Redis
    primaries: tuple[Primary, ...]
    mailbox: Mailbox
    gate: AccessControl
    channels: Mapping[str, Channel]
    media: LocalMediaStore
    clock: SharedClock
    texts: TextFiles
    lifeline: WorkerLock
    drain: ConversationProcessor
    reaper: Reaper
    auditor: AuditCollector
    deliveries: Deliveries
    alerts: Alerts
    spool: Spool | None = None
    tides: tuple[DataLossGuard, ...] = ()
    tools: OpenTools = field(default_factory=OpenTools)
    outfit: AgentDeps | None = None
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
    notebook = RedisSharedCache(client, prefix=prefix)
    shelf = AdapterDeps(notebook, feed, RedisLogins(client, prefix), media, keys, public_url)
    channels = {name: open_channel(name, settings, shelf) for name in settings.channels}
    texts = TextFiles(data / TEXTS)
    opened = _open_tools(settings, patient=patient)
    outfit = (
        AgentDeps.for_worker(settings, data, media=media, redis=client, redis_url=redis_url, provider=provider)
        if patient
        else AgentDeps.for_web(settings, data, provider)
    )
    agents = build_agents(outfit, opened, pending_scripts, media, keys, RedisJournals(scripts), texts)
    if reload:
        reload_on_edit(opened, settings, agents)
    voice = _voice(agents)
    mailbox = RedisMailbox(scripts, voice, wake_up, limits=_limits(settings))
    gate = AccessControl(mailbox, voice, access_config(settings, client, redis_url))
    lifeline = WorkerLock(state / ALIVE, own.name)
    paces, receipts = paces_of(settings, channels, len(primaries)), ReceiptFiles(state / RECEIPTS, lifeline.name)
    alerts = RedisAlerts(client, prefix=prefix)
    outbox = RedisOutbox(scripts, wake_up)
    postman = ReplySender(outbox, channels, texts_for, paces=paces, receipts=receipts, alerts=alerts)
    answers = relayed(agents, channels, mailbox)
    drain = ConversationProcessor(
        mailbox,
        postman,
        channels,
        answers,
        voice,
        media,
        worker=lifeline.name,
        notes=notebook,
        **processor_options(settings),
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
            LuaScripts(own.client, LUA, prefix=prefix, gated=gated),
            wake_up,
            lifeline,
            queue=wake_up.queue,
            prefix=prefix,
        ),
        auditor=AuditCollector(own.client, AuditLedger(state / LEDGER, EntrySigner(keys)), prefix=prefix, gated=gated),
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


def processor_options(settings: Settings) -> dict[str, Any]:
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
    opened = load_bot_tools(settings, remote=patient)
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
        confirm_parser(channel)


def find_public_url(settings: Settings, given: str = "") -> str:
    """Where platforms reach the web: by the configuration, as given, by the environment, or on this machine."""
    return settings.public_url or (given or os.environ.get("SAYSO_PUBLIC_URL", DEFAULT_URL)).rstrip("/")


def _limits(settings: Settings) -> InboxLimits:
    given = settings.limits
    return InboxLimits(given.waiting, given.per_minute, given.in_one_go, given.conversations)


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


def open_ingress(settings: Settings, data: Path) -> tuple[AccessControl, RedisSharedCache]:
    """Where turns go in, and what adapters noted, for the command line. Raises ConfigError."""
    url = find_redis(settings, data)
    client = _connect(url, patient=False)
    scripts = _scripts(settings, client, open_primaries(settings, url, client), LUA)
    wake_up = WakeUps(client, settings.queue)
    voice = _voice({})
    mailbox = RedisMailbox(scripts, voice, wake_up, limits=_limits(settings))
    return AccessControl(mailbox, voice, access_config(settings, client, url)), RedisSharedCache(
        client, prefix=settings.key_prefix
    )


def open_alerts(settings: Settings, data: Path) -> Alerts:
    """The alerts alone, for the command line. Raises ConfigError."""
    return RedisAlerts(_connect(find_redis(settings, data), patient=False), prefix=settings.key_prefix)


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


def _voice(agents: Mapping[str, ChannelAgent]) -> TextsForTurn:
    """The words for whoever wrote a turn, as its channel's agent finds them."""

    def words(turn: Turn) -> SpokenTexts:
        agent = agents.get(turn.conversation.channel)
        return agent.words(turn) if agent else texts_for(turn.language)

    return words
