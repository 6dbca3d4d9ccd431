"""A chat platform for Sayso in one file: JSON webhooks in, JSON webhooks out, both signed.

A person's message arrives at /hooks/<channel>:

    {"id": "e1", "chat": "c1", "user": "ana", "text": "delete invoice INV-42"}

A tap on a button arrives with its data in place of the text:

    {"id": "e2", "chat": "c1", "user": "ana", "tap": "<data of a button>"}

A reply is posted to `reply_url`:

    {"id": "d1", "chat": "c1", "text": "Delete?", "buttons": [{"label": "Yes", "data": "..."}]}

It may also have "media" with a URL to download, and "edits" with the id of the message that this
one replaces. The platform answers {"message_id": "m1"}, or one of these statuses:

* 401 or 403: the secret is wrong
* 404: the message to edit is gone
* 410: the chat is closed
* 429: wait for Retry-After seconds
* any other 4xx: the message is refused

Each request has the header X-Signature: "sha256=" and the HMAC-SHA256 of its body, in hex.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from sayso.channels.base import (
    AdapterDeps,
    AddressClosed,
    BadHook,
    ChannelDown,
    DeliveryUncertain,
    FetchError,
    Forbidden,
    PlatformSettings,
    RateLimit,
    RateLimited,
    Refused,
    Secret,
    Url,
    network_error,
)
from sayso.channels.markdown.split import split
from sayso.channels.registry import Platform
from sayso.channels.types import (
    Conversation,
    Delivery,
    Media,
    Receipt,
    Received,
    Reply,
    Tap,
    Turn,
    WebhookRequest,
)
from sayso.infra.http import PooledSessions, retry_after

if TYPE_CHECKING:
    from aiohttp import ClientSession

#: The most characters of one outgoing message.
MAX_CHARS = 4000
#: The header of the signature, in and out.
SIGNATURE = "X-Signature"


class JsonWebhookSettings(PlatformSettings):
    """JSON webhooks in and out. `secret` signs both; replies are posted to `reply_url`."""

    platform: Literal["json_webhook"]
    secret: Secret
    reply_url: Url


def sign(secret: str, body: bytes) -> str:
    """Return the signature of a body."""
    return "sha256=" + hmac.digest(secret.encode(), body, hashlib.sha256).hex()


class JsonWebhookChannel:
    """The adapter of one channel. One instance serves a whole process, from any thread."""

    def __init__(self, name: str, settings: JsonWebhookSettings, deps: AdapterDeps) -> None:
        self._name = name
        self._media = deps.media
        self._reply_url = settings.reply_url
        self._secret = settings.secret.get_secret_value()
        self._sessions: PooledSessions[ClientSession] = PooledSessions(lambda session: session)

    @property
    def name(self) -> str:
        """The channel's name in the YAML."""
        return self._name

    def receive(self, hook: WebhookRequest) -> Received:
        """Verify and parse one webhook.

        Raise Forbidden for a wrong signature, and BadHook for a body that cannot be read.
        """
        signature = hook.header(SIGNATURE).encode("utf-8", "replace")
        expected = sign(self._secret, hook.body).encode()
        if not hmac.compare_digest(signature, expected):
            raise Forbidden(f"header {SIGNATURE!r} does not match the body")

        try:
            event = json.loads(hook.body)
        except ValueError:
            raise BadHook("the body is not JSON") from None
        if not isinstance(event, dict):
            raise BadHook("the body is not a JSON object")
        if not all(_is_text(event.get(key)) for key in ("id", "chat", "user")):
            raise BadHook("id, chat and user must be texts that are not empty")

        conversation = Conversation(self._name, event["chat"])
        text = event.get("text", "")
        tap = event.get("tap", "")
        if _is_text(tap):
            turn = Turn(event["id"], conversation, event["user"], tap=Tap(tap))
        elif _is_text(text):
            turn = Turn(event["id"], conversation, event["user"], text)
        else:
            raise BadHook("text or tap must be a text that is not empty")
        return Received(turns=(turn,))

    def rate_limit(self, conversation: Conversation) -> RateLimit:
        """Return no limit: the server answers 429 when replies come too fast."""
        return RateLimit()

    def split(self, reply: Reply) -> Sequence[Reply]:
        """Split a reply by length.

        The first message has the file and replaces the message to edit. The last one has the
        buttons. An empty reply becomes no message, unless it has to replace one.
        """
        texts = split(reply.text, MAX_CHARS)
        has_to_edit = bool(reply.edits) and not reply.optional
        if not (texts or reply.buttons or reply.media or has_to_edit):
            return ()

        messages = [Reply(text, optional=reply.optional) for text in texts or [""]]
        messages[0] = replace(messages[0], media=reply.media, edits=reply.edits)
        messages[-1] = replace(messages[-1], buttons=reply.buttons)
        return tuple(messages)

    async def show_typing(self, turn: Turn) -> float:
        """Do nothing: the platform shows no typing."""
        return 0.0

    async def draft(self, turn: Turn, text: str, shown_id: str = "") -> str:
        """Do nothing: the platform shows no drafts."""
        return ""

    async def fetch(self, media: Media, file: BinaryIO) -> None:
        """Raise FetchError: people send no files here."""
        raise FetchError("the platform has no inbound files")

    async def send(self, delivery: Delivery) -> Receipt:
        """Post one message. Raise SendError.

        If the message to edit is gone, an optional reply is left out, and any other is sent as a
        new message.
        """
        reply = delivery.reply
        message: dict[str, Any] = {
            "id": delivery.id,
            "chat": delivery.conversation.chat,
            "text": reply.text,
        }
        if reply.buttons:
            message["buttons"] = [
                {"label": button.label, "data": button.data} for button in reply.buttons
            ]
        if reply.media:
            name = reply.media.filename or "file"
            mime_type = reply.media.mime_type
            url = self._media.url(reply.media.ref, filename=name, mime_type=mime_type)
            message["media"] = {"url": url, "filename": name, "mime_type": mime_type}
        if reply.edits:
            receipt = await self._post({**message, "edits": reply.edits})
            if receipt:
                return receipt
            if reply.optional:
                return Receipt("")
        return await self._post(message) or Receipt("")

    async def _post(self, message: dict[str, Any]) -> Receipt | None:
        """Post a message and return its receipt, None if the message to edit is gone.

        Raise SendError.
        """
        from aiohttp import ClientError

        body = json.dumps(message).encode()
        headers = {"Content-Type": "application/json", SIGNATURE: sign(self._secret, body)}
        try:
            posting = self._sessions.here().post(self._reply_url, data=body, headers=headers)
            async with posting as response:
                status = response.status
                wait_seconds = retry_after(response.headers)
                content = await response.read()
        except (ClientError, OSError, TimeoutError) as exc:
            raise network_error("the platform", exc) from None

        if status == 404 and "edits" in message:
            return None
        if status == 429:
            raise RateLimited(wait_seconds)
        if status in (401, 403):
            raise ChannelDown("the platform refuses our signature: check secret")
        if status == 410:
            raise AddressClosed("the chat is closed")
        if 400 <= status < 500:
            raise Refused(f"the platform answered {status}")
        if status >= 300:  # it may have shown the message before it failed
            raise DeliveryUncertain(f"the platform answered {status}")
        return Receipt(_message_id(content))


def _message_id(content: bytes) -> str:
    """Return the id of a message from the platform's answer, "" if it names none."""
    try:
        answer = json.loads(content)
    except ValueError:
        return ""
    if not isinstance(answer, dict):
        return ""
    return str(answer.get("message_id", ""))


def _is_text(value: object) -> bool:
    """Return whether a value is a text with more than blanks in it."""
    return isinstance(value, str) and bool(value.strip())


PLATFORM = Platform(
    settings=JsonWebhookSettings, adapter=JsonWebhookChannel, sdk_modules=("aiohttp",)
)
