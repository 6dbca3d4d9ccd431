"""Signing: webhooks signed as the platforms sign theirs, with no help from the code that verifies them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

#: Headers and body of a webhook.
Signed = tuple[dict[str, str], bytes]


def whatsapp_hook(url: str, auth_token: str, form: Mapping[str, str]) -> Signed:
    """Headers and body of a Twilio webhook to `url` (query included)."""
    words = url + "".join(name + form[name] for name in sorted(form))
    digest = hmac.new(auth_token.encode(), words.encode(), hashlib.sha1).digest()
    headers = {
        "content-type": "application/x-www-form-urlencoded",
        "x-twilio-signature": base64.b64encode(digest).decode(),
    }
    return headers, urlencode(form).encode()


def telegram_hook(secret: str, update: Mapping[str, Any]) -> Signed:
    """Headers and body of a Telegram webhook."""
    headers = {"content-type": "application/json", "x-telegram-bot-api-secret-token": secret}
    return headers, json.dumps(update).encode()


def slack_hook(secret: str, body: bytes, now: float) -> Signed:
    """Headers and body of a Slack request sent at `now`."""
    digest = hmac.new(secret.encode(), b"v0:%d:" % int(now) + body, hashlib.sha256).hexdigest()
    form = not body.startswith(b"{")
    headers = {
        "content-type": "application/x-www-form-urlencoded" if form else "application/json",
        "x-slack-request-timestamp": str(int(now)),
        "x-slack-signature": f"v0={digest}",
    }
    return headers, body
