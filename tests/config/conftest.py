"""Fixtures of the commands and of the built packages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from deploy.build_packages import build
from sayso.testing.platforms.fake_platforms import FakePlatforms
from tests.config.fake_bots import ENVIRON

ROOT = Path(__file__).parents[2]
#: The time of all files in the packages, in Unix seconds.
EPOCH = 1_790_000_000


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Build the wheel and the sdist of this checkout as `make dist` does."""
    wheel, sdist = build(ROOT, tmp_path_factory.mktemp("dist"), epoch=EPOCH)
    return {"wheel": wheel, "sdist": sdist}


@pytest.fixture
def platforms_and_redis(
    monkeypatch: pytest.MonkeyPatch, redis_client: Redis, redis_url: str
) -> Iterator[FakePlatforms]:  # fmt: skip
    """Return fake platforms, with the environment of an empty Redis."""
    for name, value in {**ENVIRON, "REDIS_URL": redis_url}.items():
        monkeypatch.setenv(name, value)
    with FakePlatforms() as platforms:
        yield platforms
