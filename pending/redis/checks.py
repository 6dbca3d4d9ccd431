"""Checks of a Redis at start and by the doctor: is it a primary, what is forbidden, what a failover may lose."""

from __future__ import annotations

import ssl

from redis import Redis
from redis.exceptions import RedisError, ResponseError

from sayso.pending.redis.client import address_of
from sayso.pending.redis.sentinel import NoPrimary, PrimarySilent, SentinelService


def sentinel_of(client: Redis) -> SentinelService | None:
    """Return the service that a client follows, None for a client of one server."""
    service: SentinelService | None = client.connection_pool.connection_kwargs.get("sentinel")
    return service


def wrong_server(client: Redis) -> tuple[str, str] | None:
    """Return what a server is instead of a primary, and the cure. Raises redis.RedisError."""
    try:
        info = client.info()
    except ResponseError:  # one that hides its INFO
        return None
    if "sentinel" in (info.get("redis_mode"), info.get("server_mode")):  # Valkey has the second
        port = client.connection_pool.connection_kwargs.get("port", 6379)
        services = ", ".join(value["name"] for value in info.values() if isinstance(value, dict) and "name" in value)
        cure = f"write redis+sentinel://HOST:{port}/SERVICE into REDIS_URL, with all Sentinels"
        return "is a Sentinel, not a Redis", f"{cure}; its services: {services or 'none'}"
    if info.get("role") == "slave":
        primary = f"{info.get('master_host')}:{info.get('master_port')}"
        return "is a read-only replica", f"set REDIS_URL to its primary, {primary}, or to Sentinels that name it"
    return None


def unreachable(client: Redis, exc: RedisError) -> tuple[str, str]:
    """Return why a server cannot be used, and the cure."""
    place = address_of(client)
    failed: BaseException | None = exc
    while failed and not isinstance(failed, ssl.SSLError):
        failed = failed.__cause__ or failed.__context__
    if isinstance(failed, ssl.SSLCertVerificationError):
        cure = "add ?ssl_ca_certs=FILE with its authority to REDIS_URL, and use the name in its certificate"
        return f"{place} has a certificate that fails the check: {failed.verify_message}", cure
    if isinstance(failed, ssl.SSLError):
        says = f"{place} does not speak TLS as REDIS_URL asks for ({failed.reason})"
        return says, "use redis:// for a port without TLS, or the port that has it"
    if isinstance(exc, NoPrimary | PrimarySilent):
        says, _, cure = str(exc).partition(": ")
        return says, cure
    return f"{place} does not answer ({type(exc).__name__})", "start it, and check REDIS_URL and its password"
