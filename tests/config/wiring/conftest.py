"""A bot whose Slack app many workspaces install, for the modules of tests about it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from sayso.testing.platforms.fake_platforms import FakePlatforms
from tests.config.wiring.slack_bot import OpenBot, SlackBot


@pytest.fixture
def open_bot(tmp_path: Path, redis_client: Redis, redis_url: str) -> Iterator[OpenBot]:
    """Return a function that opens a bot with more keys of its channel."""
    with FakePlatforms() as platforms:
        yield lambda more="messages_per_second: 0": SlackBot(tmp_path, redis_url, platforms, more)
