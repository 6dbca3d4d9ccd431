"""The checks of `sayso doctor`, which looks at a running bot from outside.

`Doctor` checks Redis, the queue, workers, disks, the web and each channel. `check_models` asks the
models. A check yields its `CheckResult`s: usually one where all is fine, too, but none where there
is nothing to check, such as no halt and no alert, or where another result says that Redis is away.
The `id` of a result that is not fine names its section on the page of the doctor's findings.
Nothing of the bot is changed: the webhooks that each channel is sent have no message in them.
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
    CheckState,
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
from sayso.config.settings.agent import name_of
from sayso.config.settings.channels import AnyChannel
from sayso.config.settings.loader import ConfigError, find_public_url
from sayso.config.settings.schema import Settings
from sayso.config.wiring.bot_state import find_state
from sayso.config.wiring.data_folder import bot_ids, known_keys
from sayso.config.wiring.ingress import find_missed_messages, poll_lock
from sayso.config.wiring.libraries import library_problems
from sayso.config.wiring.redis_parts import (
    check_queue_url,
    find_queue,
    find_redis,
    open_deliveries,
    risks_of,
)
from sayso.config.wiring.stores import FileStores, open_bucket
from sayso.infra.concurrency import call_in_thread
from sayso.infra.manual import manual
from sayso.infra.redis.checks import check_writable, explain, unreachable, wrong_server
from sayso.infra.redis.client import (
    RedisUnfit,
    address_of,
    connect,
    nodes_of,
    servers_of,
)
from sayso.infra.redis.failures import Failure
from sayso.infra.redis.leader_lock import LeaderLock
from sayso.infra.storage.objects import StoreUnavailable
from sayso.ops.checks.reach import check_deciders_now
from sayso.ops.server.processes import UP_FILE, RunningBot
from sayso.workers.alerts import RedisAlerts
from sayso.workers.data_loss.resume import halts_of, is_restoring
from sayso.workers.recovery import Heartbeat, own_version
from sayso.workers.rq.jobs import is_suspended

if TYPE_CHECKING:
    from sayso.agent.providers.base import Provider

#: How long our own web may take to answer, in seconds.
WEB_SECONDS = 10.0
#: By how much the clocks of this machine and of the servers of Redis may differ before it is a
#: warning, in seconds. Links expire by the clock of Redis. Slack's signatures are checked by ours,
#: and are valid for 300 seconds.
CLOCK_SECONDS = 2.0
#: By how much any two of these clocks may differ before it is a failure, in seconds.
CLOCK_LIMIT = 60.0
#: After how many seconds without a message a channel counts as silent: a week.
SILENT_SECONDS = 7 * 86400.0
#: The id of the finding for a risk, by words in its text. The first match counts. The texts are
#: those of `risks_of` and of its RedisUnfit, which other callers print unchanged.
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
#: The fields of INFO with the results of the server's last writes to its disk.
_WRITES = ("aof_last_write_status", "aof_last_bgrewrite_status", "rdb_last_bgsave_status")
#: How far back missed messages are looked for, in seconds.
MISSED_SECONDS = 3600.0
#: The most messages of a platform's log that are looked at, the newest first.
MAX_LOGGED_MESSAGES = 500


class Doctor:
    """Checks one running bot. Lives as long as one command.

    `data` is the data folder. `web` sends requests to our own web; `clock` is this machine's, in
    Unix seconds; `running` is the bot that runs on this machine, None where none is known.
    """

    def __init__(
        self,
        settings: Settings,
        data: Path,
        *,
        web: httpx.AsyncClient,
        clock: Callable[[], float] = time.time,
        running: RunningBot | None = None,
    ) -> None:
        self._settings = settings
        self._data = data
        self._web = web
        self._clock = clock
        self._running = running

        given_url = os.environ.get("SAYSO_PUBLIC_URL", "")
        if not given_url and running:
            given_url = running.public_url or running.url
        self._url = find_public_url(settings, given_url)
        #: Whether it is known where the web answers. Otherwise `_url` is only a default.
        self._has_url = bool(settings.public_url or given_url)
        #: Whether test webhooks may be sent there. `_check_address` sets it.
        self._takes_webhooks = False

        #: What our web calls itself in health checks, one name for each secret key.
        self._bot_ids: list[str] = []
        with suppress(OSError):  # the keys belong to another user
            self._bot_ids = bot_ids(settings, known_keys(data))
        #: Everything that has connections to platforms. It is held here, so that the connections
        #: stay open as long as the event loop.
        self._setups: list[PlatformSetup | MessageLog] = []

    async def results(self) -> AsyncIterator[CheckResult]:
        """Yield the result of every check as soon as it is known.

        A part that cannot be reached is a result, too. Raises no errors of Redis, HTTP or files.
        """
        yield CheckResult("config", "ok", f"channels: {', '.join(self._settings.channels)}")
        for problem in library_problems(self._settings):
            yield CheckResult(
                "libraries",
                "fail",
                problem,
                "run the command; see that it is the bot's environment",
            )

        groups = [
            _each(self._check_redis()),
            _each(_check_files(self._settings, self._data)),
            # Before the channels: it finds out whether their webhooks may be sent.
            self._check_address(),
        ]
        for name, channel in self._settings.channels.items():
            groups.append(self._check_channel(name, channel))
        groups.append(self._check_paid_messages())
        groups.append(check_deciders_now(self._settings, self._data, self._clock()))
        for group in groups:
            try:
                async for result in group:
                    yield result
            except OSError as exc:
                # A file of another user ends this group of checks. The others go on.
                yield _unusable(exc, self._data)

    def _check_redis(self) -> Iterator[CheckResult]:
        """Connect to the bot's Redis, and check all that is stored there and waits there."""
        try:
            client = connect(find_redis(self._settings, self._data))
        except ConfigError as exc:
            yield self._unknown_redis(exc)
            return
        except ValueError as exc:
            cure = "set REDIS_URL, or give --data of a running `sayso up`"
            yield CheckResult("redis", "fail", f"REDIS_URL: {exc}", cure, id="redis-unknown")
            return
        except RedisError as exc:
            # Only a cluster's client connects when it is made.
            yield _away(explain(exc))
            return

        try:
            client.ping()
            yield from self._check_server(client)
        except RedisError as exc:
            yield _away(unreachable(client, exc))

    def _unknown_redis(self, error: ConfigError) -> CheckResult:
        """Return the result where no Redis is configured, and none of `sayso up` answers."""
        log_file = self._data / "redis" / "server.log"
        up_file = self._settings.state_folder(self._data) / UP_FILE
        is_up = self._running is not None and up_file.exists()
        if is_up and log_file.exists():
            says = "`sayso up` runs, and the Redis that it brings does not"
            cure = f"see {log_file}: its disk may be full"
            return CheckResult("redis", "fail", says, cure, id="redis-away")
        cure = "set REDIS_URL, or give --data of a running `sayso up`"
        return CheckResult("redis", "fail", str(error), cure, id="redis-unknown")

    def _check_server(self, client: Redis) -> Iterator[CheckResult]:
        """Check a Redis that answers: whether it can be trusted, and what waits there."""
        place = address_of(client)
        prefix = self._settings.key_prefix
        problem = wrong_server(client)
        if problem:
            says, cure = problem
            yield CheckResult("redis", "fail", f"{place} {says}", cure, id="redis-no-primary")
            return

        try:
            check_writable(client, prefix=prefix)
        except ResponseError as exc:
            says = f"{place} refuses to write: {exc}"
            cure = "give it memory and disk, or the user its commands"
            yield CheckResult("redis", "fail", says, cure, id="redis-read-only")
        yield from _check_fitness(client, place, self._settings)

        if is_restoring(client, prefix=prefix):
            says = f"{place} holds a part of a backup, because its restore has not ended"
            yield CheckResult("halt", "fail", says, "run `sayso restore` again, then start the bot")
        elif halts_of(client, prefix=prefix):
            says = f"{place} has lost acknowledged writes, and is halted"
            page = manual("how-to/redis-in-production.md", "resume-a-redis-that-lost-data")
            yield CheckResult("halt", "fail", says, f"read {page}, then run `sayso redis resume`")

        yield self._compare_clocks(client)
        yield from _check_workers(client, prefix)
        for alert in RedisAlerts(client, prefix=prefix).of(self._settings.channels):
            cure = "mend what it names; `sayso deliveries list` has it too"
            yield CheckResult("alert", "fail", alert.text, cure, alert.channel)
        yield from self._check_queue(client)

    def _check_queue(self, client: Redis) -> Iterator[CheckResult]:
        """Check RQ's queue. `client` is that of the bot's Redis, which has it unless QUEUE_URL is set.

        Raises redis.RedisError of the bot's Redis.
        """
        url = find_queue(self._settings)
        try:
            check_queue_url(url, find_redis(self._settings, self._data))
        except ConfigError as exc:
            says, _, cure = str(exc).partition(": ")
            yield CheckResult("queue", "fail", says, cure, id="queue-away")
            return
        if url:
            yield from _check_queue_server(url)
        elif is_suspended(client):
            yield _suspended_queue()

    def _compare_clocks(self, client: Redis) -> CheckResult:
        """Return the result for the clocks of this machine and of all servers of a Redis."""
        seconds_ahead: dict[str, float] = {}
        for node in nodes_of(client):
            with suppress(RedisError):  # a server that does not answer is left out
                before = self._clock()
                seconds, microseconds = node.time()
                # The server read its clock about in the middle of the call.
                ours = (before + self._clock()) / 2
                seconds_ahead[address_of(node)] = seconds + microseconds / 1e6 - ours
        return clock_result(seconds_ahead)

    async def _check_address(self) -> AsyncIterator[CheckResult]:
        """Check that the web answers on this machine, and at the address that platforms use."""
        if self._running and self._running.url != self._url:
            # On this machine the web has another address than for platforms.
            cure = "see its log; it listens on this machine"
            yield await self._check_health("web", self._running.url, cure)
        if not self._has_url:
            says = f"no web is known to run on {self._data}, and neither public_url nor SAYSO_PUBLIC_URL is set"
            cure = "start `sayso web` or `sayso up` on this machine, or say where it answers with SAYSO_PUBLIC_URL"
            yield CheckResult("healthz", "fail", says, cure, id="web-unknown")
            return

        channels = self._settings.channels.items()
        vendors = [name for name, channel in channels if channel.needs_public_url]
        if vendors and is_local(self._url):
            shown_url = bare_url(self._url)
            says = f"{shown_url} is this machine or its own network: {', '.join(vendors)} would never reach it"
            cure = "set public_url to the https address at which your proxy or tunnel answers from outside"
            yield CheckResult("public_url", "fail", says, cure)
        cure = "start the web, and see that public_url leads to it"
        result = await self._check_health("healthz", self._url, cure)
        # To a foreign server, such as a proxy, the forged webhook is sent all the same: its answer,
        # such as a redirect, often shows the cure.
        self._takes_webhooks = result.id not in ("web-away", "web-other-bot")
        yield result

    async def _check_health(self, check: str, url: str, cure: str) -> CheckResult:
        """Return whether this bot answers at a URL.

        `check` is the name of the result. `cure` is for a URL that does not answer at all.
        """
        shown_url = bare_url(url)
        try:
            answer = await self._web.get(f"{url}/healthz")
            is_sayso = answer.status_code == 200 and answer.json() == {"status": "ok"}
        except (httpx.HTTPError, httpx.InvalidURL) as exc:
            says = f"{shown_url} does not answer from here ({type(exc).__name__})"
            return CheckResult(check, "fail", says, cure, id="web-away")
        except ValueError:  # the answer is not JSON
            is_sayso = False
        if not is_sayso:
            says = f"{shown_url}/healthz was answered with {answer.status_code}, and not by Sayso"
            cure = "see what public_url leads to: the proxy must pass every path on"
            return CheckResult(check, "fail", says, cure, id="web-foreign")

        # Without the header it is an older version.
        bot_id = answer.headers.get(BOT_HEADER, "")
        if bot_id and self._bot_ids and bot_id not in self._bot_ids:
            says = (
                f"another bot of Sayso answers at {shown_url}, or this one with other secret keys"
            )
            cure = "see what listens there and where public_url leads; give both the same SAYSO_SECRET_KEYS and name"
            return CheckResult(check, "fail", says, cure, id="web-other-bot")
        reach = ", for this machine only" if is_local(url) else ""
        return CheckResult(check, "ok", f"{shown_url} answers{reach}")

    async def _check_channel(self, name: str, channel: AnyChannel) -> AsyncIterator[CheckResult]:
        """Check a channel at its platform, and send it a forged and a signed webhook."""
        state = find_state(self._settings, self._data)
        setup = open_setup(name, channel, self._url, SetupOptions(state=state))
        if setup is None:
            return
        self._setups.append(setup)

        checks = await setup.check()
        for finding in checks:
            yield finding
        # Each platform checks its account first (`PlatformSetup.check`). Without a valid account it
        # lists no messages.
        if checks[0].state != "fail":
            async for finding in self._check_messages(name, setup):
                yield finding
        for finding in self._check_silence(name, channel):
            yield finding
        for finding in self._check_poller(name, channel):
            yield finding

        forged = setup.probe(self._clock(), forged=True)
        signed = setup.probe(self._clock())
        if forged and signed and self._takes_webhooks:
            yield await _probe(self._web, name, hook_url(self._url, name), forged, signed)

    def _check_poller(self, name: str, channel: AnyChannel) -> Iterator[CheckResult]:
        """Check that a process polls for the updates of a channel, if the channel needs one.

        While Redis is away there is no result: the poller's lock cannot be read.
        """
        if not channel.polls:
            return
        try:
            client = connect(find_redis(self._settings, self._data))
            lock = LeaderLock(client, poll_lock(channel), prefix=self._settings.key_prefix)
            is_polled = lock.is_held()
        except (ConfigError, ValueError, RedisError):
            return  # that Redis is away is reported by another check
        if is_polled:
            yield CheckResult("poller", "ok", "a process polls for its updates", channel=name)
        else:
            cure = "run `sayso poll`; `sayso up` does"
            yield CheckResult("poller", "fail", "no process polls for its updates", cure, name)

    def _check_silence(self, name: str, channel: AnyChannel) -> Iterator[CheckResult]:
        """Check when a message of the channel came in last.

        Silence is only a warning: people may have written nothing. On a channel with its own page
        it means nothing, because no platform stands between the page and the bot.
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
                "silence", "warn", "no message has come in yet, or none for 90 days", cure, name
            )
        elif seconds > SILENT_SECONDS:
            says = f"no message has come in for {seconds / 86400:.0f} days"
            yield CheckResult("silence", "warn", says, cure, name)
        else:
            says = f"the last message came in {seconds / 3600:.1f} hours ago"
            yield CheckResult("silence", "ok", says, channel=name)

    async def _check_paid_messages(self) -> AsyncIterator[CheckResult]:
        """Count the messages that were sent on channels whose platform takes money for each.

        Also warn of settings that add such messages. While Redis is away, which another check
        reports, nothing is counted.
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
            count_today = _by_price_class(today, name)
            count_yesterday = _by_price_class(yesterday, name)
            says = f"paid messages today: {count_today}; yesterday: {count_yesterday} (UTC)"
            yield CheckResult("paid", "ok", says, channel=name)

    async def _check_messages(self, name: str, setup: PlatformSetup) -> AsyncIterator[CheckResult]:
        """Check whether the platform's log has messages that never reached us.

        There is no result for a platform without a log, and none while Redis is away, which another
        check reports.
        """
        try:
            message_log = setup.message_log()
        except SetupError:
            return
        self._setups.append(message_log)

        try:
            logged = find_missed_messages(
                self._settings,
                self._data,
                name,
                message_log,
                MISSED_SECONDS,
                take=False,  # the doctor changes nothing: only `sayso channel recover` stores them
                newest=MAX_LOGGED_MESSAGES,
                clock=self._clock,
            )
            messages = [each async for each in logged]
        except SetupError as exc:
            yield CheckResult("messages", "fail", exc.says, exc.cure, name, id="messages-unknown")
            return
        except (ConfigError, RedisError):
            return

        missed = sum(each.state == "missed" for each in messages)
        if missed:
            says = (
                f"{missed} of the {len(messages)} newest messages of the last hour never reached us"
            )
            yield CheckResult("messages", "fail", says, f"run `sayso channel recover {name}`", name)
        else:
            says = f"{len(messages)} on the platform's list of the last hour, none that never reached us"
            yield CheckResult("messages", "ok", says, channel=name)


