"""Bootstrap: build the parts of one process from its settings.

`bootstrap` names the concrete classes of the parts; the other modules of this folder build the
larger ones. A web process, a worker and a poller all call it. What each of them does with the parts
is in `wsgi`, `rq_entry` and `ingress`. `check_redis` and `check_bucket` refuse a server that would
lose messages or files.
"""

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
from sayso.channels.markdown.convert import trust_hosts
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
from sayso.config.wiring.deciders import check_deciders
from sayso.config.wiring.libraries import require_channel_library
from sayso.config.wiring.models import Models
from sayso.config.wiring.people import PeopleParts
from sayso.config.wiring.redis_parts import RedisParts, find_redis, risks_of
from sayso.config.wiring.stores import FileStores
from sayso.config.wiring.tools import OpenTools, require_tool_libraries
from sayso.infra.redis.checks import check_guarded, check_reachable, wrong_server
from sayso.infra.redis.client import (
    RedisUnfit,
    connect,
    servers_of,
    set_web_timeouts,
)
from sayso.infra.redis.shared_clock import SharedClock
from sayso.infra.storage.files import NotLocal, check_local
from sayso.infra.storage.objects import StoreRefused, StoreUnavailable
from sayso.infra.storage.s3 import Bucket
from sayso.pending.action import ActionSigner
from sayso.pending.audit.collector import AuditCollector
from sayso.pending.audit.entries import EntrySigner
from sayso.pending.audit.ledger import FILE as LEDGER
from sayso.pending.audit.ledger import AuditLedger
from sayso.pending.consent.phrases import phrasebook
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
from sayso.workers.turn_processor import TurnProcessor

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Services:
    """The wired parts of one process. Lives as long as the process."""

    settings: Settings
    #: Where platforms reach the web.
    public_url: str
    #: The Redis of conversations and actions.
    redis_url: str
    redis: Redis
    #: The server of RQ's keys: that of `redis`, or a separate one.
    queue_url: str
    queue: Redis
    #: The way in for turns: it checks who may talk, then appends them to the mailbox.
    access_control: AccessControl
    #: The adapter of each channel, by the channel's name.
    channels: Mapping[str, Channel]
    #: The files that people send and tools make.
    media: MediaFiles
    #: The clock of Redis, by which links to files expire.
    clock: SharedClock
    #: Long texts of conversations, which are stored outside of Redis.
    texts: TextFiles
    #: Where files and long texts are stored; None for the data folder.
    bucket: Bucket | None
    #: Functions that remove old files and return how many, by the name in the log.
    sweeps: Mapping[str, Callable[[], int]]
    #: The name of this process, and the locked file that shows its machine that it lives.
    worker_lock: WorkerLock
    #: Answers the turns of a conversation, in a worker.
    processor: ConversationProcessor
    #: Forms on web pages, in which people change a call before they confirm it.
    forms: WebForms
    #: Takes up the work of workers that died.
    reaper: Reaper
    #: Moves audit entries from Redis into the ledger of this machine.
    audit_collector: AuditCollector
    #: What became of the last replies of each conversation.
    deliveries: RedisDeliveries
    #: Troubles of channels that an operator has to mend.
    alerts: RedisAlerts
    #: Halts a Redis that lost acknowledged writes.
    data_loss_guard: DataLossGuard
    #: Tells people after such a loss what was forgotten.
    loss_notices: LossNotices
    tools: OpenTools
    #: What the agents share, such as connections to models, which are closed at the end.
    agent_deps: AgentDeps
    #: Keeps messages on disk while Redis is away; None where `spool` is off.
    spool: Spool | None
    #: The claim to the deployment name; None for settings that come from no file.
    deployment: Deployment | None
    #: What health checks show, so that `sayso doctor` tells this bot from another. It is made with
    #: the newest secret key.
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
    """Build the parts of one process: Redis, adapters, tools, agents, mailbox, sender, processor.

    `data` is the data folder, which is created. `redis_url` is used in place of the configured
    Redis, and `public_url` if none is configured; "" for none. A worker (`is_worker`) runs agents,
    and waits while Redis restarts. The web runs none, and refuses webhooks at once while Redis is
    away. `provider` answers in place of the configured models. With `reload`, the files of tools
    are loaded again whenever they are saved.

    Nothing runs yet when this returns, except the connections of a worker to remote sources of
    tools. A web process gets the parts of a worker, too: they hold no lock and write no file until
    they are used. The environment variable SAYSO_DATA is set, unless it is already. Raises
    ConfigError and RedisUnfit, each with its cure.
    """
    check_deciders(settings)

    # The data folder and Redis, which everything else needs. `state` is the part of the data folder
    # that belongs to this deployment alone; several bots may share the rest.
    state = settings.state_folder(data)
    keys = open_data(data, state)
    _check_disks(settings, data, is_worker=is_worker)
    # Tools of the user may store files there. An operator can name another folder for them, such as
    # a common one for processes with separate data folders.
    os.environ.setdefault("SAYSO_DATA", str(data))
    public_url = _trusted_url(settings, public_url)
    redis = _connect(settings, redis_url or find_redis(settings, data), is_worker=is_worker)
    scripts = redis.scripts(CONVERSATION_SCRIPTS)
    wake_up = redis.wake_up

    # Files, and the adapters of the platforms.
    clock = SharedClock(redis.client)
    files = FileStores.open(settings, data, keys, public_url=public_url, link_clock=clock)
    media = files.media
    long_texts = files.texts
    channels = _open_channels(settings, redis, media, keys, public_url)
    people = PeopleParts.open(settings, redis, channels)

    # The agents with their tools. What they acknowledge to people is noted on this machine, too, so
    # that people can be told if Redis loses it.
    tools = _open_tools(settings, is_worker=is_worker)
    deps = _open_agent_deps(settings, data, media, redis, provider, is_worker=is_worker)
    notes = NoteFiles(state / ACKNOWLEDGED)
    work = AcknowledgedWork(notes)
    agents = build_agents(
        deps,
        tools,
        scripts=redis.scripts(ACTION_SCRIPTS),
        media=media,
        keys=keys,
        journals=RedisJournals(scripts),
        texts=long_texts,
        people=people.directory,
        self_service=people.self_service,
        note_effect=work.note_effect,
    )
    if reload:
        reload_on_edit(tools, settings, agents)

    # The way of a turn: through the mailbox to the processor, whose replies the sender delivers.
    texts_for_turn = _texts_for_turn(agents)
    mailbox, access_control = _open_inbox(settings, redis, texts_for_turn, work, channels)
    worker_lock = WorkerLock(state / ALIVE)
    receipts = ReceiptFiles(state / RECEIPTS, worker_lock.name)
    sender = _open_sender(settings, redis, channels, receipts)
    worker_settings = settings.workers
    turn_processor = TurnProcessor(
        mailbox,
        channels,
        agents,
        texts_for_turn,
        redis.cache,
        TurnFetcher(media),
        turn_timeout=worker_settings.turn_timeout,
        joins=worker_settings.join_bursts,
        notice_after=worker_settings.still_after,
        streams=_channels_where(settings, lambda channel: channel.streaming),
        paid_channels=_channels_where(settings, lambda channel: channel.charges_per_message),
    )
    processor = ConversationProcessor(mailbox, sender, turn_processor, worker=worker_lock.name)

    # What helps when Redis is away or has lost data, and the audit log.
    spool = None
    if settings.spool:
        spool = Spool(SpoolFile(state / SPOOL), access_control)
    guard = redis.guard_against_loss(state)
    # The guard sets the event `resumed` when an operator has resumed a halted Redis. It wakes the
    # thread of the notices, which tells people then.
    notices = LossNotices(
        scripts,
        wake_up,
        notes,
        texts_for_turn=texts_for_turn,
        signer=ActionSigner(keys),
        resumed=guard.resumed,
    )
    ledger = AuditLedger(state / LEDGER, EntrySigner(keys))
    actions = RedisActionRepository(redis.scripts(ACTION_SCRIPTS))

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
        texts=long_texts,
        bucket=files.bucket,
        worker_lock=worker_lock,
        processor=processor,
        reaper=redis.reaper(worker_lock),
        spool=spool,
        forms=WebForms(OpenForms(actions, ActionSigner(keys))),
        audit_collector=AuditCollector(redis.client, ledger, prefix=settings.key_prefix),
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
    # A platform that waits too long for its answer sends the webhook again.
    if not is_worker:
        set_web_timeouts(redis.client)
    return redis


