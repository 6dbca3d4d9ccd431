"""LuaScripts: run the Lua scripts of a folder in Redis, each in one round trip."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from pydantic_core import to_json
from redis import Redis
from redis.exceptions import NoScriptError, RedisError, ResponseError

from sayso.infra.concurrency import run_without_loop
from sayso.infra.metrics import REDIS_ERRORS, REDIS_SECONDS
from sayso.infra.records import READABLE, VERSION, OtherVersion
from sayso.infra.redis.client import PREFIX
from sayso.infra.redis.cluster import ClusterClient
from sayso.infra.redis.connections import Connections, Halted

#: Keys of conversations are spread over this many hash tags, `{0}` to `{63}`.
#: The number is part of the key layout.
SHARDS = 64
#: The version of the key layout. Version 2 has a write counter for each
#: shard in place of one for the server.
LAYOUT = 2


#: What a script gets beside its named arguments, as it is:
#: texts and bytes that Redis stores or compares.
Payload = str | bytes | int | float


class WakeUpJob(NamedTuple):
    """The RQ job that wakes a worker: its named arguments (`queue.lua`),
    and its hash field by field.

    Empty: no job.
    """

    names: Mapping[str, str] = {}
    fields: Sequence[Payload] = ()


#: Returns the job that wakes a worker for a conversation.
WakeUp = Callable[[str], WakeUpJob]
NO_JOB = WakeUpJob()
#: Wakes a worker for a conversation, urgently or not, where the queue has a server of its own.
#: It raises nothing.
WakeStep = Callable[[str, bool], Awaitable[None]]


def no_wake_up(_: str) -> WakeUpJob:
    """Return no job: the worker is woken in another way."""
    return NO_JOB


#: A shard, or what else has a hash tag of its own on a cluster.
Tag = int | str
#: The named arguments of a script. Numbers above 10^14 are passed as text,
#: since Lua writes them with 14 digits.
Arguments = Mapping[str, Any]
NO_ARGUMENTS: Arguments = {}

#: The prefix of the scripts that prepare a halted server for going on.
RESUME = "resume"
#: The beginning of a script's error on a halted server.
_HALTED = "HALTED"
#: What is in a script's error about a record of a newer release. Redis adds where it was raised.
_OTHER_VERSION = re.compile(r"OTHER_VERSION (\d+)")
#: The beginning of a resume script's error on a server that is not halted.
RESUMED = "RESUMED"

#: What follows the header of each script: do nothing in a halted shard.
_HALT = (
    "if redis.call('EXISTS', shard .. ':halted') == 1 then return redis.error_reply('HALTED') end\n"
)
_ONLY_HALTED = "if redis.call('EXISTS', shard .. ':halted') == 0 then return redis.error_reply('RESUMED') end\n"
#: A shard that knows less than the caller has lost writes, and does nothing: a replica may be
#: promoted without a new connection. Scripts that only read compare, all others count.
_COMPARE = """\
if tonumber(redis.call('GET', shard .. ':write_counter') or '0') < (args.watermark or 0) then
  return redis.error_reply('HALTED')
end
"""
_RISE = """\
if redis.call('INCR', shard .. ':write_counter') <= (args.watermark or 0) then
  redis.call('DECR', shard .. ':write_counter')
  return redis.error_reply('HALTED')
end
"""
#: The last lines of a script that may wake a worker, where the queue has a server of its own: its
#: result, and whether a worker is to be woken.
_IN_TWO_STEPS = "local result = script()\nreturn {result or false, wake}"
_URGENT = "urgent"
#: The parts of all scripts: the header, the clock, and the version of stored records.
_OWN_PARTS = Path(__file__).parent / "lua"
_HEADER = _OWN_PARTS / "header.lua"
#: Defines `now()` as the time of the server.
SERVER_CLOCK = _OWN_PARTS / "clock.lua"
#: The first line of a script or part names the parts that it uses: `-- needs: actions, keys`.
_NEEDS = re.compile(r"-- needs: (.*)")
#: What each script knows of stored records: the version that is written, and the newest that is
#: read.
_RECORD_CONSTANTS = {"RECORD_VERSION": VERSION, "NEWEST_RECORD_VERSION": READABLE.stop - 1}


def shard_of(conversation: str) -> int:
    """Return the shard of a conversation. It never changes."""
    return crc32(conversation.encode()) % SHARDS


def _people_tag(channel: str) -> Tag:
    """Return the hash tag of the ids of a channel's people."""
    return f"ids:{channel}"


