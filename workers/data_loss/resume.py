"""Resume: let a Redis that was halted go on, with numbers above all that it gave out before;
or halt it by hand.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from redis import Redis
from redis.exceptions import ResponseError

from sayso.infra.concurrency import run_without_loop
from sayso.infra.redis.client import PREFIX
from sayso.infra.redis.cluster import ClusterClient
from sayso.infra.redis.scripts import RESUMED, Arguments
from sayso.pending.sharded_scripts import ShardedScripts
from sayso.workers.data_loss.watermarks import (
    HaltReason,
    ShardState,
    ask_over,
    keys_of,
    read_shards,
)
from sayso.workers.scripts import CONVERSATION_SCRIPTS

#: How far above every known number the numbers go on after a resume:
#: more than any counter rises between two resumes.
RESUME_STEP = 1_000_000_000
#: Identities that a shard may have at most: those under which processes remember it.
MAX_IDENTITIES = 8
#: Keys that Redis looks at per SCAN.
SCAN_COUNT = 1000
#: A key that tells a server that is halted by a restore from one that lost data.
RESTORING = "restoring"
_KEY = re.compile(r"\{(\d{1,2})\}:(conversation|pending):(.+)", re.DOTALL)
_LIFT = """
-- Remove the halt, unless it is another one by now. KEYS: write counter, identities, halted. ARGV: the
-- identities, the lowest write counter to go on with, and the halt as JSON.
if redis.call('GET', KEYS[3]) ~= ARGV[3] then
  return 0
end
if ARGV[1] ~= '' then
  redis.call('SET', KEYS[2], ARGV[1])
end
if tonumber(redis.call('GET', KEYS[1]) or '0') < tonumber(ARGV[2]) then
  redis.call('SET', KEYS[1], ARGV[2])
end
redis.call('DEL', KEYS[3])
return 1
"""


@dataclass(frozen=True, slots=True)
class Resumed:
    """What was done before a server resumed: conversations whose numbers were raised, waiting
    replies that are marked as possibly repeated, and open actions that were closed.
    """

    halt: HaltReason
    conversations: int
    replies: int
    actions: int


def halts_of(client: Redis, *, prefix: str = PREFIX) -> Mapping[int, HaltReason]:
    """Return why shards are halted, by shard; nothing when none is. Raises redis.RedisError."""
    return {
        shard: HaltReason.read(state.halted)
        for shard, state in _halted_states(client, prefix).items()
    }


def _halted_states(client: Redis, prefix: str) -> dict[int, ShardState]:
    answers = run_without_loop(
        read_shards(ask_over(client), prefix, in_cluster=isinstance(client, ClusterClient))
    )
    states = {shard: ShardState.of(answer) for shard, answer in answers.items()}
    return {shard: state for shard, state in states.items() if state.halted}


def is_restoring(client: Redis, *, prefix: str) -> bool:
    """Return whether a restore has begun and not ended: Redis is halted,
    and holds a part of a backup.
    """
    return bool(client.exists(f"{prefix}{RESTORING}")) and bool(halts_of(client, prefix=prefix))


def backup_being_restored(client: Redis, *, prefix: str) -> float:
    """Return when the backup was taken whose restore has begun and not ended, in Unix seconds;
    0 for none.
    """
    if not is_restoring(client, prefix=prefix):
        return 0.0
    return float(client.get(f"{prefix}{RESTORING}") or 0)


def halt(client: Redis, reasons: Mapping[int, HaltReason], *, prefix: str = PREFIX) -> list[str]:
    """Halt shards whatever they know, such as those of a server that is being restored.

    Return the keys of the halts.

    Raises redis.RedisError.
    """
    keys = {keys_of(shard, prefix).halted: reason.to_json() for shard, reason in reasons.items()}
    pipe = client.pipeline(transaction=False)
    for key, reason in keys.items():
        pipe.set(key, reason)
    pipe.execute()
    return list(keys)


def resume(client: Redis, *, prefix: str = PREFIX, restored: bool = False) -> Resumed | None:
    """Let the halted shards go on.

    Return None if none is halted. If it is killed midway, run it again.

    `restored`: they were filled from a backup together with its audit ledger. The log then goes on
    without a gap, and turns that waited in the backup do not run again. Raises redis.RedisError.
    """
    states = _halted_states(client, prefix)
    if not states:
        return None
    halts = {shard: HaltReason.read(state.halted) for shard, state in states.items()}
    floors = {
        shard: max(halt.remembered, states[shard].writes) + RESUME_STEP
        for shard, halt in halts.items()
    }
    try:
        done = _prepare(
            ShardedScripts(client, CONVERSATION_SCRIPTS, prefix=prefix),
            client,
            floors,
            prefix,
            {"restored": restored},
        )
    except ResponseError as exc:
        if str(exc).startswith(RESUMED):  # by another operator, at the same time
            return None
        raise
    for shard, halt in halts.items():
        identities = dict.fromkeys(states[shard].identities)
        if halt.identity:  # first, since processes remember it
            identities = {halt.identity: None, **identities}
        kept = " ".join(list(identities)[:MAX_IDENTITIES])
        state = states[shard]
        client.eval(_LIFT, 3, *keys_of(shard, prefix), kept, floors[shard], state.halted)
    return Resumed(HaltReason.sum(halts.values()), *done)


def _prepare(
    scripts: ShardedScripts, client: Redis, floors: Mapping[int, int], prefix: str, args: Arguments
) -> tuple[int, int, int]:
    """Raise all numbers above the floors.

    Shards first, so that what begins from then on is above them, too.
    """
    for shard, floor in floors.items():
        scripts.on_shard("resume_shard", shard, {"floor": floor, **args})
    conversations = replies = actions = 0
    for key in client.scan_iter(match=f"{prefix}{{*", count=SCAN_COUNT):
        found = _KEY.fullmatch(str(key).removeprefix(prefix))
        shard = int(found[1]) if found else -1
        if not found or shard not in floors:
            continue
        if found[2] == "conversation":
            replies += scripts.run(
                "resume_conversation", found[3], {"floor": floors[shard], **args}
            )
            conversations += 1
        else:
            actions += scripts.on_shard("resume_action", shard, {"action_id": found[3]})
    return conversations, replies, actions
