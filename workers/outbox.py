"""Outbox, delivery status, receipts on disk."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import time
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from sayso.channels.types import Delivery, Reply
from sayso.pending.redis.scripts import LuaScripts, WakeUp, shard_of
from sayso.pending.turns.change import Lease, outbox_entry
from sayso.pending.turns.queued import LeaseLost, NextItem, QueuedReply, pairs, read_work

#: What may have become of a reply. `ambiguous`: sent after a try that may have arrived too; `failed`: taken by the
#: platform and not delivered; `dead`: given up; `retried`: put back into its outbox; `held`: it waits for its person to
#: write, and counts as not tried.
DeliveryState = Literal["sent", "ambiguous", "delivered", "read", "failed", "dead", "retried", "held"]


#: What an operator may want to look at.
Aside = Literal["dead", "failed", "ambiguous", "held"]


#: Of how many replies of a conversation it is kept what became of them.
MAX_DELIVERIES = 50


#: For how long whoever wrote knows better than what is said late of their address. Not to believe it costs a try.
LATE_SECONDS = 3600.0


#: The platforms' words for what they report. Others, such as a payment's, tell nothing of a delivery.
REPORTS: Mapping[str, DeliveryState] = {
    "queued": "sent", "accepted": "sent", "sending": "sent", "sent": "sent", "delivered": "delivered", "read": "read",
    "failed": "failed", "undelivered": "failed", "canceled": "failed",
}  # fmt: skip


class NotRepeatable(Exception):
    """Raised when a delivery cannot be put back: it is not dead, asked for a yes, changed a message, or was sent."""


@dataclass(frozen=True, slots=True)
class DeliveryStatus:
    """What became of one delivery, in `tries` tries, at Unix seconds `at`.

    `receipt` is the platform's message id, and of a retried one the number it has now. Only a dead one has its `entry`;
    one that `asks` for a yes cannot be answered any more; a `doubtful` one may have arrived.
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
        """The words of a dead one."""
        return str(json.loads(json.loads(self.entry)["reply"]).get("text", "")) if self.entry else ""


class Deliveries(Protocol):
    """Every delivery that is kept: the last of each conversation, and those put aside for the operator."""

    def report(self, delivery_id: str, message_id: str, status: str, reason: str = "") -> str:
        """Note what a platform said, whenever it comes. Returns the state that is kept, "" for one nobody knows."""

    def fates(self, conversation: str) -> tuple[list[DeliveryStatus], str]:
        """The last deliveries of a conversation, oldest first, and why its address takes none now, or ""."""

    def close(self, conversation: str, reason: str, *, late: bool = False) -> None:
        """Its platform says, unasked, why its address takes nothing, "" that it does. What is not known stays so.

        What comes `late` is about an earlier message: it is not believed of whoever wrote within LATE_SECONDS.
        """

    def aside(self, state: Aside, most: int = 1000) -> list[DeliveryStatus]:
        """What was put aside, newest first, at most so many of each shard."""

    def retry(self, delivery_id: str) -> str:
        """Put a dead reply back at the end of its outbox, once. Returns its new id. Raises NotRepeatable."""


