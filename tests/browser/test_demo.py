"""The demo as a visitor gets it: `sayso up`, a real browser, no account."""

from __future__ import annotations

import os
import re
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.agent.providers.conftest import Server, process
from tests.browser.demo import DEMO, PHONE, browsing, chromium, running_browser, running_demo, say

__all__ = ["process"]

#: Replaces the demo's own model.
MODEL = 'model: "openai:local-model"\n  base_url: {url}/local/v1'
#: Answers that could make a page wider or longer than its window.
LARGE_ANSWERS = (
    "word " * 300,
    "x" * 500,
    "https://example.org/" + "a" * 400,
    "|a|b|c|\n|-|-|-|\n|" + "wide " * 30 + "|" + "wide " * 30 + "|3|",
    "```py\n" + "code = 1  # long " * 30 + "\n```",
    "2024. a year\n2025. another\n\n5) five\n6) six\n\n123456789. many\n\n> a quote\n\n# A heading "
    + "y" * 90,
)
#: Sizes of windows: phones upright, with an open keyboard, and on their side; a tablet; desktops; four times enlarged.
WINDOWS = (
    (390, 844),
    (320, 568),
    (390, 400),
    (844, 390),
    (844, 180),
    (768, 1024),
    (1000, 860),
    (1600, 900),
    (320, 256),
)
#: Returns how many pixels the document and the chat overflow the window, after an attempt to scroll the document.
OVERFLOW = """() => {
  window.scrollTo(9999, 9999);
  const [page, chat] = [document.scrollingElement, document.querySelector("main")];
  const down = page.scrollHeight - page.clientHeight;
  const right = page.scrollWidth - page.clientWidth;
  return [window.scrollY, window.scrollX, down, right, chat.scrollWidth - chat.clientWidth];
}"""
#: Tools whose buttons have words that are wider than a phone.
LONG_LABELS = """
from sayso import offer_choices, tool

WORD = "Donaudampfschifffahrtsgesellschaftskapitän"

@tool()
def choose() -> str:
    '''Choose.'''
    offer_choices(WORD, "A fairly long choice that says many things about itself")
    return "Which?"

@tool(requires_approval=True, preview=WORD)
def travel() -> str:
    '''Travel.'''
    return "Done."
"""
STORY = " ".join(f"word{number}" for number in range(24))

