"""The demo as a visitor gets it: `sayso up`, a real browser, no account."""

from __future__ import annotations

import os
import re
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.agent.providers.conftest import Server, process
from tests.browser.demo import DEMO, PHONE, browsing, chromium, running_demo, say

__all__ = ["process"]

#: Replaces the demo's own model.
MODEL = 'model: "openai:local-model"\n  base_url: {url}/local/v1'
STORY = " ".join(f"word{number}" for number in range(24))

pytestmark = pytest.mark.skipif(
    chromium() is None and not os.environ.get("CI"), reason="no Chromium here: install it, or set CHROMIUM to its path"
)


def test_visitor_can_chat_see_a_chart_and_delete_an_invoice_by_tapping_confirm() -> None:
    """One page shows a chat, a picture, a question, a tap and one effect, and keeps them after a reload."""
    with tempfile.TemporaryDirectory(prefix="sayso-demo-") as folder, running_demo(Path(folder)) as address:
        with browsing(address, PHONE) as page:
            say(page, "hello")
            expect(page.locator("#log .bot").last).to_contain_text("You said: hello")
            say(page, "sales chart")
            picture = page.locator("figure img")
            expect(picture).to_be_visible()
            assert picture.evaluate("image => image.decode().then(() => image.naturalWidth)") > 500
            say(page, "delete invoice INV-42")
            expect(page.locator("#log .bot").last).to_contain_text("Delete invoice INV-42")
            assert _booked(folder, "delete") == 0
            page.locator(".buttons .danger").click()
            expect(page.locator("#log .bot").last).to_contain_text("Invoice INV-42 is deleted")
            page.reload()
            expect(page.locator("#log .bot").last).to_contain_text("Invoice INV-42 is deleted")
            assert _booked(folder, "restore") == 0
            say(page, "hello")
            expect(page.locator("#log .bot").last).to_contain_text("You said: hello")
            page.get_by_role("button", name="Undo").click()
            expect(page.locator("#log .bot").last).to_contain_text("Invoice INV-42 is back")
        assert (_booked(folder, "delete"), _booked(folder, "restore")) == (1, 1)


def test_question_shows_its_outcome_and_answer_is_shown_while_it_streams(process: Server) -> None:
    """After the tap the question has no buttons, also after a reload; the answer replaces the growing draft."""
    process.script(
        {"calls": [{"name": "delete_invoice", "arguments": {"invoice_id": "INV-42"}, "id": "a"}]},
        {"text": STORY, "pause": 0.25},
    )
    with tempfile.TemporaryDirectory(prefix="sayso-demo-") as folder:
        config = Path(folder) / "streaming.yaml"
        text = DEMO.read_text().replace("model: offline", MODEL.format(url=process.url))
        config.write_text(text.replace("platform: console", "platform: console\n    streaming: true"))
        with running_demo(Path(folder), config) as address, browsing(address, PHONE) as page:
            say(page, "get rid of 42")
            page.locator(".buttons .danger").click()
            said = page.locator("#log .bot")
            expect(said).to_have_count(2)
            expect(said.last).to_contain_text("Invoice INV-42 is deleted.")
            for _ in range(2):
                expect(said.first).to_contain_text("✅ Confirm")  # the outcome is a message of its own, below
                expect(said.first).not_to_contain_text("is deleted")
                expect(said.first.locator(".buttons")).to_have_count(0)
                page.reload()
            say(page, "tell me a story")
            draft = page.locator("#log .draft")
            expect(draft).to_have_count(1)
            begun = draft.inner_text()
            expect(draft).to_contain_text(f"{begun} word")
            expect(said.last).to_have_text(re.compile(f"{STORY}\\s*[\\d:]+"), timeout=20_000)
            expect(draft).to_have_count(0)
            expect(said).to_have_count(3)


def _booked(folder: str, what: str) -> int:
    with closing(sqlite3.connect(Path(folder) / "invoices.sqlite3")) as db:
        return int(db.execute("SELECT count(*) FROM ledger WHERE what = ?", (what,)).fetchone()[0])
