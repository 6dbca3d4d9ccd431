"""MemoryLanes: mailbox and outbox in one process, the working twin of those in Redis."""

from __future__ import annotations

import json
import re
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
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
    in_order,
    in_place_of,
    outbox_entry,
)
from sayso.pending.turns.queued import (
    ABOUT,
    PART,
    LeaseLost,
    NextItem,
    QueuedReply,
    QueuedTurn,
    StaleTurn,
    is_quick,
    stops,
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
    DeliveryStatus,
    FinalState,
    MemoryDeliveryStatuses,
    PostponeReason,
    UndeliveredState,
    new_id,
    repeatable,
    split_id,
)

V = TypeVar("V")

_MARK = re.compile(r'\{"collapse": "[^"]+"')

#: Conversations remembered; past it the idle ones are forgotten first, and with none idle the newcomer is refused.
MAX_LANES = 5000
#: Event ids and histories remembered in one conversation.
MAX_EVENTS = 1000
#: Forwarded deliveries remembered.
MAX_FORWARDED = 5000
MAX_HISTORIES = 1000
#: Turns that may be worked on as one.
MAX_BURST = 10
#: Seconds between two words to somebody whose turns are refused.
BUSY_NOTICE_SECONDS = 60.0
#: Places beyond a full mailbox, for taps, stops and answers to a question.
URGENT_PLACES = 10
#: Of these for one person.
URGENT_EACH = 2
#: Conversations in each share that a crowd leaves free, beside a tenth of its limit.
SPARE = 10
#: What is due within these seconds has work, or a holder; later ones wait for a platform or a timer.
SOON_SECONDS = 15.0
#: Who holds a lane that waits for its platform: nobody.
PARKED = "parked"
#: Seconds between those that waited for a channel that names no pace.
SPREAD_SECONDS = 0.05
#: Seconds after which a wake-up that nobody answered is repeated.
WAKE_GRACE_SECONDS = 5.0


class Pendings(Protocol):
    """The pending actions that move together with the lanes: `sayso.pending.memory.MemoryRecords`.

    `lock` is the one lock of both; `fence` is where the records find the lanes.
    """

    lock: Any
    fence: Any

    def view(self, conversation: str, user: str, tapped: str) -> tuple[dict[str, str], dict[str, str]]:
        """The live action of a scope and the one a button names."""

    def asked(self, pid: str) -> str:
        """The user whom an action waits for, "" where nobody knows."""

    def commit(self, conversation: str, letter: DecisionContext, change: TurnChange) -> str:
        """Make the change, or say what is in its way."""

    def note_shows(self, pid: str, message: str) -> None:
        """Note that this message of the platform shows the question, or a piece or a copy of it."""

    def show(
        self, pid: str, seen: int = 0, prompt: str = "", written_at: float = 0.0
    ) -> tuple[float, NewAction | None]:
        """The preview was delivered, as the message `prompt`: the window opens. Returns when it closes, and on what."""

    def run_out(self, pid: str) -> bool:
        """Whether the window closed on what nobody answered: it ends here."""

    def bury(self, pid: str, *, shown: bool = False) -> None:
        """The preview can never be delivered, or, where it was `shown`, was not."""


@dataclass(frozen=True, slots=True)
class _Letter:
    seq: int
    received_at: float
    tapped: str
    turn: Turn


@dataclass(frozen=True, slots=True)
class _Bell:
    """A timer, the outbox entry that it says, and the action whose window it `ends` or that nobody answered when it
    `asks`, "" for none. `ending` takes the place of the message that asked.
    """

    timer: Timer
    entry: str
    ends: str = ""
    asks: str = ""
    ending: str = ""


@dataclass(frozen=True, slots=True)
class _Hold:
    """A reply that nobody may be told before they write: how many turns had come in by then, since when, why."""

    number: int
    received: int
    since: float
    reason: str


