"""The state of one conversation in memory, and the pace of a channel."""

from __future__ import annotations

import json
import re
from collections import OrderedDict, deque
from dataclasses import dataclass, field, replace
from itertools import takewhile
from math import inf
from typing import TypeVar

from sayso.channels.types import Reply, Turn
from sayso.pending.limits import (
    BARRED_MS,
    KEEP_HELD_MS,
    MAX_BURST,
    MAX_TIMERS,
    REPEAT_MS,
    SOON_MS,
    SPREAD_MS,
    URGENT_PLACES,
    URGENT_PLACES_EACH,
)
from sayso.pending.repository import StoredAction
from sayso.pending.turns import (
    FollowingTurn,
    NewAction,
    QueuedTurn,
    SettledAnswer,
    Timer,
    TurnChange,
    outbox_entry,
    sort_timers,
)
from sayso.workers.deliveries import DeliveryStatus
from sayso.workers.mailbox import SEEN_MS
from sayso.workers.sender import GivenUp

V = TypeVar("V")
_MARK = re.compile(r'\{"collapse": "[^"]+"')
#: Histories that are remembered in one conversation.
MAX_HISTORIES = 1000


@dataclass(frozen=True, slots=True)
class WaitingTurn:
    """A turn in the mailbox, when it came, and the action that it taps on."""

    seq: int
    received_at: float
    tapped: str
    turn: Turn


@dataclass(frozen=True, slots=True)
class TimerEntry:
    """A timer, its outbox entry, and the action that it `ends` or that it `asks` again for, "" for
    none. `ending` edits the message that asked.
    """

    timer: Timer
    entry: str
    ends: str = ""
    asks: str = ""
    ending: str = ""


@dataclass(frozen=True, slots=True)
class HeldReply:
    """A reply that waits for the user to write: how many turns had come in by then, since when,
    and why.
    """

    number: int
    received: int
    since: float
    reason: str


@dataclass(frozen=True, slots=True)
class SettledReplies:
    """A settled answer of a user, the numbers of its outcome's first and last reply,
    and when it was committed.
    """

    user: str
    answer: SettledAnswer
    first: int
    last: int
    at: float


