"""Find, connect, check Redis."""

from __future__ import annotations

import os
from collections.abc import Sequence
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
from sayso.workers.sharding.shards import Primary, RoutedScripts, ShardMap

#: The first version of Redis that has all commands we use.
OLDEST_REDIS = (6, 2)


def open_primaries(settings: Settings, redis_url: str, client: Redis, *, patient: bool = False) -> tuple[Primary, ...]:
    """All servers that hold conversations; the one of `redis_url` where no others are named. Raises ConfigError."""
    named = settings.shards.items()
    found = [Primary(name, url, _open_redis(url, patient=patient)) for name, url in named]
    return tuple(found or [Primary("", redis_url, client)])


def open_tides(settings: Settings, primaries: Sequence[Primary], data: Path) -> tuple[DataLossGuard, ...]:
    """The tides of all servers that hold conversations, which each new connection to them looks at from here on."""
    notes, prefix = TideFile(settings.state_folder(data) / TIDE), settings.key_prefix
    tides = tuple(DataLossGuard(connect(primary.url), notes, name=primary.name, prefix=prefix) for primary in primaries)
    for tide, primary in zip(tides, primaries, strict=True):
        tide.guard(primary.client)
    return tides


def _hurry(clients: Sequence[Redis]) -> None:
    for client in dict.fromkeys(clients):
        hurry(client)


def _open_redis(url: str, *, patient: bool) -> Redis:
    client = _connect(url, patient=patient)
    if patient:
        Connections.of(client).wire = Wire(url)
    return client


def _scripts(settings: Settings, client: Redis, primaries: Sequence[Primary], folder: Path) -> LuaScripts:
    prefix = settings.key_prefix
    if not primaries[0].name:
        return LuaScripts(client, folder, prefix=prefix)
    by_name = {primary.name: primary.client for primary in primaries}
    return RoutedScripts(ShardMap(client, prefix=prefix), by_name, folder, prefix=prefix)


def find_redis(settings: Settings, data: Path) -> str:
    """The Redis of the configuration, of the environment, or of a running `sayso up`. Raises ConfigError."""
    url = settings.redis_url or os.environ.get("REDIS_URL", "") or running_url(data)
    if not url:
        raise ConfigError([f"no Redis: set REDIS_URL, or run `sayso up`, which brings its own, on {data}"])
    return url


def _connect(url: str, *, patient: bool) -> Redis:
    try:
        return connect(url, patient=patient)
    except ValueError as exc:  # its message may repeat a password
        cure = "write it as redis://host:6379/0, rediss://... or unix:///path"
        raise ConfigError([f"REDIS_URL (or redis_url) is no URL of a Redis: {cure}"]) from exc


def risks_of(client: Redis) -> list[str]:
    """Refuse a server that would lose what we keep; return what is risky. Raises RedisUnfit, redis.RedisError."""
    _check_version(client)
    return check_fit(client)


def _check_version(client: Redis) -> None:
    """Refuse a server that lacks commands we use; one that hides its INFO is taken at its word."""
    try:
        version = str(client.info("server").get("redis_version", ""))
    except ResponseError:
        return
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers and numbers < OLDEST_REDIS:
        oldest = ".".join(str(part) for part in OLDEST_REDIS)
        raise RedisUnfit(f"this Redis is {version}: use {oldest} or newer, or run `sayso up`, which brings its own")
