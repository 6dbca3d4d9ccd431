"""Erasure: remove what Redis stores of one person on one channel.

FATES says for each kind of key what becomes of it, and so also what stays. Redis also writes each
command into its append-only file, so that file is written anew afterwards (`rewrite_file`).
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

from sayso.channels.registry import kept_platform_keys
from sayso.infra.redis.client import replicas_of, servers_of
from sayso.workers.approval_erasure import UNDELIVERED_LISTS, ApprovalErasure
from sayso.workers.queue_entries import InboxEntry

#: How many seconds to wait for a turn under work.
BUSY_SECONDS = 30.0
#: How many seconds to wait until a ledger has the last audit entries, or a replica the last writes.
DRAIN_SECONDS = 3.0
#: How many seconds to wait for a rewrite of the append-only file.
REWRITE_SECONDS = 120.0
#: How often the keys are erased at most. They are erased again if a worker took a turn of one of
#: the person's conversations meanwhile.
MAX_ROUNDS = 10
#: What becomes of the keys of a kind:
#:
#: * `person`: a key is of one person in one conversation. Its name ends in both, and it is deleted;
#: * `owner`: a key is of the person whom its field `user` names, and it is deleted;
#: * `conversation`: a key holds text of a conversation or tells of its single messages. It is
#:   deleted if the conversation is the person's alone. From a shared conversation only the person's
#:   waiting turns and timers are removed; replies stay, because all its people were told them;
#: * `entries`: a key is a list for all conversations of a shard. The entries of a conversation that
#:   is the person's alone are removed from it;
#: * `kept`: a key holds hashes, numbers or settings, or ends within hours.
Fate = Literal["person", "owner", "conversation", "entries", "kept"]
#: Kinds of keys whose names end in a conversation and a person in it.
_OF_PERSON = (
    "history",
    "open_action",
    "started_actions",
    "received_requests",
    "question_place",
    "standing",
)
#: Kinds of keys with text of one conversation, whose id stands at their end.
_OF_CONVERSATION = ("inbox", "outbox", "journal", "timers", "timer", "delivery", "turn_records")
#: What becomes of each kind of key that docs/reference/redis.md lists. The methods of Erasure do
#: it, each for its kinds. A test fails for a new kind that has no row here, and for a key that does
#: not end as its row says.
FATES: Mapping[str, Fate] = {
    **dict.fromkeys(_OF_PERSON, "person"),
    # A pending action.
    "pending": "owner",
    **dict.fromkeys(_OF_CONVERSATION, "conversation"),
    # Their names have more than the conversation, or no shard.
    **dict.fromkeys(("content", "feed", "note"), "conversation"),
    **dict.fromkeys(UNDELIVERED_LISTS, "entries"),
    # Numbers and times of conversations, actions and shards, without text.
    **dict.fromkeys(
        (
            "waiting_for_others",
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
    # What a shard remembers so that a loss of data is noticed and reported: numbers, ids, hashes.
    **dict.fromkeys(
        (
            "write_counter",
            "identities",
            "halted",
            "floor",
            "resumed",
            "closed_questions",
            "loss",
        ),
        "kept",
    ),
    # Over within a minute, an hour or `ttl`; sessions belong to the code that stores them.
    **dict.fromkeys(
        ("decided", "stop", "notified", "turns", "waiting", "cache", "session"), "kept"
    ),
    # What a platform stores for itself. Of these keys, the console's list of the person's
    # conversations is deleted (`_lists_of`).
    **dict.fromkeys(kept_platform_keys(), "kept"),
    # The audit log is erased in its file; `sayso people forget` deletes a decision about a person.
    **dict.fromkeys(("audit", "auditor", "people"), "kept"),
    # The ids of a person are forgotten by Identities, which finds them, and their links and absence
    # by the stores of both: see `erase_person`.
    **dict.fromkeys(("ids", "links", "absences"), "kept"),
    # Processes.
    **dict.fromkeys(
        ("workers", "ingress", "reaper", "leader", "deployment", "jobs", "job", "writable"), "kept"
    ),
}
#: A key of one person in one conversation.
_SCOPED = re.compile(
    rf"(?P<shard>\{{\d+\}}):(?:{'|'.join(_OF_PERSON)}):(?P<conversation>.+):(?P<user>[0-9a-f]{{20}})"
)
#: The name of a timer about an open question: what it does, and the person who was asked.
_QUESTION_TIMER = re.compile(r"(?:alarm|end):(?P<user>[0-9a-f]{20})")


class ErasureBusy(Exception):
    """Raised when a worker stays at work on a turn in one of the person's conversations."""


