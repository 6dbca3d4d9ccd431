"""Drain: one worker's pass through one conversation: take the lane, send replies, answer turns, let go."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, BinaryIO, Protocol

from redis.exceptions import RedisError

from sayso.channels.base import Channel, FetchError, QuoteSource, RateLimit
from sayso.channels.i18n.texts import SpokenTexts, TextsForTurn
from sayso.channels.types import Media, Reply, named, owner_of, shown_to
from sayso.pending.concurrency import AbandonedCalls, offload, reach, watch_strays
from sayso.pending.redis.scripts import Halted
from sayso.pending.turns.change import Lease, NewAction, TurnChange
from sayso.pending.turns.queued import (
    ABOUT,
    PART,
    ConversationParked,
    JournalUnreadable,
    LeaseLost,
    NextItem,
    QueuedReply,
    QueuedTurn,
    StaleTurn,
    TurnHandler,
    stops,
)
from sayso.workers.alerts import MemoryNotebook
from sayso.workers.lease import HeldLease
from sayso.workers.mailbox import LEASE_MS, Mailbox, new_token
from sayso.workers.progress import DraftMessage, DraftNotes, DraftRateLimiter, ProgressIndicator
from sayso.workers.sender import ReplySender

log = logging.getLogger(__name__)


#: Turns after which a busy conversation lets others go first.
MAX_TURNS = 5


#: Seconds after which it does.
MAX_SECONDS = 20.0


#: Seconds a turn may take before it is ended with an honest word.
TURN_TIMEOUT = 120.0


#: Times a turn is begun: one that kills its worker must not do so for ever.
MAX_ATTEMPTS = 10


#: Seconds after which a part of an album is worked on without those that have not come in.
ALBUM_SECONDS = 1.0


#: Seconds after which a turn is answered without the words that it quotes.
QUOTE_SECONDS = 5.0


#: Seconds after which a turn is answered without an inbound file that is not there yet, from when it began to arrive
#: and from when it was first wanted.
FETCH_SECONDS, QUEUED_SECONDS = 30.0, 60.0


#: Inbound files of one turn that are fetched at a time.
MAX_FETCHES = 4


#: Inbound files of all turns of a process that arrive at a time. Their bytes go to disk
#: as they come: with 4 of them a worker stays within 64 MB over idle, however large they are.
MAX_ARRIVING = 4


#: Seconds that a pass which is cut off has to let its lane go; its worker waits a little longer.
LET_GO_SECONDS = 2.0


#: How long a conversation of a channel that no worker knows is kept for one that does, in seconds. During a rolling
#: change some workers know a channel and others do not. After this its turns and replies are given up.
UNKNOWN_CHANNEL_SECONDS = 24 * 3600.0


#: Seconds after which somebody is told that their turn takes longer.
STILL_AFTER = 30.0


#: What stands in place of a draft whose answer has no words: a file alone, or nothing after a stop.
NO_WORDS = "…"


#: Characters of replies that are cut into pieces at once: about 50 ms of them, where they are hardest to read.
LONG_CHARS = 5_000


class InboundMediaStore(Protocol):
    """Where inbound files are kept: the media store."""

    def receiving(self, owner: str, size: int = 0) -> AbstractContextManager[BinaryIO]:
        """Open a file for bytes that arrive bit by bit."""

    def keep(self, file: BinaryIO, *, mime_type: str, filename: str, owner: str) -> Media:
        """Keep what was written to such a file, typed by what it is."""


@dataclass(frozen=True, slots=True)
class ConversationProcessor:
    """Works through conversations. One instance serves a worker's whole event loop.

    Without `media` the agent sees inbound files as the platform's handles. With `joins`, a burst of plain messages is
    answered as one. What `worker` holds is known by that name. After `still_after` seconds, 0 for never, people are
    told that their turn takes longer; on channels of `streams` answers are shown while they come, and `notes` say by
    which message.
    """

    mailbox: Mailbox
    postman: ReplySender
    channels: Mapping[str, Channel]
    agents: Mapping[str, TurnHandler]
    voice: TextsForTurn
    media: InboundMediaStore | None = None
    turn_timeout: float = TURN_TIMEOUT
    joins: bool = False
    worker: str = ""
    still_after: float = STILL_AFTER
    streams: Collection[str] = frozenset()
    notes: DraftNotes = field(default_factory=MemoryNotebook)
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    #: By channel, where its drafts take turns.
    _easels: dict[str, DraftRateLimiter] = field(default_factory=dict)
    #: Taken by each inbound file while it arrives, whatever turn it belongs to.
    _arriving: asyncio.Semaphore = field(default_factory=partial(asyncio.Semaphore, MAX_ARRIVING))
    _leaving: threading.Event = field(default_factory=threading.Event)
    _at_work: dict[str, HeldLease] = field(default_factory=dict)
    #: Conversations that were cut off and whose lanes were not let go.
    _cut_off: set[str] = field(default_factory=set)

    @property
    def is_idle(self) -> bool:
        """Whether no conversation is held."""
        return not (self._at_work or self._cut_off)

    def hand_over(self) -> None:
        """From now on each conversation is handed over after the turn it is at: this worker is told to stop."""
        self._leaving.set()

    def look_up(self, conversation: str) -> None:
        """Somebody said stop there: whoever works on it looks now, not when the lease is renewed."""
        if conversation in self._at_work:
            self._keep_on(self._at_work[conversation])

    async def run(self, conversation: str) -> None:
        """Empty a conversation's outbox and mailbox, in order, unless another worker is at it."""
        if not self._knows(conversation) and await self._defer(conversation):
            return
        token, asked, strays = new_token(self.worker), self.clock(), watch_strays()
        try:
            taken = await reach(self.mailbox.lease, conversation, token)
        except Halted as exc:  # it is woken when Redis is resumed
            _log_left(conversation, exc)
            return
        if taken is None:
            return
        held = self._at_work[conversation] = HeldLease(taken[0], asked)
        try:
            async with self._keeping(held):
                await self._work(held, taken[1])
        except (LeaseLost, ConversationParked, StaleTurn, Halted) as exc:
            # A lane that is still held is worked on again when its lease ends.
            _log_left(conversation, exc)
        except asyncio.CancelledError:
            self._cut_off.add(conversation)
            await self._let_go(held.lease, strays)
            raise
        finally:
            if self._at_work.get(conversation) is held:
                del self._at_work[conversation]

    def _knows(self, conversation: str) -> bool:
        channel = conversation.partition(":")[0]
        return channel in self.channels or channel in self.agents

    async def _defer(self, conversation: str) -> bool:
        """Leave the conversation to a worker that knows its channel. Return False once it has waited too long."""
        try:
            waited = await reach(self.mailbox.defer, conversation)
        except Halted as exc:
            _log_left(conversation, exc)
            return True
        if waited == 0:
            log.warning("conversation.unknown_channel", extra={"conversation": conversation})
        return waited < UNKNOWN_CHANNEL_SECONDS

    @asynccontextmanager
    async def _keeping(self, held: HeldLease) -> AsyncIterator[None]:
        """Keep the lane meanwhile; most are let go before their lease is due. Raises LaneLost when it is lost."""
        due = asyncio.get_running_loop().call_later(LEASE_MS / 3000, self._keep_on, held)
        try:
            async with held.limit:
                yield
        except TimeoutError:
            if held.limit.expired():
                raise LeaseLost(held.lease.conversation) from None
            raise
        finally:
            due.cancel()
            if held.keeping:
                await _end(held.keeping)

    def _keep_on(self, held: HeldLease) -> None:
        """Renew the lease now, and then whenever it is due."""
        held.nudge.set()
        if held.keeping is None:
            held.keeping = asyncio.create_task(self._keep(held))

    async def _keep(self, held: HeldLease) -> None:
        """Renew the lease at each nudge and when it is due; end the work when it is certainly or possibly lost."""
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LEASE_MS / 3000):
                        await held.nudge.wait()
                held.nudge.clear()
                await self._renew(held)
                if not held.is_fresh(self.clock()):
                    return
        except (LeaseLost, Halted):
            return
        finally:
            held.lose()

    async def _renew(self, held: HeldLease) -> None:
        asked, at = self.clock(), held.at
        try:
            stop = await reach(self.mailbox.renew, held.lease)
        except Halted:
            raise
        except RedisError as exc:
            log.warning("lane.not_renewed", extra={"reason": type(exc).__name__})
            return
        held.renewed_at = asked
        if at == held.at:  # else it may be about the turn before
            held.stop(stop)

    async def _let_go(self, lease: Lease, strays: AbandonedCalls) -> None:
        """Let go of a lane in the middle of its work: the next worker goes on at once where the journal ends.

        What had begun without a result is as unknown to it as after a kill. But a tool that cannot be stopped may still
        act; what the next worker does, then or in later turns, must not overtake it. So that lane stays held until this
        process has ended, or is, as ever, slower than its lease.
        """
        if strays.are_running:
            log.info("lane.left", extra={"conversation": lease.conversation, "reason": "a tool still runs"})
            return
        with contextlib.suppress(TimeoutError, RedisError):
            async with asyncio.timeout(LET_GO_SECONDS):
                await reach(self.mailbox.release, lease, hand_over=True, begun=True)
                self._cut_off.discard(lease.conversation)

    async def _work(self, held: HeldLease, work: NextItem) -> None:
        until, turns, waited_for = self.clock() + MAX_SECONDS, 0, 0
        if work is None:
            work = await reach(self.mailbox.release, held.lease)
        while work is not None:
            match work:
                case QueuedReply():
                    work = await self.postman.carry(held.lease, work, lambda: held.is_fresh(self.clock()))
                case QueuedTurn() if turns >= MAX_TURNS or self.clock() > until or self._leaving.is_set():
                    await reach(self.mailbox.release, held.lease, hand_over=True)
                    return
                case QueuedTurn() if work.may_grow and work.age < ALBUM_SECONDS and work.seq != waited_for:
                    waited_for = work.seq
                    await self.sleep(ALBUM_SECONDS - max(0.0, work.age))  # another server's clock may have been ahead
                    work = await reach(self.mailbox.release, held.lease)  # it stays, with what came in meanwhile
                case QueuedTurn():
                    turns += 1
                    work = await self._turn(held, self._joined(work))

    def _joined(self, queued: QueuedTurn) -> QueuedTurn:
        agent = self.agents.get(queued.turn.conversation.channel)
        if agent is None or queued.is_stopped:
            return queued
        if queued.journal:  # what was worked on together stays together
            return queued.rejoined()
        if queued.turn.group:
            return queued.gathered()
        alone = queued.attempt > 1  # what kills its worker does so alone
        return queued.joined(agent.is_answer) if self.joins and not alone else queued

    async def _turn(self, held: HeldLease, queued: QueuedTurn) -> NextItem:
        lease, channel = held.lease, self.channels.get(queued.turn.conversation.channel)
        draft = self._draft(queued, channel)
        held.begin(queued)
        change = _shown_to(queued, await self._in_company(held, queued, channel, draft))
        shown = draft.shown if draft else ""
        try:
            pieces = await _cut(_in_place_of(shown, change), channel)
            return await reach(self.mailbox.commit, lease, queued, pieces, let_go=True)
        except StaleTurn as exc:
            log.warning("turn.overtaken", extra={"reason": str(exc), "seq": queued.seq})
            broken = _shown_to(queued, await self._give_up(lease, queued, self.voice(queued.turn).broken()))
            pieces = await _cut(_in_place_of(shown, broken), channel)
            return await reach(self.mailbox.commit, lease, queued, pieces, let_go=True)

    def _draft(self, queued: QueuedTurn, channel: Channel | None) -> DraftMessage | None:
        """Where the channel shows drafts: of the answer, or only of the word that it takes longer."""
        pace = channel.pace(queued.turn.conversation) if channel else RateLimit()
        if channel is None or pace.draft_gap <= 0 or _never_began(queued) or queued.turn.ephemeral:
            return None
        easel = self._easels.setdefault(channel.name, DraftRateLimiter.of(pace))
        return DraftMessage(channel, queued, self.notes, gap=pace.draft_gap, easel=easel)

    async def _in_company(
        self, held: HeldLease, queued: QueuedTurn, channel: Channel | None, draft: DraftMessage | None
    ) -> TurnChange:
        if channel is None or _never_began(queued):
            return await self._answer(held, queued)
        words = partial(self.voice, queued.turn)
        async with ProgressIndicator(channel, queued, words, draft=draft, still_after=self.still_after):
            return await self._answer(held, queued, draft if channel.name in self.streams else None)

    async def _answer(self, held: HeldLease, queued: QueuedTurn, hear: DraftMessage | None = None) -> TurnChange:
        lease, words = held.lease, partial(self.voice, queued.turn)
        agent = self.agents.get(queued.turn.conversation.channel)
        if agent is None:
            return TurnChange(replies=((Reply(words().channel_gone()), ""),))
        given_up = _unasked(queued, words)
        if given_up is not None:
            return await self._give_up(lease, queued, given_up)
        try:
            async with held.working_on(queued, self.turn_timeout, may_be_stopped=not agent.may_settle(queued)):
                if not agent.may_settle(queued):  # what a yes quotes, its id tells
                    queued = await self._with_quote(queued)
                return await agent.answer(await self._with_files(queued), lease, hear)
        except TimeoutError:
            log.error("turn.timeout", extra={"conversation": lease.conversation, "seq": queued.seq})
            return await self._give_up(lease, queued, "" if held.stopped > queued.seq else words().too_long())
        except JournalUnreadable as exc:  # no traceback: it may quote what was said
            log.error("turn.unreadable", extra={"conversation": lease.conversation, "reason": str(exc)})
            return await self._give_up(lease, queued, words().interrupted_before())
        except (LeaseLost, StaleTurn, RedisError):
            raise  # nothing may be said about a turn whose state is not known: the next holder works on it again
        except Exception:
            # The rim of a turn: whatever a tool or a model broke, the person hears a word and the next turn goes on.
            log.exception("turn.failed", extra={"conversation": lease.conversation, "seq": queued.seq})
            return await self._give_up(lease, queued, words().broken())

    async def _give_up(self, lease: Lease, queued: QueuedTurn, words: str) -> TurnChange:
        """The world may have changed since this turn was looked at: the agent looks again at what it decided."""
        agent = self.agents.get(queued.turn.conversation.channel)
        if agent is None:
            return TurnChange(replies=((Reply(words), ""),))
        try:
            return await agent.give_up(queued, lease, words)
        except (LeaseLost, StaleTurn, RedisError):
            raise
        except Exception:
            log.exception("turn.not_given_up", extra={"conversation": lease.conversation, "seq": queued.seq})
            return TurnChange(replies=((Reply(words), ""),))

    async def _with_quote(self, queued: QueuedTurn) -> QueuedTurn:
        """Return the turn with the words that it quotes, where its platform names only the message and has them."""
        turn, channel = queued.turn, self.channels.get(queued.turn.conversation.channel)
        if turn.quoted or not turn.replied_to or not isinstance(channel, QuoteSource):
            return queued
        try:
            async with asyncio.timeout(QUOTE_SECONDS):
                return replace(queued, turn=replace(turn, quoted=await channel.quoted(turn)))
        except (FetchError, TimeoutError) as exc:
            log.info("quote.unknown", extra={"channel": channel.name, "reason": str(exc) or type(exc).__name__})
            return queued

    async def _with_files(self, queued: QueuedTurn) -> QueuedTurn:
        """The turn with its files in the media store, as far as they can be had."""
        turn = queued.turn
        channel = self.channels.get(turn.conversation.channel)
        if not turn.media or channel is None or self.media is None:
            return queued
        slots = asyncio.Semaphore(MAX_FETCHES)
        owner = owner_of(turn.conversation.channel, turn.user_id)
        fetching = (self._kept(media, channel, self.media, slots, owner) for media in turn.media)
        files = await asyncio.gather(*fetching)
        return replace(queued, turn=replace(turn, media=tuple(files)))

    async def _kept(
        self, media: Media, channel: Channel, sink: InboundMediaStore, slots: asyncio.Semaphore, owner: str
    ) -> Media:
        """The file in the store; one that cannot be had stays as it is, without the size that was only claimed."""
        if media.stored:
            return media
        try:
            async with asyncio.timeout(QUEUED_SECONDS), slots, self._arriving, asyncio.timeout(FETCH_SECONDS):
                with contextlib.ExitStack() as stack:
                    file = await offload(stack.enter_context, sink.receiving(owner, media.size))
                    await channel.fetch(media, file)
                    kinds = {"mime_type": media.mime_type, "filename": media.filename}
                    return named(await offload(sink.keep, file, owner=owner, **kinds))
        except Exception as exc:  # noqa: BLE001  # the person is answered all the same
            # No traceback and no words of others: they may hold a link or a file name.
            reason = str(exc) if isinstance(exc, FetchError) else type(exc).__name__
            log.warning("media.not_fetched", extra={"channel": channel.name, "reason": reason})
            return replace(media, size=0)