def _channels_where(settings: Settings, is_one: Callable[[AnyChannel], bool]) -> frozenset[str]:
    """Return the names of the channels for whose settings `is_one` is true."""
    return frozenset(name for name, channel in settings.channels.items() if is_one(channel))


def _open_channels(
    settings: Settings, redis: RedisParts, media: MediaFiles, keys: Sequence[str], public_url: str
) -> dict[str, Channel]:
    """Return the adapter of each channel, by the channel's name. Raises ConfigError."""
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

    A worker writes the audit ledger, the web the spool. Raises ConfigError.
    """
    state = settings.state_folder(data)
    if is_worker:
        name = "the audit ledger"
        folder = state
    elif settings.spool:
        name = "the spool"
        folder = state / SPOOL
    else:
        return
    try:
        check_local(folder)
    except NotLocal as exc:
        cure = f"give each machine a --data of its own, or mount a local disk at {folder}"
        problem = f"{exc}, and {name} is a SQLite file of one machine: {cure}"
        raise ConfigError([problem]) from exc


def _open_tools(settings: Settings, *, is_worker: bool) -> OpenTools:
    """Load the tools. Only a worker connects to remote sources, because only workers run tools."""
    opened = load_bot_tools(settings, remote=is_worker)
    for problem in opened.problems:
        log.warning("tools.missing", extra={"problem": problem})
    return opened


def _trusted_url(settings: Settings, given_url: str) -> str:
    """Return where platforms reach the web, and allow replies to link to its host.

    Raises ConfigError for a console without a password at a public address.
    """
    public_url = find_public_url(settings, given_url)
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
    """Return a function that returns our own texts in the language of a turn.

    The agent of the turn's channel knows which languages the channel speaks. A turn of a channel
    that is no longer configured has no agent.
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
    """Return the sender of replies, with the rate limits that are configured for channels."""
    rates = {}
    for name, channel in settings.channels.items():
        if channel.messages_per_second is not None:
            rates[name] = channel.messages_per_second
    # A reply has the language of its turn stored in it, so it needs no function of the turn
    # (`_texts_for_turn`) to find its texts.
    return ReplySender(
        RedisOutbox(redis.scripts(CONVERSATION_SCRIPTS), redis.wake_up),
        channels,
        texts_for,
        receipts=receipts,
        alerts=redis.alerts,
        rates=rates,
    )


