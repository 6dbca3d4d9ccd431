"""Fixtures of the worker tests: a whole bot."""

from __future__ import annotations

import pytest

from tests.contracts.rigs import Rig
from tests.scratch_redis import empty_redis
from tests.workers.fakes import Bot


@pytest.fixture
def make_bot():
    """Return a function that makes a bot whose model deletes these names, then says these lines.

    All bots of a test have the same Redis.
    """
    client = empty_redis()
    return lambda *names, **options: Bot(Rig(client), *names, **options)
