"""Pages for people.

Each has a title, an icon, a language and the width of a phone, also where a link leads nowhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from flask import Flask, abort
from flask.testing import FlaskClient

from sayso.channels.media_store import LocalMediaStore
from sayso.channels.web.pages import Link, add_error_pages, small_page
from tests.channels.console.echo import KEYS, EchoApp
from tests.channels.parts import console_channel
from tests.memory_stores import MemoryFeed

#: What each page has in its head, and the language of its text.
PARTS = (
    r'<html lang="en">',
    r'<meta name="viewport" content="width=device-width, initial-scale=1[^"]*">',
    r'<meta name="color-scheme" content="light dark">',
    r"<title>[^<]+</title>",
    r'<link rel="icon" href="data:image/svg\+xml,[^"]+">',
)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[FlaskClient]:
    """Yield a client of an app with a console, one that has a password, and addresses that fail."""
    media = LocalMediaStore(tmp_path / "media", keys=KEYS, public_url="https://bot.example")
    parts = {"feed": MemoryFeed(), "media": media, "keys": KEYS}
    consoles = [
        console_channel("web", **parts),
        console_channel("desk", password="sesame ü", **parts),
    ]
    app = EchoApp(*consoles, media=media).app
    add_error_pages(app)

    @app.get("/fail/<int:status>")
    def fail(status: int) -> str:
        if status == 500:
            raise RuntimeError("secret")
        abort(status)

    with app.test_client() as client:
        yield client


@pytest.mark.parametrize(
    "path",
    [
        "/console",
        "/console/desk",
        "/console/unknown",
        "/unknown",
        "/hooks/web",
        "/fail/410",
        "/fail/500",
    ],
)
def test_each_page_has_a_title_an_icon_a_language_and_the_width_of_a_phone(
    client: FlaskClient,
    path: str,
):
    """The icon is in the page, so that no browser asks for another address."""
    page = client.get(path)
    assert page.mimetype == "text/html"
    assert [part for part in PARTS if not re.search(part, page.text)] == []
    assert "secret" not in page.text
    assert page.headers["X-Content-Type-Options"] == "nosniff"


def test_a_link_that_leads_nowhere_keeps_its_status(client: FlaskClient):
    """Programs read the status, and people a line that says what to do."""
    answers = [client.get(path) for path in ("/nothing", "/fail/410", "/hooks/web", "/fail/500")]
    assert [each.status_code for each in answers] == [404, 410, 405, 500]
    assert "Ask the bot for the file again." in answers[1].text
    assert answers[2].headers["Allow"] == "OPTIONS, POST"


def test_the_log_in_page_is_no_error(client: FlaskClient):
    """A browser would log one; a wrong password is one."""
    assert client.get("/console/desk").status_code == 200
    answer = client.post(
        "/console/desk/login", data={"password": "x"}, headers={"Origin": "http://localhost"}
    )
    assert answer.status_code == 401


def test_webhooks_get_no_page(client: FlaskClient):
    """A platform reads the status alone."""
    answer = client.post("/hooks/web/nothing/here")
    assert answer.status_code == 404
    assert "viewport" not in answer.text


def test_small_page_shows_text_as_text_and_loads_nothing():
    """The name of a workspace may hold markup."""
    with Flask("t").test_request_context():
        page = small_page(
            "Installed in <b>", ["<script>"], link=Link("https://slack.com/?a=1&b=2", "Open")
        )
    text = page.get_data(as_text=True)
    assert "Installed in &lt;b&gt;" in text
    assert "<script>" not in text
    assert 'href="https://slack.com/?a=1&amp;b=2"' in text
    assert page.headers["Content-Security-Policy"].startswith(
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:;"
    )
    assert page.headers["Referrer-Policy"] == "no-referrer"
