"""Move: takes shards from one primary to another, under traffic, and never loses, doubles or reorders a turn.

What a server is to a shard stands in its `home` key:

    open ─► closing ─► closed ─► gone        the old home: no new lease, then nothing, then deleted
    (none) | gone ─► arriving ─► open        the new one: the copy is made, then it counts

The map says which of the two counts. It changes between the copy and the opening, so a mover may be killed anywhere:
the next one opens again, or goes on.

MoveError
├── MoveBusy       another one moves shards
├── MoveLost       another one took this move over
├── ShardBusy      a conversation was worked on for too long: the shard stays
└── ShardsAtOdds   the servers contradict each other: nothing is touched
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

from redis import Redis

from sayso.pending.redis.client import PREFIX
from sayso.pending.redis.scripts import SHARDS
from sayso.workers.sharding.shards import rendezvous

#: Keys copied or deleted in one round trip.
BATCH = 200
#: Keys that a server looks at per SCAN.
LOOK = 2000
#: Milliseconds after which a mover that was killed is out of the way.
LOCK_MS = 15_000
#: Seconds between two looks whether a shard's conversations are at rest.
LOOK_SECONDS = 0.05
#: Seconds that a shard's conversations may take to come to rest: longer than any turn.
REST_SECONDS = 180.0

_KEEP = """
-- Keep the right to move. KEYS: lock. ARGV: token, milliseconds.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""
_RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end"
_POINT = """
-- Point the map at another primary. KEYS: lock, map. ARGV: token, shard, from, to. Returns where it points then.
local at = redis.call('HGET', KEYS[2], ARGV[2])
if redis.call('GET', KEYS[1]) ~= ARGV[1] or at ~= ARGV[3] then return at end
redis.call('HSET', KEYS[2], ARGV[2], ARGV[4])
return ARGV[4]
"""
_TURN = """
-- Change what this server is to a shard. KEYS: home. ARGV: new word, old words... Returns the word that holds then.
local word = redis.call('GET', KEYS[1]) or ''
for at = 2, #ARGV do
  if word == ARGV[at] then
    redis.call('SET', KEYS[1], ARGV[1])
    return ARGV[1]
  end
end
return word
"""
_CLOSE = """
-- Close a shard if nobody holds a lane of it. KEYS: shard. ARGV: closing word, closed word. Returns how many do.
local home, busy = redis.call('GET', KEYS[1] .. ':home'), 0
if home == ARGV[2] then return 0 end
if home ~= ARGV[1] then return -1 end
local time = redis.call('TIME')
for _, conversation in ipairs(redis.call('ZRANGE', KEYS[1] .. ':due', 0, -1)) do
  local token, till = unpack(redis.call('HMGET', KEYS[1] .. ':lane:' .. conversation, 'token', 'until'))
  local held = token and token ~= '' and token ~= 'parked'
  if held and tonumber(till or '0') > time[1] * 1000 + time[2] / 1000 then busy = busy + 1 end
end
if busy == 0 then redis.call('SET', KEYS[1] .. ':home', ARGV[2]) end
return busy
"""
_LAND = """
-- Take in keys of an arriving shard. KEYS: home. ARGV: word, then key, milliseconds to live, dump...
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
for at = 2, #ARGV, 3 do redis.call('RESTORE', ARGV[at], ARGV[at + 1], ARGV[at + 2], 'REPLACE') end
return 1
"""
_DROP = """
-- Delete keys of a shard that does not count here. KEYS: home. ARGV: word, keys...
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('UNLINK', unpack(ARGV, 2))
return 1
"""


class MoveError(Exception):
    """Base of what moving shards raises."""


class MoveBusy(MoveError):
    """Raised when another mover is at work, or died less than LOCK_MS ago."""


class MoveLost(MoveError):
    """Raised when another mover took over: change nothing more."""


class ShardBusy(MoveError):
    """Raised when a conversation did not come to rest: its shard stays where it was."""


class ShardsAtOdds(MoveError):
    """Raised when the servers contradict each other. The message names the shard and what each says."""


@dataclass(frozen=True, slots=True)
class Moved:
    """A shard that was moved: with how many keys, and for how many seconds nobody could touch it."""

    shard: int
    from_: str
    to: str
    keys: int
    closed_seconds: float


