"""BotApi: how python-telegram-bot reaches Telegram over the kept connections of an event loop."""

from __future__ import annotations

from functools import partial
from io import BytesIO
from typing import Any

from aiohttp import ClientError, ClientSession, ClientTimeout, FormData
from telegram.error import NetworkError, TimedOut
from telegram.request import BaseRequest, RequestData

from sayso.channels.http import ANSWER_SECONDS, CALL_SECONDS, CONNECT_SECONDS, never_sent


class NeverSent(NetworkError):
    """Raised when there was no connection to Telegram: it certainly heard nothing."""


class PooledRequest(BaseRequest):
    """PTB's requests over a session, which its loop closes. Time limits are the session's, unless a call says for how
    long its answer may say nothing.
    """

    def __init__(self, session: ClientSession) -> None:
        self._session = session

    @property
    def read_timeout(self) -> float:
        """Seconds for which an answer may say nothing."""
        return ANSWER_SECONDS

    async def initialize(self) -> None:
        """Nothing to do: a session opens its connections when they are needed."""

    async def shutdown(self) -> None:
        """Nothing to do."""

    async def do_request(
        self,
        url: str,
        method: str,
        request_data: RequestData | None = None,
        read_timeout: Any = None,
        *_: Any,
        **__: Any,
    ) -> tuple[int, bytes]:
        """Status and body of the answer. Raises NeverSent, TimedOut, NetworkError, none of which names the URL: the
        token is in it.
        """
        form, headers = _form(request_data), {"User-Agent": self.USER_AGENT}
        more: Any = {"timeout": _times(read_timeout)} if isinstance(read_timeout, int | float) else {}
        call = partial(self._session.request, method, url, data=form, headers=headers, allow_redirects=False)
        try:
            async with call(**more) as answer:
                return answer.status, await answer.read()
        except (ClientError, OSError) as exc:  # time-outs are among them
            if never_sent(exc):
                raise NeverSent(type(exc).__name__) from None
            raise (TimedOut if isinstance(exc, TimeoutError) else NetworkError)(type(exc).__name__) from None


def _times(silence: float) -> ClientTimeout:
    return ClientTimeout(total=CALL_SECONDS, sock_connect=CONNECT_SECONDS, sock_read=silence)


def _form(request_data: RequestData | None) -> FormData | None:
    """What is sent, as a form; with files, in several parts."""
    if request_data is None:
        return None
    form = FormData(request_data.json_parameters)
    for name, (filename, content, mime_type) in request_data.multipart_data.items():
        # As a file it is read in parts: aiohttp would write bytes at once, and nobody else's message meanwhile.
        form.add_field(
            name, BytesIO(content) if isinstance(content, bytes) else content, filename=filename, content_type=mime_type
        )
    return form
