"""MemoryLanes: mailbox and outbox in one process, the working twin of those in Redis."""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Protocol, TypeVar

from channels.types import Reply, Turn
from workers.lane import (
    MAX_TIMERS,
    Arm,
    Change,
    Deciding,
    LaneLost,
    Lease,
    QueuedReply,
    QueuedTurn,
    Timer,
    TurnOvertaken,
    Work,
    in_order,
    outbox_entry,
    stops,
)
from workers.mailbox import LEASE_MS, SEEN_MS, Accepted, Limits, Outcome, refusal, waited_ms
from workers.words import Voice

V = TypeVar("V")

#: Conversations remembered; past it the idle ones are forgotten first, and with none idle the newcomer hears `full`.
MAX_LANES = 5000
#: Event ids and histories remembered in one conversation.
MAX_EVENTS = 1000
MAX_HISTORIES = 1000
#: Turns that may be worked on as one.
MAX_BURST = 10
#: Seconds between two words to somebody whose turns are refused.
BUSY_NOTICE_SECONDS = 60.0
#: Who holds a lane that waits for its platform: nobody.
PARKED = "parked"
#: Replies that could not be delivered, kept for the operator.
MAX_DEAD = 1000
#: Seconds after which a wake-up that nobody answered is repeated.
WAKE_GRACE_SECONDS = 5.0


class Pendings(Protocol):
    """The pending actions that move together with the lanes: `pending.records.MemoryRecords`.

    `lock` is the one lock of both; `fence` is where the records find the lanes.
    """

    lock: Any
    fence: Any

    def view(self, conversation: str, user: str, tapped: str) -> tuple[dict[str, str], dict[str, str]]:
        """The live action of a scope and the one a button names."""

    def commit(self, conversation: str, letter: Deciding, change: Change) -> str:
        """Make the change, or say what is in its way."""

    def show(self, pid: str, seen: int = 0) -> tuple[float, Arm | None]:
        """The preview was delivered: the window opens. Returns when it closes, and on what."""

    def run_out(self, pid: str) -> bool:
        """Whether the window closed on what nobody answered: it ends here."""

    def bury(self, pid: str) -> None:
        """The preview can never be delivered."""


@dataclass(frozen=True, slots=True)
class DeadReply:
    """A reply that was given up, and why."""

    conversation: str
    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class _Letter:
    seq: int
    received_at: float
    tapped: str
    turn: Turn


@dataclass(frozen=True, slots=True)
class _Bell:
    """A timer, the outbox entry that it says, and the action whose window it ends, "" for none."""

    timer: Timer
    entry: str
    ends: str = ""


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
    suspect: int = 0
    told_full: float = 0.0
    stop: int = 0
    epoch: int = 0
    token: str = ""
    until: float = 0.0
    due: float | None = None

    @property
    def busy(self) -> bool:
        return bool(self.inbox or self.outbox)

    def awaited(self, now: float) -> bool:
        """Whether somebody comes anyway. A timer brings nobody before it rings."""
        return self.due is not None and (self.until > now or self.busy)

    def next_ring(self) -> float | None:
        """When the next timer rings."""
        return min((bell.timer.at for bell in self.bells.values()), default=None)

    def may_have_arrived(self, number: int) -> bool:
        """Whether an earlier holder was shown this reply too, and neither settled nor postponed it."""
        if self.sending[0] == number and self.sending[1] != self.epoch:
            self.suspect = number
        self.sending = (number, self.epoch)
        return self.suspect == number

    def burst(self) -> tuple[tuple[int, Turn], ...]:
        """Turns right behind the first, of the same user and without buttons: they may be worked on as one."""
        first, *others = list(self.inbox)[:MAX_BURST]
        same = [each for each in others if not first.tapped]
        alike = takewhile(lambda each: each.turn.scope.id == first.turn.scope.id and not each.tapped, same)
        return tuple((each.seq, each.turn) for each in alike)

    def is_too_fast(self, user: str, now: float, limits: Limits) -> bool:
        """Whether a user has used up what may be said in one go, and what has been gained per minute since."""
        gain = 60.0 / limits.per_minute
        whole = max(self.paces.get(user, 0.0), now) + gain
        if whole - now > gain * limits.in_one_go:
            return True
        _remember(self.paces, user, whole, MAX_HISTORIES)
        return False

    def let_go(self, due: float | None) -> None:
        self.token, self.until, self.due = "", 0.0, due