def _log_left(conversation: str, reason: Exception) -> None:
    log.info("lane.left", extra={"conversation": conversation, "reason": type(reason).__name__})


def _never_began(queued: QueuedTurn) -> bool:
    """Whether it is stopped before anybody worked on it: no draft of it is shown."""
    return queued.is_stopped and queued.attempt == 1


def _unasked(queued: QueuedTurn, words: Callable[[], SpokenTexts]) -> str | None:
    """What is said to a turn that no agent is asked about, None for one that it answers."""
    if queued.is_stopped:  # the turn that said so tells it
        return ""
    if stops(queued.turn):
        if queued.stop == queued.seq:
            return words().stopped()
        return words().nothing_of_yours() if queued.turn.in_group else words().nothing_to_stop()
    if queued.attempt > MAX_ATTEMPTS:
        log.error("turn.kills", extra={"conversation": queued.turn.conversation.id, "seq": queued.seq})
        return words().interrupted_before()
    return None


def _in_place_of(shown: str, change: TurnChange) -> TurnChange:
    """The first words of a change take the place of the draft that they grew from; where it has none, a sign does."""
    if not shown:
        return change
    replies = list(change.replies)
    for at, (reply, pid) in enumerate(replies):
        if reply.text and not (reply.media or reply.edits):
            replies[at] = (replace(reply, edits=shown), pid)
            break
    else:
        replies.insert(0, (Reply(NO_WORDS, edits=shown, optional=True), ""))
    return replace(change, replies=tuple(replies))


