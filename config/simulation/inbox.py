"""Inbox: what arrived in one person's chat, when, and which of the person's acts it speaks of."""

from __future__ import annotations

import asyncio
import re
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sayso.config.simulation.verdict import DONE, Reader, Telling

#: Seconds between two looks at the platforms.
LOOK_SECONDS = 0.01

#: The calls that show "typing", and where they name the chat.
_SIGNS = {"sendChatAction": "chat_id", "assistant.threads.setStatus": "channel_id"}
_TURN = re.compile(r"\bt(\d+)\b")
_INSTEAD = re.compile(r"I was interrupted while sending t(\d+)\.")


@dataclass(frozen=True, slots=True)
class Heard:
    """One message as a person reads it: the turns it answers in words and by file, and what it says of which bill."""

    at: float
    text: str
    buttons: tuple[str, ...]
    turns: frozenset[int]
    files: frozenset[int]
    bill: str
    telling: Telling

    @property
    def speaks_of_bill(self) -> bool:
        """Whether it tells something of a bill."""
        return bool(self.bill) and self.telling.kind != "odd"


class Inbox:
    """One chat. Written and read on the people's event loop only. `signs` are the moments of "typing"."""

    def __init__(self, done: str = DONE) -> None:
        self.heard: list[Heard] = []
        self.signs: list[float] = []
        self._reader = Reader(done)
        self._new = asyncio.Event()

    def add(self, sent: Mapping[str, Any], at: float) -> None:
        """Read one message as the platform got it."""
        *others, (bill, telling) = self._reader.read(sent["text"])
        for other, aside in others:  # it speaks of an older question by the way
            self.heard.append(Heard(at, aside.text, (), frozenset(), frozenset(), other, aside))
        instead = _numbers(_INSTEAD, telling.text)
        named = (sent["media"] or {}).get("filename", "")
        self.heard.append(
            Heard(
                at,
                sent["text"],
                tuple(button["data"] for button in sent["buttons"]),
                _numbers(_TURN, telling.text) - instead,
                _numbers(_TURN, named.replace(".", " ")) | instead,
                bill,
                telling,
            )
        )
        self._new.set()

    async def until(self, seen: Callable[[Sequence[Heard]], bool], seconds: float) -> bool:
        """Wait until enough was heard. Whether it was, in so many seconds."""
        deadline = time.monotonic() + seconds
        while not seen(self.heard):
            self._new.clear()
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    await self._new.wait()
            except TimeoutError:
                return seen(self.heard)
        return True


async def follow(sent: Callable[[], Sequence[Mapping[str, Any]]], inboxes: Mapping[str, Inbox]) -> None:
    """Put everything that arrives at the platforms in its inbox, until cancelled."""
    read = 0
    while True:
        for message in sent()[read:]:
            read += 1
            if message["chat"] in inboxes:
                inboxes[message["chat"]].add(message, time.monotonic())
        await asyncio.sleep(LOOK_SECONDS)


async def follow_signs(calls: Callable[[], Sequence[Mapping[str, Any]]], inboxes: Mapping[str, Inbox]) -> None:
    """Note every "typing" that a platform showed, until cancelled."""
    read = 0
    while True:
        for call in calls()[read:]:
            read += 1
            chat = str(call["params"].get(_SIGNS[call["method"]])) if call["method"] in _SIGNS else ""
            if chat in inboxes:
                inboxes[chat].signs.append(time.monotonic())
        await asyncio.sleep(LOOK_SECONDS)


def about(heard: Sequence[Heard], bill: str) -> list[Heard]:
    """What was heard of one bill."""
    return [each for each in heard if each.bill == bill and each.speaks_of_bill]


def by_bill(heard: Sequence[Heard]) -> dict[str, list[Heard]]:
    """What was heard, by bill."""
    sorted_: dict[str, list[Heard]] = defaultdict(list)
    for each in heard:
        if each.speaks_of_bill:
            sorted_[each.bill].append(each)
    return sorted_


def _numbers(pattern: re.Pattern[str], text: str) -> frozenset[int]:
    return frozenset(map(int, pattern.findall(text)))