@dataclass(frozen=True, slots=True)
class ErasedPerson:
    """The person to erase, on one channel."""

    channel: str
    #: The scope ids (`Scope.id`) of all their user ids. A scope id is a hash of the user id, so it
    #: does not name the channel.
    users: frozenset[str]
    #: The ids of conversations that are known to be theirs alone.
    conversations: frozenset[str] = frozenset()


@dataclass(slots=True)
class Erasure:
    """Erases people from the Redis of one deployment. Lives as long as a command."""

    #: A client of Redis that answers in texts.
    client: Any
    #: The beginning of the bot's keys.
    prefix: str
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic

    def erase(self, person: ErasedPerson) -> int:
        """Remove what is stored of a person. Return how many keys, and entries of kept keys.

        Raises ErasureBusy and redis.RedisError.
        """
        # A worker moves audit entries into the ledger together with the records of their actions,
        # and the caller then marks these as erased there. If the entries are not moved in time, the
        # erasure goes on: an entry names no person, and a worker that moves it later finds no
        # record any more.
        self._until(lambda: not any(self._keys("{*}:audit")), DRAIN_SECONDS)
        conversations = person.conversations | self._listed_conversations(person)
        person = replace(person, conversations=conversations)
        count = 0
        for _ in range(MAX_ROUNDS):
            shared, alone = self._conversations(person)
            known = {**shared, **alone}
            # A worker that takes a lease from here on may write a history back: then all is erased
            # again. The numbers are read before the wait, so that no lease is missed that begins
            # between the wait and the first deletion.
            fencing_numbers = self._fencing_numbers(known)
            if not self._until(partial(self._are_idle, known), BUSY_SECONDS):
                break

            count += self._erase_once(person, shared, alone)
            if fencing_numbers == self._fencing_numbers(known):
                return count
        raise ErasureBusy(
            "a turn of this person is still being worked on: try again when it was answered"
        )

    def _erase_once(
        self, person: ErasedPerson, shared: Mapping[str, str], alone: Mapping[str, str]
    ) -> int:
        """Remove what is stored of a person now. Return how many keys, and entries of kept keys.

        `shared`, `alone`: the shards of the conversations that the person shares with others, and
        of those that are theirs alone.
        """
        count = 0
        for conversation, shard in alone.items():
            count += self._erase_conversation(conversation, shard)
        for conversation, shard in shared.items():
            count += self._erase_part(person, conversation, shard)

        for kind in _OF_PERSON:
            for user in person.users:
                keys = self._keys(f"{{*}}:{kind}:{person.channel}:*:{user}")
                count += self._delete(*keys)
        count += self._delete(*self._lists_of(person))

        # The records of others name the person's requests and votes, so these are read before.
        of_others = ApprovalErasure(
            self.client,
            self.prefix,
            channel=person.channel,
            users=person.users,
            conversations={*alone, *person.conversations},
        )
        count += of_others.erase()
        count += self._delete_actions(self._actions_of(person))
        return count

    def _delete_actions(self, keys: Collection[str]) -> int:
        """Delete actions, also from the lists of those that wait for other people."""
        for key in keys:
            before, _, action_id = key.rpartition(":pending:")
            self.client.zrem(f"{before}:waiting_for_others", action_id)
        return self._delete(*keys)

    def _actions_of(self, person: ErasedPerson) -> list[str]:
        """Return the keys of the person's actions on the channel.

        Actions of code that uses an agent without a channel are among them.
        """
        actions = []
        for key in self._keys("{*}:pending:*"):
            user, record = self.client.hmget(key, "user", "record")
            if user not in person.users:
                continue
            # The same user id on another channel may be another person.
            channel = _fields_of(record or "").get("channel_id")
            if channel in (None, person.channel):
                actions.append(key)
        return actions

    def rewrite_file(self) -> bool:
        """Have Redis and its replicas write their append-only files anew.

        Return whether all did so in time. Raises redis.RedisError.
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
        except (RedisError, KeyError):
            # It does not answer from here, or has become a primary.
            return False

    def _rewrite(self, server: Redis) -> bool:
        """Have a server write its file anew. Return whether it did so in time, without an error."""

        def is_over() -> bool:
            state = server.info("persistence")
            return not (state["aof_rewrite_in_progress"] or state["aof_rewrite_scheduled"])

        if not server.info("persistence")["aof_enabled"]:
            return True
        # A rewrite that began before the erasure would still write what is erased.
        if not self._until(is_over, REWRITE_SECONDS):
            return False
        server.bgrewriteaof()
        if not self._until(is_over, REWRITE_SECONDS):
            return False
        # A rewrite fails on a full disk, for example.
        return bool(server.info("persistence")["aof_last_bgrewrite_status"] == "ok")

    def _until(self, is_true: Callable[[], bool], seconds: float) -> bool:
        """Wait until a condition is true, for this many seconds. Return whether it is true."""
        deadline = self.clock() + seconds
        while True:
            if is_true():
                return True
            if self.clock() >= deadline:
                return False
            self.sleep(0.05)

    def _fencing_numbers(self, conversations: Mapping[str, str]) -> list[Any]:
        """Return the fencing number of each conversation. Each new lease has another one."""
        return [self.client.hget(self._lease_key(*each), "epoch") for each in conversations.items()]

    def _conversations(self, person: ErasedPerson) -> tuple[dict[str, str], dict[str, str]]:
        """Return the conversations that the person shares, and those that are theirs alone.

        Each with its shard, as it stands in the names of keys. A person takes part in a
        conversation where they have a key of a kind in _OF_PERSON, or where a turn or a timer of
        theirs waits: their first turn has no history before it is answered.
        """
        users = defaultdict[str, set[str]](set)
        shards = dict[str, str]()
        for key in self._keys(f"{{*}}:*:{person.channel}:*"):
            name = key.removeprefix(self.prefix)
            match = _SCOPED.fullmatch(name)
            if match:
                users[match["conversation"]].add(match["user"])
                shards[match["conversation"]] = match["shard"]
                continue

            # A key of a whole conversation: shard, kind, and the id, which is "channel:digest".
            parts = name.split(":")
            conversation = ":".join(parts[2:4])
            waiting_users = self._waiting_users(key, kind=parts[1])
            users[conversation] |= waiting_users
            if waiting_users or conversation in person.conversations:
                shards[conversation] = parts[0]

        shared = dict[str, str]()
        alone = dict[str, str]()
        for conversation, shard in shards.items():
            takes_part = bool(users[conversation] & person.users)
            if not (takes_part or conversation in person.conversations):
                continue
            if users[conversation] <= person.users:
                alone[conversation] = shard
            else:
                shared[conversation] = shard
        return shared, alone

    def _waiting_users(self, key: str, *, kind: str) -> set[str]:
        """Return the scope ids of the people whose turns or timers wait in a key.

        A key of another `kind` than "inbox" and "timer" has none.
        """
        if kind == "inbox":
            users = {_user_of_turn(entry) for entry in self.client.lrange(key, 0, -1)}
        elif kind == "timer":
            users = {_user_of_timer(*each) for each in self.client.hgetall(key).items()}
        else:
            users = set()
        return users - {""}

    def _lists_of(self, person: ErasedPerson) -> list[str]:
        """Return the keys in which the console lists the person's conversations."""
        return [f"{self.prefix}console:chats:{person.channel}:{user}" for user in person.users]

    def _listed_conversations(self, person: ErasedPerson) -> frozenset[str]:
        """Return the conversations that the console lists for the person.

        They are the person's alone.
        """
        conversations = set[str]()
        for key in self._lists_of(person):
            for field, row in self.client.hgetall(key).items():
                if field.startswith("chat:"):
                    conversations.add(json.loads(row)["conversation"])
        return frozenset(conversations)

    def _are_idle(self, conversations: Mapping[str, str]) -> bool:
        """Return whether no worker holds the lease of one of the conversations."""
        ends = [
            float(self.client.hget(self._lease_key(*each), "lease_until") or 0)
            for each in conversations.items()
        ]
        seconds, micros = self.client.time()
        now_ms = seconds * 1000 + micros / 1000
        return all(end <= now_ms for end in ends)

    def _lease_key(self, conversation: str, shard: str) -> str:
        return f"{self.prefix}{shard}:conversation:{conversation}"

    def _erase_conversation(self, conversation: str, shard: str) -> int:
        """Remove the text of a conversation that is the person's alone.

        Return how many keys, and entries of lists.
        """

        def is_theirs(entry: str) -> bool:
            delivery_id = str(_fields_of(entry).get("id", ""))
            return delivery_id.startswith(f"{conversation}#")

        keys = [f"{self.prefix}{shard}:{kind}:{conversation}" for kind in _OF_CONVERSATION]
        keys.append(f"{self.prefix}feed:{conversation}")
        # The names of notes are the adapters': a conversation stands anywhere in them, such as in
        # note:slack:thread:<conversation> and note:draft:<conversation>#<turn>.
        keys += self._keys(f"note:*{conversation}*")
        keys += self._keys(f"{shard}:content:{conversation}:*")
        count = self._delete(*keys)
        for kind in UNDELIVERED_LISTS:
            count += self._delete_entries(f"{self.prefix}{shard}:{kind}", is_theirs)
        return count

    def _erase_part(self, person: ErasedPerson, conversation: str, shard: str) -> int:
        """Remove the person's turns and timers that wait in a shared conversation.

        Return how many, with the journal of a removed turn.
        """

        def key_of(kind: str) -> str:
            return f"{self.prefix}{shard}:{kind}:{conversation}"

        # The journal is that of the first turn.
        inbox = key_of("inbox")
        journal = key_of("journal")
        count = 0
        if _user_of_turn(self.client.lindex(inbox, 0) or "") in person.users:
            count += self._delete(journal)
        count += self._delete_entries(inbox, lambda entry: _user_of_turn(entry) in person.users)

        timer = key_of("timer")
        timers = key_of("timers")
        for name, timer_entry in self.client.hgetall(timer).items():
            if _user_of_timer(name, timer_entry) in person.users:
                self.client.hdel(timer, name)
                count += int(self.client.zrem(timers, name))
        return count

    def _delete_entries(self, key: str, is_theirs: Callable[[str], bool]) -> int:
        """Remove the entries of a list for which `is_theirs` is true. Return how many."""
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


def _user_of_turn(entry: str) -> str:
    """Return the scope id of the person who sent a waiting turn, "" for a text that is no entry."""
    try:
        return InboxEntry.parse(entry).user
    except ValueError:
        return ""


def _user_of_timer(name: str, entry: str) -> str:
    """Return the scope id of the person whom a timer belongs to, "" if it names none."""
    fields = _fields_of(entry)
    # A timer of an action that others decide brings a turn of the user who asked.
    user = fields.get("user") or fields.get("turn_user")
    if user:
        return str(user)
    # The name of a timer about a question says whose question it is
    # (`set_question_timer` in pending/lua/shared/questions.lua).
    about_question = _QUESTION_TIMER.fullmatch(name)
    if about_question:
        return about_question["user"]
    return ""


def _fields_of(text: str) -> Mapping[str, Any]:
    """Return the fields of a JSON object, none for a text that is not one.

    A damaged entry must not keep a person from being erased.
    """
    try:
        fields = json.loads(text)
    except ValueError:
        return {}
    if isinstance(fields, dict):
        return fields
    return {}
