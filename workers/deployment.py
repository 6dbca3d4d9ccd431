"""Deployment: claim a deployment name on a Redis, so that no second bot shares its keys and queue.

Two bots under one name would take each other's turns off the queue. Every process claims the name of its bot at start.
A claim is refused while workers of a bot with other secret keys, or with none of its channels, are alive.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from redis import Redis

from sayso.pending.redis.client import PREFIX, RedisUnfit
from sayso.workers.recovery import GONE_SECONDS

#: Digits of the digest of a secret key or an account.
_DIGITS = 16
_CLAIM = """
-- Claim a deployment name. KEYS: the record, heartbeats of the workers. ARGV: the claim as JSON, own worker's name
-- or '', seconds after which a silent worker is gone. Returns the record that prevents it, or ''.
local before = redis.call('GET', KEYS[1])
local mine = cjson.decode(ARGV[1])
local function shares(one, other)
  for _, left in ipairs(one) do
    for _, right in ipairs(other) do
      if left == right then return true end
    end
  end
  return false
end
if before then
  local known = cjson.decode(before)
  if not (shares(known.keys, mine.keys) and shares(known.channels, mine.channels)) then
    local since = redis.call('TIME')[1] - ARGV[3]
    for _, worker in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], since, '+inf')) do
      if worker ~= ARGV[2] then return before end
    end
  end
end
redis.call('SET', KEYS[1], ARGV[1])
return ''
"""


@dataclass(frozen=True, slots=True)
class Deployment:
    """One bot's claim to a deployment name. `channels` are its channels by name, each with its platform and account."""

    name: str
    keys: Sequence[str] = field(repr=False)
    channels: Mapping[str, str]

    def claim(self, client: Redis, *, prefix: str = PREFIX, worker: str = "") -> None:
        """Take the name, or share it with processes of the same bot. `worker` is the name of this process's own
        heartbeat.

        Raises RedisUnfit while workers of another bot use it, redis.RedisError.
        """
        script = client.register_script(_CLAIM)
        taken = script(keys=[f"{prefix}deployment", f"{prefix}workers"], args=[self._record(), worker, GONE_SECONDS])
        if taken:
            raise RedisUnfit(self._refusal(json.loads(taken)))

    def _record(self) -> str:
        channels = [f"{name} {_digest(account)}" for name, account in sorted(self.channels.items())]
        return json.dumps({"v": 1, "keys": [_digest(key) for key in self.keys], "channels": channels})

    def _refusal(self, other: Mapping[str, Sequence[str]]) -> str:
        theirs = ", ".join(channel.partition(" ")[0] for channel in other["channels"])
        if {_digest(key) for key in self.keys} & set(other["keys"]):
            cure = "give this configuration a `name:` of its own"
        else:
            cure = (
                "give this configuration a `name:` of its own; if it is the same bot on another machine, give both the "
                "same SAYSO_SECRET_KEYS"
            )
        return f"another bot uses the name {self.name!r} on this Redis, with the channels {theirs}: {cure}"


def _digest(text: str) -> str:
    return hashlib.sha256(f"deployment {text}".encode()).hexdigest()[:_DIGITS]
