"""Alerts for operators."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from redis import Redis
from redis.exceptions import RedisError

from sayso.infra.redis.client import PREFIX

#: Seconds for which an alert is kept.
ALERT_SECONDS = 7 * 24 * 3600
#: Characters of an alert that are kept.
MAX_CHARS = 500
#: Seconds within which a process does not clear the same alert again: every message would.
CLEAR_SECONDS = 10.0
#: Seconds for which it is kept when a channel's last message came in: 90 days. It is written at
#: most every HEARD_SECONDS by each process.
KEEP_HEARD_SECONDS = 90 * 24 * 3600
HEARD_SECONDS = 60.0
#: What fails: sending to the platform, its reports of replies, receiving from it, or sending an
#: approved template. Success of one says nothing of the others.
AlertKind = Literal["sending", "delivering", "receiving", "templates"]

KINDS: tuple[AlertKind, ...] = ("sending", "delivering", "receiving", "templates")


@dataclass(frozen=True, slots=True)
class Alert:
    """What is wrong with a channel, and when it was last reported: Unix seconds."""

    channel: str
    text: str
    at: float


class RedisAlerts:
    """The last alert of each channel, in Redis, by its clock."""

    def __init__(
        self, client: Redis, *, prefix: str = PREFIX, steady: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._prefix = f"{prefix}alert:"
        self._steady = steady
        self._cleared: dict[str, float] = {}

    def note(self, channel: str, text: str, kind: AlertKind = "sending") -> None:
        """Store an alert in place of an earlier one.

        A failure is no error: the caller has logged the alert.
        """
        self._cleared.pop(self._key(channel, kind), None)
        with contextlib.suppress(RedisError):
            at = int(self._client.time()[0])
            kept = json.dumps({"at": at, "words": text[:MAX_CHARS]})
            self._client.set(self._key(channel, kind), kept, ex=ALERT_SECONDS)

    def is_clearing_due(self, channel: str, kind: AlertKind) -> bool:
        """Return whether `clear` would do anything: this process has
        not cleared it within CLEAR_SECONDS.
        """
        return (
            self._steady() - self._cleared.get(self._key(channel, kind), float("-inf"))
            >= CLEAR_SECONDS
        )

    def clear(self, channel: str, kind: AlertKind) -> None:
        """Delete an alert of this kind, if that is due: the channel just did what had failed.

        A failure is no error.
        """
        if not self.is_clearing_due(channel, kind):
            return
        key = self._key(channel, kind)
        self._cleared[key] = self._steady()
        with contextlib.suppress(RedisError):
            self._client.delete(key)

    def heard(self, channel: str) -> None:
        """Store that a message of the channel came in, if that is due. A failure is no error."""
        key = f"{self._prefix}{channel}:heard"
        if self._steady() - self._cleared.get(key, float("-inf")) >= HEARD_SECONDS:
            self._cleared[key] = self._steady()
            with contextlib.suppress(RedisError):
                self._client.set(key, "1", ex=KEEP_HEARD_SECONDS)

    def silence(self, channel: str) -> float | None:
        """Return the seconds since a message of the channel came in, about a minute too many at
        most; None: for none within KEEP_HEARD_SECONDS. Raises redis.RedisError.
        """
        left = int(self._client.ttl(f"{self._prefix}{channel}:heard"))
        if left >= 0:
            return float(KEEP_HEARD_SECONDS - left)
        return None

    def of(self, channels: Iterable[str]) -> list[Alert]:
        """Return the alerts of these channels, newest first. Raises redis.RedisError."""
        names = [name for name in channels for _ in KINDS]
        keys = [
            self._key(name, kind) for name, kind in zip(names, KINDS * len(names), strict=False)
        ]
        pipe = self._client.pipeline(transaction=False)  # on a cluster each may be on another node
        for key in keys:
            pipe.get(key)
        kept = pipe.execute() if keys else []
        alerts = [(name, json.loads(text)) for name, text in zip(names, kept, strict=True) if text]
        return newest_first(Alert(name, alert["words"], alert["at"]) for name, alert in alerts)

    def _key(self, channel: str, kind: AlertKind) -> str:
        return f"{self._prefix}{channel}:{kind}"


def newest_first(alerts: Iterable[Alert]) -> list[Alert]:
    """Return the last alert of each channel."""
    last = {alert.channel: alert for alert in sorted(alerts, key=lambda alert: alert.at)}
    return sorted(last.values(), key=lambda alert: -alert.at)
