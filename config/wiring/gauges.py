"""Collectors of metrics that are read when Prometheus scrapes: the state in Redis, the disk,
the version.

What each process counts is in `sayso.infra.metrics`.

The web alone reports the state in Redis, since it is the same for all processes.
"""

from __future__ import annotations

import json
import logging
import platform
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from redis.exceptions import RedisError

from sayso.config.wiring.bootstrap import Services
from sayso.infra.metrics import MODEL_TOKENS
from sayso.infra.metrics_endpoint import MetricsEndpoint, read_token
from sayso.infra.redis.connections import Halted
from sayso.infra.redis.scripts import LuaScripts
from sayso.workers.rq.jobs import is_suspended, waiting_jobs
from sayso.workers.scripts import CONVERSATION_SCRIPTS
from sayso.workers.spool import SpoolUnusable

if TYPE_CHECKING:
    from flask import Blueprint

log = logging.getLogger(__name__)

#: Seconds for which the state is cached: several Prometheus servers cost no more than one.
CACHE_SECONDS = 5.0
#: Conversations that are read per shard, 12,800 in all. With more of them the numbers are too low.
MAX_CONVERSATIONS = 200
#: What waits in Redis: name of the metric, what `measure.lua` calls it, help.
_COUNTS = (
    ("sayso_conversations", "conversations", "Conversations that have work or a timer."),
    ("sayso_mailbox_turns", "turns", "Turns that wait or are worked on."),
    ("sayso_outbox_replies", "replies", "Replies that wait to be sent."),
    ("sayso_audit_entries_waiting", "audit", "Entries of the audit log that are in no file yet."),
)
_AGES = (
    (
        "sayso_mailbox_oldest_seconds",
        "oldest_turn",
        "Age of the oldest turn that waits or is worked on.",
    ),
    (
        "sayso_outbox_oldest_seconds",
        "oldest_reply",
        "Age of the oldest reply that waits, without held ones.",
    ),
)
#: The states of undelivered replies that are listed for operators.
_UNDELIVERED = ("dead", "failed", "ambiguous", "held")


def metrics_endpoint(data: Path, services: Services | None = None) -> MetricsEndpoint:
    """Return the endpoint of a process.

    With `services`, as in the web, it also reports the state in Redis.

    Raises MetricsUnusable.
    """
    collectors: list[Collector] = [
        MachineCollector(data),
        *([StateCollector(services)] if services else []),
    ]
    endpoint = MetricsEndpoint(*collectors, token=read_token())
    endpoint.add(CacheHitCollector(endpoint.counts))
    return endpoint


class CacheHitCollector(Collector):
    """Reports which share of each model's prompt tokens came from the vendor's cache,
    by the counts of a registry.
    """

    def __init__(self, counts: CollectorRegistry) -> None:
        self._counts = counts

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the shares, from 0 to 1, of the models that were asked."""
        prompts = Counter[str]()
        reads = Counter[str]()
        (tokens,) = MODEL_TOKENS.describe()
        families = [family for family in self._counts.collect() if family.name == tokens.name]
        for sample in chain.from_iterable(family.samples for family in families):
            model = sample.labels["model"]
            type_ = sample.labels["type"]
            if type_ != "output":
                prompts[model] += int(sample.value)
            if type_ == "cache_read":
                reads[model] += int(sample.value)

        ratio = GaugeMetricFamily(
            "sayso_model_cache_hit_ratio",
            "Share of prompt tokens read from the vendor's cache.",
            labels=["model"],
        )
        for model in sorted(prompts):
            if prompts[model]:
                ratio.add_metric([model], reads[model] / prompts[model])
        yield ratio


class MachineCollector(Collector):
    """Reports the version, and the disk of the data folder."""

    def __init__(self, data: Path) -> None:
        self._data = data

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the metrics."""
        build = GaugeMetricFamily(
            "sayso_build_info", "The version, as labels.", labels=["version", "python"]
        )
        build.add_metric([version("sayso"), platform.python_version()], 1)
        yield build
        try:
            usage = shutil.disk_usage(self._data)
        except OSError:  # it is not there yet
            return
        yield _gauge("sayso_disk_size_bytes", "Size of the disk of the data folder.", usage.total)
        yield _gauge(
            "sayso_disk_free_bytes", "Free bytes on the disk of the data folder.", usage.free
        )


