"""The watermark of each shard: how many writing scripts it has run, what the server says of it,
and its file.

Three keys of a shard make it up: `tide` (the watermark), `founded` (the identities of the shard),
and `halted`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter
from redis import Redis
from redis.exceptions import ResponseError

from sayso.infra.redis.client import PREFIX
from sayso.infra.redis.cluster import ClusterClient
from sayso.infra.redis.connections import Connections
from sayso.infra.redis.scripts import SHARDS

log = logging.getLogger(__name__)

#: The file's name in the data folder.
FILE = "tide.json"
#: Addresses of servers that are remembered at most; the oldest is dropped.
MAX_ADDRESSES = 32


def keys_of(shard: int, prefix: str = PREFIX) -> tuple[str, str, str]:
    """Return the keys of a shard's watermark, of its identities, and of its halt."""
    key = f"{prefix}{{{shard}}}"
    return f"{key}:tide", f"{key}:founded", f"{key}:halted"


@dataclass(frozen=True, slots=True)
class Watermark:
    """An identity of a shard, and its watermark."""

    id: str
    n: int


#: The watermarks that are known, by shard.
Watermarks = Mapping[int, Watermark]


@dataclass(frozen=True, slots=True)
class ShardState:
    """What a server says of a shard: its identities, its watermark, and why it is halted,
    "" if it is not.
    """

    ids: tuple[str, ...] = ()
    n: int = 0
    halted: str = ""

    @classmethod
    def of(cls, answers: Sequence[Any]) -> ShardState:
        """Return the state from the answers to the keys of `keys_of`."""
        watermark, identities, halted = (str(answer or "") for answer in answers)
        return cls(tuple(identities.split()), int(watermark) if watermark.isdigit() else 0, halted)

    def forgot(self, known: Watermark | None) -> bool:
        """Return whether the shard knows less than was seen before. A shard without any writes has
        forgotten nothing.
        """
        if known is None or known.n == 0:
            return False
        return known.id not in self.ids or self.n < known.n


@dataclass(frozen=True, slots=True)
class HaltReason:
    """Why a shard is halted: the identity and watermark that were seen, the watermark it has now,
    and how many seconds of work it lost, if known.
    """

    id: str
    remembered: int
    found: int
    seconds: float | None = None

    @classmethod
    def read(cls, text: str) -> HaltReason:
        """Parse the halt of a shard. Of a damaged halt nothing is known but that it is there."""
        try:
            return _HALT_REASON.validate_json(text)
        except ValueError:
            return cls("", 0, 0)

    @classmethod
    def sum(cls, reasons: Iterable[HaltReason]) -> HaltReason:
        """Return what several shards lost together.

        A server that comes back lost the same seconds in all of them.
        """
        halts = list(reasons)
        seconds = [halt.seconds for halt in halts if halt.remembered > halt.found]
        known = [each for each in seconds if each is not None]
        return cls(
            halts[0].id if len(halts) == 1 else "",
            sum(halt.remembered for halt in halts),
            sum(halt.found for halt in halts),
            max(known) if known and len(known) == len(seconds) else None,
        )

    def to_json(self) -> str:
        """Return it as the text that is stored."""
        return _HALT_REASON.dump_json(self).decode()

    def __str__(self) -> str:
        if not self.found:
            return f"everything it knew is gone ({self.remembered:,} steps)"
        missing = f"{self.remembered - self.found:,} of {self.remembered:,} steps are missing"
        if self.seconds is None:
            return missing
        return f"{missing}, about the last {self.seconds:.1f} s of them"


_HALT_REASON = TypeAdapter(HaltReason)


Command = tuple[str | int, ...]
#: Sends commands over the connection that is checked, and returns the answers;
#: error replies are among them.
Ask = Callable[[Sequence[Command]], Awaitable[list[Any]]]


def ask_over(client: Redis) -> Ask:
    """Return what sends commands over any connection of a client."""
    if isinstance(client, ClusterClient):
        return client.ask_all
    connections = Connections.of(client)

    def answer(command: Command) -> Any:
        try:
            return connections.ask(*command)
        except ResponseError as exc:
            return exc

    async def ask(commands: Sequence[Command]) -> list[Any]:
        return [answer(command) for command in commands]

    return ask


def raise_error(answers: Iterable[Any]) -> None:
    """Raise the first answer that is an error."""
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer


async def read_shards(ask: Ask, prefix: str, *, in_cluster: bool) -> dict[int, Sequence[Any]]:
    """Return what a server answers to the keys of each shard: in one command, and on a cluster in
    one for each shard. Raises redis.RedisError.
    """
    answers = await ask(_questions(prefix, whole=not in_cluster))
    raise_error(answers)
    values = list(chain.from_iterable(answers))
    return {shard: values[3 * shard : 3 * shard + 3] for shard in range(SHARDS)}


@cache
def _questions(prefix: str, *, whole: bool) -> Sequence[Command]:
    keys = [keys_of(shard, prefix) for shard in range(SHARDS)]
    if whole:
        return [("MGET", *chain.from_iterable(keys))]
    return [("MGET", *each) for each in keys]


@dataclass(frozen=True, slots=True)
class _Stored:
    """The content of the file: the watermarks by address and shard."""

    version: Literal[2]
    servers: dict[str, dict[int, Watermark]]


_STORED = TypeAdapter(_Stored)
#: What earlier versions wrote: one watermark for each server. It says nothing about a shard.
_WITHOUT_SHARDS = TypeAdapter(dict[str, Watermark])


class WatermarkFile:
    """A small JSON file with watermarks, shared by all processes on a folder.
    It is replaced as a whole; numbers only rise.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> Mapping[str, Watermarks]:
        """Return the last watermarks of each address. A missing or damaged file counts as empty,
        and so does one that was written before each shard had a watermark of its own.
        """
        try:
            text = self._path.read_bytes()
        except FileNotFoundError:
            return {}
        except OSError as exc:
            log.warning("watermark.not_read", extra={"reason": type(exc).__name__})
            return {}
        try:
            return _STORED.validate_json(text).servers
        except ValueError as exc:
            if not _is_old(text):
                log.warning("watermark.not_read", extra={"reason": type(exc).__name__})
            return {}

    def keep(self, address: str, watermarks: Watermarks) -> None:
        """Store the watermarks of an address.

        Where another process stored a higher one, that one stays.
        """
        servers = {each: dict(stored) for each, stored in self.read().items()}
        before = servers.pop(address, {})
        servers[address] = before | {
            shard: watermark
            for shard, watermark in watermarks.items()
            if (old := before.get(shard)) is None or old.id != watermark.id or old.n <= watermark.n
        }
        stored = _Stored(2, dict(list(servers.items())[-MAX_ADDRESSES:]))
        new_file = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            new_file.write_bytes(_STORED.dump_json(stored))
            new_file.replace(self._path)
        except OSError as exc:
            log.warning("watermark.not_stored", extra={"reason": type(exc).__name__})


def _is_old(text: bytes) -> bool:
    try:
        return bool(_WITHOUT_SHARDS.validate_json(text))
    except ValueError:
        return False
