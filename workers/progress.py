"""What users see while their turn is under work.

ProgressIndicator shows the typing sign, and after a while a notice that the turn takes longer.
DraftMessage shows the answer while the model writes it, in a message that the answer then replaces.
StepsMessage shows which tools are called.

Their failures are only logged. The turn waits for them at its end only, for a call to the platform
that is under way: LAST_CALL_SECONDS, and as long again to show how the last tool calls ended.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from math import ceil
from types import TracebackType
from typing import Any, Self

from redis.exceptions import RedisError

from sayso.channels.base import (
    Channel,
    ConversationRateLimited,
    RateLimit,
    RateLimited,
    RemovesTyping,
    SendError,
    ShownState,
    ShowsState,
    ShowsSteps,
)
from sayso.channels.i18n.texts import Texts
from sayso.channels.markdown.outcome_signs import without_signs
from sayso.channels.types import Delivery, Reply, StepState, ToolStep, Turn, for_readers_of
from sayso.infra.concurrency import call_in_thread
from sayso.infra.metrics import MESSAGES
from sayso.infra.redis.shared_cache import SharedCache
from sayso.pending.turns import LeaseLost, QueuedTurn

#: How many seconds a call to the platform that is under way may still take when the turn is over.
LAST_CALL_SECONDS = 3.0
#: Seconds between the first piece of an answer and its first draft. A model writes a few words in
#: this time, and a short answer is whole, so it needs no draft.
FIRST_WORDS_SECONDS = 0.05
#: Seconds between the first tool call and when it is shown: most calls have ended by then, and are
#: written once.
FIRST_STEP_SECONDS = 0.1
#: Seconds between two times that the tool calls of a turn are shown.
STEP_GAP_SECONDS = 0.25
#: The most tool calls of one turn that are shown.
MAX_STEPS = 50
#: The longest name of a tool that is shown, in characters: a model may invent one.
MAX_STEP_NAME = 64
#: For how many seconds it is remembered which message shows a draft, so that the next worker finds
#: the draft of a dead one.
KEEP_SECONDS = 3600
#: The largest share of a channel's messages a second that one process uses for drafts.
DRAFT_SHARE = 0.25
#: The longest pause of a channel's drafts that a platform can ask for, in seconds. After a day
#: drafts are tried again, as replies are.
MAX_PAUSE_SECONDS = 86_400.0

log = logging.getLogger(__name__)


class BackgroundTask:
    """A task that calls the platform while a turn is under work. Lives for one attempt at the turn.

    After `end` it makes no more calls.
    """

    def __init__(self) -> None:
        #: Whether the turn is over: then no further call is made.
        self.is_over = False
        #: Whether a call to the platform is under way, or about to begin, that should not be
        #: cancelled.
        self._calling = False
        self._task: asyncio.Task[Any] | None = None

    def begin(self, work: Coroutine[Any, Any, Any], *, with_a_call: bool = False) -> None:
        """Start the task.

        With `with_a_call` it makes its first call even if the turn is over at once: it counts as
        calling from now on, so `end` waits for that call.
        """
        self._task = asyncio.create_task(work)
        self._calling = with_a_call

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Mark a call as under way: if it were cancelled, its result would be unknown."""
        self._calling = True
        try:
            yield
        finally:
            self._calling = False

    def end_without_waiting(self) -> asyncio.Task[Any] | None:
        """Cancel the task, unless a call is under way. Then return the task, else None.

        The caller may wait for the returned task, and must cancel it.
        """
        self.is_over = True
        if self._task is None or self._task.done():
            return None
        if self._calling:
            return self._task
        self._task.cancel()
        return None

    async def end(self, *, at_once: bool = False) -> None:
        """End the task. A call that is under way may finish, unless `at_once` is set."""
        self.is_over = True
        task = self._task
        if task is None:
            return
        if self._calling and not at_once:
            await asyncio.wait({task}, timeout=LAST_CALL_SECONDS)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class DraftRateLimiter:
    """Limits how often this process shows drafts on one channel. One per channel and process.

    Drafts get a share of the channel's rate, because replies come first. On a channel without a
    rate, all turns together show one draft in a `draft_gap`.
    """

    def __init__(self, limit: RateLimit, *, clock: Callable[[], float] = time.monotonic) -> None:
        if limit.per_second:
            self._gap = 1 / (limit.per_second * DRAFT_SHARE)
        else:
            self._gap = limit.draft_gap
        self._clock = clock
        #: When the next draft may be shown, by the clock.
        self._free_at = 0.0

    async def book_slot(self, sleep: Callable[[float], Awaitable[None]]) -> None:
        """Wait until the next draft may be shown, and book that slot.

        `sleep` waits for a number of seconds.
        """
        # Another draft may take the slot during the sleep.
        while True:
            wait = self._free_at - self._clock()
            if wait <= 0:
                break
            await sleep(wait)
        self._free_at = self._clock() + self._gap

    def pause(self, seconds: float) -> None:
        """Show no draft for this many seconds, because the platform asks to wait."""
        self._free_at = max(self._free_at, self._clock() + seconds)


