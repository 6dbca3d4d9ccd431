"""Health: /healthz is about this process, /readyz about the whole bot."""

from __future__ import annotations

import pytest
from redis import Redis
from rq import Worker

from config.embedded import EmbeddedRedis
from tests.config.processes import short_folder
from tests.web.services import browser
from workers.queue import QUEUE


@pytest.fixture(scope="module")
def server():
    """A running Redis."""
    with short_folder() as folder:
        embedded = EmbeddedRedis(folder)
        embedded.start()
        yield embedded
        embedded.stop()


def test_process_without_redis_is_healthy_but_not_ready():
    """Restarting the web would not bring Redis back."""
    client = browser(redis_url="redis://:s3cr3t@127.0.0.1:1")
    assert (client.get("/healthz").status_code, client.get("/healthz").json) == (200, {"status": "ok"})
    ready = client.get("/readyz")
    assert (ready.status_code, ready.json) == (503, {"status": "not ready", "redis": "ConnectionError"})


def test_bot_without_workers_is_not_ready(server: EmbeddedRedis):
    """Messages would be kept, but nobody would answer."""
    ready = browser(redis_url=server.url).get("/readyz")
    assert (ready.status_code, ready.json) == (503, {"status": "not ready", "redis": "ok", "workers": 0})


def test_bot_with_a_worker_is_ready(server: EmbeddedRedis):
    """A worker of another queue does not count; one of ours does."""
    with Redis.from_url(server.url) as connection:
        for queue, status in (("other", 503), (QUEUE, 200)):
            worker = Worker([queue], connection=connection)
            worker.register_birth()
            assert browser(redis_url=server.url).get("/readyz").status_code == status
            worker.register_death()
