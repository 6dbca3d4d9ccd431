"""Shards: which Redis primary each shard lives on, and scripts that find it there."""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redis import Redis

from sayso.pending.redis.client import PREFIX, Connections
from sayso.pending.redis.ferry import aboard, wait_for
from sayso.pending.redis.scripts import LEASE, SHARDS, LuaScripts, ShardMoved

#: Seconds between the tries of a call whose shard is on its way: about two in all.
PAUSES = (0.02, 0.03, 0.05, *[0.1] * 19)
#: Seconds that a turn waits behind others of its conversation whose shard is on its way.
LINE_SECONDS = 2.0
#: Threads of a process that may wait at once: the others of a web process answer for the shards that stay.
MOST_WAITING = 16


@dataclass(frozen=True, slots=True)
class Primary:
    """One Redis server and the name it has in the configuration, "" where it is the only one."""

    name: str
    url: str = field(repr=False)  # it may hold a password
    client: Redis


def rendezvous(shard: int, names: Collection[str]) -> str:
    """The primary a shard belongs to: the one whose hash together with it is the highest.

    One more name takes its share from all the others, and moves nothing among them.
    """
    return max(names, key=lambda name: hashlib.sha256(f"{name}:{shard}".encode()).digest())


class ShardMap:
    """The home of each shard, kept in Redis. What this process remembers may be old: then the old home refuses."""

    def __init__(self, client: Redis, *, prefix: str = PREFIX) -> None:
        self._connections = Connections.of(client)
        self._key = f"{prefix}map"
        self._homes: tuple[str, ...] = ()

    def home(self, shard: int) -> str:
        """The name of the primary that holds a shard, "" if nobody knows. Raises redis.RedisError."""
        return (self._homes or self.refresh())[shard]

    def refresh(self) -> Sequence[str]:
        """Read the map again: a name for each shard. Raises redis.RedisError."""
        self._homes = tuple(name or "" for name in self._connections.ask("HMGET", self._key, *range(SHARDS)))
        return self._homes


class RoutedScripts(LuaScripts):
    """The scripts of one folder, each run where its shard is at home.

    While a shard is on its way a call waits, for about two seconds; the turns of one conversation wait in the order in
    which they came. Only a lease does not wait: its conversation is woken where it arrives.
    """

    def __init__(
        self,
        homes: ShardMap,
        clients: Mapping[str, Redis],
        folder: Path,
        *,
        prefix: str = PREFIX,
        pauses: Sequence[float] = PAUSES,
        pause: Callable[[float], None] | None = None,
    ) -> None:
        self._homes = homes
        self._primaries = {
            name: LuaScripts(client, folder, prefix=prefix, gated=True) for name, client in clients.items()
        }
        self._pauses = pauses
        self._pause = pause or _pause
        self._lines = _Lines()

    def evaluate(self, name: str, shard: int, *args: Any) -> Any:
        """Run a script at the home of its shard. Raises redis.RedisError, and so ShardMoved."""
        if name == LEASE:
            return self._found(name, shard, *args)
        line = str(args[0])
        if not self._lines.forming(line):
            try:
                return self._found(name, shard, *args)
            except ShardMoved:
                pass
        if aboard():  # whoever has a lane is alone there, and its loop must not stand in a line
            return self._awaited(name, shard, *args)
        with self._lines.place(line):
            return self._awaited(name, shard, *args)

    def _awaited(self, name: str, shard: int, *args: Any) -> Any:
        for seconds in self._pauses:
            try:
                return self._found(name, shard, *args)
            except ShardMoved:
                self._pause(seconds)
        return self._found(name, shard, *args)

    def _found(self, name: str, shard: int, *args: Any) -> Any:
        home = self._homes.home(shard)
        try:
            return self._at(home, name, shard, *args)
        except ShardMoved:
            now = self._homes.refresh()[shard]
            if now == home:
                raise
            return self._at(now, name, shard, *args)

    def _at(self, home: str, name: str, shard: int, *args: Any) -> Any:
        if home not in self._primaries:
            known = ", ".join(self._primaries)
            raise ShardMoved(
                f"shard {shard} is on {home!r}, and `shards` here names {known}: use the same file everywhere"
            )
        return self._primaries[home].evaluate(name, shard, *args)


class _Lines:
    """Threads that wait for the same conversation, in the order they came."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[object]] = {}
        self._stepped = threading.Condition()

    def forming(self, name: str) -> bool:
        """Whether somebody waits there."""
        return name in self._waiting

    @contextmanager
    def place(self, name: str) -> Iterator[None]:
        """Stand in line until one is its head. Raises ShardMoved when that takes too long, or too many wait."""
        me = object()
        with self._stepped:
            if sum(map(len, self._waiting.values())) >= MOST_WAITING:
                raise ShardMoved("too many wait already")
            line = self._waiting.setdefault(name, deque())
            line.append(me)
        try:
            with self._stepped:
                if not self._stepped.wait_for(lambda: line[0] is me, timeout=LINE_SECONDS):
                    raise ShardMoved("others of the same conversation wait already")
            yield
        finally:
            self._leave(name, line, me)

    def _leave(self, name: str, line: deque[object], me: object) -> None:
        with self._stepped:
            line.remove(me)
            if not line:
                del self._waiting[name]
            self._stepped.notify_all()


def _pause(seconds: float) -> None:
    """Wait in this thread; on an event loop, let it go on meanwhile."""
    if aboard():
        wait_for(asyncio.sleep(seconds))
    else:
        time.sleep(seconds)
