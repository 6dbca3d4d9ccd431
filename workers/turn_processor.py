"""TurnProcessor: answers one turn of a conversation whose lease this worker holds, and commits it.

A turn is answered in four steps:

1. what it needs is fetched: files, a quoted message;
2. the agent answers;
3. the replies are fitted to the platform;
4. one script commits all that the turn changes.

Meanwhile the platform shows that an answer is coming: a typing sign, a notice, a draft of the text,
the tool calls (`progress.py`). ConversationProcessor decides which turn is next.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from redis.exceptions import RedisError

from sayso.channels.base import (
    Channel,
    HasAliases,
    RemovesTyping,
    SendError,
    ShownState,
    ShowsState,
    ShowsSteps,
)
from sayso.channels.i18n.texts import Texts, TextsForTurn
from sayso.channels.types import Reply, for_readers_of
from sayso.infra import tracing
from sayso.infra.concurrency import call_in_thread
from sayso.infra.metrics import CONTINUATIONS, MAILBOX_SECONDS, TURN_SECONDS, TURNS
from sayso.infra.redis.connections import Halted
from sayso.infra.redis.shared_cache import SharedCache
from sayso.pending.approvals.requests import is_request
from sayso.pending.stored_action import WAITING_STATES
from sayso.pending.turn_changes import END_OF_QUESTION, TurnChange, TurnEnd, TurnReply
from sayso.pending.turns import (
    CHOICE_KIND,
    JournalUnreadable,
    Lease,
    LeaseLost,
    NextItem,
    QueuedTurn,
    StaleTurn,
    TurnHandler,
)
from sayso.workers.lease import HeldLease, StateAtEnd
from sayso.workers.mailbox import RedisMailbox
from sayso.workers.progress import (
    LAST_CALL_SECONDS,
    BackgroundTask,
    DraftMessage,
    DraftRateLimiter,
    ProgressIndicator,
    StepsMessage,
)
from sayso.workers.replies import (
    fit_forwards,
    has_new_message,
    replace_draft,
    split_replies,
)
from sayso.workers.turn_fetcher import TurnFetcher

log = logging.getLogger(__name__)

#: How many seconds a turn may take. Then it ends, and the user is told.
TURN_TIMEOUT = 120.0
#: How often a turn is begun: a turn that kills its worker must not do so forever.
MAX_TURN_ATTEMPTS = 10
#: After how many seconds a user is told that their turn takes longer.
NOTICE_AFTER = 30.0
#: How many characters of replies are split on the event loop: that takes about 50 ms in the worst
#: case. Longer replies are split in a thread.
LONG_CHARS = 5_000


@dataclass(frozen=True, slots=True)
class TurnProcessor:
    """Answers turns and commits what they change. One instance serves a whole worker.

    Its methods are the steps of one turn, and the signs that the platform shows meanwhile.
    """

    mailbox: RedisMailbox
    #: The adapters, by the name of the channel.
    channels: Mapping[str, Channel]
    #: What answers the turns, by the name of the channel.
    agents: Mapping[str, TurnHandler]
    #: The texts in the language of a turn.
    texts_for: TextsForTurn
    #: Notes for all workers: in which message an answer is shown while it is generated.
    notes: SharedCache
    #: Fetches the files of a turn, and the message that it quotes.
    fetcher: TurnFetcher = field(default_factory=TurnFetcher)
    #: How long a turn may take, in seconds.
    turn_timeout: float = TURN_TIMEOUT
    #: Whether plain messages in a row are answered as one.
    joins: bool = False
    #: After how many seconds people are told that their turn takes longer, 0 for never.
    notice_after: float = NOTICE_AFTER
    #: The channels that show an answer while it is generated.
    streams: Collection[str] = frozenset()
    #: The channels whose platform takes money for each message.
    paid_channels: Collection[str] = frozenset()
    #: A monotonic clock, in seconds.
    clock: Callable[[], float] = time.monotonic
    #: The rate limiter of drafts, by channel.
    _draft_limiters: dict[str, DraftRateLimiter] = field(default_factory=dict)
    #: The tasks that remove typing signs and show states of conversations. The event loop itself
    #: would not keep them alive.
    _sign_tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def knows(self, channel: str) -> bool:
        """Return whether this worker has an adapter or an agent for the channel of this name."""
        return channel in self.channels or channel in self.agents

    async def process(self, held: HeldLease, queued: QueuedTurn) -> NextItem:
        """Answer a turn, commit what it changes, and count it. Return what is next.

        Turns behind it may be answered together with it. Raises LeaseLost, StaleTurn and
        RedisError: then the next worker tries the turn again.
        """
        queued = self._joined(queued)
        channel_name = queued.turn.conversation.channel
        started_at = self.clock()
        parent = queued.turn.trace
        attributes: dict[str, str | int] = {
            tracing.CHANNEL: channel_name,
            tracing.CONVERSATION: held.lease.conversation,
            tracing.SEQ: queued.seq,
            tracing.ATTEMPT: queued.attempt,
        }
        if queued.attempt == 1:
            MAILBOX_SECONDS.labels(channel_name).observe(max(0.0, queued.age))
            tracing.record_wait("wait in mailbox", queued.age, parent=parent, attributes=attributes)
        held.begin(queued)

        links = [turn.trace for turn in queued.parts[1:]]
        if queued.tapped_action and _links_to_proposal(queued):
            links.append(queued.tapped_action.trace)
        name = f"turn {channel_name}"
        with tracing.span(
            name, parent=parent, links=links, kind="consumer", attributes=attributes
        ) as span:
            following = await self._answer_and_commit(held, queued, span)
        TURN_SECONDS.labels(channel_name).observe(self.clock() - started_at)
        return following

    def _joined(self, queued: QueuedTurn) -> QueuedTurn:
        """Return the turn merged with those behind it that are answered together with it."""
        agent = self.agents.get(queued.turn.conversation.channel)
        if not queued.following or agent is None or queued.is_stopped:
            return queued
        # The turns that the first attempt answered together stay together.
        if queued.journal:
            return queued.merge_journalled()
        if queued.turn.group:
            return queued.merge_album()
        # A turn that kills its worker must do so alone, so texts are joined only at first.
        if self.joins and queued.attempt == 1:
            return queued.merge_texts(agent.is_answer)
        return queued

    async def _answer_and_commit(
        self, held: HeldLease, queued: QueuedTurn, span: tracing.AnySpan
    ) -> NextItem:
        """Answer a turn, commit what it changes, and return what is next."""
        draft = None
        channel = self._channel_for_progress(queued)
        if channel is None:
            change = await self._answer(held, queued)
        else:
            draft = self._draft(held.lease, queued, channel)
            change = await self._answer_with_progress(held, queued, channel, draft)

        span.set_attribute(tracing.OUTCOME, change.ended or "answered")
        try:
            return await self._commit(held.lease, queued, change, draft)
        except StaleTurn as exc:
            span.set_attribute(tracing.OUTCOME, "stale")
            log.warning("turn.stale", extra={"reason": str(exc)})
            change = await self._give_up(
                held.lease, queued, self.texts_for(queued.turn).broken(), "stale"
            )
            return await self._commit(held.lease, queued, change, draft)

    def _channel_for_progress(self, queued: QueuedTurn) -> Channel | None:
        """Return the channel that shows that an answer is coming, None if nothing may show it."""
        is_stopped_before_work = queued.is_stopped and queued.attempt == 1
        agent = self.agents.get(queued.turn.conversation.channel)
        gets_no_answer = agent is not None and not agent.needs_answer(queued)
        if is_stopped_before_work or gets_no_answer:
            return None
        return self.channels.get(queued.turn.conversation.channel)

    async def _answer_with_progress(
        self, held: HeldLease, queued: QueuedTurn, channel: Channel, draft: DraftMessage | None
    ) -> TurnChange:
        """Return what a turn changes, and show meanwhile that an answer is coming.

        `draft` is the message for the text, or for the notice that the turn takes longer; None for
        neither.
        """
        steps = None
        if isinstance(channel, ShowsSteps):
            steps = StepsMessage(channel, queued.turn)
        notice_after = self.notice_after
        if channel.name in self.paid_channels:
            # Where each message costs money, the typing sign says the same, and costs nothing.
            notice_after = 0.0
        progress = ProgressIndicator(
            channel,
            queued,
            partial(self.texts_for, queued.turn),
            draft=draft,
            steps=steps,
            notice_after=notice_after,
        )
        streamed = draft if channel.name in self.streams else None
        async with progress:
            change = await self._answer(held, queued, streamed, steps)

        if isinstance(channel, RemovesTyping | ShowsState):
            shows_draft = draft is not None and bool(draft.message_id)
            replied = has_new_message(change) and not shows_draft
            state = self._state_to_show_now(held, queued, change)
            self._begin_sign_task(progress.end_signs(replied=replied, state=state))
        return change

    def _state_to_show_now(
        self, held: HeldLease, queued: QueuedTurn, change: TurnChange
    ) -> ShownState | None:
        """Return the state that the platform shows of the conversation after a turn.

        Whether a question waits is known only once the replies are sent. So after a turn that may
        ask, return None, and note the state for `begin_to_show_state`.
        """
        end = state_after(queued, change)
        if may_ask(queued, change):
            held.state_at_end = end
            return None
        held.state_at_end = None
        return end.state

    def _draft(self, lease: Lease, queued: QueuedTurn, channel: Channel) -> DraftMessage | None:
        """Return the message that shows the answer while it is written, None without drafts.

        On a channel outside of `streams` the message shows only the notice that a turn takes
        longer.
        """
        limit = channel.rate_limit(queued.turn.conversation)
        if limit.draft_gap <= 0 or queued.turn.ephemeral:
            return None

        rate_limiter = self._draft_limiters.get(channel.name)
        if rate_limiter is None:
            rate_limiter = DraftRateLimiter(limit)
            self._draft_limiters[channel.name] = rate_limiter
        # In a group, a draft of another person's turn stands below the question: a yes may then be
        # meant for the draft.
        before_first = None
        if queued.turn.in_group:
            before_first = partial(self.mailbox.follow_question, lease)
        return DraftMessage(
            channel,
            queued,
            self.notes,
            limit=limit,
            rate_limiter=rate_limiter,
            before_first=before_first,
        )

    async def _answer(
        self,
        held: HeldLease,
        queued: QueuedTurn,
        draft: DraftMessage | None = None,
        steps: StepsMessage | None = None,
    ) -> TurnChange:
        """Return what a turn changes: the agent's answer, or why there is none.

        `draft` shows the text while it is written, and `steps` the tool calls; None where that is
        not shown. Raises LeaseLost, StaleTurn and RedisError: then the next worker tries the turn
        again.
        """
        lease = held.lease
        texts = partial(self.texts_for, queued.turn)
        channel = self.channels.get(queued.turn.conversation.channel)
        agent = self.agents.get(queued.turn.conversation.channel)
        if agent is None:
            return self._change_with_text(queued, texts().channel_gone(), "channel_gone")
        given_up = _reply_without_agent(queued, texts)
        if given_up is not None:
            return await self._give_up(lease, queued, *given_up)
        try:
            may_settle = agent.may_settle(queued)
            async with held.working_on(queued, self.turn_timeout, may_be_stopped=not may_settle):
                if await self._forward(queued):
                    return TurnChange(ended="forwarded")
                # Of the message that a yes quotes, the id is enough.
                if not may_settle:
                    queued = await self.fetcher.with_quote(queued, channel)
                queued = await self.fetcher.with_files(queued, channel)
                on_step = steps.note if steps else None
                return await agent.answer(queued, lease, draft, on_step)
        except TimeoutError:
            if held.stop_seq > queued.seq:
                log.info("turn.stopped")
                return await self._give_up(lease, queued, "", "stopped")
            log.error("turn.timeout")
            return await self._give_up(lease, queued, texts().too_long(), "timeout")
        except JournalUnreadable as exc:
            # Without a traceback, which may quote the user.
            log.error("turn.unreadable", extra={"reason": str(exc)})
            return await self._give_up(lease, queued, texts().interrupted_before(), "unreadable")
        except (LeaseLost, StaleTurn, RedisError):
            # The state of the turn is not known, so nothing is said. The next worker tries it
            # again.
            raise
        except Exception:
            # Whatever a tool or a model broke, the user gets a reply and the next turn goes on.
            log.exception("turn.failed")
            return await self._give_up(lease, queued, texts().broken(), "failed")

    async def _give_up(
        self, lease: Lease, queued: QueuedTurn, text: str, ended: TurnEnd | Literal[""]
    ) -> TurnChange:
        """Return the change that ends a turn with this text.

        If an action that the turn has decided on took effect, the reply is its outcome instead.
        """
        agent = self.agents.get(queued.turn.conversation.channel)
        if agent is None:
            return self._change_with_text(queued, text, ended)
        try:
            return replace(await agent.give_up(queued, lease, text), ended=ended)
        except (LeaseLost, StaleTurn, RedisError):
            raise
        except Exception:
            log.exception("turn.not_given_up")
            return self._change_with_text(queued, text, ended)

    def _change_with_text(
        self, queued: QueuedTurn, text: str, ended: TurnEnd | Literal[""]
    ) -> TurnChange:
        """Return the change that ends a turn with only this text, one of `texts_for` the turn."""
        reply = Reply(text, language=self.texts_for(queued.turn).language)
        return TurnChange(replies=(TurnReply(reply),), ended=ended)

    async def _forward(self, queued: QueuedTurn) -> bool:
        """Forward a turn that came in under another address of its conversation to the main one.

        Return whether it was forwarded. The mailbox there stores it once, so after a crash it is
        forwarded again without effect. Turns that were joined are forwarded one by one: the next
        attempt may not join them. If the mailbox there refuses the turn, its sender is told there.

        A tap, a continuation and a turn that was begun here are answered here, and so is a turn
        whose main address cannot be found.
        """
        here = queued.turn.conversation
        channel = self.channels.get(here.channel)
        is_begun_here = bool(queued.turn.tap or queued.turn.continues or queued.journal)
        if is_begun_here or not isinstance(channel, HasAliases):
            return False
        try:
            there = await channel.main_address(here)
        except SendError:
            return False
        if there == here:
            return False
        for turn in queued.parts or (queued.turn,):
            await call_in_thread(self.mailbox.accept, replace(turn, conversation=there))
        return True

    async def _commit(
        self, lease: Lease, queued: QueuedTurn, change: TurnChange, draft: DraftMessage | None
    ) -> NextItem:
        """Commit what a turn changes, with its replies as the platform takes them.

        `draft`: the message in which the answer was shown while it was written; the answer replaces
        it. None if there is no such message. Return what is next. Raises LeaseLost and StaleTurn.
        """
        change = await self._with_fitted_replies(queued, change, draft)
        following = await self.mailbox.commit(lease, queued, change, let_go=True)
        self._log_answer(queued, change)
        return following

    async def _with_fitted_replies(
        self, queued: QueuedTurn, change: TurnChange, draft: DraftMessage | None
    ) -> TurnChange:
        """Return the change with its replies as the platform takes them."""
        channel = self.channels.get(queued.turn.conversation.channel)
        replies = tuple(
            replace(turn_reply, reply=for_readers_of(queued.turn, turn_reply.reply))
            for turn_reply in change.replies
        )
        if draft and draft.message_id:
            replies = replace_draft(draft.message_id, replies)

        # Where each message costs money, one that says nothing new is left out.
        is_charged = channel is not None and channel.name in self.paid_channels
        if is_charged:
            replies = tuple(
                turn_reply
                for turn_reply in replies
                if turn_reply.reply.edits or not turn_reply.reply.optional
            )
        change = replace(change, replies=replies)
        if change.forwards:
            change = fit_forwards(change, self.channels)

        # Splitting a long text takes as long as a whole turn, and would block the event loop.
        if sum(len(turn_reply.reply.text) for turn_reply in replies) > LONG_CHARS:
            return await call_in_thread(split_replies, change, channel, joins=is_charged)
        return split_replies(change, channel, joins=is_charged)

    def _log_answer(self, queued: QueuedTurn, change: TurnChange) -> None:
        """Count and log a turn that was committed."""
        channel = queued.turn.conversation.channel
        extra: dict[str, Any] = {"attempt": queued.attempt, "replies": len(change.replies)}
        if change.new_actions:
            extra["action"] = ",".join(action.action_id for action in change.new_actions)
        if queued.turn.continues:
            extra["continues"] = queued.turn.continues
        if queued.turn.kind == "continuation":
            is_unfinished = any(turn_reply.reply.cause for turn_reply in change.replies)
            outcome: str = change.ended
            if not outcome:
                outcome = "unfinished" if is_unfinished else "answered"
            CONTINUATIONS.labels(channel, outcome).inc()
        if queued.last_merged_seq:
            extra["upto"] = queued.last_merged_seq
        TURNS.labels(channel, change.ended or "answered").inc()
        log.info("turn.answered", extra=extra)

    def begin_album_sign(self, queued: QueuedTurn) -> BackgroundTask:
        """Show the typing sign once while parts of an album are awaited. Return the task."""
        sign = BackgroundTask()
        channel = self.channels.get(queued.turn.conversation.channel)
        if channel:
            sign.begin(channel.show_typing(queued.turn), with_a_call=True)
        return sign

    def begin_to_show_state(self, held: HeldLease) -> None:
        """Show what the conversation waits for now that its replies are sent.

        The next work does not wait for that.
        """
        end = held.state_at_end
        if end is None:
            return
        channel = self.channels.get(end.conversation.channel)
        if isinstance(channel, ShowsState):
            self._begin_sign_task(self._show_state(channel, end))

    async def _show_state(self, channel: ShowsState, end: StateAtEnd) -> None:
        """Show the state of a conversation on its channel. A failure is ignored."""
        # The next turn shows the state again.
        with contextlib.suppress(RedisError, Halted):
            state = end.state
            if await self.mailbox.waits_for_answer(end.conversation.id):
                state = "suspended"
            await channel.show_state(end.conversation, state, after=end.event_id)

    def _begin_sign_task(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin to change what the platform shows of a conversation. No reply waits for it."""
        task = asyncio.create_task(work)
        self._sign_tasks.add(task)
        task.add_done_callback(self._sign_tasks.discard)

    async def end_signs(self) -> None:
        """Wait until the typing signs of finished turns are removed: this worker is leaving.

        It waits for LAST_CALL_SECONDS at most.
        """
        if self._sign_tasks:
            await asyncio.wait(self._sign_tasks, timeout=LAST_CALL_SECONDS)


