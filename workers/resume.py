"""Resume: lets a halted Redis go on, after making sure that no number is given out there a second time."""

from __future__ import annotations

import re
from dataclasses import dataclass

from redis import Redis
from redis.exceptions import ResponseError

from sayso.workers.mailbox import LUA
from sayso.workers.redis import PREFIX, RESUMED, Scripts
from sayso.workers.tide import Found, Halt, keys_of

#: How far beyond all that a server knows, and that anybody remembers of it, its numbers go on: more than any counter
#: rises between two resumes.
STRIDE = 1_000_000_000
#: Names that a server's identity may have: those under which processes remember it.
MAX_IDS = 8
#: Keys that a server looks at per SCAN.
LOOK = 1000

_KEY = re.compile(r"\{(\d{1,2})\}:(lane|pending):(.+)", re.DOTALL)

_LIFT = """
-- Go on. KEYS: tide, founded, halted. ARGV: names of the identity, tide, why it was halted.
if redis.call('GET', KEYS[3]) ~= ARGV[3] then return 0 end
redis.call('SET', KEYS[2], ARGV[1])
if tonumber(redis.call('GET', KEYS[1]) or '0') < tonumber(ARGV[2]) then redis.call('SET', KEYS[1], ARGV[2]) end
redis.call('DEL', KEYS[3])
return 1
"""


@dataclass(frozen=True, slots=True)
class Resumed:
    """What was done before a server went on: lanes whose numbers were raised, replies that go out marked as perhaps
    repeated, actions that nobody may decide any more.
    """

    halt: Halt
    lanes: int
    replies: int
    actions: int


def halt_of(client: Redis, *, prefix: str = PREFIX) -> Halt | None:
    """Why a server is halted, None when it is not. Raises redis.RedisError."""
    text = client.get(keys_of(prefix)[2])
    return Halt.read(str(text)) if text else None


def tide_of(client: Redis, *, prefix: str = PREFIX) -> int:
    """A server's tide. Raises redis.RedisError."""
    return Found.of(client.mget(keys_of(prefix))).n


def resume(client: Redis, *, beyond: int = 0, gated: bool = False, prefix: str = PREFIX) -> Resumed | None:
    """Let a halted server go on; None when it is not halted (any more). Killed anywhere, it is run again.

    `gated` servers are several: only shards that are at home there are prepared, and `beyond` is the highest tide of
    all, because shards move with their numbers. Raises redis.RedisError.
    """
    found = Found.of(client.mget(keys_of(prefix)))
    if not found.halted:
        return None
    halt = Halt.read(found.halted)
    floor = max(halt.remembered, found.n, beyond) + STRIDE
    try:
        done = _prepare(Scripts(client, LUA, prefix=prefix, gated=gated), client, floor, prefix)
    except ResponseError as exc:
        if str(exc).startswith(RESUMED):  # by somebody else, at the same time
            return None
        raise
    ids = list(dict.fromkeys([*([halt.id] if halt.id else []), *found.ids]))[:MAX_IDS]
    client.eval(_LIFT, 3, *keys_of(prefix), " ".join(ids), floor, found.halted)
    return Resumed(halt, *done)


def _prepare(scripts: Scripts, client: Redis, floor: int, prefix: str) -> tuple[int, int, int]:
    """Shards first: what is begun from then on is beyond the floor, too."""
    for shard in sorted(scripts.at_home()):
        scripts.on_shard("resume_shard", shard, floor)
    lanes = replies = actions = 0
    for key in client.scan_iter(match=f"{prefix}{{*", count=LOOK):
        found = _KEY.fullmatch(str(key).removeprefix(prefix))
        if found and found[2] == "lane":
            replies += scripts.evaluate("resume_lane", int(found[1]), found[3], floor)
            lanes += 1
        elif found:
            actions += scripts.on_shard("resume_action", int(found[1]), found[3])
    return lanes, replies, actions
