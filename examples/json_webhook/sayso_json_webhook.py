"""A chat platform for Sayso in one file: JSON webhooks in, JSON webhooks out, both signed.

In, to /hooks/<channel>:  {"id": "e1", "chat": "c1", "user": "ana", "text": "delete invoice INV-42"}
                     or:  {"id": "e2", "chat": "c1", "user": "ana", "tap": "<data of a button>"}
Out, to `reply_url`:      {"id": "d1", "chat": "c1", "text": "Delete?", "buttons": [{"label": "Yes", "data": "..."}]}
                    and:  "media" with a URL to download, "edits" with the id of a message that this one replaces.

The answer to an outgoing message is {"message_id": "m1"}, or one of these statuses: 401 or 403 the secret is wrong, 404
the message to edit is gone, 410 the chat is closed, 429 wait for Retry-After seconds, other 4xx the message is refused.
Each request has the header X-Signature: "sha256=" and the HMAC-SHA256 of its body, in hex.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Sequence
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
    """One channel. One instance serves a whole process, from any thread."""

    def __init__(self, name: str, settings: JsonWebhookSettings, deps: AdapterDeps) -> None:
        self._name, self._media, self._reply_url = name, deps.media, settings.reply_url
        self._secret = settings.secret.get_secret_value()
        self._sessions: PooledSessions[ClientSession] = PooledSessions(lambda session: session)

    @property
    def name(self) -> str:
        """The channel's name in the YAML."""
        return self._name

    def receive(self, hook: WebhookRequest) -> Received:
        """Verify and parse one webhook. Raises Forbidden or BadHook."""
        signature = hook.header(SIGNATURE).encode("utf-8", "replace")
        if not hmac.compare_digest(signature, sign(self._secret, hook.body).encode()):
            raise Forbidden(f"header {SIGNATURE!r} does not match the body")
        try:
            event = json.loads(hook.body)
        except ValueError:
            raise BadHook("the body is not JSON") from None
        if not isinstance(event, dict) or not all(
            _is_text(event.get(key)) for key in ("id", "chat", "user")
        ):
            raise BadHook("id, chat and user must be texts that are not empty")
        text, tap = event.get("text", ""), event.get("tap", "")
        if not (_is_text(text) or _is_text(tap)):
            raise BadHook("text or tap must be a text that is not empty")
        conversation = Conversation(self._name, event["chat"])
        if _is_text(tap):
            return Received(turns=(Turn(event["id"], conversation, event["user"], tap=Tap(tap)),))
        return Received(turns=(Turn(event["id"], conversation, event["user"], text),))

    def rate_limit(self, conversation: Conversation) -> RateLimit:
        """Return no limit: the server answers 429 when it is too fast."""
        return RateLimit()

    def split(self, reply: Reply) -> Sequence[Reply]:
        """Split by length. The first message edits and carries the file, the last one has the buttons."""
        texts = split(reply.text, MAX_CHARS)
        if (
            not texts
            and not reply.buttons
            and not reply.media
            and not (reply.edits and not reply.optional)
        ):
            return ()
        last = len(texts) - 1 if texts else 0
        return tuple(
            Reply(
                text,
                buttons=reply.buttons if index == last else (),
                media=reply.media if index == 0 else None,
                edits=reply.edits if index == 0 else "",
                optional=reply.optional,
            )
            for index, text in enumerate(texts or [""])
        )

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
        """Post one message. An edit of a message that is gone is left out if it is optional, else sent as new."""
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
            name, mime_type = reply.media.filename or "file", reply.media.mime_type
            url = self._media.url(reply.media.ref, filename=name, mime_type=mime_type)
            message["media"] = {"url": url, "filename": name, "mime_type": mime_type}
        if reply.edits:
            edited = await self._post({**message, "edits": reply.edits})
            if edited or reply.optional:
                return edited or Receipt("")
        return await self._post(message) or Receipt("")

    async def _post(self, message: dict[str, Any]) -> Receipt | None:
        """Post a message and return its receipt; None if the message that it edits is gone. Raises SendError."""
        from aiohttp import ClientError

        body = json.dumps(message).encode()
        headers = {"Content-Type": "application/json", SIGNATURE: sign(self._secret, body)}
        try:
            async with self._sessions.here().post(
                self._reply_url, data=body, headers=headers
            ) as answer:
                status, wait, content = (
                    answer.status,
                    retry_after(answer.headers),
                    await answer.read(),
                )
        except (ClientError, OSError, TimeoutError) as exc:
            raise network_error("the platform", exc) from None
        if status == 404 and "edits" in message:
            return None
        if status == 429:
            raise RateLimited(wait)
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
    try:
        answer = json.loads(content)
    except ValueError:
        return ""
    return str(answer.get("message_id", "")) if isinstance(answer, dict) else ""


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


PLATFORM = Platform(
    settings=JsonWebhookSettings, adapter=JsonWebhookChannel, sdk_modules=("aiohttp",)
)
