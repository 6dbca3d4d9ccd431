"""Fixtures of the model: a client of the Redis of this test process."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from redis import Redis

from sayso.infra.redis.client import connect
from tests.scratch_redis import scratch_url


@pytest.fixture(scope="package")
def client() -> Iterator[Redis]:
    """Return a client of the model's Redis. Failing tools belong to the model, so their tracebacks are not printed."""
    logging.disable(logging.CRITICAL)
    with connect(scratch_url()) as redis:
        yield redis
    logging.disable(logging.NOTSET)
