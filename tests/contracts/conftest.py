"""Fixtures of the contract suites: each promise holds in memory and in Redis."""

from __future__ import annotations

import pytest

from sayso.pending import InMemoryPendingStore, RedisPendingStore
from tests.contracts.rigs import MemoryRig, RedisRig


@pytest.fixture(params=["memory", "redis"])
def make_rig(request):
    """Return a function that makes a rig of each kind."""
    if request.param == "memory":
        return MemoryRig
    client = request.getfixturevalue("redis_client")
    return lambda **options: RedisRig(client, **options)


@pytest.fixture
def rig(make_rig):
    """Return a rig of each kind."""
    return make_rig()


@pytest.fixture(params=["memory", "redis"])
def store(request):
    """Return a pending store of each kind."""
    if request.param == "memory":
        return InMemoryPendingStore()
    return request.getfixturevalue("redis_store")


@pytest.fixture
def redis_store(redis_client):
    """Return a pending store in Redis."""
    return RedisPendingStore(client=redis_client, secret_keys=["key"])
