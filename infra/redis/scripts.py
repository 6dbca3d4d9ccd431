"""LuaScripts: run the Lua scripts of a folder in Redis, each in one round trip.

A script changes several keys in one step, and no other command of Redis runs meanwhile. Nothing
here knows what the scripts are about: a ScriptFolder says which there are and what they share.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from pydantic_core import to_json
from redis import Redis
from redis.exceptions import NoScriptError, RedisError, ResponseError

from sayso.infra.concurrency import run_without_loop
from sayso.infra.metrics import REDIS_ERRORS, REDIS_SECONDS
from sayso.infra.records import READABLE, VERSION, OtherVersion
from sayso.infra.redis.client import PREFIX
from sayso.infra.redis.cluster import ClusterClient
from sayso.infra.redis.connections import Connections, Halted

#: The hash tag of a script's keys, which stands in braces in their names. Keys with the same tag
#: are on one node of a cluster, and have one write counter.
Tag = int | str
#: The named arguments of a script. Numbers above 10^14 are passed as text, since Lua writes numbers
#: with 14 digits.
Arguments = Mapping[str, Any]
NO_ARGUMENTS: Arguments = {}
#: What a script gets in addition to its named arguments: texts and bytes that Redis stores or
#: compares exactly as they are. In Lua they are `ARGV[2]` and following.
Payload = str | bytes | int | float

#: The prefix of the names of scripts that prepare a halted server for going on.
RESUME = "resume"
#: The beginning of the error of a resume script on a server that is not halted.
RESUMED = "RESUMED"
#: The beginning of the error of any other script on a halted server.
_HALTED = "HALTED"
#: What stands in the error of a script that meets a record of a newer release. Redis adds where the
#: error was raised.
_OTHER_VERSION = re.compile(r"OTHER_VERSION (\d+)")

# The halt check, which each script runs before anything else. A server is halted after it has lost
# writes, until an operator resumes it.
_STOP_IF_HALTED = """\
if redis.call('EXISTS', shard .. ':halted') == 1 then
  return redis.error_reply('HALTED')
end
"""
_STOP_UNLESS_HALTED = """\
if redis.call('EXISTS', shard .. ':halted') == 0 then
  return redis.error_reply('RESUMED')
end
"""
# A shard with fewer writes than the caller has seen has lost writes, and does nothing. This is
# checked in each script, because a replica may be promoted without a new connection. A script that
# only reads compares the counter, all others count.
_COMPARE_WRITES = """\
if tonumber(redis.call('GET', shard .. ':write_counter') or '0') < (args.watermark or 0) then
  return redis.error_reply('HALTED')
end
"""
_COUNT_WRITE = """\
if redis.call('INCR', shard .. ':write_counter') <= (args.watermark or 0) then
  redis.call('DECR', shard .. ':write_counter')
  return redis.error_reply('HALTED')
