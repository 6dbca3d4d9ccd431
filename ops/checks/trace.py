"""Tracer: find a message by any of its ids, and tell its story from Redis and the audit ledger."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from sayso.channels.types import digest
from sayso.config.settings.loader import ConfigError
from sayso.config.settings.schema import Settings
from sayso.config.wiring.redis_parts import RedisParts
from sayso.infra.redis.scripts import SHARDS, LuaScripts
from sayso.ops.checks.story import (
    MessageStory,
    TracedAction,
    TracedEvent,
    TracedReply,
    TracedTurn,
)
from sayso.pending.audit.collector import UncollectedEntries
from sayso.pending.audit.ledger import FILE, AuditBody, AuditEntry, AuditLedger, EntrySigner
from sayso.workers.lease import worker_of
from sayso.workers.recovery import ALIVE, INTERVAL, Heartbeat, WorkerLock
from sayso.workers.rq.jobs import is_suspended
from sayso.workers.scripts import CONVERSATION_SCRIPTS

#: Where a conversation's id, a delivery, a turn and an audit entry are recognized by their form.
_CONVERSATION = r"[A-Za-z0-9_.-]{1,64}:[0-9a-f]{20}"
_PLACE = re.compile(
    rf"(?P<conversation>{_CONVERSATION})(?:#(?P<number>\d{{1,15}})|@(?P<seq>\d{{1,15}}))?"
)
_ENTRY = re.compile(r"(?:shard )?(?P<shard>\d{1,2})(?:, entry |[:/])(?P<n>\d{1,15})")
_EVENT = re.compile(rf"\{{\d+\}}:event:(?P<conversation>{_CONVERSATION}):(?P<event>[0-9a-f]{{20}})")
_DELIVERY = re.compile(rf"\{{\d+\}}:delivery:(?P<conversation>{_CONVERSATION})")
_HASH = re.compile(r"[0-9a-f]{20}")
#: The most stories of one id: Telegram counts its updates for each bot,
#: so two channels may have the same one.
MAX_STORIES = 5
#: Keys that one SCAN of Redis looks at, and conversations whose replies are read at once.
_SCAN_COUNT = 1000
_READ_COUNT = 500
#: The reason of a report without an error (`Ingress`).
NO_ERROR = "error -"
#: The shortest text that is looked for among references.
_MIN_REFERENCE = 8


@dataclass(frozen=True, slots=True)
class Clue:
    """What an id leads to: a turn, by the hash of its event if it is known, a reply or an action.

    0 and "" stand for nothing.
    """

    conversation: str = ""
    seq: int = 0
    event: str = ""
    number: int = 0
    pid: str = ""


def find_stories(
    settings: Settings, data: Path, wanted: str, *, show_texts: bool = False
) -> tuple[list[MessageStory], list[str]]:
    """Return the stories of an id, and what was searched: a Redis that is away is left out.

    Raises LedgerUnusable.
    """
    file = settings.state_folder(data) / FILE
    # nothing is signed, nor verified
    if file.exists():
        ledger = AuditLedger(file, EntrySigner(["-"]))
    else:
        ledger = None
    searched = [
        f"the audit ledger {file}" if ledger else f"no audit ledger, since {file} does not exist"
    ]
    tracer = partial(Tracer, ledger=ledger, prefix=settings.key_prefix, show_texts=show_texts)
    try:
        redis = RedisParts.find(settings, data)
        why_idle = partial(_why_idle, redis.client, settings.key_prefix)
        has_died = partial(
            _has_died,
            redis.client,
            settings.key_prefix,
            WorkerLock(settings.state_folder(data) / ALIVE),
        )
        stories = tracer(
            redis.client, redis.scripts(CONVERSATION_SCRIPTS), why_idle=why_idle, has_died=has_died
        ).stories(wanted)
    except (ConfigError, RedisError) as exc:  # its words may hold the address of a server
        if isinstance(exc, ConfigError):
            reason = str(exc)
        else:
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
    """Return whether a worker ended without releasing its leases: at once for one of this machine."""
    return lock.is_dead(worker) or Heartbeat(client, prefix=prefix).is_gone(worker)


@dataclass(slots=True)
class _State:
    """The stored state of a conversation in Redis."""

    conversation: str
    now: float = 0.0
    records: dict[int, dict[str, Any]] = field(default_factory=dict)
    again: dict[int, int] = field(default_factory=dict)
    deliveries: dict[int, list[str]] = field(default_factory=dict)
    inbox: list[str] = field(default_factory=list)
    outbox: dict[int, str] = field(default_factory=dict)
    journal: list[str] = field(default_factory=list)
    #: Fields of the conversation's record, "" for one that is not set.
    numbers: defaultdict[str, str] = field(default_factory=lambda: defaultdict(str))
    #: Fields of the actions that are stored, by id.
    actions: dict[str, dict[str, str]] = field(default_factory=dict)

    @classmethod
    def parse(cls, conversation: str, answer: str) -> _State:
        """Read the answer of trace.lua. A record of another version is left out."""
        stored = json.loads(answer)
        state = cls(
            conversation,
            stored["now"] / 1000,
            inbox=list(stored["inbox"]),
            journal=list(stored["journal"]),
            numbers=defaultdict(str, stored["conversation"]),
            actions=dict(stored["actions"]),
        )
        for name, text in stored["turn_records"].items():
            if name.startswith("again:"):
                seq, times = text.split(" ")
                state.again[int(seq)] = int(times)
            elif (record := _fields(text)).get("v") == 1:
                state.records[record["seq"]] = record
        state.deliveries = {
            int(number): entry.split(" ", 4) for number, entry in stored["deliveries"].items()
        }
        for entry in stored["outbox"]:
            number, _, rest = entry.partition(" ")
            state.outbox[int(number)] = rest
        return state

    def seq_of(self, *, seq: int = 0, number: int = 0, event: str = "", pid: str = "") -> int:
        """Return the number of the turn that has a turn, a reply, an event or an action;
        0 for an unknown one.
        """
        for first, record in self.records.items():
            is_it = first <= seq <= (record.get("upto") or first) or number in record["replies"]
            if (
                is_it
                or (event and record["event"] == event)
                or (pid and pid in record.get("asked", ()))
            ):
                return first
        return seq

    def answers_to(self, pids: Collection[str]) -> set[int]:
        """Return the numbers of the turns that decided these actions,
        or answered them without deciding.
        """
        return {
            seq
            for seq, each in self.records.items()
            if {each.get("decided"), each.get("about")} & set(pids)
        }

    def continuations(self, pids: Collection[str]) -> set[int]:
        """Return the numbers of the turns in which the agent goes on after these actions,
        also of waiting ones.
        """
        ended = {seq for seq, each in self.records.items() if each.get("continues") in pids}
        waiting = (entry.split(" ", 4) for entry in self.inbox)
        return ended | {
            int(number)
            for number, _, _, _, text in waiting
            if _fields(text).get("continues") in pids
        }

    @property
    def newest_reply(self) -> int:
        """The highest number of a reply that is known."""
        replies = (number for record in self.records.values() for number in record["replies"])
        return max((*map(int, replies), *self.deliveries, *self.outbox), default=0)


class Tracer:
    """Builds stories. Lives as long as a command.

    Without `scripts` and `client` only the ledger is read, without `ledger` only Redis.
    `why_idle` returns the reason why no worker takes new work, "" while one does. `has_died`
    returns whether the worker of this id ended without releasing its leases. Without `show_texts`
    a story holds no text of a message or reply, and no name of a person.
    """

    def __init__(
        self,
        client: Redis | None,
        scripts: LuaScripts | None,
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
        self._read_entries: dict[str, list[AuditEntry]] = {}

    def stories(self, wanted: str) -> list[MessageStory]:
        """Return the stories of what an id leads to, at most MAX_STORIES.

        Raises redis.RedisError, LedgerUnusable.
        """
        # The event id of a turn in which the agent goes on names the action that was decided.
        wanted = wanted.strip().removeprefix("after:")
        clues = list(dict.fromkeys(self._find(wanted)))[:MAX_STORIES]
        stories: list[MessageStory] = []
        for clue in clues:  # a yes leads to its turn, and to its action: one story
            if not any(clue.pid == action.pid for story in stories for action in story.actions):
                stories.append(self._story(clue))
        return [
            story
            for story in dict.fromkeys(stories)
            if story.turns or story.replies or story.actions
        ]

    @cached_property
    def _tail(self) -> list[tuple[int, AuditEntry]]:
        """The entries that wait in Redis, with their shards."""
        recorded = (
            UncollectedEntries(self._client, prefix=self._prefix).entries() if self._client else []
        )
        return [(each.shard, entry) for each in recorded if (entry := each.entry)]

    def _entries_of(self, pid: str) -> list[AuditEntry]:
        """Return the entries of an action by number."""
        if pid not in self._read_entries:
            recorded = self._ledger.find_entries(having=f'"pid":"{pid}"') if self._ledger else ()
            entries = sorted({*recorded, *self._tail}, key=_place_of)
            self._read_entries[pid] = [entry for _, entry in entries if entry.pid == pid]
        return self._read_entries[pid]

    def _decided_by(self, is_it: Callable[[str], bool]) -> list[str]:
        """Return the actions that an event decided which `is_it` recognizes."""
        recorded = self._ledger.find_decided(is_it) if self._ledger else ()
        waiting = (entry for _, entry in self._tail if entry.by and is_it(entry.by))
        return list(dict.fromkeys(entry.pid for entry in chain(recorded, waiting)))

    def _find(self, wanted: str) -> Iterator[Clue]:
        if place := _PLACE.fullmatch(wanted):
            yield self._place(place)
            return
        if entry := _ENTRY.fullmatch(wanted):
            shard = int(entry["shard"])
            n = int(entry["n"])
            recorded = self._ledger.find_entries(shard=shard, n=n) if self._ledger else ()
            waiting = (each for each in self._tail if _place_of(each) == (shard, n))
            yield from (self._action(each.pid) for _, each in {*recorded, *waiting})
        if self._knows_action(wanted):
            clues = [self._action(wanted)]
        else:
            clues = []
        clues = clues or [*self._events(wanted)] or [*self._receipts(wanted)]
        if not clues and self._ledger and len(wanted) >= _MIN_REFERENCE:
            clues = [self._action(pid) for pid in self._ledger.find_told(wanted)]
        yield from clues

    def _place(self, place: re.Match[str]) -> Clue:
        """Return the turn or the reply of a conversation that was named, or its newest turn."""
        conversation = place["conversation"]
        if place["number"]:
            return Clue(conversation, number=int(place["number"]))
        return Clue(
            conversation,
            int(place["seq"] or self._state(conversation).numbers.get("last_turn") or 0),
        )

    def _knows_action(self, pid: str) -> bool:
        if self._entries_of(pid):
            return True
        return bool(
            self._client and re.fullmatch(r"[A-Za-z0-9_-]{22}", pid) and self._record_in_redis(pid)
        )

    def _record_in_redis(self, pid: str) -> str:
        keys = (f"{self._prefix}{{{shard}}}:pending:{pid}" for shard in range(SHARDS))
        found = (self._client.hget(key, "record") for key in keys) if self._client else ()
        return next((str(record) for record in found if record), "")

    def _action(self, pid: str) -> Clue:
        """Return the clue of an action, with its conversation as its record names it."""
        body = self._body(pid)
        record = _fields((body.record if body else None) or self._record_in_redis(pid))
        channel = record.get("channel_id")
        address = record.get("conversation_id") or record.get("user_id")
        return Clue(f"{channel}:{digest(address)}" if channel and address else "", pid=pid)

    def _events(self, wanted: str) -> Iterator[Clue]:
        """Yield the turn of an event id or its hash, and the actions that the event decided."""
        if _HASH.fullmatch(wanted):
            event = wanted
        else:
            event = digest(wanted)
        for key in self._scan(f"{{*}}:event:*:{event}"):
            if seen := _EVENT.fullmatch(key):
                if self._client:
                    number = self._client.get(f"{self._prefix}{key}")
                else:
                    number = None
                yield Clue(seen["conversation"], int(str(number or 0)), event)
        yield from map(self._action, self._decided_by(partial(_is_called, wanted=wanted)))

    def _receipts(self, wanted: str) -> Iterator[Clue]:
        """Yield the replies with this id of the platform."""
        keys = self._scan("{*}:delivery:*")
        while self._client and (some := list(islice(keys, _READ_COUNT))):
            pipe = self._client.pipeline(transaction=False)
            for key in some:
                pipe.hgetall(f"{self._prefix}{key}")
            for key, entries in zip(some, pipe.execute(), strict=True):
                delivery = _DELIVERY.fullmatch(key)
                for number, entry in entries.items():
                    if delivery and wanted in str(entry).split(" ", 4)[3:4]:
                        yield Clue(delivery["conversation"], number=int(number))

    def _scan(self, pattern: str) -> Iterator[str]:
        """Yield the keys of this bot that match, without its prefix."""
        keys = (
            self._client.scan_iter(match=self._prefix + pattern, count=_SCAN_COUNT)
            if self._client
            else ()
        )
        return (str(key).removeprefix(self._prefix) for key in keys)

    def _state(self, conversation: str, pids: Sequence[str] = ()) -> _State:
        if self._scripts is None or not conversation:
            return _State(conversation)
        return _State.parse(
            conversation, self._scripts.run("trace", conversation, {"action_ids": list(pids)})
        )

    def _body(self, pid: str) -> AuditBody | None:
        if self._ledger:
            return self._ledger.bodies(pid).get(pid)
        return None

    def _story(self, clue: Clue) -> MessageStory:
        """Return the story of a clue: its turn, the actions of it,
        and the turns that asked and answered them.
        """
        state = self._state(clue.conversation)
        first = state.seq_of(seq=clue.seq, number=clue.number, pid=clue.pid)
        record = state.records.get(first, {})
        answered = (record.get("decided"), record.get("about"), record.get("continues"))
        pids = dict.fromkeys(filter(None, (clue.pid, *record.get("asked", ()), *answered)))
        event = record.get("event") or clue.event
        pids |= dict.fromkeys(self._decided_by(lambda by: digest(by) == event) if event else ())
        events = {digest(entry.by) for pid in pids for entry in self._entries_of(pid) if entry.by}
        seqs = {
            first,
            *(state.seq_of(pid=pid) for pid in pids),
            *(state.seq_of(event=event) for event in events),
        }
        seqs |= state.answers_to(pids) | state.continuations(pids)
        if pids:
            state = self._state(clue.conversation, list(pids))
        turns = tuple(filter(None, (self._turn(state, seq) for seq in sorted(seqs - {0}))))
        known = {reply.id for turn in turns for reply in turn.replies}
        if clue.number:
            alone = self._reply(state, clue.number)
        else:
            alone = None
        replies = (alone,) if alone and alone.id not in known else ()
        traced = (self._traced_action(state, pid) for pid in pids)
        actions = tuple(
            sorted(traced, key=lambda action: action.events[0].at if action.events else 0.0)
        )
        is_open = any(turn.status == "waits" for turn in turns) or any(
            reply.state == "waits"
            for reply in (*replies, *(each for turn in turns for each in turn.replies))
        )
        return MessageStory(
            clue.conversation, turns, replies, actions, self._why_waiting(state) if is_open else ""
        )

    def _why_waiting(self, state: _State) -> str:
        """Return who works on the conversation, or why no worker does."""
        seconds_left = float(state.numbers.get("lease_until") or 0) / 1000 - state.now
        if seconds_left <= 0 or state.numbers["token"] in ("", "parked"):
            return self._why_idle()
        worker = worker_of(state.numbers["token"])
        if not self._has_died(worker):
            return f"Worker {worker} works on this conversation now."
        ending = f"Worker {worker} ended in the middle of this conversation."
        next_one = f"Another worker takes it up within {seconds_left + INTERVAL:.0f} s."
        return f"{ending} {self._why_idle() or next_one}"

    def _turn(self, state: _State, seq: int) -> TracedTurn | None:
        name = f"{state.conversation}@{seq}"
        webhooks = 1 + state.again.get(seq, 0)
        if record := state.records.get(seq):
            replies = tuple(
                filter(None, (self._reply(state, int(number)) for number in record["replies"]))
            )
            return TracedTurn(
                name,
                "done",
                record["event"],
                record["at"] / 1000,
                record["done"] / 1000,
                webhooks,
                record["attempt"],
                record["worker"],
                record.get("upto", 0),
                tuple(record.get("tools", ())),
                tuple(record.get("asked", ())),
                record.get("decided", ""),
                record.get("about", ""),
                record.get("ended", ""),
                record.get("continues", ""),
                replies=replies,
            )
        for ahead, entry in enumerate(state.inbox):
            number, at, _, _, text = entry.split(" ", 4)
            if int(number) == seq:
                turn = _fields(text)
                begun = state.numbers["turn_attempts"].split(" ")
                event = digest(str(turn.get("event_id", "")))
                return TracedTurn(
                    name,
                    "waits",
                    event,
                    int(at) / 1000,
                    webhooks=webhooks,
                    ahead=ahead,
                    continues=str(turn.get("continues", "")),
                    attempt=int(begun[2]) if begun[0] == number else 0,
                    steps=tuple(self._steps(state.journal)) if ahead == 0 else (),
                    text=str(turn.get("text", "")) if self._show_texts else "",
                )
        is_known = seq <= int(state.numbers.get("last_turn") or 0)
        if is_known:
            return TracedTurn(name, "forgotten", webhooks=webhooks)
        return None

    def _steps(self, journal: Sequence[str]) -> Iterator[str]:
        """Yield the steps of the turn in progress from its journal: tool calls requested,
        begun and returned.
        """
        names: list[str] = []
        for entry in map(_fields, journal[1:]):
            try:
                if "answer" in entry:
                    names = [
                        str(call["tool_name"]) for call in entry["answer"].get("tool_calls", ())
                    ]
                    yield f"the model asked for {', '.join(names)}"
                elif "begun" in entry:
                    yield f"{', '.join(names[at] for at in entry['begun'])} began"
                elif "call" in entry:
                    yield f"{names[entry['call']]} {'has an unknown outcome' if entry.get('unclear') else 'returned'}"
            except (AttributeError, IndexError, KeyError, TypeError):
                yield "an entry of the journal that cannot be read"

    def _reply(self, state: _State, number: int) -> TracedReply | None:
        name = f"{state.conversation}#{number}"
        if entry := state.deliveries.get(number):
            how, at, tries, receipt, *reason = entry
            receipt = "" if receipt == "-" else receipt
            reason = [] if reason == [NO_ERROR] else reason
            return TracedReply(name, how, int(at) / 1000, int(tries), receipt, "".join(reason))
        if number in state.outbox:
            text = state.outbox[number].partition(" ")[2]
            is_first = number == next(iter(state.outbox))
            if is_first:
                held = state.numbers["held_reply"].split(" ", 3)
            else:
                held = []
            return TracedReply(
                name,
                "held" if held[:1] == [str(number)] else "waits",
                tries=int(state.numbers["reply_attempts"] or 0) if is_first else 0,
                reason=held[3] if len(held) == 4 else state.numbers["closed_address"],
                text=str(_fields(_fields(text).get("reply")).get("text", ""))
                if self._show_texts
                else "",
            )
        if 0 < number <= state.newest_reply:
            return TracedReply(name, "forgotten")
        return None

    def _traced_action(self, state: _State, pid: str) -> TracedAction:
        body = self._body(pid)
        in_redis = defaultdict(str, state.actions.get(pid, {}))
        record = _fields((body.record if body else None) or in_redis["record"])
        events = []
        for entry in self._entries_of(pid):
            by = digest(entry.by) if entry.by else ""
            seq = state.seq_of(event=by) if by else 0
            turn = f"{state.conversation}@{seq}" if seq else ""
            events.append(TracedEvent(entry.event, entry.at / 1000, by, turn))
        erased = "(erased)" if body and body.erased_at else ""
        texts = (
            record.get("preview") or erased,
            (body and body.outcome_text) or in_redis["outcome_text"],
            record.get("user_id", ""),
        )
        preview, told, user = map(str, texts) if self._show_texts else ("", "", "")
        by = digest(in_redis["decided_by_event"]) if in_redis["decided_by_event"] else ""
        kind = str(record.get("kind", ""))
        return TracedAction(pid, in_redis["state"], by, kind, preview, told, user, tuple(events))


def _place_of(entry: tuple[int, AuditEntry]) -> tuple[int, int]:
    return entry[0], entry[1].n


def _fields(text: object) -> dict[str, Any]:
    """Return a stored JSON object; an empty one for what Sayso has not written."""
    try:
        fields = json.loads(str(text or "{}"))
    except (ValueError, RecursionError):
        return {}
    if isinstance(fields, dict):
        return fields
    return {}


def _is_called(event: str, wanted: str) -> bool:
    """Return whether an event is meant: by its id, or the hash of it."""
    return wanted in (event, digest(event))
