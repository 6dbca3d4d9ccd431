"""Feed: the entries that the page of a conversation shows, in order."""

from __future__ import annotations

import json
import re
from typing import Any, Protocol

import redis

from sayso.channels.base import StorageDown

#: About how many entries of one conversation are stored.
KEPT_ENTRIES = 200
#: How long an idle conversation is stored, in seconds.
KEPT_SECONDS = 7 * 24 * 3600
#: The longest one Redis read may block, in milliseconds: well under redis-py's socket timeout of 5 s.
MAX_BLOCK_MS = 2000
#: The ids of entries. Browsers send some back.
MESSAGE_ID = re.compile(r"[0-9]{1,18}-[0-9]{1,18}")
#: The type of an entry that replaces all entries before it.
CLEAR = "clear"

FeedEntry = dict[str, Any]


class FeedError(StorageDown):
    """Raised when the feed cannot be reached."""


class Feed(Protocol):
    """The entries of each conversation. Ids are `<unix ms>-<n>` and only grow."""

    def append(self, conversation_id: str, entry: FeedEntry, replaces: str = "") -> str:
        """Add an entry, delete the entry `replaces`, and return the new id. Raises FeedError."""

    def read(self, conversation_id: str, after: str, block_ms: int) -> list[tuple[str, FeedEntry]]:
        """Return the entries after an id, all for "". Wait about `block_ms` for the first one. Raises FeedError."""


class RedisFeed:
    """A feed in Redis Streams, shared by all processes. Needs Redis 6.2 or newer."""

    def __init__(self, client: redis.Redis, prefix: str = "sayso:") -> None:
        self._client = client
        self._prefix = prefix

    def append(self, conversation_id: str, entry: FeedEntry, replaces: str = "") -> str:
        """Add an entry, delete the entry `replaces`, and return the new id. Raises FeedError."""
        key = self._key(conversation_id)
        pipe = self._client.pipeline(transaction=True)  # so that no stream is left without an expiry
        if entry.get("type") == CLEAR:
            pipe.xtrim(key, maxlen=0, approximate=False)  # after DEL, ids could start again
        pipe.xadd(key, {"entry": json.dumps(entry)}, maxlen=KEPT_ENTRIES, approximate=True)
        if MESSAGE_ID.fullmatch(replaces):
            pipe.xdel(key, replaces)
        pipe.expire(key, KEPT_SECONDS)
        try:
            return next(_text(result) for result in pipe.execute() if not isinstance(result, int))
        except redis.RedisError as exc:
            raise FeedError(f"cannot append to the feed: {type(exc).__name__}") from exc

    def read(self, conversation_id: str, after: str, block_ms: int) -> list[tuple[str, FeedEntry]]:
        """Return the entries after an id, all for "". Wait about `block_ms` for the first one. Raises FeedError."""
        block = min(block_ms, MAX_BLOCK_MS) or None  # to Redis, BLOCK 0 means forever
        start = after if MESSAGE_ID.fullmatch(after) else "0-0"  # a browser may send anything
        try:
            answer: Any = self._client.xread({self._key(conversation_id): start}, block=block)
        except redis.RedisError as exc:
            raise FeedError(f"cannot read the feed: {type(exc).__name__}") from exc
        # Each entry has one field, as text or bytes depending on the client.
        entries = [(entry_id, *fields.values()) for entry_id, fields in _only_stream(answer)]
        return [(_text(entry_id), json.loads(text)) for entry_id, text in entries]

    def _key(self, conversation_id: str) -> str:
        return f"{self._prefix}feed:{conversation_id}"


def time_of(entry_id: str) -> float:
    """Return when an entry was added, in Unix seconds by the feed's clock; 0.0 for no entry."""
    return int(entry_id.partition("-")[0]) / 1000 if entry_id else 0.0


def _only_stream(answer: Any) -> list[Any]:
    """Return the entries of the stream that was read. redis-py returns a list of pairs or a dict, batched or not."""
    if not answer:
        return []
    items = next(iter(answer.values())) if isinstance(answer, dict) else answer[0][1]
    batches = [item if isinstance(item, list) else [item] for item in items]
    return [entry for batch in batches for entry in batch]


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