end
"""

#: The folder of the parts that all scripts have: the header, the clock, and the version of records.
_OWN_PARTS = Path(__file__).parent / "lua"
_HEADER = _OWN_PARTS / "header.lua"
#: Defines `now()` as the time of the server.
SERVER_CLOCK = _OWN_PARTS / "clock.lua"
#: The first line of a script or part names the parts that it uses: `-- needs: actions, keys`.
_NEEDS = re.compile(r"-- needs: (.*)")
#: What each script knows of stored records: the version that is written, and the newest that is
#: read.
_RECORD_CONSTANTS = {"RECORD_VERSION": VERSION, "NEWEST_RECORD_VERSION": READABLE.stop - 1}


@dataclass(frozen=True, slots=True, eq=False)
class ScriptFolder:
    """The Lua scripts of one folder, and what they share. Lives as long as the process."""

    #: The folder: each `.lua` file in it is a script, named like the file.
    path: Path
    #: Folders with parts: Lua texts that several scripts need.
    parts: tuple[Path, ...] = ()
    #: Values that Python and the scripts share. Each becomes a local variable of each script; a
    #: mapping becomes a table.
    constants: Mapping[str, Any] = field(default_factory=dict)
    #: Lua lines at the beginning of each script, below `shard` and `args`.
    first_lines: str = ""
    #: What a script returns in place of its answer, as a Lua expression in which `answer` is that
    #: answer: for the scripts that need a part, by the name of the part.
    answers: Mapping[str, str] = field(default_factory=dict)
    #: The names of the scripts that write nothing. They do not raise the write counter
    #: (`sayso.workers.data_loss.guard`).
    read_only: frozenset[str] = frozenset()
    #: The names of the scripts whose writes must survive a failover before something is
    #: acknowledged, sent or run because of them. Redis waits for all earlier writes, too: a worker
    #: with a lease sends no reply that only the primary has.
    durable: frozenset[str] = frozenset()
    #: The names of the scripts whose records may be lost: nothing becomes wrong by it. They run on
    #: a halted server, too.
    unguarded: frozenset[str] = frozenset()
    #: The Lua file that defines `now()`. Only tests give another one, to pass the time in.
    clock: Path = SERVER_CLOCK

    def part(self, name: str, wanted_by: str) -> Path:
        """Return the file of a shared part.

        `wanted_by`: the file that needs the part, for the error. Raises ValueError for an unknown
        part.
        """
        folders = (*self.parts, _OWN_PARTS)
        for folder in folders:
            path = folder / f"{name}.lua"
            if path.exists():
                return path

        known: list[str] = []
        for folder in folders:
            known += [path.stem for path in folder.glob("*.lua")]
        known.sort()
        raise ValueError(f"{wanted_by} needs the unknown part {name!r}; known: {known}")

    def lua_constants(self) -> str:
        """Return the definitions of the constants that the scripts and Python share."""
        constants = {**_RECORD_CONSTANTS, **self.constants}
        return "\n".join(f"local {name} = {_lua_value(value)}" for name, value in constants.items())


def _lua_value(value: Any) -> str:
    """Return a text, a number, a bool, or a table with names, as Lua writes it."""
    if isinstance(value, Mapping):
        fields = ", ".join(f"{name} = {_lua_value(each)}" for name, each in value.items())
        return f"{{{fields}}}"
    return json.dumps(value)


@dataclass(frozen=True, slots=True)
class LuaScript:
    """A Lua script, and what is known about it."""

    text: str
    #: The hash by which Redis knows the script.
    sha: str
    #: The names of the parts that are in the text.
    parts: frozenset[str] = frozenset()

    @classmethod
    def of(cls, text: str, parts: frozenset[str] = frozenset()) -> LuaScript:
        """Return the script with this text."""
        sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        return cls(text, sha, parts)


class LuaScripts:
    """Runs the Lua scripts of one folder. Lives as long as its process, which may have several.

    A script is called by its hash. If the server does not know the hash, the text is sent.

    A script is sent again if its reply was lost, so each one gives the same answer the second time.
    On a halted server all scripts raise Halted. A script that meets a record of a newer release
    raises OtherVersion, and changes nothing of it. All methods that run a script raise
    redis.RedisError.
    """

    def __init__(self, client: Redis, folder: ScriptFolder, *, prefix: str = PREFIX) -> None:
        """`prefix`: the beginning of all keys.

        Raises ValueError for a client that answers in bytes.
        """
        #: Whether a script sees only the keys of its own tag.
        self.in_cluster = isinstance(client, ClusterClient)
        if not self.in_cluster and not _decodes_answers(client):
            raise ValueError(
                "this Redis client answers in bytes: create it with decode_responses=True"
            )
        self._prefix = prefix
        self._connections = Connections.of(client)
        self._durable = folder.durable
        self._scripts = _scripts_of(folder, in_cluster=self.in_cluster)

    def run_on(
        self, name: str, tag: Tag, args: Arguments = NO_ARGUMENTS, *payloads: Payload
    ) -> Any:
        """Run a script on the keys of a tag and block. Return its answer."""
        return run_without_loop(self.arun_on(name, tag, args, *payloads))

    async def arun_on(
        self, name: str, tag: Tag, args: Arguments = NO_ARGUMENTS, *payloads: Payload
    ) -> Any:
        """Run a script on the keys of a tag without blocking the event loop. Return its answer."""
        script, rest = self.call(name, tag, args, payloads)
        began = time.perf_counter()
        try:
            answer = await self._ask(script, rest, durable=name in self._durable)
        except RedisError as exc:
            REDIS_ERRORS.labels(type(exc).__name__).inc()
            if isinstance(exc, ResponseError) and str(exc).startswith(_HALTED):
                raise Halted from exc
            newer = _OTHER_VERSION.search(str(exc))
            if newer:
                raise OtherVersion(int(newer[1])) from exc
            raise
        REDIS_SECONDS.observe(time.perf_counter() - began)
        return answer

    def call(
        self, name: str, tag: Tag, args: Arguments, payloads: Sequence[Payload]
    ) -> tuple[LuaScript, tuple[Payload, ...]]:
        """Return a script, and what EVAL gets after it: two keys, the named arguments as JSON,
        and the payloads.

        No key has the first name. So while a cluster moves the slot, no node has both keys, and
        none runs the script on the part of the data that it has: it answers TRYAGAIN.
        """
        watermark = self._connections.watermarks.get(tag, 0)
        named = to_json({"watermark": watermark, **args})
        key = self.key_prefix(tag)
        return self._scripts[name], (2, key, f"{key}:write_counter", named, *payloads)

    def key_prefix(self, tag: Tag) -> str:
        """Return the beginning of the names of all keys with a tag. A script has it as `shard`."""
        return f"{self._prefix}{{{tag}}}"

    async def _ask(self, script: LuaScript, rest: Sequence[Payload], *, durable: bool) -> Any:
        """Send a script by its hash or, if the server does not know that, by its text."""
        try:
            return await self._connections.ask_async("EVALSHA", script.sha, *rest, durable=durable)
        except NoScriptError:
            return await self._connections.ask_async("EVAL", script.text, *rest, durable=durable)


def _decodes_answers(client: Redis) -> bool:
    """Return whether a client answers in texts."""
    return bool(client.connection_pool.connection_kwargs.get("decode_responses"))


@cache
def _scripts_of(folder: ScriptFolder, *, in_cluster: bool) -> Mapping[str, LuaScript]:
    """Return the scripts of a folder by their names.

    Each process reads and joins their files once.
    """
    return {
        path.stem: _script(folder, path, in_cluster=in_cluster)
        for path in folder.path.glob("*.lua")
    }


def _script(folder: ScriptFolder, path: Path, *, in_cluster: bool) -> LuaScript:
    """Return a script below all that it needs: constants, header, clock, halt check and parts.

    Redis runs the whole text on every call, so a script gets only the parts that it names: a
    further part would cost as much as another command.
    """
    parts: dict[str, str] = {}
    _add_parts(folder, path, parts)

    text = path.read_text()
    for part, expression in folder.answers.items():
        if part in parts:
            text = "\n".join(
                [
                    "local function script()",
                    text,
                    "end",
                    "local answer = script()",
                    f"return {expression}",
                ]
            )

    texts = [
        folder.lua_constants(),
        f"local in_cluster = {_lua_value(in_cluster)}",
        _HEADER.read_text(),
        folder.first_lines,
        folder.clock.read_text(),
        _halt_check(folder, path.stem),
        *parts.values(),
        text,
    ]
    return LuaScript.of("\n".join(texts), frozenset(parts))


def _halt_check(folder: ScriptFolder, name: str) -> str:
    """Return the Lua lines by which a script refuses on a server that is halted, or must be."""
    if name in folder.unguarded:
        return ""
    if name.startswith(RESUME):
        return _STOP_UNLESS_HALTED
    if name in folder.read_only:
        return _STOP_IF_HALTED + _COMPARE_WRITES
    return _STOP_IF_HALTED + _COUNT_WRITE


def _add_parts(folder: ScriptFolder, path: Path, parts: dict[str, str]) -> None:
    """Add the parts that a script or part needs to `parts`, each below those that it needs itself.

    Raises ValueError for an unknown part.
    """
    needs = _NEEDS.match(path.read_text())
    if not needs:
        return
    for name in needs[1].split(", "):
        if name not in parts:
            part = folder.part(name, path.name)
            _add_parts(folder, part, parts)
            parts[name] = part.read_text()
