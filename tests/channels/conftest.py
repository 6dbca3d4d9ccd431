"""Fixtures of the channel tests: one set of fake platforms and one media source for the whole run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sayso.testing.platforms.fake_platforms import FakePlatforms
from tests.channels.harness import MemoryMedia
from tests.channels.json_webhook import NAME, FakeJsonWebhook


@pytest.fixture(scope="session")
def running() -> Iterator[FakePlatforms]:
    """Yield the fake platforms, started once."""
    with FakePlatforms() as fakes:
        fakes.fakes[NAME] = FakeJsonWebhook(fakes.log)
        yield fakes


@pytest.fixture
def platforms(running: FakePlatforms) -> FakePlatforms:
    """Return the fake platforms with an empty log."""
    running.reset()
    return running


@pytest.fixture(scope="session")
def media() -> Iterator[MemoryMedia]:
    """Yield a media source with a picture and a document."""
    source = MemoryMedia()
    yield source
    source.close()
