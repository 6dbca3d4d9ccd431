"""Deployment: claim a deployment name on a Redis, so that no second bot shares its keys and queue.

Keys and queue have the deployment name in their names. Two bots under one name would take each
other's turns off the queue. So every process claims the name of its bot at start. A claim is
refused while workers of another bot are alive: a bot is another one if it has other secret keys, or
none of the same channels.
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

#: How many digits a digest of a secret key or an account has.
_DIGITS = 16


@dataclass(frozen=True, slots=True)
class Deployment:
    """One bot's claim to a deployment name."""

    name: str
    #: The bot's secret keys. Only their digests are stored.
    keys: Sequence[str] = field(repr=False)
    #: The platform and account of each channel, by the channel's name.
    channels: Mapping[str, str]

    def claim(self, client: Redis, *, prefix: str = PREFIX, worker: str = "") -> None:
        """Take the name, or share it with processes of the same bot.

        `worker`: the name of this process's own heartbeat, "" for none. Raises RedisUnfit while
        workers of another bot use the name, and redis.RedisError.
        """
        key = f"{prefix}deployment"

        def check_and_store(pipe: Pipeline) -> None:
            stored = json.loads(str(pipe.get(key) or "null"))
            if stored and not self._is_same_bot(stored):
                now, _ = client.time()
                alive = client.zrangebyscore(f"{prefix}workers", now - GONE_SECONDS, "+inf")
                if set(alive) - {worker}:
                    raise RedisUnfit(self._refusal(stored))

            layout = LAYOUT
            if stored:
                layout = check_layout(stored, self.name)
            pipe.multi()
            pipe.set(key, self._record(layout))

        # It runs once more if another process claims the name meanwhile.
        client.transaction(check_and_store, key)

    def _is_same_bot(self, other: Mapping[str, Sequence[str]]) -> bool:
        """Return whether the record shares a key and a channel with this bot."""
        own = json.loads(self._record(LAYOUT))
        shares_a_key = bool(set(own["keys"]) & set(other["keys"]))
        shares_a_channel = bool(set(own["channels"]) & set(other["channels"]))
        return shares_a_key and shares_a_channel

    def _record(self, layout: int) -> str:
        """Return the record of this bot that is stored, as JSON. `layout`: of its keys."""
        channels = [f"{name} {_digest(account)}" for name, account in sorted(self.channels.items())]
        return json.dumps({"v": layout, "keys": key_digests(self.keys), "channels": channels})

    def _refusal(self, other: Mapping[str, Sequence[str]]) -> str:
        """Return why the name is refused, in words for an operator. `other`: that bot's record."""
        theirs = ", ".join(channel.partition(" ")[0] for channel in other["channels"])
        if set(key_digests(self.keys)) & set(other["keys"]):
            cure = "give this configuration a `name:` of its own"
        else:
            cure = (
                "give this configuration a `name:` of its own; if it is the same bot on another "
                "machine, give both the same SAYSO_SECRET_KEYS"
            )
        return (
            f"another bot uses the name {self.name!r} on this Redis, "
            f"with the channels {theirs}: {cure}"
        )


def check_layout(record: Mapping[str, Any], name: str) -> int:
    """Return the layout of the keys, as a deployment's record says.

    Only `sayso migrate` raises the layout. Raises RedisUnfit for one that this version does not
    know.
    """
    layout = int(record.get("v", 1))
    if layout > LAYOUT:
        raise RedisUnfit(
            f"the keys of {name!r} on this Redis have layout {layout}, and this version "
            f"knows up to {LAYOUT}: a newer Sayso migrated them. Upgrade this process"
        )
    return layout


def key_digests(keys: Sequence[str]) -> list[str]:
    """Return digests of secret keys, by which keys can be compared and not found out."""
    return [_digest(key) for key in keys]


def _digest(text: str) -> str:
    return hashlib.sha256(f"deployment {text}".encode()).hexdigest()[:_DIGITS]
