"""Deployment: claim a deployment name on a Redis, so that no second bot shares its keys and queue.

Two bots under one name would take each other's turns off the queue. Every process claims the name
of its bot at start. A claim is refused while workers of a bot with other secret keys, or with none
of its channels, are alive.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from redis import Redis
from redis.client import Pipeline

from sayso.infra.redis.client import PREFIX, RedisUnfit
from sayso.pending.sharded_scripts import LAYOUT
from sayso.workers.recovery import GONE_SECONDS

#: Digits of the digest of a secret key or an account.
_DIGITS = 16


@dataclass(frozen=True, slots=True)
class Deployment:
    """One bot's claim to a deployment name.

    `channels` are its channels by name, each with its platform and account.
    """

    name: str
    keys: Sequence[str] = field(repr=False)
    channels: Mapping[str, str]

    def claim(self, client: Redis, *, prefix: str = PREFIX, worker: str = "") -> None:
        """Take the name, or share it with processes of the same bot.
        `worker` is the name of this process's own heartbeat.

        Raises RedisUnfit while workers of another bot use it, redis.RedisError.
        """
        key = f"{prefix}deployment"

        def claim(pipe: Pipeline) -> None:
            before = json.loads(str(pipe.get(key) or "null"))
            if before and not self._is_same_bot(before):
                now, _ = client.time()
                if set(client.zrangebyscore(f"{prefix}workers", now - GONE_SECONDS, "+inf")) - {
                    worker
                }:
                    raise RedisUnfit(self._refusal(before))
            pipe.multi()
            pipe.set(key, self._record(check_layout(before, self.name) if before else LAYOUT))

        client.transaction(claim, key)  # once more, if another process claims the name meanwhile

    def _is_same_bot(self, other: Mapping[str, Sequence[str]]) -> bool:
        """Return whether the record shares a key and a channel with this bot."""
        mine = json.loads(self._record(LAYOUT))
        return all(set(mine[part]) & set(other[part]) for part in ("keys", "channels"))

    def _record(self, layout: int) -> str:
        channels = [f"{name} {_digest(account)}" for name, account in sorted(self.channels.items())]
        return json.dumps({"v": layout, "keys": key_digests(self.keys), "channels": channels})

    def _refusal(self, other: Mapping[str, Sequence[str]]) -> str:
        theirs = ", ".join(channel.partition(" ")[0] for channel in other["channels"])
        if set(key_digests(self.keys)) & set(other["keys"]):
            cure = "give this configuration a `name:` of its own"
        else:
            cure = (
                "give this configuration a `name:` of its own; if it is the same bot on another machine, give both the "
                "same SAYSO_SECRET_KEYS"
            )
        return f"another bot uses the name {self.name!r} on this Redis, with the channels {theirs}: {cure}"


def check_layout(record: Mapping[str, Any], name: str) -> int:
    """Return the layout of the keys by a deployment's record. Only `sayso migrate` raises it.

    Raises RedisUnfit for one that this version does not know.
    """
    layout = int(record.get("v", 1))
    if layout > LAYOUT:
        raise RedisUnfit(
            f"the keys of {name!r} on this Redis have layout {layout}, and this version knows up to {LAYOUT}: a newer "
            "Sayso migrated them. Upgrade this process"
        )
    return layout


def key_digests(keys: Sequence[str]) -> list[str]:
    """Return what tells secret keys apart without telling them."""
    return [_digest(key) for key in keys]


def _digest(text: str) -> str:
    return hashlib.sha256(f"deployment {text}".encode()).hexdigest()[:_DIGITS]
