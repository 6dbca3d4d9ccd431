"""The demo as a visitor meets it: `sayso up`, a real browser, no account."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.demo import PHONE, browsing, chromium, running_demo, say


@pytest.mark.skipif(
    chromium() is None and not os.environ.get("CI"), reason="no Chromium here: install it, or set CHROMIUM to its path"
)
def test_one_can_chat_see_a_chart_and_delete_an_invoice_by_tapping_confirm() -> None:
    """The whole product in one page: words, a picture, a question, a tap, one effect, still there after a reload."""
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
            page.get_by_role("button", name="Confirm").click()
            expect(page.locator("#log .bot").last).to_contain_text("Invoice INV-42 is deleted")
            page.reload()
            expect(page.locator("#log .bot").last).to_contain_text("Invoice INV-42 is deleted")
            assert _booked(folder, "restore") == 0
            say(page, "hello")
            expect(page.locator("#log .bot").last).to_contain_text("You said: hello")
            page.get_by_role("button", name="Undo").click()
            expect(page.locator("#log .bot").last).to_contain_text("Invoice INV-42 is back")
        assert (_booked(folder, "delete"), _booked(folder, "restore")) == (1, 1)


def _booked(folder: str, what: str) -> int:
    with closing(sqlite3.connect(Path(folder) / "invoices.sqlite3")) as db:
        return int(db.execute("SELECT count(*) FROM ledger WHERE what = ?", (what,)).fetchone()[0])
