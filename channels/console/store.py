"""The console in Redis: feeds, conversations of people, wrong passwords, ended sessions."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import redis

from sayso.channels.base import StorageDown
from sayso.channels.types import Conversation, digest, one_line

#: About how many entries of one conversation are stored. A message is one, and so is each later
#: edit of it.
KEPT_ENTRIES = 1000
#: How many entries the page loads at once.
PAGE_ENTRIES = 60
#: How long an idle conversation is stored, in seconds: as long as its history.
KEPT_SECONDS = 30 * 24 * 3600
#: The longest one Redis read may block, in milliseconds:
#: well under redis-py's socket timeout of 5 s.
MAX_BLOCK_MS = 2000
#: The ids of entries. Browsers send some back.
MESSAGE_ID = re.compile(r"[0-9]{1,18}-[0-9]{1,18}")
#: The type of an entry that replaces all entries before it.
CLEAR = "clear"
#: The type of an entry that says that the draft before it was removed.
REMOVED = "removed"

FeedEntry = dict[str, Any]
#: Entries with their ids, oldest first.
FeedEntries = list[tuple[str, FeedEntry]]


class StoreDown(StorageDown):
    """Raised when the console's storage cannot be reached."""


class Feed:
    """The entries of each conversation in Redis Streams, shared by all processes.

    Needs Redis 6.2 or newer.

    The client decodes responses. Ids are `<unix ms>-<n>` and only grow.
    """

    def __init__(self, client: redis.Redis, prefix: str = "sayso:") -> None:
        self._client = client
        self._prefix = prefix

    def append(self, conversation_id: str, entry: FeedEntry, replaces: str = "") -> str:
        """Add an entry, delete the entry `replaces`, and return the new id. Raises StoreDown."""
        key = self._key(conversation_id)
        # So that no stream is left without an expiry.
        pipe = self._client.pipeline(transaction=True)
        if entry.get("type") == CLEAR:
            pipe.xtrim(key, maxlen=0, approximate=False)  # after DEL, ids could start again
        pipe.xadd(key, {"entry": json.dumps(entry)}, maxlen=KEPT_ENTRIES, approximate=True)
        if MESSAGE_ID.fullmatch(replaces):
            pipe.xdel(key, replaces)
        pipe.expire(key, KEPT_SECONDS)
        try:
            return next(result for result in pipe.execute() if isinstance(result, str))
        except redis.RedisError as exc:
            raise StoreDown(f"cannot append to the feed: {type(exc).__name__}") from exc

    def read(self, conversation_id: str, after: str, block_ms: int) -> FeedEntries:
        """Return the entries after an id, all for "".

        Wait about `block_ms` for the first one. Raises StoreDown.
        """
        key = self._key(conversation_id)
        # A malformed id from a browser: from the beginning.
        start = after if MESSAGE_ID.fullmatch(after) else "0-0"
        try:
            if block_ms:  # to Redis, BLOCK 0 means forever
                self._client.xread({key: start}, count=1, block=min(block_ms, MAX_BLOCK_MS))
            entries: Any = self._client.xrange(key, f"({start}")
        except redis.RedisError as exc:
            raise StoreDown(f"cannot read the feed: {type(exc).__name__}") from exc
        return [(entry_id, json.loads(fields["entry"])) for entry_id, fields in entries]

    def find(self, conversation_id: str, entry_id: str) -> FeedEntry | None:
        """Return the entry of an id, None if there is none. Raises StoreDown."""
        if not MESSAGE_ID.fullmatch(entry_id):
            return None
        try:
            entries: Any = self._client.xrange(self._key(conversation_id), entry_id, entry_id)
        except redis.RedisError as exc:
            raise StoreDown(f"cannot read the feed: {type(exc).__name__}") from exc
        if not entries:
            return None
        entry: dict[str, Any] = json.loads(entries[0][1]["entry"])
        return entry

    def read_back(self, conversation_id: str, before: str, count: int) -> FeedEntries:
        """Return the last `count` entries before an id, oldest first; the newest of all for "".

        Raises StoreDown.
        """
        if MESSAGE_ID.fullmatch(before):
            end = f"({before}"
        else:
            end = "+"
        try:
            entries: Any = self._client.xrevrange(self._key(conversation_id), end, count=count)
        except redis.RedisError as exc:
            raise StoreDown(f"cannot read the feed: {type(exc).__name__}") from exc
        return [(entry_id, json.loads(fields["entry"])) for entry_id, fields in reversed(entries)]

    def delete(self, conversation_id: str) -> None:
        """Delete all entries. Raises StoreDown."""
        try:
            self._client.delete(self._key(conversation_id))
        except redis.RedisError as exc:
            raise StoreDown(f"cannot delete the feed: {type(exc).__name__}") from exc

    def _key(self, conversation_id: str) -> str:
        return f"{self._prefix}feed:{conversation_id}"


