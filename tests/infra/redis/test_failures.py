"""What is said of a Redis that cannot be used: one line with the cure, and whether waiting mends it."""

from __future__ import annotations

import pytest
from redis import Redis
from redis.exceptions import RedisError

from sayso.infra.redis.checks import explain
from sayso.infra.redis.client import connect
from tests.config.processes import free_port


def error_of(client: Redis, *command: str) -> RedisError:
    """Return the error of a command on a real server."""
    with pytest.raises(RedisError) as failed:
        client.execute_command(*command)
    return failed.value


def test_server_without_memory_is_told_from_one_that_forbids_a_command(
    redis_client: Redis, redis_url: str
) -> None:
    """Memory may come back; a permission does not by itself."""
    redis_client.config_set("maxmemory", "1")
    try:
        full = explain(error_of(redis_client, "SET", "word", "1"), "db:6379")
    finally:
        redis_client.config_set("maxmemory", "0")
    assert (str(full), full.lasts) == (
        "db:6379 has no memory left: raise its maxmemory, or move it to a larger machine",
        False,
    )
    redis_client.execute_command("ACL", "SETUSER", "poor", "reset", "on", ">pw", "~*", "+ping")
    with connect(redis_url.replace("unix://", "unix://poor:pw@")) as poor:
        denied = explain(error_of(poor, "GET", "word"), "db:6379")
    redis_client.execute_command("ACL", "DELUSER", "poor")
    assert (denied.says[:42], denied.lasts) == ("db:6379 forbids this user a command (User ", True)


def test_error_names_its_server_where_nobody_else_knows_it() -> None:
    """Those of a cluster's node do, and the variable is that of the queue where it is the queue."""
    port = free_port()
    with connect(f"redis://127.0.0.1:{port}") as client:
        exc = error_of(client, "PING")
    assert str(explain(exc)).startswith(
        f"127.0.0.1:{port}: nothing listens there: start it, correct REDIS_URL"
    )
    assert "correct QUEUE_URL" in str(explain(exc, variable="QUEUE_URL"))
    with connect("redis://:secret@no-such-host.invalid") as client:
        unknown = explain(error_of(client, "PING"), "no-such-host.invalid:6379")
    assert (unknown.says, unknown.lasts) == (
        "no-such-host.invalid:6379 has a host name that is unknown here",
        False,
    )
