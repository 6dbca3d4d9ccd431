"""Bootstrap: build the parts of one process. The other modules of this folder build the larger ones."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from redis import Redis

from sayso.agent import ChannelAgent, OfflineProvider
from sayso.agent.channel.long_texts import TextFiles
from sayso.agent.channel.turn_journal import RedisJournals
from sayso.agent.providers.base import Provider
from sayso.channels import registry
from sayso.channels.base import AdapterDeps, Channel
from sayso.channels.i18n.texts import Texts, TextsForTurn, texts_for
from sayso.channels.markdown import trust_hosts
from sayso.channels.media_store import MediaFiles
from sayso.channels.types import Turn
from sayso.config.settings.channels import AnyChannel
from sayso.config.settings.loader import ConfigError, check_consoles, find_public_url
from sayso.config.settings.schema import Settings
from sayso.config.wiring.access import access_config
from sayso.config.wiring.agents import (
    AgentDeps,
    build_agents,
    load_bot_tools,
    reload_on_edit,
    trace_if_configured,
)
from sayso.config.wiring.data_folder import bot_ids, open_data
from sayso.config.wiring.libraries import require_channel_library
from sayso.config.wiring.models import Models
from sayso.config.wiring.redis_parts import RedisParts, find_redis, risks_of
from sayso.config.wiring.stores import FileStores
from sayso.config.wiring.tools import OpenTools, require_tool_libraries
from sayso.infra.redis.checks import check_reachable, wrong_server
from sayso.infra.redis.client import (
    RedisUnfit,
    SharedClock,
    check_guarded,
    connect,
    servers_of,
    set_web_timeouts,
)
from sayso.infra.storage.files import NotLocal, check_local
from sayso.infra.storage.objects import StoreRefused, StoreUnavailable
from sayso.infra.storage.s3 import Bucket
from sayso.pending.action import ActionSigner
from sayso.pending.audit.collector import AuditCollector
from sayso.pending.audit.ledger import FILE as LEDGER
from sayso.pending.audit.ledger import AuditLedger, EntrySigner
from sayso.pending.consent import phrasebook
from sayso.pending.open_forms import OpenForms
from sayso.pending.redis_repository import RedisActionRepository
from sayso.pending.scripts import ACTION_SCRIPTS
from sayso.pending.web_forms import WebForms
from sayso.workers.access import AccessControl
from sayso.workers.alerts import RedisAlerts
from sayso.workers.data_loss.guard import DataLossGuard
from sayso.workers.data_loss.notices import FOLDER as ACKNOWLEDGED
from sayso.workers.data_loss.notices import AcknowledgedWork, LossNotices, NoteFiles
from sayso.workers.deliveries import RedisDeliveries
from sayso.workers.deployment_name import Deployment
from sayso.workers.identities import RedisIdentities
from sayso.workers.mailbox import InboxLimits, RedisMailbox
from sayso.workers.processor import ConversationProcessor
from sayso.workers.recovery import ALIVE, Reaper, WorkerLock
from sayso.workers.scripts import CONVERSATION_SCRIPTS
from sayso.workers.sender import RECEIPTS, ReceiptFiles, RedisOutbox, ReplySender
from sayso.workers.spool import FOLDER as SPOOL
from sayso.workers.spool import Spool, SpoolFile
from sayso.workers.turn_fetcher import TurnFetcher

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Services:
    """The wired parts of one process."""

    settings: Settings
    public_url: str
    redis_url: str
    redis: Redis
    #: The server of RQ's keys.
    queue_url: str
    queue: Redis
    access_control: AccessControl
    channels: Mapping[str, Channel]
    media: MediaFiles
    clock: SharedClock
    texts: TextFiles
    bucket: Bucket | None
    #: What removes old files, by the name in the log.
    sweeps: Mapping[str, Callable[[], int]]
    worker_lock: WorkerLock
    processor: ConversationProcessor
    forms: WebForms
    reaper: Reaper
    audit_collector: AuditCollector
    deliveries: RedisDeliveries
    alerts: RedisAlerts
    data_loss_guard: DataLossGuard
    loss_notices: LossNotices
    tools: OpenTools
    agent_deps: AgentDeps
    spool: Spool | None
    deployment: Deployment | None
    #: What health checks show, so that `sayso doctor` tells this bot from another.
    bot_id: str
    #: Whether this process answers turns.
    is_worker: bool


def bootstrap(
    settings: Settings,
    *,
    data: Path,
    redis_url: str = "",
    public_url: str = "",
    is_worker: bool = False,
    provider: Provider | None = None,
    reload: bool = False,
) -> Services:
    """Build the parts of one process: data folder and Redis, adapters, tools and agents, mailbox,
    sender, processor.

    A worker waits while Redis restarts; the web refuses fast instead. `provider` answers in place
    of the configured model; with `reload` tools follow the edits of their files. Raises ConfigError
    and RedisUnfit, each naming the cure.
    """
    keys = open_data(data, settings.state_folder(data))
    os.environ.setdefault("SAYSO_DATA", str(data))
    public_url = _trusted_url(settings, public_url)
    redis = _connect(settings, redis_url or find_redis(settings, data), is_worker=is_worker)
    _check_disks(settings, data, is_worker=is_worker)
    prefix = settings.key_prefix
    state = settings.state_folder(data)
    scripts = redis.scripts(CONVERSATION_SCRIPTS)
    wake_up = redis.wake_up
    clock = SharedClock(redis.client)
    files = FileStores.open(settings, data, keys, public_url=public_url, link_clock=clock)
    media = files.media
    texts = files.texts
    channels = _open_channels(settings, redis, media, keys, public_url)

    tools = _open_tools(settings, is_worker=is_worker)
    deps = _open_agent_deps(settings, data, media, redis, provider, is_worker=is_worker)
    notes = NoteFiles(state / ACKNOWLEDGED)
    work = AcknowledgedWork(notes)
    agents = build_agents(
        deps,
        tools,
        redis.scripts(ACTION_SCRIPTS),
        media,
        keys,
        RedisJournals(scripts),
        texts,
        work.note_effect,
    )
    if reload:
        reload_on_edit(tools, settings, agents)

    texts_for_turn = _texts_for_turn(agents)
    mailbox, access_control = _open_inbox(settings, redis, texts_for_turn, work, channels)
    worker_lock = WorkerLock(state / ALIVE)
    sender = _open_sender(
        settings, redis, channels, ReceiptFiles(state / RECEIPTS, worker_lock.name)
    )
    limits = settings.workers
    processor = ConversationProcessor(
        mailbox,
        sender,
        channels,
        agents,
        texts_for_turn,
        redis.cache,
        TurnFetcher(media),
        worker=worker_lock.name,
        turn_timeout=limits.turn_timeout,
        joins=limits.join_bursts,
        notice_after=limits.still_after,
        streams=_channels_where(settings, lambda channel: channel.streaming),
        paid_channels=_channels_where(settings, lambda channel: channel.charges_per_message),
    )
    if settings.spool:
        spool = Spool(SpoolFile(state / SPOOL), access_control)
    else:
        spool = None
    guard = redis.guard_against_loss(state)
    notices = LossNotices(
        scripts,
        wake_up,
        notes,
        texts_for_turn=texts_for_turn,
        signer=ActionSigner(keys),
        resumed=guard.resumed,
    )
    return Services(
        settings=settings,
        public_url=public_url,
        redis_url=redis.url,
        redis=redis.client,
        queue_url=redis.queue_url,
        queue=redis.queue,
        access_control=access_control,
        channels=channels,
        media=media,
        clock=clock,
        texts=texts,
        bucket=files.bucket,
        worker_lock=worker_lock,
        processor=processor,
        reaper=redis.reaper(worker_lock),
        spool=spool,
        forms=WebForms(
            OpenForms(RedisActionRepository(redis.scripts(ACTION_SCRIPTS)), ActionSigner(keys))
        ),
        audit_collector=AuditCollector(
            redis.client, AuditLedger(state / LEDGER, EntrySigner(keys)), prefix=prefix
        ),
        deliveries=RedisDeliveries(scripts, wake_up),
        alerts=redis.alerts,
        data_loss_guard=guard,
        loss_notices=notices,
        sweeps=files.sweeps(),
        tools=tools,
        agent_deps=deps,
        deployment=_deployment(settings, keys),
        bot_id=bot_ids(settings, keys)[0],
        is_worker=is_worker,
    )


def _connect(settings: Settings, url: str, *, is_worker: bool) -> RedisParts:
    """Connect to Redis. A worker waits while it restarts. Raises ConfigError and RedisUnfit."""
    redis = RedisParts.connect(settings, url, patient=is_worker)
    if not is_worker:
        set_web_timeouts(redis.client)  # platforms must get their answer in time
    return redis


def _channels_where(settings: Settings, is_one: Callable[[AnyChannel], bool]) -> frozenset[str]:
    """Return the names of the channels with a property."""
    return frozenset(name for name, channel in settings.channels.items() if is_one(channel))


def _open_channels(
    settings: Settings, redis: RedisParts, media: MediaFiles, keys: Sequence[str], public_url: str
) -> dict[str, Channel]:
    deps = AdapterDeps(
        cache=redis.cache,
        identities=redis.identities,
        media=media,
        keys=keys,
        public_url=public_url,
        redis=redis.client,
        connect=lambda seconds: connect(redis.url, answer_seconds=seconds),
        key_prefix=redis.key_prefix,
    )
    return {name: open_channel(name, settings, deps) for name in settings.channels}


def open_channel(name: str, settings: Settings, deps: AdapterDeps) -> Channel:
    """Return the adapter of a channel.

    Raises ConfigError for settings that it refuses, and for a missing library.
    """
    require_channel_library(settings, name)
    try:
        return registry.open_channel(name, settings.channels[name], deps)
    except ValueError as exc:
        raise ConfigError([settings.problem(("channels", name), str(exc))]) from exc


def _check_disks(settings: Settings, data: Path, *, is_worker: bool) -> None:
    """Refuse SQLite files of this machine on a disk that other machines share.

    Raises ConfigError.
    """
    state = settings.state_folder(data)
    if is_worker:
        files = {"the audit ledger": state}
    elif settings.spool:
        files = {"the spool": state / SPOOL}
    else:
        files = {}
    for name, folder in files.items():
        try:
            check_local(folder)
        except NotLocal as exc:
            cure = f"give each machine a --data of its own, or mount a local disk at {folder}"
            raise ConfigError(
                [f"{exc}, and {name} is a SQLite file of one machine: {cure}"]
            ) from exc


def _open_tools(settings: Settings, *, is_worker: bool) -> OpenTools:
    """Load the tools. Only workers connect to remote sources: they run the tools."""
    opened = load_bot_tools(settings, remote=is_worker)
    for problem in opened.problems:
        log.warning("tools.missing", extra={"problem": problem})
    return opened


def _trusted_url(settings: Settings, given: str) -> str:
    """Return where platforms reach the web.

    Replies may link to its host. Raises ConfigError for an open console.
    """
    public_url = find_public_url(settings, given)
    check_consoles(settings, public_url)
    trust_hosts([urlsplit(public_url).hostname or "", *settings.link_hosts])
    return public_url


def _open_agent_deps(
    settings: Settings,
    data: Path,
    media: MediaFiles,
    redis: RedisParts,
    provider: Provider | None,
    *,
    is_worker: bool,
) -> AgentDeps:
    """Return the dependencies of the agents.

    The web runs no agent, so its agents have no model, library or key.
    """
    if is_worker:
        return AgentDeps.open(settings, data, media=media, redis=redis, provider=provider)
    trace_if_configured(settings)
    return AgentDeps(settings, Models(settings), data, provider or OfflineProvider())


def _texts_for_turn(agents: Mapping[str, ChannelAgent]) -> TextsForTurn:
    """Return a function that returns the texts in the language of a turn,
    as its channel's agent knows it.
    """

    def texts(turn: Turn) -> Texts:
        agent = agents.get(turn.conversation.channel)
        if agent:
            return agent.texts_for_turn(turn)
        return texts_for(turn.language)

    return texts


def _open_inbox(
    settings: Settings,
    redis: RedisParts,
    texts_for_turn: TextsForTurn,
    work: AcknowledgedWork,
    channels: Mapping[str, Channel],
) -> tuple[RedisMailbox, AccessControl]:
    """Return the mailbox, and the access control in front of it."""
    limits = InboxLimits(**settings.limits.model_dump())
    mailbox = RedisMailbox(
        redis.scripts(CONVERSATION_SCRIPTS),
        texts_for_turn,
        redis.wake_up,
        limits=limits,
        note_turn=work.note_turn,
    )
    return mailbox, AccessControl(
        mailbox, texts_for_turn, access_config(settings, redis), channels=channels
    )


def _open_sender(
    settings: Settings, redis: RedisParts, channels: Mapping[str, Channel], receipts: ReceiptFiles
) -> ReplySender:
    """Return what sends replies, with the rates of the channels that have one of their own."""
    rates = {name: channel.messages_per_second for name, channel in settings.channels.items()}
    return ReplySender(
        RedisOutbox(redis.scripts(CONVERSATION_SCRIPTS), redis.wake_up),
        channels,
        texts_for,
        receipts=receipts,
        alerts=redis.alerts,
        rates={name: rate for name, rate in rates.items() if rate is not None},
    )


def _deployment(settings: Settings, keys: Sequence[str]) -> Deployment | None:
    """Return what tells this bot from another with the same name;
    None for settings that come from no file.
    """
    if not settings.name:
        return None
    accounts = {
        name: f"{each.platform} {each.account_id}".strip()
        for name, each in settings.channels.items()
    }
    return Deployment(settings.name, keys, accounts)


def preload(settings: Settings) -> None:
    """Load what all workers need alike, before they are forked:
    the vendors' libraries and the phrases of a yes.

    Raises ConfigError for a model that cannot be asked, and for a missing library of tools.
    """
    require_tool_libraries(settings)
    deps = AgentDeps(settings, Models(settings), Path())
    for name, channel in settings.channels.items():
        deps.provider_of(name)
        deps.config_of(name)
        phrasebook(tuple(channel.languages))
    deps.models.preload()
    registry.load_sdks(channel.platform for channel in settings.channels.values())


def open_inbox(settings: Settings, data: Path) -> tuple[AccessControl, RedisIdentities]:
    """Return the access control of turns and the store of people's ids. Raises ConfigError."""
    redis = RedisParts.find(settings, data)
    work = AcknowledgedWork(NoteFiles(settings.state_folder(data) / ACKNOWLEDGED))
    _, access_control = _open_inbox(settings, redis, _texts_for_turn({}), work, {})
    return access_control, redis.identities