class MemoryLanes:
    """Lives as long as its process, bounded; a Mailbox and an Outbox in one, for tests and for one-process bots.

    Nobody is woken: drain what you accepted, and what `overdue` names. `pendings` are the `records` of the agent's
    store; without them nothing can be proposed.
    """

    def __init__(
        self,
        voice: Voice,
        pendings: Pendings | None = None,
        *,
        clock: Callable[[], float] = time.time,
        limits: Limits | None = None,
        max_lanes: int = MAX_LANES,
    ) -> None:
        self.dead: deque[DeadReply] = deque(maxlen=MAX_DEAD)
        self._pendings: Pendings = pendings or _NoPendings()
        self._pendings.fence = self
        self._lock = self._pendings.lock
        self._clock = clock
        self._voice = voice
        self._limits = limits or Limits()
        self._max_lanes = max_lanes
        self._lanes: OrderedDict[str, _Lane] = OrderedDict()

    def accept(self, turn: Turn, *, tapped: str = "", waited_seconds: float = 0.0) -> Accepted:
        """Store a turn once."""
        name, waited, now = turn.conversation.id, waited_ms(waited_seconds) / 1000, self._clock()
        with self._lock:
            lane, is_new = self._lanes.get(name, _Lane()), name not in self._lanes
            first = lane.seen.get(turn.event_id)
            if first and now - first[1] < SEEN_MS / 1000:
                return Accepted("duplicate", first[0])
            if is_new and not turn.addressed:
                return Accepted("ignored", 0)
            refused = self._refused(lane, turn, now, is_new=is_new, paced=not waited)
            if refused:
                if not waited_seconds:
                    self._tell(lane, turn, now, refused)
                return Accepted(refused, 0)
            self._lanes[name] = lane
            self._lanes.move_to_end(name)
            awaited = lane.awaited(now)
            lane.received += 1
            if stops(turn) and lane.inbox:
                lane.stop = lane.received
            lane.inbox.append(_Letter(lane.received, now - waited, tapped, turn))
            _remember(lane.seen, turn.event_id, (lane.received, now), MAX_EVENTS)
            lane.due = lane.due if awaited else now + WAKE_GRACE_SECONDS
            return Accepted("new", lane.received)

    def lease(self, conversation: str, token: str) -> tuple[Lease, Work] | None:
        """Take a lane and see what it holds. None while another worker has it."""
        with self._lock:
            lane, now = self._lanes.get(conversation), self._clock()
            if lane is None:
                return None
            held = lane.until > now
            if held and lane.token != token:
                return None
            lane.epoch += not held
            lane.token, lane.until = token, now + LEASE_MS / 1000
            lane.due = lane.until
            return Lease(conversation, lane.epoch, token), self._view(conversation, lane)

    def renew(self, lease: Lease) -> int:
        """Keep the lane; the number of the last turn that said stop, 0 for none. Raises LaneLost."""
        with self._lock:
            lane = self._held(lease)
            lane.until = lane.due = self._clock() + LEASE_MS / 1000
            return lane.stop

    def commit(self, lease: Lease, queued: QueuedTurn, change: Change) -> Work:
        """Finish a turn, all or nothing, and see what is next. Raises LaneLost, TurnOvertaken."""
        with self._lock:
            lane = self._held(lease)
            if lane.done >= queued.seq:
                return self._view(lease.conversation, lane)
            if not lane.inbox or lane.inbox[0].seq != queued.seq:
                raise TurnOvertaken(f"{lease.conversation}: moved")
            if change.timers and len(lane.bells) + len(change.timers) - len(change.silenced) > MAX_TIMERS:
                raise TurnOvertaken(f"{lease.conversation}: timers")
            refused = self._pendings.commit(
                lease.conversation, Deciding(queued.user, queued.turn.event_id, lane.inbox[0].tapped), change
            )
            if refused:
                raise TurnOvertaken(f"{lease.conversation}: {refused}")
            _set_timers(lane, queued, change)
            while lane.inbox and lane.inbox[0].seq <= queued.last:
                lane.inbox.popleft()
            lane.done = queued.last
            if change.history is not None:
                _remember(lane.histories, queued.user, change.history, MAX_HISTORIES)
            for reply, pid in change.replies:
                _say(lane, pid, outbox_entry(queued.turn.conversation, reply))
            return self._view(lease.conversation, lane)

    def release(self, lease: Lease, *, hand_over: bool = False) -> Work:
        """Let the lane go; what came in meanwhile is returned instead, unless it is to be handed over."""
        with self._lock:
            if not self.holds(lease):
                return None
            lane = self._lanes[lease.conversation]
            self._ring(lane)
            if lane.busy and not hand_over:
                return self._view(lease.conversation, lane)
            lane.let_go(self._clock() + WAKE_GRACE_SECONDS if lane.busy else lane.next_ring())
            return None

    def settle(self, lease: Lease, reply: QueuedReply, *, receipt: str = "", dead: str = "") -> Work:
        """The reply was sent, or is given up for the reason `dead`. Raises LaneLost."""
        with self._lock:
            lane = self._held(lease)
            if lane.outbox and lane.outbox[0][0] == reply.number:
                _, pid, text = lane.outbox.popleft()
                lane.attempts = lane.suspect = 0
                if dead:
                    self.dead.append(DeadReply(lease.conversation, dead, text))
                    self._pendings.bury(pid)
                else:
                    _set_notice(lane, *self._pendings.show(pid, lane.received))
            return self._view(lease.conversation, lane)

    def postpone(self, lease: Lease, reply: QueuedReply, seconds: float, *, suspect: bool = False) -> None:
        """Try again later: the lane is let go until then. Raises LaneLost."""
        with self._lock:
            lane = self._held(lease)
            if lane.outbox and lane.outbox[0][0] == reply.number:
                lane.attempts += 1
                lane.sending = (0, 0)
                lane.suspect = reply.number if suspect else lane.suspect
                lane.token = PARKED
                lane.until = lane.due = self._clock() + seconds

    def overdue(self) -> list[str]:
        """Conversations with work whose time has come although nobody came; each is named again only after a while."""
        with self._lock:
            now = self._clock()
            found = [(name, lane) for name, lane in self._lanes.items() if lane.due is not None and lane.due <= now]
            for _, lane in found:
                self._ring(lane)
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

    def say(self, conversation: str, entry: str) -> None:
        """Append a reply that no turn commits: the truth about an effect, told late."""
        lane = self._lanes.get(conversation)
        if lane is not None:
            now = self._clock()
            lane.due = lane.due if lane.awaited(now) else now
            _say(lane, "", entry)

    def _refused(self, lane: _Lane, turn: Turn, now: float, *, is_new: bool, paced: bool) -> Outcome | None:
        """Why the turn cannot be taken now, None when it can."""
        if len(lane.inbox) >= self._limits.waiting or (is_new and not self._has_room()):
            return "full"
        if not lane.awaited(now) and self._busy(now) >= self._limits.conversations:
            return "crowded"
        urgent = turn.tap is not None or stops(turn) or self._waits_for(turn)
        if paced and not urgent and lane.is_too_fast(turn.scope.id, now, self._limits):
            return "fast"
        return None

    def _busy(self, now: float) -> int:
        return sum(lane.awaited(now) for lane in self._lanes.values())

    def _waits_for(self, turn: Turn) -> bool:
        live, _ = self._pendings.view(turn.conversation.id, turn.scope.id, "")
        return bool(live)

    def _tell(self, lane: _Lane, turn: Turn, now: float, refused: Outcome) -> None:
        if now - lane.told_full >= BUSY_NOTICE_SECONDS:
            lane.told_full = now
            lane.due = lane.due if lane.awaited(now) else now + WAKE_GRACE_SECONDS
            _say(lane, "", outbox_entry(turn.conversation, refusal(self._voice(turn), refused)))

    def _ring(self, lane: _Lane) -> None:
        """What is due says what it has to say. The end of a window waits until no turn does: it may be the yes."""
        now = self._clock()
        for bell in sorted(lane.bells.values(), key=lambda bell: (bell.timer.at, bell.timer.id)):
            if bell.timer.at > now or (bell.ends and lane.inbox):
                continue
            del lane.bells[bell.timer.id]
            if not bell.ends or self._pendings.run_out(bell.ends):
                _say(lane, "", bell.entry)

    def _held(self, lease: Lease) -> _Lane:
        if not self.holds(lease):
            raise LaneLost(lease.conversation)
        return self._lanes[lease.conversation]

    def _view(self, conversation: str, lane: _Lane) -> Work:
        if lane.outbox:
            number, _, text = lane.outbox[0]
            return QueuedReply(number, text, lane.attempts + 1, lane.may_have_arrived(number))
        if not lane.inbox:
            return None
        letter = lane.inbox[0]
        user = letter.turn.scope.id
        live, tapped = self._pendings.view(conversation, user, letter.tapped)
        history = lane.histories.get(user, "")
        timers = in_order(bell.timer for bell in lane.bells.values())
        return QueuedTurn(
            letter.seq, letter.received_at, user, letter.turn, live, tapped, history, lane.burst(), lane.stop,
            timers=timers,
        )  # fmt: skip

    def _has_room(self) -> bool:
        """Whether one more lane fits; the idle one that was used least recently is forgotten for it."""
        if len(self._lanes) < self._max_lanes:
            return True
        idle = next((name for name, other in self._lanes.items() if other.due is None), None)
        return idle is not None and self._lanes.pop(idle) is not None


