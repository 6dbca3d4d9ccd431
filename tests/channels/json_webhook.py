"""A fake server of the example platform, and the helpers that the contract suite needs for it."""

from __future__ import annotations

import json
from typing import Any
from urllib.request import urlopen

from sayso.channels.types import Conversation, WebhookRequest
from sayso.examples.json_webhook.sayso_json_webhook import (
    JsonWebhookChannel,
    JsonWebhookSettings,
    sign,
)
from sayso.testing.platforms.server import FakeResponse, RecordedRequest, RequestLog, json_response
from tests.channels.parts import adapter_deps

NAME = "json_webhook"
SECRET = "json-webhook-test-secret"
CHAT = Conversation("jw", "room-1")


class FakeJsonWebhook:
    """A server that shows the messages it receives."""

    chat_fields = ("to",)

    def __init__(self, log: RequestLog) -> None:
        self._log = log

    def sends(self, call: RecordedRequest) -> bool:
        """Return true: every call is a message."""
        return True

    def answer(self, call: RecordedRequest) -> FakeResponse:
        """Verify and show a message."""
        if call.headers.get("x-signature") != sign(SECRET, call.body):
            return json_response({}, 403)
        message = json.loads(call.body)
        text, buttons = message["text"], message.get("buttons", [])
        if "edits" in message:
            number = int(message["edits"])
            if number > len(self._log.sent):
                return json_response({}, 404)
            self._log.edit_message(number, text=text, buttons=buttons, raw=message)
        else:
            media = message.get("media") and self._downloaded(message["media"])
            number = self._log.append_message(
                NAME, message["chat"], text=text, buttons=buttons, media=media, raw=message
            )
        return json_response({"message_id": str(number)})

    def failure(self, error: str) -> FakeResponse:
        """Return an answer with this status."""
        return json_response({}, int(error), Retry_After="7")

    def host(self, data: bytes) -> str:
        """Raise: users of this platform send no files."""
        raise NotImplementedError

    def _downloaded(self, media: dict[str, str]) -> dict[str, Any]:
        with urlopen(media["url"]) as answer:
            return self._log.save_file(media["filename"], media["mime_type"], answer.read())


def json_webhook(media: Any, api_url: str | None) -> JsonWebhookChannel:
    """Return a channel that posts to the fake."""
    settings = JsonWebhookSettings(
        platform="json_webhook", secret=SECRET, reply_url=api_url or "http://127.0.0.1:9"
    )
    return JsonWebhookChannel("jw", settings, adapter_deps(media))


def json_webhook_hook(number: int, **event: Any) -> WebhookRequest:
    """Return a signed event of a user in the room."""
    return signed_hook(
        json.dumps(
            {"id": f"e{number}", "chat": CHAT.chat, "user": "ana", **event}, ensure_ascii=False
        ).encode()
    )


def signed_hook(body: bytes) -> WebhookRequest:
    """Return a hook with this body and its signature."""
    return WebhookRequest(
        "https://bots.example.com/hooks/jw", {"x-signature": sign(SECRET, body)}, body
    )
