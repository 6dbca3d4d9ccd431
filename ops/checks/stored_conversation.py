"""StoredConversation: what Redis still stores of one conversation, and searches in it.

It has the turns and replies that wait, the records of those that are finished, and the actions.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from sayso.ops.checks.stored_json import stored_fields
from sayso.pending.sharded_scripts import ShardedScripts
from sayso.workers.queue_entries import DeliveryEntry, InboxEntry, OutboxEntry


@dataclass(slots=True)
class StoredConversation:
    """What Redis stores of one conversation, as trace.lua returns it: a snapshot."""

    conversation: str
    #: The clock of Redis, in Unix seconds.
    now: float = 0.0
    #: The records of turns that are finished, by number. `commit.lua` writes them.
    records: dict[int, dict[str, Any]] = field(default_factory=dict)
    #: How often the webhook of a turn was repeated, by the number of the turn.
    repetitions: dict[int, int] = field(default_factory=dict)
    #: The last deliveries, by the number of the reply.
    deliveries: dict[int, DeliveryEntry] = field(default_factory=dict)
    #: The ids of the actions that these replies asked for, by the number of the reply.
    asks: dict[int, str] = field(default_factory=dict)
    #: The turns that wait, oldest first.
    inbox: list[InboxEntry] = field(default_factory=list)
    #: The replies that wait, by number, oldest first.
    outbox: dict[int, OutboxEntry] = field(default_factory=dict)
    #: The journal of the turn in progress; its first entry says which turn that is.
    journal: list[str] = field(default_factory=list)
    #: Fields of the conversation's record, "" for one that is not set.
    fields: defaultdict[str, str] = field(default_factory=lambda: defaultdict(str))
    #: Fields of the actions that are stored, by id.
    actions: dict[str, dict[str, str]] = field(default_factory=dict)

    @classmethod
    def load(
        cls, scripts: ShardedScripts | None, conversation: str, action_ids: Sequence[str] = ()
    ) -> StoredConversation:
        """Read a conversation, and those of these actions that are stored.

        It is an empty one without `scripts` (Redis is away), and for the conversation "".
        """
        if scripts is None or not conversation:
            return cls(conversation)
        answer = scripts.run("trace", conversation, {"action_ids": list(action_ids)})
        return cls.parse(conversation, answer)

    @classmethod
    def parse(cls, conversation: str, answer: str) -> StoredConversation:
        """Read the answer of trace.lua. A record of another version is left out."""
        stored = json.loads(answer)
        state = cls(
            conversation,
            stored["now"] / 1000,
            inbox=[InboxEntry.parse(entry) for entry in stored["inbox"]],
            journal=list(stored["journal"]),
            fields=defaultdict(str, stored["conversation"]),
            actions=dict(stored["actions"]),
        )

        for name, text in stored["turn_records"].items():
            # Besides the records, the hash has fields that count repeated webhooks.
            if name.startswith("again:"):
                seq, times = text.split(" ")
                state.repetitions[int(seq)] = int(times)
                continue
            record = stored_fields(text)
            if record.get("v") == 1:
                state.records[record["seq"]] = record

        for number, entry in stored["deliveries"].items():
            state.deliveries[int(number)] = DeliveryEntry.parse(entry)
        for number, action_id in stored["asks"].items():
            state.asks[int(number)] = action_id
        for entry in stored["outbox"]:
            reply = OutboxEntry.parse(entry)
            state.outbox[reply.number] = reply
            if reply.role == "question":
                state.asks[reply.number] = reply.action_id
        return state

    def seq_of(self, *, seq: int = 0, number: int = 0, event: str = "", action_id: str = "") -> int:
        """Return the number of the finished turn whose record has one of these; else `seq`.

        `seq` is the number of that turn, or of one that was answered together with it. `number` is
        that of a reply, `event` the hash of an event, `action_id` an action that it asked about. 0
        and "" stand for none.
        """
        for first, record in self.records.items():
            last = record.get("upto") or first
            if first <= seq <= last or number in record["replies"]:
                return first
            if event and record["event"] == event:
                return first
            if action_id and action_id in record.get("asked", ()):
                return first
        return seq

    def answers_to(self, action_ids: Collection[str]) -> set[int]:
        """Return the numbers of the turns that answered these actions, deciding them or not."""
        seqs = set()
        for seq, record in self.records.items():
            if record.get("decided") in action_ids or record.get("about") in action_ids:
                seqs.add(seq)
        return seqs

    def taps_on(self, action_id: str) -> set[int]:
        """Return the numbers of the turns that wait and tap a button of this action."""
        return {entry.seq for entry in self.inbox if entry.tapped_action_id == action_id}

    def question_of(self, action_id: str) -> int:
        """Return the number of the reply that asked for this action, 0 if it is not known."""
        numbers = [number for number, asked in self.asks.items() if asked == action_id]
        return max(numbers, default=0)

    def continuations(self, action_ids: Collection[str]) -> set[int]:
        """Return the numbers of the turns in which the agent goes on after these actions.

        They may be finished, or still wait.
        """
        seqs = {seq for seq, each in self.records.items() if each.get("continues") in action_ids}
        for entry in self.inbox:
            if stored_fields(entry.turn).get("continues") in action_ids:
                seqs.add(entry.seq)
        return seqs

    @property
    def last_turn(self) -> int:
        """The highest number of a turn, 0 for a conversation that is not stored."""
        return int(self.fields["last_turn"] or 0)

    @property
    def newest_reply(self) -> int:
        """The highest number of a reply that is known, 0 without any."""
        numbers = [*self.deliveries, *self.outbox]
        for record in self.records.values():
            numbers += map(int, record["replies"])
        return max(numbers, default=0)
