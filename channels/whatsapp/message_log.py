"""Twilio's log of messages: fetches messages that no webhook brought, and deletes media at Twilio."""

from __future__ import annotations

import asyncio
import re
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Literal, Protocol, TypeVar
from urllib.parse import urlencode

from sayso.channels.base import RateLimited, SharedCache
from sayso.channels.http import PooledSessions
from sayso.channels.setup import ListedFile, ListedMessage, MessageLog, SetupError, asking
from sayso.channels.types import Conversation, Turn, storable
from sayso.channels.whatsapp.client import ORIGINS, SenderNames, new_client
from sayso.channels.whatsapp.errors import setup_problem, status_of
from sayso.channels.whatsapp.settings import WhatsAppSettings
from sayso.channels.whatsapp.webhook import TwilioForm, turn_of

T = TypeVar("T")


class RecoveryInbox(Protocol):
    """Takes turns that no webhook brought, and tells how far each turn has come. All methods raise redis.RedisError."""

    @property
    def remembered_seconds(self) -> float:
        """How long after its arrival a turn that was worked on is still known."""

    def stage(self, turn: Turn) -> str:
        """Return "waits" or "done", or "unknown" for a turn that never came in or is forgotten."""

    def why_not(self, turn: Turn) -> str:
        """Return why the channel's access rules do not let the sender in, "" if they do."""

    def accept(self, turn: Turn, *, waited_seconds: float) -> str:
        """Store a turn that was written so many seconds ago. Return "new", "duplicate" or why it was refused."""


#: How many messages one answer of Twilio holds.
PAGE = 500


#: How often a rate-limited call is tried, and the longest pause between two tries, in seconds.
TRIES, PAUSE_SECONDS = 5, 30.0


_SID = re.compile(r"(?:SM|MM)[0-9a-fA-F]{32}")


_DAY = timedelta(days=1)