class RedisDeliveries:
    """The deliveries in Redis."""

    def __init__(self, scripts: LuaScripts, wake_up: WakeUp = lambda _: ()) -> None:
        self._scripts = scripts
        self._wake_up = wake_up

    def report(self, delivery_id: str, message_id: str, status: str, reason: str = "") -> str:
        """Note what a platform said. Raises redis.RedisError."""
        news, (conversation, number) = REPORTS.get(status), split_id(delivery_id)
        if news is None:
            return ""
        return str(self._scripts.run("report", conversation, number, message_id, news, reason))

    def fates(self, conversation: str) -> tuple[list[DeliveryStatus], str]:
        """The last deliveries of a conversation, and why its address takes none."""
        found, closed, waits = self._scripts.run("fates", conversation)
        noted = sorted(pairs(found).items(), key=lambda each: int(each[0]))
        fates = [_noted(f"{conversation}#{number}", words) for number, words in noted]
        if waits:
            number, since, why = waits
            fates.append(DeliveryStatus(f"{conversation}#{number}", "held", int(since) / 1000, 0, reason=why))
        return fates, str(closed)

    def close(self, conversation: str, reason: str, *, late: bool = False) -> None:
        """Mark its address, or take the mark away. Raises redis.RedisError."""
        self._scripts.run("address", conversation, reason, round(LATE_SECONDS * 1000) if late else 0)

    def aside(self, state: Aside, most: int = 1000) -> list[DeliveryStatus]:
        """What was put aside in all shards."""
        found = [entry for entries in self._scripts.on_every_shard("aside", state, most) for entry in entries]
        return sorted((_put_aside(state, entry) for entry in found), key=lambda fate: -fate.at)

    def retry(self, delivery_id: str) -> str:
        """Put a dead reply back and wake a worker. Raises NotRepeatable."""
        conversation, number = split_id(delivery_id)
        entries = self._scripts.on_shard("aside", shard_of(conversation), "dead", 1000)
        entry = next((entry for entry in entries if json.loads(entry)["id"] == delivery_id), "")
        reply, doubtful = repeatable(_put_aside("dead", entry)) if entry else ("", False)
        # One that is not there may have been put back by this very call, its answer lost: the script knows.
        given = (number, entry, reply, "1" if doubtful else "0")
        new = self._scripts.run("retry", conversation, *given, *self._wake_up(conversation))
        return new_id(delivery_id, str(new))


def split_id(delivery_id: str) -> tuple[str, int]:
    """Conversation and number of a delivery. Raises NotRepeatable for what is no id."""
    conversation, _, number = delivery_id.rpartition("#")
    if not conversation or not number.isdecimal():
        raise NotRepeatable(f"{delivery_id!r} is no delivery: write it as listed, like wa:0123456789abcdef0123#7")
    return conversation, int(number)


def repeatable(fate: DeliveryStatus) -> tuple[str, bool]:
    """The outbox entry of a dead reply, and whether it may have arrived. Raises NotRepeatable for a question.

    What was to take another message's place comes as a message of its own: by now that one is far above.
    """
    if fate.asks:
        raise NotRepeatable(f"{fate.id} asked for a yes that nobody can give any more: the person has to ask again")
    entry = json.loads(fate.entry)
    reply = Reply.from_json(entry["reply"])
    if reply.optional:
        raise NotRepeatable(f"{fate.id} only changed a message that is there already: nothing is missing")
    entry["reply"] = replace(reply, edits="").to_json()
    entry.pop("collapse", None)  # it must not take the place of a newer one
    return json.dumps(entry), fate.doubtful


def new_id(delivery_id: str, number: str) -> str:
    """The id of a reply that was put back. Raises NotRepeatable when it was not."""
    if number == "arrived":
        raise NotRepeatable(f"{delivery_id} was sent: its platform said so")
    if not number:
        raise NotRepeatable(f"{delivery_id} is not among the dead deliveries")
    return f"{split_id(delivery_id)[0]}#{number}"


def _noted(delivery_id: str, words: str) -> DeliveryStatus:
    state, at, tries, receipt, reason = words.split(" ", 4)
    return DeliveryStatus(delivery_id, state, int(at) / 1000, int(tries), "" if receipt == "-" else receipt, reason)  # type: ignore[arg-type]  # our scripts write only states


def _put_aside(state: Aside, entry: str) -> DeliveryStatus:
    fields: dict[str, Any] = json.loads(entry)
    more = {name: fields[name] for name in ("reason", "entry", "asks", "doubtful") if name in fields}
    return DeliveryStatus(fields["id"], state, fields["at"] / 1000, fields["tries"], **more)


#: How far each state is, for reports that come in any order.
_RANKS: Mapping[DeliveryState, int] = {
    "dead": 0, "sent": 1, "ambiguous": 1, "delivered": 2, "read": 3, "failed": 4, "retried": 5,
}  # fmt: skip


