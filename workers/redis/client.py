"""Tide: how much of ours a Redis server has done; one that knows less than it told somebody is halted.

Every script that writes raises the tide by one, and every process remembers the highest one it was told. A server that
comes back with a lower one has forgotten what it acknowledged: it was restarted on an old file, a replica that lagged
was promoted, or somebody emptied it. To go on would give out numbers of turns, replies and leases a second time. So
whoever notices writes that down there, and all scripts refuse until an operator says `sayso redis resume`.

What is compared was told before the question was asked, so connections that race each other, restarts that lose
nothing, processes that start or die, and clocks raise no alarm.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from redis import Redis
from redis.connection import Connection
from redis.exceptions import BusyLoadingError, ReadOnlyError, RedisError, ResponseError

from sayso.pending.redis.client import PREFIX, Connections
from sayso.pending.redis.scripts import CURE, Halted

log = logging.getLogger(__name__)

#: Seconds between two looks: a server that forgets less than what it did in them may go unnoticed.
LOOK_SECONDS = 0.25
#: Seconds between two notes in the data folder.
KEEP_SECONDS = 1.0
#: Changes of the tide that a process remembers with their moments: about ten busy minutes.
MOMENTS = 2400

_HALT = """
-- Halt this server if it still knows less than somebody was told. KEYS: tide, founded, halted. ARGV: identity, tide,
-- what is noted. Sent again, or by another process, the first note stays.
local known = ' ' .. (redis.call('GET', KEYS[2]) or '') .. ' '
local same = string.find(known, ' ' .. ARGV[1] .. ' ', 1, true)
if same and tonumber(redis.call('GET', KEYS[1]) or '0') >= tonumber(ARGV[2]) then return 0 end
redis.call('SET', KEYS[3], ARGV[3], 'NX')
return 1
"""

Command = tuple[str | int, ...]
#: A talk with a server: yields what is asked, is sent the answers.
Talk = Generator[Command, Any, None]


@dataclass(frozen=True, slots=True)
class Watermark:
    """What a server was: its identity, and its tide."""

    id: str
    n: int


@dataclass(frozen=True, slots=True)
class ServerState:
    """What a server says of itself: the names of its identity, its tide, and why it is halted, "" if it is not."""

    ids: tuple[str, ...] = ()
    n: int = 0
    halted: str = ""

    @classmethod
    def of(cls, answers: Sequence[Any]) -> ServerState:
        """The answers to what `keys_of` names."""
        tide, founded, halted = (str(answer or "") for answer in answers)
        return cls(tuple(founded.split()), int(tide) if tide.isdigit() else 0, halted)

    def forgot(self, known: Watermark | None) -> bool:
        """Whether it knows less than somebody was told. Where nothing was done yet, nothing is forgotten."""
        if known is None or known.n == 0:
            return False
        return known.id not in self.ids or self.n < known.n


@dataclass(frozen=True, slots=True)
class HaltReason:
    """Why a server is halted: what somebody remembers of it, what it knows itself, and of how many seconds it lacks the
    work, as far as that is known.
    """

    id: str
    remembered: int
    found: int
    seconds: float | None = None

    @classmethod
    def read(cls, text: str) -> HaltReason:
        """The note in a server. One that somebody damaged says nothing but that it is there."""
        try:
            said = json.loads(text)
            seconds = None if said["seconds"] is None else float(said["seconds"])
            return cls(str(said["id"]), int(said["remembered"]), int(said["found"]), seconds)
        except (ValueError, TypeError, KeyError):
            return cls("", 0, 0)

    def __str__(self) -> str:
        if not self.found:
            return f"everything it knew is gone ({self.remembered:,} steps)"
        missing = f"{self.remembered - self.found:,} of {self.remembered:,} steps are missing"
        return missing if self.seconds is None else f"{missing}, about the last {self.seconds:.1f} s of them"


class WatermarkStore(Protocol):
    """Where tides are remembered across restarts."""

    def read(self) -> Mapping[str, Watermark]:
        """The last mark of each place; empty when nothing can be read."""

    def keep(self, place: str, mark: Watermark) -> None:
        """Note what a server at a place was. Failing is no error."""


class NoNotes:
    """Remembers nothing."""

    def read(self) -> Mapping[str, Watermark]:
        """Nothing."""
        return {}

    def keep(self, place: str, mark: Watermark) -> None:
        """Not at all."""


class DataLossGuard:
    """One server's tide, as this process remembers it; one per process and server, for all of its connections."""

    def __init__(
        self,
        client: Redis,
        notes: WatermarkStore | None = None,
        *,
        prefix: str = PREFIX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._notes = notes or NoNotes()
        self._place = place_of(client)
        self._keys = keys_of(prefix)
        self._clock = clock
        self._noted = dict(self._notes.read())
        self._known = self._noted.get(self._place)
        self._noted_at = float("-inf")
        self._moments: deque[tuple[float, int]] = deque(maxlen=MOMENTS)
        self._halt = ""
        self._refusing = False
        self._learning = threading.Lock()
        self._watching = 0

    @property
    def known(self) -> Watermark | None:
        """The highest tide this process was told, None before it was told any."""
        return self._known

    @property
    def trouble(self) -> str:
        """Why nothing is done on this server, in words for its operator; "" when all is well."""
        return CURE if self._halt or self._refusing else ""

    def guard(self, client: Redis) -> None:
        """Have every connection that this client makes from now on, and its loop's, look at the tide first."""
        client.connection_pool.connection_kwargs["redis_connect_func"] = self.greet
        connections = Connections.of(client)
        connections.before = self.refuse
        if connections.wire:
            connections.wire.greeting = self.talk

    def refuse(self) -> None:
        """Raises Halted where this server is known to have forgotten something, and could not be told so."""
        if self._refusing:
            raise Halted

    def greet(self, connection: Connection) -> None:
        """The first words on a new connection. Raises redis.RedisError: it must not be used."""
        connection.on_connect()  # type: ignore[no-untyped-call]  # redis-py's own

        def ask(*command: str | int) -> Any:
            connection.send_command(*command)  # type: ignore[no-untyped-call]  # redis-py's own
            return connection.read_response()

        hold(self.talk(), ask)

    def look(self) -> None:
        """Ask the server for its tide, and give it an identity if it has none. Raises redis.RedisError."""
        hold(self.talk(founds=True), self._client.execute_command)
        self._keep()

    def talk(self, *, founds: bool = False) -> Talk:
        """What is asked of a server before it is trusted. Raises redis.RedisError: it is not.

        With `founds`, one without an identity is given one: it was found fit before.
        """
        known = self._known  # what is learnt from here on is no evidence against the answer
        found = ServerState.of((yield ("MGET", *self._keys)))
        if found.halted:
            self._note_halt(found.halted)
            return
        known = known or self._remembered(found)
        if found.forgot(known) and known:
            yield from self._halting(known, found)
            return
        if founds and not found.ids:
            yield ("SET", self._keys[1], secrets.token_hex(8), "NX")
            found = ServerState.of((yield ("MGET", *self._keys)))
        self._learn(found)

    def watch(self) -> None:
        """Look again and again in the background, for as long as this process lives. Called again it does nothing."""
        with self._learning:
            if self._watching == os.getpid():  # a thread does not survive a fork
                return
            self._watching = os.getpid()
        threading.Thread(target=self._watch, name="tide", daemon=True).start()

    def _watch(self) -> None:
        while True:
            try:
                self.look()
            except RedisError:  # away: whoever asks it for something hears so
                pass
            except Exception:
                # The rim of a thread that nobody would start again.
                log.exception("tide.failed")
            time.sleep(LOOK_SECONDS)

    def _remembered(self, found: ServerState) -> Watermark | None:
        """What was noted of this server before this process began, wherever it was reached then."""
        marks = [mark for mark in self._noted.values() if mark.id in found.ids]
        return max(marks, key=lambda mark: mark.n, default=None)

    def _halting(self, known: Watermark, found: ServerState) -> Talk:
        """Write it down there. Until that is done, this process refuses by itself."""
        same = known.id in found.ids
        halt = HaltReason(known.id, known.n, found.n if same else 0, self._seconds_since(found.n) if same else None)
        try:
            done = yield ("EVAL", _HALT, len(self._keys), *self._keys, known.id, known.n, json.dumps(asdict(halt)))
        except (ReadOnlyError, BusyLoadingError):  # no primary, or not yet one: it is no witness
            raise
        except ResponseError as exc:
            self._refusing = True
            log.error("redis.not_halted", extra={"reason": str(exc)})
            raise Halted from exc
        if not done:  # somebody resumed it meanwhile: the next look learns so
            return
        self._refusing = False
        log.error("redis.rolled_back", extra=self._extra(halt) | {"advice": CURE})
        self._halt = json.dumps(asdict(halt))

    def _note_halt(self, text: str) -> None:
        self._refusing = False
        if not self._halt:
            log.error("redis.halted", extra=self._extra(HaltReason.read(text)) | {"advice": CURE})
        self._halt = text

    def _extra(self, halt: HaltReason) -> dict[str, Any]:
        seconds = "unknown" if halt.seconds is None else f"{halt.seconds:.1f}"
        return {"remembered": halt.remembered, "found": halt.found, "lost_seconds": seconds}

    def _learn(self, found: ServerState) -> None:
        with self._learning:
            known = self._known
            if found.ids and (known is None or known.id not in found.ids):
                self._known = Watermark(found.ids[0], found.n)
            elif known and found.n > known.n:
                self._known = replace(known, n=found.n)
            if known != self._known:
                self._moments.append((self._clock(), found.n))
        self._refusing = False
        if self._halt:
            log.warning("redis.resumed")
            self._halt = ""

    def _seconds_since(self, n: int) -> float | None:
        """How long this server went on, as far as this process saw it, after its tide was at n."""
        with self._learning:
            moments = list(self._moments)
        if not moments or moments[0][1] > n:
            return None
        last, _ = moments[-1]
        return last - next((at for at, seen in moments if seen > n), last) + LOOK_SECONDS

    def _keep(self) -> None:
        """Note the tide where it outlives this process."""
        known = self._known
        if known is None or self._noted.get(self._place) == known or self._clock() - self._noted_at < KEEP_SECONDS:
            return
        self._noted_at = self._clock()
        self._noted[self._place] = known
        self._notes.keep(self._place, known)


def keys_of(prefix: str = PREFIX) -> tuple[str, str, str]:
    """The keys of a server's tide, of its identity, and of why it is halted."""
    return f"{prefix}tide", f"{prefix}founded", f"{prefix}halted"


def place_of(client: Redis) -> str:
    """Where a client's server is, without its password."""
    where = client.connection_pool.connection_kwargs
    host = where.get("path") or f"{where.get('host', 'localhost')}:{where.get('port', 6379)}"
    return f"{host}/{where.get('db', 0)}"


def hold(talk: Talk, ask: Callable[..., Any]) -> None:
    """Have a talk over something that answers commands. Raises what `ask` and the talk raise."""
    try:
        command = next(talk)
        while True:
            command = _told(talk, ask, command)
    except StopIteration:
        return


def _told(talk: Talk, ask: Callable[..., Any], command: Command) -> Command:
    try:
        answer = ask(*command)
    except RedisError as exc:
        return talk.throw(exc)
    return talk.send(answer)
