"""Gauges: metrics that are read at the moment when Prometheus asks for them.

They are the state in Redis, the disk and the version. What processes count while they work is in
`sayso.infra.metrics`. The web alone reports the state in Redis, since it is the same for all
processes. A *collector* is the interface of prometheus_client for such metrics.
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
from sayso.pending.sharded_scripts import ShardedScripts
from sayso.workers.rq.jobs import is_suspended, waiting_jobs
from sayso.workers.scripts import CONVERSATION_SCRIPTS
from sayso.workers.spool import SpoolUnusable

if TYPE_CHECKING:
    from flask import Blueprint

log = logging.getLogger(__name__)

#: How long the state is cached, in seconds: several Prometheus servers cost no more than one.
CACHE_SECONDS = 5.0
#: The most conversations that are read in each of the 64 shards: 12,800 in all. For a bot with more
#: conversations that have work, the numbers are too low.
MAX_CONVERSATIONS = 200
#: Numbers of things that wait in Redis: the name of the metric, what `measure.lua` calls it, and
#: the help text.
_COUNTS = (
    ("sayso_conversations", "conversations", "Conversations that have work or a timer."),
    ("sayso_mailbox_turns", "turns", "Turns that wait or are worked on."),
    ("sayso_outbox_replies", "replies", "Replies that wait to be sent."),
    (
        "sayso_approvals_waiting",
        "approvals",
        "Actions that wait for the decision of other people.",
    ),
    ("sayso_audit_entries_waiting", "audit", "Entries of the audit log that are in no file yet."),
)
#: Ages of the oldest such thing, in the same form. `measure.lua` returns milliseconds.
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
    (
        "sayso_approvals_oldest_seconds",
        "oldest_approval",
        "Age of the oldest question that waits for other people.",
    ),
)
#: The states of undelivered replies that are listed for operators.
_UNDELIVERED = ("dead", "failed", "ambiguous", "held")


def metrics_endpoint(data: Path, services: Services | None = None) -> MetricsEndpoint:
    """Return the endpoint of a process, which answers requests for /metrics.

    `data` is the data folder. With `services`, as in the web, the endpoint also reports the state
    in Redis. Raises MetricsUnusable.
    """
    collectors: list[Collector] = [MachineCollector(data)]
    if services:
        collectors.append(StateCollector(services))
    endpoint = MetricsEndpoint(*collectors, token=read_token())
    endpoint.add(CacheHitCollector(endpoint.counts))
    return endpoint


class CacheHitCollector(Collector):
    """Reports which share of each model's prompt tokens came from the vendor's cache.

    It is computed from the tokens that all processes counted, which `counts` has.
    """

    def __init__(self, counts: CollectorRegistry) -> None:
        self._counts = counts

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the share, from 0 to 1, of each model that was asked."""
        prompt_tokens = Counter[str]()
        cached_tokens = Counter[str]()
        (description,) = MODEL_TOKENS.describe()
        for family in self._counts.collect():
            if family.name != description.name:
                continue
            for sample in family.samples:
                model = sample.labels["model"]
                kind = sample.labels["type"]
                if kind != "output":
                    prompt_tokens[model] += int(sample.value)
                if kind == "cache_read":
                    cached_tokens[model] += int(sample.value)

        ratio = GaugeMetricFamily(
            "sayso_model_cache_hit_ratio",
            "Share of prompt tokens read from the vendor's cache.",
            labels=["model"],
        )
        for model in sorted(prompt_tokens):
            if prompt_tokens[model]:
                ratio.add_metric([model], cached_tokens[model] / prompt_tokens[model])
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
        except OSError:  # the folder does not exist yet
            return
        yield _gauge("sayso_disk_size_bytes", "Size of the disk of the data folder.", usage.total)
        yield _gauge(
            "sayso_disk_free_bytes", "Free bytes on the disk of the data folder.", usage.free
        )


class StateCollector(Collector):
    """Reports the state in Redis, which all processes share.

    One per web process. Any thread may use it; the state is read once in CACHE_SECONDS.
    """

    def __init__(self, services: Services, clock: Callable[[], float] = time.monotonic) -> None:
        self._services = services
        self._clock = clock
        self._scripts = ShardedScripts(
            services.redis, CONVERSATION_SCRIPTS, prefix=services.settings.key_prefix
        )
        self._lock = threading.Lock()
        self._read_at = float("-inf")
        self._families = list[GaugeMetricFamily]()

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Return the metrics. While Redis cannot be read, they say so, and nothing of its state."""
        with self._lock:
            if self._clock() - self._read_at >= CACHE_SECONDS:
                self._families = list(self._read())
                self._read_at = self._clock()
            return self._families

    def _read(self) -> Iterator[GaugeMetricFamily]:
        """Yield the metrics as they are now."""
        is_up = 1
        is_halted = 0
        families = list[GaugeMetricFamily]()
        try:
            families = [*self._conversations(), *self._workers(), *self._alerts()]
        except Halted:
            is_halted = 1
        except RedisError as exc:
            log.warning("redis.away", extra={"reason": type(exc).__name__})
            is_up = 0
        yield _gauge("sayso_redis_up", "1 while Redis answers.", is_up)
        yield _gauge("sayso_redis_halted", "1 while Redis is halted since it lost data.", is_halted)
        yield from families

        if is_up and not is_halted:
            # A separate server of the queue may be away while this Redis answers.
            try:
                yield from self._queue()
            except RedisError as exc:
                log.warning("queue.away", extra={"reason": type(exc).__name__})

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
        """Yield what waits in all conversations, and how old it is. Raises redis.RedisError."""
        # Each shard answers with numbers by name. Counts are added up; of ages the oldest matters.
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

    def _workers(self) -> Iterator[GaugeMetricFamily]:
        """Yield how many workers are alive. Raises redis.RedisError."""
        workers = self._services.reaper.heartbeat.count()
        yield _gauge("sayso_workers", "Worker processes that are alive.", workers)

    def _queue(self) -> Iterator[GaugeMetricFamily]:
        """Yield the jobs that wait for workers, which are on the queue's server.

        Raises redis.RedisError before the first metric.
        """
        queue = self._services.queue
        is_held = is_suspended(queue)
        waiting, first_at = waiting_jobs(queue, self._services.settings.queue)
        yield _gauge("sayso_queue_jobs", "Wake-ups that wait for a worker.", waiting)
        age = 0.0
        if first_at:
            age = max(0.0, self._services.clock() - first_at)
        yield _gauge("sayso_queue_oldest_seconds", "Age of the first wake-up that waits.", age)
        yield _gauge("sayso_queue_suspended", "1 while `rq suspend` holds the queue.", is_held)

    def _alerts(self) -> Iterator[GaugeMetricFamily]:
        """Yield which channels have an alert. Raises redis.RedisError."""
        family = GaugeMetricFamily(
            "sayso_channel_alert", "1 while an operator has to look after it.", labels=["channel"]
        )
        alerts = self._services.alerts.of(self._services.channels)
        channels_with_alert = {alert.channel for alert in alerts}
        for channel in self._services.channels:
            family.add_metric([channel], channel in channels_with_alert)
        yield family


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    """Return a gauge without labels. `text` is its help."""
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