def check_bucket(services: Services) -> None:
    """Refuse a bucket that does not exist or denies access.

    Log one that does not answer: it may come back.

    Raises ConfigError.
    """
    if services.bucket is None:
        return
    try:
        services.bucket.check()
    except StoreRefused as exc:
        raise ConfigError([services.settings.problem(("media", "store"), exc.reason)]) from None
    except StoreUnavailable as exc:
        log.warning("media.store_away", extra={"reason": exc.reason})


def check_redis(services: Services) -> None:
    """Refuse a Redis that would lose acknowledged writes or that needs no login,
    and log what is risky. Claim the deployment name.

    Raises RedisUnfit, also while workers of another bot use the name, and redis.RedisError.
    """
    with connect(services.redis_url) as client:
        away = check_reachable(client)
    if away and services.is_worker:  # it waits from here on
        log.warning("redis.away", extra={"reason": away.says, "advice": away.cure})
    services.clock()  # read before there is an event loop, which must not wait for it
    servers = [*servers_of(services.redis), *_queue_servers(services)]
    for server in servers if not services.settings.allow_open_redis else ():
        check_guarded(server)
    with connect(services.redis_url, patient=services.is_worker) as client:
        # Asks a Sentinel, too, what it is.
        for warning in risks_of(client, services.settings):
            log.warning("redis.risk", extra={"advice": warning})
    cache = services.settings.agent.cache
    if cache and cache.redis_url and not services.settings.allow_open_redis:
        with connect(cache.redis_url) as client:
            check_guarded(client)
    if services.deployment is None:
        return
    worker = services.worker_lock.name if services.is_worker else ""
    heartbeat = services.reaper.heartbeat
    if worker:  # it registers as alive first, so that of two bots that start together one stops
        heartbeat.beat()
    try:
        services.deployment.claim(
            services.redis, prefix=services.settings.key_prefix, worker=worker
        )
    except RedisUnfit:
        if worker:
            heartbeat.leave()
        raise


def _queue_servers(services: Services) -> list[Redis]:
    """Return the queue server, if there is one and it answers. If it does not, work waits for it.

    Raises RedisUnfit if RQ cannot run there, or if waiting is of no use, and redis.RedisError.
    """
    if services.queue is services.redis:
        return []
    away = check_reachable(services.queue, "QUEUE_URL")
    if away:
        log.warning("queue.away", extra={"reason": away.says, "advice": away.cure})
        return []
    wrong = wrong_server(services.queue)
    if wrong:
        raise RedisUnfit(f"the server of QUEUE_URL {wrong[0]}: {wrong[1]}")
    return [services.queue]
