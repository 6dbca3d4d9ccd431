"""People: whom operators approved or blocked on a channel, and strangers who wait for them with a code."""

from __future__ import annotations

import hmac
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Protocol

from redis import Redis

from sayso.channels.types import Conversation
from sayso.pending.redis.client import PREFIX, Connections
from sayso.workers.access.rules import Standing, digest

#: What codes are made of: letters that nobody takes for another one, and without vowels, so that they are no words. A
#: code is no id of any platform: those have digits.
LETTERS = "BCDFGHJKMNPQRSTVWXZ"
CODE_LENGTH = 8
#: Seconds for which a code is good, and in which a stranger is told once.
WAIT_SECONDS = 3600
#: Strangers of one channel who may wait at once; beyond, no further one gets a code.
MAX_WAITING = 100
#: Ids that may be approved or blocked on one channel.
MAX_PEOPLE = 10_000


class UnknownPerson(Exception):
    """Raised when an operator names a code that is not waiting, or somebody about whom nothing is kept."""


class TooManyPeople(Exception):
    """Raised when a channel has as many approved and blocked ids as are kept."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A stranger with a code: their ids, their own first, the name their platform told, and where to tell them."""

    ids: tuple[str, ...]
    name: str
    conversation: Conversation
    language: str
    code: str = ""
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class ListedPerson:
    """Somebody about whom an operator decided, at Unix seconds `at`."""

    ids: tuple[str, ...]
    state: Literal["approved", "blocked"]
    name: str = ""
    at: float = 0.0


class People(Protocol):
    """What the door knows of people. Ids are as the channel's rules spell them."""

    def standing(self, channel: str, ids: Sequence[str]) -> Standing:
        """What an operator decided about whoever has these ids: blocked, if any of them is."""

    def code(self, channel: str, stranger: Waiting) -> str:
        """The code of a stranger, the same one for as long as it is good; "" while too many wait."""

    def was_told(self, channel: str, name: str) -> bool:
        """Whether a stranger was told within the hour."""

    def note_told(self, channel: str, name: str) -> None:
        """They were told now."""


class AccessList(Protocol):
    """What is kept of people for operators."""

    def people(self, channel: str) -> list[ListedPerson]:
        """Everybody who is approved or blocked, the newest first."""

    def waiting(self, channel: str) -> list[Waiting]:
        """Strangers whose codes are good, the newest first."""

    def keep(self, channel: str, person: ListedPerson) -> None:
        """Note a decision under each of their ids; they wait no longer. Raises TooManyPeople."""

    def drop(self, channel: str, ids: Sequence[str]) -> None:
        """Keep nothing of these ids."""


def new_code() -> str:
    """A code that nobody guesses."""
    return "".join(secrets.choice(LETTERS) for _ in range(CODE_LENGTH))


def looks_like_a_code(word: str) -> bool:
    """Whether it can only be a code."""
    return len(word) == CODE_LENGTH and set(word.upper()) <= set(LETTERS)


class Register:
    """What an operator decides about people, named by their code or one of their ids, over what a book keeps."""

    def __init__(self, book: AccessList) -> None:
        self._book = book

    def approve(self, channel: str, who: str) -> Waiting | None:
        """Let somebody in; whoever waited, to be told. Raises UnknownPerson, TooManyPeople."""
        return self._decide(channel, who, "approved")

    def block(self, channel: str, who: str) -> None:
        """Keep somebody out. Raises UnknownPerson, TooManyPeople."""
        self._decide(channel, who, "blocked")

    def forget(self, channel: str, who: str) -> None:
        """Keep nothing of somebody. Raises UnknownPerson."""
        waits, known = self._found(channel, who)
        if not (waits or known):
            raise UnknownPerson(f"nothing is kept of {who!r} on {channel}")
        self._book.drop(channel, _ids(waits, known))

    def _decide(self, channel: str, who: str, state: Literal["approved", "blocked"]) -> Waiting | None:
        waits, known = self._found(channel, who)
        if looks_like_a_code(who) and not (waits or known):
            raise UnknownPerson(f"nobody waits on {channel} with the code {who!r}: a code is good for an hour")
        name = waits.name if waits else known[0].name if known else ""
        self._book.keep(channel, ListedPerson(_ids(waits, known) or (who,), state, name))
        return waits

    def _found(self, channel: str, who: str) -> tuple[Waiting | None, list[ListedPerson]]:
        """Whoever waits with this code or id, and all that is kept of people with one of their ids."""
        code = who.upper().encode("utf-8", "replace")
        waits = None
        for each in self._book.waiting(channel):  # all are looked at, and take as long
            if hmac.compare_digest(each.code.encode(), code) or who in each.ids:
                waits = each
        mine = {who, *(waits.ids if waits else ())}
        return waits, [person for person in self._book.people(channel) if not mine.isdisjoint(person.ids)]


