"""MemoryConversations: mailbox, outbox and deliveries in one process, which behave as those in Redis do."""

from __future__ import annotations

import json
import re
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from math import inf
from typing import Any, Protocol, TypeVar

from sayso.channels.i18n.texts import TextsForTurn
from sayso.channels.types import Delivery, Reply, Turn, shown_to
from sayso.pending.turns.change import (
    MAX_TIMERS,
    DecisionContext,
    Lease,
    NewAction,
    Timer,
    TurnChange,
    as_edit_of,
    outbox_entry,
    sort_timers,
)
from sayso.pending.turns.queued import (
    ABOUT,
    PART,
    LeaseLost,
    NextItem,
    QueuedReply,
    QueuedTurn,
    StaleTurn,
    is_tap_or_status,
)
from sayso.workers.mailbox import (
    LEASE_MS,
    SEEN_MS,
    Accepted,
    InboxLimits,
    Outcome,
    TurnStatus,
    is_told_refusal,
    refusal,
    waited_ms,
)
from sayso.workers.outbox import (
    KEEP_HELD_SECONDS,
    LATE_SECONDS,
    MAX_DELIVERIES,
    MAX_WAITING,
    REPORTS,
    DeliveryState,
    DeliveryStatus,
    FinalState,
    PostponeReason,
    UndeliveredState,
    new_id,
    repeatable,
    split_id,
)

V = TypeVar("V")
_MARK = re.compile(r'\{"collapse": "[^"]+"')
#: Conversations that are remembered. Beyond that the idle ones are dropped first; with none idle a new one is refused.
MAX_CONVERSATIONS = 5000
#: Event ids that are remembered in one conversation.
MAX_EVENTS = 1000
#: Forwarded deliveries that are remembered.
MAX_FORWARDED = 5000
#: Histories that are remembered in one conversation.
MAX_HISTORIES = 1000
#: Turns that may be answered as one.
MAX_BURST = 10
#: Seconds between two notices to a sender whose turns are refused.
BUSY_NOTICE_SECONDS = 60.0
#: Places beyond a full mailbox, for taps, stops and answers to a question.
URGENT_PLACES = 10
#: Urgent places for one person.
URGENT_EACH = 2
#: Conversations of each reserve, beside a tenth of the limit.
SPARE = 10
#: A conversation that is due within these seconds has work or a lease; a later one waits for a platform or a timer.
SOON_SECONDS = 15.0
#: The token of a conversation that waits for its platform: no worker has the lease.
PARKED = "parked"
#: Seconds between messages that waited for a channel without a rate.
SPREAD_SECONDS = 0.05
#: Seconds after which a wake-up that no worker answered is repeated.
WAKE_GRACE_SECONDS = 5.0
#: The order of states, for reports that come in any order.
_RANKS: Mapping[DeliveryState, int] = {
    "dead": 0, "sent": 1, "ambiguous": 1, "delivered": 2, "read": 3, "failed": 4, "retried": 5,
}  # fmt: skip


class ActionRecords(Protocol):
    """The pending actions that change together with conversations: `sayso.pending.memory.MemoryActionRepository`.

    `lock` is the lock that both share; `conversations` is where the repository finds the conversations.
    """

    lock: Any
    conversations: Any

    def hashes_for_turn(self, conversation: str, user: str, tapped: str) -> tuple[dict[str, str], dict[str, str]]:
        """Return the open action of a scope and the action that a button names."""

    def user_of(self, pid: str) -> str:
        """Return the user who may confirm an action, "" if unknown."""

    def commit(self, conversation: str, waiting: DecisionContext, change: TurnChange) -> str:
        """Apply the change, or return what prevents it."""

    def add_prompt(self, pid: str, message: str) -> None:
        """Record that this message of the platform shows the question, or a piece or a copy of it."""

    def mark_shown(
        self, pid: str, seen: int = 0, prompt: str = "", written_at: float = 0.0
    ) -> tuple[float, NewAction | None]:
        """Open the window of an action whose preview was delivered as the message `prompt`. Return when it closes, and
        on what.
        """

    def expire_if_due(self, pid: str) -> bool:
        """Expire an action whose window has closed without an answer; return whether it did."""

    def end_undelivered(self, pid: str, *, shown: bool = False) -> None:
        """Expire an action whose preview cannot be delivered or, if `shown`, was reported as failed."""


@dataclass(frozen=True, slots=True)
class _WaitingTurn:
    seq: int
    received_at: float
    tapped: str
    turn: Turn


@dataclass(frozen=True, slots=True)
class _TimerEntry:
    """A timer, its outbox entry, and the action that it `ends` or that it `asks` again for, "" for none. `ending` edits
    the message that asked.
    """

    timer: Timer
    entry: str
    ends: str = ""
    asks: str = ""
    ending: str = ""


@dataclass(frozen=True, slots=True)
class _HeldReply:
    """A reply that waits for the user to write: how many turns had come in by then, since when, and why."""

    number: int
    received: int
    since: float
    reason: str


