"""Fixtures of the model: a separate Redis without persistence, because it is never restarted."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from sayso.infra.redis.client import connect
from sayso.ops.server.embedded_redis import EmbeddedRedis


@pytest.fixture(scope="package")
def client() -> Iterator[Redis]:
    """Return a client of the model's Redis. Failing tools belong to the model, so their tracebacks are not printed."""
    with tempfile.TemporaryDirectory(prefix="sayso-") as folder:
        server = EmbeddedRedis(Path(folder))
        server.start()
        logging.disable(logging.CRITICAL)
        with connect(server.url) as redis:
            redis.config_set("appendonly", "no")
            yield redis
        logging.disable(logging.NOTSET)
        server.stop()