@dataclass(frozen=True, slots=True)
class Survey:
    """Where the shards are: by the map, and what each server is to each of them ("" for nothing)."""

    homes: tuple[str, ...]
    words: Mapping[str, tuple[str, ...]]

    @property
    def unfinished(self) -> list[int]:
        """Shards whose move was interrupted."""
        return [shard for shard in range(SHARDS) if not self._is_at_rest(shard)]

    def count(self, name: str) -> int:
        """How many shards a primary holds."""
        return Counter(self.homes)[name]

    def check(self) -> None:
        """Raises ShardsAtOdds where more than one server, or none, could count."""
        for shard, home in enumerate(self.homes):
            said = {name: words[shard] for name, words in self.words.items()}
            rivals = [name for name, word in said.items() if name != home and word.startswith(("open", "closing"))]
            if rivals or said.get(home, "") in ("", "gone"):
                raise ShardsAtOdds(f"shard {shard}: the map says {home!r}, the servers say {said}: see docs/explanation/shards.md")

    def _is_at_rest(self, shard: int) -> bool:
        home = self.homes[shard]
        others = {words[shard] for name, words in self.words.items() if name != home}
        return home in self.words and self.words[home][shard] == "open" and others <= {"", "gone"}


class Mover:
    """Moves shards between primaries, one at a time. Its clients must answer in bytes: it carries what they hold."""

    def __init__(
        self,
        shared: Redis,
        primaries: Mapping[str, Redis],
        *,
        rest_seconds: float = REST_SECONDS,
        pause: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        prefix: str = PREFIX,
    ) -> None:
        self._shared = shared
        self._primaries = primaries
        self._rest_seconds = rest_seconds
        self._pause = pause
        self._clock = clock
        self._prefix = prefix
        self._lock, self._map = f"{prefix}mover", f"{prefix}map"
        self._token = secrets.token_hex(8)

    def survey(self) -> Survey:
        """Where the shards are now. Raises redis.RedisError."""
        homes = self._shared.hmget(self._map, [str(shard) for shard in range(SHARDS)])
        keys = [self._home(shard) for shard in range(SHARDS)]
        words = {name: client.mget(keys) for name, client in self._primaries.items()}
        return Survey(_texts(homes), {name: _texts(found) for name, found in words.items()})

    def rebalance(self, names: Collection[str]) -> Iterator[Moved | ShardBusy]:
        """Finish what was interrupted, then move each shard to where it belongs among these primaries.

        Yields every shard moved, and every one that had to stay. Raises MoveError, redis.RedisError; then the next run
        goes on.
        """
        with self._locked():
            self._mend()
            for shard, home in enumerate(self.survey().homes):
                to = rendezvous(shard, names)
                if to != home:
                    yield self._tried(shard, home, to)

    def move(self, shard: int, to: str) -> Moved | ShardBusy | None:
        """Finish what was interrupted, then move one shard. None: it is there. Raises as `rebalance` does."""
        with self._locked():
            self._mend()
            home = self.survey().homes[shard]
            return None if home == to else self._tried(shard, home, to)

    def _tried(self, shard: int, home: str, to: str) -> Moved | ShardBusy:
        try:
            return self._move(shard, home, to)
        except ShardBusy as exc:
            return exc

    def _move(self, shard: int, home: str, to: str) -> Moved:
        self._arrive(shard, to)
        try:
            self._turn(home, shard, self._closing, "open")
            self._close(shard, home)
            closed = self._clock()
            keys = self._copy(shard, home, to)
        except Exception:
            self._stay(shard, home, to)
            raise
        self._point(shard, home, to)
        self._turn(to, shard, "open", self._arriving)
        closed_seconds = self._clock() - closed
        self._clear(home, shard, self._closed)
        return Moved(shard, home, to, keys, closed_seconds)

    def _arrive(self, shard: int, to: str) -> None:
        """Make room, before anybody has to wait."""
        self._turn(to, shard, self._arriving, "", "gone")
        self._empty(to, shard, self._arriving)

    def _close(self, shard: int, home: str) -> None:
        """Wait until each turn that has begun is over: nobody can begin another."""
        until = self._clock() + self._rest_seconds
        while busy := self._run(home, _CLOSE, [self._shard(shard)], self._closing, self._closed):
            if busy < 0:
                raise MoveLost(f"shard {shard}: {home} was opened again by somebody else")
            if self._clock() > until:
                raise ShardBusy(f"shard {shard} stays on {home}: {busy} conversations are still worked on")
            self._keep_lock()
            self._pause(LOOK_SECONDS)

    def _copy(self, shard: int, home: str, to: str) -> int:
        copied = 0
        for keys in self._keys(home, shard):
            self._keep_lock()
            self._check(self._run(to, _LAND, [self._home(shard)], self._arriving, *self._dumps(home, keys)))
            copied += len(keys)
        return copied

    def _dumps(self, name: str, keys: Sequence[bytes]) -> list[Any]:
        """Keys with what they hold and how long they live, as RESTORE takes them; one that has expired is left out."""
        pipe = self._primaries[name].pipeline(transaction=False)
        for key in keys:
            pipe.pttl(key)
            pipe.dump(key)
        answers = pipe.execute()
        found = zip(keys, answers[::2], answers[1::2], strict=True)
        return [part for key, ttl, dump in found if dump is not None for part in (key, _to_live(ttl), dump)]

    def _point(self, shard: int, home: str, to: str) -> None:
        """The step that counts: what was copied is the shard from here on."""
        at = self._shared.eval(_POINT, 2, self._lock, self._map, self._token, shard, home, to)
        if _text(at) != to:
            raise MoveLost(f"shard {shard}: another mover is at it")

    def _stay(self, shard: int, home: str, to: str) -> None:
        """Open again what was not moved, and forget the copy."""
        self._turn(home, shard, "open", self._closing, self._closed)
        self._clear(to, shard, self._arriving)

    def _mend(self) -> None:
        """Open what an interrupted move left closed, where the map says it is, and delete the other copy."""
        survey = self.survey()
        survey.check()
        for shard in survey.unfinished:
            home = survey.homes[shard]
            self._turn(home, shard, "open", survey.words[home][shard])
            for name, words in survey.words.items():
                if name != home and words[shard] not in ("", "gone"):
                    self._turn(name, shard, self._closed, words[shard])
                    self._clear(name, shard, self._closed)

    def _clear(self, name: str, shard: int, word: str) -> None:
        self._empty(name, shard, word)
        self._turn(name, shard, "gone", word)

    def _empty(self, name: str, shard: int, word: str) -> None:
        for keys in self._keys(name, shard):
            self._keep_lock()
            self._check(self._run(name, _DROP, [self._home(shard)], word, *keys))

    def _keys(self, name: str, shard: int) -> Iterator[Sequence[bytes]]:
        """All keys of a shard but its word, some at a time."""
        home = self._home(shard).encode()
        found = self._primaries[name].scan_iter(match=f"{self._shard(shard)}:*", count=LOOK)
        yield from _batches(key for key in found if key != home)

    def _turn(self, name: str, shard: int, word: str, *from_: str) -> None:
        """Change what a server is to a shard. Asked again after a lost answer, it says the same."""
        now = self._run(name, _TURN, [self._home(shard)], word, *from_, word)
        if _text(now) != word:
            raise MoveLost(f"shard {shard}: {name} says {_text(now)!r}, so another mover is at it")

    def _check(self, done: int) -> None:
        if not done:
            raise MoveLost("another mover took over")

    def _run(self, name: str, script: str, keys: list[str], *args: Any) -> Any:
        return self._primaries[name].eval(script, len(keys), *keys, *args)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        if not self._shared.set(self._lock, self._token, nx=True, px=LOCK_MS):
            raise MoveBusy(f"another rebalance is at work, or was killed within the last {LOCK_MS // 1000} s")
        try:
            yield
        finally:
            self._shared.eval(_RELEASE, 1, self._lock, self._token)

    def _keep_lock(self) -> None:
        if not self._shared.eval(_KEEP, 1, self._lock, self._token, LOCK_MS):
            raise MoveLost("this mover was silent for too long, and another may be at work")

    @property
    def _closing(self) -> str:
        return f"closing {self._token}"

    @property
    def _closed(self) -> str:
        return f"closed {self._token}"

    @property
    def _arriving(self) -> str:
        return f"arriving {self._token}"

    def _shard(self, shard: int) -> str:
        return f"{self._prefix}{{{shard}}}"

    def _home(self, shard: int) -> str:
        return f"{self._shard(shard)}:home"


def _batches(keys: Iterable[bytes]) -> Iterator[Sequence[bytes]]:
    rest = iter(keys)
    while batch := tuple(islice(rest, BATCH)):
        yield batch


def _to_live(milliseconds: int) -> int:
    """What RESTORE takes: 0 for a key that stays."""
    return 0 if milliseconds == -1 else max(1, milliseconds)


def _texts(values: Sequence[Any]) -> tuple[str, ...]:
    return tuple(_text(value) for value in values)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value or "")
