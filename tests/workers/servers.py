"""A Redis that comes back with older data, as after a restart with an old file."""

from __future__ import annotations

from redis import Redis


def saved(client: Redis) -> dict[str, bytes]:
    """Return all keys of a server. From now on none expires: a slow test would find it gone, and compare less."""
    for key in client.scan_iter():
        client.persist(key)
    return {key: _in_bytes(client).dump(key) for key in client.scan_iter()}


def put_back(client: Redis, keys: dict[str, bytes]) -> None:
    """Replace the server's keys by the saved ones."""
    client.flushall()
    for key, dump in keys.items():
        _in_bytes(client).restore(key, 0, dump)


def _in_bytes(client: Redis) -> Redis:
    return Redis(unix_socket_path=client.connection_pool.connection_kwargs["path"])
