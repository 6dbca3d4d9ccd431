"""`sayso web` starts before its Redis: after a reboot the order of services is open."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.config.processes import PATIENCE, free_port, until
from tests.workers.sentinels import Node


class Started:
    """A web process whose Redis is not there yet."""

    def __init__(self, folder: Path) -> None:
        (folder / "bot.yaml").write_text("agent: {model: offline}\nchannels: {web: {platform: console}}\n")
        self.redis = Node(folder, "redis")
        self.url, self.log = f"http://127.0.0.1:{free_port()}", folder / "log"
        arguments = ["--config", str(folder / "bot.yaml"), "--data", str(folder), "--port", self.url.rpartition(":")[2]]
        with self.log.open("wb") as log:
            self.web = subprocess.Popen(
                [sys.executable, "-m", "sayso", "web", *arguments],
                stdout=log, stderr=log, env={"REDIS_URL": f"redis://127.0.0.1:{self.redis.port}/0"},
            )  # fmt: skip

    def status(self) -> int:
        """Return what /readyz answers, 0 for nothing."""
        try:
            return httpx.get(f"{self.url}/readyz", timeout=10).status_code
        except httpx.HTTPError:
            return 0


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    """Return a web process that answers 503."""
    started = Started(tmp_path)
    until(lambda: started.status() == 503)
    yield started
    started.web.kill()
    started.web.wait()
    started.redis.stop()


def test_web_answers_503_until_redis_is_there(started: Started):
    """Platforms send again what got a 503; what gets no connection may be lost."""
    started.redis.start()
    until(lambda: started.status() == 200)
    started.web.terminate()
    assert started.web.wait(PATIENCE) == 0
    assert "redis.away" in started.log.read_text()


def test_web_stops_when_the_redis_that_comes_cannot_be_used(started: Started):
    """It was not checked at the start, and might drop waiting messages."""
    started.redis.start("--maxmemory-policy", "allkeys-lru")
    assert started.web.wait(PATIENCE) == 0
    assert "redis.unfit reason=maxmemory-policy is 'allkeys-lru'" in started.log.read_text()
