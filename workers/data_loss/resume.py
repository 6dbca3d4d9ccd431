"""Resume: let a Redis that was halted go on, or halt it by hand.

After a loss, Redis would give out numbers of turns, replies and leases a second time. So before it
goes on, all numbers are raised above every number that was ever given out, and open actions are
closed, because their decisions may be among the lost writes.
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
from sayso.infra.redis.scripts import RESUMED
from sayso.pending.sharded_scripts import ShardedScripts
from sayso.workers.data_loss.watermarks import (
    HaltReason,
    ShardState,
    ask_over,
    keys_of,
    read_shards,
)
from sayso.workers.scripts import CONVERSATION_SCRIPTS

#: How far above every known number the numbers go on after a resume: more than any counter rises
#: between two resumes.
RESUME_STEP = 1_000_000_000
#: How many identities a shard may have: those under which processes remember it.
MAX_IDENTITIES = 8
#: How many keys Redis looks at in one SCAN.
SCAN_COUNT = 1000
#: A key of a conversation or an action: the shard, the kind, and the id.
_KEY = re.compile(
    r"\{(?P<shard>\d{1,2})\}:(?P<kind>conversation|pending|standing):(?P<name>.+)", re.DOTALL
)
_LIFT = """
-- Remove the halt of a shard, unless it is another one by now. Return 1 if it was removed, else 0.
--
-- KEYS: as `ShardKeys` in Python
-- ARGV:
--   the identities of the shard, separated by spaces; '' to leave them
--   the lowest write counter to go on with
--   the halt that the caller has prepared for, as JSON
local write_counter, identities, halted = unpack(KEYS)
local new_identities, floor, prepared_halt = unpack(ARGV)
if redis.call('GET', halted) ~= prepared_halt then
  return 0
end
if new_identities ~= '' then
  redis.call('SET', identities, new_identities)
end
if tonumber(redis.call('GET', write_counter) or '0') < tonumber(floor) then
  redis.call('SET', write_counter, floor)
end
redis.call('DEL', halted)
return 1
"""


@dataclass(frozen=True, slots=True)
class Resumed:
    """What was done before a server resumed."""

    #: Why it was halted.
    halt: HaltReason
    #: How many conversations' numbers were raised.
    conversations: int
    #: How many waiting replies are marked as possibly sent before.
    replies: int
    #: How many open actions were closed.
    actions: int


def halts_of(client: Redis, *, prefix: str = PREFIX) -> Mapping[int, HaltReason]:
    """Return why shards are halted, by shard; empty if none is. Raises redis.RedisError."""
    states = _halted_states(client, prefix)
    return {shard: HaltReason.read(state.halted) for shard, state in states.items()}


def _halted_states(client: Redis, prefix: str) -> dict[int, ShardState]:
    """Return what the server says of its halted shards."""
    answers = run_without_loop(
        read_shards(ask_over(client), prefix, in_cluster=isinstance(client, ClusterClient))
    )
    states = {shard: ShardState.of(answer) for shard, answer in answers.items()}
    return {shard: state for shard, state in states.items() if state.halted}


def is_restoring(client: Redis, *, prefix: str) -> bool:
    """Return whether a restore has begun and not ended: a halted Redis holds part of a backup."""
    return backup_being_restored(client, prefix=prefix) > 0


def backup_being_restored(client: Redis, *, prefix: str) -> float:
    """Return when the backup was taken that is being restored, in Unix seconds; 0 for none."""
    return HaltReason.sum(halts_of(client, prefix=prefix).values()).backup_taken_at


def halt(client: Redis, reasons: Mapping[int, HaltReason], *, prefix: str = PREFIX) -> list[str]:
    """Halt shards although they lost nothing, such as those of a server that is being restored.

    `reasons`: by shard. Return the keys of the halts. Raises redis.RedisError.
    """
    keys = {keys_of(shard, prefix).halted: reason.to_json() for shard, reason in reasons.items()}
    pipe = client.pipeline(transaction=False)
    for key, reason in keys.items():
        pipe.set(key, reason)
    pipe.execute()
    return list(keys)


def resume(client: Redis, *, prefix: str = PREFIX, restored: bool = False) -> Resumed | None:
    """Let the halted shards go on. Return what was done, None if none is halted.

    `restored`: the shards were filled from a backup together with its audit ledger. Then the log
    goes on without a gap, and turns that waited in the backup do not run again. If this is killed
    midway, run it again. Raises redis.RedisError.
    """
    states = _halted_states(client, prefix)
    if not states:
        return None
    halts = {shard: HaltReason.read(state.halted) for shard, state in states.items()}
    floors = {
        shard: max(halt.remembered, states[shard].writes) + RESUME_STEP
        for shard, halt in halts.items()
    }
    scripts = ShardedScripts(client, CONVERSATION_SCRIPTS, prefix=prefix)
    reason = HaltReason.sum(halts.values())
    try:
        resumed = _prepare(scripts, client, floors, reason, prefix=prefix, restored=restored)
    except ResponseError as exc:
        # Another operator has resumed the server at the same time.
        if str(exc).startswith(RESUMED):
            return None
        raise

    for shard, halt in halts.items():
        state = states[shard]
        identities = list(state.identities)
        # The identity that processes remember comes first.
        if halt.identity:
            identities = [halt.identity, *identities]
        remembered = list(dict.fromkeys(identities))[:MAX_IDENTITIES]
        args = (" ".join(remembered), floors[shard], state.halted)
        client.eval(_LIFT, 3, *keys_of(shard, prefix), *args)
    return resumed


def _prepare(
    scripts: ShardedScripts,
    client: Redis,
    floors: Mapping[int, int],
    reason: HaltReason,
    *,
    prefix: str,
    restored: bool,
) -> Resumed:
    """Raise all numbers of the halted shards, and close their open actions. Return what was done.

    All standing yeses end.

    `floors`: the lowest new number of each halted shard.
    """
    # The shards come first, so that the numbers of what begins from then on are above them, too.
    for shard, floor in floors.items():
        scripts.on_shard("resume_shard", shard, {"floor": floor, "restored": restored})

    conversations = 0
    replies = 0
    actions = 0
    for key in client.scan_iter(match=f"{prefix}{{*", count=SCAN_COUNT):
        match = _KEY.fullmatch(str(key).removeprefix(prefix))
        if match is None:
            continue
        shard = int(match["shard"])
        name = match["name"]
        if shard not in floors:
            continue
        if match["kind"] == "standing":
            # A use or a revocation may be among the lost writes, so no yes stands any more.
            client.delete(key)
        elif match["kind"] == "conversation":
            args = {"floor": floors[shard], "restored": restored}
            replies += scripts.run("resume_conversation", name, args)
            conversations += 1
        else:
            actions += scripts.on_shard("resume_action", shard, {"action_id": name})
    return Resumed(reason, conversations, replies, actions)
