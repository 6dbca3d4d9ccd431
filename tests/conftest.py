"""Fixtures for all: one real Redis for the whole session, empty before each test."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from redis import Redis

from sayso.config.server.embedded_redis import EmbeddedRedis
from sayso.pending.redis.client import connect

# How fast a machine is decides no test. What was loaded before, as for mutants, stays.
settings.register_profile("sayso", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("sayso")


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """What a test sets, a wired process included, is gone after it."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """A server of our own. A machine that has none and cannot run ours fails here, loudly."""
    with tempfile.TemporaryDirectory(prefix="sayso-") as folder:
        server = EmbeddedRedis(Path(folder))
        server.start()
        yield server.url
        server.stop()


@pytest.fixture
def redis_client(redis_url: str) -> Iterator[Redis]:
    """A client of an empty Redis."""
    with connect(redis_url) as client:
        client.flushall()
        yield client
