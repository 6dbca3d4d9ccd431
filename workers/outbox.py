"""Outbox, status of deliveries, and receipts on disk."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol, cast

from sayso.channels.types import Delivery, Reply
from sayso.pending.redis.scripts import LuaScripts, WakeUp, shard_of
from sayso.pending.turns import Lease, LeaseLost, NextItem, QueuedReply, hash_from_reply, outbox_entry, parse_next_item

#: The state of a reply. `ambiguous`: sent after an attempt that may have arrived too; `failed`: accepted by the
#: platform and not delivered; `dead`: given up; `retried`: put back into its outbox; `held`: waits for the user to
#: write, without an attempt.
DeliveryState = Literal["sent", "ambiguous", "delivered", "read", "failed", "dead", "retried", "held"]
#: Replies that were not delivered as intended, for the operator.
UndeliveredState = Literal["dead", "failed", "ambiguous", "held"]
#: Seconds for which a message from the user outweighs a late report that the address takes none. Sending then costs one
#: attempt.
LATE_SECONDS = 3600.0
#: The platforms' words for delivery states. Other words, such as those about payments, are not about deliveries.
REPORTS: Mapping[str, DeliveryState] = {
    "queued": "sent", "accepted": "sent", "sending": "sent", "sent": "sent", "delivered": "delivered", "read": "read",
    "failed": "failed", "undelivered": "failed", "canceled": "failed",
}  # fmt: skip

log = logging.getLogger(__name__)
#: The folder's name in the data folder.
FOLDER = "receipts"
#: Bytes of one file, 3,000 receipts; then a new file is begun and only the one before it is kept.
MAX_BYTES = 256 * 1024
#: Seconds for which a receipt is looked for: longer than a conversation waits for its next worker while Redis is up.
KEEP_SECONDS = 3600
#: How a reply ended that is given up: `doubtful` its last attempt may have arrived, `closed` the address takes no
#: messages, `limited` the platform asks the whole channel to wait.
FinalState = Literal["dead", "doubtful", "closed", "limited"]
#: Why a reply is postponed: the attempt failed, it may have arrived, the platform asks to wait, the platform does not
#: accept the channel, its slot is later, or the user must write first.
PostponeReason = Literal["tried", "suspect", "limited", "down", "paced", "held"]


class NotRepeatable(Exception):
    """Raised when a delivery cannot be put back: it is not dead, asked for a yes, edited a message, or was sent."""


@dataclass(frozen=True, slots=True)
class DeliveryStatus:
    """The status of one delivery, after `tries` attempts, at Unix seconds `at`.

    `receipt` is the platform's message id, and for a retried delivery its new number. Only a dead one has its `entry`.
    One that `asks` for a yes cannot be answered any more; a `doubtful` one may have arrived.
    """

    id: str
    state: DeliveryState
    at: float
    tries: int
    receipt: str = ""
    reason: str = ""
    entry: str = ""
    asks: bool = False
    doubtful: bool = False

    @property
    def text(self) -> str:
        """Return the text of a dead delivery."""
        return str(json.loads(json.loads(self.entry)["reply"]).get("text", "")) if self.entry else ""


class Deliveries(Protocol):
    """The deliveries that are stored: the last of each conversation, and the undelivered ones for the operator."""

    def report(self, delivery_id: str, message_id: str, status: str, reason: str = "") -> str:
        """Record what a platform reports, whenever it comes. Return the state that is stored, "" if the delivery is
        unknown.
        """

    def statuses(self, conversation: str) -> tuple[list[DeliveryStatus], str]:
        """Return the last deliveries of a conversation, oldest first, and why its address takes no messages ("": it
        does).
        """

    def close(self, conversation: str, reason: str, *, late: bool = False) -> None:
        """Record why, according to its platform, an address takes no messages; "" that it does.

        A `late` report is about an earlier message: it is ignored if the user wrote within LATE_SECONDS. An unknown
        address stays unknown.
        """

    def undelivered(self, state: UndeliveredState, most: int = 1000) -> list[DeliveryStatus]:
        """Return the undelivered replies of a state, newest first, at most so many per shard."""

    def retry(self, delivery_id: str) -> str:
        """Put a dead reply back at the end of its outbox, once. Return its new id. Raises NotRepeatable."""


class RedisDeliveries:
    """The deliveries in Redis."""

    def __init__(self, scripts: LuaScripts, wake_up: WakeUp = lambda _: ()) -> None:
        self._scripts = scripts
        self._wake_up = wake_up

    def report(self, delivery_id: str, message_id: str, status: str, reason: str = "") -> str:
        """Record what a platform reports. Raises redis.RedisError."""
        news, (conversation, number) = REPORTS.get(status), split_id(delivery_id)
        if news is None:
            return ""
        return str(self._scripts.run("delivery_report", conversation, number, message_id, news, reason))

    def statuses(self, conversation: str) -> tuple[list[DeliveryStatus], str]:
        """Return the last deliveries of a conversation, and why its address takes no messages."""
        entries, closed, held = self._scripts.run("delivery_status", conversation)
        by_number = sorted(hash_from_reply(entries).items(), key=lambda each: int(each[0]))
        statuses = [_parse_status(f"{conversation}#{number}", entry) for number, entry in by_number]
        if held:
            number, since, why = held
            statuses.append(DeliveryStatus(f"{conversation}#{number}", "held", int(since) / 1000, 0, reason=why))
        return statuses, str(closed)

    def close(self, conversation: str, reason: str, *, late: bool = False) -> None:
        """Record that an address takes no messages, or that it does. Raises redis.RedisError."""
        self._scripts.run("address", conversation, reason, round(LATE_SECONDS * 1000) if late else 0)

    def undelivered(self, state: UndeliveredState, most: int = 1000) -> list[DeliveryStatus]:
        """Return the undelivered replies of all shards."""
        found = [entry for entries in self._scripts.on_every_shard("undelivered", state, most) for entry in entries]
        return sorted((_put_aside(state, entry) for entry in found), key=lambda status: -status.at)

    def retry(self, delivery_id: str) -> str:
        """Put a dead reply back and wake a worker. Raises NotRepeatable."""
        conversation, number = split_id(delivery_id)
        entries = self._scripts.on_shard("undelivered", shard_of(conversation), "dead", 1000)
        entry = next((entry for entry in entries if json.loads(entry)["id"] == delivery_id), "")
        reply, doubtful = repeatable(_put_aside("dead", entry)) if entry else ("", False)
        # One that is not there may have been put back by this very call, its answer lost: the script knows.
        given = (number, entry, reply, "1" if doubtful else "0")
        new = self._scripts.run("retry", conversation, *given, *self._wake_up(conversation))
        return new_id(delivery_id, str(new))


def split_id(delivery_id: str) -> tuple[str, int]:
    """Return conversation and number of a delivery. Raises NotRepeatable for what is no delivery id."""
    conversation, _, number = delivery_id.rpartition("#")
    if not conversation or not number.isdecimal():
        raise NotRepeatable(f"{delivery_id!r} is no delivery: write it as listed, like wa:0123456789abcdef0123#7")
    return conversation, int(number)


def repeatable(status: DeliveryStatus) -> tuple[str, bool]:
    """Return the outbox entry of a dead reply, and whether it may have arrived. Raises NotRepeatable for a question.

    A reply that was to edit a message is sent as a new one: by now that message is far above.
    """
    if status.asks:
        raise NotRepeatable(f"{status.id} asked for a yes, and it is too late for one: the person has to ask again")
    entry = json.loads(status.entry)
    reply = Reply.from_json(entry["reply"])
    if reply.optional:
        raise NotRepeatable(f"{status.id} only changed a message that is there already: nothing is missing")
    entry["reply"] = replace(reply, edits="").to_json()
    entry.pop("collapse", None)  # it must not take the place of a newer one
    return json.dumps(entry), status.doubtful


def new_id(delivery_id: str, number: str) -> str:
    """Return the id of a reply that was put back. Raises NotRepeatable when it was not."""
    if number == "arrived":
        raise NotRepeatable(f"{delivery_id} was sent: its platform said so")
    if not number:
        raise NotRepeatable(f"{delivery_id} is not among the dead deliveries")
    return f"{split_id(delivery_id)[0]}#{number}"


def _parse_status(delivery_id: str, entry: str) -> DeliveryStatus:
    word, at, tries, receipt, reason = entry.split(" ", 4)
    state = cast("DeliveryState", word)  # our scripts write only states
    return DeliveryStatus(delivery_id, state, int(at) / 1000, int(tries), "" if receipt == "-" else receipt, reason)


def _put_aside(state: UndeliveredState, entry: str) -> DeliveryStatus:
    fields: dict[str, Any] = json.loads(entry)
    more = {name: fields[name] for name in ("reason", "entry", "asks", "doubtful") if name in fields}
    return DeliveryStatus(fields["id"], state, fields["at"] / 1000, fields["tries"], **more)


class Receipts(Protocol):
    """Remembers what a platform accepted."""

    def note(self, delivery: Delivery, message_id: str) -> None:
        """Remember the platform's message id of a delivery. A failure is no error."""

    def find(self, delivery: Delivery) -> str | None:
        """Return the platform's message id, "" if it gave none; None if the delivery is unknown."""


