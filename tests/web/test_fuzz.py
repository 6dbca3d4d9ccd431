"""Fuzz: whatever a platform or a stranger posts, the real adapters answer with less than 500."""

from __future__ import annotations

import base64
import copy
import hashlib
import hmac
import json
import random
import time
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import pytest
from flask.testing import FlaskClient

from channels.fakes import platforms as fakes
from channels.fakes import signing
from channels.slack import SlackChannel
from channels.telegram import TelegramChannel
from channels.whatsapp import WhatsAppChannel
from tests.web.services import PUBLIC_URL, FakeMailbox, browser

PAYLOADS = Path(__file__).parents[1] / "payloads"
JUNK: list[Any] = [
    None, True, 0, -1, 1e308, "", "x", "\0", "\ud800", "9" * 400, "é" * 5000, [], {}, [[]], [None],
    {"id": None}, {"": ""},
]  # fmt: skip
TYPES = [
    "application/json",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=x",
    "",
    "x/y; charset=\xff",
]


@pytest.fixture(scope="module")
def client() -> FlaskClient:
    """An app with the three real adapters; nothing here may send, so they get no media and no notebook."""
    nothing: Any = None
    channels = [
        WhatsAppChannel(
            "whatsapp", account_sid=fakes.TWILIO_ACCOUNT_SID, auth_token=fakes.TWILIO_AUTH_TOKEN,
            from_="whatsapp:+14155238886", media=nothing, notebook=nothing,
        ),
        TelegramChannel(
            "telegram", token=fakes.TELEGRAM_TOKEN, secret_token=fakes.TELEGRAM_SECRET, media=nothing,
            notebook=nothing,
        ),
        SlackChannel(
            "slack", bot_token=fakes.SLACK_BOT_TOKEN, signing_secret=fakes.SLACK_SIGNING_SECRET, media=nothing
        ),
    ]  # fmt: skip
    client = browser(channels={channel.name: channel for channel in channels}, mailbox=FakeMailbox())
    client.application.config["PROPAGATE_EXCEPTIONS"] = True  # a test that fails shows where
    return client


def signed(name: str, body: bytes) -> dict[str, str]:
    """The headers with which a platform would send this body, whatever it is."""
    if name == "telegram":
        return {"X-Telegram-Bot-Api-Secret-Token": fakes.TELEGRAM_SECRET}
    if name == "slack":
        return signing.slack_hook(fakes.SLACK_SIGNING_SECRET, body, time.time())[0]
    try:
        form = dict(parse_qsl(body.decode(), keep_blank_values=True))
    except UnicodeDecodeError:
        form = {}
    words = f"{PUBLIC_URL}/hooks/whatsapp" + "".join(key + form[key] for key in sorted(form))
    digest = hmac.new(fakes.TWILIO_AUTH_TOKEN.encode(), words.encode("utf-8", "replace"), hashlib.sha1).digest()
    return {"X-Twilio-Signature": base64.b64encode(digest).decode()}


def bent(value: Any, chance: random.Random) -> Any:
    """A copy with one place of it replaced by junk, removed, or put one level deeper."""
    value = copy.deepcopy(value)
    holder, key = chance.choice(list(places(value)))
    if chance.random() < 0.3 and isinstance(holder, dict):
        del holder[key]
    else:
        holder[key] = chance.choice([*JUNK, [holder[key]], {"a": holder[key]}])
    return value


def places(value: Any) -> Any:
    """Every place inside a JSON value."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in pairs:
        yield value, key
        yield from places(child)


def body_of(payload: dict[str, Any], chance: random.Random) -> bytes:
    """A recorded webhook's body with something in it bent."""
    raw = payload.get("raw_body", "")
    if "json" in payload or raw.startswith("{"):
        return json.dumps(bent(payload.get("json") or json.loads(raw), chance)).encode()
    form: dict[str, Any] = dict(parse_qsl(raw, keep_blank_values=True))
    if "payload" in form and chance.random() < 0.9:
        form["payload"] = json.dumps(bent(json.loads(form["payload"]), chance))
    else:
        form = {
            key: value if isinstance(value, str) else json.dumps(value) for key, value in bent(form, chance).items()
        }
    return urlencode(form, errors="replace").encode()


@pytest.mark.parametrize("name", ["whatsapp", "telegram", "slack"])
def test_bent_webhooks_that_are_signed_never_fail(client: FlaskClient, name: str):
    """A platform may change its payloads any day."""
    chance = random.Random(7)
    payloads = [json.loads(file.read_text()) for file in sorted((PAYLOADS / name).glob("*.json"))]
    heard = []
    for _ in range(300):
        body = body_of(chance.choice(payloads), chance)
        answer = client.post(f"/hooks/{name}", data=body, headers=signed(name, body))
        assert answer.status_code < 500, body
        heard.append(answer.status_code)
    assert heard.count(200) > 150, "most must get past the signature, or nothing was tried"


@pytest.mark.parametrize("name", ["whatsapp", "telegram", "slack"])
def test_junk_never_fails(client: FlaskClient, name: str):
    """Strangers post anything, with any headers; also with a signature that is right."""
    chance = random.Random(8)
    for turn in range(200):
        body = chance.choice(
            [chance.randbytes(chance.randrange(300)), json.dumps(chance.choice(JUNK)).encode(), b"[" * 5000]
        )
        headers = signed(name, body) if turn % 2 else {"X-Twilio-Signature": "é", "X-Slack-Request-Timestamp": "9" * 30}
        answer = client.post(f"/hooks/{name}", data=body, headers=headers, content_type=chance.choice(TYPES))
        assert answer.status_code < 500, body
