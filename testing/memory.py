"""MemoryConversations: mailbox, outbox and deliveries in one process,
which behave as those in Redis do.
"""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace

from sayso.channels.i18n.texts import TextsForTurn
from sayso.channels.types import Delivery, Reply, Sender, Turn, digest, shown_to
from sayso.pending.limits import (
    BARRED_MS,
    BUSY_NOTICE_MS,
    FOREIGN_TAPS_IN_ONE_GO,
    FOREIGN_TAPS_PER_MINUTE,
    MAX_DELIVERIES,
    MAX_FORWARDED_WAITING,
    MAX_TIMERS,
    RESERVED_CONVERSATIONS,
    WAKE_GRACE_MS,
)
from sayso.pending.memory import MemoryActionRepository
from sayso.pending.turns import (
    ABOUT,
    CHOICE_KIND,
    PART,
    DecisionContext,
    Lease,
    LeaseLost,
    NextItem,
    QueuedReply,
    QueuedTurn,
    SettledAnswer,
    StaleTurn,
    TurnChange,
    as_edit_of,
    is_tap_or_status,
    outbox_entry,
)
from sayso.testing.conversation import (
    MAX_HISTORIES,
    ChannelPace,
    ConversationState,
    TimerEntry,
    WaitingTurn,
    remember,
)
from sayso.testing.deliveries import MemoryDeliveries
from sayso.testing.stores import MemoryIdentities
from sayso.workers.deliveries import (
    DeliveryStatus,
)
from sayso.workers.lease import LEASE_MS
from sayso.workers.mailbox import (
    Accepted,
    InboxLimits,
    Outcome,
    TurnStatus,
    is_told_refusal,
    refusal,
    waited_ms,
)
from sayso.workers.sender import GivenUp, PostponeReason, Sent

#: Conversations that are remembered. Beyond that the idle ones are dropped first;
#: with none idle a new one is refused.
MAX_CONVERSATIONS = 5000
#: Event ids that are remembered in one conversation.
MAX_EVENTS = 1000
#: Forwarded deliveries that are remembered.
MAX_FORWARDED = 5000
#: The token of a conversation that waits for its platform: no worker has the lease.
PARKED = "parked"


