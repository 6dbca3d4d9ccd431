"""What the console stores in Redis.

The console is the chat page in the browser. A conversation's feed is what the page shows of it, as
entries in order: messages, taps, answers, drafts and edits. `Feed` stores feeds, `Chats` the list
of each person's conversations, and `Logins` wrong passwords and sessions that have ended.
"""

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
from sayso.channels.types import Conversation, digest, without_invisible

#: About how many entries of one conversation are stored. A message is one, and so is each later
#: edit of it.
MAX_ENTRIES = 1000
#: How many entries the page loads at once.
PAGE_ENTRIES = 60
#: How long an idle conversation is stored, in seconds: 30 days, as long as its history.
KEEP_SECONDS = 30 * 24 * 3600
#: The longest one Redis read may block, in milliseconds:
#: well under redis-py's socket timeout of 5 s.
MAX_BLOCK_MS = 2000
#: The id of an entry, made by Redis: `<Unix milliseconds>-<number>`. Browsers send some back.
ENTRY_ID = re.compile(r"[0-9]{1,18}-[0-9]{1,18}")
#: The type of an entry that replaces all entries before it.
CLEAR = "clear"
#: The type of an entry that says that the draft before it was removed.
REMOVED = "removed"

#: An entry as JSON. Its `type` says what it is.
FeedEntry = dict[str, Any]
#: Entries with their ids, oldest first.
FeedEntries = list[tuple[str, FeedEntry]]


class StoreDown(StorageDown):
    """Raised when the console's storage cannot be reached."""


class Feed:
    """The feeds of all conversations, in Redis Streams shared by all processes.

    Needs Redis 6.2 or newer. Ids of entries only grow. `client` decodes responses, and `prefix` is
    what all keys begin with. All methods raise StoreDown.
    """

    def __init__(self, client: redis.Redis, prefix: str = "sayso:") -> None:
        self._client = client
        self._prefix = prefix

    def append(self, conversation_id: str, entry: FeedEntry, replaces: str = "") -> str:
        """Append an entry, delete the entry `replaces`, and return the new id.

        `replaces` is "" for none. An entry of the type CLEAR deletes all entries before it.
        """
        key = self._key(conversation_id)
        # In a transaction, so that no stream is left without an expiry.
        pipe = self._client.pipeline(transaction=True)
        if entry.get("type") == CLEAR:
            # Not DEL: after that, ids could start again from a lower one.
            pipe.xtrim(key, maxlen=0, approximate=False)
        pipe.xadd(key, {"entry": json.dumps(entry)}, maxlen=MAX_ENTRIES, approximate=True)
        if ENTRY_ID.fullmatch(replaces):
            pipe.xdel(key, replaces)
        pipe.expire(key, KEEP_SECONDS)
        try:
            results = pipe.execute()
        except redis.RedisError as exc:
            raise StoreDown(f"cannot append to the feed: {type(exc).__name__}") from exc
        # Of the results, only that of XADD is a text.
        return next(result for result in results if isinstance(result, str))

    def read(self, conversation_id: str, after: str, block_ms: int) -> FeedEntries:
        """Return the entries after the id `after`, all for "" and for a malformed id.

        If there are none, wait about `block_ms` milliseconds for the first one.
        """
        key = self._key(conversation_id)
        start = after if ENTRY_ID.fullmatch(after) else "0-0"
        try:
            # To Redis, BLOCK 0 means forever.
            if block_ms:
                self._client.xread({key: start}, count=1, block=min(block_ms, MAX_BLOCK_MS))
            entries: Any = self._client.xrange(key, f"({start}")
        except redis.RedisError as exc:
            raise StoreDown(f"cannot read the feed: {type(exc).__name__}") from exc
        return [(entry_id, json.loads(fields["entry"])) for entry_id, fields in entries]

    def find(self, conversation_id: str, entry_id: str) -> FeedEntry | None:
        """Return the entry with this id, None if there is none."""
        if not ENTRY_ID.fullmatch(entry_id):
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
        """Return the last `count` entries before the id `before`, oldest first.

        For "" and for a malformed id they are the newest of all.
        """
        end = f"({before}" if ENTRY_ID.fullmatch(before) else "+"
        try:
            entries: Any = self._client.xrevrange(self._key(conversation_id), end, count=count)
        except redis.RedisError as exc:
            raise StoreDown(f"cannot read the feed: {type(exc).__name__}") from exc
        return [(entry_id, json.loads(fields["entry"])) for entry_id, fields in reversed(entries)]

    def delete(self, conversation_id: str) -> None:
        """Delete the feed of a conversation."""
        try:
            self._client.delete(self._key(conversation_id))
        except redis.RedisError as exc:
            raise StoreDown(f"cannot delete the feed: {type(exc).__name__}") from exc

    def _key(self, conversation_id: str) -> str:
        return f"{self._prefix}feed:{conversation_id}"


def time_of(entry_id: str) -> float:
    """Return when an entry was appended, in Unix seconds by Redis's clock; 0.0 for the id ""."""
    if not entry_id:
        return 0.0
    milliseconds, _, _ = entry_id.partition("-")
    return int(milliseconds) / 1000


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
    """One conversation in the list of a person."""

    #: "" for the person's first conversation.
    id: str
    #: "" while it has none.
    title: str
    #: When something was last said, in Unix seconds; 0.0 if nothing was yet.
    at: float


