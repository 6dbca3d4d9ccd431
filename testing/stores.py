"""Stores of one process: people, a console's feed and log-ins, alerts, caches, files."""

from __future__ import annotations

import hashlib
import json
import math
import threading
import time
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO
from typing import BinaryIO

from sayso.channels.console.store import (
    CLEAR,
    KEPT_ENTRIES,
    LOCKOUT_SECONDS,
    MESSAGE_ID,
    SESSION_SECONDS,
    Chat,
    Failures,
    FeedEntries,
    FeedEntry,
    network,
)
from sayso.channels.types import Conversation, Delivery, Identity, Media, SenderIds
from sayso.pending.limits import KEEP_CONVERSATION_MS, KEEP_IDENTITY_MS, KEEP_STRANGER_MS, MAX_IDS
from sayso.workers.alerts import (
    ALERT_SECONDS,
    CACHE_SECONDS,
    MAX_CHARS,
    Alert,
    AlertKind,
    newest_first,
)
from sayso.workers.people import (
    MAX_PEOPLE,
    MAX_WAITING,
    WAIT_SECONDS,
    ListedPerson,
    OperatorDecision,
    TooManyPeople,
    Waiting,
    new_code,
)


@dataclass(slots=True)
class _ChannelPeople:
    people: dict[str, ListedPerson] = field(default_factory=dict)
    waiting: dict[str, Waiting] = field(default_factory=dict)
    notified: dict[str, float] = field(default_factory=dict)


class MemoryPeople:
    """People and AccessList of one process, by its own clock."""

    def __init__(
        self, *, clock: Callable[[], float] = time.time, new_code: Callable[[], str] = new_code
    ) -> None:
        self._clock = clock
        self._new_code = new_code
        self._channels: dict[str, _ChannelPeople] = {}
        self._lock = threading.Lock()

    def decision(self, channel: str, ids: Sequence[str]) -> OperatorDecision:
        """Return what an operator decided about a person with these ids: blocked,
        if any of the ids is.
        """
        known = self._of(channel).people
        states = {known[name].state for name in ids if name in known}
        if "blocked" in states:
            return "blocked"
        if states:
            return "approved"
        return ""

    def code(self, channel: str, sender: Waiting) -> str:
        """Return the code of an unknown sender, the same one while it is valid;
        "" while too many wait.
        """
        with self._lock:
            waiting = self._unexpired(channel)
            own = sender.ids[0]
            if own not in waiting and len(waiting) >= MAX_WAITING:
                return ""
            return waiting.setdefault(
                own, replace(sender, code=self._new_code(), at=self._clock())
            ).code

    def was_notified(self, channel: str, name: str) -> bool:
        """Return whether an unknown sender was told within the last hour."""
        return self._clock() - self._of(channel).notified.get(name, float("-inf")) < WAIT_SECONDS

    def record_notified(self, channel: str, name: str) -> None:
        """Record that an unknown sender was told now."""
        now = self._clock()
        of_channel = self._of(channel)
        with self._lock:
            recent = {
                each: at for each, at in of_channel.notified.items() if now - at < WAIT_SECONDS
            }
            of_channel.notified = {**recent, name: now}

    def people(self, channel: str) -> list[ListedPerson]:
        """Return all people who are approved or blocked, the newest first."""
        by_ids = {person.ids: person for person in self._of(channel).people.values()}
        return sorted(by_ids.values(), key=lambda person: (-person.at, person.ids))

    def waiting(self, channel: str) -> list[Waiting]:
        """Return the unknown senders with a valid code, the newest first."""
        with self._lock:
            return sorted(self._unexpired(channel).values(), key=lambda each: (-each.at, each.ids))

    def _unexpired(self, channel: str) -> dict[str, Waiting]:
        """Return who waits, without those whose hour is over."""
        of_channel = self._of(channel)
        now = self._clock()
        of_channel.waiting = {
            name: each for name, each in of_channel.waiting.items() if each.at + WAIT_SECONDS > now
        }
        return of_channel.waiting

    def keep(self, channel: str, person: ListedPerson) -> None:
        """Store a decision under each id of a person, who then waits no longer.

        Raises TooManyPeople.
        """
        of_channel = self._of(channel)
        with self._lock:
            if len(of_channel.people.keys() | set(person.ids)) > MAX_PEOPLE:
                raise TooManyPeople(
                    f"{MAX_PEOPLE} ids are approved or blocked on {channel}: forget some first"
                )
            of_channel.people.update(dict.fromkeys(person.ids, replace(person, at=self._clock())))
            for name in person.ids:
                of_channel.waiting.pop(name, None)

    def drop(self, channel: str, ids: Sequence[str]) -> None:
        """Delete everything about these ids."""
        of_channel = self._of(channel)
        with self._lock:
            for name in ids:
                of_channel.people.pop(name, None)
                of_channel.waiting.pop(name, None)

    def _of(self, channel: str) -> _ChannelPeople:
        return self._channels.setdefault(channel, _ChannelPeople())


