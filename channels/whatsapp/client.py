"""Twilio's REST client on our session, known sender names."""

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
from sayso.channels.types import Conversation, Turn
from sayso.channels.whatsapp.settings import sender_key

if TYPE_CHECKING:
    from aiohttp import ClientSession

#: Where Twilio's API is; the first also gives out the files that people sent.
ORIGINS = ("https://api.twilio.com", "https://content.twilio.com", "https://messaging.twilio.com")
#: The number that all of Twilio's trial senders share. No API knows its settings.
SANDBOX = "whatsapp:+14155238886"
JSON = "application/json"
#: Too many calls at once. Other codes that come with 429 have pauses of their own.
_BUSY = 20429


def new_client(account_sid: str, auth_token: str, api_url: str | None, session: ClientSession) -> Any:
    """The SDK's client. `api_url` takes the place of every origin."""
    from twilio.rest import Client  # type: ignore[import-untyped]  # twilio ships no types

    return Client(account_sid, auth_token, http_client=_http_client_type()(session, api_url))


def basic(account_sid: str, auth_token: str) -> str:
    """The header that signs a call in."""
    return "Basic " + base64.b64encode(f"{account_sid}:{auth_token}".encode()).decode()


@functools.lru_cache(maxsize=1)
def _http_client_type() -> Any:
    """Twilio's HTTP client over our session and to our origin. Defined late: the SDK takes its time to import."""
    from twilio.http import AsyncHttpClient  # type: ignore[import-untyped]  # twilio ships no types
    from twilio.http.response import Response  # type: ignore[import-untyped]  # twilio ships no types

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
            timeout: float | None = None,  # noqa: ASYNC109  # Twilio's signature; the session has limits of its own
            allow_redirects: bool = False,
        ) -> Any:
            sent = dict(headers or {})
            if auth:
                sent["Authorization"] = basic(*auth)
            body = json.dumps(data) if sent.get("Content-Type") == JSON else urlencode(data or {}, doseq=True)
            async with self._session.request(
                method, _rewritten(url, self._api_url), params=params, data=body.encode(), headers=sent,
                allow_redirects=allow_redirects,
            ) as answer:  # fmt: skip
                text = await answer.text()
            if answer.status == 429 and _code(text) in (0, _BUSY):  # the SDK's error would not say for how long
                raise RateLimited(_retry_after(answer.headers))
            return Response(answer.status, text, answer.headers)

    return HttpClient


def _retry_after(headers: Mapping[str, str]) -> float:
    seconds = next((value for name, value in headers.items() if name.lower() == "retry-after"), "1")
    return float(seconds) if seconds.isdecimal() else 1.0


def _code(text: str) -> int:
    """Twilio's code of an error, 0 where it names none."""
    try:
        return int(json.loads(text)["code"])
    except (ValueError, TypeError, KeyError):
        return 0


def _rewritten(url: str, api_url: str | None) -> str:
    origin = next((origin for origin in ORIGINS if url.startswith(f"{origin}/")), None)
    return api_url + url[len(origin) :] if api_url and origin else url


#: Addresses of which a process knows by heart that they are noted.
MAX_NAMES = 10_000


class SenderNames:
    """What webhooks told of people; Twilio's list of messages has no such id. Lives as long as the process."""

    def __init__(self, cache: SharedCache) -> None:
        self._cache = cache
        self._noted: dict[str, str] = {}

    def of(self, conversation: Conversation) -> str:
        """The id of who writes there, "" where nobody noted another one than the address. Raises redis.RedisError."""
        return self._cache.get(sender_key(conversation)) or ""

    async def note(self, turn: Turn) -> None:
        """Note who wrote, once for a process."""
        key, user = sender_key(turn.conversation), turn.user_id
        if self._noted.get(key, turn.conversation.chat) == user:
            return
        await asyncio.to_thread(self._cache.put, key, user)
        if len(self._noted) >= MAX_NAMES:
            self._noted = {}
        self._noted[key] = user