@dataclass(slots=True)
class _ConversationState:
    """The state of one conversation. `due` is when a worker should look at it, None while there is nothing to do."""

    inbox: deque[_WaitingTurn] = field(default_factory=deque)
    outbox: deque[tuple[int, str, str]] = field(default_factory=deque)
    seen: OrderedDict[str, tuple[int, float]] = field(default_factory=OrderedDict)
    histories: OrderedDict[str, str] = field(default_factory=OrderedDict)
    timer_entries: dict[str, _TimerEntry] = field(default_factory=dict)
    #: By user, when their allowance is full again.
    allowances: OrderedDict[str, float] = field(default_factory=OrderedDict)
    received: int = 0
    said: int = 0
    done: int = 0
    attempts: int = 0
    sending: tuple[int, int] = (0, 0)
    suspect: set[int] = field(default_factory=set)
    slot: tuple[int, float] = (0, 0.0)
    chat: float = 0.0
    closed: tuple[int, str] = (-1, "")
    heard: float = 0.0
    hold: _HeldReply | None = None
    #: The question that was asked last, "" after any other reply.
    newest: str = ""
    notified_at: float = 0.0
    #: By user, the number of the last turn that said stop.
    stops: dict[str, int] = field(default_factory=dict)
    journal: list[str] = field(default_factory=list)
    begun: tuple[int, int, int] = (0, 0, 0)
    ended: tuple[int, str] = (0, "")
    #: By the number of a reply, the action that it asks for.
    asks: OrderedDict[str, str] = field(default_factory=OrderedDict)
    epoch: int = 0
    token: str = ""
    until: float = 0.0
    due: float | None = None
    #: Since when no worker that looked knew the channel, 0 while one does.
    unserved: float = 0.0

    @property
    def busy(self) -> bool:
        return bool(self.inbox or self.outbox)

    def awaited(self, now: float) -> bool:
        """Return whether a worker comes anyway. A timer brings none before it is due."""
        return self.due is not None and (self.until > now or (self.busy and not self.held))

    @property
    def held(self) -> _HeldReply | None:
        """Return the held reply, while it is the first and the user has not written."""
        hold = self.hold
        if hold is None or hold.received != self.received or not self.outbox:
            return None
        return hold if self.outbox[0][0] == hold.number else None

    @property
    def why_closed(self) -> str:
        """Return why the address takes no messages, "" if it does. A conversation without any turn is never closed: no
        message could open it again.
        """
        turns, reason = self.closed
        return reason if turns and turns == self.received else ""

    def first_of(self, turn: Turn, now: float) -> int:
        """Return the number under which the turn was received before, 0 for a new one."""
        number, at = self.seen.get(turn.event_id, (0, -inf))
        return number if now - at < SEEN_MS / 1000 else 0

    def close(self, reason: str) -> None:
        """Mark the address as closed until the user writes, unless a turn waits already."""
        if not self.inbox:
            self.closed = (self.received, reason)

    def silence(self, now: float) -> float:
        """Return the seconds since the last message here."""
        return max(0.0, now - self.heard) if self.heard else inf

    def put_on_hold(self, number: int, now: float, reason: str) -> None:
        """Hold the first reply until the user writes, a timer is due, or the hold ends."""
        self.hold = self.held or _HeldReply(number, self.received, now, reason)
        self.attempts, self.sending, self.slot, self.begun = 0, (0, 0), (0, 0.0), (0, 0, 0)
        self.let_go(min(self.hold.since + KEEP_HELD_SECONDS, self.next_timer() or inf))

    def at_work(self, now: float) -> bool:
        """Return whether the conversation has work, or a lease, now."""
        return self.due is not None and self.due <= now + SOON_SECONDS

    def next_timer(self) -> float | None:
        """Return when the next timer is due."""
        return min((timer_entry.timer.at for timer_entry in self.timer_entries.values()), default=None)

    def may_have_arrived(self, number: int) -> bool:
        """Return whether an earlier worker tried this reply too, without recording the result."""
        if self.sending[0] == number and self.sending[1] != self.epoch:
            self.suspect.add(number)
        self.sending = (number, self.epoch)
        return number in self.suspect

    def attempt(self, seq: int) -> int:
        """Return how many workers were given this turn."""
        last, by, times = self.begun
        times = times if last == seq else 0
        if (last, by) != (seq, self.epoch):
            times += 1
            self.begun = (seq, self.epoch, times)
        return times

    def burst(self) -> tuple[tuple[int, Turn], ...]:
        """Return the turns right behind the first, of the same user and without buttons: they may be
        answered as one.
        """
        first, *others = list(self.inbox)[:MAX_BURST]
        same = [each for each in others if not first.tapped]
        alike = takewhile(lambda each: each.turn.scope.id == first.turn.scope.id and not each.tapped, same)
        return tuple((each.seq, each.turn) for each in alike)

    def is_full(self, user: str, cap: int, *, urgent: bool) -> bool:
        """Return whether there is no place for a turn of this user. Each user has a few places for urgent turns."""
        if len(self.inbox) < cap:
            return False
        own = sum(waiting.turn.scope.id == user for waiting in list(self.inbox)[cap:])
        return not urgent or len(self.inbox) >= cap + URGENT_PLACES or own >= URGENT_EACH

    def is_too_fast(self, user: str, now: float, limits: InboxLimits) -> bool:
        """Return whether the user has used up the turns that are allowed at once and per minute."""
        gain = 60.0 / limits.per_minute
        whole = max(self.allowances.get(user, 0.0), now) + gain
        if whole - now > gain * limits.in_one_go:
            return True
        _remember(self.allowances, user, whole, MAX_HISTORIES)
        return False

    def finish(self, queued: QueuedTurn) -> None:
        """Remove the turn, those that were answered with it, and the stop that applied to them."""
        while self.inbox and self.inbox[0].seq <= queued.last:
            self.inbox.popleft()
        self.journal.clear()
        self.done = queued.last
        if self.stops.get(queued.user, inf) <= self.done:
            del self.stops[queued.user]

    def set_timers(self, queued: QueuedTurn, change: TurnChange) -> None:
        """Remove the timers that a change silences, and set its new ones."""
        for timer_id in change.silenced:
            self.timer_entries.pop(timer_id, None)
        for timer in change.timers:
            self.timer_entries[timer.id] = _TimerEntry(timer, outbox_entry(queued.turn.conversation, timer.reply))

    def drop_notices(self, user: str) -> None:
        """Remove the notices of an expired question: nothing waits for this user."""
        for kind in ("alarm", "end"):
            self.timer_entries.pop(f"{kind}:{user}", None)

    def let_go(self, due: float | None) -> None:
        self.token, self.until, self.due = "", 0.0, due


