"""Recovery: what people wrote and no webhook told us, read from Twilio's list and given to the door.

What was taken is never run again. What the door would have turned away is left, and said.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal
from urllib.parse import urlencode

from sayso.channels.admission import Ignored, Rules, Stranger
from sayso.channels.base import Notebook
from sayso.channels.twilio_forms import Form, turn_of
from sayso.channels.twilio_names import Names
from sayso.channels.types import Conversation, Turn
from sayso.config.setup.desk import SetupError
from sayso.config.setup.twilio_list import Listed, ListedFile, TwilioList
from sayso.workers.gate import Gate
from sayso.workers.mailbox import SEEN_MS

#: Seconds back of which every message that was taken is still remembered, less an hour: two clocks measure them.
MOST_SECONDS = SEEN_MS // 1000 - 3600
#: Seconds in which a webhook may still be tried again.
YOUNG_SECONDS = 60.0
#: Messages that are looked at in one go.
MOST_MESSAGES = 10_000

_MINUTE = 60.0

#: What a message is: taken before; missed, and taken now or not; left for good; or refused, for another try.
State = Literal["before", "missed", "taken", "left", "refused"]


@dataclass(frozen=True, slots=True)
class Found:
    """One message of the list, and what became of it; `why` it was not taken."""

    sid: str
    sent_at: float
    conversation: str
    state: State
    why: str = ""


class Recovery:
    """One channel's recovery. Lives as long as one command, and its event loop.

    `rules` are the channel's; `clock` tells Unix seconds.
    """

    def __init__(
        self,
        channel: str,
        messages: TwilioList,
        gate: Gate,
        notebook: Notebook,
        rules: Rules,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._channel, self._messages = channel, messages
        self._gate, self._names = gate, Names(notebook)
        self._rules, self._clock = rules, clock

    async def run(self, seconds: float, *, take: bool, newest: int = 0) -> AsyncIterator[Found]:
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

    async def _found(self, message: Listed, paces: _Paces, *, take: bool) -> Found:
        there = Conversation(self._channel, message.sender)
        found = Found(message.sid, message.sent_at, there.id, "before")
        bare = Turn(message.sid, there, self._names.of(there) or message.sender, aliases=(message.sender,))
        if self._gate.stage(bare) != "unknown":
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
            case Stranger():
                return "on no list of who may talk"
        return ""

    def _taken(self, found: Found, turn: Turn) -> Found:
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
    if seconds > MOST_SECONDS:
        says = f"what was taken is remembered for {SEEN_MS // 3_600_000} h: what is older might run twice"
        raise SetupError(says, f"look back {MOST_SECONDS // 3600} h at most")


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
    turn = turn_of(channel, Form(urlencode(fields).encode()))
    if turn is None:
        return None
    late = f"sent at {datetime.fromtimestamp(message.sent_at, UTC):%Y-%m-%d %H:%M} UTC, and reached us only now"
    return replace(turn, notes=(*turn.notes, late))
