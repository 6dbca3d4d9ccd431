"""Fakes of stores, in this process: a console's feed and log-ins, alerts, caches, files."""

from __future__ import annotations

import hashlib
import json
import math
import threading
import time
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from io import BytesIO
from typing import BinaryIO

from sayso.channels.console.store import (
    CLEAR,
    ENTRY_ID,
    LOCKOUT_SECONDS,
    MAX_ENTRIES,
    SESSION_SECONDS,
    Chat,
    Failures,
    FeedEntries,
    FeedEntry,
    network,
)
from sayso.channels.types import Conversation, Delivery, Media, Receipt
from sayso.infra.redis.shared_cache import CACHE_SECONDS
from sayso.workers.alerts import (
    ALERT_SECONDS,
    MAX_CHARS,
    Alert,
    AlertKind,
    newest_first,
)


class MemoryFeed:
    """A console's feed of one process."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._entries: dict[str, deque[tuple[str, FeedEntry]]] = defaultdict(
            lambda: deque(maxlen=MAX_ENTRIES)
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
        start = _order(after if ENTRY_ID.fullmatch(after) else "0-0")
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
        if ENTRY_ID.fullmatch(before):
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

    def note_use(self, conversation: Conversation, title: str = "") -> None:
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

    def note_failure(self, channel: str, address: str) -> Failures:
        """Count another wrong password."""
        with self._lock:
            failed = Failures(self.failures(channel, address).count + 1, self._clock())
            self._failures[channel, network(address)] = failed
        return failed

    def note_success(self, channel: str, address: str) -> None:
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

    def record_message(self, channel: str) -> None:
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


class NoReceipts:
    """Remembers nothing."""

    def note(self, delivery: Delivery, receipt: Receipt) -> None:
        """Do nothing."""

    def find(self, delivery: Delivery) -> Receipt | None:
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