class MemoryConversations(MemoryDeliveries):
    """Mailbox, Outbox, Journals and Deliveries in one, bounded, for bots in one process.

    Lives as long as its process.

    No worker is woken: process what you accepted, and what `overdue` returns. `actions` are those
    of the agent's store, which change together with the conversations.
    """

    def __init__(
        self,
        texts_for: TextsForTurn,
        actions: MemoryActionRepository,
        *,
        clock: Callable[[], float] = time.time,
        limits: InboxLimits | None = None,
        max_conversations: int = MAX_CONVERSATIONS,
        identities: MemoryIdentities | None = None,
    ) -> None:
        super().__init__(actions, clock)
        #: The ids of the people of all channels.
        self.identities = identities or MemoryIdentities(clock=clock)
        actions.conversations = self
        self._channels: dict[str, ChannelPace] = {}
        self._texts_for = texts_for
        self._limits = limits or InboxLimits()
        self._max_conversations = max_conversations
        self._forwarded: OrderedDict[str, str] = OrderedDict()

    def accept(self, turn: Turn, *, tapped: str = "", waited_seconds: float = 0.0) -> Accepted:
        """Store a turn once."""
        name = turn.conversation.id
        waited = waited_ms(waited_seconds) / 1000
        now = self._clock()
        with self._lock:
            state = self._conversations.get(name, ConversationState())
            is_new = name not in self._conversations
            if first := state.first_of(turn, now):
                return Accepted("duplicate", first)
            if state.is_unchanged(turn, now):
                return Accepted("unchanged", 0)
            if not state.received and not turn.addressed:
                return Accepted("ignored", 0)
            decides = turn.tap or turn.is_stop or self._waits_for(turn)
            chat = self._conversations.get(turn.conversation.chat_id, state)
            in_barred_chat = bool(turn.conversation.thread) and chat.barred_until > now
            if (in_barred_chat or state.barred_until > now) and not decides:
                return Accepted("ignored", 0)
            if not waited and self._is_dropped_tap(state, turn, tapped, now):
                return Accepted("ignored", 0)
            refused = self._refused(state, turn, tapped, now, is_new=is_new, paced=not waited)
            if refused:
                if not waited_seconds and is_told_refusal(turn):
                    self.notify(turn, refusal(self._texts_for(turn), refused))
                return Accepted(refused, 0)
            self._conversations[name] = state
            self._conversations.move_to_end(name)
            state.wake(now, WAKE_GRACE_MS / 1000)
            state.received += 1
            state.heard = max(state.heard, now - waited)
            state.in_barred_chat = state.in_barred_chat or in_barred_chat
            if turn.is_stop and any(other.turn.scope.id == turn.scope.id for other in state.inbox):
                state.stops[turn.scope.id] = state.received
            state.inbox.append(WaitingTurn(state.received, now - waited, tapped, turn))
            remember(state.seen, turn.event_id, (state.received, now), MAX_EVENTS)
            if turn.message_id and turn.content:
                remember(
                    state.contents, turn.message_key, (turn.kind, turn.content, now), MAX_EVENTS
                )
            return Accepted("new", state.received)

    def accept_from(
        self, sender: Sender, *, tapped: str = "", waited_seconds: float = 0.0
    ) -> Accepted:
        """Find the sender of a turn, note their ids, and store the turn once."""
        with self._lock:
            person = self.identities.recognize(sender.channel, sender.ids, store=True)
            return self.accept(sender.turn_of(person), tapped=tapped, waited_seconds=waited_seconds)

    async def lease(self, conversation: str, token: str) -> tuple[Lease, NextItem] | None:
        """Take the lease of a conversation and return it with what is next.

        None while another worker has it.
        """
        with self._lock:
            state = self._conversations.get(conversation)
            now = self._clock()
            if state is None:
                return None
            held = state.until > now
            if held and state.token != token:
                return None
            state.epoch += not held
            state.token = token
            state.until = now + LEASE_MS / 1000
            state.ended = (0, "")
            state.due = state.until
            state.unserved = 0.0
            return Lease(conversation, state.epoch, token), self._view(conversation, state)

    async def defer(self, conversation: str) -> float:
        """Leave a conversation to a worker that knows its channel.

        Return since how many seconds none has taken it.
        """
        with self._lock:
            state = self._conversations.get(conversation)
            now = self._clock()
            if state is None or state.until > now:
                return -1.0
            state.unserved = state.unserved or now
            waited = now - state.unserved
            state.due = now + max(1.0, min(60.0, waited / 4))
            return waited

    async def renew(self, lease: Lease) -> int:
        """Renew the lease.

        Return the last turn with which the user of the first turn said stop. Raises LeaseLost.
        """
        with self._lock:
            state = self._held(lease)
            state.until = state.due = self._clock() + LEASE_MS / 1000
            if state.inbox:
                return state.stops.get(state.inbox[0].turn.scope.id, 0)
            return 0

    async def follow_question(self, lease: Lease) -> None:
        """Note that something is shown that is no reply. Raises LeaseLost."""
        with self._lock:
            self._follow_question(self._held(lease))

    async def commit(
        self, lease: Lease, queued: QueuedTurn, change: TurnChange, *, let_go: bool = False
    ) -> NextItem:
        """Finish a turn, all or nothing, and return what is next. Raises LeaseLost, StaleTurn."""
        with self._lock:
            if self._ended(lease):
                return None
            state = self._held(lease)
            if state.done >= queued.seq:
                return self._next_work(lease, state, let_go=let_go)
            if not state.inbox or state.inbox[0].seq != queued.seq:
                raise StaleTurn(f"{lease.conversation}: moved")
            if (
                change.timers
                and len(state.timer_entries) + len(change.timers) - len(change.silenced)
                > MAX_TIMERS
            ):
                raise StaleTurn(f"{lease.conversation}: timers")
            refused = self._actions.commit(
                lease.conversation,
                DecisionContext(queued.user, queued.turn.event_id, state.inbox[0].tapped),
                change,
            )
            if refused:
                raise StaleTurn(f"{lease.conversation}: {refused}")
            if not self._waits_for(queued.turn):
                state.drop_notices(queued.user)
            state.set_timers(queued, change)
            if change.continuation:
                state.append_continuation(queued, change.continuation, self._clock())
            state.finish(queued)
            if change.history is not None:
                remember(state.histories, queued.user, change.history, MAX_HISTORIES)
            state.append_replies(queued, change, self._clock())
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

    async def release(
        self, lease: Lease, *, hand_over: bool = False, begun: bool = False
    ) -> NextItem:
        """Release the lease.

        Work that came in meanwhile is returned instead, unless it is to be handed over.
        """
        with self._lock:
            if not self.holds(lease):
                return None
            state = self._conversations[lease.conversation]
            self._run_timers(lease.conversation, state)
            if state.busy and not hand_over:
                return self._view(lease.conversation, state)
            state.let_go(self._clock() + WAKE_GRACE_MS / 1000 if state.busy else state.next_timer())
            if not begun:
                state.begun = (0, 0, 0)
            return None

    async def mark_delivered(
        self, lease: Lease, reply: QueuedReply, result: Sent | GivenUp, *, let_go: bool = False
    ) -> NextItem:
        """Record what became of the reply and return what is next. Raises LeaseLost."""
        with self._lock:
            if self._ended(lease):
                return None
            state = self._held(lease)
            now = self._clock()
            if state.outbox and state.outbox[0][0] == reply.number:
                number, pid, text = state.outbox.popleft()
                self._note_chat(state, reply.delivery(lease).conversation.chat_id, result, now)
                asked = pid.removeprefix(PART).removeprefix(ABOUT)
                repeats = pid.startswith(ABOUT)
                delivery_id = f"{lease.conversation}#{number}"
                doubtful = number in state.suspect
                tries = state.attempts + 1
                state.attempts = 0
                state.suspect.discard(number)
                state.hold = None
                if isinstance(result, GivenUp):
                    reason = result.reason
                    asks = bool(pid) and not repeats
                    doubtful = doubtful or result.end == "doubtful"
                    self._statuses.end(
                        DeliveryStatus(
                            delivery_id, "dead", now, tries, "", reason, text, asks, doubtful
                        )
                    )
                    state.note_refusal(result, now)
                    if result.end == "limited":
                        self._channel(lease.conversation).silence(now + result.pause)
                    self._actions.end_undelivered("" if repeats else asked)
                else:
                    state.barred_until = 0.0
                    self.count_paid(lease.conversation, result.price_class)
                    receipt = result.receipt
                    copy = self._statuses.find(delivery_id)
                    self._statuses.end(
                        DeliveryStatus(
                            delivery_id,
                            "ambiguous" if doubtful else "sent",
                            now,
                            tries,
                            receipt,
                            reply.cause,
                        )
                    )
                    state.chat = max(now, state.chat) + result.gap
                    if pid and not pid.startswith(PART):
                        self._set_last_question(state, asked, result.written_at)
                    if pid == asked:
                        state.set_notices(
                            *self._actions.mark_shown(
                                pid, state.received, receipt, result.written_at
                            )
                        )
                    if pid and not repeats:
                        remember(state.asks, str(number), asked, MAX_DELIVERIES)
                    self._actions.add_prompt(asked, copy.receipt if copy else "")
                    self._actions.add_prompt(asked, receipt)
                    if (
                        known := self._statuses.find(delivery_id)
                    ) and known.state == "failed":  # said before we were
                        self._expire_question_of(state, number)
            return self._next_work(lease, state, let_go=let_go)

    def _note_chat(
        self, state: ConversationState, chat_id: str, result: Sent | GivenUp, now: float
    ) -> None:
        """Note what became of a reply where it concerns all threads of its chat."""
        if isinstance(result, GivenUp) and result.end == "chat_barred":
            chat = self._conversations.setdefault(chat_id, ConversationState())
            chat.barred_until = now + BARRED_MS / 1000
        if isinstance(result, Sent) and state.in_barred_chat:
            self._conversations.get(chat_id, state).barred_until = 0.0
            state.in_barred_chat = False

    async def postpone(
        self,
        lease: Lease,
        reply: QueuedReply,
        seconds: float,
        why: PostponeReason = "tried",
        reason: str = "",
    ) -> None:
        """Postpone the reply and release the lease, or hold the reply until the user writes.

        Raises LeaseLost.
        """
        with self._lock:
            state = self._held(lease)
            later = self._clock() + seconds
            if why == "held" and not state.has_message():
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
            state = self._held(lease)
            channel = self._channel(lease.conversation)
            channel.gap = 1 / per_second
            return channel.book(state, reply.number, self._clock()) or 0.0

    async def forward(self, delivery: Delivery) -> str:
        """Append a reply to another conversation, once.

        Return its id there, or "" when too many replies wait there.
        """
        with self._lock:
            first = self._forwarded.get(delivery.id)
            name = delivery.conversation.id
            if first:
                return first
            state = self._conversations.get(name, ConversationState())
            now = self._clock()
            if len(state.outbox) >= MAX_FORWARDED_WAITING or (
                name not in self._conversations and not self._has_room()
            ):
                return ""
            self._conversations[name] = state
            state.wake(now)
            number = state.append_reply("", outbox_entry(delivery.conversation, delivery.reply))
            remember(self._forwarded, delivery.id, f"{name}#{number}", MAX_FORWARDED)
            return f"{name}#{number}"

    def overdue(self) -> list[str]:
        """Return conversations with work that are due although no worker came.
        Each is returned again only after a while.
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
                if state.busy:
                    state.due = now + WAKE_GRACE_MS / 1000
                else:
                    state.due = state.next_timer()
            return [name for name, state in found if state.busy]

    def holds(self, lease: Lease) -> bool:
        """Return whether this lease is still the conversation's last."""
        state = self._conversations.get(lease.conversation)
        return state is not None and (state.epoch, state.token) == (lease.epoch, lease.token)

    def head(self, conversation: str) -> tuple[int, float]:
        """Return number and time of receipt of the first turn; number 0 when there is none."""
        state = self._conversations.get(conversation)
        if state and state.inbox:
            return (state.inbox[0].seq, state.inbox[0].received_at)
        return (0, 0.0)

    def _channel(self, conversation: str) -> ChannelPace:
        return self._channels.setdefault(conversation.partition(":")[0], ChannelPace())

    def say(self, conversation: str, entry: str) -> None:
        """Append a reply that no turn commits: the late truth about an effect."""
        state = self._conversations.get(conversation)
        if state is not None:
            state.wake(self._clock())
            state.append_reply("", entry)

    def move_end(self, conversation: str, pid: str, at: float) -> None:
        """Let the timer for an unanswered question ring at another time."""
        state = self._conversations.get(conversation, ConversationState())
        for timer_entry in list(state.timer_entries.values()):
            if timer_entry.ends == pid:
                moved = replace(timer_entry, timer=replace(timer_entry.timer, at=at))
                state.timer_entries[moved.timer.id] = moved

    def set_last_question(self, conversation: str, pid: str) -> None:
        """Note that the question of an action, shown without the outbox,
        is the last thing that the bot said.
        """
        state = self._conversations.get(conversation)
        if state is not None:
            self._follow_question(state)
            self._set_last_question(state, pid)

    def _set_last_question(
        self, state: ConversationState, pid: str, written_at: float = 0.0
    ) -> None:
        state.newest = pid
        self._actions.mark_repeated(pid, state.received, written_at)

    def _follow_question(self, state: ConversationState) -> None:
        if state.newest:
            self._actions.mark_followed(state.newest, state.received)
            state.newest = ""

    def _note_message(self, state: ConversationState, pid: str, entry: str) -> None:
        """Note that a reply begins to be sent: the question before
        it is followed by another message.

        A reply that belongs to the question follows nothing, nor does an edit that may be left out,
        or a reply that another person of a group sees alone.
        """
        asked = pid.removeprefix(PART).removeprefix(ABOUT)
        if not state.newest or asked == state.newest:
            return
        reply = Reply.from_json(json.loads(entry)["reply"])
        is_edit = bool(reply.edits) and reply.optional
        is_for_another = bool(reply.only_for) and digest(reply.only_for) != self._actions.user_of(
            state.newest
        )
        if not (is_edit or is_for_another):
            self._follow_question(state)

    def _is_dropped_tap(
        self, state: ConversationState, turn: Turn, tapped: str, now: float
    ) -> bool:
        """Return whether the turn is one tap too many on the buttons of others."""
        if turn.tap:
            owner = self._actions.user_of(tapped)
        else:
            owner = ""
        if owner in ("", turn.scope.id):
            return False
        return state.is_too_fast(
            f"{turn.scope.id}:foreign", now, FOREIGN_TAPS_PER_MINUTE, FOREIGN_TAPS_IN_ONE_GO
        )

    def _refused(
        self,
        state: ConversationState,
        turn: Turn,
        tapped: str,
        now: float,
        *,
        is_new: bool,
        paced: bool,
    ) -> Outcome | None:
        """Return why the turn cannot be accepted now, None when it can."""
        user = turn.scope.id
        tapped_user = self._actions.user_of(tapped)
        is_own = tapped_user in ("", user)
        own_waits = any(waiting.turn.scope.id == user for waiting in state.inbox)
        stops_first = turn.is_stop and user not in state.stops and own_waits
        urgent = stops_first or (is_own and (bool(tapped_user) or self._waits_for(turn)))
        if state.is_full(user, self._limits.waiting, urgent=urgent) or (
            is_new and not self._has_room()
        ):
            return "full"
        if not state.inbox and self._is_overloaded(
            state, now, shares=2 if urgent or turn.is_stop else 0
        ):
            return "overloaded"
        if is_tap_or_status(turn) and is_own:
            counted = f"{user}:quick"
        elif urgent:
            counted = ""
        else:
            counted = user
        limits = (self._limits.per_minute, self._limits.in_one_go)
        if paced and counted and state.is_too_fast(counted, now, *limits):
            return "too_fast"
        return None

    def _is_overloaded(self, state: ConversationState, now: float, *, shares: int) -> bool:
        """Return whether so many other conversations have work that this one cannot begin. Beyond
        the limit there are two reserves: the first for notices of refusal, the second for urgent
        turns.
        """
        most = self._limits.conversations
        others = sum(
            other.at_work(now) for other in self._conversations.values() if other is not state
        )
        return others >= most + shares * (most / 10 + RESERVED_CONVERSATIONS)

    def _waits_for(self, turn: Turn) -> bool:
        live, _ = self._actions.actions_of_turn(turn.conversation.id, turn.scope.id, "")
        return live is not None

    def notify(self, turn: Turn, reply: Reply) -> bool:
        """Send a notice to a sender who is refused, once a minute and while there is room."""
        name = turn.conversation.id
        now = self._clock()
        with self._lock:
            state = self._conversations.get(name, ConversationState())
            has_room = name in self._conversations or self._has_room()
            may_begin = state.awaited(now) or (
                has_room and not self._is_overloaded(state, now, shares=1)
            )
            if now - state.notified_at < BUSY_NOTICE_MS / 1000 or not may_begin:
                return False
            self._conversations[name] = state
            state.wake(now, WAKE_GRACE_MS / 1000)
            state.notified_at = state.heard = now
            state.closed = (-1, "")
            state.hold = None
            state.opted_out = -1
            state.append_reply("", outbox_entry(turn.conversation, shown_to(turn, reply)))
            return True

    def is_question_open(self, turn: Turn) -> bool:
        """Return whether a question waits for the answer of the turn's sender,
        or the turn was received before.
        """
        with self._lock:
            state = self._conversations.get(turn.conversation.id, ConversationState())
            return state.first_of(turn, self._clock()) > 0 or self._waits_for(turn)

    async def waits_for_answer(self, conversation: str) -> bool:
        """Return whether a question of any person of the conversation waits for a yes or no."""
        with self._lock:
            state = self._conversations.get(conversation, ConversationState())
            for timer_entry in state.timer_entries.values():
                _, asked = self._actions.actions_of_turn(conversation, "", timer_entry.ends)
                is_shown = (
                    asked is not None
                    and asked.state == "shown"
                    and timer_entry.timer.at > self._clock()
                )
                if asked is not None and is_shown and asked.action.kind != CHOICE_KIND:
                    return True
            return False

    def turn_status(self, turn: Turn) -> TurnStatus:
        """Return the status of a turn."""
        with self._lock:
            state = self._conversations.get(turn.conversation.id, ConversationState())
            if any(waiting.turn.event_id == turn.event_id for waiting in state.inbox):
                return "waits"
            return "done" if state.first_of(turn, self._clock()) else "unknown"

    def _run_timers(self, conversation: str, state: ConversationState) -> None:
        """Send the notices of due timers.

        A timer about a question waits while turns wait: one may be the yes.
        """
        now = self._clock()
        for timer_entry in sorted(
            state.timer_entries.values(),
            key=lambda timer_entry: (timer_entry.timer.at, timer_entry.timer.id),
        ):
            if timer_entry.timer.at > now or (
                (timer_entry.ends or timer_entry.asks) and state.inbox
            ):
                continue
            del state.timer_entries[timer_entry.timer.id]
            if self._has_notice(conversation, timer_entry):
                _, asked = self._actions.actions_of_turn(conversation, "", timer_entry.ends)
                prompt = asked.question_message if asked else ""
                if timer_entry.ending and prompt:
                    closed = as_edit_of(timer_entry.ending, prompt)
                else:
                    closed = ""
                for entry in filter(None, (closed, timer_entry.entry)):
                    state.append_reply("", entry)

    def _has_notice(self, conversation: str, timer_entry: TimerEntry) -> bool:
        """Return whether a due timer has anything to say:
        about a question only while it is unanswered.
        """
        if timer_entry.ends:
            return self._actions.expire_if_due(timer_entry.ends)
        _, asked = self._actions.actions_of_turn(conversation, "", timer_entry.asks)
        return not timer_entry.asks or (asked is not None and asked.state == "shown")

    def _next_work(self, lease: Lease, state: ConversationState, *, let_go: bool) -> NextItem:
        """Return what is next.

        If nothing is left and `let_go` is set, release the lease in the same step.
        """
        work = self._view(lease.conversation, state)
        if work is None and let_go:
            state.let_go(state.next_timer())
            state.begun = (0, 0, 0)
            state.ended = (lease.epoch, lease.token)
        return work

    def _ended(self, lease: Lease) -> bool:
        """Return whether this worker has released the lease so and asks again."""
        state = self._conversations.get(lease.conversation)
        return state is not None and state.ended == (lease.epoch, lease.token)

    def _held(self, lease: Lease) -> ConversationState:
        if not self.holds(lease):
            raise LeaseLost(lease.conversation)
        return self._conversations[lease.conversation]

    def _view(self, conversation: str, state: ConversationState) -> NextItem:
        if state.outbox:
            number, pid, text = state.outbox[0]
            reply = QueuedReply(
                number, text, state.attempts + 1, action_id=pid.lstrip(PART + ABOUT)
            )
            now = self._clock()
            if reply.is_forwarded:
                return reply
            reply = replace(reply, silence=state.silence(now), closed=state.why_closed)
            if state.held:
                return replace(reply, suspect=number in state.suspect, held=now - state.held.since)
            suspect = state.may_have_arrived(number)
            self._note_message(state, pid, text)
            wait = self._channel(conversation).book(state, number, now)
            if suspect:
                receipt = self._statuses.arrived(f"{conversation}#{number}")
            else:
                receipt = ""
            return replace(
                reply, suspect=suspect, wait=wait, ahead=max(0.0, state.chat - now), receipt=receipt
            )
        if not state.inbox:
            return None
        waiting = state.inbox[0]
        actions = self._actions.actions_of_turn(conversation, waiting.turn.scope.id, waiting.tapped)
        queued = state.queued_turn(*actions, self._clock())
        return replace(queued, last_answer=self._settled_answer(conversation, state, waiting))

    def _settled_answer(
        self, conversation: str, state: ConversationState, waiting: WaitingTurn
    ) -> SettledAnswer | None:
        """Return the last yes or no of the turn's user, if its outcome has
        arrived and nothing was said since.
        """
        settled = state.settled_replies(waiting.turn.scope.id, waiting.received_at)
        if settled is None:
            return None
        for number in range(settled.first, settled.last + 1):
            reply = self._statuses.find(f"{conversation}#{number}")
            if reply is None or reply.state not in ("sent", "delivered", "read"):
                return None
        return settled.answer

    def _has_room(self) -> bool:
        """Return whether one more conversation fits.

        The idle one that was used least recently is dropped for it.
        """
        if len(self._conversations) < self._max_conversations:
            return True
        idle = next(
            (name for name, other in self._conversations.items() if other.due is None), None
        )
        if idle is not None:
            self._conversations.pop(idle)
            self._statuses.noted.pop(idle, None)
        return idle is not None
