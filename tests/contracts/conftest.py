"""Fixtures of the contract suites: each promise is kept in memory and in Redis."""

from __future__ import annotations

import pytest

from sayso.pending import InMemoryPendingStore, RedisPendingStore
from tests.contracts.rigs import MemoryRig, RedisRig


@pytest.fixture(params=["memory", "redis"])
def make_rig(request):
    """Makes lanes of either kind."""
    if request.param == "memory":
        return MemoryRig
    client = request.getfixturevalue("redis_client")
    return lambda **options: RedisRig(client, **options)


@pytest.fixture
def rig(make_rig):
    """Lanes of either kind."""
    return make_rig()


@pytest.fixture(params=["memory", "redis"])
def store(request):
    """A pending store of either kind."""
    if request.param == "memory":
        return InMemoryPendingStore()
    return request.getfixturevalue("redis_store")


@pytest.fixture
def redis_store(redis_client):
    """A pending store in Redis."""
    return RedisPendingStore(client=redis_client, secret_keys=["key"])
