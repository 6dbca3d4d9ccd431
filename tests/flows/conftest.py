"""Fixtures of the flow tests: one running system for all of them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.flows.system import System


@pytest.fixture(scope="session")
def system() -> Iterator[System]:
    """Return Redis, the web and two workers as running processes."""
    with tempfile.TemporaryDirectory(prefix="sayso-flow-") as folder, System(Path(folder)) as running:
        yield running
