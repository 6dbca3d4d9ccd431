"""Books: after every step the data in Redis must be consistent: mailboxes, outboxes, work index and audit log."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from redis import Redis

from sayso.infra.redis.client import PREFIX
from sayso.pending.sharded_scripts import shard_of
from tests.model.world import CONVERSATIONS, ROOM, World

#: The transitions that an action may make; "" stands for a new action.
_MOVES = {
    "": "armed",
    "armed": "shown cancelled expired superseded",
    "shown": "claimed cancelled expired superseded",
    "claimed": "started failed cancelled superseded expired",
    "started": "started done failed unknown",
    "unknown": "done failed",
    "failed": "done",
}

_READ = """
local shard, found = KEYS[1], {}
local conversations = tonumber(ARGV[2])
for at = 3, 2 + conversations do
  local numbers_of = redis.call('HMGET', shard .. ':conversation:' .. ARGV[at], 'last_done_turn', 'last_turn', 'last_reply')
  local queues = {}
  for _, queue in ipairs({':inbox:', ':outbox:'}) do
    local numbers = {}
    for _, entry in ipairs(redis.call('LRANGE', shard .. queue .. ARGV[at], 0, -1)) do
      table.insert(numbers, string.match(entry, '^%d+'))
    end
    table.insert(queues, numbers)
  end
  local known = redis.call('ZSCORE', shard .. ':due', ARGV[at]) and 1 or 0
  table.insert(found, {numbers_of[1] or '0', numbers_of[2] or '0', numbers_of[3] or '0', queues[1], queues[2], known})
end
local states = {}
for at = 3 + conversations, #ARGV do
  table.insert(states, redis.call('HGET', shard .. ':pending:' .. ARGV[at], 'state') or '')
end
local log = shard .. ':audit'
return {redis.call('LRANGE', log, ARGV[1], -1), found, states, redis.call('GET', log .. ':head') or ''}
"""


class Books:
    """Checks the stored data of one example. It reads only new audit log entries."""

    def __init__(self, client: Redis, world: World) -> None:
        self._read = client.register_script(_READ)
        self._world = world
        self._entries = 0
        self._head = "0" * 40
        self._states: dict[str, str] = {}

    def check(self) -> None:
        """Read everything in one step and check it."""
        pids = list(self._world.proposals)
        args = [self._entries, len(CONVERSATIONS), *CONVERSATIONS, *pids]
        entries, conversations, states, head = self._read(
            keys=[f"{PREFIX}{{{shard_of(ROOM.id)}}}"], args=args
        )
        for entry in entries:
            self._entry(entry)
        if self._entries and head != f"{self._entries} {self._head}":
            self._world.broke("the log's head is its last entry", head)
        for step in (each for each in self._world.proposals.values() if each.plan):
            if self._is_open(step.pid) and not self._is_open(step.plan):
                self._world.broke("a plan's steps end with it", step.preview)
        for conversation, numbers in zip(CONVERSATIONS, conversations, strict=True):
            self._check_conversation(conversation, *numbers)
        if dict(zip(pids, states, strict=True)) != self._states:
            self._world.broke("the log tells the states that are stored", self._states, states)

    def count(self, event: str) -> int:
        """Return how many actions are in a state now."""
        return list(self._states.values()).count(event)

    def _is_open(self, pid: str) -> bool:
        return self._states.get(pid) in ("armed", "shown", "claimed", "started")

    def _entry(self, text: str) -> None:
        world, entry = self._world, json.loads(text)
        self._entries += 1
        if (entry["n"], entry["prev"]) != (self._entries, self._head):
            world.broke("each entry names the one before", text)
        self._head = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        self._move(entry["pid"], entry["event"])

    def _move(self, pid: str, event: str) -> None:
        world, before = self._world, self._states.get(pid, "")
        if event == "tightened":
            lawful = before == "shown"
        else:
            lawful = event in _MOVES.get(before, "").split()
            self._states[pid] = event
        if not lawful:
            world.broke("an action makes lawful moves", pid, before, event)
        if event == before == "started":
            proposal = world.proposals[pid]
            if not (proposal.idempotent or proposal.steps):
                world.broke("what may not be repeated is started once", proposal.preview)

    def _check_conversation(
        self,
        conversation: str,
        done: Any,
        received: Any,
        said: Any,
        turns: Any,
        replies: Any,
        due: int,
    ) -> None:
        world = self._world
        if [int(n) for n in turns] != list(range(int(done) + 1, int(received) + 1)):
            world.broke("the mailbox has no hole", conversation, done, received, turns)
        if [int(n) for n in replies] != list(range(int(said) - len(replies) + 1, int(said) + 1)):
            world.broke("the outbox has no hole", conversation, said, replies)
        if int(received) != world.received(conversation):
            world.broke("what was accepted is stored", conversation, received)
        if (turns or replies) and not due:
            world.broke("work is in the index", conversation)
        if not replies and any(
            self._states[each.pid] == "armed" for each in world.waiting(conversation)
        ):
            world.broke("what waits was shown, or is about to be", conversation)
