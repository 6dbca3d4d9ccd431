"""Console log-ins: counts wrong passwords by address, and remembers sessions that were logged out."""

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

#: How long a log-in is valid, in seconds.
SESSION_SECONDS = 12 * 3600
#: After how many wrong passwords an address must wait before the next attempt, and is locked out.
FREE_FAILURES, MAX_FAILURES = 3, 10
#: How long an address is locked out and its failures are remembered, in seconds.
LOCKOUT_SECONDS = 15 * 60
#: How many addresses MemoryLogins remembers.
MAX_ADDRESSES = 10_000


class LoginsDown(StorageDown):
    """Raised when failures and logged-out sessions cannot be looked up."""


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
    """Failed log-ins and ended sessions, shared by all processes of a bot. Every method raises LoginsDown."""

    def failures(self, channel: str, address: str) -> Failures:
        """Return the wrong passwords of an address in the last LOCKOUT_SECONDS."""

    def fail(self, channel: str, address: str) -> Failures:
        """Count another wrong password."""

    def succeed(self, channel: str, address: str) -> None:
        """Delete the wrong passwords of an address."""

    def end(self, session: str) -> None:
        """End a session before it expires."""

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
        failures = self._failures.get((channel, network(address)), Failures())
        return failures if self._clock() < failures.last + LOCKOUT_SECONDS else Failures()

    def fail(self, channel: str, address: str) -> Failures:
        """Count another wrong password."""
        with self._lock:
            failed = Failures(self.failures(channel, address).count + 1, self._clock())
            self._failures[channel, network(address)] = failed
            while len(self._failures) > MAX_ADDRESSES:
                self._failures.popitem(last=False)
        return failed

    def succeed(self, channel: str, address: str) -> None:
        """Delete the wrong passwords of an address."""
        self._failures.pop((channel, network(address)), None)

    def end(self, session: str) -> None:
        """End a session before it expires."""
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
        count, last = self._run(lambda: self._client.hmget(self._key(channel, address), ["count", "last"]))
        return Failures(int(count or 0), float(last or 0))

    def fail(self, channel: str, address: str) -> Failures:
        """Count another wrong password."""
        key, now = self._key(channel, address), self._clock()
        pipe = self._client.pipeline(transaction=True)
        pipe.hincrby(key, "count", 1)
        pipe.hset(key, "last", str(now))
        pipe.expire(key, LOCKOUT_SECONDS)
        return Failures(int(self._run(pipe.execute)[0]), now)

    def succeed(self, channel: str, address: str) -> None:
        """Delete the wrong passwords of an address."""
        self._run(lambda: self._client.delete(self._key(channel, address)))

    def end(self, session: str) -> None:
        """End a session before it expires."""
        self._run(lambda: self._client.set(f"{self._prefix}console:ended:{session}", "1", ex=SESSION_SECONDS))

    def is_ended(self, session: str) -> bool:
        """Return whether a session was ended."""
        return bool(self._run(lambda: self._client.exists(f"{self._prefix}console:ended:{session}")))

    def _key(self, channel: str, address: str) -> str:
        hashed = hashlib.sha256(network(address).encode()).hexdigest()[:20]
        return f"{self._prefix}console:failed:{channel}:{hashed}"

    def _run(self, command: Callable[[], Any]) -> Any:
        try:
            return command()
        except redis.RedisError as exc:
            raise LoginsDown(f"cannot look up log-ins: {type(exc).__name__}") from exc


def network(address: str) -> str:
    """Return what counts as one address: an IPv4 address, or the /64 network of an IPv6 customer."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped:
        return str(ip.ipv4_mapped)
    return str(ipaddress.ip_network((ip, 64), strict=False)) if ip.version == 6 else str(ip)
