"""Wire: runs the scripts on the model's clock, and reads what they stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from redis import Redis

from sayso.infra.redis.client import PREFIX
from sayso.infra.redis.scripts import LuaScript, ScriptFolder
from sayso.pending.sharded_scripts import shard_of
from tests.infra.redis.lua_source import CheckedScripts

#: The texts to replace and their replacements, by script; "*" stands for the texts that scripts share.
Patches = Mapping[str, Sequence[tuple[str, str]]]

#: Returns one digest of all stored data, except what changes without a change of a store:
#:   the write counter grows with each call;
#:   the limits on people's turns end after seconds of the server's clock, which the model does not stop.
#: DUMP writes a hash in its table's order, which a mere read may change, so the script sorts the fields.
_DIGEST = """
local all = {}
local keys = redis.call('KEYS', '*')
table.sort(keys)
for _, key in ipairs(keys) do
  local value
  local changes_alone = string.find(key, '}:write_counter$') or string.find(key, '}:rate_limit:')
  if redis.call('TYPE', key).ok == 'hash' then
    local names = redis.call('HKEYS', key)
    table.sort(names)
    value = cjson.encode({names, redis.call('HMGET', key, unpack(names))})
  else
    value = redis.call('DUMP', key)
  end
  if not changes_alone then table.insert(all, key .. redis.sha1hex(value)) end
end
return redis.sha1hex(table.concat(all))
"""


class Wire(CheckedScripts):
    """One folder of scripts on the model's clock, with a mutant's patches; `applied` holds the patched texts found."""

    def __init__(
        self, client: Redis, folder: ScriptFolder, patches: Patches, clock: Callable[[], float]
    ) -> None:
        """`clock` returns Unix seconds."""
        super().__init__(client, folder, clock=clock)
        self.applied: set[str] = set()
        self._scripts = {
            name: LuaScript.of(
                self._patched(script.text, [*patches.get("*", ()), *patches.get(name, ())])
            )
            for name, script in self._scripts.items()
        }

    def _patched(self, text: str, patches: Sequence[tuple[str, str]]) -> str:
        for old, new in patches:
            self.applied |= {old} if old in text else set()
            text = text.replace(old, new)
        return text


class Peek:
    """Reads the stored data directly."""

    def __init__(self, client: Redis) -> None:
        self._client = client
        self._digest = client.register_script(_DIGEST)

    def digest(self) -> str:
        """Return a digest of all stored data."""
        return str(self._digest())

    def states(self, conversation: str, pids: Sequence[str]) -> list[str]:
        """Return the states of these actions, "" for one that does not exist."""
        shard = f"{PREFIX}{{{shard_of(conversation)}}}"
        pipe = self._client.pipeline(transaction=False)
        for pid in pids:
            pipe.hget(f"{shard}:pending:{pid}", "state")
        return [state or "" for state in pipe.execute()]