@dataclass(slots=True)
class _Lane:
    """One conversation. `due` is when somebody should look after it, None while there is nothing to do."""

    inbox: deque[_Letter] = field(default_factory=deque)
    outbox: deque[tuple[int, str, str]] = field(default_factory=deque)
    seen: OrderedDict[str, tuple[int, float]] = field(default_factory=OrderedDict)
    histories: OrderedDict[str, str] = field(default_factory=OrderedDict)
    bells: dict[str, _Bell] = field(default_factory=dict)
    #: By user, when all that may be said in one go is gained back.
    paces: OrderedDict[str, float] = field(default_factory=OrderedDict)
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
    hold: _Hold | None = None
    #: The question that was said last, "" after anything else.
    newest: str = ""
    told_full: float = 0.0
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
        """Whether somebody comes anyway. A timer brings nobody before it rings."""
        return self.due is not None and (self.until > now or (self.busy and not self.held))

    @property
    def held(self) -> _Hold | None:
        """The hold of the first reply, while nobody wrote."""
        hold = self.hold
        if hold is None or hold.received != self.received or not self.outbox:
            return None
        return hold if self.outbox[0][0] == hold.number else None

    @property
    def why_closed(self) -> str:
        """Why the address takes nothing, "" where it does. Where nobody ever wrote, nobody could reopen it."""
        turns, reason = self.closed
        return reason if turns and turns == self.received else ""

    def first_of(self, turn: Turn, now: float) -> int:
        """The number under which it came in before, 0 for one that is new."""
        number, at = self.seen.get(turn.event_id, (0, -inf))
        return number if now - at < SEEN_MS / 1000 else 0

    def close(self, reason: str) -> None:
        """The address takes nothing until somebody writes; who wrote meanwhile is tried first."""
        if not self.inbox:
            self.closed = (self.received, reason)

    def silence(self, now: float) -> float:
        """Seconds since anybody last wrote here."""
        return max(0.0, now - self.heard) if self.heard else inf

    def put_on_hold(self, number: int, now: float, reason: str) -> None:
        """Nobody has to come before somebody writes, a timer rings, or the hold ends."""
        self.hold = self.held or _Hold(number, self.received, now, reason)
        self.attempts, self.sending, self.slot, self.begun = 0, (0, 0), (0, 0.0), (0, 0, 0)
        self.let_go(min(self.hold.since + KEEP_HELD_SECONDS, self.next_ring() or inf))

    def at_work(self, now: float) -> bool:
        """Whether it has work, or a holder, now."""
        return self.due is not None and self.due <= now + SOON_SECONDS

    def next_ring(self) -> float | None:
        """When the next timer rings."""
        return min((bell.timer.at for bell in self.bells.values()), default=None)

    def may_have_arrived(self, number: int) -> bool:
        """Whether an earlier holder was shown this reply too, and neither settled nor postponed it."""
        if self.sending[0] == number and self.sending[1] != self.epoch:
            self.suspect.add(number)
        self.sending = (number, self.epoch)
        return number in self.suspect

    def attempt(self, seq: int) -> int:
        """How many holders of the lane were shown this turn."""
        last, by, times = self.begun
        times = times if last == seq else 0
        if (last, by) != (seq, self.epoch):
            times += 1
            self.begun = (seq, self.epoch, times)
        return times

    def burst(self) -> tuple[tuple[int, Turn], ...]:
        """Turns right behind the first, of the same user and without buttons: they may be worked on as one."""
        first, *others = list(self.inbox)[:MAX_BURST]
        same = [each for each in others if not first.tapped]
        alike = takewhile(lambda each: each.turn.scope.id == first.turn.scope.id and not each.tapped, same)
        return tuple((each.seq, each.turn) for each in alike)

    def is_full(self, user: str, cap: int, *, urgent: bool) -> bool:
        """Whether there is no place for a turn of this user; of the urgent ones each has a few."""
        if len(self.inbox) < cap:
            return False
        own = sum(letter.turn.scope.id == user for letter in list(self.inbox)[cap:])
        return not urgent or len(self.inbox) >= cap + URGENT_PLACES or own >= URGENT_EACH

    def is_too_fast(self, user: str, now: float, limits: InboxLimits) -> bool:
        """Whether a user has used up what may be said in one go, and what has been gained per minute since."""
        gain = 60.0 / limits.per_minute
        whole = max(self.paces.get(user, 0.0), now) + gain
        if whole - now > gain * limits.in_one_go:
            return True
        _remember(self.paces, user, whole, MAX_HISTORIES)
        return False

    def finish(self, queued: QueuedTurn) -> None:
        """The turn is over, and with it those that were worked on together and the stop that reached back to them."""
        while self.inbox and self.inbox[0].seq <= queued.last:
            self.inbox.popleft()
        self.journal.clear()
        self.done = queued.last
        if self.stops.get(queued.user, inf) <= self.done:
            del self.stops[queued.user]

    def drop_notices(self, user: str) -> None:
        """Nothing waits for this user: what was to be said at its end is not."""
        for kind in ("alarm", "end"):
            self.bells.pop(f"{kind}:{user}", None)

    def let_go(self, due: float | None) -> None:
        self.token, self.until, self.due = "", 0.0, due