def time_of(entry_id: str) -> float:
    """Return when an entry was added, in Unix seconds by the feed's clock; 0.0 for no entry."""
    if entry_id:
        return int(entry_id.partition("-")[0]) / 1000
    return 0.0


#: How many conversations of one person are listed. A new one takes the place of the oldest.
MAX_CHATS = 30
#: The longest title of a conversation, in characters.
MAX_TITLE_CHARS = 60
#: The longest name of a person, in characters.
MAX_NAME_CHARS = 40
#: The ids of conversations. "" is a person's first one.
CHAT_ID = re.compile(r"(?:[0-9a-f]{16})?")


@dataclass(frozen=True, slots=True)
class Chat:
    """One conversation of a person: its id, its title ("" for none yet), and when it was used last.

    `at` is in Unix seconds, 0.0 for a conversation in which nothing was said.
    """

    id: str
    title: str
    at: float


class Chats:
    """The conversations of each person, shared by all processes of a bot.

    Every method raises StoreDown.

    The hash `<prefix>console:chats:<channel>:<digest of the person>` has two fields for each
    conversation: `chat:<id>` is JSON with its name in other keys and its time, `title:<id>` its
    title.
    """

    def __init__(
        self,
        client: redis.Redis,
        prefix: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._prefix = prefix
        self._clock = clock

    def all(self, channel: str, user_id: str) -> list[Chat]:
        """Return the conversations of a person, the one that was used last first."""
        key = self._key(channel, user_id)
        fields: dict[str, str] = self._run(lambda: self._client.hgetall(key))
        chats = []
        for name, record in fields.items():
            kind, _, chat_id = name.partition(":")
            if kind == "chat":
                title = fields.get(f"title:{chat_id}", "")
                chats.append(Chat(chat_id, title, json.loads(record)["at"]))
        return sorted(chats, key=lambda chat: chat.at or math.inf, reverse=True)

    def has(self, channel: str, user_id: str, chat_id: str) -> bool:
        """Return whether a person has this conversation. Each has the first one."""
        key = self._key(channel, user_id)
        return not chat_id or bool(self._run(lambda: self._client.hexists(key, f"chat:{chat_id}")))

    def add(self, conversation: Conversation) -> None:
        """Add a conversation in which nothing was said yet."""
        self._write(conversation, at=0.0)

    def use(self, conversation: Conversation, title: str = "") -> None:
        """Note that something was said now.

        The title is given only to a conversation that has none.

        A conversation that was deleted meanwhile stays deleted.
        """
        if self.has(conversation.channel, conversation.chat, conversation.thread):
            self._write(conversation, at=self._clock(), title=title)

    def rename(self, channel: str, user_id: str, chat_id: str, title: str) -> None:
        """Give a conversation this title."""
        key = self._key(channel, user_id)
        self._run(lambda: self._client.hset(key, f"title:{chat_id}", title))

    def remove(self, channel: str, user_id: str, chat_id: str) -> None:
        """Remove a conversation from the list."""
        key = self._key(channel, user_id)
        self._run(lambda: self._client.hdel(key, f"chat:{chat_id}", f"title:{chat_id}"))

    def _write(self, conversation: Conversation, *, at: float, title: str = "") -> None:
        key = self._key(conversation.channel, conversation.chat)
        chat_id = conversation.thread
        pipe = self._client.pipeline(transaction=True)
        pipe.hset(key, f"chat:{chat_id}", json.dumps({"at": at, "conversation": conversation.id}))
        if title:
            pipe.hsetnx(key, f"title:{chat_id}", title)
        pipe.expire(key, KEPT_SECONDS)
        self._run(pipe.execute)

    def _key(self, channel: str, user_id: str) -> str:
        return f"{self._prefix}console:chats:{channel}:{digest(user_id)}"

    def _run(self, command: Callable[[], Any]) -> Any:
        try:
            return command()
        except redis.RedisError as exc:
            raise StoreDown(f"cannot look up conversations: {type(exc).__name__}") from exc


def title_of(text: str, max_chars: int = MAX_TITLE_CHARS) -> str:
    """Return the first words of a text as a title or name, without invisible characters."""
    line = " ".join(one_line(text.replace("\n", " ")).split())
    if len(line) <= max_chars:
        return line
    return f"{line[: max_chars - 1].rstrip()}…"


#: How long a log-in is valid, in seconds.
SESSION_SECONDS = 12 * 3600
#: After how many wrong passwords an address must wait before the next attempt, and is locked out.
FREE_FAILURES = 3
MAX_FAILURES = 10
#: How long an address is locked out and its failures are remembered, in seconds.
LOCKOUT_SECONDS = 15 * 60


@dataclass(frozen=True, slots=True)
class Failures:
    """How many wrong passwords came from an address, and when the last one did, in Unix seconds."""

    count: int = 0
    last: float = 0.0

    def wait(self, now: float) -> float:
        """Return the seconds until this address may try again.

        There are none at first, then twice as many each time.
        """
        if self.count < FREE_FAILURES:
            return 0.0
        pause = 2.0 ** (self.count - FREE_FAILURES)
        if self.count >= MAX_FAILURES:
            pause = LOCKOUT_SECONDS
        return max(0.0, self.last + pause - now)


class Logins:
    """Failed log-ins and ended sessions, shared by all processes of a bot.

    Every method raises StoreDown.

    The keys are `<prefix>console:failed:<channel>:<network>` and `<prefix>console:ended:<session>`.
    """

    def __init__(
        self, client: redis.Redis, prefix: str, clock: Callable[[], float] = time.time
    ) -> None:
        self._client = client
        self._prefix = prefix
        self._clock = clock

    def failures(self, channel: str, address: str) -> Failures:
        """Return the wrong passwords of an address in the last LOCKOUT_SECONDS."""
        count, last = self._run(
            lambda: self._client.hmget(self._key(channel, address), ["count", "last"])
        )
        return Failures(int(count or 0), float(last or 0))

    def fail(self, channel: str, address: str) -> Failures:
        """Count another wrong password."""
        key = self._key(channel, address)
        now = self._clock()
        pipe = self._client.pipeline(transaction=True)
        pipe.hincrby(key, "count", 1)
        pipe.hset(key, "last", str(now))
        pipe.expire(key, LOCKOUT_SECONDS)
        return Failures(int(self._run(pipe.execute)[0]), now)

    def succeed(self, channel: str, address: str) -> None:
        """Delete the wrong passwords of an address."""
        self._run(lambda: self._client.delete(self._key(channel, address)))

    def end(self, session: str) -> None:
        """End a session before it expires."""
        self._run(
            lambda: self._client.set(
                f"{self._prefix}console:ended:{session}", "1", ex=SESSION_SECONDS
            )
        )

    def is_ended(self, session: str) -> bool:
        """Return whether a session was ended."""
        return bool(
            self._run(lambda: self._client.exists(f"{self._prefix}console:ended:{session}"))
        )

    def _key(self, channel: str, address: str) -> str:
        hashed = hashlib.sha256(network(address).encode()).hexdigest()[:20]
        return f"{self._prefix}console:failed:{channel}:{hashed}"

    def _run(self, command: Callable[[], Any]) -> Any:
        try:
            return command()
        except redis.RedisError as exc:
            raise StoreDown(f"cannot look up log-ins: {type(exc).__name__}") from exc


def network(address: str) -> str:
    """Return what counts as one address: an IPv4 address, or the /64 network of an IPv6 customer."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped:
        return str(ip.ipv4_mapped)
    if ip.version == 6:
        return str(ipaddress.ip_network((ip, 64), strict=False))
    return str(ip)