@dataclass(frozen=True, slots=True, eq=False)
class ScriptFolder:
    """The Lua scripts of one folder, and what they share. Lives as long as the process."""

    path: Path
    #: Folders with parts: texts that several scripts need.
    parts: tuple[Path, ...] = ()
    #: Values that Python and the scripts share. Each becomes a local variable of each script; a
    #: mapping becomes a table.
    constants: Mapping[str, Any] = field(default_factory=dict)
    #: The names of the scripts that write nothing. They do not raise the write counter
    #: (`sayso.workers.data_loss.guard`).
    read_only: frozenset[str] = frozenset()
    #: The names of the scripts whose writes must survive a failover before something is
    #: acknowledged, sent or run because of them. Redis waits for all earlier writes, too: a worker
    #: with a lease sends no reply that only the primary has.
    durable: frozenset[str] = frozenset()
    #: The names of the scripts whose records may be lost: nothing becomes wrong by it.
    unguarded: frozenset[str] = frozenset()
    #: The Lua file that defines `now()`. Only tests give another one, to pass the time in.
    clock: Path = SERVER_CLOCK

    def part(self, name: str, wanted_by: str) -> Path:
        """Return the file of a shared part. Raises ValueError for an unknown one."""
        folders = (*self.parts, _OWN_PARTS)
        for folder in folders:
            if (folder / f"{name}.lua").exists():
                return folder / f"{name}.lua"
        known = sorted(each.stem for folder in folders for each in folder.glob("*.lua"))
        raise ValueError(f"{wanted_by} needs the unknown part {name!r}; known: {known}")

    def lua_constants(self) -> str:
        """Return the definitions of the constants that the scripts and Python share."""
        lines = [
            f"local {name} = {_lua_value(value)}"
            for name, value in {**_RECORD_CONSTANTS, **self.constants}.items()
        ]
        return "\n".join(lines)


def _lua_value(value: Any) -> str:
    """Return a text, a number, or a table with names, as Lua writes it."""
    if isinstance(value, Mapping):
        fields = ", ".join(f"{name} = {_lua_value(each)}" for name, each in value.items())
        return f"{{{fields}}}"
    return json.dumps(value)