class StateCollector(Collector):
    """Reports the state that all processes share.

    Reads it once in CACHE_SECONDS, from any thread.
    """

    def __init__(self, services: Services, clock: Callable[[], float] = time.monotonic) -> None:
        self._services = services
        self._clock = clock
        self._scripts = LuaScripts(
            services.redis, CONVERSATION_SCRIPTS, prefix=services.settings.key_prefix
        )
        self._lock = threading.Lock()
        self._read_at = float("-inf")
        self._families = list[GaugeMetricFamily]()

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Return the metrics. While Redis cannot be read, those that say so."""
        with self._lock:
            if self._clock() - self._read_at >= CACHE_SECONDS:
                self._families = list(self._read())
                self._read_at = self._clock()
            return self._families

    def _read(self) -> Iterator[GaugeMetricFamily]:
        is_up = 1
        is_halted = 0
        families = list[GaugeMetricFamily]()
        try:
            families = [*self._conversations(), *self._queue(), *self._alerts()]
        except Halted:
            is_halted = 1
        except RedisError as exc:
            log.warning("redis.away", extra={"reason": type(exc).__name__})
            is_up = 0
        yield _gauge("sayso_redis_up", "1 while Redis answers.", is_up)
        yield _gauge("sayso_redis_halted", "1 while Redis is halted since it lost data.", is_halted)
        yield from families
        try:
            media_full = bool(self._services.media.why_full())
        except OSError:
            media_full = True
        yield _gauge("sayso_media_full", "1 while no file can be stored.", media_full)
        if self._services.spool:
            try:
                spooled = self._services.spool.count()
            except SpoolUnusable:
                return
            yield _gauge(
                "sayso_spool_messages",
                "Messages that the web keeps on its disk until Redis is back.",
                spooled,
            )

    def _conversations(self) -> Iterator[GaugeMetricFamily]:
        total = Counter[str]()
        oldest = Counter[str]()
        for answer in self._scripts.on_every_shard("measure", {"most": MAX_CONVERSATIONS}):
            counts: dict[str, int] = json.loads(answer)
            for name, number in counts.items():
                total[name] += number
                oldest[name] = max(oldest[name], number)
        for metric, name, text in _COUNTS:
            yield _gauge(metric, text, total[name])
        for metric, name, text in _AGES:
            yield _gauge(metric, text, oldest[name] / 1000)
        undelivered = GaugeMetricFamily(
            "sayso_undelivered_replies", "Replies in the operator's lists.", labels=["state"]
        )
        for state in _UNDELIVERED:
            undelivered.add_metric([state], total[state])
        yield undelivered

    def _queue(self) -> Iterator[GaugeMetricFamily]:
        redis = self._services.redis
        settings = self._services.settings
        workers = self._services.reaper.heartbeat.count()
        yield _gauge("sayso_workers", "Worker processes that are alive.", workers)
        waiting, first_at = waiting_jobs(redis, settings.queue)
        yield _gauge("sayso_queue_jobs", "Wake-ups that wait for a worker.", waiting)
        if first_at:
            age = max(0.0, self._services.clock() - first_at)
        else:
            age = 0.0
        yield _gauge("sayso_queue_oldest_seconds", "Age of the first wake-up that waits.", age)
        yield _gauge(
            "sayso_queue_suspended", "1 while `rq suspend` holds the queue.", is_suspended(redis)
        )

    def _alerts(self) -> Iterator[GaugeMetricFamily]:
        family = GaugeMetricFamily(
            "sayso_channel_alert", "1 while an operator has to look after it.", labels=["channel"]
        )
        alerts = {alert.channel for alert in self._services.alerts.of(self._services.channels)}
        for channel in self._services.channels:
            family.add_metric([channel], channel in alerts)
        yield family


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)


def metrics_page(endpoint: MetricsEndpoint) -> Blueprint:
    """Return /metrics as a page of the Flask app."""
    from flask import Blueprint, Response, request

    blueprint = Blueprint("metrics", __name__)

    @blueprint.get("/metrics")
    def metrics() -> Response:
        status, headers, body = endpoint.answer(request.headers.get("Authorization", ""))
        return Response(body, status, headers)

    return blueprint
