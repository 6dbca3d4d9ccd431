"""Fixtures of the flow tests: one running system for all of them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.flows.system import System

#: What readers of the web's /metrics must send.
METRICS_TOKEN = "metrics-of-the-flow-tests"


@pytest.fixture(scope="session")
def system() -> Iterator[System]:
    """Return Redis, the web and two workers as running processes, which count together for /metrics."""
    with tempfile.TemporaryDirectory(prefix="sayso-flow-") as folder:
        counts = Path(folder, "counts")
        counts.mkdir()
        environ = {"PROMETHEUS_MULTIPROC_DIR": str(counts), "SAYSO_METRICS_TOKEN": METRICS_TOKEN}
        with System(Path(folder), environ=environ) as running:
            yield running


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Iterator[None, pytest.TestReport, pytest.TestReport]:  # type: ignore[type-arg]
    """Add the end of the log of web and workers, and what the platforms got, to the report of a failed test."""
    report: pytest.TestReport = yield
    for name, value in getattr(item, "funcargs", {}).items():
        if report.failed and isinstance(value, System):
            report.sections.append((f"log of {name}", value.log.read_text()[-8000:]))
            sent = [f"{entry['chat']}: {entry['text']}" for entry in value.platforms.sent[-10:]]
            report.sections.append((f"last messages of {name}", "\n".join(sent)))
    return report