class MemoryFeed:
    """A console's feed of one process."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._entries: dict[str, deque[tuple[str, FeedEntry]]] = defaultdict(
            lambda: deque(maxlen=KEPT_ENTRIES)
        )
        self._last = (0, 0)
        self._changed = threading.Condition()

    def append(self, conversation_id: str, entry: FeedEntry, replaces: str = "") -> str:
        """Add an entry, delete the entry `replaces`, and return the new id."""
        with self._changed:
            now_ms = int(self._clock() * 1000)
            (last_ms, count) = self._last
            entries = self._entries[conversation_id]
            if now_ms > last_ms:
                self._last = (now_ms, 0)
            else:
                self._last = (last_ms, count + 1)
            entry_id = "{}-{}".format(*self._last)
            if entry.get("type") == CLEAR:
                entries.clear()
            for replaced in [each for each in entries if each[0] == replaces]:
                entries.remove(replaced)
            entries.append((entry_id, json.loads(json.dumps(entry))))
            self._changed.notify_all()
        return entry_id

    def read(self, conversation_id: str, after: str, block_ms: int) -> FeedEntries:
        """Return the entries after an id, all for "". Wait about `block_ms` for the first one."""
        start = _order(after if MESSAGE_ID.fullmatch(after) else "0-0")
        with self._changed:
            self._changed.wait_for(
                lambda: self._newer(conversation_id, start), timeout=block_ms / 1000
            )
            return self._newer(conversation_id, start)

    def delete(self, conversation_id: str) -> None:
        """Delete all entries."""
        with self._changed:
            self._entries.pop(conversation_id, None)

    def find(self, conversation_id: str, entry_id: str) -> FeedEntry | None:
        """Return the entry of an id, None if there is none."""
        with self._changed:
            return dict(self._entries.get(conversation_id, ())).get(entry_id)

    def read_back(self, conversation_id: str, before: str, count: int) -> FeedEntries:
        """Return the last `count` entries before an id, oldest first; the newest of all for ""."""
        end: tuple[float, int] = (math.inf, 0)
        if MESSAGE_ID.fullmatch(before):
            end = _order(before)
        with self._changed:
            entries = self._entries.get(conversation_id, ())
            older = [(entry_id, entry) for entry_id, entry in entries if _order(entry_id) < end]
            return older[-count:]

    def _newer(self, conversation_id: str, start: tuple[int, int]) -> FeedEntries:
        entries = self._entries.get(conversation_id, ())
        return [(entry_id, entry) for entry_id, entry in entries if _order(entry_id) > start]


def _order(entry_id: str) -> tuple[int, int]:
    milliseconds, _, count = entry_id.partition("-")
    return int(milliseconds), int(count)


class MemoryChats:
    """The conversations of each person of one process."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._chats: dict[tuple[str, str], dict[str, Chat]] = defaultdict(dict)
        self._lock = threading.Lock()

    def all(self, channel: str, user_id: str) -> list[Chat]:
        """Return the conversations of a person, the one that was used last first."""
        with self._lock:
            chats = list(self._chats[channel, user_id].values())
        return sorted(chats, key=lambda chat: chat.at or math.inf, reverse=True)

    def has(self, channel: str, user_id: str, chat_id: str) -> bool:
        """Return whether a person has this conversation. Each has the first one."""
        with self._lock:
            return not chat_id or chat_id in self._chats[channel, user_id]

    def add(self, conversation: Conversation) -> None:
        """Add a conversation in which nothing was said yet."""
        with self._lock:
            chats = self._chats[conversation.channel, conversation.chat]
            chats[conversation.thread] = Chat(conversation.thread, "", 0.0)

    def use(self, conversation: Conversation, title: str = "") -> None:
        """Note that something was said now.

        The title is given only to a conversation that has none.
        """
        with self._lock:
            chats = self._chats[conversation.channel, conversation.chat]
            before = chats.get(conversation.thread)
            if before or not conversation.thread:
                kept = before.title if before else ""
                chats[conversation.thread] = Chat(conversation.thread, kept or title, self._clock())

    def rename(self, channel: str, user_id: str, chat_id: str, title: str) -> None:
        """Give a conversation this title."""
        with self._lock:
            chats = self._chats[channel, user_id]
            if chat_id in chats:
                chats[chat_id] = replace(chats[chat_id], title=title)

    def remove(self, channel: str, user_id: str, chat_id: str) -> None:
        """Remove a conversation from the list."""
        with self._lock:
            self._chats[channel, user_id].pop(chat_id, None)