class NoReceipts:
    """Remembers nothing."""

    def note(self, delivery: Delivery, message_id: str) -> None:
        """Do nothing."""

    def find(self, delivery: Delivery) -> str | None:
        """Return None."""
        return None


class ReceiptFiles:
    """One file per process in a common folder, appended to and never synced: it survives its process, not its machine.

    `name` is the process's own.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / name
        self._file = -1
        self._size = 0

    def note(self, delivery: Delivery, message_id: str) -> None:
        """Write one line to this process's file: a write to the page cache, faster than handing it to a thread."""
        line = f"{_key(delivery)} {''.join(message_id.split())}\n".encode()
        try:
            if self._file < 0 or self._size > MAX_BYTES:
                self._begin()
            self._size += os.write(self._file, line)
        except OSError as exc:
            log.warning("receipt.not_noted", extra={"reason": type(exc).__name__})

    def find(self, delivery: Delivery) -> str | None:
        """Search all files of the last hour. Reads the disk."""
        wanted = f"{_key(delivery)} ".encode()
        for path in self._path.parent.glob("*"):
            try:
                if time.time() - path.stat().st_mtime < KEEP_SECONDS:
                    data = b"\n" + path.read_bytes()
                    _, found, rest = data.partition(b"\n" + wanted)
                    if found and b"\n" in rest:  # a line that is not whole says nothing
                        return rest.partition(b"\n")[0].decode()
            except OSError:  # swept meanwhile
                continue
        return None

    def _begin(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._file >= 0:
            os.close(self._file)
            self._path.replace(self._path.with_name(f"{self._path.name}.old"))
        self._sweep()
        self._file = os.open(self._path, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_TRUNC, 0o600)
        self._size = 0

    def _sweep(self) -> None:
        """Remove the files of dead processes."""
        for path in self._path.parent.glob("*"):
            with contextlib.suppress(OSError):  # another process removed it first
                if time.time() - path.stat().st_mtime > KEEP_SECONDS:
                    path.unlink()


def _key(delivery: Delivery) -> str:
    """Return the delivery's id and a digest of its content: a Redis that was emptied gives out the same ids again."""
    return f"{delivery.id} {hashlib.sha256(repr(delivery.reply).encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


class Outbox(Protocol):
    """The replies of each conversation, first in first out."""

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
        """Record that the reply was sent, or is given up for the reason `dead`. A question that was sent may be
        answered now.

        `written_at`: when the platform shows the reply, in Unix seconds, 0.0 if it does not say. `gap`: seconds by
        which the reply brings its chat ahead of its rate limit; at a `limited` end, seconds for which its channel is
        silent. With `let_go`, None means that nothing is left and the lease is released. Raises LeaseLost.
        """

    async def postpone(
        self, lease: Lease, reply: QueuedReply, seconds: float, why: PostponeReason = "tried", reason: str = ""
    ) -> None:
        """Postpone the reply by `seconds` and release the lease. Raises LeaseLost.

        With `limited` the whole channel waits so long, and with `down` too, without counting an attempt. With `held`
        the reply waits, for this reason, until the user writes, for KEEP_HELD_MS at most; if a turn waits already, it
        counts as an attempt.
        """

    async def book_slot(self, lease: Lease, reply: QueuedReply, per_second: float) -> float:
        """Store how fast the reply's channel may send, and book a slot for the reply. Return the seconds until then.

        Raises LeaseLost.
        """

    async def forward(self, delivery: Delivery) -> str:
        """Append a reply to the outbox of the conversation it is addressed to, once per id, and wake a worker there.

        Needs no lease. Return its id there, or "" when too many replies wait there already.
        """


class RedisOutbox:
    """The outbox in Redis: each call is one script, one round trip."""

    def __init__(self, scripts: LuaScripts, wake_up: WakeUp = lambda _: ()) -> None:
        self._scripts = scripts
        self._wake_up = wake_up

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
        """Remove the reply from the outbox and record its status. Raises LeaseLost."""
        outcome, detail = (end, dead) if dead else ("sent", "".join(receipt.split()))
        place = (lease.conversation, lease.epoch, lease.token, reply.number)
        when, cause = round(written_at * 1_000_000), "" if dead else reply.cause
        told = (outcome, detail, round(gap * 1000), "1" if let_go else "0", when, cause)
        answer = await self._scripts.arun("delivered", *place, *told)
        if answer[0] == "lost":
            raise LeaseLost(lease.conversation)
        return parse_next_item(answer[1])

    async def postpone(
        self, lease: Lease, reply: QueuedReply, seconds: float, why: PostponeReason = "tried", reason: str = ""
    ) -> None:
        """Postpone the reply and release the lease. Raises LeaseLost."""
        place = (lease.conversation, lease.epoch, lease.token, reply.number)
        if await self._scripts.arun("postpone", *place, round(seconds * 1000), why, reason) == "lost":
            raise LeaseLost(lease.conversation)

    async def book_slot(self, lease: Lease, reply: QueuedReply, per_second: float) -> float:
        """Store the channel's rate and book the reply's slot. Raises LeaseLost."""
        place = (lease.conversation, lease.epoch, lease.token, reply.number)
        wait_ms = int(await self._scripts.arun("rate_limit", *place, 1000 / per_second))
        if wait_ms == -2:
            raise LeaseLost(lease.conversation)
        return wait_ms / 1000

    async def forward(self, delivery: Delivery) -> str:
        """Append the reply to another conversation's outbox, once."""
        to, entry = delivery.conversation.id, outbox_entry(delivery.conversation, delivery.reply)
        said = await self._scripts.arun("forward", to, delivery.id, entry, *self._wake_up(to))
        return f"{to}#{said}" if said else ""
