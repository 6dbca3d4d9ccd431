"""Fleet: three Redis primaries, and processes that use them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from redis import Redis

from sayso.agent.channel.turn_journal import RedisJournals
from sayso.pending import RedisPendingStore
from sayso.pending.redis.client import PREFIX, connect
from sayso.pending.redis.repository import LUA as PENDING_LUA
from sayso.pending.redis.scripts import LuaScripts, shard_of
from sayso.pending.turns.change import TurnChange
from sayso.workers.mailbox import LEASE_MS, LUA, RedisMailbox
from sayso.workers.outbox import RedisOutbox
from sayso.workers.sharding.founding import found
from sayso.workers.sharding.move import Mover
from sayso.workers.sharding.shards import Primary, RoutedScripts, ShardMap
from tests.contracts.rigs import CHAT, Rig, voice

#: The shard of the room that these tests talk in.
SHARD = shard_of(CHAT.id)
ROOM = f"{PREFIX}{{{SHARD}}}"


class Killed(BaseException):
    """What ends a process: nothing of it runs any more."""


class Fate:
    """Something that happens right before a process's nth command; `Killed` ends all that would follow."""

    def __init__(self, nth: int, happens: Callable[[], None]) -> None:
        self._left, self._happens, self._killed = nth, happens, False
        self.came = False

    def step(self) -> None:
        """One more command is about to be sent."""
        if self._killed:
            raise Killed
        self._left -= 1
        if self._left == -1:
            self.came = True
            try:
                self._happens()
            except Killed:
                self._killed = True
                raise


def killed() -> None:
    """Kill -9."""
    raise Killed


class FatedRedis(Redis):
    """A client that asks its process's fate before each round trip."""

    fate: Fate

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Ask, and send."""
        self.fate.step()
        return super().execute_command(*args, **options)

    def pipeline(self, *args: Any, **options: Any) -> Any:
        """Ask, and send."""
        self.fate.step()
        return super().pipeline(*args, **options)


class Fleet:
    """Primaries a, b and c; the map is on a server of its own, or on a's."""

    def __init__(self, urls: dict[str, str], *, names: Sequence[str] = "ab") -> None:
        self.urls = urls
        self.clients = {name: connect(url) for name, url in urls.items()}
        self.shared = self.clients["a"]
        for client in self.clients.values():
            client.flushall()
        self.found(names)
        self.put_room("a")

    def found(self, names: Sequence[str]) -> None:
        """What the start of a process with this configuration does."""
        found(self.shared, [Primary(name, self.urls[name], self.clients[name]) for name in names])

    def put_room(self, name: str) -> None:
        """Let the room's shard begin its life here, wherever its name would have put it."""
        for client in self.clients.values():
            client.delete(f"{ROOM}:home")
        self.clients[name].set(f"{ROOM}:home", "open")
        self.shared.hset(f"{PREFIX}map", str(SHARD), name)

    def mover(self, fate: Fate | None = None, **options: Any) -> Mover:
        """A mover of its own process."""
        clients = {name: FatedRedis.from_url(url) for name, url in self.urls.items()}
        for client in clients.values():
            client.fate = fate or Fate(-1, killed)
        options = {"pause": lambda _: None, **options}
        return Mover(clients["a"], clients, **options)

    def forget_mover(self) -> None:
        """So much time passes that a mover that was killed is out of the way."""
        self.shared.delete(f"{PREFIX}mover")

    def gated(self, name: str) -> LuaScripts:
        """The scripts of a process that believes the room to be here."""
        return LuaScripts(self.clients[name], LUA, gated=True)

    def rig(self, **options: Any) -> FleetRig:
        """Mailbox, outbox and pending actions of one process."""
        return FleetRig(self, **options)

    def homes(self) -> list[str]:
        """The servers that would take a turn of the room in: never more than one."""
        words = {name: client.get(f"{ROOM}:home") or "" for name, client in self.clients.items()}
        return [name for name, word in words.items() if word.startswith(("open", "closing"))]

    def held(self, name: str) -> dict[str, Any]:
        """Everything of the room that a server holds."""
        client = self.clients[name]
        return {key: _value(client, key) for key in client.scan_iter(f"{ROOM}:*", count=1000) if key != f"{ROOM}:home"}


def _value(client: Redis, key: str) -> Any:
    match client.type(key):
        case "hash":
            return client.hgetall(key)
        case "list":
            return client.lrange(key, 0, -1)
        case "zset":
            return client.zrange(key, 0, -1, withscores=True)
        case "set":
            return client.smembers(key)
    return client.get(key)


class FleetRig(Rig):
    """The room in a fleet, as one process reaches it."""

    def __init__(self, fleet: Fleet, *, names: Sequence[str] = "abc", tries: int = 0, wake_up: Any = None) -> None:
        homes, clients = ShardMap(fleet.shared), {name: fleet.clients[name] for name in names}
        self.fleet = fleet
        self.scripts = RoutedScripts(homes, clients, LUA, pauses=[0] * tries, pause=lambda _: None)
        records = RoutedScripts(homes, clients, PENDING_LUA, pauses=[0] * tries, pause=lambda _: None)
        self.store = RedisPendingStore(scripts=records, secret_keys=["key"])
        self.mailbox = RedisMailbox(self.scripts, voice, wake_up or (lambda _: ()))
        self.outbox, self.journals = RedisOutbox(self.scripts), RedisJournals(self.scripts)

    def pass_time(self, seconds: float) -> None:
        """Only a lease can end here."""
        (name,) = self.fleet.homes()
        self.fleet.clients[name].hincrby(f"{ROOM}:lane:{CHAT.id}", "until", -LEASE_MS - 1000)

    def words(self) -> list[str]:
        """What waits to be worked on, in order; it is taken out."""
        lease, work = self.mailbox.lease(CHAT.id, "reader")
        found = []
        while work is not None:
            found.append(work.turn.text)
            work = self.mailbox.commit(lease, work, TurnChange())
        self.mailbox.release(lease)
        return found