def _deployment(settings: Settings, keys: Sequence[str]) -> Deployment | None:
    """Return what tells this bot from another one with the same deployment name.

    Return None for settings that come from no file.
    """
    if not settings.name:
        return None
    accounts = {}
    for name, channel in settings.channels.items():
        accounts[name] = f"{channel.platform} {channel.account_id}".strip()
    return Deployment(settings.name, keys, accounts)


def preload(settings: Settings) -> None:
    """Load what forked workers can share: the vendors' libraries and the phrases of a yes.

    Raises ConfigError for a model that cannot be asked, and for a missing library of tools.
    """
    require_tool_libraries(settings)
    # No agent runs here, so the data folder is not used: any path will do.
    deps = AgentDeps(settings, Models(settings), data=Path())
    for name, channel in settings.channels.items():
        # Building them loads the libraries, and finds a model that cannot be asked.
        deps.provider_of(name)
        deps.config_of(name)
        phrasebook(tuple(channel.languages))
    deps.models.preload()
    registry.load_sdks(channel.platform for channel in settings.channels.values())


def open_inbox(settings: Settings, data: Path) -> tuple[AccessControl, RedisIdentities]:
    """Return the access control of turns and the store of people's ids.

    For a command that reads a platform's log of messages. The platform's code that reads the log
    recognizes people itself, so the access control needs no adapters. Raises ConfigError.
    """
    redis = RedisParts.find(settings, data)
    work = AcknowledgedWork(NoteFiles(settings.state_folder(data) / ACKNOWLEDGED))
    texts_for_turn = _texts_for_turn(agents={})
    _, access_control = _open_inbox(settings, redis, texts_for_turn, work, channels={})
    return access_control, redis.identities


def check_bucket(services: Services) -> None:
    """Refuse a bucket that does not exist or denies access. Raises ConfigError.

    One that does not answer is only logged: it may come back.
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
    """Refuse a Redis that would lose acknowledged writes, or that needs no login.

    Log what is risky, and claim the deployment name. While Redis is away, a worker waits, and the
    web gets redis.RedisError. Raises RedisUnfit, also while workers of another bot use the name.
    """
    settings = services.settings
    # This client does not wait, so that a worker says why it waits below. It raises if waiting is
    # of no use, such as for a wrong password.
    with connect(services.redis_url) as client:
        away = check_reachable(client)
    if away and services.is_worker:
        log.warning("redis.away", extra={"reason": away.says, "advice": away.cure})
    # From here on the commands of a worker wait until Redis answers.

    # Ask for the time now: later an event loop would get the machine's own time at first.
    services.clock()

    queue_servers = _queue_servers(services)
    if not settings.allow_open_redis:
        for server in (*servers_of(services.redis), *queue_servers):
            check_guarded(server)

    # This also asks Sentinels about themselves.
    with connect(services.redis_url, patient=services.is_worker) as client:
        for warning in risks_of(client, settings):
            log.warning("redis.risk", extra={"advice": warning})

    cache = settings.agent.cache
    if cache and cache.redis_url and not settings.allow_open_redis:
        with connect(cache.redis_url) as client:
            check_guarded(client)
    _claim_name(services)


def _claim_name(services: Services) -> None:
    """Claim the deployment name for this bot. Raises RedisUnfit while another bot uses it."""
    if services.deployment is None:
        return
    prefix = services.settings.key_prefix
    if not services.is_worker:
        services.deployment.claim(services.redis, prefix=prefix, worker="")
        return

    # A worker first registers as alive. So of two bots that start at the same time, one stops.
    heartbeat = services.reaper.heartbeat
    heartbeat.beat()
    try:
        services.deployment.claim(services.redis, prefix=prefix, worker=services.worker_lock.name)
    except RedisUnfit:
        heartbeat.leave()
        raise


def _queue_servers(services: Services) -> list[Redis]:
    """Return the separate server of the queue, if there is one and it answers.

    While it does not answer, turns wait for it, which is logged. Raises RedisUnfit if RQ cannot run
    there, or if `check_reachable` finds that waiting is of no use, and redis.RedisError.
    """
    if services.queue is services.redis:
        return []
    away = check_reachable(services.queue, "QUEUE_URL")
    if away:
        log.warning("queue.away", extra={"reason": away.says, "advice": away.cure})
        return []
    problem = wrong_server(services.queue, "QUEUE_URL")
    if problem:
        says, cure = problem
        raise RedisUnfit(f"the server of QUEUE_URL {says}: {cure}")
    return [services.queue]