@dataclass(slots=True)
class _Channel:
    """The rate limit of a channel: seconds between two messages, when its next slot is free, until when it
    is silent.
    """

    gap: float | None = None
    free: float = 0.0
    closed: float = 0.0

    def book(self, state: _ConversationState, number: int, now: float) -> float | None:
        """Return the seconds until a reply's slot, which is booked once."""
        if self.gap is None and self.closed <= now:
            return None
        if state.slot[0] != number or state.slot[1] < self.closed:
            state.slot = (number, max(now, self.free, self.closed))
            self.free = state.slot[1] + (SPREAD_SECONDS if self.gap is None else self.gap)
        return max(0.0, state.slot[1] - now)

    def silence(self, until: float) -> float:
        """Silence the channel as its platform asks. Return until when, with what was asked before."""
        self.closed = max(self.closed, until)
        self.free = max(self.free, self.closed) + (SPREAD_SECONDS if self.gap is None else self.gap)
        return self.closed


@dataclass(slots=True)
class MemoryDeliveryStatuses:
    """The statuses of deliveries of one process, bounded. They behave as the scripts' do."""

    noted: dict[str, OrderedDict[int, DeliveryStatus]] = field(default_factory=dict)
    put_aside: dict[UndeliveredState, deque[DeliveryStatus]] = field(
        default_factory=lambda: {
            "dead": deque(maxlen=1000),
            "failed": deque(maxlen=1000),
            "ambiguous": deque(maxlen=1000),
        }
    )

    def note(self, status: DeliveryStatus, *, over: bool = False) -> bool:
        """Record the status of a delivery. A status that the platform reported earlier stays, unless `over` is set."""
        conversation, number = split_id(status.id)
        noted = self.noted.setdefault(conversation, OrderedDict())
        if number in noted and not over:
            noted[number] = replace(noted[number], reason=noted[number].reason or status.reason)
            return False
        noted[number] = status
        noted.pop(number - MAX_DELIVERIES, None)
        return True

    def find(self, delivery_id: str) -> DeliveryStatus | None:
        """Return the status of a delivery."""
        conversation, number = split_id(delivery_id)
        noted = self.noted.get(conversation)
        return noted.get(number) if noted else None

    def of(self, conversation: str) -> list[DeliveryStatus]:
        """Return the statuses of a conversation, oldest first."""
        noted = self.noted.get(conversation)
        return [noted[number] for number in sorted(noted)] if noted else []

    def arrived(self, delivery_id: str) -> str:
        """Return the receipt of a delivery that its platform accepted, else ""."""
        known = self.find(delivery_id)
        return known.receipt if known and known.state in ("sent", "delivered", "read") else ""

    def end(self, status: DeliveryStatus) -> None:
        """Record the end of a reply. A failure of an earlier copy does not count for it."""
        known = self.find(status.id)
        new = self.note(
            status, over=bool(known and known.state == "failed" and status.receipt not in ("", known.receipt))
        )
        if status.state == "dead" or (status.state == "ambiguous" and new):
            self.put_aside[status.state].appendleft(status)

    def report(self, news: DeliveryStatus, *, sending: bool) -> str:
        """Record a report of the platform; `sending` says that the reply is the first in its outbox."""
        known = self.find(news.id)
        if known is None and not sending:
            return ""
        if known is not None:
            same = known.receipt == news.receipt
            rank = 0 if known.state == "failed" and not same else _RANKS[known.state]
            other = not same and (known.receipt or known.state == "dead")
            if _RANKS[news.state] <= rank or (other and news.state == "failed"):
                return known.state
            news = replace(news, tries=known.tries, reason=news.reason or known.reason)
        self.note(news, over=True)
        if news.state == "failed":
            self.put_aside["failed"].appendleft(news)
        return news.state