class _NoPendings:
    """Where nothing can be proposed."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.fence: Any = None

    def view(self, conversation: str, user: str, tapped: str) -> tuple[dict[str, str], dict[str, str]]:
        return {}, {}

    def commit(self, conversation: str, letter: Deciding, change: Change) -> str:
        if change.move or change.arms:
            raise ValueError("these lanes know no pending actions: give MemoryLanes the store's `records`")
        return ""

    def show(self, pid: str, seen: int = 0) -> tuple[float, Arm | None]:
        """Nothing was previewed."""
        return 0.0, None

    def run_out(self, pid: str) -> bool:
        """Nothing was previewed."""
        return False

    def bury(self, pid: str) -> None:
        """Nothing was previewed."""


def _say(lane: _Lane, pid: str, entry: str) -> None:
    lane.said += 1
    lane.outbox.append((lane.said, pid, entry))


def _set_timers(lane: _Lane, queued: QueuedTurn, change: Change) -> None:
    for name in change.silenced:
        lane.bells.pop(name, None)
    for timer in change.timers:
        lane.bells[timer.id] = _Bell(timer, outbox_entry(queued.turn.conversation, Reply(timer.text)))


def _set_notice(lane: _Lane, at: float, arm: Arm | None) -> None:
    """A scope waits for one action at a time: the notice of the next takes the place of one that has nothing to say."""
    if arm and arm.notice and len(lane.bells) < MAX_TIMERS:
        timer = Timer(f"end:{arm.user}", at, Reply.from_json(json.loads(arm.notice)["reply"]).text)
        lane.bells[timer.id] = _Bell(timer, arm.notice, ends=arm.pending_action_id)


def _remember(notes: OrderedDict[str, V], key: str, value: V, most: int) -> None:
    notes[key] = value
    notes.move_to_end(key)
    while len(notes) > most:
        notes.popitem(last=False)
