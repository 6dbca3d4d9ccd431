"""The WSGI app of the web process, and the health of the process and of the whole bot.

`sayso web` calls `build_app`; gunicorn and other WSGI servers call `app`. `readiness` says whether
a webhook could be stored now, which a load balancer asks; `health` says how the whole bot is, which
an operator asks.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from flask import Blueprint, Flask
from redis.exceptions import RedisError, ResponseError

from sayso.channels.base import Channel, Forbidden, Overloaded
from sayso.channels.registry import find_platform, load
from sayso.channels.types import Turn
from sayso.channels.web.app import create_app
from sayso.config.settings.loader import ConfigError, default_config, load_settings
from sayso.config.wiring.bootstrap import Services, bootstrap, check_bucket
from sayso.config.wiring.gauges import metrics_endpoint, metrics_page
from sayso.config.wiring.ingress import check_redis_if_reachable, start_watching, store_of
from sayso.config.wiring.observability import set_up_logs
from sayso.infra.metrics_endpoint import MetricsEndpoint, MetricsUnusable
from sayso.infra.redis.checks import check_writable
from sayso.infra.redis.client import RedisUnfit
from sayso.infra.redis.connections import NotReplicated
from sayso.workers.access import AccessControl, memory_quota
from sayso.workers.recovery import Heartbeat
from sayso.workers.rq.jobs import is_suspended
from sayso.workers.spool import SpoolUnusable

log = logging.getLogger(__name__)

#: The most characters of an error of Redis in a health report.
MAX_CHARS = 200
#: The exit code of a process whose configuration cannot be used.
#: Gunicorn does not restart a worker that ends with it.
APP_LOAD_ERROR = 4

#: A report as JSON, and whether all that it is about is well.
HealthReport = tuple[dict[str, Any], bool]


def app() -> Flask:
    """Return the app of the bot that SAYSO_CONFIG and SAYSO_DATA name, for a WSGI server.

    Ends the process with APP_LOAD_ERROR if the configuration cannot be used.
    """
    try:
        set_up_logs()
        settings = load_settings(default_config())
        data = Path(os.environ.get("SAYSO_DATA", ".sayso"))
        services = bootstrap(settings, data=data)
        check_redis_if_reachable(services)
        check_bucket(services)
        endpoint = metrics_endpoint(data, services)
    except (ConfigError, MetricsUnusable, RedisUnfit) as exc:
        log.error("web.unusable: %s", exc)
        sys.exit(APP_LOAD_ERROR)
    # Threads, which only a process that is going to serve needs.
    start_watching(services)
    return build_app(services, endpoint)


def build_app(services: Services, endpoint: MetricsEndpoint | None = None) -> Flask:
    """Return the WSGI app of one process.

    With an `endpoint` that has a token, the app also serves its metrics, and shows the details of
    health checks to clients that send this token.
    """
    pages = list(_pages(services))
    is_operator: Callable[[str], bool] = _is_no_operator
    if endpoint is not None and endpoint.has_token:
        pages.append(metrics_page(endpoint))
        is_operator = endpoint.is_reader
    return create_app(
        services.channels,
        store_of(services),
        services.media,
        readiness=partial(readiness, services),
        health=partial(health, services),
        public_url=services.public_url,
        pages=pages,
        answer_form=services.forms.answer_form,
        bot_id=services.bot_id,
        is_operator=is_operator,
    )


def _is_no_operator(_: str) -> bool:
    """Return False for each Authorization header: this process has no token for operators."""
    return False


def _pages(services: Services) -> Iterator[Blueprint]:
    """Yield the web pages of each platform that has some, for all channels of the platform."""
    by_platform: defaultdict[str, list[Channel]] = defaultdict(list)
    for name, channel in services.channels.items():
        by_platform[services.settings.channels[name].platform].append(channel)

    for platform_name, channels in by_platform.items():
        platform = find_platform(platform_name)
        if platform and platform.pages:
            create_pages = load(platform.pages)
            yield create_pages(
                *channels,
                public_url=services.public_url,
                admit=UploadCheck(services.access_control, services.settings.limits.per_minute),
                turn_status=services.access_control.turn_status,
                why_waiting=partial(why_waiting, services),
            )


class UploadCheck:
    """Decides whether a person may upload a file. One per platform with pages; counts in memory.

    A person who may talk to the bot may send as many files a minute as messages. Each process
    counts by itself, and files that arrive at the same moment may exceed the limit by a few.
    """

    def __init__(self, access: AccessControl, per_minute: int) -> None:
        self._access = access
        self._per_minute = per_minute
        self._quota = memory_quota()

    def __call__(self, turn: Turn) -> None:
        """Count one file of the person who sent this turn.

        Raises Forbidden for a person who may not talk, Overloaded for too many files, and
        redis.RedisError.
        """
        if self._access.why_not(turn):
            raise Forbidden("the bot takes no files of yours")
        channel = turn.conversation.channel
        if self._quota.is_used_up(channel, turn.user_id, self._per_minute):
            raise Overloaded("too many files in a minute")
        self._quota.book(channel, turn.user_id, self._per_minute)


def readiness(services: Services) -> HealthReport:
    """Return whether a webhook that comes now could be stored, and why not.

    Workers do not matter for that. With a *spool*, which stores messages on the disk of the web
    while Redis takes none, Redis does not matter either. A spool that cannot be read while messages
    wait in it makes the web not ready, even with Redis: later messages must not overtake them.
    """
    trouble, finding = _redis_trouble(services)
    report: dict[str, Any] = {"redis": trouble or "ok"}
    findings = [finding] if trouble else []
    is_ready = not trouble
    if services.spool:
        try:
            report["spooled"] = services.spool.count()
            if trouble:
                services.spool.check_room()
                is_ready = True
        except SpoolUnusable as exc:
            report["spool"] = str(exc)
            findings.append("spool")
            is_ready = False
    status = "ready" if is_ready else "not ready"
    return {"status": status, **report, **_findings_field(findings)}, is_ready


def _findings_field(findings: list[str]) -> dict[str, list[str]]:
    """Return the field `findings` of a health report; no field if there are none.

    They are ids of findings of `sayso doctor`.
    """
    if findings:
        return {"findings": findings}
    return {}


def health(services: Services) -> HealthReport:
    """Return the state of the whole bot, and whether all is well."""
    web_report, is_ready = readiness(services)
    workers, queue = _workers_and_queue(services)
    try:
        alerts = services.alerts.of(services.channels)
    except RedisError:
        alerts = []
    try:
        disk = services.media.why_full() or "ok"
    except OSError as exc:
        disk = type(exc).__name__

    # Only when the alert began: its text may name accounts. `sayso deliveries list` prints it.
    shown_alerts = {}
    for alert in alerts:
        began_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(alert.at))
        shown_alerts[alert.channel] = f"{began_at}: see `sayso deliveries list`"
    report = {
        **web_report,
        "workers": workers or 0,
        "queue": queue,
        "alerts": shown_alerts,
        "disk": disk,
    }

    web_findings = web_report.get("findings", [])
    # While Redis does not answer, nothing is known of workers and queue.
    is_known = workers is not None
    is_suspended_queue = queue.startswith("suspended")
    is_finding = {
        "workers-none": is_known and not workers,
        "queue-suspended": is_suspended_queue,
        "alert": bool(alerts),
        "disk": disk != "ok",
        "queue-away": is_known and queue != "ok" and not is_suspended_queue,
    }
    findings = [name for name, is_present in is_finding.items() if is_present]
    report |= _findings_field([*web_findings, *findings])

    parts_are_ok = all(each == "ok" for each in (web_report["redis"], queue, disk))
    is_well = is_ready and parts_are_ok and bool(workers) and not alerts
    return {**report, "status": "ok" if is_well else "degraded"}, is_well


def why_waiting(services: Services) -> str:
    """Return why stored messages are not answered now, as a text for users; "" if it is unknown."""
    trouble, _ = _redis_trouble(services)
    if trouble:
        return "Its storage is away."
    workers, queue = _workers_and_queue(services)
    if not workers:
        return "No worker is running."
    if queue.startswith("suspended"):
        return "Its queue is suspended."
    return "" if queue == "ok" else "Its queue is away."


def _redis_trouble(services: Services) -> tuple[str, str]:
    """Return why no webhook can be stored in Redis, and the id of that finding of `sayso doctor`.

    The reason is "" when all is well; the id has no meaning then.
    """
    guard = services.data_loss_guard
    try:
        guard.check_server()
        guard.check_replicas()
        check_writable(services.redis, prefix=services.settings.key_prefix)
    except ResponseError as exc:
        # What the server answers names the cause, such as a full memory, and no address.
        return f"{type(exc).__name__}: {exc}"[:MAX_CHARS], "redis-read-only"
    except NotReplicated as exc:
        return type(exc).__name__, "redis-replication"
    except RedisError as exc:
        # The guard raises, too, if it noticed a loss of data and could not write the halt.
        if guard.trouble:
            return guard.trouble, "halt"
        # Only the name of the error: its text may hold the address of the server.
        return type(exc).__name__, "redis-away"
    # A server that is halted already answers all checks.
    return guard.trouble, "halt"


def _workers_and_queue(services: Services) -> tuple[int | None, str]:
    """Return how many workers are alive, and "ok" or why no job is taken from the queue.

    If Redis does not answer, the number of workers is None, and the queue is not asked.
    """
    try:
        workers = Heartbeat(services.redis, prefix=services.settings.key_prefix).count()
    except RedisError as exc:
        return None, type(exc).__name__
    try:
        if is_suspended(services.queue):
            return workers, "suspended: run `rq resume`"
    except RedisError as exc:
        return workers, type(exc).__name__
    return workers, "ok"
