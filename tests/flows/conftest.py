"""The running system, once for all flow tests."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.flows.system import System


@pytest.fixture(scope="session")
def system() -> Iterator[System]:
    """Redis, web and two workers as processes."""
    with tempfile.TemporaryDirectory(prefix="sayso-flow-") as folder, System(Path(folder)) as running:
        yield running