@dataclass(slots=True)
class MemoryFates:
    """The deliveries of one process, bounded: what the scripts note, in Python. `MemoryLanes` keeps the rest."""

    noted: dict[str, OrderedDict[int, DeliveryStatus]] = field(default_factory=dict)
    put_aside: dict[Aside, deque[DeliveryStatus]] = field(
        default_factory=lambda: {
            "dead": deque(maxlen=1000),
            "failed": deque(maxlen=1000),
            "ambiguous": deque(maxlen=1000),
        }
    )

    def note(self, fate: DeliveryStatus, *, over: bool = False) -> bool:
        """Keep what became of a reply. A status that the platform reported before us stays, unless it is `over`."""
        conversation, number = split_id(fate.id)
        noted = self.noted.setdefault(conversation, OrderedDict())
        if number in noted and not over:
            noted[number] = replace(noted[number], reason=noted[number].reason or fate.reason)
            return False
        noted[number] = fate
        noted.pop(number - MAX_DELIVERIES, None)
        return True

    def find(self, delivery_id: str) -> DeliveryStatus | None:
        """What is noted of a delivery."""
        conversation, number = split_id(delivery_id)
        noted = self.noted.get(conversation)
        return noted.get(number) if noted else None

    def of(self, conversation: str) -> list[DeliveryStatus]:
        """What is noted of a conversation, oldest first."""
        noted = self.noted.get(conversation)
        return [noted[number] for number in sorted(noted)] if noted else []

    def arrived(self, delivery_id: str) -> str:
        """The receipt of a delivery whose platform took it, else ""."""
        known = self.find(delivery_id)
        return known.receipt if known and known.state in ("sent", "delivered", "read") else ""

    def end(self, fate: DeliveryStatus) -> None:
        """A reply was settled. The failure of an earlier copy is none of this one."""
        known = self.find(fate.id)
        new = self.note(fate, over=bool(known and known.state == "failed" and fate.receipt not in ("", known.receipt)))
        if fate.state == "dead" or (fate.state == "ambiguous" and new):
            self.put_aside[fate.state].appendleft(fate)

    def report(self, news: DeliveryStatus, *, sending: bool) -> str:
        """A platform said something of a reply; `sending` says that it is the one at the head of its outbox."""
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


log = logging.getLogger(__name__)


#: The folder's name in the data folder.
FOLDER = "receipts"


#: Bytes of one file, after which the next one is begun and the one before it is the last that is kept: 3,000 receipts.
MAX_BYTES = 256 * 1024


#: Seconds for which a receipt is looked for: longer than any lane waits for its next holder while Redis is there.
KEEP_SECONDS = 3600


class Receipts(Protocol):
    """Where it is noted what a platform took."""

    def note(self, delivery: Delivery, message_id: str) -> None:
        """The platform took it, as this message. Failing is no error."""

    def find(self, delivery: Delivery) -> str | None:
        """The platform's message id, "" where it gave none; None: nobody knows."""


class NoReceipts:
    """Nothing is noted."""

    def note(self, delivery: Delivery, message_id: str) -> None:
        """Not at all."""

    def find(self, delivery: Delivery) -> str | None:
        """Nobody knows."""
        return None


class ReceiptFiles:
    """A file for each process in one folder, appended to and never synced: it has to outlive its process, no machine.

    `name` is the process's own.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / name
        self._file = -1
        self._size = 0

    def note(self, delivery: Delivery, message_id: str) -> None:
        """One line in this process's file: a write to the machine's cache, shorter than a thread would take."""
        line = f"{_key(delivery)} {''.join(message_id.split())}\n".encode()
        try:
            if self._file < 0 or self._size > MAX_BYTES:
                self._begin()
            self._size += os.write(self._file, line)
        except OSError as exc:
            log.warning("receipt.not_noted", extra={"reason": type(exc).__name__})

    def find(self, delivery: Delivery) -> str | None:
        """Look in all files of the last hour. Reads the disk."""
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
        """Dead processes leave their files behind."""
        for path in self._path.parent.glob("*"):
            with contextlib.suppress(OSError):  # somebody else's sweep was faster
                if time.time() - path.stat().st_mtime > KEEP_SECONDS:
                    path.unlink()


def _key(delivery: Delivery) -> str:
    """The delivery's id, and its content: a Redis that was emptied gives out its ids once more."""
    return f"{delivery.id} {hashlib.sha256(repr(delivery.reply).encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


#: Replies that may wait in a conversation to which others forward theirs. The scripts know it too.
MAX_WAITING = 100


#: Seconds for which a reply waits for its person to write. The scripts know it too.
KEEP_HELD_SECONDS = 7 * 24 * 3600.0


