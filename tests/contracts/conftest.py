"""Fixtures of the contract suites: each promise holds for every store that a user can choose."""

from __future__ import annotations

import pytest

from sayso.pending import InMemoryPendingStore, RedisPendingStore
from tests.contracts.rigs import Rig


@pytest.fixture(params=["redis", "cluster"])
def make_rig(request):
    """Return a function that makes a rig of each kind."""
    client = request.getfixturevalue(f"{request.param}_client")
    return lambda **options: Rig(client, **options)


@pytest.fixture
def rig(make_rig):
    """Return a rig of each kind."""
    return make_rig()


@pytest.fixture(params=["memory", "redis", "cluster"])
def store(request):
    """Return a pending store of each kind."""
    if request.param == "memory":
        return InMemoryPendingStore()
    if request.param == "cluster":
        return RedisPendingStore(
            client=request.getfixturevalue("cluster_client"), secret_keys=["key"]
        )
    return request.getfixturevalue("redis_store")


@pytest.fixture
def redis_store(redis_client):
    """Return a pending store in Redis."""
    return RedisPendingStore(client=redis_client, secret_keys=["key"])