class MemoryLogins:
    """A console's failed log-ins and ended sessions of one process."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._failures: dict[tuple[str, str], Failures] = {}
        self._ended: OrderedDict[str, float] = OrderedDict()
        self._lock = threading.Lock()

    def failures(self, channel: str, address: str) -> Failures:
        """Return the wrong passwords of an address in the last LOCKOUT_SECONDS."""
        failures = self._failures.get((channel, network(address)), Failures())
        if self._clock() < failures.last + LOCKOUT_SECONDS:
            return failures
        return Failures()

    def fail(self, channel: str, address: str) -> Failures:
        """Count another wrong password."""
        with self._lock:
            failed = Failures(self.failures(channel, address).count + 1, self._clock())
            self._failures[channel, network(address)] = failed
        return failed

    def succeed(self, channel: str, address: str) -> None:
        """Delete the wrong passwords of an address."""
        self._failures.pop((channel, network(address)), None)

    def end(self, session: str) -> None:
        """End a session before it expires."""
        with self._lock:
            self._ended[session] = self._clock() + SESSION_SECONDS
            while next(iter(self._ended.values())) < self._clock():
                self._ended.popitem(last=False)

    def is_ended(self, session: str) -> bool:
        """Return whether a session was ended."""
        return session in self._ended


class MemoryAlerts:
    """Alerts in this process."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._alerts: dict[tuple[str, AlertKind], Alert] = {}

    def note(self, channel: str, text: str, kind: AlertKind = "sending") -> None:
        """Store an alert."""
        self._alerts[channel, kind] = Alert(channel, text[:MAX_CHARS], self._clock())

    def heard(self, channel: str) -> None:
        """Store nothing: only `sayso doctor` asks when a channel's last message came in."""

    def of(self, channels: Iterable[str]) -> list[Alert]:
        """Return the alerts of these channels that are not too old."""
        names = set(channels)
        alerts = (alert for (name, _), alert in self._alerts.items() if name in names)
        return newest_first(alert for alert in alerts if self._clock() - alert.at < ALERT_SECONDS)

    def is_clearing_due(self, channel: str, kind: AlertKind) -> bool:
        """Return whether there is an alert."""
        return (channel, kind) in self._alerts

    def clear(self, channel: str, kind: AlertKind) -> None:
        """Delete the alert."""
        self._alerts.pop((channel, kind), None)


