"""Find the Redis of a bot, connect to it, and check that it can be used."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from redis import Redis
from redis.exceptions import ResponseError

from sayso.config.settings.data_folder import running_url
from sayso.config.settings.loader import ConfigError
from sayso.config.settings.schema import Settings
from sayso.pending.redis.client import Connections, RedisUnfit, check_fit, connect
from sayso.pending.redis.pipeline import AutoPipeline
from sayso.pending.redis.scripts import LuaScripts
from sayso.workers.redis.data_loss import FILE as TIDE
from sayso.workers.redis.data_loss import DataLossGuard, WatermarkFile
from sayso.workers.rq.jobs import WakeUps

#: The first version of Redis that has all commands we use.
OLDEST_REDIS = (6, 2)


@dataclass(frozen=True, slots=True)
class RedisParts:
    """The Redis of one process, and what is built on it directly. Lives as long as the process."""

    url: str
    client: Redis
    wake_up: WakeUps
    key_prefix: str

    @classmethod
    def connect(cls, settings: Settings, url: str, *, patient: bool = False) -> RedisParts:
        """Open the connections; `patient` ones wait while Redis restarts. Raises ConfigError for a malformed URL."""
        client = _open_redis(url, patient=patient)
        return cls(url, client, WakeUps(client, settings.queue), settings.key_prefix)

    def scripts(self, folder: Path) -> LuaScripts:
        """Return the Lua scripts of a folder."""
        return LuaScripts(self.client, folder, prefix=self.key_prefix)


def find_redis(settings: Settings, data: Path) -> str:
    """Return the URL of the configuration, of REDIS_URL, or of a running `sayso up`. Raises ConfigError without any."""
    url = settings.redis_url or os.environ.get("REDIS_URL", "") or running_url(data)
    if not url:
        raise ConfigError([f"no Redis: set REDIS_URL, or run `sayso up`, which brings its own, on {data}"])
    return url


def _open_redis(url: str, *, patient: bool) -> Redis:
    try:
        client = connect(url, patient=patient)
    except ValueError as exc:  # its message may repeat a password
        cure = "write it as redis://host:6379/0, rediss://... or unix:///path"
        raise ConfigError([f"REDIS_URL (or redis_url) is no URL of a Redis: {cure}"]) from exc
    if patient:
        Connections.of(client).pipeline = AutoPipeline(url)
    return client


def guard_against_loss(settings: Settings, url: str, client: Redis, data: Path) -> DataLossGuard:
    """Return the data-loss guard of the Redis at a URL. From now on each new connection of `client` is checked."""
    notes = WatermarkFile(settings.state_folder(data) / TIDE)
    guard = DataLossGuard(connect(url), notes, prefix=settings.key_prefix)
    guard.guard(client)
    return guard


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
