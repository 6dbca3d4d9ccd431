"""Resume a Redis that was halted because it had lost acknowledged writes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from redis import Redis
from redis.exceptions import ResponseError

from sayso.pending.redis.client import PREFIX
from sayso.pending.redis.scripts import RESUMED, SHARDS, LuaScripts
from sayso.workers.mailbox import LUA
from sayso.workers.redis.data_loss import HaltReason, ServerState, keys_of

#: How far above every known number the numbers go on after a resume: more than any counter rises between two resumes.
RESUME_STEP = 1_000_000_000
#: Identities that a server may have at most: those under which processes remember it.
MAX_IDS = 8
#: Keys that Redis looks at per SCAN.
SCAN_COUNT = 1000
_KEY = re.compile(r"\{(\d{1,2})\}:(lane|pending):(.+)", re.DOTALL)
_LIFT = """
-- Remove the halt. KEYS: tide (the watermark), founded (the identities), halted. ARGV: identities, watermark, reason.
if redis.call('GET', KEYS[3]) ~= ARGV[3] then return 0 end
redis.call('SET', KEYS[2], ARGV[1])
if tonumber(redis.call('GET', KEYS[1]) or '0') < tonumber(ARGV[2]) then redis.call('SET', KEYS[1], ARGV[2]) end
redis.call('DEL', KEYS[3])
return 1
"""


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
