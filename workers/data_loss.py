"""DataLossGuard: halt a Redis that came back with fewer writes than it had acknowledged, and resume it later.

Every script that writes increments a counter in Redis, the watermark (key `tide`), and every process remembers the
highest value it has seen. A Redis that restarts with a lower value has lost acknowledged writes: it was restarted on an
old file, a replica that lagged was promoted, or it was emptied. To go on would give out numbers of turns, replies and
leases a second time. So the process that notices writes a halt into that Redis, and all scripts refuse until an
operator runs `sayso redis resume`.

An answer is compared only with what was known before the question was sent, so connections that race each other,
restarts that lose nothing, processes that start or end, and clocks raise no alarm.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from redis import Redis
from redis.asyncio.connection import AbstractConnection
from redis.connection import Connection
from redis.exceptions import BusyLoadingError, ReadOnlyError, RedisError, ResponseError

from sayso.channels.types import random_id
from sayso.pending.concurrency import run_without_loop
from sayso.pending.redis.client import PREFIX, address_of
from sayso.pending.redis.connections import CURE, Connections, Halted
from sayso.pending.redis.scripts import RESUMED, SHARDS, LuaScripts
from sayso.workers.mailbox import LUA

log = logging.getLogger(__name__)

#: Seconds between two checks: a server that loses less than its writes of this time may go unnoticed.
LOOK_SECONDS = 0.25
#: Seconds between two writes to the data folder.
KEEP_SECONDS = 1.0
#: Changes of the watermark that a process remembers with their times: about ten busy minutes.
MOMENTS = 2400
#: The file's name in the data folder.
FILE = "tide.json"
#: Server addresses that are remembered at most; the oldest is dropped.
MAX_ADDRESSES = 32
#: How far above every known number the numbers go on after a resume: more than any counter rises between two resumes.
RESUME_STEP = 1_000_000_000
#: Identities that a server may have at most: those under which processes remember it.
MAX_IDS = 8
#: Keys that Redis looks at per SCAN.
SCAN_COUNT = 1000
_HALT = """
-- Halt this server if it still has a lower watermark than was seen. KEYS: tide (the watermark), founded (the
-- identities), halted. ARGV: identity, watermark, halt as JSON. The first halt stays when this is sent again.
local known = ' ' .. (redis.call('GET', KEYS[2]) or '') .. ' '
local same = string.find(known, ' ' .. ARGV[1] .. ' ', 1, true)
if same and tonumber(redis.call('GET', KEYS[1]) or '0') >= tonumber(ARGV[2]) then return 0 end
redis.call('SET', KEYS[3], ARGV[3], 'NX')
return 1
"""
_KEY = re.compile(r"\{(\d{1,2})\}:(lane|pending):(.+)", re.DOTALL)
_LIFT = """
-- Remove the halt. KEYS: tide (the watermark), founded (the identities), halted. ARGV: identities, watermark, reason.
if redis.call('GET', KEYS[3]) ~= ARGV[3] then return 0 end
redis.call('SET', KEYS[2], ARGV[1])
if tonumber(redis.call('GET', KEYS[1]) or '0') < tonumber(ARGV[2]) then redis.call('SET', KEYS[1], ARGV[2]) end
redis.call('DEL', KEYS[3])
return 1
"""

#: Sends a command over the connection that is checked, and returns the answer.
Ask = Callable[..., Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Watermark:
    """The identity of a server and its watermark."""

    id: str
    n: int


@dataclass(frozen=True, slots=True)
class ServerState:
    """What a server says of itself: its identities, its watermark, and why it is halted, "" if it is not."""

    ids: tuple[str, ...] = ()
    n: int = 0
    halted: str = ""

    @classmethod
    def of(cls, answers: Sequence[Any]) -> ServerState:
        """Return the state from the answers to the keys of `keys_of`."""
        tide, founded, halted = (str(answer or "") for answer in answers)
        return cls(tuple(founded.split()), int(tide) if tide.isdigit() else 0, halted)

    def forgot(self, known: Watermark | None) -> bool:
        """Return whether the server knows less than was seen before. A server without any writes has
        forgotten nothing.
        """
        if known is None or known.n == 0:
            return False
        return known.id not in self.ids or self.n < known.n


@dataclass(frozen=True, slots=True)
class HaltReason:
    """Why a server is halted: the identity and watermark that were seen, the watermark it has now, and how many seconds
    of work it lost, if known.
    """

    id: str
    remembered: int
    found: int
    seconds: float | None = None

    @classmethod
    def read(cls, text: str) -> HaltReason:
        """Parse the halt of a server. Of a damaged halt nothing is known but that it is there."""
        try:
            return _HALT_REASON.validate_json(text)
        except ValueError:
            return cls("", 0, 0)

    def __str__(self) -> str:
        if not self.found:
            return f"everything it knew is gone ({self.remembered:,} steps)"
        missing = f"{self.remembered - self.found:,} of {self.remembered:,} steps are missing"
        return missing if self.seconds is None else f"{missing}, about the last {self.seconds:.1f} s of them"


_HALT_REASON = TypeAdapter(HaltReason)
_WATERMARKS = TypeAdapter(dict[str, Watermark])


class WatermarkFile:
    """A small JSON file with watermarks, shared by all processes on a folder. It is replaced as a whole; numbers only
    rise.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> Mapping[str, Watermark]:
        """Return the last watermark of each server address. A missing or damaged file counts as empty."""
        try:
            return _WATERMARKS.validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as exc:
            log.warning("watermark.not_read", extra={"reason": type(exc).__name__})
            return {}

    def keep(self, address: str, watermark: Watermark) -> None:
        """Store a watermark, unless another process stored a higher one."""
        watermarks = dict(self.read())
        before = watermarks.pop(address, None)
        if before and before.id == watermark.id and before.n > watermark.n:
            watermark = before
        watermarks[address] = watermark
        stored = dict(list(watermarks.items())[-MAX_ADDRESSES:])
        new_file = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            new_file.write_bytes(_WATERMARKS.dump_json(stored))
            new_file.replace(self._path)
        except OSError as exc:
            log.warning("watermark.not_stored", extra={"reason": type(exc).__name__})