@dataclass(frozen=True, slots=True)
class LuaScript:
    """A Lua script and the hash by which Redis knows it."""

    text: str
    sha: str

    @classmethod
    def of(cls, text: str) -> LuaScript:
        """Return the script with this text."""
        return cls(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


class LuaScripts:
    """Runs the Lua scripts of one folder by their hashes; where the server does not know one,
    its text is sent.

    A script is sent again when its reply was lost, so each one gives the same answer the second
    time. On a halted server all raise Halted. One that meets a record of a newer release raises
    OtherVersion, and changes nothing of it. Raises ValueError for a client that does not decode its
    answers.

    Scripts that wake a worker store its job themselves. With `wake`, the queue has a server of its
    own: then they report that a worker is to be woken, and `wake` does it.
    """

    def __init__(
        self,
        client: Redis,
        folder: ScriptFolder,
        *,
        prefix: str = PREFIX,
        wake: WakeStep | None = None,
    ) -> None:
        in_cluster = isinstance(client, ClusterClient)
        #: Whether a script sees only the shard that it runs for.
        self.in_cluster = in_cluster
        if not in_cluster and not client.connection_pool.connection_kwargs.get("decode_responses"):
            raise ValueError(
                "this Redis client answers in bytes: create it with decode_responses=True"
            )
        self._prefix = prefix
        self._connections = Connections.of(client)
        self._wake = wake
        self._durable = folder.durable
        self._scripts = _scripts_of(folder, split=wake is not None, in_cluster=in_cluster)
        self._waking = {
            name for name, script in self._scripts.items() if wake and _IN_TWO_STEPS in script.text
        }

    def run(
        self, name: str, conversation: str, args: Arguments = NO_ARGUMENTS, *payloads: Payload
    ) -> Any:
        """Run a script for one conversation and block. Raises redis.RedisError."""
        return run_without_loop(self.arun(name, conversation, args, *payloads))

    async def arun(
        self, name: str, conversation: str, args: Arguments = NO_ARGUMENTS, *payloads: Payload
    ) -> Any:
        """Run a script for one conversation without blocking the event loop.

        Raises redis.RedisError.
        """
        return await self._run(name, shard_of(conversation), conversation, args, payloads)

    async def arun_for_channel(self, name: str, conversation: str, args: Arguments) -> Any:
        """Run a script about the rate of a conversation's channel, on the node of the channel: a
        cluster has it apart from the shards. Raises redis.RedisError.
        """
        return await self._run(
            name, f"rate_limit:{conversation.partition(':')[0]}", conversation, args, ()
        )

    def run_for_people(self, name: str, channel: str, args: Arguments) -> Any:
        """Run a script about the ids of a channel's people and block.

        They are together on one node, so that a person with several ids is found in one step.
        Raises redis.RedisError.
        """
        return run_without_loop(self._run(name, _people_tag(channel), "-", args, ()))

    def people_key(self, channel: str) -> str:
        """Return the prefix of the keys with the ids of a channel's people."""
        return f"{self._prefix}{{{_people_tag(channel)}}}"

    def conversation_key(self, conversation: str) -> str:
        """Return the key with the numbers and marks of a conversation."""
        return f"{self._prefix}{{{shard_of(conversation)}}}:conversation:{conversation}"

    def on_shard(
        self, name: str, shard: int, args: Arguments = NO_ARGUMENTS, *payloads: Payload
    ) -> Any:
        """Run a script for a shard as a whole and block. Raises redis.RedisError."""
        return run_without_loop(self._run(name, shard, "-", args, payloads))

    def on_every_shard(self, name: str, args: Arguments) -> list[Any]:
        """Run a script once per shard, in order, and return all answers.

        Raises redis.RedisError.
        """
        return [self.on_shard(name, shard, args) for shard in range(SHARDS)]

    def call(
        self, name: str, shard: Tag, conversation: str, args: Arguments, payloads: Sequence[Payload]
    ) -> tuple[LuaScript, tuple[Payload, ...]]:
        """Return a script, and what EVAL gets after it: two keys, the named arguments as JSON,
        and the payloads.

        No key has the first name. So while a cluster moves the slot, no node has both keys, and
        none runs the script on the part of the data that it has: it answers TRYAGAIN.
        """
        named = to_json(
            {
                "conversation": conversation,
                "watermark": self._connections.watermarks.get(shard, 0),
                **args,
            }
        )
        key = f"{self._prefix}{{{shard}}}"
        return self._scripts[name], (2, key, f"{key}:write_counter", named, *payloads)

    async def _run(
        self, name: str, shard: Tag, conversation: str, args: Arguments, payloads: Sequence[Payload]
    ) -> Any:
        answer = await self._ask(name, shard, conversation, args, payloads)
        if self._wake and name in self._waking:
            answer, wake = answer
            if wake:
                await self._wake(conversation, wake == _URGENT)
        return answer

    async def _ask(
        self, name: str, shard: Tag, conversation: str, args: Arguments, payloads: Sequence[Payload]
    ) -> Any:
        script, rest = self.call(name, shard, conversation, args, payloads)
        began = time.perf_counter()
        durable = name in self._durable
        try:
            try:
                answer = await self._connections.ask_async(
                    "EVALSHA", script.sha, *rest, durable=durable
                )
            except NoScriptError:
                answer = await self._connections.ask_async(
                    "EVAL", script.text, *rest, durable=durable
                )
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


@cache
def _scripts_of(folder: ScriptFolder, *, split: bool, in_cluster: bool) -> Mapping[str, LuaScript]:
    """Return the scripts of a folder by their names. Each process reads and joins their files once."""
    return {
        path.stem: LuaScript.of(_script_text(folder, path, split=split, in_cluster=in_cluster))
        for path in folder.path.glob("*.lua")
    }


def _script_text(folder: ScriptFolder, path: Path, *, split: bool, in_cluster: bool) -> str:
    """Return a script below all that it needs: constants, header, clock, halt check and parts.

    `split`: the queue has a server of its own. `in_cluster`: the channels are on other nodes. Redis
    runs the whole text on every call, so a script gets only the parts that it names: a further part
    would cost as much as another command.
    """
    name = path.stem
    if name in folder.unguarded:
        check = ""
    elif name.startswith(RESUME):
        check = _ONLY_HALTED
    elif name in folder.read_only:
        check = _HALT + _COMPARE
    else:
        check = _HALT + _RISE

    texts = {"header": _HEADER.read_text(), "clock": folder.clock.read_text(), "check": check}
    _add_parts(folder, path, texts)

    # Some parts depend on where the queue and the channels are.
    if "queue" in texts:
        is_split = str(split).lower()
        texts["queue"] = f"local wake, queue_is_elsewhere = false, {is_split}\n{texts['queue']}"
        if split:
            texts["script"] = f"local function script()\n{texts['script']}\nend\n{_IN_TWO_STEPS}"
    if "channel" in texts:
        is_elsewhere = str(in_cluster).lower()
        texts["channel"] = f"local channel_is_elsewhere = {is_elsewhere}\n{texts['channel']}"
    return "\n".join([folder.lua_constants(), *texts.values()])


def _add_parts(folder: ScriptFolder, path: Path, texts: dict[str, str]) -> None:
    """Add a script or part to the texts, after the parts that it needs.

    Raises ValueError for an unknown part.
    """
    text = path.read_text()
    needs = _NEEDS.match(text)
    if needs:
        for name in needs[1].split(", "):
            if name not in texts:
                _add_parts(folder, folder.part(name, path.name), texts)

    is_part = path.parent != folder.path
    texts[path.stem if is_part else "script"] = text
