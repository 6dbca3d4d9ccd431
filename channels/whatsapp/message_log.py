"""Twilio's log of messages: recovers those that no webhook delivered, and deletes media.

A webhook may be lost while the bot is down for longer than Twilio repeats it. Twilio stores each
message in a log. `sayso channel recover` reads the log (MissedMessages) and stores the messages
that never reached the mailbox, the queue of turns in Redis. Another command deletes the files that
people sent from Twilio's servers (MediaDeletion). TwilioMessageLog is the log itself.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlencode

from sayso.channels.base import Identities, RateLimited
from sayso.channels.setup import (
    DeletedFiles,
    FoundMessage,
    ListedFile,
    ListedMessage,
    MessageLog,
    RecoveryInbox,
    SetupError,
    platform_calls,
    too_many_calls,
)
from sayso.channels.types import Conversation, Turn, storable
from sayso.channels.whatsapp.client import ORIGINS, new_client, setup_problem, status_of
from sayso.channels.whatsapp.incoming import MESSAGE_SID, TwilioForm, turn_of
from sayso.channels.whatsapp.people import WhatsAppPeople, is_number
from sayso.channels.whatsapp.settings import WhatsAppSettings
from sayso.infra.http import PooledSessions
from sayso.infra.records import OtherVersion

T = TypeVar("T")

#: How many messages Twilio returns at once.
PAGE = 500
#: How often a rate-limited call is attempted.
ATTEMPTS = 5
#: The longest pause between two attempts, in seconds.
MAX_PAUSE_SECONDS = 30.0
#: Files younger than this, in seconds, are not deleted: their turn may have just begun.
LEAST_SECONDS = 3600
#: How far back files are deleted, in seconds: ten years. Twilio has no older WhatsApp messages.
MAX_PURGE_SECONDS = 3650 * 24 * 3600
#: By how many seconds Twilio's clock and ours may differ. Recovery looks back this much less than
#: answered turns are remembered.
CLOCK_SECONDS = 3600
#: Messages younger than this, in seconds, are left out: Twilio may still repeat their webhook.
YOUNG_SECONDS = 60.0
#: The most messages of one recovery.
MOST_MESSAGES = 10_000
_DAY = timedelta(days=1)


class TwilioMessageLog:
    """The MessageLog of one channel at Twilio. Lives as long as one command.

    `sleep` waits for some seconds.
    """

    def __init__(
        self,
        settings: WhatsAppSettings,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._account_sid = settings.account_sid
        self._service = settings.messaging_service_sid or ""
        #: The number of the channel, spelled as in the log: with a plus, which the configuration may
        #: leave out. "" for a service.
        self._sender = re.sub(r"^whatsapp:(?=[0-9])", "whatsapp:+", settings.from_ or "")
        token = settings.auth_token.get_secret_value()
        url = settings.api_url or None
        self._client = PooledSessions(partial(new_client, settings.account_sid, token, url))
        self._sleep = sleep

    async def messages(self, after: float, before: float) -> AsyncIterator[ListedMessage]:
        """Yield what people sent between two times in Unix seconds, the newest first.

        Raises SetupError.
        """
        # Twilio filters by whole days, so one more day is requested at both ends.
        days = {
            "date_sent_after": _midnight(after) - _DAY,
            "date_sent_before": _midnight(before) + _DAY,
        }
        filters: dict[str, Any] = {**days, "page_size": PAGE}
        if not self._service:
            # A Messaging Service has many numbers, so its messages are filtered here.
            filters["to"] = self._sender

        page = await self._call(lambda: self._client.here().messages.page_async(**filters))
        while page is not None:
            async with platform_calls("Twilio", setup_problem):
                parsed = [self._parse(each) for each in page]
            messages = [message for message in parsed if message]
            for message in messages:
                if after <= message.sent_at < before:
                    yield message
            # The log is sorted from the newest on: all further pages are too old.
            if messages and messages[-1].sent_at < after:
                return
            page = await self._call(page.next_page_async)

    async def files(self, sid: str) -> list[ListedFile]:
        """Return the files of a message that Twilio still has. Raises SetupError."""
        files = self._client.here().messages(sid).media
        listed: list[Any] = await self._call(files.list_async, gone=[])
        media_url = f"{ORIGINS[0]}/2010-04-01/Accounts/{self._account_sid}/Messages/{sid}/Media"
        return [
            ListedFile(str(file.sid), f"{media_url}/{file.sid}", str(file.content_type or ""))
            for file in listed
        ]

    async def delete(self, sid: str, file: ListedFile) -> None:
        """Delete a file for good. Raises SetupError."""
        media = self._client.here().messages(sid).media(file.sid)
        await self._call(media.delete_async, gone=True)

    async def _call(self, call: Callable[[], Awaitable[T]], gone: T | None = None) -> T:
        """Call Twilio, and repeat a rate-limited call. Raises SetupError.

        `gone` is returned if the resource was deleted. If it is None, that is an error too.
        """
        from twilio.base.exceptions import TwilioException

        for _ in range(ATTEMPTS):
            async with platform_calls("Twilio", setup_problem):
                try:
                    return await call()
                except RateLimited as exc:
                    pause = min(exc.retry_after, MAX_PAUSE_SECONDS)
                except TwilioException as exc:
                    if gone is None or status_of(exc) != 404:
                        raise
                    return gone
            await self._sleep(pause)
        raise SetupError(*too_many_calls("Twilio"))

    def _parse(self, message: Any) -> ListedMessage | None:
        """Return a message to this channel, None for any other, such as the bot's or an SMS."""
        sid = str(message.sid)
        sender = str(message.from_ or "")
        sent_at = message.date_sent or message.date_created

        # To this service, or to this number. Without a number, `_sender` equals no address.
        is_to_service = self._service and message.messaging_service_sid == self._service
        is_ours = is_to_service or message.to == self._sender
        is_inbound = sender.startswith("whatsapp:") and message.direction == "inbound"
        if not (is_ours and is_inbound and sent_at and MESSAGE_SID.fullmatch(sid)):
            return None

        return ListedMessage(
            sid=sid,
            sender=sender,
            to=str(message.to),
            body=storable(str(message.body or "")),
            files=int(message.num_media or 0),
            sent_at=sent_at.timestamp(),
        )


