"""Deliveries: the status of what was sent, and the replies that were not delivered, for operators."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
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
#: Seconds for which a message from the user outweighs a late report that the address takes none.
#: Sending then costs one attempt.
LATE_SECONDS = 3600.0
#: The platforms' words for delivery states. Other words, such as those about payments,
#: are not about deliveries.
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
    """Raised when a delivery cannot be put back: it is not dead, asked for a yes, edited a message,
    or was sent.
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
        """Return the text of a dead delivery."""
        if self.entry:
            return str(json.loads(json.loads(self.entry)["reply"]).get("text", ""))
        return ""


class RedisDeliveries:
    """The deliveries in Redis: the last of each conversation,
    and the undelivered ones for the operator.

    All methods raise redis.RedisError.
    """

    def __init__(self, scripts: ShardedScripts, wake_up: WakeUp = no_wake_up) -> None:
        self._scripts = scripts
        self._wake_up = wake_up

    def report(self, delivery_id: str, message_id: str, status: str, reason: str = "") -> str:
        """Record what a platform reports.

        Return the state that is stored, "" if the delivery is unknown.
        """
        news = REPORTS.get(status)
        (conversation, number) = split_id(delivery_id)
        if news is None:
            return ""
        args = {"number": number, "message": message_id, "news": news, "reason": reason}
        return str(self._scripts.run("delivery_report", conversation, args))

    def statuses(self, conversation: str) -> tuple[list[DeliveryStatus], str]:
        """Return the last deliveries of a conversation, oldest first,
        and why its address takes no messages or "".
        """
        answer = json.loads(self._scripts.run("list_deliveries", conversation))
        deliveries: Mapping[str, Mapping[str, Any]] = answer["deliveries"]
        statuses = [
            DeliveryStatus(
                id=f"{conversation}#{number}",
                state=deliveries[number]["state"],
                at=deliveries[number]["at"] / 1000,
                attempts=deliveries[number]["attempts"],
                receipt=deliveries[number]["receipt"].removeprefix("-"),
                reason=deliveries[number]["reason"],
            )
            for number in sorted(deliveries, key=int)
        ]

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
        """Record why, according to its platform, an address takes no messages; "" that it does.

        A `late` report is about an earlier message: it is ignored if the user wrote within
        LATE_SECONDS. An unknown address stays unknown. If the user `opted_out`, a late report is
        ignored only if the user wrote after reply `number` was sent: the message that it answered
        may be the one that asks for silence.
        """
        late_ms = round(LATE_SECONDS * 1000) if late else 0
        args = {"reason": reason, "late_ms": late_ms, "opted_out": opted_out, "number": number}
        self._scripts.run("address", conversation, args)

    def undelivered(self, state: UndeliveredState) -> list[DeliveryStatus]:
        """Return the undelivered replies of a state, newest first,
        at most MAX_UNDELIVERED per shard.
        """
        shards = self._scripts.on_every_shard("list_undelivered", {"state": state})
        found = [entry for entries in shards for entry in entries]
        return sorted((_put_aside(state, entry) for entry in found), key=lambda status: -status.at)

    def paid_messages(self, days_ago: int) -> dict[tuple[str, str], int]:
        """Return how many paid messages were sent on a day in UTC, 0 for today,
        by channel and price class.

        Days before yesterday are forgotten.
        """
        count: Counter[tuple[str, str]] = Counter()
        for row in self._scripts.on_every_shard("paid_messages", {"days_ago": days_ago}):
            for name, number in zip(row[::2], row[1::2], strict=True):
                channel, _, price_class = name.partition(" ")
                count[channel, price_class] += int(number)
        return dict(count)

    def retry(self, delivery_id: str) -> str:
        """Put a dead reply back at the end of its outbox, once.

        Return its new id. Raises NotRepeatable.
        """
        conversation, number = split_id(delivery_id)
        entries = self._scripts.on_shard(
            "list_undelivered", shard_of(conversation), {"state": "dead"}
        )
        entry = next((entry for entry in entries if json.loads(entry)["id"] == delivery_id), "")
        reply, doubtful = repeatable(_put_aside("dead", entry)) if entry else ("", False)
        # One that is not there may have been put back by this very call, its answer lost:
        # the script knows.
        job = self._wake_up(conversation)
        args = {"number": number, "doubtful": doubtful, **job.names}
        new = self._scripts.run("put_back", conversation, args, entry, reply, *job.fields)
        return new_id(delivery_id, str(new))


def split_id(delivery_id: str) -> tuple[str, int]:
    """Return conversation and number of a delivery.

    Raises NotRepeatable for what is no delivery id.
    """
    conversation, _, number = delivery_id.rpartition("#")
    if not conversation or not number.isdecimal():
        raise NotRepeatable(
            f"{delivery_id!r} is no delivery: write it as listed, like wa:0123456789abcdef0123#7"
        )
    return conversation, int(number)


def repeatable(status: DeliveryStatus) -> tuple[str, bool]:
    """Return the outbox entry of a dead reply, and whether it may have arrived.

    Raises NotRepeatable for a question.

    A reply that was to edit a message is sent as a new one: by now that message is far above.
    """
    if status.asks:
        raise NotRepeatable(
            f"{status.id} asked for a yes, and it is too late for one: the person has to ask again"
        )
    entry = json.loads(status.entry)
    reply = Reply.from_json(entry["reply"])
    if reply.optional:
        raise NotRepeatable(
            f"{status.id} only changed a message that is there already: nothing is missing"
        )
    entry["reply"] = replace(reply, edits="").to_json()
    entry.pop("collapse", None)  # it must not take the place of a newer one
    entry.pop("at", None)  # when it waited first
    return json.dumps(entry), status.doubtful


def new_id(delivery_id: str, number: str) -> str:
    """Return the id of a reply that was put back. Raises NotRepeatable when it was not."""
    if number == "arrived":
        raise NotRepeatable(f"{delivery_id} was sent: its platform said so")
    if not number:
        raise NotRepeatable(f"{delivery_id} is not among the dead deliveries")
    return f"{split_id(delivery_id)[0]}#{number}"


def _put_aside(state: UndeliveredState, entry: str) -> DeliveryStatus:
    fields: dict[str, Any] = json.loads(entry)
    more = {
        name: fields[name] for name in ("reason", "entry", "asks", "doubtful") if name in fields
    }
    return DeliveryStatus(fields["id"], state, fields["at"] / 1000, fields["attempts"], **more)