pytestmark = pytest.mark.skipif(
    chromium() is None and not os.environ.get("CI"),
    reason="no Chromium here: install it, or set CHROMIUM to its path",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Yield one browser for all tests; each is a new visitor."""
    with running_browser() as running:
        yield running


@dataclass(frozen=True, slots=True)
class Demo:
    """A running demo: the URL of its page, and its data folder."""

    address: str
    folder: Path


@pytest.fixture(scope="module")
def demo() -> Iterator[Demo]:
    """Yield a running demo, for the tests that need no other configuration."""
    with (
        tempfile.TemporaryDirectory(prefix="sayso-demo-") as folder,
        running_demo(Path(folder)) as address,
    ):
        yield Demo(address, Path(folder))


def test_visitor_can_chat_see_a_chart_and_delete_an_invoice_by_tapping_confirm(
    browser: Browser, demo: Demo
) -> None:
    """One page shows a chat, a picture, a question, a tap and one effect, and keeps them after a reload."""
    with browsing(browser, demo.address, PHONE) as page:
        say(page, "hello")
        expect(page.locator("#log .bot").last).to_contain_text("You said: hello")
        say(page, "sales chart")
        picture = page.locator("figure img")
        expect(picture).to_be_visible()
        expect(page.locator(".steps summary")).to_have_text(
            re.compile(r"sales_chart done [\d.]+ s")
        )
        assert picture.evaluate("image => image.decode().then(() => image.naturalWidth)") > 500
        say(page, "delete invoice INV-42")
        expect(page.locator("#log .bot").last).to_contain_text("Delete invoice INV-42")
        assert _booked(demo.folder, "delete") == 0
        page.locator(".buttons .danger").click()
        expect(page.locator("#log .bot").last).to_contain_text("Invoice INV-42 is deleted")
        page.reload()
        expect(page.locator("#log .bot").last).to_contain_text("Invoice INV-42 is deleted")
        assert _booked(demo.folder, "restore") == 0
        say(page, "hello")
        expect(page.locator("#log .bot").last).to_contain_text("You said: hello")
        page.get_by_role("button", name="Undo").click()
        expect(page.locator("#log .bot").last).to_contain_text("Invoice INV-42 is back")
    assert (_booked(demo.folder, "delete"), _booked(demo.folder, "restore")) == (1, 1)


def test_question_shows_its_outcome_and_answer_is_shown_while_it_streams(
    browser: Browser, process: Server
) -> None:
    """After the tap the question has no buttons, also after a reload; the answer replaces the growing draft.

    The first text of a local server's model is held back, since it may begin with reasoning; it is said before.
    """
    process.script(
        {"text": "Hello."},
        {"calls": [{"name": "delete_invoice", "arguments": {"invoice_id": "INV-42"}, "id": "a"}]},
        {"text": "Anything else?"},
        {"text": STORY, "pause": 0.25},
    )
    with tempfile.TemporaryDirectory(prefix="sayso-demo-") as folder:
        config = Path(folder) / "streaming.yaml"
        text = DEMO.read_text().replace("model: offline", MODEL.format(url=process.url))
        config.write_text(
            text.replace("platform: console", "platform: console\n    streaming: true")
        )
        with (
            running_demo(Path(folder), config, workers=1) as address,
            browsing(browser, address, PHONE) as page,
        ):
            said = page.locator("#log .bot")
            say(page, "hello")
            expect(said).to_have_count(1)
            say(page, "get rid of 42")
            page.locator(".buttons .danger").click()
            expect(said).to_have_count(4)
            expect(said.nth(2)).to_contain_text("Invoice INV-42 is deleted.")
            expect(said.last).to_contain_text("Anything else?")
            question = said.nth(1)
            for _ in range(2):
                expect(question).to_contain_text(
                    "✅ Yes"
                )  # the outcome is a message of its own, below
                expect(question).not_to_contain_text("is deleted")
                expect(question.locator(".buttons")).to_have_count(0)
                page.reload()
            say(page, "tell me a story")
            draft = page.locator("#log .draft")
            expect(draft).to_have_count(1)
            begun = draft.inner_text()
            expect(draft).to_contain_text(f"{begun} word")
            expect(said.last).to_have_text(re.compile(f"{STORY}\\s*[\\d:]+"), timeout=20_000)
            expect(draft).to_have_count(0)
            expect(said).to_have_count(5)


def test_only_the_chat_scrolls_whatever_it_shows(browser: Browser, process: Server) -> None:
    """The document is as large as its window: a second scroll bar would lead to a blank page."""
    process.script(*({"text": answer} for answer in LARGE_ANSWERS))
    with tempfile.TemporaryDirectory(prefix="sayso-demo-") as folder:
        config = Path(folder) / "local.yaml"
        config.write_text(DEMO.read_text().replace("model: offline", MODEL.format(url=process.url)))
        with (
            running_demo(Path(folder), config) as address,
            browsing(browser, address, PHONE) as page,
        ):
            for number, _ in enumerate(LARGE_ANSWERS):
                say(page, f"question {number} {'z' * 200}")
                assert page.evaluate(OVERFLOW) == [0] * 5
            page.fill("#text", "a long text\n" * 30)
            assert _overflowing_windows(page) == {}


def test_buttons_with_long_words_fit_every_window(browser: Browser) -> None:
    """The label of a choice, or an effect on the red button, breaks where its word is too long for a line."""
    with tempfile.TemporaryDirectory(prefix="sayso-demo-") as folder:
        Path(folder, "long.py").write_text(LONG_LABELS)
        config = Path(folder, "long.yaml")
        config.write_text(
            "agent: {model: offline}\ntools: [./long.py]\nchannels: {web: {platform: console}}\n"
        )
        with (
            running_demo(Path(folder), config, workers=1) as address,
            browsing(browser, address, PHONE) as page,
        ):
            for command in ("/choose", "/travel"):
                say(page, command)
                page.locator("#log .buttons button").last.wait_for()
                assert _overflowing_windows(page) == {}


def test_suggestions_of_an_empty_chat_fit_every_window(browser: Browser, demo: Demo) -> None:
    """They are one line where a window is low, and leave a very low one to the message."""
    with browsing(browser, demo.address, PHONE) as page:
        assert _overflowing_windows(page) == {}
        say(page, "sales chart")
        page.locator("figure img").evaluate("image => image.decode()")
        page.get_by_role("button", name="Suggestions").click()
        assert _overflowing_windows(page) == {}


def _overflowing_windows(page: Page) -> dict[tuple[int, int], list[int]]:
    """Return the sizes of windows that the page overflows, with the pixels."""
    found = {}
    for size in (*WINDOWS, PHONE):
        page.set_viewport_size({"width": size[0], "height": size[1]})
        pixels = page.evaluate(OVERFLOW)
        if any(pixels):
            found[size] = pixels
    return found


def _booked(folder: Path, what: str) -> int:
    with closing(sqlite3.connect(folder / "invoices.sqlite3")) as db:
        return int(db.execute("SELECT count(*) FROM ledger WHERE what = ?", (what,)).fetchone()[0])