class MemoryConversations:
    """Mailbox, Outbox, Journals and Deliveries in one, bounded, for bots in one process. Lives as long as its process.

    No worker is woken: process what you accepted, and what `overdue` returns. `pendings` are the `records` of the
    agent's store; without them no action can be proposed.
    """

    def __init__(
        self,
        texts_for: TextsForTurn,
        pendings: ActionRecords | None = None,
        *,
        clock: Callable[[], float] = time.time,
        limits: InboxLimits | None = None,
        max_conversations: int = MAX_CONVERSATIONS,
    ) -> None:
        self._statuses = MemoryDeliveryStatuses()
        self._channels: dict[str, _Channel] = {}
        self._pendings: ActionRecords = pendings or _NoActionRecords()
        self._pendings.conversations = self
        self._lock = self._pendings.lock
        self._clock = clock
        self._texts_for = texts_for
        self._limits = limits or InboxLimits()
        self._max_conversations = max_conversations
        self._conversations: OrderedDict[str, _ConversationState] = OrderedDict()
        self._forwarded: OrderedDict[str, str] = OrderedDict()

    def accept(self, turn: Turn, *, tapped: str = "", waited_seconds: float = 0.0) -> Accepted:
        """Store a turn once."""
        name, waited, now = turn.conversation.id, waited_ms(waited_seconds) / 1000, self._clock()
        with self._lock:
            state, is_new = self._conversations.get(name, _ConversationState()), name not in self._conversations
            if first := state.first_of(turn, now):
                return Accepted("duplicate", first)
            if not state.received and not turn.addressed:
                return Accepted("ignored", 0)
            refused = self._refused(state, turn, tapped, now, is_new=is_new, paced=not waited)
            if refused:
                if not waited_seconds and is_told_refusal(turn):
                    self.notify(turn, refusal(self._texts_for(turn), refused))
                return Accepted(refused, 0)
            self._conversations[name] = state
            self._conversations.move_to_end(name)
            awaited = state.awaited(now)
            state.received += 1
            state.heard = max(state.heard, now - waited)
            if turn.is_stop and any(other.turn.scope.id == turn.scope.id for other in state.inbox):
                state.stops[turn.scope.id] = state.received
            state.inbox.append(_WaitingTurn(state.received, now - waited, tapped, turn))
            _remember(state.seen, turn.event_id, (state.received, now), MAX_EVENTS)
            state.due = state.due if awaited else now + WAKE_GRACE_SECONDS
            return Accepted("new", state.received)

    async def lease(self, conversation: str, token: str) -> tuple[Lease, NextItem] | None:
        """Take the lease of a conversation and return it with what is next. None while another worker has it."""
        with self._lock:
            state, now = self._conversations.get(conversation), self._clock()
            if state is None:
                return None
            held = state.until > now
            if held and state.token != token:
                return None
            state.epoch += not held
            state.token, state.until, state.ended = token, now + LEASE_MS / 1000, (0, "")
            state.due, state.unserved = state.until, 0.0
            return Lease(conversation, state.epoch, token), self._view(conversation, state)

    async def defer(self, conversation: str) -> float:
        """Leave a conversation to a worker that knows its channel. Return since how many seconds none has taken it."""
        with self._lock:
            state, now = self._conversations.get(conversation), self._clock()
            if state is None or state.until > now:
                return -1.0
            state.unserved = state.unserved or now
            waited = now - state.unserved
            state.due = now + max(1.0, min(60.0, waited / 4))
            return waited

    async def renew(self, lease: Lease) -> int:
        """Renew the lease. Return the last turn with which the user of the first turn said stop. Raises LeaseLost."""
        with self._lock:
            state = self._held(lease)
            state.until = state.due = self._clock() + LEASE_MS / 1000
            return state.stops.get(state.inbox[0].turn.scope.id, 0) if state.inbox else 0

    async def commit(self, lease: Lease, queued: QueuedTurn, change: TurnChange, *, let_go: bool = False) -> NextItem:
        """Finish a turn, all or nothing, and return what is next. Raises LeaseLost, StaleTurn."""
        with self._lock:
            if self._ended(lease):
                return None
            state = self._held(lease)
            if state.done >= queued.seq:
                return self._next_work(lease, state, let_go=let_go)
            if not state.inbox or state.inbox[0].seq != queued.seq:
                raise StaleTurn(f"{lease.conversation}: moved")
            if change.timers and len(state.timer_entries) + len(change.timers) - len(change.silenced) > MAX_TIMERS:
                raise StaleTurn(f"{lease.conversation}: timers")
            refused = self._pendings.commit(
                lease.conversation, DecisionContext(queued.user, queued.turn.event_id, state.inbox[0].tapped), change
            )
            if refused:
                raise StaleTurn(f"{lease.conversation}: {refused}")
            if not self._waits_for(queued.turn):
                state.drop_notices(queued.user)
            state.set_timers(queued, change)
            state.finish(queued)
            if change.history is not None:
                _remember(state.histories, queued.user, change.history, MAX_HISTORIES)
            for reply, pid in change.replies:
                _append_reply(state, pid, outbox_entry(queued.turn.conversation, reply))
            return self._next_work(lease, state, let_go=let_go)

    async def journal(self, lease: Lease, seq: int, at: int, entries: Sequence[str]) -> None:
        """Append to the journal of the first turn. Raises LeaseLost, StaleTurn."""
        with self._lock:
            state = self._held(lease)
            if not state.inbox or state.inbox[0].seq != seq:
                raise StaleTurn(f"{lease.conversation}: moved")
            if at == 0 and state.journal[:1] != list(entries[:1]):
                state.journal.clear()
            if at > len(state.journal):
                raise StaleTurn(f"{lease.conversation}: gap")
            state.journal += entries[len(state.journal) - at :]

    async def entries(self, lease: Lease) -> Sequence[str]:
        """Return the journal of the first turn. Raises LeaseLost."""
        with self._lock:
            return tuple(self._held(lease).journal)

    async def release(self, lease: Lease, *, hand_over: bool = False, begun: bool = False) -> NextItem:
        """Release the lease. Work that came in meanwhile is returned instead, unless it is to be handed over."""
        with self._lock:
            if not self.holds(lease):
                return None
            state = self._conversations[lease.conversation]
            self._run_timers(lease.conversation, state)
            if state.busy and not hand_over:
                return self._view(lease.conversation, state)
            state.let_go(self._clock() + WAKE_GRACE_SECONDS if state.busy else state.next_timer())
            if not begun:
                state.begun = (0, 0, 0)
            return None

    async def mark_delivered(
        self,
        lease: Lease,
        reply: QueuedReply,
        *,
        receipt: str = "",
        dead: str = "",
        end: FinalState = "dead",
        gap: float = 0.0,
        let_go: bool = False,
        written_at: float = 0.0,
    ) -> NextItem:
        """Record that the reply was sent, or is given up for the reason `dead`. Raises LeaseLost."""
        with self._lock:
            if self._ended(lease):
                return None
            state, now = self._held(lease), self._clock()
            if state.outbox and state.outbox[0][0] == reply.number:
                number, pid, text = state.outbox.popleft()
                asked, repeats = pid.removeprefix(PART).removeprefix(ABOUT), pid.startswith(ABOUT)
                delivery_id, doubtful = f"{lease.conversation}#{number}", number in state.suspect or end == "doubtful"
                tries, state.attempts = state.attempts + 1, 0
                state.suspect.discard(number)
                state.hold = None
                if dead:
                    self._statuses.end(
                        DeliveryStatus(
                            delivery_id, "dead", now, tries, "", dead, text, bool(pid) and not repeats, doubtful
                        )
                    )
                    if end == "closed":
                        state.close(dead)
                    if end == "limited":
                        self._channel(lease.conversation).silence(now + gap)
                    self._pendings.end_undelivered("" if repeats else asked)
                else:
                    copy = self._statuses.find(delivery_id)
                    self._statuses.end(
                        DeliveryStatus(
                            delivery_id, "ambiguous" if doubtful else "sent", now, tries, receipt, reply.cause
                        )
                    )
                    state.chat = max(now, state.chat) + gap
                    state.newest = pid if pid == asked else ""
                    if pid == asked:
                        _set_notices(state, *self._pendings.mark_shown(pid, state.received, receipt, written_at))
                    if pid and not repeats:
                        _remember(state.asks, str(number), asked, MAX_DELIVERIES)
                    self._pendings.add_prompt(asked, copy.receipt if copy else "")
                    self._pendings.add_prompt(asked, receipt)
                    if (known := self._statuses.find(delivery_id)) and known.state == "failed":  # said before we were
                        self._expire_question_of(state, number)
            return self._next_work(lease, state, let_go=let_go)

    async def postpone(
        self, lease: Lease, reply: QueuedReply, seconds: float, why: PostponeReason = "tried", reason: str = ""
    ) -> None:
        """Postpone the reply and release the lease, or hold the reply until the user writes. Raises LeaseLost."""
        with self._lock:
            state, later = self._held(lease), self._clock() + seconds
            if why == "held" and not state.inbox:
                state.put_on_hold(reply.number, self._clock(), reason)
            elif state.outbox and state.outbox[0][0] == reply.number:
                state.sending = (0, 0)
                if why != "paced":
                    state.slot = (0, 0.0)
                    state.attempts += why != "down"
                if why == "suspect":
                    state.suspect.add(reply.number)
                if why in ("limited", "down"):
                    state.slot = (reply.number, self._channel(lease.conversation).silence(later))
                state.token = PARKED
                state.until = state.due = later

    async def book_slot(self, lease: Lease, reply: QueuedReply, per_second: float) -> float:
        """Store the channel's rate. Return the seconds until the reply's slot. Raises LeaseLost."""
        with self._lock:
            state, channel = self._held(lease), self._channel(lease.conversation)
            channel.gap = 1 / per_second
            return channel.book(state, reply.number, self._clock()) or 0.0

    async def forward(self, delivery: Delivery) -> str:
        """Append a reply to another conversation, once. Return its id there, or "" when too many replies wait there."""
        with self._lock:
            first, name = self._forwarded.get(delivery.id), delivery.conversation.id
            if first:
                return first
            state, now = self._conversations.get(name, _ConversationState()), self._clock()
            if len(state.outbox) >= MAX_WAITING or (name not in self._conversations and not self._has_room()):
                return ""
            self._conversations[name] = state
            state.due = state.due if state.awaited(now) else now
            number = _append_reply(state, "", outbox_entry(delivery.conversation, delivery.reply))
            _remember(self._forwarded, delivery.id, f"{name}#{number}", MAX_FORWARDED)
            return f"{name}#{number}"

    def report(self, delivery_id: str, message_id: str, status: str, reason: str = "") -> str:
        """Record what a platform reports. Return the state that is stored, "" if the delivery is unknown."""
        news, (conversation, number) = REPORTS.get(status), split_id(delivery_id)
        if news is None:
            return ""
        with self._lock:
            state = self._conversations.get(conversation)
            sending = bool(state and state.outbox and state.outbox[0][0] == number)
            tries = state.attempts + 1 if state else 1
            delivery = DeliveryStatus(delivery_id, news, self._clock(), tries, message_id, reason)
            kept = self._statuses.report(delivery, sending=sending)
            self._pendings.add_prompt(state.asks.get(str(number), "") if state else "", message_id)
            if state and kept == news == "failed":
                self._expire_question_of(state, number)
            return kept

    def _expire_question_of(self, state: _ConversationState, number: int) -> None:
        """Expire the question of a reply that failed after all: nobody agrees to what was never shown."""
        self._pendings.end_undelivered(state.asks.get(str(number), ""), shown=True)

    def statuses(self, conversation: str) -> tuple[list[DeliveryStatus], str]:
        """Return the last deliveries of a conversation, oldest first, and why its address takes no messages, or ""."""
        with self._lock:
            state = self._conversations.get(conversation)
            if state is None:
                return self._statuses.of(conversation), ""
            return [*self._statuses.of(conversation), *_held_statuses(conversation, state)], state.why_closed

    def close(self, conversation: str, reason: str, *, late: bool = False) -> None:
        """Record that an address takes no messages, or with "" that it does."""
        with self._lock:
            state = self._conversations.get(conversation)
            if state is None or (late and (state.inbox or self._clock() - state.heard < LATE_SECONDS)):
                return
            if reason:
                state.close(reason)
            else:
                state.closed = (-1, "")

    def undelivered(self, state: UndeliveredState, most: int = 1000) -> list[DeliveryStatus]:
        """Return the undelivered replies of a state, newest first."""
        with self._lock:
            if state != "held":
                return list(self._statuses.put_aside[state])[:most]
            held = [status for name, state in self._conversations.items() for status in _held_statuses(name, state)]
            return sorted(held, key=lambda status: -status.at)[:most]

    def retry(self, delivery_id: str) -> str:
        """Put a dead reply back at the end of its outbox, once. Return its new id. Raises NotRepeatable."""
        with self._lock:
            return new_id(delivery_id, self._retry(delivery_id))

    def overdue(self) -> list[str]:
        """Return conversations with work that are due although no worker came. Each is returned again only after a
        while.
        """
        with self._lock:
            now = self._clock()
            found = [
                (name, state)
                for name, state in self._conversations.items()
                if state.due is not None and state.due <= now
            ]
            for name, state in found:
                self._run_timers(name, state)
                state.due = now + WAKE_GRACE_SECONDS if state.busy else state.next_timer()
            return [name for name, state in found if state.busy]

    def holds(self, lease: Lease) -> bool:
        """Return whether this lease is still the conversation's last."""
        state = self._conversations.get(lease.conversation)
        return state is not None and (state.epoch, state.token) == (lease.epoch, lease.token)

    def head(self, conversation: str) -> tuple[int, float]:
        """Return number and time of receipt of the first turn; number 0 when there is none."""
        state = self._conversations.get(conversation)
        return (state.inbox[0].seq, state.inbox[0].received_at) if state and state.inbox else (0, 0.0)

    def _retry(self, delivery_id: str) -> str:
        known = self._statuses.find(delivery_id)
        if known and known.state == "retried":
            return known.receipt
        found = next((status for status in self._statuses.put_aside["dead"] if status.id == delivery_id), None)
        entry, doubtful = repeatable(found) if found else ("", False)
        arrived = self._statuses.arrived(delivery_id)
        if found:
            self._statuses.put_aside["dead"].remove(found)
        if arrived or not found:
            return "arrived" if arrived else ""
        state = self._conversations.setdefault(split_id(delivery_id)[0], _ConversationState())
        now = self._clock()
        state.due = state.due if state.awaited(now) else now + WAKE_GRACE_SECONDS
        new = _append_reply(state, "", entry)
        state.suspect |= {new} if doubtful else set()
        self._statuses.note(DeliveryStatus(delivery_id, "retried", now, 0, str(new)), over=True)
        return str(new)

    def _channel(self, conversation: str) -> _Channel:
        return self._channels.setdefault(conversation.partition(":")[0], _Channel())

    def say(self, conversation: str, entry: str) -> None:
        """Append a reply that no turn commits: the late truth about an effect."""
        state = self._conversations.get(conversation)
        if state is not None:
            now = self._clock()
            state.due = state.due if state.awaited(now) else now
            _append_reply(state, "", entry)

    def _refused(
        self, state: _ConversationState, turn: Turn, tapped: str, now: float, *, is_new: bool, paced: bool
    ) -> Outcome | None:
        """Return why the turn cannot be accepted now, None when it can."""
        user, tapped_user = turn.scope.id, self._pendings.user_of(tapped)
        is_own = tapped_user in ("", user)
        urgent = _may_stop(state, turn) or (is_own and (bool(tapped_user) or self._waits_for(turn)))
        if state.is_full(user, self._limits.waiting, urgent=urgent) or (is_new and not self._has_room()):
            return "full"
        if not state.inbox and self._is_overloaded(state, now, shares=2 if urgent or turn.is_stop else 0):
            return "overloaded"
        counted = f"{user}:quick" if is_tap_or_status(turn) and is_own else "" if urgent else user
        if paced and counted and state.is_too_fast(counted, now, self._limits):
            return "too_fast"
        return None

    def _is_overloaded(self, state: _ConversationState, now: float, *, shares: int) -> bool:
        """Return whether so many other conversations have work that this one cannot begin. Beyond the limit there are
        two reserves: the first for notices of refusal, the second for urgent turns.
        """
        most = self._limits.conversations
        others = sum(other.at_work(now) for other in self._conversations.values() if other is not state)
        return others >= most + shares * (most / 10 + SPARE)

    def _waits_for(self, turn: Turn) -> bool:
        live, _ = self._pendings.hashes_for_turn(turn.conversation.id, turn.scope.id, "")
        return bool(live)

    def notify(self, turn: Turn, reply: Reply) -> bool:
        """Send a notice to a sender who is refused, once a minute and while there is room."""
        name, now = turn.conversation.id, self._clock()
        with self._lock:
            state = self._conversations.get(name, _ConversationState())
            awaited = state.awaited(now)
            has_room = name in self._conversations or self._has_room()
            may_begin = awaited or (has_room and not self._is_overloaded(state, now, shares=1))
            if now - state.notified_at < BUSY_NOTICE_SECONDS or not may_begin:
                return False
            self._conversations[name] = state
            state.notified_at = state.heard = now
            state.closed, state.hold = (-1, ""), None
            state.due = state.due if awaited else now + WAKE_GRACE_SECONDS
            _append_reply(state, "", outbox_entry(turn.conversation, shown_to(turn, reply)))
            return True

    def is_question_open(self, turn: Turn) -> bool:
        """Return whether a question waits for the answer of the turn's sender, or the turn was received before."""
        with self._lock:
            state = self._conversations.get(turn.conversation.id, _ConversationState())
            return state.first_of(turn, self._clock()) > 0 or self._waits_for(turn)

    def turn_status(self, turn: Turn) -> TurnStatus:
        """Return the status of a turn."""
        with self._lock:
            state = self._conversations.get(turn.conversation.id, _ConversationState())
            if any(waiting.turn.event_id == turn.event_id for waiting in state.inbox):
                return "waits"
            return "done" if state.first_of(turn, self._clock()) else "unknown"

    def _run_timers(self, conversation: str, state: _ConversationState) -> None:
        """Send the notices of due timers. A timer about a question waits while turns wait: one may be the yes."""
        now = self._clock()
        for timer_entry in sorted(
            state.timer_entries.values(), key=lambda timer_entry: (timer_entry.timer.at, timer_entry.timer.id)
        ):
            if timer_entry.timer.at > now or ((timer_entry.ends or timer_entry.asks) and state.inbox):
                continue
            del state.timer_entries[timer_entry.timer.id]
            if self._has_notice(conversation, timer_entry):
                prompt = self._pendings.hashes_for_turn(conversation, "", timer_entry.ends)[1].get("prompt")
                closed = as_edit_of(timer_entry.ending, prompt) if timer_entry.ending and prompt else ""
                for entry in filter(None, (closed, timer_entry.entry)):
                    _append_reply(state, "", entry)

    def _has_notice(self, conversation: str, timer_entry: _TimerEntry) -> bool:
        """Return whether a due timer has anything to say: about a question only while it is unanswered."""
        if timer_entry.ends:
            return self._pendings.expire_if_due(timer_entry.ends)
        return (
            not timer_entry.asks
            or self._pendings.hashes_for_turn(conversation, "", timer_entry.asks)[1].get("state") == "shown"
        )

    def _next_work(self, lease: Lease, state: _ConversationState, *, let_go: bool) -> NextItem:
        """Return what is next. If nothing is left and `let_go` is set, release the lease in the same step."""
        work = self._view(lease.conversation, state)
        if work is None and let_go:
            state.let_go(state.next_timer())
            state.begun, state.ended = (0, 0, 0), (lease.epoch, lease.token)
        return work

    def _ended(self, lease: Lease) -> bool:
        """Return whether this worker has released the lease so and asks again."""
        state = self._conversations.get(lease.conversation)
        return state is not None and state.ended == (lease.epoch, lease.token)

    def _held(self, lease: Lease) -> _ConversationState:
        if not self.holds(lease):
            raise LeaseLost(lease.conversation)
        return self._conversations[lease.conversation]

    def _view(self, conversation: str, state: _ConversationState) -> NextItem:
        if state.outbox:
            number, _, text = state.outbox[0]
            reply, now = QueuedReply(number, text, state.attempts + 1), self._clock()
            if reply.is_forwarded:
                return reply
            reply = replace(reply, silence=state.silence(now), closed=state.why_closed)
            if state.held:
                return replace(reply, suspect=number in state.suspect, held=now - state.held.since)
            suspect = state.may_have_arrived(number)
            wait = self._channel(conversation).book(state, number, now)
            receipt = self._statuses.arrived(f"{conversation}#{number}") if suspect else ""
            return replace(reply, suspect=suspect, wait=wait, ahead=max(0.0, state.chat - now), receipt=receipt)
        if not state.inbox:
            return None
        waiting = state.inbox[0]
        user = waiting.turn.scope.id
        live, tapped = self._pendings.hashes_for_turn(conversation, user, waiting.tapped)
        live = {**live, "newest": "1"} if state.newest and live.get("pid") == state.newest else live
        history = state.histories.get(user, "")
        timers = sort_timers(timer_entry.timer for timer_entry in state.timer_entries.values())
        return QueuedTurn(
            seq=waiting.seq,
            received_at=waiting.received_at,
            user=user,
            turn=waiting.turn,
            live=live,
            tapped=tapped,
            history=history,
            following=state.burst(),
            stop=state.stops.get(user, 0),
            timers=timers,
            journal=tuple(state.journal),
            attempt=state.attempt(waiting.seq),
            age=self._clock() - waiting.received_at,
        )

    def _has_room(self) -> bool:
        """Return whether one more conversation fits. The idle one that was used least recently is dropped for it."""
        if len(self._conversations) < self._max_conversations:
            return True
        idle = next((name for name, other in self._conversations.items() if other.due is None), None)
        if idle is not None:
            self._conversations.pop(idle)
            self._statuses.noted.pop(idle, None)
        return idle is not None


