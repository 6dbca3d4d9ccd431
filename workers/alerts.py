"""Alerts: what the operator of a channel must hear, kept for a week: the last word of each channel."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from redis import Redis
from redis.exceptions import RedisError

from workers.redis import PREFIX

#: Seconds for which an alert is kept.
KEEP_SECONDS = 7 * 24 * 3600
#: Characters of one that are kept.
MAX_CHARS = 500


@dataclass(frozen=True, slots=True)
class Alert:
    """What is wrong with a channel, since when nobody said so again: Unix seconds."""

    channel: str
    words: str
    at: float


class Alerts(Protocol):
    """The last alert of each channel."""

    def note(self, channel: str, words: str) -> None:
        """Keep it, in place of an earlier one. Failing is no error: whoever notes it has logged it."""

    def of(self, channels: Iterable[str]) -> list[Alert]:
        """The alerts of these channels, newest first."""


class RedisAlerts:
    """Alerts in Redis, by its clock."""

    def __init__(self, client: Redis, *, prefix: str = PREFIX) -> None:
        self._client = client
        self._prefix = f"{prefix}alert:"

    def note(self, channel: str, words: str) -> None:
        """Keep it for KEEP_SECONDS."""
        with contextlib.suppress(RedisError):
            at = int(self._client.time()[0])
            kept = json.dumps({"at": at, "words": words[:MAX_CHARS]})
            self._client.set(self._prefix + channel, kept, ex=KEEP_SECONDS)

    def of(self, channels: Iterable[str]) -> list[Alert]:
        """The alerts of these channels. Raises redis.RedisError."""
        names = list(channels)
        kept = self._client.mget([self._prefix + name for name in names]) if names else []
        found = [(name, json.loads(text)) for name, text in zip(names, kept, strict=True) if text]
        return _newest_first(Alert(name, alert["words"], alert["at"]) for name, alert in found)


class MemoryAlerts:
    """Alerts in this process."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._alerts: dict[str, Alert] = {}

    def note(self, channel: str, words: str) -> None:
        """Keep it."""
        self._alerts[channel] = Alert(channel, words[:MAX_CHARS], self._clock())

    def of(self, channels: Iterable[str]) -> list[Alert]:
        """Those of these channels that are not too old."""
        found = (self._alerts[name] for name in channels if name in self._alerts)
        return _newest_first(alert for alert in found if self._clock() - alert.at < KEEP_SECONDS)


def _newest_first(alerts: Iterable[Alert]) -> list[Alert]:
    return sorted(alerts, key=lambda alert: -alert.at)
