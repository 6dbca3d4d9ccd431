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

#: Keys of conversations are spread over this many hash tags, `{0}` to `{63}`. The number is part of the key layout.
SHARDS = 64


#: The arguments that make the RQ job which drains a conversation: keys, id and hash. Empty: nobody is woken.
WakeUp = Callable[[str], Sequence[str | bytes | int | float]]


_DEFINED = re.compile(r"local (?:function )?([\w, ]+?)\s*(?:[=(]|$)", re.MULTILINE)


_WORD = re.compile(r"\w+")


_COMMENT = re.compile(r"--.*")


_PRELUDE = Path(__file__).parent / "lua" / "prelude.lua"


#: Scripts that only look: they leave the tide (`sayso.workers.redis.data_loss`) as it is.
LOOKS = frozenset({"delivery_status", "is_question_open", "look", "overdue", "read", "turn_status", "undelivered"})


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
    for a client that does not decode its answers. A server that is halted refuses them: they raise Halted.
    """

    def __init__(self, client: Redis, folder: Path, *, prefix: str = PREFIX) -> None:
        if not client.connection_pool.connection_kwargs.get("decode_responses"):
            raise ValueError("this Redis client answers in bytes: make it with decode_responses=True")
        prelude = _definitions(_PRELUDE.read_text())
        self._prefix = prefix
        self._connections = Connections.of(client)
        self._scripts = {
            path.stem: LuaScript.of(_halt_check(path.stem, prefix) + _with_definitions(path.read_text(), prelude))
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
        """Run a script once per shard, in order, and return all answers. Raises redis.RedisError."""
        return [self.on_shard(name, shard, *args) for shard in range(SHARDS)]

    def evaluate(self, name: str, shard: int, *args: Any) -> Any:
        """Run a script with all its arguments, the conversation or "-" first. Raises redis.RedisError."""
        script, key = self._scripts[name], f"{self._prefix}{{{shard}}}"
        try:
            return self._evaluated(script, key, *args)
        except ResponseError as exc:
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


def _halt_check(name: str, prefix: str) -> str:
    if name.startswith(RESUME):
        return _ONLY_HALTED % prefix
    return _HALT % prefix + ("" if name in LOOKS else _RISE % prefix)


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