class _NoActionRecords:
    """Knows no pending actions: none can be proposed."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.conversations: Any = None

    def hashes_for_turn(self, conversation: str, user: str, tapped: str) -> tuple[dict[str, str], dict[str, str]]:
        return {}, {}

    def user_of(self, pid: str) -> str:
        return ""

    def commit(self, conversation: str, waiting: DecisionContext, change: TurnChange) -> str:
        if change.transition or change.new_actions:
            raise ValueError("this mailbox knows no pending actions: give MemoryConversations the store's `records`")
        return ""

    def add_prompt(self, pid: str, message: str) -> None:
        """Do nothing: there is no preview."""

    def mark_shown(
        self, pid: str, seen: int = 0, prompt: str = "", written_at: float = 0.0
    ) -> tuple[float, NewAction | None]:
        """Do nothing: there is no preview."""
        return 0.0, None

    def expire_if_due(self, pid: str) -> bool:
        """Return False: there is no preview."""
        return False

    def end_undelivered(self, pid: str, *, shown: bool = False) -> None:
        """Do nothing: there is no preview."""


def _may_stop(state: _ConversationState, turn: Turn) -> bool:
    """Return whether the turn stops a waiting turn of its sender, and is the first that does."""
    user = turn.scope.id
    return turn.is_stop and user not in state.stops and any(each.turn.scope.id == user for each in state.inbox)


def _append_reply(state: _ConversationState, pid: str, entry: str) -> int:
    """Append a reply, or replace a waiting one with the same collapse key. Return its number."""
    mark = _MARK.match(entry) if not pid else None
    for at, (number, other, old) in enumerate(state.outbox if mark else ()):
        is_free = not other and number != state.sending[0] and number not in state.suspect
        if mark and is_free and old.startswith(mark[0]):
            state.outbox[at] = (number, "", entry)
            return number
    state.said += 1
    state.outbox.append((state.said, pid, entry))
    return state.said


def _held_statuses(conversation: str, state: _ConversationState) -> list[DeliveryStatus]:
    """Return the held reply of a conversation as a delivery status."""
    held = state.held
    return [DeliveryStatus(f"{conversation}#{held.number}", "held", held.since, 0, reason=held.reason)] if held else []


def _set_notices(state: _ConversationState, at: float, arm: NewAction | None) -> None:
    """Set the timers of an action that was just shown, for when nobody answers until its window closes `at`.

    A scope waits for one action at a time, so a later notice replaces an earlier one.
    """
    if arm is None:
        return
    sooner = max(0, arm.ttl_ms - arm.alarm_after_ms) / 1000
    alarm = Timer(f"alarm:{arm.user}", round(at - sooner, 3), _text(arm.alarm))
    notice = Timer(f"end:{arm.user}", at, _text(arm.notice))
    for timer_entry in (
        _TimerEntry(alarm, arm.alarm, asks=arm.pending_action_id),
        _TimerEntry(notice, arm.notice, ends=arm.pending_action_id, ending=arm.ending),
    ):
        if (timer_entry.entry or timer_entry.ending) and len(state.timer_entries) < MAX_TIMERS:
            state.timer_entries[timer_entry.timer.id] = timer_entry


def _text(entry: str) -> str:
    return Reply.from_json(json.loads(entry)["reply"]).text if entry else ""


def _remember(notes: OrderedDict[str, V], key: str, value: V, most: int) -> None:
    notes[key] = value
    notes.move_to_end(key)
    while len(notes) > most:
        notes.popitem(last=False)
