"""Health: whether this process can accept webhooks now (`readiness`), and how the whole bot is (`full`)."""

from __future__ import annotations

import time
from typing import Any

from redis.exceptions import RedisError, ResponseError

from sayso.config.wiring.bootstrap import Services
from sayso.pending.redis.client import check_writable
from sayso.workers.recovery import Heartbeat
from sayso.workers.rq.jobs import is_suspended
from sayso.workers.spool import SpoolUnusable

#: Characters of what a Redis says when it refuses to write.
MAX_CHARS = 200

HealthReport = tuple[dict[str, Any], bool]


def readiness(services: Services) -> HealthReport:
    """Return whether a webhook that comes now can be kept, and why not. Workers do not matter for that.

    With a spool no Redis is needed.
    """
    trouble = _redis_trouble(services)
    report: dict[str, Any] = {"redis": trouble or "ok"}
    accepts = not trouble
    try:
        if services.spool:
            report["spooled"] = services.spool.count()
        if services.spool and not accepts:
            services.spool.check_room()
            accepts = True
    except SpoolUnusable as exc:
        report["spool"], accepts = str(exc), False
    return {"status": "ready" if accepts else "not ready", **report}, accepts


def full(services: Services) -> HealthReport:
    """Return how the whole bot is, and whether all is well."""
    web_report, accepts = readiness(services)
    report = {
        **web_report,
        "workers": _workers(services),
        "queue": _queue(services),
        **_alerts(services),
        "disk": _disk(services),
    }
    well = bool(
        accepts
        and (report["redis"], report["queue"], report["disk"]) == ("ok", "ok", "ok")
        and report["workers"]
        and not report["alerts"]
    )
    return {**report, "status": "ok" if well else "degraded"}, well


def why_waiting(services: Services) -> str:
    """Return why stored messages are not answered now, as a text for users; "" where the reason is unknown."""
    if _redis_trouble(services):
        return "Its storage is away."
    if not _workers(services):
        return "No worker is running."
    return "" if _queue(services) == "ok" else "Its queue is suspended."


def _redis_trouble(services: Services) -> str:
    """Return why Redis takes no webhook, "" when it does."""
    guard = services.data_loss_guard
    try:
        if guard:
            guard.look()
        check_writable(services.redis, prefix=services.settings.key_prefix)
    except ResponseError as exc:
        return f"{type(exc).__name__}: {exc}"[:MAX_CHARS]
    except RedisError as exc:  # the words of a broken connection may hold its address
        return (guard.trouble if guard else "") or type(exc).__name__
    return guard.trouble if guard else ""


def _workers(services: Services) -> int:
    try:
        return Heartbeat(services.redis, prefix=services.settings.key_prefix).count()
    except RedisError:
        return 0


def _queue(services: Services) -> str:
    try:
        return "suspended: run `rq resume`" if is_suspended(services.redis) else "ok"
    except RedisError as exc:
        return type(exc).__name__


def _alerts(services: Services) -> dict[str, dict[str, str]]:
    """Return channels with an alert and since when. `sayso deliveries list` has the words, which may name accounts."""
    try:
        alerts = services.alerts.of(services.channels)
    except RedisError:
        alerts = []
    since = {alert.channel: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(alert.at)) for alert in alerts}
    return {"alerts": {channel: f"{at}: see `sayso deliveries list`" for channel, at in since.items()}}


def _disk(services: Services) -> str:
    try:
        return services.media.full() or "ok"
    except OSError as exc:
        return type(exc).__name__
