"""Typing sign, "still working", draft of an answer."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from math import ceil
from types import TracebackType
from typing import Any, Protocol, Self

from redis.exceptions import RedisError

from sayso.channels.base import Channel, RateLimit, RateLimited, SendError
from sayso.channels.i18n.texts import SpokenTexts
from sayso.channels.types import Delivery, Reply, shown_to
from sayso.pending.concurrency import offload
from sayso.pending.turns.queued import QueuedTurn

#: Seconds that a call which is under way may still take when the turn is over.
LAST_CALL_SECONDS = 3.0


class BackgroundTask:
    """Lives as long as one attempt at a turn. After `end` nothing of it reaches the platform any more."""

    def __init__(self) -> None:
        #: The turn is over: whoever comes back from a call makes no other.
        self.is_over = False
        self._calling = False
        self._task: asyncio.Task[Any] | None = None

    def begin(self, work: Coroutine[Any, Any, Any], *, with_a_call: bool = False) -> None:
        """Begin; `with_a_call` says that its first call is to be made however soon the turn is over."""
        self._task, self._calling = asyncio.create_task(work), with_a_call

    @contextmanager
    def calling(self) -> Iterator[None]:
        """A call is under way: broken off, nobody would know what it did."""
        self._calling = True
        try:
            yield
        finally:
            self._calling = False

    async def end(self, *, at_once: bool = False) -> None:
        """The turn is over; a call that is under way may end, unless all has to end `at_once`."""
        self.is_over, task = True, self._task
        if task is None:
            return
        if self._calling and not at_once:
            await asyncio.wait({task}, timeout=LAST_CALL_SECONDS)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


log = logging.getLogger(__name__)


#: Seconds for which it is noted which message shows a draft: until somebody takes up the turn of a dead worker.
KEEP_SECONDS = 3600


#: Of the messages a second that a channel may send, what one process shows of drafts at most.
DRAFT_SHARE = 0.25


#: The longest that a channel shows no drafts because its platform asked so: then it is asked again, as for replies.
MAX_REST_SECONDS = 86_400.0


class DraftNotes(Protocol):
    """Where it is noted which message shows a draft, for who takes the turn up, and that a platform asked to wait, for
    all processes: the notebook.
    """

    def get(self, key: str) -> str | None:
        """The value noted under `key`, or None."""

    def put(self, key: str, value: str, *, seconds: int) -> None:
        """Note a value for so long."""


class DraftRateLimiter:
    """Where the drafts of one channel take turns in this process, at least `gap` seconds apart: what is sent has the
    same limits, and comes first.
    """

    def __init__(self, gap: float = 0.0, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._gap = gap
        self._clock = clock
        self._free = 0.0

    @classmethod
    def of(cls, pace: RateLimit, *, clock: Callable[[], float] = time.monotonic) -> Self:
        """Drafts get a share of the channel's pace; where its platform names none, all go as slowly as one."""
        return cls(1 / (pace.per_second * DRAFT_SHARE) if pace.per_second else pace.draft_gap, clock=clock)

    async def turn(self, sleep: Callable[[float], Awaitable[None]]) -> None:
        """Wait until the next draft may be shown, and take that turn."""
        while (wait := self._free - self._clock()) > 0:
            await sleep(wait)
        self._free = self._clock() + self._gap

    def rest(self, seconds: float) -> None:
        """The platform asks to wait: all drafts do."""
        self._free = max(self._free, self._clock() + seconds)


