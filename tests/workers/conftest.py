"""Fixtures of the worker tests: a whole bot, in memory and on Redis."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sayso.config.server.embedded_redis import EmbeddedRedis
from tests.contracts.rigs import MemoryRig, RedisRig
from tests.workers.fakes import Bot
from tests.workers.fleet import Fleet


@pytest.fixture(params=["memory", "redis"])
def make_bot(request):
    """Makes a bot whose model wants to delete these names, then says these lines."""
    client = request.getfixturevalue("redis_client") if request.param == "redis" else None
    return lambda *names, **options: Bot(RedisRig(client) if client else MemoryRig(), *names, **options)


@pytest.fixture(scope="session")
def server_urls() -> Iterator[dict[str, str]]:
    """Three Redis servers of our own."""
    with ExitStack() as stack:
        servers = {}
        for name in "abc":
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="sayso-"))
            servers[name] = EmbeddedRedis(Path(folder))
            servers[name].start()
            stack.callback(servers[name].stop)
        yield {name: server.url for name, server in servers.items()}


@pytest.fixture
def fleet(server_urls) -> Fleet:
    """Primaries a and b in use, c at hand; the room lives on a."""
    return Fleet(server_urls)
