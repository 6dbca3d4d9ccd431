"""Console log-ins: wrong passwords are counted by address, and sessions that were logged out stay ended."""

from __future__ import annotations

import hashlib
import ipaddress
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import redis

from sayso.channels.base import StorageDown

#: Seconds a log-in is good for.
SESSION_SECONDS = 12 * 3600
#: Wrong passwords of one address that cost no time, and those after which it is locked out.
FREE_FAILURES, MAX_FAILURES = 3, 10
#: Seconds an address is locked out, and for which its failures are remembered.
LOCKOUT_SECONDS = 15 * 60
#: Addresses that the memory twin remembers.
MAX_ADDRESSES = 10_000


class LoginsDown(StorageDown):
    """Raised when nobody can tell how often an address has failed, or whether a session was logged out."""


@dataclass(frozen=True, slots=True)
class Failures:
    """How many wrong passwords came from an address, and when the last one did, in Unix seconds."""

    count: int = 0
    last: float = 0.0

    def wait(self, now: float) -> float:
        """Return the seconds until this address may try again: none at first, then twice as long each time."""
        if self.count < FREE_FAILURES:
            return 0.0
        pause = LOCKOUT_SECONDS if self.count >= MAX_FAILURES else 2.0 ** (self.count - FREE_FAILURES)
        return max(0.0, self.last + pause - now)


class Logins(Protocol):
    """What is known of log-ins, shared by all processes of a bot. Every method raises LoginsDown."""

    def failures(self, channel: str, address: str) -> Failures:
        """Return the wrong passwords of an address in the last LOCKOUT_SECONDS."""

    def fail(self, channel: str, address: str) -> Failures:
        """Count another wrong password."""

    def succeed(self, channel: str, address: str) -> None:
        """Forget the wrong passwords of an address."""

    def end(self, session: str) -> None:
        """End a session before its time."""

    def is_ended(self, session: str) -> bool:
        """Return whether a session was ended."""


class MemoryLogins:
    """Log-ins of one process, for tests and single-process use."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._failures: OrderedDict[tuple[str, str], Failures] = OrderedDict()
        self._ended: OrderedDict[str, float] = OrderedDict()
        self._lock = threading.Lock()

    def failures(self, channel: str, address: str) -> Failures:
        """Return the wrong passwords of an address in the last LOCKOUT_SECONDS."""
        found = self._failures.get((channel, network(address)), Failures())
        return found if self._clock() < found.last + LOCKOUT_SECONDS else Failures()

    def fail(self, channel: str, address: str) -> Failures:
        """Count another wrong password."""
        with self._lock:
            failed = Failures(self.failures(channel, address).count + 1, self._clock())
            self._failures[channel, network(address)] = failed
            while len(self._failures) > MAX_ADDRESSES:
                self._failures.popitem(last=False)
        return failed

    def succeed(self, channel: str, address: str) -> None:
        """Forget the wrong passwords of an address."""
        self._failures.pop((channel, network(address)), None)

    def end(self, session: str) -> None:
        """End a session before its time."""
        with self._lock:
            self._ended[session] = self._clock() + SESSION_SECONDS
            while next(iter(self._ended.values())) < self._clock():
                self._ended.popitem(last=False)

    def is_ended(self, session: str) -> bool:
        """Return whether a session was ended."""
        return session in self._ended


class RedisLogins:
    """Log-ins in Redis: `<prefix>console:failed:<channel>:<network>` and `<prefix>console:ended:<session>`."""

    def __init__(self, client: redis.Redis, prefix: str, clock: Callable[[], float] = time.time) -> None:
        self._client = client
        self._prefix = prefix
        self._clock = clock

    def failures(self, channel: str, address: str) -> Failures:
        """Return the wrong passwords of an address in the last LOCKOUT_SECONDS."""
        count, last = self._asked(lambda: self._client.hmget(self._key(channel, address), ["count", "last"]))
        return Failures(int(count or 0), float(last or 0))

    def fail(self, channel: str, address: str) -> Failures:
        """Count another wrong password."""
        key, now = self._key(channel, address), self._clock()
        pipe = self._client.pipeline(transaction=True)
        pipe.hincrby(key, "count", 1)
        pipe.hset(key, "last", str(now))
        pipe.expire(key, LOCKOUT_SECONDS)
        return Failures(int(self._asked(pipe.execute)[0]), now)

    def succeed(self, channel: str, address: str) -> None:
        """Forget the wrong passwords of an address."""
        self._asked(lambda: self._client.delete(self._key(channel, address)))

    def end(self, session: str) -> None:
        """End a session before its time."""
        self._asked(lambda: self._client.set(f"{self._prefix}console:ended:{session}", "1", ex=SESSION_SECONDS))

    def is_ended(self, session: str) -> bool:
        """Return whether a session was ended."""
        return bool(self._asked(lambda: self._client.exists(f"{self._prefix}console:ended:{session}")))

    def _key(self, channel: str, address: str) -> str:
        hidden = hashlib.sha256(network(address).encode()).hexdigest()[:20]
        return f"{self._prefix}console:failed:{channel}:{hidden}"

    def _asked(self, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except redis.RedisError as exc:
            raise LoginsDown(f"cannot look log-ins up: {type(exc).__name__}") from exc


def network(address: str) -> str:
    """Return what counts as one address: an IPv4 address, or the /64 that one IPv6 customer has."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, 64), strict=False)) if found.version == 6 else str(found)
