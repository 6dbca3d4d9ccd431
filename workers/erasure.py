"""Erasure: remove everything that Redis stores of one person on one channel,
also from its append-only file.
"""

from __future__ import annotations

import json
import re
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from redis import Redis
from redis.exceptions import RedisError

from sayso.channels.registry import platform_keys
from sayso.infra.redis.client import replicas_of, servers_of
from sayso.workers.entries import InboxEntry

#: Seconds to wait for a turn under work, for audit entries that no ledger has yet,
#: and for a rewrite of the file.
BUSY_SECONDS = 30.0
DRAIN_SECONDS = 3.0
REWRITE_SECONDS = 120.0
#: How often the keys are erased again because a worker took a turn of the person meanwhile.
ROUNDS = 10
#: What becomes of the keys of a kind. `person`: their names end in the person, and they are
#: deleted. `conversation`: they hold text of a conversation or tell of its single messages, and are
#: deleted if the conversation is the person's alone. `entries`: what is the person's is removed.
#: `kept`: they hold hashes, numbers or settings, or end within hours.
Fate = Literal["person", "conversation", "entries", "kept"]
#: The kinds of keys, as docs/reference/redis.md lists them:
#: a test holds that each new one is decided about here.
FATES: Mapping[str, Fate] = {
    **dict.fromkeys(("history", "open_action", "started_actions", "question_place"), "person"),
    **dict.fromkeys(
        ("inbox", "outbox", "journal", "timers", "timer", "delivery", "turn_records"),
        "conversation",
    ),
    **dict.fromkeys(("content", "feed", "note"), "conversation"),
    **dict.fromkeys(("pending", "dead", "failed", "ambiguous"), "entries"),
    # Numbers and times of conversations and shards, without text.
    **dict.fromkeys(
        (
            "conversation",
            "due",
            "held_conversations",
            "forwarded",
            "event",
            "rate_limit",
            "budget",
            "alert",
            "paid",
        ),
        "kept",
    ),
    **dict.fromkeys(
        (
            "write_counter",
            "identities",
            "halted",
            "floor",
            "resumed",
            "closed_questions",
            "loss",
            "restoring",
        ),
        "kept",
    ),
    # Over within a minute, an hour or `ttl`; sessions belong to the code that stores them.
    **dict.fromkeys(("decided", "stop", "told", "turns", "waiting", "cache", "session"), "kept"),
    # What a platform stores for itself.
    **dict.fromkeys(platform_keys(), "kept"),
    # The audit log is erased in its file; `sayso people forget` deletes a decision about a person.
    **dict.fromkeys(("audit", "auditor", "people"), "kept"),
    # The ids of a person are forgotten by Identities, which finds them.
    "ids": "kept",
    # Processes.
    **dict.fromkeys(
        ("workers", "ingress", "reaper", "leader", "deployment", "jobs", "job", "writable"), "kept"
    ),
}
_OF_PERSON = tuple(kind for kind, fate in FATES.items() if fate == "person")
#: Keys of a conversation, each with its id at the end.
_TEXT_KEYS = ("inbox", "outbox", "journal", "timers", "timer", "delivery", "turn_records")
#: Lists of undelivered replies, for all conversations of a shard.
_UNDELIVERED = ("dead", "failed", "ambiguous")
_SCOPED = re.compile(
    rf"(?P<shard>\{{\d+\}}):(?:{'|'.join(_OF_PERSON)}):(?P<conversation>.+):(?P<user>[0-9a-f]{{20}})"
)


class ErasureBusy(Exception):
    """Raised when a worker stays at work on a turn of the person."""


@dataclass(frozen=True, slots=True)
class ErasedPerson:
    """The person to erase: the scope ids of their user ids,
    and conversations known to be theirs alone.
    """

    channel: str
    users: frozenset[str]
    conversations: frozenset[str] = frozenset()