class MemorySharedCache:
    """Values in this process, with a time to live."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._notes: dict[str, tuple[str, float]] = {}

    def get(self, key: str) -> str | None:
        """Return the value stored under `key`, or None."""
        value, until = self._notes.get(key, ("", 0.0))
        return value if self._clock() < until else None

    def put(self, key: str, value: str, *, seconds: int = CACHE_SECONDS) -> None:
        """Store a value for this many seconds."""
        self._notes[key] = (value, self._clock() + seconds)


class MemoryIdentities:
    """The ids of people in this process."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        #: By channel and id, the key of the person who has it, and until when that is kept.
        self._holders: dict[tuple[str, str], tuple[str, float]] = {}
        #: By channel and key.
        self._people: dict[tuple[str, str], tuple[Identity, float]] = {}

    def recognize(
        self,
        channel: str,
        ids: SenderIds,
        *,
        store: bool,
        briefly: bool = False,
    ) -> Identity:
        """Return the sender of a message with these ids; `store` them, or `briefly` for an hour."""
        with self._lock:
            by_id = self._holder(channel, ids.user_id) or self._holder(channel, ids.parent)
            key = by_id or self._key_by_number(channel, ids)
            person = self._person(channel, key) or Identity(key)
            sender = self._with_ids(channel, person, ids)
            if store or briefly:
                self._store(channel, person, sender, ids, briefly=briefly)
            return sender

    def _key_by_number(self, channel: str, ids: SenderIds) -> str:
        """Return the key of a sender whose ids of the platform are unknown."""
        holder = self._holder(channel, ids.number)
        if not ids.user_id:
            return holder or ids.number
        person = self._person(channel, holder)
        return holder if person and not person.user_id else ids.user_id

    def _with_ids(self, channel: str, person: Identity, ids: SenderIds) -> Identity:
        """Return a person with the ids of a message, as far as there is room."""
        new = ids.as_identity().ids
        names = [name for name in person.ids if name not in new]
        number = ids.number
        # Another id comes with another number. The old one may be
        # given to a person who never wrote.
        has_another_id = bool(ids.user_id and person.user_id) and ids.user_id != person.user_id
        if not (number or has_another_id):
            number = self._shown(channel, person).number
        return replace(
            person,
            number=number,
            user_id=ids.user_id or person.user_id,
            ids=(*names, *new)[-MAX_IDS:],
        )

    def _store(
        self,
        channel: str,
        before: Identity,
        sender: Identity,
        ids: SenderIds,
        *,
        briefly: bool,
    ) -> None:
        """Store the sender of a message with these ids, who was known as `before`."""
        for name in before.ids:
            if name not in sender.ids and self._holder(channel, name) == sender.key:
                del self._holders[channel, name]
        kept_ms = KEEP_IDENTITY_MS if sender.user_id else KEEP_CONVERSATION_MS
        if briefly:
            kept_ms = KEEP_STRANGER_MS
        until = self._clock() + kept_ms / 1000
        if briefly:
            until = max(until, self._people.get((channel, sender.key), (sender, 0.0))[1])
        self._people[channel, sender.key] = (sender, until)
        for name in sender.ids:
            if name in ids.as_identity().ids or self._holder(channel, name) == sender.key:
                self._holders[channel, name] = (sender.key, until)

    def find(self, channel: str, name: str) -> Identity | None:
        """Return the person who has this id now, None for an unknown one."""
        with self._lock:
            person = self._person(channel, self._holder(channel, name))
            if person:
                return self._shown(channel, person)
            return None

    def of_key(self, channel: str, key: str) -> Identity | None:
        """Return the person whose data is stored under `key`, None for an unknown one."""
        with self._lock:
            person = self._person(channel, key)
            if person:
                return self._shown(channel, person)
            return None

    def forget(self, channel: str, key: str) -> None:
        """Forget the ids of the person whose data is stored under `key`."""
        with self._lock:
            person = self._person(channel, key)
            for name in person.ids if person else ():
                if self._holder(channel, name) == key:
                    del self._holders[channel, name]
            self._people.pop((channel, key), None)

    def _holder(self, channel: str, name: str) -> str:
        key, until = self._holders.get((channel, name), ("", 0.0))
        return key if name and self._clock() < until else ""

    def _person(self, channel: str, key: str) -> Identity | None:
        person, until = self._people.get((channel, key), (None, 0.0))
        return person if self._clock() < until else None

    def _shown(self, channel: str, person: Identity) -> Identity:
        """Return a person without a number that another person has now."""
        has_number = self._holder(channel, person.number) == person.key
        if has_number:
            return person
        return replace(person, number="")


class NoReceipts:
    """Remembers nothing."""

    def note(self, delivery: Delivery, message_id: str) -> None:
        """Do nothing."""

    def find(self, delivery: Delivery) -> str | None:
        """Return None."""
        return None


class MemoryMediaStore:
    """Files of one process. No platform can download them, and the declared type counts."""

    spool_folder = None

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}

    def put(
        self, content: bytes | BinaryIO, *, mime_type: str, filename: str = "", owner: str = ""
    ) -> Media:
        """Store bytes, or a file from its beginning, under their SHA-256."""
        if not isinstance(content, bytes):
            content.seek(0)
        if isinstance(content, bytes):
            data = content
        else:
            data = content.read()
        ref = hashlib.sha256(data).hexdigest()
        self._files[ref] = data
        return Media(ref, mime_type, filename, len(data), stored=True)

    def read(self, ref: str) -> bytes:
        """Return the stored bytes. Raises KeyError for an unknown file."""
        return self._files[ref]

    def open(self, ref: str) -> BinaryIO:
        """Open a stored file. Raises KeyError for an unknown file."""
        return BytesIO(self._files[ref])
