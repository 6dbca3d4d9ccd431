"""`sayso doctor`: check a running bot from outside, with a harmless webhook for each platform.

Changes nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
from redis import Redis
from redis.exceptions import RedisError, ResponseError

from sayso.channels.registry import open_setup
from sayso.channels.setup import (
    BOT_HEADER,
    CheckResult,
    MessageLog,
    PlatformSetup,
    SetupError,
    SetupOptions,
    bare_url,
    hook_url,
    is_local,
    is_loopback,
)
from sayso.channels.types import SignedWebhook
from sayso.config.settings.channels import AnyChannel
from sayso.config.settings.loader import ConfigError, find_public_url
from sayso.config.settings.schema import Settings
from sayso.config.wiring.bot_state import find_state
from sayso.config.wiring.data_folder import bot_ids, known_keys
from sayso.config.wiring.ingress import find_missed_messages, poll_lock
from sayso.config.wiring.libraries import library_problems
from sayso.config.wiring.redis_parts import find_queue, find_redis, open_deliveries, risks_of
from sayso.config.wiring.stores import FileStores, open_bucket
from sayso.infra.concurrency import call_in_thread
from sayso.infra.manual import manual
from sayso.infra.redis.checks import explain, unreachable, wrong_server
from sayso.infra.redis.client import (
    RedisUnfit,
    address_of,
    check_writable,
    connect,
    nodes_of,
    servers_of,
)
from sayso.infra.redis.failures import Failure
from sayso.infra.redis.leader_lock import LeaderLock
from sayso.infra.storage.objects import StoreUnavailable
from sayso.ops.server.processes import FILE as UP_FILE
from sayso.ops.server.processes import Running
from sayso.workers.alerts import RedisAlerts
from sayso.workers.data_loss.resume import halts_of, is_restoring
from sayso.workers.recovery import Heartbeat, own_version
from sayso.workers.rq.jobs import is_suspended

if TYPE_CHECKING:
    from sayso.agent.providers.base import Provider

#: How long our own web may take to answer, in seconds.
WEB_SECONDS = 10.0
#: By how much the clocks of this machine and of Redis may differ before it is a warning, and a
#: failure, in seconds. Links expire by the one, Slack's signatures by the other, and those are
#: valid for 300 seconds.
CLOCK_SECONDS = 2.0
CLOCK_LIMIT = 60.0
#: After how many seconds without a message a channel counts as silent: a week.
SILENT_SECONDS = 7 * 86400.0
#: The id of a risk (`risks_of`), or of what makes a server unfit, by words in it.
#: The first match counts.
_RISK_IDS = {
    "maxmemory-policy is": "redis-eviction",
    "appendonly is": "redis-persistence",
    "appendfsync is": "redis-fsync",
    "this Redis is": "redis-version",
    "has no replica": "redis-no-replica",
    "redis_wait_replicas": "redis-replication",
    "this Redis forbids": "redis-forbidden",
    "Sentinels": "redis-failover",
}
#: The results of the server's last writes to its disk.
_WRITES = ("aof_last_write_status", "aof_last_bgrewrite_status", "rdb_last_bgsave_status")
#: How far back missed messages are looked for, in seconds.
MISSED_SECONDS = 3600.0
#: The most messages that are looked at, the newest first.
MISSED_MOST = 500


class Doctor:
    """Checks one running bot. Lives as long as one command.

    `web` sends requests to our own web; `own` is this machine's clock, in Unix seconds; `running`
    is the note of a bot that runs on this machine, None where none is known.
    """

    def __init__(
        self,
        settings: Settings,
        data: Path,
        *,
        web: httpx.AsyncClient,
        own: Callable[[], float] = time.time,
        running: Running | None = None,
    ) -> None:
        self._settings = settings
        self._data = data
        self._web = web
        self._own = own
        self._running = running
        given = os.environ.get("SAYSO_PUBLIC_URL", "") or (
            running.public_url or running.url if running else ""
        )
        self._url = find_public_url(settings, given)
        #: Whether it is known where the web answers, and whether webhooks can be tried there:
        #: this bot may answer.
        self._is_known = self._takes_webhooks = bool(settings.public_url or given)
        try:
            self._ids = bot_ids(settings, known_keys(data))
        except OSError:  # of another user
            self._ids = []
        #: Held until the loop ends, which closes their connections.
        self._setups: list[PlatformSetup | MessageLog] = []

    async def results(self) -> AsyncIterator[CheckResult]:
        """Yield the result of every check as soon as it is known.

        What cannot be reached is a result, too.
        """
        yield CheckResult("config", "ok", f"channels: {', '.join(self._settings.channels)}")
        for problem in library_problems(self._settings):
            yield CheckResult(
                "libraries",
                "fail",
                problem,
                "run the command; see that it is the bot's environment",
            )
        steps = [_each(self._redis()), _each(_files(self._settings, self._data)), self._address()]
        steps += [self._channel(name, channel) for name, channel in self._settings.channels.items()]
        steps.append(self._paid_messages())
        for step in steps:
            try:
                async for result in step:
                    yield result
            except OSError as exc:  # a file of another user; the other checks go on
                yield _unusable(exc, self._data)

    def _redis(self) -> Iterator[CheckResult]:
        try:
            client = connect(find_redis(self._settings, self._data))
        except (ConfigError, ValueError) as exc:
            if isinstance(exc, ConfigError) and self._runs_embedded_redis():
                cure = f"see {self._data / 'redis' / 'server.log'}: its disk may be full"
                says = "`sayso up` runs, and the Redis that it brings does not"
                yield CheckResult("redis", "fail", says, cure, id="redis-away")
                return
            if isinstance(exc, ConfigError):
                says = str(exc)
            else:
                says = f"REDIS_URL: {exc}"
            cure = "set REDIS_URL, or give --data of a running `sayso up`"
            yield CheckResult("redis", "fail", says, cure, id="redis-unknown")
            return
        except RedisError as exc:  # a cluster's client connects at once
            yield _away(explain(exc))
            return
        try:
            client.ping()
            yield from self._server(client)
        except RedisError as exc:
            yield _away(unreachable(client, exc))

    def _runs_embedded_redis(self) -> bool:
        is_up = self._running and (self._settings.state_folder(self._data) / UP_FILE).exists()
        return bool(is_up and (self._data / "redis" / "server.log").exists())

    def _server(self, client: Redis) -> Iterator[CheckResult]:
        place = address_of(client)
        wrong = wrong_server(client)
        if wrong:
            yield CheckResult(
                "redis", "fail", f"{place} {wrong[0]}", wrong[1], id="redis-no-primary"
            )
            return
        try:
            check_writable(client, prefix=self._settings.key_prefix)
        except ResponseError as exc:
            says = f"{place} refuses to write: {exc}"
            cure = "give it memory and disk, or the user its commands"
            yield CheckResult("redis", "fail", says, cure, id="redis-read-only")
        yield from _fitness(client, place, self._settings)
        if is_restoring(client, prefix=self._settings.key_prefix):
            says = f"{place} holds a part of a backup, because its restore has not ended"
            yield CheckResult("halt", "fail", says, "run `sayso restore` again, then start the bot")
        elif halts_of(client, prefix=self._settings.key_prefix):
            says = f"{place} has lost acknowledged writes, and is halted"
            cure = f"read {manual('how-to/redis-in-production.md', 'resume-a-redis-that-lost-data')}, then run `sayso redis resume`"
            yield CheckResult("halt", "fail", says, cure)
        yield self._clock(client)
        yield from _workers(client, self._settings.key_prefix)
        for alert in RedisAlerts(client, prefix=self._settings.key_prefix).of(
            self._settings.channels
        ):
            cure = "mend what it names; `sayso deliveries list` has it too"
            yield CheckResult("alert", "fail", alert.text, cure, alert.channel)
        yield from self._queue(client)

    def _queue(self, client: Redis) -> Iterator[CheckResult]:
        """Yield the problems of the queue, which may have its own server."""
        url = find_queue(self._settings)
        try:
            queue = connect(url) if url else client
            wrong = wrong_server(queue) if url else None
            if wrong:
                says = f"the server of QUEUE_URL {wrong[0]}: messages are kept"
                yield CheckResult("queue", "fail", says, wrong[1], id="queue-away")
            elif is_suspended(queue):
                says = "the queue is suspended: messages are kept, and no worker takes them"
                yield CheckResult(
                    "queue", "fail", says, "run `rq resume` on its Redis", id="queue-suspended"
                )
            elif url:
                yield CheckResult("queue", "ok", f"{address_of(queue)} answers")
        except ValueError as exc:
            yield CheckResult("queue", "fail", f"QUEUE_URL: {exc}", "correct it", id="queue-away")
        except RedisError as exc:
            if not url:
                raise
            failure = unreachable(queue, exc, "QUEUE_URL")
            says = f"{failure.says}: messages are kept"
            yield CheckResult("queue", "fail", says, failure.cure, id="queue-away")

    def _clock(self, client: Redis) -> CheckResult:
        ahead: dict[str, float] = {}
        for node in nodes_of(client):
            with suppress(RedisError):  # another check reports it
                before = self._own()
                seconds, microseconds = node.time()
                ahead[address_of(node)] = seconds + microseconds / 1e6 - (before + self._own()) / 2
        return clock_result(ahead)

    async def _address(self) -> AsyncIterator[CheckResult]:
        if self._running and self._running.url != self._url:
            yield await self._answers(
                "web", self._running.url, "see its log; it listens on this machine"
            )
        if not self._is_known:
            says = f"no web is known to run on {self._data}, and neither public_url nor SAYSO_PUBLIC_URL is set"
            cure = "start `sayso web` or `sayso up` on this machine, or say where it answers with SAYSO_PUBLIC_URL"
            yield CheckResult("healthz", "fail", says, cure, id="web-unknown")
            return
        given = bare_url(self._url)
        if is_local(self._url):
            vendors = [
                name
                for name, channel in self._settings.channels.items()
                if channel.needs_public_url
            ]
            if vendors:
                says = f"{given} is this machine or its own network: {', '.join(vendors)} would never reach it"
                cure = "set public_url to the https address at which your proxy or tunnel answers from outside"
                yield CheckResult("public_url", "fail", says, cure)
        yield await self._answers(
            "healthz", self._url, "start the web, and see that public_url leads to it"
        )

    async def _answers(self, check: str, url: str, cure: str) -> CheckResult:
        """Return whether this bot answers at a URL.

        `cure` is for a URL that does not answer at all.
        """
        given = bare_url(url)
        try:
            answer = await self._web.get(f"{url}/healthz")
            is_sayso = answer.status_code == 200 and answer.json() == {"status": "ok"}
        except (httpx.HTTPError, httpx.InvalidURL) as exc:
            self._takes_webhooks = self._takes_webhooks and url != self._url
            says = f"{given} does not answer from here ({type(exc).__name__})"
            return CheckResult(check, "fail", says, cure, id="web-away")
        except ValueError:  # no JSON
            is_sayso = False
        if not is_sayso:
            says = f"{given}/healthz was answered with {answer.status_code}, and not by Sayso"
            cure = "see what public_url leads to: the proxy must pass every path on"
            return CheckResult(check, "fail", says, cure, id="web-foreign")
        shown = answer.headers.get(BOT_HEADER, "")
        # Without the header it is an older version.
        if shown and self._ids and shown not in self._ids:
            self._takes_webhooks = self._takes_webhooks and url != self._url
            says = f"another bot of Sayso answers at {given}, or this one with other secret keys"
            cure = "see what listens there and where public_url leads; give both the same SAYSO_SECRET_KEYS and name"
            return CheckResult(check, "fail", says, cure, id="web-other-bot")
        return CheckResult(
            check, "ok", f"{given} answers{', for this machine only' if is_local(url) else ''}"
        )

    async def _channel(self, name: str, channel: AnyChannel) -> AsyncIterator[CheckResult]:
        state = find_state(self._settings, self._data)
        setup = open_setup(name, channel, self._url, SetupOptions(state=state))
        if setup is None:
            return
        self._setups.append(setup)
        checks = await setup.check()
        for finding in checks:
            yield finding
        if checks[0].state != "fail":  # the first one is its account
            async for finding in self._messages(name, setup):
                yield finding
        async for finding in self._silence(name, channel):
            yield finding
        if channel.polls:
            try:
                client = connect(find_redis(self._settings, self._data))
                asks = LeaderLock(
                    client, poll_lock(channel), prefix=self._settings.key_prefix
                ).is_held()
            except (ConfigError, ValueError, RedisError):
                asks = False  # that Redis is away is reported by another check
            if asks:
                yield CheckResult("poller", "ok", "a process polls for its updates", channel=name)
            else:
                cure = "run `sayso poll`; `sayso up` does"
                yield CheckResult("poller", "fail", "no process polls for its updates", cure, name)
        forged = setup.probe(self._own(), forged=True)
        signed = setup.probe(self._own())
        if forged and signed and self._takes_webhooks:
            yield await _probe(self._web, name, hook_url(self._url, name), forged, signed)

    async def _silence(self, name: str, channel: AnyChannel) -> AsyncIterator[CheckResult]:
        """Check when a message of the channel came in last.

        A bot without messages is no failure.
        """
        if channel.has_page:
            return
        try:
            client = connect(find_redis(self._settings, self._data))
            seconds = RedisAlerts(client, prefix=self._settings.key_prefix).silence(name)
        except (ConfigError, ValueError, RedisError):
            return  # that Redis is away is reported by another check
        cure = "write to the bot from its platform; if nothing arrives, its webhook leads elsewhere or is turned off"
        if seconds is None:
            yield CheckResult(
                "silence", "warn", "no message has come in, in 90 days at least", cure, name
            )
        elif seconds > SILENT_SECONDS:
            says = f"no message has come in for {seconds / 86400:.0f} days"
            yield CheckResult("silence", "warn", says, cure, name)
        else:
            yield CheckResult(
                "silence", "ok", f"a message came in {seconds / 3600:.0f} hours ago", channel=name
            )

    async def _paid_messages(self) -> AsyncIterator[CheckResult]:
        """Show what the channels sent whose platform takes money for each message,
        and warn of settings that add some.

        Nothing is counted while Redis is away, which another check says.
        """
        channels = self._settings.channels.items()
        charged = {name: channel for name, channel in channels if channel.charges_per_message}
        if not charged:
            return
        for name, channel in charged.items():
            for finding in _added_messages(self._settings, name, channel):
                yield finding
        try:
            deliveries, _ = open_deliveries(self._settings, self._data)
            today = await call_in_thread(deliveries.paid_messages, 0)
            yesterday = await call_in_thread(deliveries.paid_messages, 1)
        except (ConfigError, ValueError, RedisError):
            return
        for name in charged:
            before = _counted(yesterday, name)
            says = f"paid messages today: {_counted(today, name)}; yesterday: {before} (UTC)"
            yield CheckResult("paid", "ok", says, channel=name)

    async def _messages(self, name: str, setup: PlatformSetup) -> AsyncIterator[CheckResult]:
        """Check whether the platform's log has messages that never reached us.

        Nothing is said for a platform without a log, and while Redis is away,
        which another check says.
        """
        try:
            listed = setup.message_log()
        except SetupError:
            return
        self._setups.append(listed)
        try:
            found = find_missed_messages(
                self._settings,
                self._data,
                name,
                listed,
                MISSED_SECONDS,
                take=False,
                newest=MISSED_MOST,
                clock=self._own,
            )
            messages = [each async for each in found]
        except SetupError as exc:
            yield CheckResult("messages", "fail", exc.says, exc.cure, name, id="messages-unknown")
            return
        except (ConfigError, RedisError):
            return
        count = sum(each.state == "missed" for each in messages)
        if count:
            says = (
                f"{count} of the {len(messages)} newest messages of the last hour never reached us"
            )
            yield CheckResult("messages", "fail", says, f"run `sayso channel recover {name}`", name)
        else:
            says = f"{len(messages)} on the platform's list of the last hour, none that never reached us"
            yield CheckResult("messages", "ok", says, channel=name)


def _added_messages(settings: Settings, name: str, channel: AnyChannel) -> Iterator[CheckResult]:
    """Yield a warning where the configuration adds messages to a channel
    whose platform takes money for each.
    """
    added = []
    if channel.expiry_notice:
        added.append("expiry_notice sends one for each question that ends unanswered")
    if not settings.workers.join_bursts:
        added.append(
            "without workers.join_bursts each of several texts in a row gets an answer of its own"
        )
    if added:
        says = f"the platform takes money for each message: {'; '.join(added)}"
        cure = "leave these keys out, unless people need those messages"
        yield CheckResult("paid", "warn", says, cure, name, id="paid-messages")


def _counted(counts: Mapping[tuple[str, str], int], name: str) -> str:
    """Return the paid messages of a channel by price class, such as "3 (2 service, 1 utility)"."""
    classes = {
        kind: number for (channel, kind), number in sorted(counts.items()) if channel == name
    }
    listed = ", ".join(f"{number} {kind}" for kind, number in classes.items())
    if classes:
        return f"{sum(classes.values())} ({listed})"
    return "none"


async def _probe(
    web: httpx.AsyncClient, name: str, url: str, forged: SignedWebhook, signed: SignedWebhook
) -> CheckResult:
    """Send a channel a harmless webhook with a wrong and with the right signature.

    The forged one goes first: where another server answers, it never gets a right signature.
    """

    def failure(says: str, cure: str) -> CheckResult:
        return CheckResult("signature", "fail", says, cure, name)

    try:
        for (headers, body), due, kind in ((forged, 403, "forged"), (signed, 200, "signed")):
            answer = await web.post(url, headers=headers, content=body)
            if answer.status_code != due:
                says = f"a {kind} webhook was answered with {answer.status_code}, not {due}"
                return failure(says, _cure(answer, forged=kind == "forged"))
    except (httpx.HTTPError, httpx.InvalidURL) as exc:
        says = f"{bare_url(url)} does not answer ({type(exc).__name__})"
        return failure(
            says, "see that the web runs and that public_url leads to it, also from this machine"
        )
    says = f"{bare_url(url)} takes what is signed and refuses what is forged"
    return CheckResult("signature", "ok", says, channel=name)


def _cure(answer: httpx.Response, *, forged: bool) -> str:
    """Return the cure where a forged webhook was not refused, or a signed one was.

    To a forged one another server answered, or another bot.
    """
    if not forged and answer.status_code == 403:
        return (
            "the running web has another secret or another public_url than this configuration, its clock is wrong, or "
            "a proxy changes the request: restart the web with this configuration"
        )
    if not forged:
        return "see the web's log: it read the webhook, and could not keep it"
    if answer.is_redirect:
        return "platforms lose a webhook on a redirect: write public_url as the address that it leads to"
    if answer.status_code == 404:
        return "restart the web with this configuration, or have the proxy pass /hooks/… on with its path as it is"
    if answer.is_success:
        return "something else answers there, or the channel's secret is a guess: see what public_url leads to"
    return "see the web's log, and the proxy's: neither may ask for a password or lack a server behind it"


async def check_models(settings: Settings) -> AsyncIterator[CheckResult]:
    """Ask each model of the configuration for one word, which costs a few tokens,
    and yield the results.

    A fallback is asked by itself: it would hide that the model before it does not answer.
    """
    from sayso.config.wiring.models import Models

    models = Models(settings)
    asked: set[int] = set()
    unusable: set[str] = set()
    for channel in settings.channels:
        own = settings.agent_of(channel).model
        try:
            chain = models.chain(channel)
        except ConfigError as exc:
            if own not in unusable:
                yield _model_failure(own, exc)
            unusable.add(own)
            continue
        for model, provider in chain:
            if id(provider) not in asked:
                yield await _answer_of(model, provider)
            asked.add(id(provider))
    await models.aclose()


async def _answer_of(model: str, provider: Provider) -> CheckResult:
    """Ask a model for one word, and return the result."""
    from sayso.agent.messages import Message, Role
    from sayso.agent.providers.base import ProviderError, ProviderRequest, acall

    request = ProviderRequest(
        model=model.partition(":")[2] or model,
        system_prompt="",
        messages=[Message(Role.USER, "Say: ok")],
        max_tokens=200,
        timeout=30.0,
    )
    try:
        await acall(provider, request)
    except ProviderError as exc:
        return _model_failure(model, exc)
    return CheckResult("model", "ok", f"{model} answers")


def _model_failure(model: str, error: Exception) -> CheckResult:
    return CheckResult(
        "model", "fail", f"{model}: {error}", "see its key, its name and its vendor's status page"
    )


def clock_result(ahead: Mapping[str, float]) -> CheckResult:
    """Return the result for servers whose clocks are so many seconds ahead of this machine's,
    by their addresses.
    """
    fast = max(ahead, key=ahead.__getitem__, default="")
    slow = min(ahead, key=ahead.__getitem__, default="")
    apart, off = (ahead[fast] - ahead[slow], max(ahead.values(), key=abs)) if ahead else (0.0, 0.0)
    if apart > CLOCK_SECONDS:
        says = f"the clocks of {slow} and {fast} are {apart:.1f} s apart: a lease may end early or late after a failover"
        return CheckResult(
            "clock",
            "warn" if apart <= CLOCK_LIMIT else "fail",
            says,
            "have all set their clocks by NTP",
        )
    if abs(off) <= CLOCK_SECONDS:
        return CheckResult(
            "clock", "ok", f"this machine and Redis agree within {CLOCK_SECONDS:g} s"
        )
    says = f"Redis is {abs(off):.1f} s {'ahead of' if off > 0 else 'behind'} us"
    cure = "have both set their clocks by NTP: links expire by one, and signatures of webhooks by the other"
    return CheckResult("clock", "warn" if abs(off) <= CLOCK_LIMIT else "fail", says, cure)


def _fitness(client: Redis, place: str, settings: Settings) -> Iterator[CheckResult]:
    """Yield the settings of a server that may lose messages, or one result that says it is fit."""
    try:
        risks = risks_of(client, settings)
    except RedisUnfit as exc:
        yield CheckResult("redis", "fail", f"{place} is not fit", str(exc), id=_risk_id(str(exc)))
        risks = []
    else:
        if not risks:
            yield CheckResult("redis", "ok", f"{place} answers, and keeps what it acknowledged")
    for risk in risks:
        says, _, cure = risk.partition(": ")
        yield CheckResult("redis", "warn", f"{place}: {says}", cure or risk, id=_risk_id(risk))
    for server in servers_of(client):
        for finding in _safety(server, address_of(server)):
            if finding.id not in map(_risk_id, risks):  # Sentinels and a cluster say so, too
                yield finding


def _away(failure: Failure) -> CheckResult:
    return CheckResult("redis", "fail", failure.says, failure.cure, id="redis-away")


def _risk_id(risk: str) -> str:
    """Return the id of the finding for a risk, or for an unfit server."""
    return next((name for words, name in _RISK_IDS.items() if words in risk), "redis-settings")


def _safety(client: Redis, place: str) -> Iterator[CheckResult]:
    """Yield the risks to a server's data that are not settings.

    A server that hides its INFO has no findings.
    """
    try:
        persistence = client.info("persistence")
        replication = client.info("replication")
    except ResponseError:
        return
    failing = [name for name in _WRITES if persistence.get(name) not in (None, "ok")]
    if failing:
        says = f"{place} could not write its files ({', '.join(failing)})"
        cure = "see its log: the disk may be full"
        yield CheckResult("redis", "fail", says, cure, id="redis-not-persisting")
    # On this machine a replica elsewhere would outlive the bot that needs it.
    host = place.rpartition(":")[0].strip("[]")
    is_here = place.startswith("/") or host == "localhost" or is_loopback(host)
    if (
        not is_here
        and replication.get("role") == "master"
        and replication.get("connected_slaves") == 0
    ):
        yield no_replica(place)


def no_replica(place: str) -> CheckResult:
    """Return the warning about a server without a replica."""
    says = f"{place} has no replica: if its machine is lost, all that came in since the last backup is lost"
    cure = "add a replica and Sentinels, or use a managed Redis with a standby"
    return CheckResult("redis", "warn", says, cure, id="redis-no-replica")


def _workers(client: Redis, prefix: str) -> Iterator[CheckResult]:
    heartbeat = Heartbeat(client, prefix=prefix)
    count = heartbeat.count()
    ours = own_version()
    if not count:
        says = "none is alive: messages are stored and not answered"
        yield CheckResult(
            "workers", "fail", says, "start one with `sayso worker`", id="workers-none"
        )
        return
    yield CheckResult("workers", "ok", f"{count} alive")
    others = {
        version: number
        for version, number in heartbeat.versions().items()
        if version not in ("", ours)
    }
    if ours and others:
        running = ", ".join(f"{number} of {version}" for version, number in sorted(others.items()))
        says = f"{running}, while this command is {ours}"
        cure = "restart them; during an update wait for its end"
        yield CheckResult("workers", "warn", says, cure, id="workers-old")


async def _each(results: Iterator[CheckResult]) -> AsyncIterator[CheckResult]:
    for result in results:
        yield result


def _files(settings: Settings, data: Path) -> Iterator[CheckResult]:
    """Check where files are kept: whether the bucket takes them, and whether there is room."""
    if not data.exists():
        return
    try:
        bucket = open_bucket(settings)
        if bucket:
            bucket.check()
            yield CheckResult("files", "ok", f"{bucket.url} keeps files and long texts")
        full = FileStores.open(settings, data, ["no link is made"]).media.full()
    except ConfigError as exc:
        yield CheckResult("files", "fail", str(exc), "correct it, as the line says")
    except StoreUnavailable as exc:
        cure = exc.cure or "see that its server runs, and that this machine reaches it"
        yield CheckResult("files", "fail", exc.says, cure)
    except OSError as exc:
        yield _unusable(exc, data)
    else:
        cure = "free some of it, or change `media:` in the configuration"
        yield (
            CheckResult("disk", "fail", full, cure)
            if full
            else CheckResult("disk", "ok", "there is room for files")
        )


def _unusable(exc: OSError, data: Path) -> CheckResult:
    """Return the result for a file or folder of the data folder that this user may not use."""
    says = f"{str(exc.filename or data)!r} cannot be used ({exc.strerror})"
    cure = "run this as the user of the bot, let this user use it, or name another data folder with --data"
    return CheckResult("disk", "fail", says, cure)
