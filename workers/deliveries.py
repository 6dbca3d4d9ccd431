"""Deliveries: what became of the bot's replies, for operators.

A delivery is one reply on its way to its platform. The last deliveries of each conversation are
stored with their state. Those that did not arrive as intended are also in lists, one for each
shard, until an operator deals with them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal

from sayso.channels.types import Reply
from sayso.pending.sharded_scripts import ShardedScripts, shard_of
from sayso.workers.wake_ups import WakeUp, no_wake_up

#: The state of a reply. `ambiguous`: sent after an attempt that may have arrived too; `failed`:
#: accepted by the platform and not delivered; `dead`: given up; `retried`: put back into its
#: outbox; `held`: waits for the user to write, without an attempt.
DeliveryState = Literal[
    "sent", "ambiguous", "delivered", "read", "failed", "dead", "retried", "held"
]
#: Replies that were not delivered as intended, for the operator.
UndeliveredState = Literal["dead", "failed", "ambiguous", "held"]
#: For how many seconds a message of the user outweighs a late report that the address takes none.
#: If the report was right, that costs one attempt to send.
LATE_SECONDS = 3600.0
#: The state of a delivery for each word in the reports of platforms. Reports with other words, such
#: as those about payments, are not about deliveries.
REPORTS: Mapping[str, DeliveryState] = {
    "queued": "sent",
    "accepted": "sent",
    "sending": "sent",
    "sent": "sent",
    "delivered": "delivered",
    "read": "read",
    "failed": "failed",
    "undelivered": "failed",
    "canceled": "failed",
}


class NotRepeatable(Exception):
    """Raised when a delivery cannot be put back.

    It is not dead, asked for a yes, only changed a message, or was sent after all.
    """


@dataclass(frozen=True, slots=True)
class DeliveryStatus:
    """What became of one reply, for operators. A snapshot."""

    #: The conversation and the number of the reply in it, as in `wa:0123456789abcdef0123#7`.
    id: str
    state: DeliveryState
    #: When the reply came into this state, in Unix seconds.
    at: float
    #: How often the reply was sent, or tried.
    attempts: int
    #: The platform's id of the message, and for a retried reply its new number; "" if unknown.
    receipt: str = ""
    #: Why the reply was not delivered, "" for no reason.
    reason: str = ""
    #: The outbox record of a dead reply as JSON, "" for any other.
    entry: str = ""
    #: Whether a dead reply was a question. It cannot be answered any more.
    asks: bool = False
    #: Whether a dead reply may have arrived.
    doubtful: bool = False

    @property
    def text(self) -> str:
        """Return the text of a dead delivery, "" for any other."""
        if not self.entry:
            return ""
        record = json.loads(self.entry)
        # A question for another conversation, or a turn, has no reply for this one.
        reply = json.loads(record.get("reply", "{}"))
        return str(reply.get("text", ""))


class RedisDeliveries:
    """The deliveries in Redis: the last ones of each conversation, and the undelivered ones.

    One per process. All methods raise redis.RedisError.
    """

    def __init__(self, scripts: ShardedScripts, wake_up: WakeUp = no_wake_up) -> None:
        """`wake_up`: makes the job that wakes a worker for a reply that is put back."""
        self._scripts = scripts
        self._wake_up = wake_up

    def report(self, delivery_id: str, message_id: str, status: str, reason: str = "") -> str:
        """Record what a platform reports about a reply that it had accepted.

        `message_id`: the platform's id of the message. `status`: the platform's word. `reason`: why
        the reply failed, "" for none. Return the state that is stored now, "" if the delivery is
        unknown or the report is not about deliveries.
        """
        news = REPORTS.get(status)
        if news is None:
            return ""
        conversation, number = split_id(delivery_id)
        args = {"number": number, "message": message_id, "news": news, "reason": reason}
        return str(self._scripts.run("delivery_report", conversation, args))

    def statuses(self, conversation: str) -> tuple[list[DeliveryStatus], str]:
        """Return the last deliveries of a conversation, the oldest first, and the state of its
        address: why it takes no messages, "" if it takes them.
        """
        answer = json.loads(self._scripts.run("list_deliveries", conversation))
        deliveries: Mapping[str, Mapping[str, Any]] = answer["deliveries"]
        statuses = [
            _delivery_status(f"{conversation}#{number}", deliveries[number])
            for number in sorted(deliveries, key=int)
        ]

        # The reply that waits for its user is not sent yet, so it has no entry among the others.
        held = answer.get("held")
        if held:
            held_reply = DeliveryStatus(
                id=f"{conversation}#{held['number']}",
                state="held",
                at=held["since"] / 1000,
                attempts=0,
                reason=held["reason"],
            )
            statuses.append(held_reply)
        return statuses, str(answer["closed_reason"])

    def close(
        self,
        conversation: str,
        reason: str,
        *,
        late: bool = False,
        opted_out: bool = False,
        number: int = 0,
    ) -> None:
        """Record that an address takes no messages, as its platform says, or takes them again.

        An address without a conversation stays unknown.

        `reason`: why it takes none, "" if it takes messages. `late`: the report is about an earlier
        message. It is ignored if the user wrote within LATE_SECONDS, because that is newer.
        `opted_out`: the user wants no messages. Then a late report is ignored only if the user
        wrote after the reply `number` was sent, since the message before it may be the one that
        asks for silence. `number`: of the reply that the report is about, 0 if unknown.
        """
        late_ms = round(LATE_SECONDS * 1000) if late else 0
        args = {"reason": reason, "late_ms": late_ms, "opted_out": opted_out, "number": number}
        self._scripts.run("record_address", conversation, args)

    def undelivered(self, state: UndeliveredState) -> list[DeliveryStatus]:
        """Return the undelivered replies of a state, the newest first.

        At most MAX_UNDELIVERED of each shard are stored.
        """
        by_shard = self._scripts.on_every_shard("list_undelivered", {"state": state})
        entries = chain.from_iterable(by_shard)
        statuses = [_undelivered_status(state, entry) for entry in entries]
        return sorted(statuses, key=lambda status: -status.at)

    def paid_messages(self, days_ago: int) -> dict[tuple[str, str], int]:
        """Return how many paid messages were sent on a day, by channel and price class.

        `days_ago`: 0 for today, in UTC. Days before yesterday are forgotten.
        """
        count: Counter[tuple[str, str]] = Counter()
        for answer in self._scripts.on_every_shard("paid_messages", {"days_ago": days_ago}):
            counts_of_shard: dict[str, int] = json.loads(answer)
            for name, number in counts_of_shard.items():
                channel, _, price_class = name.partition(" ")
                count[channel, price_class] += number
        return dict(count)

    def retry(self, delivery_id: str) -> str:
        """Put a dead reply back at the end of its outbox, once.

        Return its new id. Raises NotRepeatable.
        """
        conversation, number = split_id(delivery_id)
        entry = self._dead_entry(conversation, delivery_id)

        # A reply that is not in the list may have been put back by this very call, if it is
        # repeated because its answer was lost. The script knows.
        record = ""
        is_doubtful = False
        if entry:
            status = _undelivered_status("dead", entry)
            record = repeatable_record(status)
            is_doubtful = status.doubtful

        job = self._wake_up(conversation)
        args = {"number": number, "doubtful": is_doubtful, **job.names}
        new_number = self._scripts.run("put_back", conversation, args, entry, record, *job.fields)
        return new_id(delivery_id, str(new_number))

    def _dead_entry(self, conversation: str, delivery_id: str) -> str:
        """Return the entry of a reply in the list of dead replies, "" if it is not there."""
        shard = shard_of(conversation)
        entries: list[str] = self._scripts.on_shard("list_undelivered", shard, {"state": "dead"})
        for entry in entries:
            if json.loads(entry)["id"] == delivery_id:
                return entry
        return ""


def split_id(delivery_id: str) -> tuple[str, int]:
    """Return the conversation and the number of a delivery. Raises NotRepeatable."""
    conversation, _, number = delivery_id.rpartition("#")
    if not conversation or not number.isdecimal():
        raise NotRepeatable(
            f"{delivery_id!r} is no delivery: write it as listed, like wa:0123456789abcdef0123#7"
        )
    return conversation, int(number)


def repeatable_record(status: DeliveryStatus) -> str:
    """Return the record with which a dead reply is put into its outbox again, as JSON.

    A reply that was to edit a message is sent as a new one: by now that message is far above.
    Raises NotRepeatable for a question, and for a reply that only changed a message.
    """
    if status.asks:
        raise NotRepeatable(
            f"{status.id} asked for a yes, and it is too late for one: the person has to ask again"
        )
    record = json.loads(status.entry)
    if "reply" not in record:
        raise NotRepeatable(f"{status.id} was for another conversation, and is out of date")
    reply = Reply.from_json(record["reply"])
    if reply.optional:
        raise NotRepeatable(
            f"{status.id} only changed a message that is there already: nothing is missing"
        )
    record["reply"] = replace(reply, edits="").to_json()
    # It must not take the place of a newer reply.
    record.pop("collapse", None)
    # The script adds the time again.
    record.pop("at", None)
    return json.dumps(record)


def new_id(delivery_id: str, number: str) -> str:
    """Return the id of a reply that was put back.

    `number`: what the script answers, its new number. Raises NotRepeatable if it was not put back.
    """
    if number == "arrived":
        raise NotRepeatable(f"{delivery_id} was sent: its platform said so")
    if not number:
        raise NotRepeatable(f"{delivery_id} is not among the dead deliveries")
    return f"{split_id(delivery_id)[0]}#{number}"


def _delivery_status(delivery_id: str, fields: Mapping[str, Any]) -> DeliveryStatus:
    """Return the status of one of the last deliveries of a conversation."""
    receipt = fields["receipt"]
    if receipt == "-":
        receipt = ""
    return DeliveryStatus(
        id=delivery_id,
        state=fields["state"],
        at=fields["at"] / 1000,
        attempts=fields["attempts"],
        receipt=receipt,
        reason=fields["reason"],
    )


def _undelivered_status(state: UndeliveredState, entry: str) -> DeliveryStatus:
    """Return the status of a reply in a list of undelivered ones. Each list has other fields."""
    fields: dict[str, Any] = json.loads(entry)
    return DeliveryStatus(
        id=fields["id"],
        state=state,
        at=fields["at"] / 1000,
        attempts=fields["attempts"],
        reason=fields.get("reason", ""),
        entry=fields.get("entry", ""),
        asks=fields.get("asks", False),
        doubtful=fields.get("doubtful", False),
    )
