"""The WSGI app of `sayso web`, `app()` for gunicorn,
and the health of this process and of the whole bot.
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
from sayso.infra.redis.client import RedisUnfit, check_writable
from sayso.infra.redis.connections import NotReplicated
from sayso.workers.access import AccessControl, memory_quota
from sayso.workers.recovery import Heartbeat
from sayso.workers.rq.jobs import is_suspended
from sayso.workers.spool import SpoolUnusable

log = logging.getLogger(__name__)

#: Characters of what a Redis says when it refuses to write.
MAX_CHARS = 200
#: The exit code of a process whose configuration cannot be used.
#: Gunicorn does not restart a worker that ends with it.
APP_LOAD_ERROR = 4

HealthReport = tuple[dict[str, Any], bool]


def app() -> Flask:
    """Return the app for a WSGI server, from SAYSO_CONFIG and SAYSO_DATA.

    Ends the process if it cannot run.
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
    start_watching(services)
    return build_app(services, endpoint)


def build_app(services: Services, endpoint: MetricsEndpoint | None = None) -> Flask:
    """Return the WSGI app of one wired process. It serves the metrics of an `endpoint` that asks
    for a token, and the details of health checks to clients with that token.
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
        answer_form=services.forms.answered,
        bot_id=services.bot_id,
        is_operator=is_operator,
    )


def _is_no_operator(_: str) -> bool:
    """Return False for each Authorization header: this process has no token for operators."""
    return False


def _pages(services: Services) -> Iterator[Blueprint]:
    """Yield the web pages of the platforms that have some, each with all channels of its platform."""
    by_platform: defaultdict[str, list[Channel]] = defaultdict(list)
    for name, channel in services.channels.items():
        by_platform[services.settings.channels[name].platform].append(channel)
    for name, channels in by_platform.items():
        platform = find_platform(name)
        if platform and platform.pages:
            yield load(platform.pages)(
                *channels,
                public_url=services.public_url,
                admit=UploadCheck(services.access_control, services.settings.limits.per_minute),
                stage=services.access_control.turn_status,
                why_waiting=partial(why_waiting, services),
            )


class UploadCheck:
    """Decides whether a person may upload a file: admitted persons,
    as many files a minute as messages.

    One per process; counts in memory.
    """

    def __init__(self, access: AccessControl, per_minute: int) -> None:
        self._access = access
        self._per_minute = per_minute
        self._quota = memory_quota()

    def __call__(self, turn: Turn) -> None:
        """Count one file of the turn's person. Raises Forbidden, Overloaded, redis.RedisError."""
        sender = (turn.conversation.channel, turn.user_id, self._per_minute)
        if self._access.why_not(turn):
            raise Forbidden("the bot takes no files of yours")
        if self._quota.is_used_up(*sender):
            raise Overloaded("too many files in a minute")
        self._quota.book(*sender)


def readiness(services: Services) -> HealthReport:
    """Return whether a webhook that comes now can be kept, and why not.

    Workers do not matter for that.

    With a spool no Redis is needed.
    """
    trouble, finding = _redis_trouble(services)
    report: dict[str, Any] = {"redis": trouble or "ok"}
    accepts = not trouble
    findings = [finding] if trouble else []
    try:
        if services.spool:
            report["spooled"] = services.spool.count()
        if services.spool and not accepts:
            services.spool.check_room()
            accepts = True
    except SpoolUnusable as exc:
        report["spool"] = str(exc)
        accepts = False
        findings.append("spool")
    return {"status": "ready" if accepts else "not ready", **report, **_found(findings)}, accepts


def _found(findings: list[str]) -> dict[str, list[str]]:
    """Return the findings of a health report under the ids of `sayso doctor`; {} if all is well."""
    if findings:
        return {"findings": findings}
    return {}


def health(services: Services) -> HealthReport:
    """Return how the whole bot is, and whether all is well."""
    web_report, accepts = readiness(services)
    workers, queue = _work(services)
    try:
        alerts = services.alerts.of(services.channels)
    except RedisError:
        alerts = []
    try:
        disk = services.media.why_full() or "ok"
    except OSError as exc:
        disk = type(exc).__name__
    # `sayso deliveries list` has the words of alerts, which may name accounts.
    since = {
        alert.channel: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(alert.at))
        for alert in alerts
    }
    report = {
        **web_report,
        "workers": workers,
        "queue": queue,
        "alerts": {channel: f"{at}: see `sayso deliveries list`" for channel, at in since.items()},
        "disk": disk,
    }
    findings = web_report.get("findings", [])
    is_known = "redis-away" not in findings  # else nothing is known of workers and queue
    found = {
        "workers-none": is_known and not workers,
        "queue-suspended": queue.startswith("suspended"),
        "alert": bool(alerts),
        "disk": disk != "ok",
        "queue-away": is_known and queue != "ok" and not queue.startswith("suspended"),
    }
    report |= _found(findings + [name for name, is_so in found.items() if is_so])
    well = (
        accepts
        and (web_report["redis"], queue, disk) == ("ok", "ok", "ok")
        and workers > 0
        and not alerts
    )
    return {**report, "status": "ok" if well else "degraded"}, well


def why_waiting(services: Services) -> str:
    """Return why stored messages are not answered now, as a text for users;
    "" where the reason is unknown.
    """
    if _redis_trouble(services)[0]:
        return "Its storage is away."
    workers, queue = _work(services)
    if not workers:
        return "No worker is running."
    if queue.startswith("suspended"):
        return "Its queue is suspended."
    return "" if queue == "ok" else "Its queue is away."


def _redis_trouble(services: Services) -> tuple[str, str]:
    """Return why Redis takes no webhook and the id of that finding, "" when it does."""
    guard = services.data_loss_guard
    try:
        guard.check_server()
        guard.check_replicas()
        check_writable(services.redis, prefix=services.settings.key_prefix)
    except ResponseError as exc:
        return f"{type(exc).__name__}: {exc}"[:MAX_CHARS], "redis-read-only"
    except NotReplicated as exc:
        return type(exc).__name__, "redis-replication"
    except RedisError as exc:  # the words of a broken connection may hold its address
        if guard.trouble:
            return (guard.trouble, "halt")
        return (type(exc).__name__, "redis-away")
    return guard.trouble, "halt"


def _work(services: Services) -> tuple[int, str]:
    """Return how many workers are alive, and "ok" or why the queue does not move."""
    try:
        workers = Heartbeat(services.redis, prefix=services.settings.key_prefix).count()
    except RedisError as exc:
        return 0, type(exc).__name__
    try:
        return workers, "suspended: run `rq resume`" if is_suspended(services.queue) else "ok"
    except RedisError as exc:
        return workers, type(exc).__name__