def _midnight(at: float) -> datetime:
    """Return the beginning of the day, in UTC, of a time in Unix seconds."""
    return datetime.fromtimestamp(at, UTC).replace(hour=0, minute=0, second=0, microsecond=0)


#: The seconds of a day, in which one result of a deletion counts its files.
_DAY_SECONDS = 24 * 3600.0


class MediaDeletion:
    """Deletes the files of one channel at Twilio. Lives as long as one command.

    The command may be repeated at any time.

    * `messages`: Twilio's log.
    * `inbox`: what the mailbox knows of a turn.
    * `identities`: the ids of people, with which the turn of a message is found.
    """

    def __init__(
        self,
        channel: str,
        messages: MessageLog,
        inbox: RecoveryInbox,
        identities: Identities,
    ) -> None:
        self._channel = channel
        self._messages = messages
        self._inbox = inbox
        self._people = WhatsAppPeople(channel, identities)

    async def run(self, older: float, back: float, *, delete: bool) -> AsyncIterator[DeletedFiles]:
        """Delete the files of a span of time, and yield the counts of each day.

        * `older`: how old the newest of these files is, in seconds.
        * `back`: how long the span is, in seconds.
        * `delete`: whether they are deleted, and not only counted.

        Raises SetupError and redis.RedisError.
        """
        if older < LEAST_SECONDS:
            says = "a turn that has just begun may still download its file"
            raise SetupError(says, f"write --older {LEAST_SECONDS // 3600}h or more")
        if older + back > MAX_PURGE_SECONDS:
            says = f"Twilio has no WhatsApp messages from {(older + back) / 86_400:.0f} days ago"
            raise SetupError(says, "write --back 400d for all, and a shorter --older")

        until = time.time() - older
        begin = until - back
        while begin < until:
            result = DeletedFiles(begin)
            end = min(begin + _DAY_SECONDS, until)
            async for message in self._messages.messages(begin, end):
                if message.files:
                    result = await self._delete(message, result, delete=delete)
            yield result
            begin += _DAY_SECONDS

    async def _delete(
        self, message: ListedMessage, result: DeletedFiles, *, delete: bool
    ) -> DeletedFiles:
        """Delete the files of a message that is answered, and return the new counts.

        The status of its turn is "waits" (for an answer), "done", or "unknown": it never came in, or
        it was answered so long ago that the mailbox has forgotten it.
        """
        files = await self._messages.files(message.sid)
        turn = self._people.recognize(_turn_without_content(self._channel, message), store=False)
        status = self._inbox.turn_status(turn)
        # A turn that waits still needs its files.
        if status == "waits":
            return replace(result, waiting=result.waiting + len(files))
        # No webhook delivered it, so MissedMessages can still store it.
        age = time.time() - message.sent_at
        if status == "unknown" and age <= self._inbox.remembered_seconds:
            return replace(result, missed=result.missed + len(files))

        if delete:
            for file in files:
                await self._messages.delete(message.sid, file)
        return replace(result, deleted=result.deleted + len(files))