def _check_queue_server(url: str) -> Iterator[CheckResult]:
    """Check the separate server of the queue. While it cannot be used, messages wait in Redis."""
    try:
        queue = connect(url)
    except ValueError as exc:
        yield CheckResult("queue", "fail", f"QUEUE_URL: {exc}", "correct it", id="queue-away")
        return

    try:
        problem = wrong_server(queue, "QUEUE_URL")
        if problem:
            says, cure = problem
            says = f"the server of QUEUE_URL {says}: messages are kept"
            yield CheckResult("queue", "fail", says, cure, id="queue-away")
        elif is_suspended(queue):
            yield _suspended_queue()
        else:
            yield CheckResult("queue", "ok", f"{address_of(queue)} answers")
    except RedisError as exc:
        failure = unreachable(queue, exc, "QUEUE_URL")
        says = f"{failure.says}: messages are kept"
        yield CheckResult("queue", "fail", says, failure.cure, id="queue-away")


def _suspended_queue() -> CheckResult:
    """Return the result for a queue that `rq suspend` has stopped."""
    says = "the queue is suspended: messages are kept, and no worker takes them"
    cure = "run `rq resume` on its Redis"
    return CheckResult("queue", "fail", says, cure, id="queue-suspended")


def _added_messages(settings: Settings, name: str, channel: AnyChannel) -> Iterator[CheckResult]:
    """Yield a warning where settings add messages to a channel that costs money for each."""
    reasons = []
    if channel.expiry_notice:
        reasons.append("expiry_notice sends one for each question that ends unanswered")
    if not settings.workers.join_bursts:
        reasons.append(
            "without workers.join_bursts each of several texts in a row gets an answer of its own"
        )
    if reasons:
        says = f"the platform takes money for each message: {'; '.join(reasons)}"
        cure = "leave these keys out, unless people need those messages"
        yield CheckResult("paid", "warn", says, cure, name, id="paid-messages")