@dataclass(slots=True)
class _Channel:
    """How fast a channel sends: seconds between two messages, when its next slot is free, until when it is silent."""

    gap: float | None = None
    free: float = 0.0
    closed: float = 0.0

    def book(self, lane: _Lane, number: int, now: float) -> float | None:
        """Seconds until a reply's turn; its slot is booked once."""
        if self.gap is None and self.closed <= now:
            return None
        if lane.slot[0] != number or lane.slot[1] < self.closed:
            lane.slot = (number, max(now, self.free, self.closed))
            self.free = lane.slot[1] + (SPREAD_SECONDS if self.gap is None else self.gap)
        return max(0.0, lane.slot[1] - now)

    def silence(self, until: float) -> float:
        """The platform asks all to wait. Returns until when, with what it asked before."""
        self.closed = max(self.closed, until)
        self.free = max(self.free, self.closed) + (SPREAD_SECONDS if self.gap is None else self.gap)
        return self.closed


class MemoryLanes:
    """Lives as long as its process, bounded; Mailbox, Outbox, Journals and Deliveries in one, for one-process bots.

    Nobody is woken: drain what you accepted, and what `overdue` names. `pendings` are the `records` of the agent's
    store; without them nothing can be proposed.
    """

    def __init__(
        self,
        voice: TextsForTurn,
        pendings: Pendings | None = None,
        *,
        clock: Callable[[], float] = time.time,
        limits: InboxLimits | None = None,
        max_lanes: int = MAX_LANES,
    ) -> None:
        self._fates = MemoryDeliveryStatuses()
        self._channels: dict[str, _Channel] = {}
        self._pendings: Pendings = pendings or _NoPendings()
        self._pendings.fence = self
        self._lock = self._pendings.lock
        self._clock = clock
        self._voice = voice
        self._limits = limits or InboxLimits()
        self._max_lanes = max_lanes
        self._lanes: OrderedDict[str, _Lane] = OrderedDict()
        self._forwarded: OrderedDict[str, str] = OrderedDict()

    def accept(self, turn: Turn, *, tapped: str = "", waited_seconds: float = 0.0) -> Accepted:
        """Store a turn once."""
        name, waited, now = turn.conversation.id, waited_ms(waited_seconds) / 1000, self._clock()
        with self._lock:
            lane, is_new = self._lanes.get(name, _Lane()), name not in self._lanes
            if first := lane.first_of(turn, now):
                return Accepted("duplicate", first)
            if not lane.received and not turn.addressed:
                return Accepted("ignored", 0)
            refused = self._refused(lane, turn, tapped, now, is_new=is_new, paced=not waited)
            if refused:
                if not waited_seconds and is_told_refusal(turn):
                    self.notify(turn, refusal(self._voice(turn), refused))
                return Accepted(refused, 0)
            self._lanes[name] = lane
            self._lanes.move_to_end(name)
            awaited = lane.awaited(now)
            lane.received += 1
            lane.heard = max(lane.heard, now - waited)
            if stops(turn) and any(other.turn.scope.id == turn.scope.id for other in lane.inbox):
                lane.stops[turn.scope.id] = lane.received
            lane.inbox.append(_Letter(lane.received, now - waited, tapped, turn))
            _remember(lane.seen, turn.event_id, (lane.received, now), MAX_EVENTS)
            lane.due = lane.due if awaited else now + WAKE_GRACE_SECONDS
            return Accepted("new", lane.received)

    def lease(self, conversation: str, token: str) -> tuple[Lease, NextItem] | None:
        """Take a lane and see what it holds. None while another worker has it."""
        with self._lock:
            lane, now = self._lanes.get(conversation), self._clock()
            if lane is None:
                return None
            held = lane.until > now
            if held and lane.token != token:
                return None
            lane.epoch += not held
            lane.token, lane.until, lane.ended = token, now + LEASE_MS / 1000, (0, "")
            lane.due, lane.unserved = lane.until, 0.0
            return Lease(conversation, lane.epoch, token), self._view(conversation, lane)

    def defer(self, conversation: str) -> float:
        """Leave a conversation to a worker that knows its channel. Return the seconds since the first that did not."""
        with self._lock:
            lane, now = self._lanes.get(conversation), self._clock()
            if lane is None or lane.until > now:
                return -1.0
            lane.unserved = lane.unserved or now
            waited = now - lane.unserved
            lane.due = now + max(1.0, min(60.0, waited / 4))
            return waited

    def renew(self, lease: Lease) -> int:
        """Keep the lane; the last turn with which the user of the one at the head said stop. Raises LaneLost."""
        with self._lock:
            lane = self._held(lease)
            lane.until = lane.due = self._clock() + LEASE_MS / 1000
            return lane.stops.get(lane.inbox[0].turn.scope.id, 0) if lane.inbox else 0

    def commit(self, lease: Lease, queued: QueuedTurn, change: TurnChange, *, let_go: bool = False) -> NextItem:
        """Finish a turn, all or nothing, and see what is next. Raises LaneLost, TurnOvertaken."""
        with self._lock:
            if self._ended(lease):
                return None
            lane = self._held(lease)
            if lane.done >= queued.seq:
                return self._next_work(lease, lane, let_go=let_go)
            if not lane.inbox or lane.inbox[0].seq != queued.seq:
                raise StaleTurn(f"{lease.conversation}: moved")
            if change.timers and len(lane.bells) + len(change.timers) - len(change.silenced) > MAX_TIMERS:
                raise StaleTurn(f"{lease.conversation}: timers")
            refused = self._pendings.commit(
                lease.conversation, DecisionContext(queued.user, queued.turn.event_id, lane.inbox[0].tapped), change
            )
            if refused:
                raise StaleTurn(f"{lease.conversation}: {refused}")
            if not self._waits_for(queued.turn):
                lane.drop_notices(queued.user)
            _set_timers(lane, queued, change)
            lane.finish(queued)
            if change.history is not None:
                _remember(lane.histories, queued.user, change.history, MAX_HISTORIES)
            for reply, pid in change.replies:
                _say(lane, pid, outbox_entry(queued.turn.conversation, reply))
            return self._next_work(lease, lane, let_go=let_go)

    def journal(self, lease: Lease, seq: int, at: int, entries: Sequence[str]) -> None:
        """Append to the journal of the turn at the head. Raises LaneLost, TurnOvertaken."""
        with self._lock:
            lane = self._held(lease)
            if not lane.inbox or lane.inbox[0].seq != seq:
                raise StaleTurn(f"{lease.conversation}: moved")
            if at == 0 and lane.journal[:1] != list(entries[:1]):
                lane.journal.clear()
            if at > len(lane.journal):
                raise StaleTurn(f"{lease.conversation}: gap")
            lane.journal += entries[len(lane.journal) - at :]

    def entries(self, lease: Lease) -> Sequence[str]:
        """The journal of the turn at the head, as it is now. Raises LaneLost."""
        with self._lock:
            return tuple(self._held(lease).journal)

    def release(self, lease: Lease, *, hand_over: bool = False, begun: bool = False) -> NextItem:
        """Let the lane go; what came in meanwhile is returned instead, unless it is to be handed over."""
        with self._lock:
            if not self.holds(lease):
                return None
            lane = self._lanes[lease.conversation]
            self._ring(lease.conversation, lane)
            if lane.busy and not hand_over:
                return self._view(lease.conversation, lane)
            lane.let_go(self._clock() + WAKE_GRACE_SECONDS if lane.busy else lane.next_ring())
            if not begun:
                lane.begun = (0, 0, 0)
            return None

    def mark_delivered(
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
        """The reply was sent, or is given up for the reason `dead`. Raises LaneLost."""
        with self._lock:
            if self._ended(lease):
                return None
            lane, now = self._held(lease), self._clock()
            if lane.outbox and lane.outbox[0][0] == reply.number:
                number, pid, text = lane.outbox.popleft()
                asked, repeats = pid.removeprefix(PART).removeprefix(ABOUT), pid.startswith(ABOUT)
                delivery_id, doubtful = f"{lease.conversation}#{number}", number in lane.suspect or end == "doubtful"
                tries, lane.attempts = lane.attempts + 1, 0
                lane.suspect.discard(number)
                lane.hold = None
                if dead:
                    self._fates.end(
                        DeliveryStatus(
                            delivery_id, "dead", now, tries, "", dead, text, bool(pid) and not repeats, doubtful
                        )
                    )
                    if end == "closed":
                        lane.close(dead)
                    if end == "limited":
                        self._channel(lease.conversation).silence(now + gap)
                    self._pendings.bury("" if repeats else asked)
                else:
                    copy = self._fates.find(delivery_id)
                    self._fates.end(
                        DeliveryStatus(
                            delivery_id, "ambiguous" if doubtful else "sent", now, tries, receipt, reply.cause
                        )
                    )
                    lane.chat = max(now, lane.chat) + gap
                    lane.newest = pid if pid == asked else ""
                    if pid == asked:
                        _set_notices(lane, *self._pendings.show(pid, lane.received, receipt, written_at))
                    if pid and not repeats:
                        _remember(lane.asks, str(number), asked, MAX_DELIVERIES)
                    self._pendings.note_shows(asked, copy.receipt if copy else "")
                    self._pendings.note_shows(asked, receipt)
                    if (known := self._fates.find(delivery_id)) and known.state == "failed":  # said before we were
                        self._reply_without_agent(lane, number)
            return self._next_work(lease, lane, let_go=let_go)

    def postpone(
        self, lease: Lease, reply: QueuedReply, seconds: float, why: PostponeReason = "tried", reason: str = ""
    ) -> None:
        """Later: the lane is let go until then, or held until somebody writes. Raises LaneLost."""
        with self._lock:
            lane, later = self._held(lease), self._clock() + seconds
            if why == "held" and not lane.inbox:
                lane.put_on_hold(reply.number, self._clock(), reason)
            elif lane.outbox and lane.outbox[0][0] == reply.number:
                lane.sending = (0, 0)
                if why != "paced":
                    lane.slot = (0, 0.0)
                    lane.attempts += why != "down"
                if why == "suspect":
                    lane.suspect.add(reply.number)
                if why in ("limited", "down"):
                    lane.slot = (reply.number, self._channel(lease.conversation).silence(later))
                lane.token = PARKED
                lane.until = lane.due = later

    def book_slot(self, lease: Lease, reply: QueuedReply, per_second: float) -> float:
        """Say how fast the reply's channel sends. Returns the seconds until its turn. Raises LaneLost."""
        with self._lock:
            lane, channel = self._held(lease), self._channel(lease.conversation)
            channel.gap = 1 / per_second
            return channel.book(lane, reply.number, self._clock()) or 0.0

    def forward(self, delivery: Delivery) -> str:
        """Say it in another lane, once. Returns its id there, or "" when too many replies wait there already."""
        with self._lock:
            first, name = self._forwarded.get(delivery.id), delivery.conversation.id
            if first:
                return first
            lane, now = self._lanes.get(name, _Lane()), self._clock()
            if len(lane.outbox) >= MAX_WAITING or (name not in self._lanes and not self._has_room()):
                return ""
            self._lanes[name] = lane
            lane.due = lane.due if lane.awaited(now) else now
            number = _say(lane, "", outbox_entry(delivery.conversation, delivery.reply))
            _remember(self._forwarded, delivery.id, f"{name}#{number}", MAX_FORWARDED)
            return f"{name}#{number}"

    def report(self, delivery_id: str, message_id: str, status: str, reason: str = "") -> str:
        """Note what a platform said. Returns the state that is kept, "" for one nobody knows."""
        news, (conversation, number) = REPORTS.get(status), split_id(delivery_id)
        if news is None:
            return ""
        with self._lock:
            lane = self._lanes.get(conversation)
            sending = bool(lane and lane.outbox and lane.outbox[0][0] == number)
            tries = lane.attempts + 1 if lane else 1
            fate = DeliveryStatus(delivery_id, news, self._clock(), tries, message_id, reason)
            kept = self._fates.report(fate, sending=sending)
            self._pendings.note_shows(lane.asks.get(str(number), "") if lane else "", message_id)
            if lane and kept == news == "failed":
                self._reply_without_agent(lane, number)
            return kept

    def _reply_without_agent(self, lane: _Lane, number: int) -> None:
        """A reply failed after all: what it asked for ends, for nobody agrees to what was never shown."""
        self._pendings.bury(lane.asks.get(str(number), ""), shown=True)

    def statuses(self, conversation: str) -> tuple[list[DeliveryStatus], str]:
        """The last deliveries of a conversation, oldest first, and why its address takes none now, or ""."""
        with self._lock:
            lane = self._lanes.get(conversation)
            if lane is None:
                return self._fates.of(conversation), ""
            return [*self._fates.of(conversation), *_held_fates(conversation, lane)], lane.why_closed

    def close(self, conversation: str, reason: str, *, late: bool = False) -> None:
        """Its platform says, unasked, that its address takes nothing, "" that it does."""
        with self._lock:
            lane = self._lanes.get(conversation)
            if lane is None or (late and (lane.inbox or self._clock() - lane.heard < LATE_SECONDS)):
                return
            if reason:
                lane.close(reason)
            else:
                lane.closed = (-1, "")

    def undelivered(self, state: UndeliveredState, most: int = 1000) -> list[DeliveryStatus]:
        """What was put aside, newest first."""
        with self._lock:
            if state != "held":
                return list(self._fates.put_aside[state])[:most]
            held = [fate for name, lane in self._lanes.items() for fate in _held_fates(name, lane)]
            return sorted(held, key=lambda fate: -fate.at)[:most]

    def retry(self, delivery_id: str) -> str:
        """Put a dead reply back at the end of its outbox, once. Returns its new id. Raises NotRepeatable."""
        with self._lock:
            return new_id(delivery_id, self._retry(delivery_id))

    def overdue(self) -> list[str]:
        """Conversations with work whose time has come although nobody came; each is named again only after a while."""
        with self._lock:
            now = self._clock()
            found = [(name, lane) for name, lane in self._lanes.items() if lane.due is not None and lane.due <= now]
            for name, lane in found:
                self._ring(name, lane)
                lane.due = now + WAKE_GRACE_SECONDS if lane.busy else lane.next_ring()
            return [name for name, lane in found if lane.busy]

    def holds(self, lease: Lease) -> bool:
        """The fence: whether this lease is still the lane's last."""
        lane = self._lanes.get(lease.conversation)
        return lane is not None and (lane.epoch, lane.token) == (lease.epoch, lease.token)

    def head(self, conversation: str) -> tuple[int, float]:
        """Number and time of receipt of the turn to work on; number 0 when there is none."""
        lane = self._lanes.get(conversation)
        return (lane.inbox[0].seq, lane.inbox[0].received_at) if lane and lane.inbox else (0, 0.0)

    def _retry(self, delivery_id: str) -> str:
        known = self._fates.find(delivery_id)
        if known and known.state == "retried":
            return known.receipt
        found = next((fate for fate in self._fates.put_aside["dead"] if fate.id == delivery_id), None)
        entry, doubtful = repeatable(found) if found else ("", False)
        arrived = self._fates.arrived(delivery_id)
        if found:
            self._fates.put_aside["dead"].remove(found)
        if arrived or not found:
            return "arrived" if arrived else ""
        lane = self._lanes.setdefault(split_id(delivery_id)[0], _Lane())
        now = self._clock()
        lane.due = lane.due if lane.awaited(now) else now + WAKE_GRACE_SECONDS
        new = _say(lane, "", entry)
        lane.suspect |= {new} if doubtful else set()
        self._fates.note(DeliveryStatus(delivery_id, "retried", now, 0, str(new)), over=True)
        return str(new)

    def _channel(self, conversation: str) -> _Channel:
        return self._channels.setdefault(conversation.partition(":")[0], _Channel())

    def say(self, conversation: str, entry: str) -> None:
        """Append a reply that no turn commits: the truth about an effect, told late."""
        lane = self._lanes.get(conversation)
        if lane is not None:
            now = self._clock()
            lane.due = lane.due if lane.awaited(now) else now
            _say(lane, "", entry)

    def _refused(
        self, lane: _Lane, turn: Turn, tapped: str, now: float, *, is_new: bool, paced: bool
    ) -> Outcome | None:
        """PostponeReason the turn cannot be taken now, None when it can."""
        user, asked = turn.scope.id, self._pendings.asked(tapped)
        is_own = asked in ("", user)
        urgent = _may_stop(lane, turn) or (is_own and (bool(asked) or self._waits_for(turn)))
        if lane.is_full(user, self._limits.waiting, urgent=urgent) or (is_new and not self._has_room()):
            return "full"
        if not lane.inbox and self._crowded(lane, now, shares=2 if urgent or stops(turn) else 0):
            return "overloaded"
        counted = f"{user}:quick" if is_quick(turn) and is_own else "" if urgent else user
        if paced and counted and lane.is_too_fast(counted, now, self._limits):
            return "too_fast"
        return None

    def _crowded(self, lane: _Lane, now: float, *, shares: int) -> bool:
        """Whether so many others have work that this one cannot begin. Beyond its limit a crowd leaves shares free: the
        first for telling who is refused, the second for who is urgent.
        """
        most = self._limits.conversations
        others = sum(other.at_work(now) for other in self._lanes.values() if other is not lane)
        return others >= most + shares * (most / 10 + SPARE)

    def _waits_for(self, turn: Turn) -> bool:
        live, _ = self._pendings.view(turn.conversation.id, turn.scope.id, "")
        return bool(live)

    def notify(self, turn: Turn, reply: Reply) -> bool:
        """Say something to somebody who is not let in, once a minute and while there is room."""
        name, now = turn.conversation.id, self._clock()
        with self._lock:
            lane = self._lanes.get(name, _Lane())
            awaited = lane.awaited(now)
            if now - lane.told_full < BUSY_NOTICE_SECONDS or not (awaited or self._may_tell(name, lane, now)):
                return False
            self._lanes[name] = lane
            lane.told_full = lane.heard = now
            lane.closed, lane.hold = (-1, ""), None
            lane.due = lane.due if awaited else now + WAKE_GRACE_SECONDS
            _say(lane, "", outbox_entry(turn.conversation, shown_to(turn, reply)))
            return True

    def is_question_open(self, turn: Turn) -> bool:
        """Whether a question waits for the answer of whoever wrote this, or it came in before."""
        with self._lock:
            lane = self._lanes.get(turn.conversation.id, _Lane())
            return lane.first_of(turn, self._clock()) > 0 or self._waits_for(turn)

    def turn_status(self, turn: Turn) -> TurnStatus:
        """How far a turn has come here."""
        with self._lock:
            lane = self._lanes.get(turn.conversation.id, _Lane())
            if any(letter.turn.event_id == turn.event_id for letter in lane.inbox):
                return "waits"
            return "done" if lane.first_of(turn, self._clock()) else "unknown"

    def _may_tell(self, name: str, lane: _Lane, now: float) -> bool:
        return not self._crowded(lane, now, shares=1) and (name in self._lanes or self._has_room())

    def _ring(self, conversation: str, lane: _Lane) -> None:
        """What is due says what it has to say. What is about a question waits until no turn does: it may be the yes."""
        now = self._clock()
        for bell in sorted(lane.bells.values(), key=lambda bell: (bell.timer.at, bell.timer.id)):
            if bell.timer.at > now or ((bell.ends or bell.asks) and lane.inbox):
                continue
            del lane.bells[bell.timer.id]
            if self._speaks(conversation, bell):
                prompt = self._pendings.view(conversation, "", bell.ends)[1].get("prompt")
                closed = in_place_of(bell.ending, prompt) if bell.ending and prompt else ""
                for entry in filter(None, (closed, bell.entry)):
                    _say(lane, "", entry)

    def _speaks(self, conversation: str, bell: _Bell) -> bool:
        """Whether one that is due has anything to say: one about a question only while nobody answered it."""
        if bell.ends:
            return self._pendings.run_out(bell.ends)
        return not bell.asks or self._pendings.view(conversation, "", bell.asks)[1].get("state") == "shown"

    def _next_work(self, lease: Lease, lane: _Lane, *, let_go: bool) -> NextItem:
        """What is next; a holder that has nothing left to do lets go in the same step."""
        work = self._view(lease.conversation, lane)
        if work is None and let_go:
            lane.let_go(lane.next_ring())
            lane.begun, lane.ended = (0, 0, 0), (lease.epoch, lease.token)
        return work

    def _ended(self, lease: Lease) -> bool:
        """Whether this holder has let go so, and lost the answer."""
        lane = self._lanes.get(lease.conversation)
        return lane is not None and lane.ended == (lease.epoch, lease.token)

    def _held(self, lease: Lease) -> _Lane:
        if not self.holds(lease):
            raise LeaseLost(lease.conversation)
        return self._lanes[lease.conversation]

    def _view(self, conversation: str, lane: _Lane) -> NextItem:
        if lane.outbox:
            number, _, text = lane.outbox[0]
            reply, now = QueuedReply(number, text, lane.attempts + 1), self._clock()
            if reply.is_forwarded:
                return reply
            reply = replace(reply, silence=lane.silence(now), closed=lane.why_closed)
            if lane.held:
                return replace(reply, suspect=number in lane.suspect, held=now - lane.held.since)
            suspect = lane.may_have_arrived(number)
            wait = self._channel(conversation).book(lane, number, now)
            receipt = self._fates.arrived(f"{conversation}#{number}") if suspect else ""
            return replace(reply, suspect=suspect, wait=wait, ahead=max(0.0, lane.chat - now), receipt=receipt)
        if not lane.inbox:
            return None
        letter = lane.inbox[0]
        user = letter.turn.scope.id
        live, tapped = self._pendings.view(conversation, user, letter.tapped)
        live = {**live, "newest": "1"} if lane.newest and live.get("pid") == lane.newest else live
        history = lane.histories.get(user, "")
        timers = in_order(bell.timer for bell in lane.bells.values())
        return QueuedTurn(
            seq=letter.seq,
            received_at=letter.received_at,
            user=user,
            turn=letter.turn,
            live=live,
            tapped=tapped,
            history=history,
            following=lane.burst(),
            stop=lane.stops.get(user, 0),
            timers=timers,
            journal=tuple(lane.journal),
            attempt=lane.attempt(letter.seq),
            age=self._clock() - letter.received_at,
        )

    def _has_room(self) -> bool:
        """Whether one more lane fits; the idle one that was used least recently is forgotten for it."""
        if len(self._lanes) < self._max_lanes:
            return True
        idle = next((name for name, other in self._lanes.items() if other.due is None), None)
        if idle is not None:
            self._lanes.pop(idle)
            self._fates.noted.pop(idle, None)
        return idle is not None


class _NoPendings:
    """Where nothing can be proposed."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.fence: Any = None

    def view(self, conversation: str, user: str, tapped: str) -> tuple[dict[str, str], dict[str, str]]:
        return {}, {}

    def asked(self, pid: str) -> str:
        return ""

    def commit(self, conversation: str, letter: DecisionContext, change: TurnChange) -> str:
        if change.move or change.arms:
            raise ValueError("these lanes know no pending actions: give MemoryLanes the store's `records`")
        return ""

    def note_shows(self, pid: str, message: str) -> None:
        """Nothing was previewed."""

    def show(
        self, pid: str, seen: int = 0, prompt: str = "", written_at: float = 0.0
    ) -> tuple[float, NewAction | None]:
        """Nothing was previewed."""
        return 0.0, None

    def run_out(self, pid: str) -> bool:
        """Nothing was previewed."""
        return False

    def bury(self, pid: str, *, shown: bool = False) -> None:
        """Nothing was previewed."""


def _may_stop(lane: _Lane, turn: Turn) -> bool:
    """Whether it stops a turn of its own person's, and is the first that does."""
    user = turn.scope.id
    return stops(turn) and user not in lane.stops and any(each.turn.scope.id == user for each in lane.inbox)


def _say(lane: _Lane, pid: str, entry: str) -> int:
    """Append a reply, or put it in the place of a waiting one that it collapses with. Returns its number."""
    mark = _MARK.match(entry) if not pid else None
    for at, (number, other, old) in enumerate(lane.outbox if mark else ()):
        is_free = not other and number != lane.sending[0] and number not in lane.suspect
        if mark and is_free and old.startswith(mark[0]):
            lane.outbox[at] = (number, "", entry)
            return number
    lane.said += 1
    lane.outbox.append((lane.said, pid, entry))
    return lane.said


def _held_fates(conversation: str, lane: _Lane) -> list[DeliveryStatus]:
    """What waits there for somebody to write."""
    held = lane.held
    return [DeliveryStatus(f"{conversation}#{held.number}", "held", held.since, 0, reason=held.reason)] if held else []


def _set_timers(lane: _Lane, queued: QueuedTurn, change: TurnChange) -> None:
    for name in change.silenced:
        lane.bells.pop(name, None)
    for timer in change.timers:
        lane.bells[timer.id] = _Bell(timer, outbox_entry(queued.turn.conversation, timer.reply))


def _set_notices(lane: _Lane, at: float, arm: NewAction | None) -> None:
    """What an action shown just now has to say when nobody answers, until its window closes `at`.

    A scope waits for one action at a time: the notice of the next takes the place of one that has nothing to say.
    """
    if arm is None:
        return
    sooner = max(0, arm.ttl_ms - arm.alarm_after_ms) / 1000
    alarm = Timer(f"alarm:{arm.user}", round(at - sooner, 3), _words(arm.alarm))
    notice = Timer(f"end:{arm.user}", at, _words(arm.notice))
    for bell in (
        _Bell(alarm, arm.alarm, asks=arm.pending_action_id),
        _Bell(notice, arm.notice, ends=arm.pending_action_id, ending=arm.ending),
    ):
        if (bell.entry or bell.ending) and len(lane.bells) < MAX_TIMERS:
            lane.bells[bell.timer.id] = bell


def _words(entry: str) -> str:
    return Reply.from_json(json.loads(entry)["reply"]).text if entry else ""


def _remember(notes: OrderedDict[str, V], key: str, value: V, most: int) -> None:
    notes[key] = value
    notes.move_to_end(key)
    while len(notes) > most:
        notes.popitem(last=False)