@dataclass(slots=True)
class Erasure:
    """Erases people from the Redis of one deployment. Lives as long as a command."""

    client: Any  # a Redis that decodes its answers
    prefix: str
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic

    def erase(self, person: ErasedPerson) -> int:
        """Remove what is stored of a person; return how many entries.

        Raises ErasureBusy and redis.RedisError.
        """
        # The ledger copies them first.
        self._until(lambda: not any(self._keys("{*}:audit")), DRAIN_SECONDS)
        conversations = person.conversations | self._listed_conversations(person)
        person = replace(person, conversations=conversations)
        count = 0
        for _ in range(ROUNDS):
            shared, alone = self._conversations(person)
            known = {**shared, **alone}
            if not self._until(partial(self._are_idle, known), BUSY_SECONDS):
                break
            leases = self._leases(known)
            count += sum(self._erase_conversation(*each) for each in alone.items())
            count += sum(self._erase_part(person, *each) for each in shared.items())
            for kind in _OF_PERSON:
                scopes = (f"{{*}}:{kind}:{person.channel}:*:{user}" for user in person.users)
                count += sum(self._delete(*self._keys(scope)) for scope in scopes)
            count += self._delete(*self._lists_of(person))
            actions = [
                key for key in self._keys("{*}:pending:*") if self.client.type(key) == "hash"
            ]
            count += self._delete(
                *(key for key in actions if self.client.hget(key, "user") in person.users)
            )
            if leases == self._leases(known):
                return count
        raise ErasureBusy(
            "a turn of this person is still being worked on: try again when it was answered"
        )

    def rewrite_file(self) -> bool:
        """Have Redis and its replicas write their append-only files anew;
        return whether all did so in time.
        """
        written = []
        for server in servers_of(self.client):
            written.append(self._rewrite(server))
            offset = server.info("replication").get("master_repl_offset", 0)
            written += [self._rewrite_replica(replica, offset) for replica in replicas_of(server)]
        return all(written)

    def _rewrite_replica(self, replica: Redis, offset: int) -> bool:
        """Have a replica write its file anew once it has what its primary had at an offset."""
        try:
            follows = self._until(
                lambda: replica.info("replication")["slave_repl_offset"] >= offset, DRAIN_SECONDS
            )
            return follows and self._rewrite(replica)
        except (RedisError, KeyError):  # it does not answer from here, or has become a primary
            return False

    def _rewrite(self, server: Redis) -> bool:
        def is_written() -> bool:
            state = server.info("persistence")
            return not (state["aof_rewrite_in_progress"] or state["aof_rewrite_scheduled"])

        if not server.info("persistence")["aof_enabled"]:
            return True
        # A rewrite that began before still holds what is erased now.
        self._until(is_written, REWRITE_SECONDS)
        server.bgrewriteaof()
        return self._until(is_written, REWRITE_SECONDS)

    def _until(self, is_true: Callable[[], bool], seconds: float) -> bool:
        deadline = self.clock() + seconds
        while not (answer := is_true()) and self.clock() < deadline:
            self.sleep(0.05)
        return answer

    def _leases(self, conversations: Mapping[str, str]) -> list[Any]:
        """Return the fencing epochs of the conversations.

        A lease taken meanwhile may have written a history back.
        """
        return [self.client.hget(self._lease_key(*each), "epoch") for each in conversations.items()]

    def _conversations(self, person: ErasedPerson) -> tuple[dict[str, str], dict[str, str]]:
        """Return the shards of the conversations that the person shares,
        and of those that are theirs alone.
        """
        users = defaultdict[str, set[str]](set)
        shards = dict[str, str]()
        for key in self._keys(f"{{*}}:*:{person.channel}:*"):
            name = key.removeprefix(self.prefix)
            if match := _SCOPED.fullmatch(name):
                users[match["conversation"]].add(match["user"])
                shards[match["conversation"]] = match["shard"]
            elif (conversation := ":".join(name.split(":")[2:4])) in person.conversations:
                shards[conversation] = name.split(":")[0]
        theirs = {
            each for each in shards if users[each] & person.users or each in person.conversations
        }
        alone = {each for each in theirs if users[each] <= person.users}
        return {each: shards[each] for each in theirs - alone}, {
            each: shards[each] for each in alone
        }

    def _lists_of(self, person: ErasedPerson) -> list[str]:
        """Return the keys in which a web page lists the person's conversations."""
        return [f"{self.prefix}console:chats:{person.channel}:{user}" for user in person.users]

    def _listed_conversations(self, person: ErasedPerson) -> frozenset[str]:
        """Return the conversations that a web page lists for the person.

        They are the person's alone.
        """
        found = set[str]()
        for key in self._lists_of(person):
            for field, row in self.client.hgetall(key).items():
                if field.startswith("chat:"):
                    found.add(json.loads(row)["conversation"])
        return frozenset(found)

    def _are_idle(self, conversations: Mapping[str, str]) -> bool:
        """Return whether no worker holds the lease of one of the conversations."""
        ends = [
            float(self.client.hget(self._lease_key(*each), "lease_until") or 0)
            for each in conversations.items()
        ]
        seconds, micros = self.client.time()
        return all(end <= seconds * 1000 + micros / 1000 for end in ends)

    def _lease_key(self, conversation: str, shard: str) -> str:
        return f"{self.prefix}{shard}:conversation:{conversation}"

    def _erase_conversation(self, conversation: str, shard: str) -> int:
        keys = [f"{self.prefix}{shard}:{kind}:{conversation}" for kind in _TEXT_KEYS]
        keys += [f"{self.prefix}feed:{conversation}", *self._keys(f"note:*{conversation}*")]
        keys += self._keys(f"{shard}:content:{conversation}:*")
        for kind in _UNDELIVERED:
            key = f"{self.prefix}{shard}:{kind}"
            self._drop_entries(
                key,
                lambda entry: str(json.loads(entry).get("id", "")).startswith(f"{conversation}#"),
            )
        return self._delete(*keys)

    def _erase_part(self, person: ErasedPerson, conversation: str, shard: str) -> int:
        """Remove what is the person's in a shared conversation: their waiting turns,
        and their timers.
        """
        inbox, journal = (
            f"{self.prefix}{shard}:{kind}:{conversation}" for kind in ("inbox", "journal")
        )
        if _user_of(self.client.lindex(inbox, 0) or "") in person.users:
            self._delete(journal)
        count = self._drop_entries(inbox, lambda entry: _user_of(entry) in person.users)
        timer, timers = (
            f"{self.prefix}{shard}:{kind}:{conversation}" for kind in ("timer", "timers")
        )
        for name, timer_entry in self.client.hgetall(timer).items():
            if json.loads(timer_entry).get("user") in person.users:
                self.client.hdel(timer, name)
                count += int(self.client.zrem(timers, name))
        return count

    def _drop_entries(self, key: str, is_theirs: Callable[[str], bool]) -> int:
        return sum(
            int(self.client.lrem(key, 0, entry))
            for entry in self.client.lrange(key, 0, -1)
            if is_theirs(entry)
        )

    def _keys(self, pattern: str) -> Collection[str]:
        return list(self.client.scan_iter(f"{self.prefix}{pattern}", count=1000))

    def _delete(self, *keys: str) -> int:
        if keys:
            return int(self.client.delete(*keys))
        return 0


def _user_of(entry: str) -> str:
    """Return the scope of the person who sent a waiting turn, "" for an entry that is damaged."""
    try:
        return InboxEntry.parse(entry).user
    except ValueError:
        return ""