class TwilioMessageLog:
    """The messages of one channel at Twilio. A MessageLog."""

    def __init__(
        self, settings: WhatsAppSettings, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._account_sid = settings.account_sid
        self._service = settings.messaging_service_sid or ""
        #: Spelled as in the log, with a plus.
        self._sender = re.sub(r"^whatsapp:(?=[0-9])", "whatsapp:+", settings.from_ or "")
        token, url = settings.auth_token.get_secret_value(), settings.api_url or None
        self._client = PooledSessions(partial(new_client, settings.account_sid, token, url))
        self._sleep = sleep

    async def messages(self, after: float, before: float) -> AsyncIterator[ListedMessage]:
        """Yield what people sent between two moments, the newest first. Raises SetupError.

        Twilio counts in whole days, so it is asked for one more at both ends.
        """
        days = {"date_sent_after": _midnight(after) - _DAY, "date_sent_before": _midnight(before) + _DAY}
        to = {} if self._service else {"to": self._sender}
        page = await self._call(lambda: self._client.here().messages.page_async(**to, **days, page_size=PAGE))
        while page is not None:
            async with asking("Twilio", setup_problem):
                found = [message for each in page if (message := self._read(each))]
            for message in found:
                if after <= message.sent_at < before:
                    yield message
            if found and found[-1].sent_at < after:
                return
            page = await self._call(page.next_page_async)

    async def files(self, sid: str) -> list[ListedFile]:
        """Return the files of a message that Twilio still has. Raises SetupError."""
        files = self._client.here().messages(sid).media
        found: list[Any] = await self._call(files.list_async, gone=[])
        return [ListedFile(str(each.sid), self._url(sid, each.sid), str(each.content_type or "")) for each in found]

    async def delete(self, sid: str, file: ListedFile) -> None:
        """Delete a file for good. Raises SetupError."""
        there = self._client.here().messages(sid).media(file.sid)
        await self._call(there.delete_async, gone=True)

    async def _call(self, call: Callable[[], Awaitable[T]], gone: T | None = None) -> T:
        """Call Twilio, and again when it is rate limited. Return `gone` for what was deleted. Raises SetupError."""
        from twilio.base.exceptions import TwilioException  # type: ignore[import-untyped]  # twilio ships no types

        for _ in range(TRIES):
            async with asking("Twilio", setup_problem):
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

    def _read(self, message: Any) -> ListedMessage | None:
        """Parse a message to this channel; None for any other, such as our own or an SMS."""
        sid, sender, sent = str(message.sid), str(message.from_ or ""), message.date_sent or message.date_created
        ours = message.to == self._sender or (self._service and message.messaging_service_sid == self._service)
        whatsapp = sender.startswith("whatsapp:") and message.direction == "inbound"
        if not (ours and whatsapp and sent and _SID.fullmatch(sid)):
            return None
        files = int(message.num_media or 0)
        return ListedMessage(sid, sender, str(message.to), storable(str(message.body or "")), files, sent.timestamp())

    def _url(self, sid: str, file_sid: str) -> str:
        return f"{ORIGINS[0]}/2010-04-01/Accounts/{self._account_sid}/Messages/{sid}/Media/{file_sid}"


def _midnight(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC).replace(hour=0, minute=0, second=0, microsecond=0)


#: Files younger than this, in seconds, are not deleted: their turn may have just begun.
LEAST_SECONDS = 3600


#: How far back files are deleted, in seconds: Twilio has no older WhatsApp messages.
MAX_PURGE_SECONDS = 3650 * 24 * 3600


#: The length of a slice, in seconds.
_SLICE = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Slice:
    """How many files of at most one day were deleted, and how many were kept. `begin` is in Unix seconds.

    `waiting`: files of turns that are not answered yet. `missed`: files of messages that no webhook brought.
    """

    begin: float
    deleted: int = 0
    waiting: int = 0
    missed: int = 0

    @property
    def day(self) -> str:
        """The time of its begin, in UTC."""
        return f"{datetime.fromtimestamp(self.begin, UTC):%Y-%m-%d %H:%M} UTC"


class MediaDeletion:
    """Deletes the media of one channel at Twilio. Lives as long as one command; may be repeated at any time."""

    def __init__(
        self, channel: str, messages: MessageLog, inbox: RecoveryInbox, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._channel, self._messages, self._inbox, self._clock = channel, messages, inbox, clock

    async def run(self, older: float, back: float, *, delete: bool) -> AsyncIterator[Slice]:
        """Delete the files that are older than `older` seconds, from `back` seconds before that on, day by day.

        Without `delete` only count them.

        Raises SetupError, redis.RedisError.
        """
        if older < LEAST_SECONDS:
            says = "a turn that has just begun fetches its file at Twilio"
            raise SetupError(says, f"write --older {LEAST_SECONDS // 3600}h or more")
        if older + back > MAX_PURGE_SECONDS:
            says = f"{(older + back) / 86_400:.0f} days ago there was nothing to delete"
            raise SetupError(says, "write --back 400d for all, and a shorter --older")
        until = self._clock() - older
        begin = until - back
        while begin < until:
            yield await self._slice(begin, min(begin + _SLICE, until), delete=delete)
            begin += _SLICE

    async def _slice(self, begin: float, end: float, *, delete: bool) -> Slice:
        result = Slice(begin)
        async for message in self._messages.messages(begin, end):
            if message.files:
                result = await self._delete(message, result, delete=delete)
        return result

    async def _delete(self, message: ListedMessage, result: Slice, *, delete: bool) -> Slice:
        files = await self._messages.files(message.sid)
        match self._needed_by(message):
            case "waits":
                return replace(result, waiting=result.waiting + len(files))
            case "missed":
                return replace(result, missed=result.missed + len(files))
        for file in files if delete else ():
            await self._messages.delete(message.sid, file)
        return replace(result, deleted=result.deleted + len(files))

    def _needed_by(self, message: ListedMessage) -> str:
        """Return "waits" if its turn is not answered yet, "missed" if it may still be recovered, else ""."""
        stage = self._inbox.stage(Turn(message.sid, Conversation(self._channel, message.sender), message.sender))
        if stage == "unknown" and self._clock() - message.sent_at <= self._inbox.remembered_seconds:
            return "missed"
        return "waits" if stage == "waits" else ""


#: Twilio's clock and ours may differ by this many seconds: recovery looks back this much less than turns are known.
CLOCK_SECONDS = 3600


#: Messages younger than this, in seconds, are left alone: Twilio may still retry their webhook.
YOUNG_SECONDS = 60.0


#: The most messages of one recovery.
MOST_MESSAGES = 10_000


_MINUTE = 60.0


#: What became of a message: taken before; missed; taken now; left for good; or refused, to be tried again.
MessageState = Literal["before", "missed", "taken", "left", "refused"]


@dataclass(frozen=True, slots=True)
class FoundMessage:
    """One message of the log and what became of it; `why` it was not taken."""

    sid: str
    sent_at: float
    conversation: str
    state: MessageState
    why: str = ""


class MissedMessages:
    """Takes the messages of one channel that no webhook brought. Lives as long as one command.

    `per_minute` is the limit of turns of one person, 0 for none; `clock` returns Unix seconds.
    """

    def __init__(
        self,
        channel: str,
        messages: MessageLog,
        inbox: RecoveryInbox,
        cache: SharedCache,
        *,
        per_minute: int = 0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._channel, self._messages = channel, messages
        self._inbox, self._names = inbox, SenderNames(cache)
        self._per_minute, self._clock = per_minute, clock

    async def run(self, seconds: float, *, take: bool, newest: int = 0) -> AsyncIterator[FoundMessage]:
        """Yield the messages of the last `seconds`, the oldest first. With `take`, missed ones are taken.

        At most `newest` messages are examined, 0 for all. Raises SetupError, redis.RedisError.
        """
        remembered = self._inbox.remembered_seconds
        if seconds > remembered - CLOCK_SECONDS:
            says = f"what was taken is remembered for {remembered // 3600:.0f} h: what is older might run twice"
            raise SetupError(says, f"look back {(remembered - CLOCK_SECONDS) // 3600:.0f} h at most")
        since, rates = self._clock() - seconds, _SenderRates(self._per_minute)
        for message in await self._listed(since, newest):
            told = await self._found(message, rates, take=take and message.sent_at >= since)
            if message.sent_at >= since:
                yield told

    async def _listed(self, since: float, newest: int) -> list[ListedMessage]:
        """Return the messages, the oldest first, with those of the minute before, which count for the rate limit."""
        found: list[ListedMessage] = []
        async for message in self._messages.messages(since - _MINUTE, self._clock() - YOUNG_SECONDS):
            found.append(message)
            if len(found) == newest:
                break
            if len(found) > MOST_MESSAGES:
                raise SetupError(f"more than {MOST_MESSAGES} messages came in", "give a shorter --since")
        found.reverse()
        return sorted(found, key=lambda message: message.sent_at)

    async def _found(self, message: ListedMessage, rates: _SenderRates, *, take: bool) -> FoundMessage:
        there = Conversation(self._channel, message.sender)
        found = FoundMessage(message.sid, message.sent_at, there.id, "before")
        bare = Turn(message.sid, there, self._names.of(there) or message.sender, aliases=(message.sender,))
        if self._inbox.stage(bare) != "unknown":
            rates.count(message)
            return found
        if why := self._inbox.why_not(bare) or rates.why_not(message):
            return replace(found, state="left", why=why)
        turn = _turn(self._channel, message, bare.user_id, await self._files(message))
        if turn is None:
            return replace(found, state="left", why="neither words nor a file: the log has no locations")
        if turn.text.lstrip().startswith("/"):
            return replace(found, state="left", why="a command, which was for then")
        rates.count(message)
        return self._taken(found, turn) if take else replace(found, state="missed")

    def _taken(self, found: FoundMessage, turn: Turn) -> FoundMessage:
        waited = max(self._clock() - found.sent_at, 1.0)
        outcome = self._inbox.accept(turn, waited_seconds=waited)
        if outcome == "duplicate":  # its webhook came meanwhile
            return found
        if outcome == "new":
            return replace(found, state="taken")
        return replace(found, state="refused", why=outcome)

    async def _files(self, message: ListedMessage) -> list[ListedFile]:
        return await self._messages.files(message.sid) if message.files else []


class _SenderRates:
    """Counts turns by sender at the time they were sent. Turns over the limit then are not taken now. 0 is no limit."""

    def __init__(self, per_minute: int) -> None:
        self._per_minute = per_minute
        self._times: defaultdict[str, deque[float]] = defaultdict(deque)

    def count(self, message: ListedMessage) -> None:
        """Count a message that was taken."""
        self._times[message.sender].append(message.sent_at)

    def why_not(self, message: ListedMessage) -> str:
        """Return why the message would have been refused when it was sent, "" if it would not."""
        times = self._times[message.sender]
        while times and times[0] <= message.sent_at - _MINUTE:
            times.popleft()
        is_over = 0 < self._per_minute <= len(times)
        return f"over {self._per_minute} turns a minute when it was sent" if is_over else ""


def _turn(channel: str, message: ListedMessage, user_id: str, files: list[ListedFile]) -> Turn | None:
    """Return the turn that the webhook would have brought, as far as the log shows.

    In the log a tap looks like its typed label, and hours have passed. So the turn has a note, and confirms nothing.
    """
    fields = {
        "MessageSid": message.sid, "From": message.sender, "To": message.to, "Body": message.body,
        "ExternalUserId": user_id, "NumMedia": str(message.files),
    }  # fmt: skip
    for n, file in enumerate(files):
        fields |= {f"MediaUrl{n}": file.url, f"MediaContentType{n}": file.mime_type}
    turn = turn_of(channel, TwilioForm(urlencode(fields).encode()))
    if turn is None:
        return None
    late = f"sent at {datetime.fromtimestamp(message.sent_at, UTC):%Y-%m-%d %H:%M} UTC, and reached us only now"
    return replace(turn, notes=(*turn.notes, late))