class Chats:
    """The list of each person's conversations, shared by all processes of a bot.

    All methods raise StoreDown. `channel` is a channel's name, and `clock` returns Unix seconds.

    The hash `<prefix>console:chats:<channel>:<digest of the person>` has two fields for each
    conversation: `chat:<id>` is JSON with the `id` of its Conversation and its time, `title:<id>`
    is its title.
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
        # A conversation in which nothing was said yet is the newest one.
        return sorted(chats, key=lambda chat: chat.at or math.inf, reverse=True)

    def has(self, channel: str, user_id: str, chat_id: str) -> bool:
        """Return whether a person has this conversation. Each person has the first one, ""."""
        if not chat_id:
            return True
        key = self._key(channel, user_id)
        return bool(self._run(lambda: self._client.hexists(key, f"chat:{chat_id}")))

    def add(self, conversation: Conversation) -> None:
        """Add a conversation in which nothing was said yet."""
        self._write(conversation, at=0.0)

    def note_use(self, conversation: Conversation, title: str = "") -> None:
        """Note that something was said now.

        `title` is given only to a conversation that has none. A conversation that was deleted
        meanwhile stays deleted.
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
        pipe.expire(key, KEEP_SECONDS)
        self._run(pipe.execute)

    def _key(self, channel: str, user_id: str) -> str:
        return f"{self._prefix}console:chats:{channel}:{digest(user_id)}"

    def _run(self, command: Callable[[], Any]) -> Any:
        """Return the result of a command. Raises StoreDown."""
        try:
            return command()
        except redis.RedisError as exc:
            raise StoreDown(f"cannot look up conversations: {type(exc).__name__}") from exc


def title_of(text: str, max_chars: int = MAX_TITLE_CHARS) -> str:
    """Return the beginning of a text as a title or name: one line without invisible characters."""
    line = " ".join(without_invisible(text.replace("\n", " ")).split())
    if len(line) <= max_chars:
        return line
    return f"{line[: max_chars - 1].rstrip()}…"


#: How long a log-in is valid, in seconds.
SESSION_SECONDS = 12 * 3600
#: After how many wrong passwords an address must wait before the next attempt.
FREE_FAILURES = 3
#: After how many wrong passwords an address is locked out.
MAX_FAILURES = 10
#: How long an address is locked out and its failures are remembered, in seconds.
LOCKOUT_SECONDS = 15 * 60


@dataclass(frozen=True, slots=True)
class Failures:
    """The wrong passwords that came from an address lately."""

    count: int = 0
    #: When the last one came, in Unix seconds.
    last: float = 0.0

    def wait(self, now: float) -> float:
        """Return the seconds until this address may try again. `now` is in Unix seconds.

        After FREE_FAILURES it is one second, then twice as long each time.
        """
        if self.count < FREE_FAILURES:
            return 0.0
        pause = 2.0 ** (self.count - FREE_FAILURES)
        if self.count >= MAX_FAILURES:
            pause = LOCKOUT_SECONDS
        return max(0.0, self.last + pause - now)


class Logins:
    """Failed log-ins and ended sessions, shared by all processes of a bot.

    All methods raise StoreDown. `channel` is a channel's name, `address` an IP address, and `clock`
    returns Unix seconds.

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
        key = self._key(channel, address)
        count, last = self._run(lambda: self._client.hmget(key, ["count", "last"]))
        return Failures(int(count or 0), float(last or 0))

    def note_failure(self, channel: str, address: str) -> Failures:
        """Count another wrong password, and return all of the address."""
        key = self._key(channel, address)
        now = self._clock()
        pipe = self._client.pipeline(transaction=True)
        pipe.hincrby(key, "count", 1)
        pipe.hset(key, "last", str(now))
        pipe.expire(key, LOCKOUT_SECONDS)
        count, *_ = self._run(pipe.execute)
        return Failures(int(count), now)

    def note_success(self, channel: str, address: str) -> None:
        """Delete the wrong passwords of an address."""
        key = self._key(channel, address)
        self._run(lambda: self._client.delete(key))

    def end(self, session: str) -> None:
        """End a session before it expires."""
        key = self._ended_key(session)
        self._run(lambda: self._client.set(key, "1", ex=SESSION_SECONDS))

    def is_ended(self, session: str) -> bool:
        """Return whether a session was ended."""
        key = self._ended_key(session)
        return bool(self._run(lambda: self._client.exists(key)))

    def _key(self, channel: str, address: str) -> str:
        hashed = hashlib.sha256(network(address).encode()).hexdigest()[:20]
        return f"{self._prefix}console:failed:{channel}:{hashed}"

    def _ended_key(self, session: str) -> str:
        return f"{self._prefix}console:ended:{session}"

    def _run(self, command: Callable[[], Any]) -> Any:
        """Return the result of a command. Raises StoreDown."""
        try:
            return command()
        except redis.RedisError as exc:
            raise StoreDown(f"cannot look up log-ins: {type(exc).__name__}") from exc


def network(address: str) -> str:
    """Return what counts as one address: an IPv4 address, or the /64 network of an IPv6 customer.

    A text that is no IP address is returned unchanged.
    """
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped:
        return str(ip.ipv4_mapped)
    if ip.version == 6:
        return str(ipaddress.ip_network((ip, 64), strict=False))
    return str(ip)
