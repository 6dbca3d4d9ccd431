"""MemoryDeliveries: what became of the replies of conversations in one process."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from sayso.channels.types import PriceClass
from sayso.pending.limits import DAY_MS, MAX_DELIVERIES, MAX_UNDELIVERED, WAKE_GRACE_MS
from sayso.pending.memory import MemoryActionRepository
from sayso.testing.conversation import ConversationState
from sayso.workers.deliveries import (
    LATE_SECONDS,
    REPORTS,
    DeliveryState,
    DeliveryStatus,
    UndeliveredState,
    new_id,
    repeatable,
    split_id,
)

#: The order of states, for reports that come in any order.
_RANKS: Mapping[DeliveryState, int] = {
    "dead": 0,
    "sent": 1,
    "ambiguous": 1,
    "delivered": 2,
    "read": 3,
    "failed": 4,
    "retried": 5,
}


@dataclass(slots=True)
class MemoryDeliveryStatuses:
    """The statuses of deliveries of one process, bounded. They behave as the scripts' do."""

    noted: dict[str, OrderedDict[int, DeliveryStatus]] = field(default_factory=dict)
    put_aside: dict[UndeliveredState, deque[DeliveryStatus]] = field(
        default_factory=lambda: {
            "dead": deque(maxlen=MAX_UNDELIVERED),
            "failed": deque(maxlen=MAX_UNDELIVERED),
            "ambiguous": deque(maxlen=MAX_UNDELIVERED),
        }
    )

    def note(self, status: DeliveryStatus, *, over: bool = False) -> bool:
        """Record the status of a delivery.

        A status that the platform reported earlier stays, unless `over` is set.
        """
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
        if noted:
            return [noted[number] for number in sorted(noted)]
        return []

    def arrived(self, delivery_id: str) -> str:
        """Return the receipt of a delivery that its platform accepted, else ""."""
        known = self.find(delivery_id)
        if known and known.state in ("sent", "delivered", "read"):
            return known.receipt
        return ""

    def end(self, status: DeliveryStatus) -> None:
        """Record the end of a reply. A failure of an earlier copy does not count for it."""
        known = self.find(status.id)
        new = self.note(
            status,
            over=bool(
                known and known.state == "failed" and status.receipt not in ("", known.receipt)
            ),
        )
        if status.state == "dead" or (status.state == "ambiguous" and new):
            self.put_aside[status.state].appendleft(status)

    def report(self, news: DeliveryStatus, *, sending: bool) -> str:
        """Record a report of the platform; `sending` says that
        the reply is the first in its outbox.
        """
        known = self.find(news.id)
        if known is None and not sending:
            return ""
        if known is not None:
            same = known.receipt == news.receipt
            if known.state == "failed" and not same:
                rank = 0
            else:
                rank = _RANKS[known.state]
            other = not same and (known.receipt or known.state == "dead")
            if _RANKS[news.state] <= rank or (other and news.state == "failed"):
                return known.state
            news = replace(news, tries=known.tries, reason=news.reason or known.reason)
        self.note(news, over=True)
        if news.state == "failed":
            self.put_aside["failed"].appendleft(news)
        return news.state


