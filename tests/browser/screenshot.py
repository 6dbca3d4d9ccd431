"""Screenshots for README and tutorial, taken from running bots in a real browser: `make screenshot`."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page

from tests.browser.demo import DEMO, DESKTOP, PHONE, browsing, running_browser, running_demo, say

IMAGES = Path(__file__).parents[2] / "docs" / "img"
#: The size of the tutorial's pictures, which show two or three messages.
SMALL = (800, 620)
#: A bot whose question can be changed.
ORDERS = '''
from sayso import tool


@tool(requires_approval=True, editable=["kg", "note"], preview="Order {kg} kg of {item}")
def order(item: str, kg: int, note: str = "") -> str:
    """Order goods."""
    return f"Ordered {kg} kg of {item}."
'''
ORDERS_CONFIG = """
tools: [tools.py]
channels:
  web: {platform: console, title: Orders}
"""


def main() -> None:
    """Take the pictures of the demo on a desktop and a phone, and those of the bot of the tutorial."""
    with tempfile.TemporaryDirectory(prefix="sayso-shot-") as folder:
        bot = Path(folder) / "mybot"
        subprocess.run([sys.executable, "-m", "sayso", "init", str(bot)], check=True)
        take("console-desktop", DEMO, DESKTOP, ask_the_demo)
        take("console-phone", DEMO, PHONE, ask_the_demo)
        take("tutorial-question", bot / "sayso.yaml", SMALL, ask_the_first_bot)
        take("tutorial-done", bot / "sayso.yaml", SMALL, confirm_the_first_bot)
        (Path(folder) / "tools.py").write_text(ORDERS)
        orders = Path(folder) / "orders.yaml"
        orders.write_text(ORDERS_CONFIG)
        take("console-change", orders, SMALL, change_an_order)


def take(name: str, config: Path, size: tuple[int, int], play: Callable[[Page], None]) -> None:
    """Start a bot, play a scene on its page, and save the picture with 256 colors."""
    with (
        tempfile.TemporaryDirectory(prefix="sayso-shot-") as folder,
        running_demo(Path(folder), config) as address,
        running_browser() as browser,
        browsing(browser, address, size) as page,
    ):
        play(page)
        page.wait_for_timeout(400)  # the page scrolls smoothly to its end
        file = IMAGES / f"{name}.png"
        page.screenshot(path=file)
    with Image.open(file) as picture:
        small = picture.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    small.save(file, optimize=True)


def ask_the_demo(page: Page) -> None:
    """Show a chart, and a question that waits for its answer."""
    say(page, "sales chart")
    page.wait_for_selector("figure img")
    page.locator("figure img").evaluate("image => image.decode()")
    say(page, "delete invoice INV-42")
    page.locator(".buttons .danger").wait_for()


def change_an_order(page: Page) -> None:
    """Show the open form of a question, with another value in it."""
    say(page, "/order item=coffee kg=5")
    page.get_by_role("button", name="Change").click()
    page.get_by_label("Kg").fill("2")


def ask_the_first_bot(page: Page) -> None:
    """Show the list of tasks, and the question before one is deleted."""
    say(page, "list tasks")
    say(page, "delete task milk")
    page.locator(".buttons .danger").wait_for()


def confirm_the_first_bot(page: Page) -> None:
    """Tap the effect, and show the outcome."""
    ask_the_first_bot(page)
    page.locator(".buttons .danger").click()
    page.get_by_text("The task milk is deleted.").last.wait_for()


if __name__ == "__main__":
    main()
