"""TwilioList: the messages that Twilio keeps of what people sent to one channel, and the files of each."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from sayso.channels.base import RateLimited
from sayso.channels.http import PerLoop
from sayso.channels.twilio_client import ORIGINS, new_client
from sayso.channels.types import storable
from sayso.config.schema import WhatsAppSettings
from sayso.config.setup.desk import SetupError, asking
from sayso.config.setup.twilio import status_of, why

T = TypeVar("T")

#: Messages that one answer of Twilio's holds.
PAGE = 500
#: How often Twilio is asked again when it was asked too often, and the most seconds between two times.
TRIES, PAUSE_SECONDS = 5, 30.0

_SID = re.compile(r"(?:SM|MM)[0-9a-fA-F]{32}")
_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Listed:
    """One message as the list has it. `sent_at` is in Unix seconds, `files` how many came with it."""

    sid: str
    sender: str
    to: str
    body: str
    files: int
    sent_at: float


@dataclass(frozen=True, slots=True)
class ListedFile:
    """One file of a message, under the address that a webhook would name."""

    sid: str
    url: str
    mime_type: str


class TwilioList:
    """One channel's list. Lives as long as one command, and its event loop: that closes the connections."""

    def __init__(
        self, settings: WhatsAppSettings, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._account_sid = settings.account_sid
        self._service = settings.messaging_service_sid or ""
        #: As the list has it, which is with a plus.
        self._sender = re.sub(r"^whatsapp:(?=[0-9])", "whatsapp:+", settings.from_ or "")
        token, url = settings.auth_token.get_secret_value(), settings.api_url or None
        self._client = PerLoop(partial(new_client, settings.account_sid, token, url))
        self._sleep = sleep

    async def messages(self, after: float, before: float) -> AsyncIterator[Listed]:
        """What people sent between two moments, the newest first. Raises SetupError.

        Twilio counts in whole days, so it is asked for one more at both ends.
        """
        days = {"date_sent_after": _midnight(after) - _DAY, "date_sent_before": _midnight(before) + _DAY}
        to = {} if self._service else {"to": self._sender}
        page = await self._asked(lambda: self._client.here().messages.page_async(**to, **days, page_size=PAGE))
        while page is not None:
            async with asking("Twilio", why):
                found = [message for each in page if (message := self._read(each))]
            for message in found:
                if after <= message.sent_at < before:
                    yield message
            if found and found[-1].sent_at < after:
                return
            page = await self._asked(page.next_page_async)

    async def files(self, sid: str) -> list[ListedFile]:
        """The files of a message that Twilio still has. Raises SetupError."""
        files = self._client.here().messages(sid).media
        found: list[Any] = await self._asked(files.list_async, gone=[])
        return [ListedFile(str(each.sid), self._url(sid, each.sid), str(each.content_type or "")) for each in found]

    async def delete(self, sid: str, file: ListedFile) -> None:
        """Delete a file for good. Raises SetupError."""
        there = self._client.here().messages(sid).media(file.sid)
        await self._asked(there.delete_async, gone=True)

    async def _asked(self, call: Callable[[], Awaitable[T]], gone: T | None = None) -> T:
        """Ask patiently; `gone` is the answer where somebody has deleted it. Raises SetupError."""
        from twilio.base.exceptions import TwilioException  # type: ignore[import-untyped]  # twilio ships no types

        for _ in range(TRIES):
            async with asking("Twilio", why):
                try:
                    return await call()
                except RateLimited as exc:
                    pause = min(exc.retry_after, PAUSE_SECONDS)
                except TwilioException as exc:
                    if gone is None or status_of(exc) != 404:
                        raise
                    return gone
            await self._sleep(pause)
        raise SetupError("Twilio was asked too often", "wait a minute, then run it again: what was done stays done")

    def _read(self, message: Any) -> Listed | None:
        """A message to this channel; None for any other, such as our own or an SMS."""
        sid, sender, sent = str(message.sid), str(message.from_ or ""), message.date_sent or message.date_created
        ours = message.to == self._sender or (self._service and message.messaging_service_sid == self._service)
        whatsapp = sender.startswith("whatsapp:") and message.direction == "inbound"
        if not (ours and whatsapp and sent and _SID.fullmatch(sid)):
            return None
        files = int(message.num_media or 0)
        return Listed(sid, sender, str(message.to), storable(str(message.body or "")), files, sent.timestamp())

    def _url(self, sid: str, file_sid: str) -> str:
        return f"{ORIGINS[0]}/2010-04-01/Accounts/{self._account_sid}/Messages/{sid}/Media/{file_sid}"


def _midnight(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
