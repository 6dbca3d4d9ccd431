"""Fixtures of the model: a Redis of its own that writes no file, since it is never restarted."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from sayso.config.server.embedded_redis import EmbeddedRedis
from sayso.pending.redis.client import connect


@pytest.fixture(scope="package")
def client() -> Iterator[Redis]:
    """A client of the model's Redis. Failing tools are part of the model: their tracebacks are not printed."""
    with tempfile.TemporaryDirectory(prefix="sayso-") as folder:
        server = EmbeddedRedis(Path(folder))
        server.start()
        logging.disable(logging.CRITICAL)
        with connect(server.url) as redis:
            redis.config_set("appendonly", "no")
            yield redis
        logging.disable(logging.NOTSET)
        server.stop()