class DataLossGuard:
    """The watermark of one server as this process knows it; one per process and server, for all connections."""

    def __init__(
        self,
        client: Redis,
        file: WatermarkFile | None = None,
        *,
        prefix: str = PREFIX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._file = file
        self._address = f"{address_of(client)}/{client.connection_pool.connection_kwargs.get('db', 0)}"
        self._keys = keys_of(prefix)
        self._clock = clock
        self._stored = dict(file.read()) if file else {}
        self._known = self._stored.get(self._address)
        self._stored_at = float("-inf")
        self._moments: deque[tuple[float, int]] = deque(maxlen=MOMENTS)
        self._halt = ""
        #: Set while this server has lost writes and the halt could not be written to it.
        self._refusing = threading.Event()
        self._learning = threading.Lock()
        self._watching = 0

    @property
    def known(self) -> Watermark | None:
        """Return the highest watermark this process has seen, None before the first."""
        return self._known

    @property
    def trouble(self) -> str:
        """Return why this server is halted, in words for its operator; "" when it is not."""
        return CURE if self._halt or self._refusing.is_set() else ""

    def guard(self, client: Redis) -> None:
        """Check the watermark first on every connection that this client, or its pipeline, makes from now on."""
        client.connection_pool.connection_kwargs["redis_connect_func"] = self.greet
        connections = Connections.of(client)
        connections.halted = self._refusing
        if connections.pipeline:
            connections.pipeline.on_connect(self._greet_async)

    def greet(self, connection: Connection) -> None:
        """Check the watermark on a new connection. Raises redis.RedisError: the connection must not be used."""
        connection.on_connect()  # type: ignore[no-untyped-call]  # redis-py's own

        async def ask(*command: str | int) -> Any:
            connection.send_command(*command)  # type: ignore[no-untyped-call]  # redis-py's own
            return connection.read_response()

        run_without_loop(self.check(ask))

    async def _greet_async(self, connection: AbstractConnection) -> None:
        """Check the watermark on a new connection of an event loop. Raises redis.RedisError: do not use it."""
        await connection.on_connect()

        async def ask(*command: str | int) -> Any:
            await connection.send_command(*command)
            return await connection.read_response()

        await self.check(ask)

    def look(self) -> None:
        """Check the server's watermark, and give it an identity if it has none. Raises redis.RedisError."""

        async def ask(*command: str | int) -> Any:
            return self._client.execute_command(*command)  # type: ignore[no-untyped-call]  # redis-py's own

        run_without_loop(self.check(ask, creates_identity=True))
        known = self._known
        if not (self._file and known) or self._stored.get(self._address) == known:
            return
        if self._clock() - self._stored_at >= KEEP_SECONDS:  # the file survives this process
            self._stored_at = self._clock()
            self._stored[self._address] = known
            self._file.keep(self._address, known)

    async def check(self, ask: Ask, *, creates_identity: bool = False) -> None:
        """Check the server behind a connection. Raises redis.RedisError: the connection must not be used.

        With `creates_identity`, a server without an identity is given one: it was checked to be fit before.
        """
        known = self._known  # what is learned from here on may be newer than the answer
        state = ServerState.of(await ask("MGET", *self._keys))
        if state.halted:
            self._refusing.clear()
            if not self._halt:
                log.error("redis.halted", extra=self._extra(HaltReason.read(state.halted)) | {"advice": CURE})
            self._halt = state.halted
            return
        if known is None:  # what was stored for this server before this process began, at whatever address
            stored = (watermark for watermark in self._stored.values() if watermark.id in state.ids)
            known = max(stored, key=lambda watermark: watermark.n, default=None)
        if state.forgot(known) and known:
            await self._write_halt(ask, known, state)
            return
        if creates_identity and not state.ids:
            await ask("SET", self._keys[1], random_id(8), "NX")
            state = ServerState.of(await ask("MGET", *self._keys))
        self._learn(state)

    def watch(self) -> None:
        """Check again and again in the background for the life of this process. A second call does nothing."""
        with self._learning:
            if self._watching == os.getpid():  # a thread does not survive a fork
                return
            self._watching = os.getpid()
        threading.Thread(target=self._watch, name="data-loss-guard", daemon=True).start()

    def _watch(self) -> None:
        while True:
            try:
                self.look()
            except RedisError:  # away: the callers of Redis notice it themselves
                pass
            except Exception:
                # Nothing would restart this thread.
                log.exception("watermark.check_failed")
            time.sleep(LOOK_SECONDS)

    async def _write_halt(self, ask: Ask, known: Watermark, state: ServerState) -> None:
        """Write the halt into the server. Until that succeeds, this process refuses by itself."""
        same, seconds = known.id in state.ids, None
        with self._learning:
            moments = list(self._moments)
        if same and moments and moments[0][1] <= state.n:  # this process saw how long the server went on after that
            last, _ = moments[-1]
            seconds = last - next((at for at, seen in moments if seen > state.n), last) + LOOK_SECONDS
        halt = HaltReason(known.id, known.n, state.n if same else 0, seconds)
        text = _HALT_REASON.dump_json(halt).decode()
        try:
            done = await ask("EVAL", _HALT, len(self._keys), *self._keys, known.id, known.n, text)
        except (ReadOnlyError, BusyLoadingError):  # a replica, or still loading: proves nothing
            raise
        except ResponseError as exc:
            self._refusing.set()
            log.error("redis.not_halted", extra={"reason": str(exc)})
            raise Halted from exc
        if not done:  # resumed meanwhile: the next check will show it
            return
        self._refusing.clear()
        log.error("redis.rolled_back", extra=self._extra(halt) | {"advice": CURE})
        self._halt = text

    def _extra(self, halt: HaltReason) -> dict[str, Any]:
        seconds = "unknown" if halt.seconds is None else f"{halt.seconds:.1f}"
        return {"remembered": halt.remembered, "found": halt.found, "lost_seconds": seconds}

    def _learn(self, state: ServerState) -> None:
        with self._learning:
            known = self._known
            if state.ids and (known is None or known.id not in state.ids):
                self._known = Watermark(state.ids[0], state.n)
            elif known and state.n > known.n:
                self._known = replace(known, n=state.n)
            if known != self._known:
                self._moments.append((self._clock(), state.n))
        self._refusing.clear()
        if self._halt:
            log.warning("redis.resumed")
            self._halt = ""


def keys_of(prefix: str = PREFIX) -> tuple[str, str, str]:
    """Return the keys of a server's watermark, of its identities, and of its halt."""
    return f"{prefix}tide", f"{prefix}founded", f"{prefix}halted"


@dataclass(frozen=True, slots=True)
class Resumed:
    """What was done before a server resumed: conversations whose numbers were raised, waiting replies that are marked
    as possibly repeated, and open actions that were closed.
    """

    halt: HaltReason
    conversations: int
    replies: int
    actions: int


def halt_of(client: Redis, *, prefix: str = PREFIX) -> HaltReason | None:
    """Return why a server is halted, None when it is not. Raises redis.RedisError."""
    text = client.get(keys_of(prefix)[2])
    return HaltReason.read(str(text)) if text else None


def resume(client: Redis, *, prefix: str = PREFIX) -> Resumed | None:
    """Let a halted server go on. Return None if it is not halted. If it is killed midway, run it again.

    Raises redis.RedisError.
    """
    found = ServerState.of(client.mget(keys_of(prefix)))
    if not found.halted:
        return None
    halt = HaltReason.read(found.halted)
    floor = max(halt.remembered, found.n) + RESUME_STEP
    try:
        done = _prepare(LuaScripts(client, LUA, prefix=prefix), client, floor, prefix)
    except ResponseError as exc:
        if str(exc).startswith(RESUMED):  # by another operator, at the same time
            return None
        raise
    ids = list(dict.fromkeys([*([halt.id] if halt.id else []), *found.ids]))[:MAX_IDS]
    client.eval(_LIFT, 3, *keys_of(prefix), " ".join(ids), floor, found.halted)
    return Resumed(halt, *done)


def _prepare(scripts: LuaScripts, client: Redis, floor: int, prefix: str) -> tuple[int, int, int]:
    """Raise all numbers above the floor. Shards first, so that what begins from then on is above it, too."""
    for shard in range(SHARDS):
        scripts.on_shard("resume_shard", shard, {"floor": floor})
    conversations = replies = actions = 0
    for key in client.scan_iter(match=f"{prefix}{{*", count=SCAN_COUNT):
        found = _KEY.fullmatch(str(key).removeprefix(prefix))
        if found and found[2] == "lane":
            replies += scripts.run("resume_conversation", found[3], {"floor": floor})
            conversations += 1
        elif found:
            actions += scripts.on_shard("resume_action", int(found[1]), {"pid": found[3]})
    return conversations, replies, actions
