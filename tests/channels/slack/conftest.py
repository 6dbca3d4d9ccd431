"""Fixtures of the tests of Slack: a reader of requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sayso.channels.types import Received
from tests.channels.harness import MemoryMedia, slack, slack_hook


@pytest.fixture
def read(media: MemoryMedia) -> Callable[..., Received]:
    """Return a function that reads a body with the adapter; keywords are settings."""

    def read(body: bytes, **settings: Any) -> Received:
        return slack(media, None, **settings).receive(slack_hook(body))

    return read
