"""`sayso web` and `sayso poll` start before their Redis, of any kind: after a reboot the order of services is open."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

import httpx
import pytest

from sayso.infra.redis.client import connect
from tests.config.processes import PATIENCE, ForkedCommand, free_port, until
from tests.workers.clusters import ClusterWithQueue
from tests.workers.sentinels import Node, SentinelSetup

YAML = """
agent: {model: offline}
channels:
  web: {platform: console}
  tg: {platform: telegram, polling: true, token: "${TOKEN}", api_url: "http://127.0.0.1:9"}
"""
#: A name that no DNS server knows (RFC 2606), such as that of a service that is not deployed yet.
UNKNOWN = "redis.invalid"


class Server(Protocol):
    """One server, Sentinels or a cluster."""

    @property
    def url(self) -> str:
        """Return the URL for Sayso."""
        ...

    def start(self) -> None:
        """Start all processes."""
        ...

    def stop(self) -> None:
        """End all processes."""
        ...


class OneServer(Node):
    """One server, with a URL."""

    @property
    def url(self) -> str:
        """Return the URL for Sayso."""
        return f"redis://127.0.0.1:{self.port}/0"


class Started:
    """A web or poll process whose Redis is not there yet."""

    def __init__(self, folder: Path, command: str, url: str, environ: Mapping[str, str]) -> None:
        (folder / "bot.yaml").write_text(YAML)
        self.url, self.log = f"http://127.0.0.1:{free_port()}", folder / "log"
        arguments = [command, "--config", str(folder / "bot.yaml"), "--data", str(folder)]
        if command == "web":
            arguments += ["--port", self.url.rpartition(":")[2]]
        whole = {**os.environ, "TOKEN": "123:abc", "REDIS_URL": url, **environ}
        self.process = ForkedCommand(arguments, whole, self.log)

    def status(self) -> int:
        """Return what /readyz answers, 0 for nothing."""
        try:
            return httpx.get(f"{self.url}/readyz", timeout=10).status_code
        except httpx.HTTPError:
            return 0

    def is_away(self) -> bool:
        """Return whether the log says that Redis is away. Fails when the process has ended."""
        log = self.log.read_text()
        assert self.process.poll() is None, log
        return "redis.away" in log


@pytest.fixture(params=["one server", "sentinel", "cluster"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """Return servers that are not started."""
    if request.param == "one server":
        server: Server = OneServer(tmp_path, "redis")
    else:
        server = (
            SentinelSetup(tmp_path) if request.param == "sentinel" else ClusterWithQueue(tmp_path)
        )
    yield server
    server.stop()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[object]:
    """Return a function that starts a command with a URL, and end its process."""
    running: list[Started] = []

    def start(command: str, url: str, environ: Mapping[str, str] | None = None) -> Started:
        running.append(Started(tmp_path, command, url, environ or {}))
        return running[-1]

    yield start
    for each in running:
        each.process.kill()
        each.process.wait()


def test_web_answers_503_until_redis_is_there(server: Server, start):
    """Platforms send again what got a 503; what gets no connection may be lost."""
    started = start("web", server.url, getattr(server, "environ", None))
    until(lambda: started.status() == 503)
    assert started.is_away()
    server.start()
    until(lambda: started.status() == 200)
    started.process.terminate()
    assert started.process.wait(PATIENCE) == 0


def test_poll_waits_until_redis_is_there(server: Server, start):
    """It fetches nothing meanwhile: the platform keeps what it has."""
    started = start("poll", server.url, getattr(server, "environ", None))
    until(started.is_away)
    server.start()
    with connect(server.url) as client:
        until(lambda: client.zcard("sayso:bot:ingress"))
    started.process.terminate()
    assert started.process.wait(PATIENCE) == 0


@pytest.mark.parametrize(
    "url",
    [f"redis://{UNKNOWN}/0", f"redis+sentinel://{UNKNOWN}/shop", f"redis+cluster://{UNKNOWN}"],
)
def test_host_without_an_address_counts_as_away(url: str, start):
    """The DNS entry of a service may come later than the web."""
    started = start("web", url, {"QUEUE_URL": f"redis://{UNKNOWN}:6380/0"})
    until(lambda: started.status() == 503)
    assert started.is_away()


def test_web_stops_when_the_redis_that_comes_cannot_be_used(tmp_path: Path, start):
    """It was not checked at the start, and might drop waiting messages."""
    server = OneServer(tmp_path, "redis")
    started = start("web", server.url)
    until(lambda: started.status() == 503)
    server.start("--maxmemory-policy", "allkeys-lru")
    assert started.process.wait(PATIENCE) == 0
    assert "redis.unfit reason=maxmemory-policy is 'allkeys-lru'" in started.log.read_text()
    server.stop()


def test_server_that_is_no_cluster_ends_the_start(tmp_path: Path, start):
    """Waiting would not mend it."""
    server = OneServer(tmp_path, "redis")
    server.start()
    started = start(
        "web",
        server.url.replace("redis://", "redis+cluster://").removesuffix("/0"),
        {"QUEUE_URL": server.url},
    )
    assert started.process.wait(PATIENCE) == 3
    assert "cluster support disabled" in started.log.read_text()
    server.stop()
