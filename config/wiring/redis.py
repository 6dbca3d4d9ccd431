"""Find the Redis of a bot, connect to it, and check that it can be used."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from redis import Redis
from redis.exceptions import ResponseError

from sayso.config.settings.data_folder import running_url
from sayso.config.settings.loader import ConfigError
from sayso.config.settings.schema import Settings
from sayso.pending.redis.client import Connections, RedisUnfit, check_fit, connect, hurry
from sayso.pending.redis.scripts import LuaScripts
from sayso.pending.redis.wire import Wire
from sayso.workers.redis.client import DataLossGuard
from sayso.workers.redis.data_loss import FILE as TIDE
from sayso.workers.redis.data_loss import TideFile
from sayso.workers.rq.jobs import WakeUps
from sayso.workers.sharding.shards import Primary, RoutedScripts, ShardMap

#: The first version of Redis that has all commands we use.
OLDEST_REDIS = (6, 2)


@dataclass(frozen=True, slots=True)
class RedisParts:
    """The Redis servers of one process, and what is built on them directly. Lives as long as the process."""

    client: Redis
    primaries: tuple[Primary, ...]
    wake_up: WakeUps
    key_prefix: str

    @classmethod
    def connect(cls, settings: Settings, url: str, *, patient: bool = False) -> RedisParts:
        """Open the connections; `patient` ones wait while Redis restarts. Raises ConfigError for a malformed URL."""
        client = _open_redis(url, patient=patient)
        primaries = open_primaries(settings, url, client, patient=patient)
        return cls(client, primaries, WakeUps(client, settings.queue), settings.key_prefix)

    def scripts(self, folder: Path) -> LuaScripts:
        """Return the Lua scripts of a folder, sent to the primary that holds each conversation."""
        if not self.primaries[0].name:
            return LuaScripts(self.client, folder, prefix=self.key_prefix)
        clients = {primary.name: primary.client for primary in self.primaries}
        return RoutedScripts(ShardMap(self.client, prefix=self.key_prefix), clients, folder, prefix=self.key_prefix)


def find_redis(settings: Settings, data: Path) -> str:
    """Return the URL of the configuration, of REDIS_URL, or of a running `sayso up`. Raises ConfigError without any."""
    url = settings.redis_url or os.environ.get("REDIS_URL", "") or running_url(data)
    if not url:
        raise ConfigError([f"no Redis: set REDIS_URL, or run `sayso up`, which brings its own, on {data}"])
    return url


def open_primaries(settings: Settings, redis_url: str, client: Redis, *, patient: bool = False) -> tuple[Primary, ...]:
    """Return the servers that hold conversations: those of `shards`, else that of `redis_url`. Raises ConfigError."""
    primaries = [Primary(name, url, _open_redis(url, patient=patient)) for name, url in settings.shards.items()]
    return tuple(primaries or [Primary("", redis_url, client)])


def _open_redis(url: str, *, patient: bool) -> Redis:
    try:
        client = connect(url, patient=patient)
    except ValueError as exc:  # its message may repeat a password
        cure = "write it as redis://host:6379/0, rediss://... or unix:///path"
        raise ConfigError([f"REDIS_URL (or redis_url) is no URL of a Redis: {cure}"]) from exc
    if patient:
        Connections.of(client).wire = Wire(url)
    return client


def open_data_loss_guards(
    settings: Settings, primaries: Sequence[Primary], data: Path
) -> tuple[DataLossGuard, ...]:  # fmt: skip
    """Return a guard for each server that holds conversations. From now on each new connection to it is checked."""
    notes, prefix = TideFile(settings.state_folder(data) / TIDE), settings.key_prefix
    guards = tuple(DataLossGuard(connect(each.url), notes, name=each.name, prefix=prefix) for each in primaries)
    for guard, primary in zip(guards, primaries, strict=True):
        guard.guard(primary.client)
    return guards


def fail_fast(clients: Sequence[Redis]) -> None:
    """Make calls of these clients give up soon, for a web that must answer its platforms in time."""
    for client in dict.fromkeys(clients):
        hurry(client)


def risks_of(client: Redis) -> list[str]:
    """Return what is risky about a server. Raises RedisUnfit for one that would lose acknowledged writes, and
    redis.RedisError.
    """
    _check_version(client)
    return check_fit(client)


def _check_version(client: Redis) -> None:
    """Refuse a server that lacks commands we use. One that hides its INFO is accepted. Raises RedisUnfit."""
    try:
        version = str(client.info("server").get("redis_version", ""))
    except ResponseError:
        return
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers and numbers < OLDEST_REDIS:
        oldest = ".".join(str(part) for part in OLDEST_REDIS)
        raise RedisUnfit(f"this Redis is {version}: use {oldest} or newer, or run `sayso up`, which brings its own")
