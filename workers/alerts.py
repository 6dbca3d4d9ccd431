"""Alerts: what is wrong with a channel, for its operator.

An alert says that something fails which only an operator can mend, such as a token that the
platform refuses. `sayso deliveries list` and a metric show the alerts. An alert is cleared when
what failed has worked again.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product
from typing import Literal

from redis import Redis
from redis.exceptions import RedisError

from sayso.infra.redis.client import PREFIX

#: For how many seconds an alert is stored.
ALERT_SECONDS = 7 * 24 * 3600
#: How many characters of an alert are stored.
MAX_CHARS = 500
#: How many seconds a process waits before it clears the same alert again. Without the wait, each
#: message would cost a call of Redis.
CLEAR_SECONDS = 10.0
#: For how many seconds it is stored when a channel's last message came in: 90 days.
KEEP_LAST_MESSAGE_SECONDS = 90 * 24 * 3600
#: How many seconds a process waits before it stores that time again.
LAST_MESSAGE_SECONDS = 60.0
#: The same wait after a failure: until then each message of an outage would wait for Redis twice.
FAILED_MESSAGE_SECONDS = 5.0
#: What fails: sending to the platform, its reports of replies, receiving from it, or sending an
#: approved template. Success of one says nothing of the others.
AlertKind = Literal["sending", "delivering", "receiving", "templates"]

KINDS: tuple[AlertKind, ...] = ("sending", "delivering", "receiving", "templates")


@dataclass(frozen=True, slots=True)
class Alert:
    """What is wrong with a channel."""

    #: The name of the channel.
    channel: str
    #: What is wrong, in words for an operator.
    text: str
    #: When it was last reported, in Unix seconds.
    at: float


class RedisAlerts:
    """The last alert of each channel and kind, in Redis. One per process.

    Times of alerts are those of the server's clock.
    """

    def __init__(
        self, client: Redis, *, prefix: str = PREFIX, steady: Callable[[], float] = time.monotonic
    ) -> None:
        """`steady`: a clock that never steps back, in seconds."""
        self._client = client
        self._prefix = f"{prefix}alert:"
        self._steady = steady
        #: When this process last cleared an alert, or stored the time of the last message, by key.
        self._written_at: dict[str, float] = {}

    def note(self, channel: str, text: str, kind: AlertKind = "sending") -> None:
        """Store an alert in place of an earlier one.

        A failure is no error: the caller has logged the alert.
        """
        key = self._key(channel, kind)
        # The next success clears it at once.
        self._written_at.pop(key, None)
        with contextlib.suppress(RedisError):
            at = int(self._client.time()[0])
            stored = json.dumps({"at": at, "words": text[:MAX_CHARS]})
            self._client.set(key, stored, ex=ALERT_SECONDS)

    def is_clearing_due(self, channel: str, kind: AlertKind) -> bool:
        """Return whether `clear` would ask Redis: this process has not done so in CLEAR_SECONDS."""
        return self._is_due(self._key(channel, kind), CLEAR_SECONDS)

    def clear(self, channel: str, kind: AlertKind) -> None:
        """Delete an alert of this kind, if that is due: the channel just did what had failed.

        A failure is no error.
        """
        if not self.is_clearing_due(channel, kind):
            return
        key = self._key(channel, kind)
        self._written_at[key] = self._steady()
        with contextlib.suppress(RedisError):
            self._client.delete(key)

    def record_message(self, channel: str) -> None:
        """Store that a message of the channel came in, if that is due. A failure is no error."""
        key = self._last_message_key(channel)
        if not self._is_due(key, LAST_MESSAGE_SECONDS):
            return
        self._written_at[key] = self._steady()
        try:
            self._client.set(key, "1", ex=KEEP_LAST_MESSAGE_SECONDS)
        except RedisError:
            # Otherwise the messages of the minute after an outage would be missing.
            self._written_at[key] = self._steady() - LAST_MESSAGE_SECONDS + FAILED_MESSAGE_SECONDS

    def silence(self, channel: str) -> float | None:
        """Return the seconds since a message of the channel came in, at most a minute too many.

        None: no message came in within KEEP_LAST_MESSAGE_SECONDS. Raises redis.RedisError.
        """
        # What is left of the key's time says when the key was written. Redis answers with a
        # negative number where there is no key.
        left = int(self._client.ttl(self._last_message_key(channel)))
        if left < 0:
            return None
        return float(KEEP_LAST_MESSAGE_SECONDS - left)

    def of(self, channels: Iterable[str]) -> list[Alert]:
        """Return the newest alert of each of these channels, the newest first.

        Raises redis.RedisError.
        """
        places = list(product(channels, KINDS))
        if not places:
            return []

        # On a cluster each key may be on another node, so there is no transaction.
        pipe = self._client.pipeline(transaction=False)
        for channel, kind in places:
            pipe.get(self._key(channel, kind))

        alerts: list[Alert] = []
        for (channel, _), text in zip(places, pipe.execute(), strict=True):
            if text:
                stored = json.loads(text)
                alerts.append(Alert(channel, stored["words"], stored["at"]))
        return newest_first(alerts)

    def _is_due(self, key: str, seconds: float) -> bool:
        """Return whether this process has not written a key for this many seconds."""
        written_at = self._written_at.get(key, float("-inf"))
        return self._steady() - written_at >= seconds

    def _last_message_key(self, channel: str) -> str:
        return f"{self._prefix}{channel}:last_message"

    def _key(self, channel: str, kind: AlertKind) -> str:
        return f"{self._prefix}{channel}:{kind}"


def newest_first(alerts: Iterable[Alert]) -> list[Alert]:
    """Return the newest alert of each channel, the newest first."""
    last = {alert.channel: alert for alert in sorted(alerts, key=lambda alert: alert.at)}
    return sorted(last.values(), key=lambda alert: -alert.at)
