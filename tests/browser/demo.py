"""Demo: starts the demo and opens it in a real browser."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, ViewportSize, sync_playwright

from tests.config.processes import free_port

DEMO = Path(__file__).parents[2] / "config" / "demo.yaml"
PHONE, DESKTOP = (390, 844), (1000, 860)
#: Flags that keep the browser from contacting any other server.
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync", "--disable-background-networking",
    "--disable-component-update",
)  # fmt: skip


def chromium() -> str | None:
    """Return the browser's path, or None when this machine has none."""
    named = os.environ.get("CHROMIUM")
    return (
        named
        or shutil.which("chromium")
        or shutil.which("google-chrome")
        or shutil.which("chromium-browser")
    )


@contextmanager
def running_demo(data: Path, config: Path = DEMO, *, workers: int = 2) -> Iterator[str]:
    """Run `sayso up` with the demo's configuration or another one, and yield its URL. Checks that it ends cleanly.

    `workers` is the number of worker processes.
    """
    port = free_port()
    environ = {
        name: value for name, value in os.environ.items() if name not in ("REDIS_URL", "SAYSO_DATA")
    }
    command = ["up", "--config", str(config), "--data", str(data), "--port", str(port)]
    command += ["--workers", str(workers)]
    with subprocess.Popen(
        [sys.executable, "-m", "sayso", *command], env=environ, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert "Sayso is up" in process.stdout.readline()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


@contextmanager
def running_browser() -> Iterator[Browser]:
    """Start a browser and yield it; it ends with the block."""
    with sync_playwright() as session:
        browser = session.chromium.launch(executable_path=chromium(), args=list(FLAGS))
        yield browser
        browser.close()


@contextmanager
def browsing(browser: Browser, address: str, size: tuple[int, int]) -> Iterator[Page]:
    """Open the demo's page as a new visitor, without cookies, and yield it once it is connected."""
    viewport: ViewportSize = {"width": size[0], "height": size[1]}
    with browser.new_context(viewport=viewport, device_scale_factor=2) as visitor:
        page = visitor.new_page()
        page.goto(f"{address}/console")
        page.wait_for_selector("#state[data-state=live]")
        yield page


def say(page: Page, text: str) -> None:
    """Type a message and wait for the next answer."""
    answers = page.locator("#log .bot").count()
    page.fill("#text", text)
    page.keyboard.press("Enter")
    page.wait_for_function(
        "count => document.querySelectorAll('#log .bot').length > count", arg=answers
    )