#: How a reply ended that is given up: its last try may have arrived, nothing arrives there, or its platform asks all to
#: wait.
End = Literal["dead", "doubtful", "closed", "limited"]


#: Why a reply is postponed: it was tried, it may have arrived, its platform asks to wait, or does not know its channel
#: any more, it was not its turn yet, or somebody must write first.
Why = Literal["tried", "suspect", "limited", "down", "paced", "held"]


class Outbox(Protocol):
    """The replies of each lane, first in first out."""

    def settle(
        self,
        lease: Lease,
        reply: QueuedReply,
        *,
        receipt: str = "",
        dead: str = "",
        end: End = "dead",
        gap: float = 0.0,
        let_go: bool = False,
        written_at: float = 0.0,
    ) -> NextItem:
        """The reply was sent, or is given up for the reason `dead`. What it previewed may be answered now.

        `written_at` is when the platform says that it shows the reply, 0.0 where the platform does not say.
        `gap`: seconds by which it brings its chat ahead of its pace; or, at a `limited` end, for which its channel is
        silent. With `let_go`, None means that nothing is left and the lane is let go. Raises LaneLost.
        """

    def postpone(self, lease: Lease, reply: QueuedReply, seconds: float, why: Why = "tried", reason: str = "") -> None:
        """Later: the lane is let go until then. With `limited` the whole channel waits so long. Raises LaneLost.

        With `down` it does too, and nothing counts as tried. With `held`, for the reason given, it waits until a turn
        comes in, for KEEP_HELD_SECONDS at most; where one is there already, it counts as tried.
        """

    def pace(self, lease: Lease, reply: QueuedReply, per_second: float) -> float:
        """Say how fast the reply's channel sends. Returns the seconds until its turn. Raises LaneLost."""

    def forward(self, delivery: Delivery) -> str:
        """Append it to the outbox of the conversation it is addressed to, once for its id, and wake a worker there.

        Needs no lease. Returns its id there, or "" when too many replies wait there already.
        """


class RedisOutbox:
    """The outbox in Redis: each call is one script, one round trip."""

    def __init__(self, scripts: LuaScripts, wake_up: WakeUp = lambda _: ()) -> None:
        self._scripts = scripts
        self._wake_up = wake_up

    def settle(
        self,
        lease: Lease,
        reply: QueuedReply,
        *,
        receipt: str = "",
        dead: str = "",
        end: End = "dead",
        gap: float = 0.0,
        let_go: bool = False,
        written_at: float = 0.0,
    ) -> NextItem:
        """Drop the reply from the outbox and note what became of it. Raises LaneLost."""
        outcome, detail = (end, dead) if dead else ("sent", "".join(receipt.split()))
        place = (lease.conversation, lease.epoch, lease.token, reply.number)
        when, cause = round(written_at * 1_000_000), "" if dead else reply.cause
        told = (outcome, detail, round(gap * 1000), "1" if let_go else "0", when, cause)
        answer = self._scripts.run("settle", *place, *told)
        if answer[0] == "lost":
            raise LeaseLost(lease.conversation)
        return read_work(answer[1])

    def postpone(self, lease: Lease, reply: QueuedReply, seconds: float, why: Why = "tried", reason: str = "") -> None:
        """Park the lane. Raises LaneLost."""
        place = (lease.conversation, lease.epoch, lease.token, reply.number)
        if self._scripts.run("postpone", *place, round(seconds * 1000), why, reason) == "lost":
            raise LeaseLost(lease.conversation)

    def pace(self, lease: Lease, reply: QueuedReply, per_second: float) -> float:
        """Note the channel's pace and book the reply's slot. Raises LaneLost."""
        place = (lease.conversation, lease.epoch, lease.token, reply.number)
        wait_ms = int(self._scripts.run("pace", *place, 1000 / per_second))
        if wait_ms == -2:
            raise LeaseLost(lease.conversation)
        return wait_ms / 1000

    def forward(self, delivery: Delivery) -> str:
        """Say it in another lane, once."""
        to, entry = delivery.conversation.id, outbox_entry(delivery.conversation, delivery.reply)
        said = self._scripts.run("forward", to, delivery.id, entry, *self._wake_up(to))
        return f"{to}#{said}" if said else ""
