"""ShardedScripts: run Lua scripts, each in the shard of the conversation that it is about.

All keys of a conversation and of its pending actions are in one shard: they have the same hash tag.
So on a cluster they are on one node, and one script can change them together.
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

from sayso.infra.redis.scripts import NO_ARGUMENTS, Arguments, LuaScripts, Payload

#: Keys of conversations are spread over this many hash tags, `{0}` to `{63}`.
#: The number is part of the key layout.
SHARDS = 64
#: The version of the key layout. Version 2 has a write counter for each
#: shard in place of one for the server.
LAYOUT = 2
#: Stands for the conversation in the arguments of a script about a whole shard.
NO_CONVERSATION = "-"


def shard_of(conversation: str) -> int:
    """Return the shard of a conversation, from 0 to 63. It never changes.

    `conversation` is the id of the conversation (`Conversation.id`).
    """
    return crc32(conversation.encode()) % SHARDS


class ShardedScripts(LuaScripts):
    """The Lua scripts about conversations and their actions. Lives as long as its process.

    `conversation` is the id of a conversation. All methods that run a script raise
    redis.RedisError, Halted and OtherVersion, as LuaScripts says.
    """

    def run(
        self, name: str, conversation: str, args: Arguments = NO_ARGUMENTS, *payloads: Payload
    ) -> Any:
        """Run a script for one conversation and block. Return its answer."""
        named = {"conversation": conversation, **args}
        return self.run_on(name, shard_of(conversation), named, *payloads)

    async def arun(
        self, name: str, conversation: str, args: Arguments = NO_ARGUMENTS, *payloads: Payload
    ) -> Any:
        """Run a script for one conversation without blocking the event loop. Return its answer."""
        named = {"conversation": conversation, **args}
        return await self.arun_on(name, shard_of(conversation), named, *payloads)

    def on_shard(
        self, name: str, shard: int, args: Arguments = NO_ARGUMENTS, *payloads: Payload
    ) -> Any:
        """Run a script for a shard as a whole and block. Return its answer."""
        named = {"conversation": NO_CONVERSATION, **args}
        return self.run_on(name, shard, named, *payloads)

    def on_every_shard(self, name: str, args: Arguments = NO_ARGUMENTS) -> list[Any]:
        """Run a script once per shard, in order, and block. Return all answers."""
        return [self.on_shard(name, shard, args) for shard in range(SHARDS)]

    def conversation_key(self, conversation: str) -> str:
        """Return the key of a conversation's record: its numbers, its lease and its marks."""
        return f"{self.key_prefix(shard_of(conversation))}:conversation:{conversation}"