@dataclass(slots=True)
class ConversationState:
    """The state of one conversation.

    `due` is when a worker should look at it, None while there is nothing to do.
    """

    inbox: deque[WaitingTurn] = field(default_factory=deque)
    outbox: deque[tuple[int, str, str]] = field(default_factory=deque)
    seen: OrderedDict[str, tuple[int, float]] = field(default_factory=OrderedDict)
    #: By the id of a message, the kind of its turn, the digest of what it shows,
    #: and when it was received.
    contents: OrderedDict[str, tuple[str, str, float]] = field(default_factory=OrderedDict)
    histories: OrderedDict[str, str] = field(default_factory=OrderedDict)
    timer_entries: dict[str, TimerEntry] = field(default_factory=dict)
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
    #: How many turns had come in when the user asked for silence, -1 for never.
    opted_out: int = -1
    #: Until when messages are dropped, because the bot may not write here.
    barred_until: float = 0.0
    #: Whether a turn was accepted although the bot may not write in its chat.
    #: A reply that is sent proves otherwise.
    in_barred_chat: bool = False
    heard: float = 0.0
    hold: HeldReply | None = None
    #: The action whose question is the last thing that the bot said, "" after any other reply.
    newest: str = ""
    settled: SettledReplies | None = None
    #: The actions after whose decision the agent went on, with the number of the deciding turn.
    continued: OrderedDict[str, int] = field(default_factory=OrderedDict)
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
        """Whether turns or replies wait."""
        return bool(self.inbox or self.outbox)

    def awaited(self, now: float) -> bool:
        """Return whether a worker comes anyway. A timer brings none before it is due."""
        return self.due is not None and (self.until > now or (self.busy and not self.held))

    @property
    def held(self) -> HeldReply | None:
        """Return the held reply, while it is the first and the user has not written."""
        hold = self.hold
        if hold is None or hold.received != self.received or not self.outbox:
            return None
        return hold if self.outbox[0][0] == hold.number else None

    @property
    def why_closed(self) -> str:
        """Return why the address takes no messages, "" if it does.

        A conversation without any turn is never closed, as no message could open it again, unless
        its user opted out.
        """
        turns, reason = self.closed
        if turns != self.received:
            return ""
        return reason if turns or self.opted_out == turns else ""

    def first_of(self, turn: Turn, now: float) -> int:
        """Return the number under which the turn was received before, 0 for a new one."""
        number, at = self.seen.get(turn.event_id, (0, -inf))
        return number if now - at < SEEN_MS / 1000 else 0

    def is_unchanged(self, turn: Turn, now: float) -> bool:
        """Return whether the turn's message was received with the same content before,
        or is older than its edit.
        """
        kind, content, at = self.contents.get(turn.message_key, ("", "", -inf))
        if not turn.content or now - at >= SEEN_MS / 1000:
            return False
        return content == turn.content or (kind == "edit" and turn.kind != "edit")

    def has_message(self) -> bool:
        """Return whether a turn waits that its person wrote, unlike one in which the agent goes on."""
        return any(not waiting.turn.continues for waiting in self.inbox)

    def close(self, reason: str, *, opted_out: bool = False) -> None:
        """Mark the address as closed until the user writes, unless a message waits already."""
        if self.has_message():
            return
        self.closed = (self.received, reason)
        if opted_out:
            self.opted_out = self.received

    def note_refusal(self, result: GivenUp, now: float) -> None:
        """Note what a reply that was given up says of the address."""
        if result.end in ("closed", "opted_out", "barred", "chat_barred"):
            self.close(result.reason, opted_out=result.end == "opted_out")
        if result.end == "barred":
            self.barred_until = now + BARRED_MS / 1000

    def silence(self, now: float) -> float:
        """Return the seconds since the last message here."""
        if self.heard:
            return max(0.0, now - self.heard)
        return inf

    def put_on_hold(self, number: int, now: float, reason: str) -> None:
        """Hold the first reply until the user writes, a timer is due, or the hold ends."""
        self.hold = self.held or HeldReply(number, self.received, now, reason)
        self.attempts = 0
        self.sending = (0, 0)
        self.slot = (0, 0.0)
        self.begun = (0, 0, 0)
        self.let_go(min(self.hold.since + KEEP_HELD_MS / 1000, self.next_timer() or inf))

    def at_work(self, now: float) -> bool:
        """Return whether the conversation has work, or a lease, now."""
        return self.due is not None and self.due <= now + SOON_MS / 1000

    def next_timer(self) -> float | None:
        """Return when the next timer is due."""
        return min(
            (timer_entry.timer.at for timer_entry in self.timer_entries.values()), default=None
        )

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

    def queued_turn(
        self, live: StoredAction | None, tapped: StoredAction | None, now: float
    ) -> QueuedTurn:
        """Return the first turn, with the open action of its user and the one that it taps on."""
        waiting = self.inbox[0]
        user = waiting.turn.scope.id
        return QueuedTurn(
            seq=waiting.seq,
            received_at=waiting.received_at,
            user=user,
            turn=waiting.turn,
            open_action=live,
            tapped_action=tapped,
            history=self.histories.get(user, ""),
            following=self.burst(),
            waiting=len(self.inbox),
            stop=self.stops.get(user, 0),
            timers=sort_timers(timer_entry.timer for timer_entry in self.timer_entries.values()),
            journal=tuple(self.journal),
            attempt=self.attempt(waiting.seq),
            age=now - waiting.received_at,
        )

    def burst(self) -> tuple[FollowingTurn, ...]:
        """Return the turns right behind the first, of the same user and without buttons:
        they may be answered as one.
        """
        first, *others = list(self.inbox)[:MAX_BURST]
        same = [each for each in others if not first.tapped]
        alike = takewhile(
            lambda each: each.turn.scope.id == first.turn.scope.id and not each.tapped, same
        )
        return tuple(FollowingTurn(each.seq, each.turn, each.received_at) for each in alike)

    def is_full(self, user: str, cap: int, *, urgent: bool) -> bool:
        """Return whether there is no place for a turn of this user.

        Each user has a few places for urgent turns.
        """
        if len(self.inbox) < cap:
            return False
        own = sum(waiting.turn.scope.id == user for waiting in list(self.inbox)[cap:])
        return not urgent or len(self.inbox) >= cap + URGENT_PLACES or own >= URGENT_PLACES_EACH

    def is_too_fast(self, user: str, now: float, per_minute: int, in_one_go: int) -> bool:
        """Return whether the user has used up the turns that are allowed at once and per minute."""
        gain = 60.0 / per_minute
        whole = max(self.allowances.get(user, 0.0), now) + gain
        if whole - now > gain * in_one_go:
            return True
        remember(self.allowances, user, whole, MAX_HISTORIES)
        return False

    def finish(self, queued: QueuedTurn) -> None:
        """Remove the turn, those that were answered with it, and the stop that applied to them."""
        while self.inbox and self.inbox[0].seq <= queued.last:
            self.inbox.popleft()
        self.journal.clear()
        self.done = queued.last
        if self.stops.get(queued.user, inf) <= self.done:
            del self.stops[queued.user]

    def append_continuation(self, queued: QueuedTurn, turn: Turn, now: float) -> None:
        """Append the turn in which the agent goes on, once for each action.

        After /stop it asks no model.
        """
        if turn.continues in self.continued:
            return
        remember(self.continued, turn.continues, queued.seq, MAX_HISTORIES)
        if self.stops.get(queued.user, 0) > queued.last:
            turn = replace(turn, asks_model=False)
        self.received += 1
        self.inbox.append(WaitingTurn(self.received, now, turn.continues, turn))

    def append_replies(self, queued: QueuedTurn, change: TurnChange, now: float) -> None:
        """Append the replies of a turn, and note the answer whose outcome they tell."""
        told = []
        for reply, pid in change.marked_replies():
            number = self.append_reply(pid, outbox_entry(queued.turn.conversation, reply))
            if change.tells_outcome(reply):
                told.append(number)
        if change.settles and told:
            self.settled = SettledReplies(queued.user, change.settles, told[0], self.said, now)

    def settled_replies(self, user: str, received_at: float) -> SettledReplies | None:
        """Return the settled answer of a user, if nothing was said since and
        a turn at this time may repeat it.
        """
        settled = self.settled
        if settled is None or settled.user != user or settled.last != self.said:
            return None
        if received_at - settled.at > REPEAT_MS / 1000:
            return None
        return settled

    def set_timers(self, queued: QueuedTurn, change: TurnChange) -> None:
        """Remove the timers that a change silences, and set its new ones."""
        for timer_id in change.silenced:
            self.timer_entries.pop(timer_id, None)
        for timer in change.timers:
            self.timer_entries[timer.id] = TimerEntry(
                timer, outbox_entry(queued.turn.conversation, timer.reply)
            )

    def drop_notices(self, user: str) -> None:
        """Remove the notices of an expired question: nothing waits for this user."""
        for kind in ("alarm", "end"):
            self.timer_entries.pop(f"{kind}:{user}", None)

    def append_reply(self, pid: str, entry: str) -> int:
        """Append a reply, or replace a waiting one with the same collapse key.

        Return its number.
        """
        mark = _MARK.match(entry) if not pid else None
        for at, (number, other, old) in enumerate(self.outbox if mark else ()):
            is_free = not other and number != self.sending[0] and number not in self.suspect
            if mark and is_free and old.startswith(mark[0]):
                self.outbox[at] = (number, "", entry)
                return number
        self.said += 1
        self.outbox.append((self.said, pid, entry))
        return self.said

    def held_statuses(self, conversation: str) -> list[DeliveryStatus]:
        """Return the held reply of a conversation as a delivery status."""
        held = self.held
        return (
            [
                DeliveryStatus(
                    f"{conversation}#{held.number}", "held", held.since, 0, reason=held.reason
                )
            ]
            if held
            else []
        )

    def set_notices(self, at: float, arm: NewAction | None) -> None:
        """Set the timers of an action that was just shown,
        for when no answer comes until its window closes `at`.

        A scope waits for one action at a time, so a later notice replaces an earlier one.
        """
        if arm is None:
            return
        sooner = max(0, arm.ttl_ms - arm.alarm_after_ms) / 1000
        alarm = Timer(f"alarm:{arm.user}", round(at - sooner, 3), _text(arm.alarm))
        notice = Timer(f"end:{arm.user}", at, _text(arm.notice))
        for timer_entry in (
            TimerEntry(alarm, arm.alarm, asks=arm.action_id),
            TimerEntry(notice, arm.notice, ends=arm.action_id, ending=arm.ending),
        ):
            if (timer_entry.entry or timer_entry.ending) and len(self.timer_entries) < MAX_TIMERS:
                self.timer_entries[timer_entry.timer.id] = timer_entry

    def wake(self, now: float, grace: float = 0.0) -> None:
        """Have a worker look after `grace` seconds, unless one comes anyway."""
        if not self.awaited(now):
            self.due = now + grace

    def let_go(self, due: float | None) -> None:
        """Release the lease until the conversation is due."""
        self.token = ""
        self.until = 0.0
        self.due = due