class DraftMessage:
    """Lives as long as one attempt at a turn. Whoever is heard is never held up, and nothing of it fails the turn.

    The first is shown after one `gap`, in seconds, so that a quick answer needs none.
    """

    def __init__(
        self,
        channel: Channel,
        queued: QueuedTurn,
        notes: DraftNotes,
        *,
        gap: float,
        rate_limiter: DraftRateLimiter | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._channel = channel
        self._queued = queued
        self._notes = notes
        self._gap = gap
        self._rate_limiter = rate_limiter or DraftRateLimiter()
        self._sleep = sleep
        self._key = f"draft:{queued.turn.conversation.id}#{queued.seq}"
        self._resting = f"rest:{channel.name}"
        self._beside = BackgroundTask()
        self._changed = asyncio.Event()
        self._text = self._word = self._drawn = ""
        self._step_is_over = False
        #: The message that shows it, which the answer is to edit; "" for none.
        self.shown = ""

    async def __call__(self, piece: str) -> None:
        """The next piece of the answer."""
        if self._step_is_over:
            self._text, self._step_is_over = "", False
        self._text += piece
        self._changed.set()

    def anew(self) -> None:
        """The model calls tools: what it says next begins another text."""
        self._step_is_over = True

    def say(self, word: str) -> None:
        """Show this where nothing of the answer is there yet."""
        self._word = word
        self._changed.set()

    async def begin(self) -> None:
        """Look for the message of an attempt that died, and begin to show."""
        if self._queued.attempt > 1:
            with suppress(RedisError):
                noted = await offload(self._notes.get, self._key)
                self.shown = noted or ""
        self._beside.begin(self._show())

    async def end(self, *, at_once: bool = False) -> None:
        """From here on no draft is sent."""
        await self._beside.end(at_once=at_once)

    async def _show(self) -> None:
        pause: float | None = self._gap
        while pause is not None and not self._beside.is_over:
            await self._sleep(pause)
            await self._changed.wait()
            await self._rate_limiter.turn(self._sleep)
            self._changed.clear()
            with self._beside.calling():
                pause = await self._draw()

    async def _is_resting(self) -> bool:
        """Whether the platform asked another process to wait."""
        with suppress(RedisError):
            return await offload(self._notes.get, self._resting) is not None
        return False

    async def _draw(self) -> float | None:
        """Show it as it is now. Returns the seconds until the next time, None when there shall be none."""
        text = self._text if self._text.strip() else self._word
        if text in ("", self._drawn):
            return self._gap
        if await self._is_resting() or self._beside.is_over:
            self._changed.set()
            return self._gap
        try:
            shown = await self._channel.draft(self._queued.turn, text, self.shown)
        except RateLimited as exc:
            return await self._rest(min(exc.retry_after, MAX_REST_SECONDS))
        except SendError as exc:
            log.info("draft.ended", extra={"channel": self._channel.name, "reason": type(exc).__name__})
            return None
        except Exception:
            log.exception("draft.failed", extra={"channel": self._channel.name})
            return None
        self._drawn = text
        await self._note(shown)
        return self._gap

    async def _rest(self, seconds: float) -> float:
        """No draft of the channel is shown for so long, in any process; then the newest is."""
        self._rate_limiter.rest(seconds)
        self._changed.set()
        if seconds > 0:
            with suppress(RedisError):
                await offload(self._notes.put, self._resting, "1", seconds=ceil(seconds))
        return max(self._gap, seconds)

    async def _note(self, shown: str) -> None:
        """Where this worker dies, the next one goes on with the same message."""
        is_new, self.shown = shown not in ("", self.shown), shown
        if is_new:
            with suppress(RedisError):
                await offload(self._notes.put, self._key, shown, seconds=KEEP_SECONDS)


class ProgressIndicator:
    """Lives as long as one attempt at a turn: "typing" is kept up, and after `still_after` seconds (0: never) a word
    says that it takes longer, once.

    That word is the `draft`, where there is one and nothing is decided; the answer takes its place. Anywhere else it is
    a message of its own.
    """

    def __init__(
        self,
        channel: Channel,
        queued: QueuedTurn,
        words: Callable[[], SpokenTexts],
        *,
        draft: DraftMessage | None = None,
        still_after: float = 0.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._channel = channel
        self._queued = queued
        self._words = words
        self._draft = draft
        self._still_after = still_after
        self._sleep = sleep
        self._attending, self._telling = BackgroundTask(), BackgroundTask()
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
        sides: list[BackgroundTask | DraftMessage] = [
            self._attending,
            self._telling,
            *([self._draft] if self._draft else []),
        ]
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
