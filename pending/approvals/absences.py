"""RedisAbsences: stores until when people are away, and who decides for them meanwhile.

`sayso:absences` is a hash. A field is the name of a person. Its value is the text
"<until> <record>": the Unix seconds at which the absence ends, and the absence as JSON. Redis
deletes the key at the end of the last absence.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter
from redis import Redis

from sayso.infra.records import check_version, versioned
from sayso.infra.redis.client import PREFIX
from sayso.infra.redis.connections import Connections

#: How many people may be away at once.
MAX_ABSENCES = 10_000


class TooManyAbsences(Exception):
    """Raised when MAX_ABSENCES people are away already."""


@dataclass(frozen=True, slots=True)
class Absence:
    """Until when a person is away, and who decides for them meanwhile."""

    #: The name of the person (`KnownPerson.name`).
    person: str
    #: When the absence ends, in Unix seconds.
    until: float
    #: The name of the person who decides meanwhile, "" for nobody.
    stand_in: str = ""


_ABSENCE = TypeAdapter(Absence)

_SAVE_SCRIPT = """
-- Store an absence, and delete those that are over. Return 1, or 0 if too many people are away.
-- KEYS[1]: the absences. ARGV: the name of the person; the end in Unix seconds; the record; how many
--   people may be away
local name, ends_at, record, max_absences = unpack(ARGV)
local now = tonumber(redis.call('TIME')[1])
local last = tonumber(ends_at)
local count = 0
local fields = redis.call('HGETALL', KEYS[1])
for i = 1, #fields, 2 do
  local other_end = tonumber(string.match(fields[i + 1], '^(%d+) ') or '0')
  if fields[i] ~= name then
    if other_end <= now then
      redis.call('HDEL', KEYS[1], fields[i])
    else
      count = count + 1
      last = math.max(last, other_end)
    end
  end
end
if count >= tonumber(max_absences) then return 0 end
redis.call('HSET', KEYS[1], name, ends_at .. ' ' .. record)
redis.call('EXPIREAT', KEYS[1], last)
return 1
"""


class RedisAbsences:
    """The absences of a bot's people, in Redis. One per process.

    `clock` returns Unix seconds. All methods raise redis.RedisError, and OtherVersion for a record
    of another release. Each call is safe to repeat.
    """

    def __init__(
        self, client: Redis, *, prefix: str = PREFIX, clock: Callable[[], float] = time.time
    ) -> None:
        self._connections = Connections.of(client)
        self._key = f"{prefix}absences"
        self._clock = clock

    async def save(self, absence: Absence) -> None:
        """Store an absence in place of an earlier one. Raises TooManyAbsences."""
        record = versioned(_ABSENCE.dump_json(absence).decode())
        args = (absence.person, round(absence.until), record, MAX_ABSENCES)
        if not await self._ask("EVAL", _SAVE_SCRIPT, 1, self._key, *args):
            raise TooManyAbsences(f"{MAX_ABSENCES} people are away")

    async def end(self, names: Sequence[str]) -> bool:
        """Delete the absences under all names of a person. Return whether there was one."""
        return bool(await self._ask("HDEL", self._key, *names))

    async def find(self, names: Sequence[str]) -> Absence | None:
        """Return the current absence under all names of a person, None if there is none."""
        entries = await self._connections.ask_async("HMGET", self._key, *names)
        absences = [_absence_of(entry) for entry in entries if entry]
        return next((each for each in absences if each.until > self._clock()), None)

    async def all(self) -> list[Absence]:
        """Return all current absences, sorted by their end."""
        entries = await self._connections.ask_async("HVALS", self._key)
        absences = [_absence_of(entry) for entry in entries]
        current = [each for each in absences if each.until > self._clock()]
        return sorted(current, key=lambda each: (each.until, each.person))

    async def forget_stand_in(self, names: Sequence[str]) -> int:
        """Remove a colleague from the absences of others. Return how many absences have changed.

        `names`: all names of the colleague.
        """
        changed = 0
        for absence in await self.all():
            if absence.stand_in in names:
                await self.save(Absence(absence.person, absence.until))
                changed += 1
        return changed

    async def _ask(self, *command: str | int) -> Any:
        """Send a command that writes, and return its answer once the replicas have it."""
        return await self._connections.ask_async(*command, durable=True)


def _absence_of(entry: str) -> Absence:
    """Read a stored absence: "<until> <record>", see _SAVE_SCRIPT. Raises OtherVersion."""
    record = entry.partition(" ")[2]
    return _ABSENCE.validate_json(check_version(record))
