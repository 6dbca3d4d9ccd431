"""Find, connect, check Redis."""

from __future__ import annotations

import os
from pathlib import Path

from redis import Redis
from redis.exceptions import ResponseError

from sayso.config.server.embedded_redis import running_url
from sayso.config.settings.loader import ConfigError
from sayso.config.settings.schema import Settings
from sayso.pending.redis.client import Connections, RedisUnfit, check_fit, connect
from sayso.pending.redis.wire import Wire
from sayso.workers.redis.client import DataLossGuard
from sayso.workers.redis.data_loss import FILE as TIDE
from sayso.workers.redis.data_loss import WatermarkFile

#: The first version of Redis that has all commands we use.
OLDEST_REDIS = (6, 2)


def guard_against_loss(settings: Settings, url: str, client: Redis, data: Path) -> DataLossGuard:
    """Return the guard of the Redis at a URL. Every connection that `client` makes from now on asks it first."""
    tide = DataLossGuard(connect(url), WatermarkFile(settings.state_folder(data) / TIDE), prefix=settings.key_prefix)
    tide.guard(client)
    return tide


def open_redis(url: str, *, patient: bool) -> Redis:
    """Return a client of a Redis. A `patient` one rides out restarts and shares one connection on its event loop.

    Raises ConfigError for what is no URL of a Redis.
    """
    client = connect_or_refuse(url, patient=patient)
    if patient:
        Connections.of(client).wire = Wire(url)
    return client


def find_redis(settings: Settings, data: Path) -> str:
    """The Redis of the configuration, of the environment, or of a running `sayso up`. Raises ConfigError."""
    url = settings.redis_url or os.environ.get("REDIS_URL", "") or running_url(data)
    if not url:
        raise ConfigError([f"no Redis: set REDIS_URL, or run `sayso up`, which brings its own, on {data}"])
    return url


def connect_or_refuse(url: str, *, patient: bool) -> Redis:
    """Return a client of a Redis. Raises ConfigError for what is no URL of a Redis."""
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
