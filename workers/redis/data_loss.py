"""A Redis that came back with less than it acknowledged is halted; resume."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from redis import Redis
from redis.exceptions import ResponseError

from sayso.pending.redis.client import PREFIX
from sayso.pending.redis.scripts import RESUMED, SHARDS, LuaScripts
from sayso.workers.mailbox import LUA
from sayso.workers.redis.client import HaltReason, ServerState, Watermark, keys_of

#: How far beyond all that a server knows, and that anybody remembers of it, its numbers go on: more than any counter
#: rises between two resumes.
STRIDE = 1_000_000_000


#: Names that a server's identity may have: those under which processes remember it.
MAX_IDS = 8


#: Keys that a server looks at per SCAN.
LOOK = 1000


_KEY = re.compile(r"\{(\d{1,2})\}:(lane|pending):(.+)", re.DOTALL)


_LIFT = """
-- Go on. KEYS: tide, founded, halted. ARGV: names of the identity, tide, why it was halted.
if redis.call('GET', KEYS[3]) ~= ARGV[3] then return 0 end
redis.call('SET', KEYS[2], ARGV[1])
if tonumber(redis.call('GET', KEYS[1]) or '0') < tonumber(ARGV[2]) then redis.call('SET', KEYS[1], ARGV[2]) end
redis.call('DEL', KEYS[3])
return 1
"""


@dataclass(frozen=True, slots=True)
class Resumed:
    """What was done before a server went on: lanes whose numbers were raised, replies that go out marked as perhaps
    repeated, actions that nobody may decide any more.
    """

    halt: HaltReason
    lanes: int
    replies: int
    actions: int


def halt_of(client: Redis, *, prefix: str = PREFIX) -> HaltReason | None:
    """Why a server is halted, None when it is not. Raises redis.RedisError."""
    text = client.get(keys_of(prefix)[2])
    return HaltReason.read(str(text)) if text else None


def resume(client: Redis, *, prefix: str = PREFIX) -> Resumed | None:
    """Let a halted server go on; None when it is not halted (any more). Killed anywhere, it is run again.

    Raises redis.RedisError.
    """
    found = ServerState.of(client.mget(keys_of(prefix)))
    if not found.halted:
        return None
    halt = HaltReason.read(found.halted)
    floor = max(halt.remembered, found.n) + STRIDE
    try:
        done = _prepare(LuaScripts(client, LUA, prefix=prefix), client, floor, prefix)
    except ResponseError as exc:
        if str(exc).startswith(RESUMED):  # by somebody else, at the same time
            return None
        raise
    ids = list(dict.fromkeys([*([halt.id] if halt.id else []), *found.ids]))[:MAX_IDS]
    client.eval(_LIFT, 3, *keys_of(prefix), " ".join(ids), floor, found.halted)
    return Resumed(halt, *done)


def _prepare(scripts: LuaScripts, client: Redis, floor: int, prefix: str) -> tuple[int, int, int]:
    """Shards first: what is begun from then on is beyond the floor, too."""
    for shard in range(SHARDS):
        scripts.on_shard("resume_shard", shard, floor)
    lanes = replies = actions = 0
    for key in client.scan_iter(match=f"{prefix}{{*", count=LOOK):
        found = _KEY.fullmatch(str(key).removeprefix(prefix))
        if found and found[2] == "lane":
            replies += scripts.evaluate("resume_conversation", int(found[1]), found[3], floor)
            lanes += 1
        elif found:
            actions += scripts.on_shard("resume_action", int(found[1]), found[3])
    return lanes, replies, actions


log = logging.getLogger(__name__)


#: The file's name in the data folder.
FILE = "tide.json"


#: Servers that are remembered at most; the one noted longest ago goes.
MAX_PLACES = 32


class WatermarkFile:
    """One small JSON file, shared by all processes on a folder. It is replaced as a whole, and never goes back."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> Mapping[str, Watermark]:
        """The last mark of each place. A file that is missing or damaged remembers nothing."""
        try:
            found = json.loads(self._path.read_text())
            return {str(place): Watermark(str(mark["id"]), int(mark["n"])) for place, mark in found.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as exc:
            log.warning("tide.not_remembered", extra={"reason": type(exc).__name__})
            return {}

    def keep(self, place: str, mark: Watermark) -> None:
        """Note a mark, unless another process noted a higher one."""
        marks = dict(self.read())
        before = marks.pop(place, None)
        marks[place] = max(before, mark, key=lambda each: each.n) if before and before.id == mark.id else mark
        kept = {name: asdict(marks[name]) for name in list(marks)[-MAX_PLACES:]}
        beside = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            beside.write_text(json.dumps(kept))
            beside.replace(self._path)
        except OSError as exc:
            log.warning("tide.not_kept", extra={"reason": type(exc).__name__})
