"""Connects python-telegram-bot (PTB) to the pooled connections of an event loop."""

from __future__ import annotations

from io import BytesIO
from typing import Any

from aiohttp import ClientError, ClientSession, ClientTimeout, FormData
from telegram.error import NetworkError, TimedOut
from telegram.request import BaseRequest, RequestData

from sayso.channels.http import ANSWER_SECONDS, CALL_SECONDS, CONNECT_SECONDS, never_sent


class NeverSent(NetworkError):
    """Raised when there was no connection to Telegram, so that nothing was sent."""


class PooledRequest(BaseRequest):
    """PTB's requests over a session, which is closed with its event loop.

    The session's time limits apply, but a call may set its own limit for the next bytes of the answer.
    """

    def __init__(self, session: ClientSession) -> None:
        self._session = session

    @property
    def read_timeout(self) -> float:
        """How many seconds to wait for the next bytes of an answer."""
        return ANSWER_SECONDS

    async def initialize(self) -> None:
        """Do nothing: a session opens its connections when they are needed."""

    async def shutdown(self) -> None:
        """Do nothing."""

    async def do_request(
        self,
        url: str,
        method: str,
        request_data: RequestData | None = None,
        read_timeout: Any = None,
        *_: Any,
        **__: Any,
    ) -> tuple[int, bytes]:
        """Return status and body of the answer.

        Raises NeverSent, TimedOut, NetworkError. Their messages do not name the URL, which holds the token.
        """
        options: dict[str, Any] = {"data": _form(request_data), "headers": {"User-Agent": self.USER_AGENT}}
        if isinstance(read_timeout, int | float):
            options["timeout"] = ClientTimeout(total=CALL_SECONDS, sock_connect=CONNECT_SECONDS, sock_read=read_timeout)
        try:
            async with self._session.request(method, url, allow_redirects=False, **options) as answer:
                return answer.status, await answer.read()
        except (ClientError, OSError) as exc:  # a time-out is an OSError
            if never_sent(exc):
                raise NeverSent(type(exc).__name__) from None
            raise (TimedOut if isinstance(exc, TimeoutError) else NetworkError)(type(exc).__name__) from None


def _form(request_data: RequestData | None) -> FormData | None:
    """Return the parameters and files as a form."""
    if request_data is None:
        return None
    form = FormData(request_data.json_parameters)
    for name, (filename, content, mime_type) in request_data.multipart_data.items():
        # As a file it is read in parts: aiohttp would write bytes all at once, and block all other calls meanwhile.
        form.add_field(
            name, BytesIO(content) if isinstance(content, bytes) else content, filename=filename, content_type=mime_type
        )
    return form