def _ids(waits: Waiting | None, known: Iterable[ListedPerson]) -> tuple[str, ...]:
    """All ids of somebody: those they wait with, and those that were decided about before."""
    found = [*(waits.ids if waits else ()), *(name for person in known for name in person.ids)]
    return tuple(dict.fromkeys(found))


#: The code of whoever waits already; else a new one, while there is room. Whose hour is over is forgotten. KEYS: those
#: who wait. ARGV: id, code, record, most, seconds. An entry is: Unix seconds, code, record.
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

#: What was decided about somebody, and when, under each of their ids; they wait no longer. KEYS: people, those who
#: wait. ARGV: most, state, name and ids as JSON, ids...
_KEEP = """
local new = 0
for i = 3, #ARGV do new = new + 1 - redis.call('HEXISTS', KEYS[1], ARGV[i]) end
if redis.call('HLEN', KEYS[1]) + new > tonumber(ARGV[1]) then return 'full' end
local what = '{"at": ' .. redis.call('TIME')[1] .. ', ' .. string.sub(ARGV[2], 2)
for i = 3, #ARGV do
  redis.call('HSET', KEYS[1], ARGV[i], what)
  redis.call('HDEL', KEYS[2], ARGV[i])
end
return 'ok'
"""

#: Nothing is kept of these ids. KEYS: people, those who wait. ARGV: ids...
_DROP = """
redis.call('HDEL', KEYS[1], unpack(ARGV))
redis.call('HDEL', KEYS[2], unpack(ARGV))
return 'ok'
"""


class RedisPeople:
    """People and Book in Redis: decisions until they are forgotten, strangers for their hour."""

    def __init__(self, client: Redis, *, prefix: str = PREFIX, new_code: Callable[[], str] = new_code) -> None:
        self._connections = Connections.of(client)
        self._prefix = prefix
        self._new_code = new_code

    def standing(self, channel: str, ids: Sequence[str]) -> Standing:
        """What an operator decided, in one question. Raises redis.RedisError."""
        kept = self._connections.ask("HMGET", self._key("people", channel), *ids) if ids else []
        states = {_person(entry).state for entry in kept if entry}
        return "blocked" if "blocked" in states else "approved" if states else ""

    def code(self, channel: str, stranger: Waiting) -> str:
        """The code of a stranger. Raises redis.RedisError."""
        record = json.dumps({**asdict(stranger), "code": "", "at": 0})
        key, own = self._key("waiting", channel), stranger.ids[0]
        given = (own, self._new_code(), record, MAX_WAITING, WAIT_SECONDS)
        return str(self._connections.ask("EVAL", _CODE, 1, key, *given))

    def was_told(self, channel: str, name: str) -> bool:
        """Whether a stranger was told within the hour. Raises redis.RedisError."""
        return bool(self._connections.ask("EXISTS", self._told(channel, name)))

    def note_told(self, channel: str, name: str) -> None:
        """They were told now. Raises redis.RedisError."""
        self._connections.ask("SET", self._told(channel, name), 1, "EX", WAIT_SECONDS)

    def people(self, channel: str) -> list[ListedPerson]:
        """Everybody who is approved or blocked. Raises redis.RedisError."""
        kept = self._connections.ask("HVALS", self._key("people", channel))
        found = {person.ids: person for person in map(_person, kept)}
        return sorted(found.values(), key=lambda person: (-person.at, person.ids))

    def waiting(self, channel: str) -> list[Waiting]:
        """Strangers whose codes are good. Raises redis.RedisError."""
        now = int(self._connections.ask("TIME")[0])
        found = map(_waiting, self._connections.ask("HVALS", self._key("waiting", channel)))
        good = [each for each in found if each.at + WAIT_SECONDS > now]
        return sorted(good, key=lambda each: (-each.at, each.ids))

    def keep(self, channel: str, person: ListedPerson) -> None:
        """Note a decision. Raises TooManyPeople, redis.RedisError."""
        what = json.dumps({"state": person.state, "name": person.name, "ids": person.ids})
        keys = (self._key("people", channel), self._key("waiting", channel))
        if self._connections.ask("EVAL", _KEEP, 2, *keys, MAX_PEOPLE, what, *person.ids) == "full":
            raise TooManyPeople(_full(channel))

    def drop(self, channel: str, ids: Sequence[str]) -> None:
        """Keep nothing of these ids. Raises redis.RedisError."""
        self._connections.ask("EVAL", _DROP, 2, self._key("people", channel), self._key("waiting", channel), *ids)

    def _key(self, kind: str, channel: str) -> str:
        return f"{self._prefix}{kind}:{channel}"

    def _told(self, channel: str, name: str) -> str:
        return f"{self._prefix}told:{channel}:{digest(name)}"


