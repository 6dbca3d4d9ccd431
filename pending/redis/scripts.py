"""Redis clients and scripts: how every process here talks to Redis."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

from redis import Redis
from redis.exceptions import NoScriptError, RedisError, ResponseError

from sayso.pending.redis.client import PREFIX, Connections

#: Conversations are spread over this many shards, so that a shard can later move to a Redis of its own.
SHARDS = 64


#: The arguments that make the RQ job which drains a conversation: keys, id and hash. Empty: nobody is woken.
WakeUp = Callable[[str], Sequence[str | bytes | int | float]]


_DEFINED = re.compile(r"local (?:function )?([\w, ]+?)\s*(?:[=(]|$)", re.MULTILINE)


_WORD = re.compile(r"\w+")


_COMMENT = re.compile(r"--.*")


_PRELUDE = Path(__file__).parent / "lua" / "prelude.lua"


#: What our scripts' refusals begin with when their shard is not to be touched on this server.
_MOVED = "SHARDMOVED"


#: What each script begins with where there are several primaries. One that is closing still takes turns in, and lets
#: whoever holds a lane finish.
_GATE = """do
  local home = redis.call('GET', KEYS[1] .. ':home') or 'nowhere'
  local here = home == 'open' or (string.sub(home, 1, 7) == 'closing' and not %s)
  if not here then return redis.error_reply('SHARDMOVED ' .. home) end
