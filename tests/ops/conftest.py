"""Fixtures of the commands."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis

from sayso.testing.platforms.fake_platforms import FakePlatforms
from tests.config.fake_bots import ENVIRON


@pytest.fixture
def platforms_and_redis(
    monkeypatch: pytest.MonkeyPatch, redis_client: Redis, redis_url: str
) -> Iterator[FakePlatforms]:  # fmt: skip
    """Return fake platforms, with the environment of an empty Redis."""
    for name, value in {**ENVIRON, "REDIS_URL": redis_url}.items():
        monkeypatch.setenv(name, value)
    with FakePlatforms() as platforms:
        yield platforms
