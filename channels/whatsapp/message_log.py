"""Missed messages fetched, media deleted at Twilio."""

from __future__ import annotations

import asyncio
import re
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Literal, TypeVar
from urllib.parse import urlencode

from sayso.channels.base import RateLimited, SharedCache
from sayso.channels.http import PooledSessions
from sayso.channels.setup import SetupError, asking
from sayso.channels.types import Conversation, Turn, storable
from sayso.channels.whatsapp.client import ORIGINS, SenderNames, new_client
from sayso.channels.whatsapp.setup import status_of, why
from sayso.channels.whatsapp.webhook import TwilioForm, turn_of
from sayso.config.settings.channels import WhatsAppSettings
from sayso.workers.access.gate import AccessControl
from sayso.workers.access.rules import AccessRules, Ignored, UnknownSender
from sayso.workers.mailbox import SEEN_MS

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


class TwilioMessageLog:
    """One channel's list. Lives as long as one command, and its event loop: that closes the connections."""

    def __init__(
        self, settings: WhatsAppSettings, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._account_sid = settings.account_sid
        self._service = settings.messaging_service_sid or ""
        #: As the list has it, which is with a plus.
        self._sender = re.sub(r"^whatsapp:(?=[0-9])", "whatsapp:+", settings.from_ or "")
        token, url = settings.auth_token.get_secret_value(), settings.api_url or None
        self._client = PooledSessions(partial(new_client, settings.account_sid, token, url))
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


#: The youngest file that is deleted, in seconds: its turn may have just begun.
LEAST_SECONDS = 3600


#: How far back it looks, in seconds: Twilio has no older messages of WhatsApp.
MAX_PURGE_SECONDS = 3650 * 24 * 3600


#: Seconds of messages that are listed, and told of, at once.
_SLICE = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Slice:
    """What became of the files of messages from `begin` on, a day at most: counts of files.

    `waiting` ones belong to turns that nobody has worked on, `missed` ones to messages that no webhook told of.
    """

    begin: float
    deleted: int = 0
    waiting: int = 0
    missed: int = 0

    @property
    def day(self) -> str:
        """When it begins, in UTC."""
        return f"{datetime.fromtimestamp(self.begin, UTC):%Y-%m-%d %H:%M} UTC"


class MediaDeletion:
    """One channel's forgetting. Lives as long as one command, and its event loop. It may be repeated at any time."""

    def __init__(
        self, channel: str, messages: TwilioMessageLog, gate: AccessControl, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._channel, self._messages, self._gate, self._clock = channel, messages, gate, clock

    async def run(self, older: float, back: float, *, delete: bool) -> AsyncIterator[Slice]:
        """Delete what is older than so many seconds, from so many before on, day by day. Without `delete` only count.

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
        told = Slice(begin)
        async for message in self._messages.messages(begin, end):
            if message.files:
                told = await self._forget(message, told, delete=delete)
        return told

    async def _forget(self, message: Listed, told: Slice, *, delete: bool) -> Slice:
        files = await self._messages.files(message.sid)
        match self._needed(message):
            case "waits":
                return replace(told, waiting=told.waiting + len(files))
            case "missed":
                return replace(told, missed=told.missed + len(files))
        for file in files if delete else ():
            await self._messages.delete(message.sid, file)
        return replace(told, deleted=told.deleted + len(files))

    def _needed(self, message: Listed) -> str:
        """Whether its turn waits, or `sayso webhook recover` may still take it; "" where nobody needs its files."""
        stage = self._gate.turn_status(Turn(message.sid, Conversation(self._channel, message.sender), message.sender))
        if stage == "unknown" and self._clock() - message.sent_at <= SEEN_MS / 1000:
            return "missed"
        return "waits" if stage == "waits" else ""


#: Seconds back of which every message that was taken is still remembered, less an hour: two clocks measure them.
MAX_RECOVERY_SECONDS = SEEN_MS // 1000 - 3600


#: Seconds in which a webhook may still be tried again.
YOUNG_SECONDS = 60.0


#: Messages that are looked at in one go.
MOST_MESSAGES = 10_000


_MINUTE = 60.0


#: What a message is: taken before; missed, and taken now or not; left for good; or refused, for another try.
MessageState = Literal["before", "missed", "taken", "left", "refused"]


@dataclass(frozen=True, slots=True)
class FoundMessage:
    """One message of the list, and what became of it; `why` it was not taken."""

    sid: str
    sent_at: float
    conversation: str
    state: MessageState
    why: str = ""


class MissedMessages:
    """One channel's recovery. Lives as long as one command, and its event loop.

    `rules` are the channel's; `clock` tells Unix seconds.
    """

    def __init__(
        self,
        channel: str,
        messages: TwilioMessageLog,
        gate: AccessControl,
        notebook: SharedCache,
        rules: AccessRules,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._channel, self._messages = channel, messages
        self._gate, self._names = gate, SenderNames(notebook)
        self._rules, self._clock = rules, clock

    async def run(self, seconds: float, *, take: bool, newest: int = 0) -> AsyncIterator[FoundMessage]:
        """What came in within so many seconds, oldest first; with `take` what was missed is taken, one by one.

        `newest` looks at no more than so many, where 0 is all of them. Raises SetupError, redis.RedisError.
        """
        _check(seconds)
        since, paces = self._clock() - seconds, _Paces(self._rules.per_minute or 0)
        for message in await self._listed(since, newest):
            told = await self._found(message, paces, take=take and message.sent_at >= since)
            if message.sent_at >= since:
                yield told

    async def _listed(self, since: float, newest: int) -> list[Listed]:
        """Oldest first, with those of the minute before, which count for how fast somebody was."""
        found: list[Listed] = []
        async for message in self._messages.messages(since - _MINUTE, self._clock() - YOUNG_SECONDS):
            found.append(message)
            if len(found) == newest:
                break
            if len(found) > MOST_MESSAGES:
                raise SetupError(f"more than {MOST_MESSAGES} messages came in", "give a shorter --since")
        found.reverse()
        return sorted(found, key=lambda message: message.sent_at)

    async def _found(self, message: Listed, paces: _Paces, *, take: bool) -> FoundMessage:
        there = Conversation(self._channel, message.sender)
        found = FoundMessage(message.sid, message.sent_at, there.id, "before")
        bare = Turn(message.sid, there, self._names.of(there) or message.sender, aliases=(message.sender,))
        if self._gate.turn_status(bare) != "unknown":
            paces.count(message)
            return found
        if why := self._why_not(bare) or paces.why_not(message):
            return replace(found, state="left", why=why)
        turn = _turn(self._channel, message, bare.user_id, await self._files(message))
        if turn is None:
            return replace(found, state="left", why="neither words nor a file: nothing more is kept of a place")
        if turn.text.lstrip().startswith("/"):
            return replace(found, state="left", why="a command, which was for then")
        paces.count(message)
        return self._taken(found, turn) if take else replace(found, state="missed")

    def _why_not(self, turn: Turn) -> str:
        """Why the door would not let it in, "" where it would."""
        match self._gate.judge(turn):
            case Ignored(reason):
                return reason
            case UnknownSender():
                return "on no list of who may talk"
        return ""

    def _taken(self, found: FoundMessage, turn: Turn) -> FoundMessage:
        waited = max(self._clock() - found.sent_at, 1.0)
        accepted = self._gate.accept(turn, waited_seconds=waited)
        if accepted.outcome == "duplicate":  # its webhook came meanwhile
            return found
        if accepted.outcome == "new":
            return replace(found, state="taken")
        return replace(found, state="refused", why=accepted.outcome)

    async def _files(self, message: Listed) -> list[ListedFile]:
        return await self._messages.files(message.sid) if message.files else []


class _Paces:
    """How fast people were when they wrote: who was over the quota then, is not answered now. 0 is no quota."""

    def __init__(self, per_minute: int) -> None:
        self._per_minute = per_minute
        self._times: defaultdict[str, deque[float]] = defaultdict(deque)

    def count(self, message: Listed) -> None:
        """It was taken."""
        self._times[message.sender].append(message.sent_at)

    def why_not(self, message: Listed) -> str:
        """Why it would have been refused, "" where it would not."""
        times = self._times[message.sender]
        while times and times[0] <= message.sent_at - _MINUTE:
            times.popleft()
        is_over = 0 < self._per_minute <= len(times)
        return f"over {self._per_minute} turns a minute when it was sent" if is_over else ""


def _check(seconds: float) -> None:
    if seconds > MAX_RECOVERY_SECONDS:
        says = f"what was taken is remembered for {SEEN_MS // 3_600_000} h: what is older might run twice"
        raise SetupError(says, f"look back {MAX_RECOVERY_SECONDS // 3600} h at most")


def _turn(channel: str, message: Listed, user_id: str, files: list[ListedFile]) -> Turn | None:
    """The turn that its webhook would have been, as far as the list tells.

    A tap looks there like its label, typed; and hours have passed. So it has a note, and decides nothing.
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