def _by_price_class(counts: Mapping[tuple[str, str], int], name: str) -> str:
    """Return the paid messages of a channel by price class, such as "3 (2 service, 1 utility)".

    `counts` has them by channel and price class.
    """
    classes = {
        kind: number for (channel, kind), number in sorted(counts.items()) if channel == name
    }
    if not classes:
        return "none"
    parts = ", ".join(f"{number} {kind}" for kind, number in classes.items())
    return f"{sum(classes.values())} ({parts})"


async def _probe(
    web: httpx.AsyncClient, name: str, url: str, forged: SignedWebhook, signed: SignedWebhook
) -> CheckResult:
    """Send a channel a harmless webhook with a wrong and with the right signature.

    The forged one goes first. A server that does not answer it with 403, as our web does, never
    gets a right signature.
    """
    try:
        headers, body = forged
        answer = await web.post(url, headers=headers, content=body)
        if answer.status_code != 403:
            says = f"a forged webhook was answered with {answer.status_code}, not 403"
            cure = _cure_of_answer(answer, forged=True)
            return CheckResult("signature", "fail", says, cure, name)

        headers, body = signed
        answer = await web.post(url, headers=headers, content=body)
        if answer.status_code != 200:
            says = f"a signed webhook was answered with {answer.status_code}, not 200"
            cure = _cure_of_answer(answer, forged=False)
            return CheckResult("signature", "fail", says, cure, name)
    except (httpx.HTTPError, httpx.InvalidURL) as exc:
        says = f"{bare_url(url)} does not answer ({type(exc).__name__})"
        cure = "see that the web runs and that public_url leads to it, also from this machine"
        return CheckResult("signature", "fail", says, cure, name)
    says = f"{bare_url(url)} takes what is signed and refuses what is forged"
    return CheckResult("signature", "ok", says, channel=name)


