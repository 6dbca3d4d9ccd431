"""Founding: what a start makes sure of where there are several primaries: each has its name, and each shard a home."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from redis import Redis

from sayso.pending.redis.client import PREFIX, RedisUnfit
from sayso.pending.redis.scripts import SHARDS
from sayso.workers.sharding.shards import Primary, rendezvous

_SHARD = re.compile(r"\{(\d{1,2})\}:(?!home$)")


def check_alone(client: Redis, *, prefix: str = PREFIX) -> None:
    """Refuse to use a server as the only one that is one of several. Raises RedisUnfit, redis.RedisError."""
    name = client.get(f"{prefix}primary")
    if name:
        raise RedisUnfit(f"this Redis is primary {name!r} of several: name all of them in `shards`")


def found(shared: Redis, primaries: Sequence[Primary], *, prefix: str = PREFIX) -> None:
    """Name the servers and give each shard its home, where that was not done yet. Safe to repeat, and at once.

    What holds conversations already keeps them; what is free goes where `rendezvous` says. Raises RedisUnfit,
    redis.RedisError.
    """
    for primary in primaries:
        _name(primary, prefix)
    homes = _homes(shared, prefix)
    if not all(homes):
        _fill(shared, primaries, homes, prefix)
        homes = _homes(shared, prefix)
    by_name = {primary.name: primary.client for primary in primaries}
    unknown = sorted({name or "" for name in homes} - by_name.keys())
    if unknown:
        raise RedisUnfit(
            f"`shards` does not name {', '.join(unknown)}, where conversations are: name it, and empty it first with "
            "`sayso shards rebalance --without NAME`"
        )
    for name, client in by_name.items():
        _open(client, [shard for shard, home in enumerate(homes) if home == name], prefix)


def _name(primary: Primary, prefix: str) -> None:
    """A server keeps the name it was first given: two that were swapped, or a copy, would show it."""
    key = f"{prefix}primary"
    primary.client.set(key, primary.name, nx=True)
    known = primary.client.get(key)
    if known != primary.name:
        raise RedisUnfit(f"`shards` calls a server {primary.name!r} that is {known!r}: put its URL beside its own name")


def _homes(shared: Redis, prefix: str) -> list[str | None]:
    names: list[str | None] = shared.hmget(f"{prefix}map", [str(shard) for shard in range(SHARDS)])  # type: ignore[assignment]
    return names


def _fill(shared: Redis, primaries: Sequence[Primary], homes: Sequence[str | None], prefix: str) -> None:
    """Of several that do this at once, the first decides on each shard."""
    holders = _holders({primary.name: primary.client for primary in primaries}, prefix)
    if not shared.get(f"{prefix}primary") and _shards_in(shared, prefix):
        raise RedisUnfit("`redis_url` holds conversations: name that server in `shards` as well")
    names = [primary.name for primary in primaries]
    for shard in (shard for shard, home in enumerate(homes) if not home):
        shared.hsetnx(f"{prefix}map", str(shard), holders.get(shard) or rendezvous(shard, names))


def _holders(clients: Mapping[str, Redis], prefix: str) -> dict[int, str]:
    """Where shards are that somebody uses already, by the best claim to each."""
    claims: dict[int, dict[str, int]] = defaultdict(dict)
    for name, client in clients.items():
        for shard, claim in _claims(client, prefix).items():
            claims[shard][name] = claim
    return {shard: _best(shard, made) for shard, made in claims.items()}


def _best(shard: int, claims: Mapping[str, int]) -> str:
    best = sorted(name for name, claim in claims.items() if claim == max(claims.values()))
    if len(best) > 1:
        raise RedisUnfit(f"conversations of shard {shard} are on {' and '.join(best)}: keep one of them")
    return best[0]


def _claims(client: Redis, prefix: str) -> dict[int, int]:
    """How sure it is that a shard is here: open; closed, so that this copy is whole; or nothing denies it."""
    words = client.mget([f"{prefix}{{{shard}}}:home" for shard in range(SHARDS)])
    said = {shard: str(word) for shard, word in enumerate(words) if word}
    unsaid = dict.fromkeys(_shards_in(client, prefix) - said.keys(), 1)
    closed = {shard: 2 for shard, word in said.items() if word.startswith("closed")}
    opened = {shard: 3 for shard, word in said.items() if word.startswith(("open", "closing"))}
    return unsaid | closed | opened


def _shards_in(client: Redis, prefix: str) -> set[int]:
    """The shards of which a server holds any key, except what says whose home it is."""
    shards: set[int] = set()
    for key in client.scan_iter(match=f"{prefix}{{*", count=1000):
        if place := _SHARD.match(str(key).removeprefix(prefix)):
            shards.add(int(place[1]))
        if len(shards) == SHARDS:
            break
    return shards


def _open(client: Redis, shards: Sequence[int], prefix: str) -> None:
    """Let these shards in. Nothing is opened a second time: a home that was left keeps the word that says so."""
    pipe = client.pipeline(transaction=False)
    for shard in shards:
        pipe.set(f"{prefix}{{{shard}}}:home", "open", nx=True)
    pipe.execute()
