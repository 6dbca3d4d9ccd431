"""Tracer: find a message by any of its ids, and build its story from Redis and the audit ledger.

`find_stories` is what `sayso trace` calls. First an id becomes one or more *clues*: a turn, a reply
or an action that the id leads to. Then the story of each clue is put together from what Redis still
stores of the conversation (`_State`) and from the entries of the audit log about its actions.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from sayso.channels.types import digest
from sayso.config.settings.loader import ConfigError
from sayso.config.settings.schema import Settings
from sayso.config.wiring.redis_parts import RedisParts
from sayso.ops.checks.story import (
    MessageStory,
    TracedAction,
    TracedEvent,
    TracedReply,
    TracedTurn,
)
from sayso.pending.audit.bodies import AuditBody
from sayso.pending.audit.collector import UncollectedEntries
from sayso.pending.audit.entries import AuditEntry, EntrySigner
from sayso.pending.audit.ledger import FILE, AuditLedger
from sayso.pending.sharded_scripts import SHARDS, ShardedScripts
from sayso.workers.lease import worker_of
from sayso.workers.queue_entries import DeliveryEntry, InboxEntry, OutboxEntry
from sayso.workers.recovery import ALIVE, INTERVAL, Heartbeat, WorkerLock
from sayso.workers.rq.jobs import is_suspended
from sayso.workers.scripts import CONVERSATION_SCRIPTS

#: The id of a conversation: its channel, and a hash.
_CONVERSATION = r"[A-Za-z0-9_.-]{1,64}:[0-9a-f]{20}"
#: A conversation, one of its replies (`#`), or one of its turns (`@`).
_PLACE = re.compile(
    rf"(?P<conversation>{_CONVERSATION})(?:#(?P<number>\d{{1,15}})|@(?P<seq>\d{{1,15}}))?"
)
#: An entry of the audit log, as `3/17` or as messages name it.
_ENTRY = re.compile(r"(?:shard )?(?P<shard>\d{1,2})(?:, entry |[:/])(?P<n>\d{1,15})")
#: The key that remembers an event of a platform.
_EVENT = re.compile(rf"\{{\d+\}}:event:(?P<conversation>{_CONVERSATION}):(?P<event>[0-9a-f]{{20}})")
#: The key with the last deliveries of a conversation.
_DELIVERY = re.compile(rf"\{{\d+\}}:delivery:(?P<conversation>{_CONVERSATION})")
#: The hash of an event's id.
_HASH = re.compile(r"[0-9a-f]{20}")
#: The id of an action.
_ACTION_ID = re.compile(r"[A-Za-z0-9_-]{22}")
#: The most stories of one id. Several messages may have the same: Telegram counts the updates of
#: each bot, so a message of another channel may have the same number.
MAX_STORIES = 5
#: How many keys one SCAN of Redis looks at.
_SCAN_COUNT = 1000
#: Of how many conversations the deliveries are read at once.
_READ_COUNT = 500
#: The reason of a delivery whose platform reported a state without an error (`Ingress` writes it).
NO_ERROR = "error -"
#: The shortest text that is searched among the references in outcomes that people were told. A
#: shorter one would match many.
_MIN_REFERENCE = 8


@dataclass(frozen=True, slots=True)
class Clue:
    """What an id leads to: a turn, a reply or an action. 0 and "" stand for nothing."""

    conversation: str = ""
    #: The number of a turn in its conversation.
    seq: int = 0
    #: The hash of the turn's event, if it is known.
    event: str = ""
    #: The number of a reply in its conversation.
    number: int = 0
    action_id: str = ""


def find_stories(
    settings: Settings, data: Path, wanted: str, *, show_texts: bool = False
) -> tuple[list[MessageStory], list[str]]:
    """Return the stories of an id, and in words where it was searched.

    `wanted` is any id that `sayso trace` takes. Without `show_texts` a story holds no text of a
    message or reply, and no name of a person. A Redis that is away is left out of the search, and
    the second value says so. Raises LedgerUnusable.
    """
    file = settings.state_folder(data) / FILE
    ledger = None
    searched = [f"no audit ledger, since {file} does not exist"]
    if file.exists():
        # The key is not the real one, since nothing is signed or verified here.
        ledger = AuditLedger(file, EntrySigner(["-"]))
        searched = [f"the audit ledger {file}"]

    tracer = partial(Tracer, ledger=ledger, prefix=settings.key_prefix, show_texts=show_texts)
    try:
        redis = RedisParts.find(settings, data)
        worker_lock = WorkerLock(settings.state_folder(data) / ALIVE)
        stories = tracer(
            redis.client,
            redis.scripts(CONVERSATION_SCRIPTS),
            why_idle=partial(_why_idle, redis.client, settings.key_prefix),
            has_died=partial(_has_died, redis.client, settings.key_prefix, worker_lock),
        ).stories(wanted)
    except ConfigError as exc:
        return tracer(None, None).stories(wanted), [*searched, f"not Redis ({exc})"]
    except RedisError as exc:
        # Only its class: its words may hold the address of a server.
        reason = type(exc).__name__
        return tracer(None, None).stories(wanted), [*searched, f"not Redis ({reason})"]
    return stories, [*searched, "Redis"]


def _why_idle(client: Redis, prefix: str) -> str:
    """Return why no worker takes new work, with the cure; "" while one does."""
    if not Heartbeat(client, prefix=prefix).count():
        return "No worker is alive: start one with `sayso worker`."
    if is_suspended(client):
        return "The queue is suspended: run `rq resume`."
    return ""


def _has_died(client: Redis, prefix: str, lock: WorkerLock, worker: str) -> bool:
    """Return whether a worker ended without releasing its leases.

    `lock` knows it at once for a worker of this machine. One of another machine is known by its
    missing heartbeats.
    """
    return lock.is_dead(worker) or Heartbeat(client, prefix=prefix).is_gone(worker)


@dataclass(slots=True)
class _State:
    """What Redis stores of one conversation, as trace.lua returns it."""

    conversation: str
    #: The clock of Redis, in Unix seconds.
    now: float = 0.0
    #: The records of turns that are finished, by number. `commit.lua` writes them.
    records: dict[int, dict[str, Any]] = field(default_factory=dict)
    #: How often the webhook of a turn was repeated, by the number of the turn.
    repetitions: dict[int, int] = field(default_factory=dict)
    #: The last deliveries, by the number of the reply.
    deliveries: dict[int, DeliveryEntry] = field(default_factory=dict)
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
    def parse(cls, conversation: str, answer: str) -> _State:
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
            record = _fields(text)
            if record.get("v") == 1:
                state.records[record["seq"]] = record

        for number, entry in stored["deliveries"].items():
            state.deliveries[int(number)] = DeliveryEntry.parse(entry)
        for entry in stored["outbox"]:
            reply = OutboxEntry.parse(entry)
            state.outbox[reply.number] = reply
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

    def continuations(self, action_ids: Collection[str]) -> set[int]:
        """Return the numbers of the turns in which the agent goes on after these actions.

        They may be finished, or still wait.
        """
        seqs = {seq for seq, each in self.records.items() if each.get("continues") in action_ids}
        for entry in self.inbox:
            if _fields(entry.turn).get("continues") in action_ids:
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


class Tracer:
    """Finds messages and builds their stories. Lives as long as a command.

    `client` and `scripts` read Redis, and `ledger` the audit log of this machine. Redis or the
    ledger may be missing (None). `prefix` is how the bot's keys in Redis begin.

    `why_idle` returns the reason why no worker takes new work, "" while one does. `has_died`
    returns whether the worker of an id ended without releasing its leases. Without `show_texts` a
    story holds no text of a message or reply, and no name of a person.
    """

    def __init__(
        self,
        client: Redis | None,
        scripts: ShardedScripts | None,
        ledger: AuditLedger | None,
        *,
        prefix: str,
        why_idle: Callable[[], str] = lambda: "",
        has_died: Callable[[str], bool] = lambda _: False,
        show_texts: bool = False,
    ) -> None:
        self._client = client
        self._scripts = scripts
        self._ledger = ledger
        self._prefix = prefix
        self._why_idle = why_idle
        self._show_texts = show_texts
        self._has_died = has_died
        #: The audit entries that were read, by the id of their action.
        self._read_entries: dict[str, list[AuditEntry]] = {}

    def stories(self, wanted: str) -> list[MessageStory]:
        """Return the stories of what an id leads to, at most MAX_STORIES; [] for an unknown id.

        Raises redis.RedisError and LedgerUnusable.
        """
        # The event id of a turn in which the agent goes on names the action that was decided.
        wanted = wanted.strip().removeprefix("after:")
        clues = list(dict.fromkeys(self._find(wanted)))[:MAX_STORIES]

        # The id of a yes leads to its turn and to its action. Both have the same story.
        stories: list[MessageStory] = []
        actions_in_stories: set[str] = set()
        for clue in clues:
            if clue.action_id in actions_in_stories:
                continue
            story = self._story(clue)
            stories.append(story)
            actions_in_stories |= {action.action_id for action in story.actions}

        distinct = dict.fromkeys(stories)
        return [story for story in distinct if story.turns or story.replies or story.actions]

    @cached_property
    def _uncollected(self) -> list[tuple[int, AuditEntry]]:
        """The audit entries that wait in Redis for a ledger, with their shards."""
        if self._client is None:
            return []
        recorded = UncollectedEntries(self._client, prefix=self._prefix).entries()
        return [(each.shard, each.entry) for each in recorded if each.entry]

    def _entries_of(self, action_id: str) -> list[AuditEntry]:
        """Return the audit entries of an action in their order."""
        if action_id not in self._read_entries:
            entries = set(self._uncollected)
            if self._ledger:
                entries |= set(self._ledger.find_by_action(action_id))
            ordered = [entry for _, entry in sorted(entries, key=_place_of)]
            self._read_entries[action_id] = [
                each for each in ordered if each.action_id == action_id
            ]
        return self._read_entries[action_id]

    def _decided_by(self, is_meant: Callable[[str], bool]) -> list[str]:
        """Return the ids of the actions that an event decided.

        `is_meant` returns whether the event with this id is meant.
        """
        entries: list[AuditEntry] = []
        if self._ledger:
            entries += self._ledger.find_decided(is_meant)
        for _, entry in self._uncollected:
            if entry.decided_by_event and is_meant(entry.decided_by_event):
                entries.append(entry)
        return list(dict.fromkeys(entry.action_id for entry in entries))

    def _find(self, wanted: str) -> Iterator[Clue]:
        """Yield what an id leads to. The searches that read all keys of Redis come last."""
        # A conversation, one of its turns or one of its replies.
        place = _PLACE.fullmatch(wanted)
        if place:
            yield self._clue_of_place(place)
            return

        # An entry of the audit log. The same text may be an id of a platform, so this is not all.
        entry = _ENTRY.fullmatch(wanted)
        if entry:
            yield from self._clues_of_entry(int(entry["shard"]), int(entry["n"]))

        # An action, an event of a platform or its hash, a platform's id of a reply, or a reference
        # that a person was told.
        clues: list[Clue] = []
        if self._knows_action(wanted):
            clues = [self._clue_of_action(wanted)]
        if not clues:
            clues = list(self._clues_of_event(wanted))
        if not clues:
            clues = list(self._clues_of_receipt(wanted))
        if not clues and self._ledger and len(wanted) >= _MIN_REFERENCE:
            clues = [
                self._clue_of_action(action_id)
                for action_id in self._ledger.find_by_outcome(wanted)
            ]
        yield from clues

    def _clue_of_place(self, place: re.Match[str]) -> Clue:
        """Return the turn or the reply of a conversation that was named, or its newest turn."""
        conversation = place["conversation"]
        if place["number"]:
            return Clue(conversation, number=int(place["number"]))
        if place["seq"]:
            return Clue(conversation, int(place["seq"]))
        return Clue(conversation, self._state(conversation).last_turn)

    def _clues_of_entry(self, shard: int, n: int) -> Iterator[Clue]:
        """Yield the actions of the entry `n` of a shard, in the ledger and in Redis.

        They are several only if entries of several actions claim the same number.
        """
        entries = {each for each in self._uncollected if _place_of(each) == (shard, n)}
        if self._ledger:
            entries |= set(self._ledger.find_by_number(shard, n))
        for _, entry in entries:
            yield self._clue_of_action(entry.action_id)

    def _knows_action(self, action_id: str) -> bool:
        """Return whether the audit log or Redis has an action of this id."""
        if self._entries_of(action_id):
            return True
        return bool(_ACTION_ID.fullmatch(action_id) and self._record_in_redis(action_id))

    def _record_in_redis(self, action_id: str) -> str:
        """Return the stored record of an action, "" without one. Its shard is not known here."""
        if self._client is None:
            return ""
        for shard in range(SHARDS):
            record = self._client.hget(f"{self._prefix}{{{shard}}}:pending:{action_id}", "record")
            if record:
                return str(record)
        return ""

    def _clue_of_action(self, action_id: str) -> Clue:
        """Return the clue of an action, with the conversation that its record names."""
        record = self._record_in_ledger(action_id)
        if not record:
            record = _fields(self._record_in_redis(action_id))
        channel = record.get("channel_id")
        address = record.get("conversation_id") or record.get("user_id")
        if channel and address:
            return Clue(f"{channel}:{digest(address)}", action_id=action_id)
        return Clue(action_id=action_id)

    def _clues_of_event(self, wanted: str) -> Iterator[Clue]:
        """Yield the turn of an event id or its hash, and the actions that the event decided."""
        event = wanted if _HASH.fullmatch(wanted) else digest(wanted)
        for key in self._scan(f"{{*}}:event:*:{event}"):
            place = _EVENT.fullmatch(key)
            if place and self._client:
                seq = self._client.get(f"{self._prefix}{key}")
                yield Clue(place["conversation"], int(str(seq or 0)), event)
        for action_id in self._decided_by(partial(_is_called, wanted=wanted)):
            yield self._clue_of_action(action_id)

    def _clues_of_receipt(self, wanted: str) -> Iterator[Clue]:
        """Yield the replies with this id of the platform. Reads all deliveries that are stored."""
        if self._client is None:
            return
        keys = self._scan("{*}:delivery:*")
        while batch := list(islice(keys, _READ_COUNT)):
            pipe = self._client.pipeline(transaction=False)
            for key in batch:
                pipe.hgetall(f"{self._prefix}{key}")

            for key, deliveries in zip(batch, pipe.execute(), strict=True):
                place = _DELIVERY.fullmatch(key)
                if not place:
                    continue
                for number, entry in deliveries.items():
                    if _receipt_of(str(entry)) == wanted:
                        yield Clue(place["conversation"], number=int(number))

    def _scan(self, pattern: str) -> Iterator[str]:
        """Yield the keys of this bot that match, without its prefix."""
        if self._client is None:
            return
        for key in self._client.scan_iter(match=self._prefix + pattern, count=_SCAN_COUNT):
            yield str(key).removeprefix(self._prefix)

    def _state(self, conversation: str, action_ids: Sequence[str] = ()) -> _State:
        """Return what Redis stores of a conversation and of these actions."""
        if self._scripts is None or not conversation:
            return _State(conversation)
        answer = self._scripts.run("trace", conversation, {"action_ids": list(action_ids)})
        return _State.parse(conversation, answer)

    def _body(self, action_id: str) -> AuditBody | None:
        """Return the personal part of an action in the ledger, None without one."""
        if self._ledger:
            return self._ledger.bodies(action_id).get(action_id)
        return None

    def _record_in_ledger(self, action_id: str) -> dict[str, Any]:
        """Return the record of an action in the ledger; {} for none, and after it was erased."""
        body = self._body(action_id)
        if body is None:
            return {}
        return _fields(body.record)

    def _story(self, clue: Clue) -> MessageStory:
        """Return the story of a clue.

        It has the turn of the clue, the actions that this turn asked about, answered or decided,
        and all turns that asked about these actions, answered them or went on after them.
        """
        # From the clue to its turn, from there to the actions, and from these to their other turns.
        state = self._state(clue.conversation)
        turn_of_clue = state.seq_of(seq=clue.seq, number=clue.number, action_id=clue.action_id)
        action_ids = self._actions_of_turn(clue, state.records.get(turn_of_clue, {}))
        seqs = {turn_of_clue, *self._turns_of_actions(state, action_ids)}

        # Read again, with the actions: the first reading could not know which ones to ask for.
        if action_ids:
            state = self._state(clue.conversation, action_ids)

        turns = []
        for seq in sorted(seqs - {0}):
            turn = self._turn(state, seq)
            if turn:
                turns.append(turn)

        replies_of_turns: list[TracedReply] = []
        for turn in turns:
            replies_of_turns += turn.replies
        # A reply whose turn is not stored any more.
        replies_alone = []
        if clue.number:
            reply = self._reply(state, clue.number)
            if reply and reply.id not in [each.id for each in replies_of_turns]:
                replies_alone.append(reply)

        actions = [self._traced_action(state, action_id) for action_id in action_ids]
        actions.sort(key=lambda action: action.events[0].at if action.events else 0.0)

        states = [turn.status for turn in turns]
        states += [reply.state for reply in (*replies_alone, *replies_of_turns)]
        return MessageStory(
            clue.conversation,
            tuple(turns),
            tuple(replies_alone),
            tuple(actions),
            self._why_waiting(state) if "waits" in states else "",
        )

    def _actions_of_turn(self, clue: Clue, record: Mapping[str, Any]) -> list[str]:
        """Return the ids of the actions of a clue and of its turn, whose record may be empty."""
        action_ids = [
            clue.action_id,
            *record.get("asked", ()),
            record.get("decided"),
            record.get("about"),
            record.get("continues"),
        ]
        event = record.get("event") or clue.event
        if event:
            action_ids += self._decided_by(lambda by: digest(by) == event)
        return list(dict.fromkeys(filter(None, action_ids)))

    def _turns_of_actions(self, state: _State, action_ids: Sequence[str]) -> set[int]:
        """Return the numbers of the turns that asked about actions, changed them or went on."""
        seqs = state.answers_to(action_ids) | state.continuations(action_ids)
        for action_id in action_ids:
            seqs.add(state.seq_of(action_id=action_id))
            for entry in self._entries_of(action_id):
                if entry.decided_by_event:
                    seqs.add(state.seq_of(event=digest(entry.decided_by_event)))
        return seqs

    def _why_waiting(self, state: _State) -> str:
        """Return who works on the conversation, or why no worker does."""
        seconds_left = float(state.fields["lease_until"] or 0) / 1000 - state.now
        token = state.fields["token"]
        if seconds_left <= 0 or token in ("", "parked"):
            return self._why_idle()

        worker = worker_of(token)
        if not self._has_died(worker):
            return f"Worker {worker} works on this conversation now."
        ending = f"Worker {worker} ended in the middle of this conversation."
        next_one = f"Another worker takes it up within {seconds_left + INTERVAL:.0f} s."
        return f"{ending} {self._why_idle() or next_one}"

    def _turn(self, state: _State, seq: int) -> TracedTurn | None:
        """Return the turn of a number: finished, waiting or forgotten. None for no turn at all."""
        turn_id = f"{state.conversation}@{seq}"
        webhooks = 1 + state.repetitions.get(seq, 0)
        record = state.records.get(seq)
        if record:
            replies = [self._reply(state, int(number)) for number in record["replies"]]
            return TracedTurn(
                turn_id,
                "done",
                record["event"],
                received_at=record["at"] / 1000,
                finished_at=record["done"] / 1000,
                webhooks=webhooks,
                attempt=record["attempt"],
                worker=record["worker"],
                joined_to=record.get("upto", 0),
                tools=tuple(record.get("tools", ())),
                asked_actions=tuple(record.get("asked", ())),
                decided_action=record.get("decided", ""),
                undecided_action=record.get("about", ""),
                end_reason=record.get("ended", ""),
                continues=record.get("continues", ""),
                replies=tuple(filter(None, replies)),
            )

        for ahead, entry in enumerate(state.inbox):
            if entry.seq != seq:
                continue
            turn = _fields(entry.turn)
            # Only the first turn can have been begun. This field has its number, an epoch and how
            # many attempts at it were begun.
            attempt = 0
            numbers = state.fields["turn_attempts"].split(" ")
            if numbers[0] == str(seq):
                attempt = int(numbers[2])
            return TracedTurn(
                turn_id,
                "waits",
                digest(str(turn.get("event_id", ""))),
                received_at=entry.received_ms / 1000,
                webhooks=webhooks,
                attempt=attempt,
                continues=str(turn.get("continues", "")),
                turns_ahead=ahead,
                steps=tuple(_steps(state.journal)) if ahead == 0 else (),
                text=str(turn.get("text", "")) if self._show_texts else "",
            )

        if seq <= state.last_turn:
            return TracedTurn(turn_id, "forgotten", webhooks=webhooks)
        return None

    def _reply(self, state: _State, number: int) -> TracedReply | None:
        """Return the reply of a number: delivered, waiting or forgotten. None for no reply."""
        reply_id = f"{state.conversation}#{number}"
        entry = state.deliveries.get(number)
        if entry:
            return TracedReply(
                reply_id,
                entry.state,
                entry.at_ms / 1000,
                entry.attempts,
                receipt=entry.receipt,
                reason="" if entry.reason == NO_ERROR else entry.reason,
            )

        if number in state.outbox:
            return self._waiting_reply(state, number, reply_id)
        if 0 < number <= state.newest_reply:
            return TracedReply(reply_id, "forgotten")
        return None

    def _waiting_reply(self, state: _State, number: int, reply_id: str) -> TracedReply:
        """Return a reply that waits in the outbox."""
        # Only the first reply of an outbox can have been tried, or be held for its user to write.
        hold: Mapping[str, Any] = {}
        attempts = 0
        if number == next(iter(state.outbox)):
            hold = _fields(state.fields["held_reply"])
            attempts = int(state.fields["reply_attempts"] or 0)

        text = ""
        if self._show_texts:
            delivery = _fields(state.outbox[number].record)
            text = str(_fields(delivery.get("reply")).get("text", ""))
        return TracedReply(
            reply_id,
            "held" if hold.get("number") == str(number) else "waits",
            attempts=attempts,
            reason=hold.get("reason", state.fields["closed_address"]),
            text=text,
        )

    def _traced_action(self, state: _State, action_id: str) -> TracedAction:
        """Return an action as the ledger and Redis know it."""
        body = self._body(action_id)
        stored = defaultdict(str, state.actions.get(action_id, {}))
        record = self._record_in_ledger(action_id) or _fields(stored["record"])

        events = []
        for entry in self._entries_of(action_id):
            by = ""
            seq = 0
            if entry.decided_by_event:
                by = digest(entry.decided_by_event)
                seq = state.seq_of(event=by)
            turn = f"{state.conversation}@{seq}" if seq else ""
            events.append(TracedEvent(entry.event, entry.at / 1000, by, turn))

        decided_by = stored["decided_by_event"]
        traced = TracedAction(
            action_id,
            stored["state"],
            digest(decided_by) if decided_by else "",
            str(record.get("kind", "")),
            events=tuple(events),
        )
        if not self._show_texts:
            return traced

        erased = "(erased)" if body and body.erased_at else ""
        outcome_text = body.outcome_text if body else ""
        return replace(
            traced,
            preview=str(record.get("preview") or erased),
            outcome_text=str(outcome_text or stored["outcome_text"]),
            user=str(record.get("user_id", "")),
        )


def _steps(journal: Sequence[str]) -> Iterator[str]:
    """Yield the steps of a turn in words: the tool calls that were requested, begun and returned.

    The first entry of the journal names the turn. `RedisJournals` writes the others: an `answer` of
    the model, the positions of the calls in it that have `begun`, and each `call` that returned.
    """
    names: list[str] = []
    for entry in map(_fields, journal[1:]):
        try:
            if "answer" in entry:
                calls = entry["answer"].get("tool_calls", ())
                names = [str(call["tool_name"]) for call in calls]
                yield f"the model asked for {', '.join(names)}"
            elif "started" in entry:
                yield f"{', '.join(names[at] for at in entry['started'])} began"
            elif "call" in entry:
                outcome = "returned"
                if entry.get("is_unknown"):
                    outcome = "has an unknown outcome"
                yield f"{names[entry['call']]} {outcome}"
        except (AttributeError, IndexError, KeyError, TypeError):
            yield "an entry of the journal that cannot be read"


def _receipt_of(entry: str) -> str:
    """Return the platform's id of a delivered reply, "" for none and for a damaged entry."""
    try:
        return DeliveryEntry.parse(entry).receipt
    except ValueError:
        return ""


def _place_of(entry: tuple[int, AuditEntry]) -> tuple[int, int]:
    """Return the shard of an audit entry and its number there."""
    return entry[0], entry[1].number


def _fields(text: object) -> dict[str, Any]:
    """Return a stored JSON object; an empty one for what Sayso has not written."""
    try:
        fields = json.loads(str(text or "{}"))
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


def _is_called(event: str, wanted: str) -> bool:
    """Return whether `wanted` is the id of an event, or the hash of that id."""
    return wanted in (event, digest(event))