def _cure_of_answer(answer: httpx.Response, *, forged: bool) -> str:
    """Return the cure where a forged webhook was not refused, or a signed one was."""
    if not forged and answer.status_code == 403:
        return (
            "the running web has another secret or another public_url than this configuration, its clock is wrong, or "
            "a proxy changes the request: restart the web with this configuration"
        )
    if not forged:
        return "see the web's log: it read the webhook, and could not keep it"

    # Our web refuses every forged webhook, so another server or another bot answered.
    if answer.is_redirect:
        return "platforms lose a webhook on a redirect: write public_url as the address that it leads to"
    if answer.status_code == 404:
        return "restart the web with this configuration, or have the proxy pass /hooks/… on with its path as it is"
    if answer.is_success:
        return "something else answers there, or the channel's secret is a guess: see what public_url leads to"
    return "see the web's log, and the proxy's: neither may ask for a password or lack a server behind it"


async def check_models(settings: Settings) -> AsyncIterator[CheckResult]:
    """Ask each model of the configuration for one word, and yield the results.

    This costs a few tokens. A fallback is asked by itself: in its chain it would hide that the
    model before it does not answer.
    """
    from sayso.config.wiring.models import Models

    models = Models(settings)
    # A provider is for one model. Channels with the same model share its provider.
    asked_providers: set[int] = set()
    unusable_models: set[str] = set()
    for channel in settings.channels:
        first_model = settings.agent_of(channel).model
        try:
            chain = models.chain(channel)
        except ConfigError as exc:
            if first_model not in unusable_models:
                yield _model_failure(first_model, exc)
            unusable_models.add(first_model)
            continue
        for model, provider in chain:
            if id(provider) not in asked_providers:
                yield await _ask_model(model, provider)
            asked_providers.add(id(provider))
    await models.aclose()