def _person(entry: str) -> ListedPerson:
    kept: dict[str, Any] = json.loads(entry)
    return ListedPerson(tuple(kept["ids"]), kept["state"], kept["name"], float(kept["at"]))


def _waiting(entry: str) -> Waiting:
    at, code, what = entry.split(" ", 2)
    kept: dict[str, Any] = json.loads(what)
    to = Conversation(**kept["conversation"])
    return Waiting(tuple(kept["ids"]), kept["name"], to, kept["language"], code, float(at))


def _full(channel: str) -> str:
    return f"{MAX_PEOPLE} ids are approved or blocked on {channel}: forget some first"


@dataclass(slots=True)
class _Channel:
    people: dict[str, ListedPerson] = field(default_factory=dict)
    waiting: dict[str, Waiting] = field(default_factory=dict)
    told: dict[str, float] = field(default_factory=dict)


class MemoryPeople:
    """People and Book of one process, on its own clock."""

    def __init__(self, *, clock: Callable[[], float] = time.time, new_code: Callable[[], str] = new_code) -> None:
        self._clock = clock
        self._new_code = new_code
        self._channels: dict[str, _Channel] = {}
        self._lock = threading.Lock()

    def standing(self, channel: str, ids: Sequence[str]) -> Standing:
        """What an operator decided."""
        known = self._of(channel).people
        states = {known[name].state for name in ids if name in known}
        return "blocked" if "blocked" in states else "approved" if states else ""

    def code(self, channel: str, stranger: Waiting) -> str:
        """The code of a stranger."""
        with self._lock:
            waiting = self._good(channel)
            own = stranger.ids[0]
            if own not in waiting and len(waiting) >= MAX_WAITING:
                return ""
            return waiting.setdefault(own, replace(stranger, code=self._new_code(), at=self._clock())).code

    def was_told(self, channel: str, name: str) -> bool:
        """Whether a stranger was told within the hour."""
        return self._clock() - self._of(channel).told.get(name, float("-inf")) < WAIT_SECONDS

    def note_told(self, channel: str, name: str) -> None:
        """They were told now; whose hour is over is forgotten."""
        now, told = self._clock(), self._of(channel).told
        with self._lock:
            self._of(channel).told = {each: at for each, at in told.items() if now - at < WAIT_SECONDS} | {name: now}

    def people(self, channel: str) -> list[ListedPerson]:
        """Everybody who is approved or blocked."""
        found = {person.ids: person for person in self._of(channel).people.values()}
        return sorted(found.values(), key=lambda person: (-person.at, person.ids))

    def waiting(self, channel: str) -> list[Waiting]:
        """Strangers whose codes are good."""
        with self._lock:
            return sorted(self._good(channel).values(), key=lambda each: (-each.at, each.ids))

    def _good(self, channel: str) -> dict[str, Waiting]:
        """Those who wait, without those whose hour is over."""
        kept, now = self._of(channel), self._clock()
        kept.waiting = {name: each for name, each in kept.waiting.items() if each.at + WAIT_SECONDS > now}
        return kept.waiting

    def keep(self, channel: str, person: ListedPerson) -> None:
        """Note a decision. Raises TooManyPeople."""
        kept = self._of(channel)
        with self._lock:
            if len(kept.people.keys() | set(person.ids)) > MAX_PEOPLE:
                raise TooManyPeople(_full(channel))
            kept.people.update(dict.fromkeys(person.ids, replace(person, at=self._clock())))
            for name in person.ids:
                kept.waiting.pop(name, None)

    def drop(self, channel: str, ids: Sequence[str]) -> None:
        """Keep nothing of these ids."""
        kept = self._of(channel)
        with self._lock:
            for name in ids:
                kept.people.pop(name, None)
                kept.waiting.pop(name, None)

    def _of(self, channel: str) -> _Channel:
        return self._channels.setdefault(channel, _Channel())