end
"""


#: The script that begins work on a lane.
LEASE = "lease"


#: Scripts that only look: they leave the tide (`sayso.workers.redis.client`) as it is.
LOOKS = frozenset({"aside", "asked", "fates", "look", "overdue", "read", "stage"})


#: What the names of scripts begin with that prepare a halted server for going on.
RESUME = "resume"


#: What an operator is told wherever a server is halted.
CURE = (
    "halted: this Redis has forgotten what it had acknowledged (an old file, a replica that lagged, or it was "
    "emptied): nothing is taken in or sent before you run `sayso redis resume`"
)


#: What our scripts' refusals begin with on a server that has forgotten something.
_HALTED = "HALTED"


#: What those scripts' refusals begin with on a server that is not halted.
RESUMED = "RESUMED"


#: What each script begins with: nothing is done on a server that has forgotten what it had acknowledged, and what is
#: done raises its tide.
_HALT = "if redis.call('EXISTS', '%shalted') == 1 then return redis.error_reply('HALTED') end\n"


_ONLY_HALTED = "if redis.call('EXISTS', '%shalted') == 0 then return redis.error_reply('RESUMED') end\n"


_RISE = "redis.call('INCR', '%stide')\n"


class Halted(RedisError):
    """Raised when a server has forgotten what it had acknowledged, and waits for its operator: nothing was done."""

    def __init__(self) -> None:
        super().__init__(CURE)


class ShardMoved(ResponseError):
    """Raised when a shard is on its way, or at home on another primary: nothing was done."""


def shard_of(conversation: str) -> int:
    """Which of the SHARDS a conversation lives in, for ever."""
    return crc32(conversation.encode()) % SHARDS


@dataclass(frozen=True, slots=True)
class LuaScript:
    """A Lua script and the name that Redis has for it."""

    text: str
    sha: str

    @classmethod
    def of(cls, text: str) -> LuaScript:
        """The script of a text."""
        return cls(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


class LuaScripts:
    """Lua scripts of one folder, each run in one round trip and loaded by itself where it is not known.

    Every script gives the same answer when it is sent again, because we resend when a reply was lost. Raises ValueError
    for a client that does not decode its answers. A server that is halted refuses them: they raise Halted. `gated`
    scripts touch no shard whose home is another server: they raise ShardMoved.
    """

    def __init__(self, client: Redis, folder: Path, *, prefix: str = PREFIX, gated: bool = False) -> None:
        if not client.connection_pool.connection_kwargs.get("decode_responses"):
            raise ValueError("this Redis client answers in bytes: make it with decode_responses=True")
        prelude = _definitions(_PRELUDE.read_text())
        self._prefix = prefix
        self._gated = gated
        self._connections = Connections.of(client)
        self._scripts = {
            path.stem: LuaScript.of(_gate(path.stem, prefix, gated) + _with_definitions(path.read_text(), prelude))
            for path in sorted(folder.glob("*.lua"))
            if path != _PRELUDE
        }
        #: What somebody is loading just now, by sha.
        self._loading: set[str] = set()

    def run(self, name: str, conversation: str, *args: Any) -> Any:
        """Run a script for one conversation. Raises redis.RedisError."""
        return self.evaluate(name, shard_of(conversation), conversation, *args)

    def on_shard(self, name: str, shard: int, *args: Any) -> Any:
        """Run a script for a shard as a whole. Raises redis.RedisError."""
        return self.evaluate(name, shard, "-", *args)

    def on_every_shard(self, name: str, *args: Any) -> list[Any]:
        """Run a script once per shard that can be touched here, in order of the shards. Raises redis.RedisError."""
        answers = []
        for shard in range(SHARDS):
            with contextlib.suppress(ShardMoved):
                answers.append(self.on_shard(name, shard, *args))
        return answers

    def at_home(self) -> frozenset[int]:
        """The shards whose home this server is: all of them where there is one server. Raises redis.RedisError."""
        if not self._gated:
            return frozenset(range(SHARDS))
        keys = [f"{self._prefix}{{{shard}}}:home" for shard in range(SHARDS)]
        words = enumerate(self._connections.ask("MGET", *keys))
        return frozenset(shard for shard, word in words if str(word).startswith(("open", "closing")))

    def evaluate(self, name: str, shard: int, *args: Any) -> Any:
        """Run a script with all its arguments, the conversation or "-" first. Raises redis.RedisError."""
        script, key = self._scripts[name], f"{self._prefix}{{{shard}}}"
        try:
            return self._evaluated(script, key, *args)
        except ResponseError as exc:
            if str(exc).startswith(_MOVED):
                raise ShardMoved(str(exc)) from exc
            if str(exc).startswith(_HALTED):
                raise Halted from exc
            raise

    def _evaluated(self, script: LuaScript, key: str, *args: Any) -> Any:
        ask = partial(self._connections.ask, "EVALSHA", script.sha, 1, key, *args)
        try:
            return ask()
        except NoScriptError:
            return self._once_more(script, ask)

    def _once_more(self, script: LuaScript, ask: Callable[[], Any]) -> Any:
        """Load the script and ask again. Of many who ask at once over one wire the first loads it: its text travels
        ahead of what the others ask again.
        """
        if script.sha in self._loading:
            with contextlib.suppress(NoScriptError):  # over another connection we may be faster than the text
                return ask()
        self._loading.add(script.sha)
        try:
            self._connections.ask("SCRIPT", "LOAD", script.text)
        finally:
            self._loading.discard(script.sha)
        return ask()


def _gate(name: str, prefix: str, gated: bool) -> str:
    if name.startswith(RESUME):
        return _ONLY_HALTED % prefix
    home = _GATE % ("true" if name == LEASE else "false") if gated else ""
    return _HALT % prefix + home + ("" if name in LOOKS else _RISE % prefix)


def _definitions(prelude: str) -> list[tuple[set[str], str]]:
    """The prelude in pieces, in order: the names each defines, and its text."""
    starts = [match.start() for match in re.finditer(r"^local ", prelude, re.MULTILINE)]
    texts = [prelude[start:end] for start, end in zip(starts, [*starts[1:], len(prelude)], strict=True)]
    return [(set(_DEFINED.match(text)[1].replace(",", " ").split()), text) for text in texts]  # type: ignore[index]


def _with_definitions(script: str, prelude: list[tuple[set[str], str]]) -> str:
    """A script and what it names of the prelude: Redis runs the text anew at every call, and all of it costs as much as
    four commands.
    """
    named = _words(script)
    for names, text in reversed(prelude):
        if names & named:
            script = text + script
            named |= _words(text)
    return script


def _words(script: str) -> set[str]:
    return set(_WORD.findall(_COMMENT.sub("", script)))
