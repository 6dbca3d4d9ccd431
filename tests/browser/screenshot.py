"""Screenshots for the README, taken from the running demo: `make screenshot`."""

from __future__ import annotations

import tempfile
from pathlib import Path

from playwright.sync_api import Page

from tests.browser.demo import DESKTOP, PHONE, browsing, running_demo, say

IMAGES = Path(__file__).parents[2] / "docs" / "img"


def main() -> None:
    """Play the same short scene on a desktop and on a phone."""
    for name, size in (("console-desktop", DESKTOP), ("console-phone", PHONE)):
        with (
            tempfile.TemporaryDirectory(prefix="sayso-shot-") as folder,
            running_demo(Path(folder)) as address,
            browsing(address, size) as page,
        ):
            play(page)
            page.screenshot(path=IMAGES / f"{name}.png")


def play(page: Page) -> None:
    """A chart, and a question that waits for its answer."""
    say(page, "sales chart")
    page.wait_for_selector("figure img")
    page.locator("figure img").evaluate("image => image.decode()")
    say(page, "delete invoice INV-42")
    page.locator(".buttons .danger").wait_for()
    page.wait_for_timeout(400)  # the page scrolls smoothly to its end


if __name__ == "__main__":
    main()