#: The seconds in which `per_minute` counts.
_MINUTE = 60.0


class MissedMessages:
    """Recovers the messages of one channel that no webhook delivered. Lives as long as one command.

    * `messages`: Twilio's log.
    * `inbox`: what the mailbox knows of a turn, and where missed turns are stored.
    * `identities`: the ids of people, with which the turn of a message is found.
    * `per_minute`: how many turns of one person are taken in a minute, 0 for no limit.
    * `clock`: returns Unix seconds.
    """

    def __init__(
        self,
        channel: str,
        messages: MessageLog,
        inbox: RecoveryInbox,
        identities: Identities,
        *,
        per_minute: int,
        clock: Callable[[], float],
    ) -> None:
        self._channel = channel
        self._messages = messages
        self._inbox = inbox
        self._identities = identities
        self._people = WhatsAppPeople(channel, identities)
        self._per_minute = per_minute
        self._clock = clock
        #: When the turns of the minute before the present message were sent, by sender.
        self._times: defaultdict[str, deque[float]] = defaultdict(deque)

    async def run(
        self, seconds: float, *, take: bool, newest: int = 0
    ) -> AsyncIterator[FoundMessage]:
        """Yield the messages of the last `seconds`, the oldest first.

        * `take`: whether missed messages are stored.
        * `newest`: how many messages are examined at most, 0 for all.

        Raises SetupError and redis.RedisError.
        """
        remembered = self._inbox.remembered_seconds
        longest = remembered - CLOCK_SECONDS
        if seconds > longest:
            says = (
                f"turns are remembered for {remembered // 3600:.0f} h: an older one might run twice"
            )
            raise SetupError(says, f"look back {longest // 3600:.0f} h at most")

        since = self._clock() - seconds
        for message in await self._listed(since, newest):
            # The messages of the minute before count for the rate limit, and are not recovered.
            is_in_span = message.sent_at >= since
            try:
                result = await self._recover(message, take=take and is_in_span)
            except OtherVersion as exc:
                # Only the ids of this person cannot be read, so the messages of others go on.
                there = Conversation(self._channel, message.sender)
                result = FoundMessage(message.sid, message.sent_at, there.id, "refused", str(exc))
            if is_in_span:
                yield result

    async def _listed(self, since: float, newest: int) -> list[ListedMessage]:
        """Return the messages since a minute before `since`, the oldest first.

        `since` is in Unix seconds. `newest` is as in `run`.
        """
        messages: list[ListedMessage] = []
        until = self._clock() - YOUNG_SECONDS
        async for message in self._messages.messages(since - _MINUTE, until):
            messages.append(message)
            if len(messages) == newest:
                break
            if len(messages) > MOST_MESSAGES:
                raise SetupError(
                    f"more than {MOST_MESSAGES} messages came in", "give a shorter --since"
                )
        # Sorting keeps the order of messages of the same second, so the list is reversed first.
        messages.reverse()
        return sorted(messages, key=lambda message: message.sent_at)

    async def _recover(self, message: ListedMessage, *, take: bool) -> FoundMessage:
        """Return the state of a message. With `take`, store a missed one."""
        # The state is "before" until something else is known (`MessageState` says what each means).
        message = self._from_newest_address(message)
        bare_turn = self._people.recognize(
            _turn_without_content(self._channel, message), store=False
        )
        result = FoundMessage(message.sid, message.sent_at, bare_turn.conversation.id, "before")

        # Only the turns of the minute before this one count for its rate limit.
        times = self._times[message.sender]
        while times and times[0] <= message.sent_at - _MINUTE:
            times.popleft()
        if self._inbox.turn_status(bare_turn) != "unknown":
            times.append(message.sent_at)
            return result

        why = self._inbox.why_not(bare_turn)
        if not why and 0 < self._per_minute <= len(times):
            why = f"over {self._per_minute} turns a minute when it was sent"
        if why:
            return replace(result, state="left", why=why)

        files: list[ListedFile] = []
        if message.files:
            files = await self._messages.files(message.sid)
        turn = _turn(self._channel, message, files)
        if turn is None:
            return replace(
                result, state="left", why="neither text nor a file: the log has no locations"
            )
        if turn.text.lstrip().startswith("/"):
            return replace(result, state="left", why="a command, which is outdated by now")

        times.append(message.sent_at)
        if not take:
            return replace(result, state="missed")
        turn = self._people.recognize(turn, store=True)
        age = max(self._clock() - result.sent_at, 1.0)
        outcome = self._inbox.accept(turn, age)
        # Its webhook has arrived meanwhile.
        if outcome == "duplicate":
            return result
        if outcome == "new":
            return replace(result, state="taken")
        return replace(result, state="refused", why=outcome)

    def _from_newest_address(self, message: ListedMessage) -> ListedMessage:
        """Return the message as if its sender had written it from the newest address.

        Twilio's log names the number of that time and no id of the person, who may have another
        number since. The answer goes to the newest one, which the older one must not replace.
        """
        identity = self._identities.find_by_id(self._channel, message.sender)
        if identity is None or not is_number(message.sender):
            return message
        return replace(message, sender=identity.number or identity.user_id or message.sender)


def _turn_without_content(channel: str, message: ListedMessage) -> Turn:
    """Return the turn of a message without its content, with which the mailbox is asked for it."""
    return Turn(message.sid, Conversation(channel, message.sender), message.sender)


def _turn(channel: str, message: ListedMessage, files: list[ListedFile]) -> Turn | None:
    """Return the turn of a lost webhook, as far as the log shows it. None for one without content.

    In the log a tap looks like its typed label, and hours have passed. So the turn has a note, with
    which it cannot confirm.
    """
    fields = {
        "MessageSid": message.sid,
        "From": message.sender,
        "To": message.to,
        "Body": message.body,
        "NumMedia": str(message.files),
    }
    for number, file in enumerate(files):
        fields[f"MediaUrl{number}"] = file.url
        fields[f"MediaContentType{number}"] = file.mime_type
    turn = turn_of(channel, TwilioForm(urlencode(fields).encode()))
    if turn is None:
        return None
    sent_at = datetime.fromtimestamp(message.sent_at, UTC)
    note = f"sent at {sent_at:%Y-%m-%d %H:%M} UTC, and reached us only now"
    return replace(turn, notes=(*turn.notes, note))