async def _ask_model(model: str, provider: Provider) -> CheckResult:
    """Ask a model for one word, and return the result."""
    from sayso.agent.messages import Message, Role
    from sayso.agent.providers.base import ProviderError, ProviderRequest, acall

    request = ProviderRequest(
        model=name_of(model),
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


def clock_result(seconds_ahead: Mapping[str, float]) -> CheckResult:
    """Return the result of comparing the clocks of servers with that of this machine.

    `seconds_ahead` says by the address of each server how far its clock is ahead of ours, negative
    for one behind. It is empty where no server told its time.
    """
    if not seconds_ahead:
        return CheckResult("clock", "ok", "not compared, because no server tells its time")

    fastest = max(seconds_ahead, key=seconds_ahead.__getitem__)
    slowest = min(seconds_ahead, key=seconds_ahead.__getitem__)
    # In seconds: the largest difference between two servers, and between a server and us.
    apart = seconds_ahead[fastest] - seconds_ahead[slowest]
    offset = max(seconds_ahead.values(), key=abs)

    direction = "ahead of" if offset > 0 else "behind"
    from_us = f"Redis is {abs(offset):.1f} s {direction} us"
    largest = max(apart, abs(offset))
    state: CheckState = "warn" if largest <= CLOCK_LIMIT else "fail"

    if apart > CLOCK_SECONDS:
        says = (
            f"the clocks of {slowest} and {fastest} are {apart:.1f} s apart: "
            "a lease may end early or late after a failover"
        )
        # Then all servers are ahead of us, or all are behind.
        if abs(offset) > apart:
            says = f"{says}; {from_us}"
        return CheckResult("clock", state, says, "have all set their clocks by NTP")
    if abs(offset) > CLOCK_SECONDS:
        cure = "have both set their clocks by NTP: links expire by one, and signatures of webhooks by the other"
        return CheckResult("clock", state, from_us, cure)
    return CheckResult("clock", "ok", f"this machine and Redis agree within {CLOCK_SECONDS:g} s")


def _check_fitness(client: Redis, place: str, settings: Settings) -> Iterator[CheckResult]:
    """Yield what may make the servers lose messages, or that they keep what they acknowledged.

    If a missing replica is the only finding, both are yielded: the server keeps what it
    acknowledged, unless its machine is lost.
    """
    findings = []
    risks: list[str] = []
    try:
        risks = risks_of(client, settings)
    except RedisUnfit as exc:
        says = f"{place} is not fit"
        findings.append(CheckResult("redis", "fail", says, str(exc), id=_risk_id(str(exc))))
    for risk in risks:
        says, _, cure = risk.partition(": ")
        result = CheckResult("redis", "warn", f"{place}: {says}", cure or risk, id=_risk_id(risk))
        findings.append(result)

    # Sentinels and a cluster report a missing replica among the risks, too.
    reported_ids = [_risk_id(risk) for risk in risks]
    for server in servers_of(client):
        safety = _check_safety(server, address_of(server))
        findings += [finding for finding in safety if finding.id not in reported_ids]

    if not risks and all(finding.id == "redis-no-replica" for finding in findings):
        yield CheckResult("redis", "ok", f"{place} answers, and keeps what it acknowledged")
    yield from findings


def _away(failure: Failure) -> CheckResult:
    """Return the result for a Redis that cannot be reached."""
    return CheckResult("redis", "fail", failure.says, failure.cure, id="redis-away")


def _risk_id(risk: str) -> str:
    """Return the id of the finding for a risk, or for an unfit server."""
    for words, finding_id in _RISK_IDS.items():
        if words in risk:
            return finding_id
    return "redis-settings"


def _check_safety(client: Redis, place: str) -> Iterator[CheckResult]:
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

    # A Redis on the bot's own machine needs no replica: without that machine there is no bot.
    host = place.rpartition(":")[0].strip("[]")
    is_here = place.startswith("/") or host == "localhost" or is_loopback(host)
    is_primary = replication.get("role") == "master"
    is_alone = is_primary and replication.get("connected_slaves") == 0
    if is_alone and not is_here:
        yield no_replica(place)


def no_replica(place: str) -> CheckResult:
    """Return the warning about a server without a replica."""
    says = f"{place} has no replica: if its machine is lost, all that came in since the last backup is lost"
    cure = "add a replica and Sentinels, or use a managed Redis with a standby"
    return CheckResult("redis", "warn", says, cure, id="redis-no-replica")


def _check_workers(client: Redis, prefix: str) -> Iterator[CheckResult]:
    """Yield how many workers send heartbeats, and a warning where they run another version."""
    heartbeat = Heartbeat(client, prefix=prefix)
    count = heartbeat.count()
    if not count:
        says = "none is alive: messages are stored and not answered"
        yield CheckResult(
            "workers", "fail", says, "start one with `sayso worker`", id="workers-none"
        )
        return
    yield CheckResult("workers", "ok", f"{count} alive")

    # A worker of unknown version, such as one that runs from a checkout, does not count.
    ours = own_version()
    versions = sorted(heartbeat.versions().items())
    others = [f"{number} of {version}" for version, number in versions if version not in ("", ours)]
    if ours and others:
        says = f"{', '.join(others)}, while this command is {ours}"
        cure = "restart them; during an update wait for its end"
        yield CheckResult("workers", "warn", says, cure, id="workers-old")


async def _each(results: Iterator[CheckResult]) -> AsyncIterator[CheckResult]:
    """Yield the same results as an async iterator, like those of the checks that wait."""
    for result in results:
        yield result


def _check_files(settings: Settings, data: Path) -> Iterator[CheckResult]:
    """Check where files are kept: whether the bucket takes them, and whether there is room.

    A machine without the data folder is not the bot's. There, nothing is checked: it may have
    other rights to the bucket than the bot, and its disk holds no files of the bot.
    """
    if not data.exists():
        return
    try:
        bucket = open_bucket(settings)
        if bucket:
            bucket.check()
            yield CheckResult("files", "ok", f"{bucket.url} keeps files and long texts")
        # The keys sign links to files, and no link is made here.
        unused_keys = ["unused"]
        full = FileStores.open(settings, data, unused_keys).media.why_full()
    except ConfigError as exc:
        yield CheckResult("files", "fail", str(exc), "correct it, as the line says")
    except StoreUnavailable as exc:
        cure = exc.cure or "see that its server runs, and that this machine reaches it"
        yield CheckResult("files", "fail", exc.says, cure)
    except OSError as exc:
        yield _unusable(exc, data)
    else:
        if full:
            cure = "free some of it, or change `media:` in the configuration"
            yield CheckResult("disk", "fail", full, cure)
        else:
            yield CheckResult("disk", "ok", "there is room for files")


def _unusable(exc: OSError, data: Path) -> CheckResult:
    """Return the result for a file or folder of the data folder that this user may not use."""
    says = f"{str(exc.filename or data)!r} cannot be used ({exc.strerror})"
    cure = "run this as the user of the bot, let this user use it, or name another data folder with --data"
    return CheckResult("disk", "fail", says, cure)