def _shown_to(queued: QueuedTurn, change: TurnChange) -> TurnChange:
    """Return the change, whose replies nobody sees but the person of an ephemeral turn."""
    if not queued.turn.ephemeral:
        return change
    return replace(change, replies=tuple((shown_to(queued.turn, reply), pid) for reply, pid in change.replies))


async def _cut(change: TurnChange, channel: Channel | None) -> TurnChange:
    """The change in pieces: a long reply, which takes as long as a whole turn, is cut without holding up the others."""
    if sum(len(reply.text) for reply, _ in change.replies) > LONG_CHARS:
        return await offload(_in_pieces, change, channel)
    return _in_pieces(change, channel)


def _in_pieces(change: TurnChange, channel: Channel | None) -> TurnChange:
    """Each reply as the platform messages it takes; what a reply previews is shown with its last piece, if all came."""
    pieces: list[tuple[Reply, str]] = []
    for reply, pid in change.replies:
        if not (reply.text or reply.media):
            continue
        found = _pieces(reply, channel) if channel else [reply]
        if not found and not pid:  # what only changes a message, where its platform changes none
            continue
        *firsts, last = found or [reply]
        if reply.collapse and not firsts:  # of several messages, none may take another's place
            last = replace(last, collapse=reply.collapse)
        part = pid if pid.startswith(ABOUT) or not pid else f"{PART}{pid}"
        pieces += [
            (replace(piece, only_for=reply.only_for, cause=reply.cause), name)
            for piece, name in [*((first, part) for first in firsts), (last, pid)]
        ]
    return replace(change, replies=tuple(pieces), arms=tuple(_as_shown(change.arms, channel)))


def _as_shown(arms: Sequence[NewAction], channel: Channel | None) -> Iterator[NewAction]:
    """What is asked; no later edit of the question is kept for a platform that changes no message."""
    edits = channel is not None and bool(_pieces(Reply(NO_WORDS, edits=NO_WORDS, optional=True), channel))
    for arm in arms:
        yield arm if edits else replace(arm, ending="")


def _pieces(reply: Reply, channel: Channel) -> Sequence[Reply]:
    """An adapter that cannot split a reply must not have the whole turn worked on again and again."""
    try:
        return channel.pieces(reply)
    except Exception:
        log.exception("reply.not_split", extra={"channel": channel.name})
        return [reply]


async def _end(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
