"""People of a channel: those that operators approved or blocked,
and unknown senders who wait for approval.
"""

from __future__ import annotations

import hmac
import json
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pydantic import TypeAdapter
from redis import Redis

from sayso.channels.types import Conversation, digest
from sayso.infra.records import check_version, versioned
from sayso.infra.redis.client import PREFIX
from sayso.infra.redis.connections import Connections

#: The letters of codes: none is easily mistaken for another, and without vowels they form no words.
#: Ids of platforms contain digits, so no id is a code.
LETTERS = "BCDFGHJKMNPQRSTVWXZ"
CODE_LENGTH = 8
#: Seconds for which a code is valid, and within which an unknown sender is told once.
WAIT_SECONDS = 3600
#: Unknown senders of one channel who may wait at once; beyond that none gets a code.
MAX_WAITING = 100
#: Ids that may be approved or blocked on one channel.
MAX_PEOPLE = 10_000


#: What an operator decided about a person; "" for nothing.
OperatorDecision = Literal["approved", "blocked", ""]


class UnknownPerson(Exception):
    """Raised when an operator names an unknown or expired code, or a person that is not stored."""


class TooManyPeople(Exception):
    """Raised when a channel has the maximum of approved and blocked ids."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """An unknown sender with a code: their ids, the user id first, the name on their platform,
    and where to reply.
    """

    ids: tuple[str, ...]
    name: str
    conversation: Conversation
    language: str
    code: str = ""
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class ListedPerson:
    """A person that an operator approved or blocked, at Unix seconds `at`."""

    ids: tuple[str, ...]
    state: Literal["approved", "blocked"]
    name: str = ""
    at: float = 0.0


_WAITING = TypeAdapter(Waiting)
_PERSON = TypeAdapter(ListedPerson)


def new_code() -> str:
    """Return a code that cannot be guessed."""
    return "".join(secrets.choice(LETTERS) for _ in range(CODE_LENGTH))


def looks_like_a_code(word: str) -> bool:
    """Return whether a word can only be a code."""
    return len(word) == CODE_LENGTH and set(word.upper()) <= set(LETTERS)


class Register:
    """Applies an operator's decisions about people,
    who are named by their code or one of their ids.
    """

    def __init__(self, people: RedisPeople) -> None:
        self._people = people

    def approve(self, channel: str, who: str) -> Waiting | None:
        """Approve a person.

        Return who waited, so that they can be told. Raises UnknownPerson, TooManyPeople.
        """
        return self._decide(channel, who, "approved")

    def block(self, channel: str, who: str) -> None:
        """Block a person. Raises UnknownPerson, TooManyPeople."""
        self._decide(channel, who, "blocked")

    def forget(self, channel: str, who: str) -> None:
        """Delete everything about a person. Raises UnknownPerson."""
        waiting, known = self._find(channel, who)
        if not (waiting or known):
            raise UnknownPerson(f"nothing is kept of {who!r} on {channel}")
        self._people.drop(channel, _ids(waiting, known))

    def _decide(
        self, channel: str, who: str, state: Literal["approved", "blocked"]
    ) -> Waiting | None:
        waiting, known = self._find(channel, who)
        if looks_like_a_code(who) and not (waiting or known):
            raise UnknownPerson(
                f"nobody waits on {channel} with the code {who!r}: a code is good for an hour"
            )
        if waiting:
            name = waiting.name
        elif known:
            name = known[0].name
        else:
            name = ""
        self._people.keep(channel, ListedPerson(_ids(waiting, known) or (who,), state, name))
        return waiting

    def _find(self, channel: str, who: str) -> tuple[Waiting | None, list[ListedPerson]]:
        """Return who waits with this code or id, and all listed people that share one of their ids."""
        code = who.upper().encode("utf-8", "replace")
        waiting = None
        for each in self._people.waiting(channel):  # all are compared, in constant time
            if hmac.compare_digest(each.code.encode(), code) or who in each.ids:
                waiting = each
        mine = {who, *(waiting.ids if waiting else ())}
        return waiting, [
            person for person in self._people.people(channel) if not mine.isdisjoint(person.ids)
        ]


def _ids(waiting: Waiting | None, known: Iterable[ListedPerson]) -> tuple[str, ...]:
    """Return all ids of a person: those they wait with, and those of earlier decisions."""
    ids = [*(waiting.ids if waiting else ()), *(name for person in known for name in person.ids)]
    return tuple(dict.fromkeys(ids))


#: Return the code of a sender who waits already; else store a new one, while there is room. Expired
#: codes are deleted. KEYS: those who wait. ARGV: id, code, record, most, seconds. An entry is: Unix
#: seconds, code, record.
_CODE = """
local now, count, mine = tonumber(redis.call('TIME')[1]), 0, nil
local every = redis.call('HGETALL', KEYS[1])
for i = 1, #every, 2 do
  local at, code = string.match(every[i + 1], '^(%d+) (%S+) ')
  if not at or tonumber(at) + ARGV[5] <= now then
    redis.call('HDEL', KEYS[1], every[i])
  else
    count = count + 1
    if every[i] == ARGV[1] then mine = code end
  end
