"""Fixtures of the worker tests: a whole bot, in memory and on Redis."""

from __future__ import annotations

import pytest

from tests.contracts.rigs import MemoryRig, RedisRig
from tests.workers.fakes import Bot


@pytest.fixture(params=["memory", "redis"])
def make_bot(request):
    """Return a function that makes a bot whose model deletes these names, then says these lines."""
    client = request.getfixturevalue("redis_client") if request.param == "redis" else None
    return lambda *names, **options: Bot(
        RedisRig(client) if client else MemoryRig(), *names, **options
    )