class DraftMessage:
    """The draft of an answer, for one attempt at a turn. Call it with each piece of the answer.

    It is shown with the first words, and then at most once in the `draft_gap` of the channel. It is
    not shown before the `draft_delay` of the channel is over.
    """

    def __init__(
        self,
        channel: Channel,
        queued: QueuedTurn,
        notes: SharedCache,
        *,
        limit: RateLimit,
        rate_limiter: DraftRateLimiter,
        before_first: Callable[[], Awaitable[None]] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Show nothing yet; `begin` does.

        * `notes`: tell all processes which message shows a draft, and that a platform asked to
          wait.
        * `limit`: that of the channel in this conversation.
        * `rate_limiter`: that of all drafts of the channel.
        * `before_first`: awaited before the first words of an answer are shown, None for nothing.
          While it fails, no words are shown.
        """
        self._channel = channel
        self._queued = queued
        self._notes = notes
        self._gap = limit.draft_gap
        self._delay = limit.draft_delay
        #: Whether the draft also shows the notice that a turn takes longer.
        self.takes_notice = limit.notice_in_draft
        self._rate_limiter = rate_limiter
        self._before_first = before_first
        self._sleep = sleep
        #: The keys of two entries in `notes`: which message shows this draft, and that the platform
        #: asked to wait with all drafts of the channel.
        self._key = f"draft:{queued.turn.conversation.id}#{queued.seq}"
        self._pause_key = f"draft_pause:{channel.name}"
        self._task = BackgroundTask()
        #: Set while there is something that the message does not show yet.
        self._changed = asyncio.Event()
        #: The answer so far; "" before its first piece.
        self._text = ""
        #: The notice that the turn takes longer; "" before it is due.
        self._notice_text = ""
        #: What the message shows now; "" before it was sent.
        self._shown_text = ""
        #: Whether the next piece begins a new text.
        self._begins_anew = False
        #: The platform's id of the message with the draft, which the answer is to replace; "" for
        #: none.
        self.message_id = ""

    async def __call__(self, piece: str) -> None:
        """Add the next piece of the answer."""
        if self._begins_anew:
            self._text = ""
            self._begins_anew = False
        self._text += piece
        if self._text.strip():
            self._changed.set()

    def anew(self) -> None:
        """Begin a new text with the next piece.

        The text so far is not the answer: the model calls tools, or its answer broke off.
        """
        self._begins_anew = True

    def show_notice(self, text: str) -> None:
        """Show this notice that the turn takes longer, until there is text of the answer."""
        self._notice_text = text
        self._changed.set()

    async def begin(self) -> None:
        """Look up the message of an attempt that died, and begin to show the draft."""
        if self._queued.attempt > 1:
            with suppress(RedisError):
                message_id = await call_in_thread(self._notes.get, self._key)
                self.message_id = message_id or ""
        self._task.begin(self._keep_showing())

    async def end(self, *, at_once: bool = False) -> None:
        """Send no more drafts."""
        await self._task.end(at_once=at_once)

    async def _keep_showing(self) -> None:
        """Show the draft each time that it has changed, until the turn is over."""
        if self._delay > 0:
            await self._sleep(self._delay)
        await self._changed.wait()
        # Seconds until the draft may be shown next. None: never again, because showing it failed.
        wait_seconds: float | None = FIRST_WORDS_SECONDS
        while wait_seconds is not None and not self._task.is_over:
            await self._sleep(wait_seconds)
            await self._changed.wait()
            await self._rate_limiter.book_slot(self._sleep)
            self._changed.clear()
            with self._task.calling():
                wait_seconds = await self._show_now()

    async def _show_now(self) -> float | None:
        """Show the draft as it is now.

        Return after how many seconds it may be shown again, None for never again.
        """
        text = self._notice_text
        if self._text.strip():
            text = without_signs(self._text)
        if text in ("", self._shown_text):
            return self._gap

        # The turn may end during these calls. In all three cases the text waits for the next time.
        if await self._is_paused() or self._task.is_over or not await self._may_show(text):
            self._changed.set()
            return self._gap
        try:
            message_id = await self._channel.draft(self._queued.turn, text, self.message_id)
        except ConversationRateLimited as exc:
            self._changed.set()
            return max(self._gap, min(exc.retry_after, MAX_PAUSE_SECONDS))
        except RateLimited as exc:
            return await self._pause_channel(min(exc.retry_after, MAX_PAUSE_SECONDS))
        except SendError as exc:
            log.info("draft.ended", extra={"reason": type(exc).__name__})
            return None
        except RedisError:
            # Nothing was shown: the adapter could not read a token, for example.
            self._changed.set()
            return self._gap
        except Exception:
            log.exception("draft.failed")
            return None

        is_new = message_id not in ("", self.message_id)
        self.message_id = message_id
        self._shown_text = text
        # The next worker continues with this message if this one dies.
        if is_new:
            with suppress(RedisError):
                await call_in_thread(self._notes.put, self._key, message_id, seconds=KEEP_SECONDS)
        return self._gap

    async def _is_paused(self) -> bool:
        """Return whether the platform has asked this or another process to wait with drafts.

        If Redis does not answer, the draft is shown. The platform then says itself that it must
        wait.
        """
        try:
            return await call_in_thread(self._notes.get, self._pause_key) is not None
        except RedisError:
            return False

    async def _may_show(self, text: str) -> bool:
        """Return whether a text may be shown now.

        Before the first text of the answer, `before_first` must succeed once. In a group it stores
        that a text will stand below the last question. From then on a plain yes may be meant for
        that text. A notice asks nothing, so it needs no such note.
        """
        if self._before_first is None or text == self._notice_text:
            return True
        try:
            await self._before_first()
        except (RedisError, LeaseLost):
            return False
        self._before_first = None
        return True

    async def _pause_channel(self, seconds: float) -> float:
        """Show no draft of the channel for this many seconds, in any process.

        Return after how many seconds this draft may be shown again.
        """
        self._rate_limiter.pause(seconds)
        self._changed.set()
        if seconds > 0:
            with suppress(RedisError):
                await call_in_thread(self._notes.put, self._pause_key, "1", seconds=ceil(seconds))
        return max(self._gap, seconds)


class StepsMessage:
    """Shows which tools a turn calls, on a channel that shows them. For one attempt at the turn.

    A call that still runs when the attempt ends was stopped with it. Of more than MAX_STEPS calls
    the first are shown.
    """

    def __init__(
        self,
        channel: ShowsSteps,
        turn: Turn,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._channel = channel
        self._turn = turn
        self._clock = clock
        self._sleep = sleep
        #: When each call began, by the clock. The key is the number of the call in the turn.
        self._began_at: dict[int, float] = {}
        #: How each call is shown, by its number.
        self._steps: dict[int, ToolStep] = {}
        self._task = BackgroundTask()
        #: Set while a call has changed that the message does not show yet.
        self._changed = asyncio.Event()
        #: Whether the calls could not be shown the last time. Then the message says less than it
        #: should, so it is shown once more at the end of the turn.
        self._has_failed = False
        #: The platform's id of the message with the calls, "" for none.
        self._message_id = ""

    def note(self, number: int, name: str, state: StepState | None) -> None:
        """Note that a call is "running", or how it ended; None takes the call back.

        `number` is that of the call in the turn (see `OnStep`).
        """
        has_room = number in self._steps or len(self._steps) < MAX_STEPS
        if state is None:
            self._steps.pop(number, None)
        elif has_room:
            now = self._clock()
            if state == "running":
                self._began_at[number] = now
            seconds = now - self._began_at.get(number, now)
            self._steps[number] = ToolStep(name[:MAX_STEP_NAME], state, seconds)
        self._changed.set()

    def begin_showing(self) -> None:
        """Begin to show the calls."""
        self._task.begin(self._keep_showing())

    async def end_showing(self, *, at_once: bool = False) -> None:
        """Show how the calls ended, unless `at_once` is set, and stop."""
        await self._task.end(at_once=at_once)
        for number, step in self._steps.items():
            if step.state == "running":
                seconds = self._clock() - self._began_at[number]
                self._steps[number] = replace(step, state="stopped", seconds=seconds)
                self._changed.set()
        is_outdated = self._changed.is_set() or self._has_failed
        if is_outdated and not at_once:
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_CALL_SECONDS):
                    await self._show_now()

    async def _keep_showing(self) -> None:
        """Show the calls each time that they have changed, until the turn is over."""
        await self._changed.wait()
        await self._sleep(FIRST_STEP_SECONDS)
        while not self._task.is_over:
            await self._changed.wait()
            with self._task.calling():
                await self._show_now()
            await self._sleep(STEP_GAP_SECONDS)

    async def _show_now(self) -> None:
        """Show the calls as they are now."""
        self._changed.clear()
        # The only call was taken back before the message was sent. A message that was sent must be
        # updated even if it shows no call any more.
        if not (self._steps or self._message_id):
            return

        now = self._clock()
        steps = []
        for number, step in sorted(self._steps.items()):
            if step.state == "running":
                steps.append(replace(step, seconds=now - self._began_at[number]))
            else:
                steps.append(step)

        self._has_failed = False
        try:
            self._message_id = await self._channel.show_steps(self._turn, steps, self._message_id)
        except SendError as exc:
            self._has_failed = True
            log.info("steps.not_shown", extra={"reason": type(exc).__name__})
        except Exception:
            self._has_failed = True
            log.exception("steps.failed")


class ProgressIndicator:
    """Shows that a turn is under work, inside of an `async with` block.

    It is for one attempt at the turn. It shows the typing sign, and once the notice that the turn
    takes longer: in the draft (see `_begin_notice`), or as a separate message.
    """

    def __init__(
        self,
        channel: Channel,
        queued: QueuedTurn,
        texts: Callable[[], Texts],
        *,
        draft: DraftMessage | None = None,
        steps: StepsMessage | None = None,
        notice_after: float = 0.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Show nothing yet; the `async with` block does.

        * `texts`: returns the texts in the language of the turn.
        * `draft`, `steps`: shown meanwhile, None for none.
        * `notice_after`: after how many seconds the notice is shown, 0 for never.
        """
        self._channel = channel
        self._queued = queued
        self._texts = texts
        self._draft = draft
        self._steps = steps
        self._notice_after = notice_after
        self._sleep = sleep
        self._typing = BackgroundTask()
        self._notice = BackgroundTask()
        self._notice_timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        """Begin to show that the turn is under work."""
        if self._draft:
            await self._draft.begin()
        if self._steps:
            self._steps.begin_showing()
        # A tap on another person's button is answered at once, over the button. Others in the group
        # would only see that the bot types, and no message after it.
        if not self._is_foreign_tap():
            self._typing.begin(self._keep_typing(), with_a_call=True)
        if self._notice_after:
            loop = asyncio.get_running_loop()
            self._notice_timer = loop.call_later(self._notice_after, self._begin_notice)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End all that is shown. What the platform got after the answer would stay there.

        If the attempt failed, calls under way are cancelled: the next attempt need not wait.
        """
        if self._notice_timer:
            self._notice_timer.cancel()

        has_failed = kind is not None
        ends = [self._notice.end(at_once=has_failed)]
        if self._draft:
            ends.append(self._draft.end(at_once=has_failed))
        # Where the sign must be removed, the caller calls `end_signs`, which ends it.
        if has_failed or not isinstance(self._channel, RemovesTyping):
            ends.append(self._typing.end(at_once=has_failed))
        if self._steps:
            ends.append(self._steps.end_showing(at_once=has_failed))
        await asyncio.gather(*ends)

    async def end_signs(self, *, replied: bool, state: ShownState | None = None) -> None:
        """Remove the typing sign and show the state of the conversation, where a channel has them.

        It is called after the block, in the background: no reply waits for it. It is not called if
        the attempt failed, because the next attempt shows the sign again.

        * `replied`: whether the turn's reply is a new message.
        * `state`: the state of the conversation, None if it is shown later.
        """
        channel = self._channel
        if not isinstance(channel, RemovesTyping | ShowsState) or self._is_foreign_tap():
            return
        under_way = self._typing.end_without_waiting()
        if under_way is not None:
            await asyncio.wait({under_way}, timeout=LAST_CALL_SECONDS)
            under_way.cancel()

        # A failure is ignored, as a failure of the sign itself is.
        turn = self._queued.turn
        with suppress(Exception):
            async with asyncio.timeout(LAST_CALL_SECONDS):
                if isinstance(channel, RemovesTyping):
                    # A reply ends the sign, but not a sign that the platform got after it.
                    ended_by_reply = replied and under_way is None
                    await channel.remove_typing(turn, replied=ended_by_reply)
                if isinstance(channel, ShowsState) and state is not None:
                    await channel.show_state(turn.conversation, state, after=turn.event_id)

    def _is_foreign_tap(self) -> bool:
        """Return whether the turn is a tap in a group on the button of another person.

        The person of an action is "" if its record cannot be read. Then no tap is foreign.
        """
        turn = self._queued.turn
        tapped = self._queued.tapped_action
        if not (turn.in_group and turn.tap) or tapped is None:
            return False
        return tapped.action.user_id not in ("", turn.user_id)

    async def _keep_typing(self) -> None:
        """Show the typing sign again and again, and at least once: that acknowledges a tap."""
        while True:
            with self._typing.calling():
                seconds = await self._channel.show_typing(self._queued.turn)
            # 0: the platform shows the sign until the reply, or not at all.
            if seconds <= 0 or self._typing.is_over:
                return
            await self._sleep(seconds)

    def _begin_notice(self) -> None:
        """Show the notice that the turn takes longer.

        It is shown in the draft, which the answer then replaces, if the draft takes notices. If the
        turn may decide an action, the notice is a separate message: the outcome would replace it
        with an edit, and platforms do not notify people of edits.
        """
        may_decide = self._queued.open_action or self._queued.tapped_action
        if self._draft and self._draft.takes_notice and not may_decide:
            self._draft.show_notice(self._texts().still_working())
        else:
            self._notice.begin(self._send_notice())

    async def _send_notice(self) -> None:
        """Send the notice as a message.

        It is not in the outbox, so it has no number there, and its status is not tracked.
        """
        queued = self._queued
        conversation = queued.turn.conversation
        reply = for_readers_of(queued.turn, Reply(self._texts().still_working()))
        delivery = Delivery(
            f"{conversation.id}#still{queued.seq}",
            conversation,
            reply,
            attempt=queued.attempt,
            silence=queued.age + self._notice_after,
        )
        try:
            with self._notice.calling():
                receipt = await self._channel.send(delivery)
            MESSAGES.labels(self._channel.name, receipt.price_class).inc()
        except SendError as exc:
            log.info("still_working.not_sent", extra={"reason": type(exc).__name__})
        except Exception:
            log.exception("still_working.failed")