@dataclass(slots=True)
class ChannelPace:
    """The rate limit of a channel: seconds between two messages, when its next slot is free,
    until when it is silent.
    """

    gap: float | None = None
    free: float = 0.0
    closed: float = 0.0

    def book(self, state: ConversationState, number: int, now: float) -> float | None:
        """Return the seconds until a reply's slot, which is booked once."""
        if self.gap is None and self.closed <= now:
            return None
        if state.slot[0] != number or state.slot[1] < self.closed:
            state.slot = (number, max(now, self.free, self.closed))
            self.free = state.slot[1] + (SPREAD_MS / 1000 if self.gap is None else self.gap)
        return max(0.0, state.slot[1] - now)

    def silence(self, until: float) -> float:
        """Silence the channel as its platform asks.

        Return until when, with what was asked before.
        """
        self.closed = max(self.closed, until)
        self.free = max(self.free, self.closed) + (
            SPREAD_MS / 1000 if self.gap is None else self.gap
        )
        return self.closed


def _text(entry: str) -> str:
    if entry:
        return Reply.from_json(json.loads(entry)["reply"]).text
    return ""


def remember(notes: OrderedDict[str, V], key: str, value: V, most: int) -> None:
    """Store a value as the newest, and forget the oldest beyond this many."""
    notes[key] = value
    notes.move_to_end(key)
    while len(notes) > most:
        notes.popitem(last=False)