end
if mine then return mine end
if count >= tonumber(ARGV[4]) then return '' end
redis.call('HSET', KEYS[1], ARGV[1], now .. ' ' .. ARGV[2] .. ' ' .. ARGV[3])
redis.call('EXPIRE', KEYS[1], ARGV[5])
return ARGV[2]
"""

#: Store a decision and its time under each id of a person. KEYS: people. ARGV: most; state,
#: name and ids as JSON; ids.
_KEEP = """
local new = 0
for i = 3, #ARGV do new = new + 1 - redis.call('HEXISTS', KEYS[1], ARGV[i]) end
if redis.call('HLEN', KEYS[1]) + new > tonumber(ARGV[1]) then return 'full' end
local what = '{"at": ' .. redis.call('TIME')[1] .. ', ' .. string.sub(ARGV[2], 2)
for i = 3, #ARGV do redis.call('HSET', KEYS[1], ARGV[i], what) end
return 'ok'
"""


class RedisPeople:
    """Operators' decisions, stored until they are deleted, and unknown senders, stored for an hour.

    Ids are in the form of the channel's rules. All methods raise redis.RedisError.
    """

    def __init__(
        self, client: Redis, *, prefix: str = PREFIX, new_code: Callable[[], str] = new_code
    ) -> None:
        self._connections = Connections.of(client)
        self._prefix = prefix
        self._new_code = new_code

    def decision(self, channel: str, ids: Sequence[str]) -> OperatorDecision:
        """Return what an operator decided about a person with these ids: blocked,
        if any of the ids is.
        """
        if ids:
            entries = self._connections.ask("HMGET", self._key("people", channel), *ids)
        else:
            entries = []
        states = {_PERSON.validate_json(check_version(entry)).state for entry in entries if entry}
        if "blocked" in states:
            return "blocked"
        if states:
            return "approved"
        return ""

    def code(self, channel: str, sender: Waiting) -> str:
        """Return the code of an unknown sender, the same one while it is valid;
        "" while too many wait.
        """
        record = _WAITING.dump_json(replace(sender, code="", at=0.0)).decode()
        key = self._key("waiting", channel)
        own = sender.ids[0]
        given = (own, self._new_code(), record, MAX_WAITING, WAIT_SECONDS)
        return str(self._connections.ask("EVAL", _CODE, 1, key, *given))

    def was_notified(self, channel: str, name: str) -> bool:
        """Return whether an unknown sender was told within the last hour."""
        return bool(self._connections.ask("EXISTS", self._told(channel, name)))

    def record_notified(self, channel: str, name: str) -> None:
        """Record that an unknown sender was told now."""
        self._connections.ask("SET", self._told(channel, name), 1, "EX", WAIT_SECONDS)

    def people(self, channel: str) -> list[ListedPerson]:
        """Return all people who are approved or blocked, the newest first."""
        entries = self._connections.ask("HVALS", self._key("people", channel))
        by_ids = {
            person.ids: person for person in map(_PERSON.validate_json, map(check_version, entries))
        }
        return sorted(by_ids.values(), key=lambda person: (-person.at, person.ids))

    def waiting(self, channel: str) -> list[Waiting]:
        """Return the unknown senders with a valid code, the newest first."""
        now = int(self._connections.ask("TIME")[0])
        waiting = map(_waiting, self._connections.ask("HVALS", self._key("waiting", channel)))
        valid = [each for each in waiting if each.at + WAIT_SECONDS > now]
        return sorted(valid, key=lambda each: (-each.at, each.ids))

    def keep(self, channel: str, person: ListedPerson) -> None:
        """Store a decision under each id of a person, who then waits no longer.

        If it is killed midway, run it again.

        Raises TooManyPeople.
        """
        record = versioned(
            json.dumps({"state": person.state, "name": person.name, "ids": person.ids})
        )
        key = self._key("people", channel)
        if self._connections.ask("EVAL", _KEEP, 1, key, MAX_PEOPLE, record, *person.ids) == "full":
            raise TooManyPeople(
                f"{MAX_PEOPLE} ids are approved or blocked on {channel}: forget some first"
            )
        # A step of its own: on a cluster those who wait may be on another node.
        self._connections.ask("HDEL", self._key("waiting", channel), *person.ids)

    def drop(self, channel: str, ids: Sequence[str]) -> None:
        """Delete everything about these ids."""
        for kind in ("people", "waiting"):
            self._connections.ask("HDEL", self._key(kind, channel), *ids)

    def _key(self, kind: str, channel: str) -> str:
        return f"{self._prefix}{kind}:{channel}"

    def _told(self, channel: str, name: str) -> str:
        return f"{self._prefix}told:{channel}:{digest(name)}"


def _waiting(entry: str) -> Waiting:
    at, code, record = entry.split(" ", 2)
    return replace(_WAITING.validate_json(record), code=code, at=float(at))
