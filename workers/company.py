"""Company: lets a person see that their turn is worked on, for as long as it is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

from sayso.channels.base import Channel, SendError
from sayso.channels.types import Delivery, Reply, shown_to
from sayso.workers.beside import Beside
from sayso.workers.drafts import Draft
from sayso.workers.lane import QueuedTurn
from sayso.workers.words import Words

log = logging.getLogger(__name__)


class Company:
    """Lives as long as one attempt at a turn: "typing" is kept up, and after `still_after` seconds (0: never) a word
    says that it takes longer, once.

    That word is the `draft`, where there is one and nothing is decided; the answer takes its place. Anywhere else it is
    a message of its own.
    """

    def __init__(
        self,
        channel: Channel,
        queued: QueuedTurn,
        words: Callable[[], Words],
        *,
        draft: Draft | None = None,
        still_after: float = 0.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._channel = channel
        self._queued = queued
        self._words = words
        self._draft = draft
        self._still_after = still_after
        self._sleep = sleep
        self._attending, self._telling = Beside(), Beside()
        self._due: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        """Begin."""
        if self._draft:
            await self._draft.begin()
        self._attending.begin(self._attend(), with_a_call=True)
        if self._still_after:
            self._due = asyncio.get_running_loop().call_later(self._still_after, self._begin_to_tell)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all of it: what came after the answer would stay."""
        if self._due:
            self._due.cancel()
        sides: list[Beside | Draft] = [self._attending, self._telling, *([self._draft] if self._draft else [])]
        await asyncio.gather(*(side.end(at_once=kind is not None) for side in sides))

    async def _attend(self) -> None:
        while True:  # once in any case: a tap is to be acknowledged
            with self._attending.calling():
                again = await self._channel.attend(self._queued.turn)
            if again <= 0 or self._attending.is_over:
                return
            await self._sleep(again)

    def _begin_to_tell(self) -> None:
        decides = self._queued.live or self._queued.tapped
        if self._draft and not decides:
            self._draft.say(self._words().still_working())
        else:
            self._telling.begin(self._tell())

    async def _tell(self) -> None:
        """Its id is no delivery's: nobody asks what became of it."""
        queued, there = self._queued, self._queued.turn.conversation
        reply = shown_to(queued.turn, Reply(self._words().still_working()))
        silence = queued.age + self._still_after
        delivery = Delivery(f"{there.id}#still{queued.seq}", there, reply, queued.attempt, silence)
        try:
            with self._telling.calling():
                await self._channel.send(delivery)
        except SendError as exc:
            log.info("still.not_told", extra={"conversation": there.id, "reason": type(exc).__name__})
        except Exception:
            log.exception("still.failed", extra={"conversation": there.id})
