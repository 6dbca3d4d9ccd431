"""Health checks: whether this process can accept webhooks (`readiness`), and the state of the whole bot (`full`)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from redis.exceptions import RedisError, ResponseError

from sayso.config.wiring.bootstrap import Services
from sayso.pending.redis.client import check_writable
from sayso.workers.recovery import Heartbeat
from sayso.workers.redis.client import DataLossGuard
from sayso.workers.rq.jobs import is_suspended
from sayso.workers.sharding.shards import Primary
from sayso.workers.spool import SpoolUnusable

#: The most characters of an error of Redis in a report.
MAX_CHARS = 200

HealthReport = tuple[dict[str, Any], bool]


def readiness(services: Services) -> HealthReport:
    """Return whether a webhook that comes now can be stored, and why not. Workers do not matter for that.

    One unreachable server of several stops only its own conversations. With a spool no Redis is needed.
    """
    problems = _redis_problems(services)
    report: dict[str, Any] = {"redis": _joined(problems)}
    accepts = not all(problems.values())
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
    """Return the state of the whole bot, and whether everything works."""
    ready, accepts = readiness(services)
    report = {**ready, **_workers(services), "queue": _queue(services), **_alerts(services), "disk": _disk(services)}
    is_well = (
        accepts
        and (report["redis"], report["queue"], report["disk"]) == ("ok", "ok", "ok")
        and all(report.get("shards", {"": report["workers"]}).values())
        and not report["alerts"]
    )
    return {**report, "status": "ok" if is_well else "degraded"}, is_well


def why_waiting(services: Services) -> str:
    """Return why stored messages are not answered now, as a sentence for users; "" where no reason is known."""
    if any(_redis_problems(services).values()):
        return "Its storage is away."
    workers = _workers(services)
    if not all(workers.get("shards", {"": workers["workers"]}).values()):
        return "No worker is running."
    return "" if _queue(services) == "ok" else "Its queue is suspended."


def _redis_problems(services: Services) -> dict[str, str]:
    """Return why each primary accepts no webhook, "" for one that does."""
    guards = services.tides or (None,) * len(services.primaries)
    pairs = zip(services.primaries, guards, strict=True)
    return {primary.name: _problem(primary, guard, services.settings.key_prefix) for primary, guard in pairs}


def _problem(primary: Primary, guard: DataLossGuard | None, prefix: str) -> str:
    try:
        if guard:
            guard.look()
        check_writable(primary.client, prefix=prefix)
    except ResponseError as exc:
        return f"{type(exc).__name__}: {exc}"[:MAX_CHARS]
    except RedisError as exc:  # the message of a broken connection may hold its address
        return (guard.trouble if guard else "") or type(exc).__name__
    return guard.trouble if guard else ""


def _joined(problems: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {each}" if name else each for name, each in problems.items() if each) or "ok"


def _workers(services: Services) -> dict[str, Any]:
    counts = {primary.name: _count(primary, services.settings.key_prefix) for primary in services.primaries}
    return {"workers": sum(counts.values())} | ({} if "" in counts else {"shards": counts})


def _count(primary: Primary, prefix: str) -> int:
    try:
        return Heartbeat(primary.client, prefix=prefix).count()
    except RedisError:
        return 0


def _queue(services: Services) -> str:
    try:
        suspended = any(is_suspended(primary.client) for primary in services.primaries)
    except RedisError as exc:
        return type(exc).__name__
    return "suspended: run `rq resume`" if suspended else "ok"


def _alerts(services: Services) -> dict[str, dict[str, str]]:
    """Return the time of each channel's alert. The text may name accounts: `sayso deliveries list` prints it."""
    try:
        alerts = services.alerts.of(services.channels)
    except RedisError:
        alerts = []
    return {"alerts": {alert.channel: f"{_timestamp(alert.at)}: see `sayso deliveries list`" for alert in alerts}}


def _timestamp(unix: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(unix))


def _disk(services: Services) -> str:
    try:
        return services.media.full() or "ok"
    except OSError as exc:
        return type(exc).__name__
