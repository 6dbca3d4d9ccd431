"""Twilio's REST client over pooled connections, and the user ids that webhooks named."""

from __future__ import annotations

import asyncio
import base64
import functools
import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from sayso.channels.base import RateLimited, SharedCache
from sayso.channels.http import retry_after
from sayso.channels.types import Conversation, Turn
from sayso.channels.whatsapp.settings import sender_key

if TYPE_CHECKING:
    from aiohttp import ClientSession

#: The origins of Twilio's API. The first one also serves the files that people sent.
ORIGINS = ("https://api.twilio.com", "https://content.twilio.com", "https://messaging.twilio.com")
#: The sender of Twilio's Sandbox, which all trial accounts share. No API has its settings.
SANDBOX = "whatsapp:+14155238886"
JSON = "application/json"
#: The code for too many calls at once. Other codes of status 429 have pauses of their own.
_BUSY = 20429


def new_client(account_sid: str, auth_token: str, api_url: str | None, session: ClientSession) -> Any:
    """Return the SDK's client. `api_url` replaces every origin."""
    from twilio.rest import Client

    return Client(account_sid, auth_token, http_client=_http_client_type()(session, api_url))


def basic(account_sid: str, auth_token: str) -> str:
    """Return the value of the Authorization header."""
    return "Basic " + base64.b64encode(f"{account_sid}:{auth_token}".encode()).decode()


@functools.lru_cache(maxsize=1)
def _http_client_type() -> Any:
    """Return the class of the SDK's HTTP client over our session. It is made late: the SDK takes long to import."""
    from twilio.http import AsyncHttpClient
    from twilio.http.response import Response

    class HttpClient(AsyncHttpClient):  # type: ignore[misc]  # twilio ships no types
        def __init__(self, session: ClientSession, api_url: str | None) -> None:
            super().__init__(logging.getLogger("twilio.http_client"), True, None)
            self._session, self._api_url = session, api_url

        async def request(
            self,
            method: str,
            url: str,
            params: Mapping[str, Any] | None = None,
            data: Mapping[str, Any] | None = None,
            headers: Mapping[str, str] | None = None,
            auth: tuple[str, str] | None = None,
            **_: Any,  # a time limit, which the session has itself, and `allow_redirects`
        ) -> Any:
            sent = dict(headers or {})
            if auth:
                sent["Authorization"] = basic(*auth)
            origin = next((origin for origin in ORIGINS if url.startswith(f"{origin}/")), None)
            rewritten = self._api_url + url[len(origin) :] if self._api_url and origin else url
            body = json.dumps(data) if sent.get("Content-Type") == JSON else urlencode(data or {}, doseq=True)
            async with self._session.request(
                method, rewritten, params=params, data=body.encode(), headers=sent,
                allow_redirects=False,
            ) as answer:  # fmt: skip
                text = await answer.text()
            if answer.status == 429 and _code(text) in (0, _BUSY):  # the SDK's error has no headers
                raise RateLimited(retry_after(answer.headers))
            return Response(answer.status, text, answer.headers)

    return HttpClient


def _code(text: str) -> int:
    """Return Twilio's code of an error, 0 for none."""
    try:
        return int(json.loads(text)["code"])
    except (ValueError, TypeError, KeyError):
        return 0


#: How many addresses a process remembers as stored.
MAX_NAMES = 10_000


class SenderNames:
    """The user ids that webhooks named, by address. Twilio's list of messages has no such ids. One per process."""

    def __init__(self, cache: SharedCache) -> None:
        self._cache = cache
        self._stored: dict[str, str] = {}

    def of(self, conversation: Conversation) -> str:
        """Return the user id of an address, "" if it is the address itself. Raises redis.RedisError."""
        return self._cache.get(sender_key(conversation)) or ""

    async def note(self, turn: Turn) -> None:
        """Store the user id of a turn, once per process."""
        key, user = sender_key(turn.conversation), turn.user_id
        if self._stored.get(key, turn.conversation.chat) == user:
            return
        await asyncio.to_thread(self._cache.put, key, user)
        if len(self._stored) >= MAX_NAMES:
            self._stored = {}
        self._stored[key] = user