def _reply_without_agent(
    queued: QueuedTurn, texts: Callable[[], Texts]
) -> tuple[str, TurnEnd | Literal[""]] | None:
    """Return the text of the reply to a turn that needs no agent, and why it has no other answer.

    None for a turn that the agent answers. With the text "" no reply is sent here. The reason "" is
    that of a turn whose text is its answer.
    """
    # The turn with /stop gets the reply.
    if queued.is_stopped:
        return "", "stopped"
    if queued.turn.is_stop:
        if queued.stop == queued.seq:
            return texts().stopped(), ""
        # The agent's `give_up` says that the open question is dropped.
        if queued.open_action is not None and queued.open_action.state in WAITING_STATES:
            return "", ""
        if queued.turn.in_group:
            return texts().nothing_of_yours(), ""
        return texts().nothing_to_stop(), ""
    if queued.attempt > MAX_TURN_ATTEMPTS:
        log.error("turn.killed_workers")
        return texts().interrupted_before(), "killed_workers"
    return None


def state_after(queued: QueuedTurn, change: TurnChange) -> StateAtEnd:
    """Return what the conversation waits for after a turn, unless a question waits."""
    state: ShownState = "closed" if change.ends_conversation else "active"
    return StateAtEnd(queued.turn.conversation, state, queued.turn.event_id)


def may_ask(queued: QueuedTurn, change: TurnChange) -> bool:
    """Return whether a question may wait in the conversation once the turn's replies are sent.

    A question that waited before the turn may be another person's, or may have been asked again.
    """
    asks = any(action.kind != CHOICE_KIND for action in change.new_actions)
    waited = any(timer.id.startswith(END_OF_QUESTION) for timer in queued.timers)
    return asks or waited


def _links_to_proposal(queued: QueuedTurn) -> bool:
    """Return whether the span of a turn links to the turn that proposed its action.

    The parent of a continuation is the turn with the yes, and that of a vote the turn in which a
    person answered a request. A tap on a request, and a time that has come, begin a trace.
    """
    if queued.turn.continues or queued.turn.kind in ("vote", "request_timer"):
        return True
    return is_request(queued.tapped_action)