class MemoryDeliveries:
    """The deliveries of all conversations, as far as they are remembered.

    Lives as long as its process.
    """

    def __init__(self, actions: MemoryActionRepository, clock: Callable[[], float]) -> None:
        self._actions = actions
        self._clock = clock
        self._lock = actions.lock
        self._statuses = MemoryDeliveryStatuses()
        self._conversations: OrderedDict[str, ConversationState] = OrderedDict()
        #: By day since 1970, and by channel and price class.
        self._paid: dict[int, Counter[tuple[str, str]]] = {}

    def report(self, delivery_id: str, message_id: str, status: str, reason: str = "") -> str:
        """Record what a platform reports.

        Return the state that is stored, "" if the delivery is unknown.
        """
        news = REPORTS.get(status)
        (conversation, number) = split_id(delivery_id)
        if news is None:
            return ""
        with self._lock:
            state = self._conversations.get(conversation)
            sending = bool(state and state.outbox and state.outbox[0][0] == number)
            tries = state.attempts + 1 if state else 1
            delivery = DeliveryStatus(delivery_id, news, self._clock(), tries, message_id, reason)
            kept = self._statuses.report(delivery, sending=sending)
            self._actions.add_prompt(state.asks.get(str(number), "") if state else "", message_id)
            if state and kept == news == "failed":
                self._expire_question_of(state, number)
            return kept

    def _expire_question_of(self, state: ConversationState, number: int) -> None:
        """Expire the question of a reply that failed after all:
        no one can agree to what was never shown.
        """
        self._actions.end_undelivered(state.asks.get(str(number), ""), shown=True)

    def statuses(self, conversation: str) -> tuple[list[DeliveryStatus], str]:
        """Return the last deliveries of a conversation, oldest first,
        and why its address takes no messages, or "".
        """
        with self._lock:
            state = self._conversations.get(conversation)
            if state is None:
                return self._statuses.of(conversation), ""
            return [
                *self._statuses.of(conversation),
                *state.held_statuses(conversation),
            ], state.why_closed

    def close(
        self,
        conversation: str,
        reason: str,
        *,
        late: bool = False,
        opted_out: bool = False,
        number: int = 0,
    ) -> None:
        """Record that an address takes no messages, or with "" that it does."""
        with self._lock:
            state = self._conversations.get(conversation)
            if state is None:
                return
            since_reply = number if opted_out else 0
            if late and self._is_outdated(conversation, state, since_reply):
                return
            if reason:
                state.close(reason, opted_out=opted_out)
            else:
                state.closed = (-1, "")
                state.opted_out = -1
                state.barred_until = 0.0

    def _is_outdated(self, conversation: str, state: ConversationState, number: int) -> bool:
        """Return whether the user wrote since a report: after reply `number`, or lately for 0."""
        if state.has_message():
            return True
        if number:
            known = self._statuses.find(f"{conversation}#{number}")
            if known:
                return known.state == "failed" or state.heard >= known.at
            if state.outbox and state.outbox[0][0] == number:
                return False
        return self._clock() - state.heard < LATE_SECONDS

    def undelivered(self, state: UndeliveredState) -> list[DeliveryStatus]:
        """Return the undelivered replies of a state, newest first."""
        with self._lock:
            if state != "held":
                return list(self._statuses.put_aside[state])
            held = [
                status
                for name, state in self._conversations.items()
                for status in state.held_statuses(name)
            ]
            return sorted(held, key=lambda status: -status.at)[:MAX_UNDELIVERED]

    def paid_messages(self, days_ago: int) -> dict[tuple[str, str], int]:
        """Return how many paid messages were sent on a day, 0 for today,
        by channel and price class.
        """
        with self._lock:
            return dict(self._paid.get(self._today() - days_ago, {}))

    def _today(self) -> int:
        return int(self._clock() * 1000 // DAY_MS)

    def count_paid(self, conversation: str, price_class: PriceClass) -> None:
        """Count a message that its platform charges. Days before yesterday are forgotten."""
        if price_class == "free":
            return
        today = self._today()
        self._paid = {day: count for day, count in self._paid.items() if day >= today - 1}
        self._paid.setdefault(today, Counter())[conversation.partition(":")[0], price_class] += 1

    def retry(self, delivery_id: str) -> str:
        """Put a dead reply back at the end of its outbox, once.

        Return its new id. Raises NotRepeatable.
        """
        with self._lock:
            return new_id(delivery_id, self._retry(delivery_id))

    def _retry(self, delivery_id: str) -> str:
        known = self._statuses.find(delivery_id)
        if known and known.state == "retried":
            return known.receipt
        found = next(
            (status for status in self._statuses.put_aside["dead"] if status.id == delivery_id),
            None,
        )
        entry, doubtful = repeatable(found) if found else ("", False)
        arrived = self._statuses.arrived(delivery_id)
        if found:
            self._statuses.put_aside["dead"].remove(found)
        if arrived or not found:
            return "arrived" if arrived else ""
        state = self._conversations.setdefault(split_id(delivery_id)[0], ConversationState())
        now = self._clock()
        state.wake(now, WAKE_GRACE_MS / 1000)
        new = state.append_reply("", entry)
        state.suspect |= {new} if doubtful else set()
        self._statuses.note(DeliveryStatus(delivery_id, "retried", now, 0, str(new)), over=True)
        return str(new)
