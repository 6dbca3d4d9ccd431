"""Forgetting: files that people sent, deleted at Twilio once no turn needs them there."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from sayso.channels.types import Conversation, Turn
from sayso.config.setup.desk import SetupError
from sayso.config.setup.twilio_list import Listed, TwilioList
from sayso.workers.gate import Gate
from sayso.workers.mailbox import SEEN_MS

#: The youngest file that is deleted, in seconds: its turn may have just begun.
LEAST_SECONDS = 3600
#: How far back it looks, in seconds: Twilio has no older messages of WhatsApp.
MOST_SECONDS = 3650 * 24 * 3600
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


class Forgetting:
    """One channel's forgetting. Lives as long as one command, and its event loop. It may be repeated at any time."""

    def __init__(
        self, channel: str, messages: TwilioList, gate: Gate, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._channel, self._messages, self._gate, self._clock = channel, messages, gate, clock

    async def run(self, older: float, back: float, *, delete: bool) -> AsyncIterator[Slice]:
        """Delete what is older than so many seconds, from so many before on, day by day. Without `delete` only count.

        Raises SetupError, redis.RedisError.
        """
        if older < LEAST_SECONDS:
            says = "a turn that has just begun fetches its file at Twilio"
            raise SetupError(says, f"write --older {LEAST_SECONDS // 3600}h or more")
        if older + back > MOST_SECONDS:
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
        stage = self._gate.stage(Turn(message.sid, Conversation(self._channel, message.sender), message.sender))
        if stage == "unknown" and self._clock() - message.sent_at <= SEEN_MS / 1000:
            return "missed"
        return "waits" if stage == "waits" else ""
