"""What the comments of the Lua scripts declare, and what the scripts use."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from redis import Redis

from sayso.infra.redis.client import PREFIX
from sayso.infra.redis.scripts import ScriptFolder, Tag
from sayso.pending.scripts import ACTION_SCRIPTS
from sayso.pending.sharded_scripts import ShardedScripts
from sayso.workers.scripts import CONVERSATION_SCRIPTS, QUEUE_SCRIPTS

FOLDERS = (ACTION_SCRIPTS, CONVERSATION_SCRIPTS, QUEUE_SCRIPTS)
SHARED = {
    path.stem: path
    for folder in (*CONVERSATION_SCRIPTS.parts, CONVERSATION_SCRIPTS.part("header", "").parent)
    for path in folder.glob("*.lua")
}
PARTS = sorted(SHARED.values())
SCRIPTS = [*PARTS, *(script for folder in FOLDERS for script in sorted(folder.path.glob("*.lua")))]
_LOCAL = re.compile(r"\blocal (?:function )?([\w, ]+?)\s*(?:[=(]|$)", re.MULTILINE)


def without_comments(text: str) -> str:
    """The code of a script."""
    return re.sub(r"--.*", "", text)


def defined(text: str) -> set[str]:
    """The local variables and functions that a text defines."""
    return {
        name
        for names in _LOCAL.findall(without_comments(text))
        for name in names.replace(",", " ").split()
    }


def shared_names(path: Path) -> set[str]:
    """What a part defines for others: its definitions that are not inside of a function."""
    return defined(
        "\n".join(line for line in path.read_text().splitlines() if line.startswith("local "))
    )


def used(path: Path) -> set[str]:
    """The words of a script that are no fields, texts or variables of its own."""
    code = re.sub(r"'[^']*'", "''", without_comments(path.read_text()))
    return set(re.findall(r"(?<![\w.])[A-Za-z_]\w*", code)) - defined(path.read_text())


def needs(path: Path) -> list[str]:
    """The parts that a script names in its first line."""
    found = re.match(r"-- needs: (.*)\n", path.read_text())
    return found[1].split(", ") if found else []


def declared_args(path: Path) -> set[str]:
    """The named arguments that the comment of a script or part lists, one in a line, below `-- args:`.

    A line has the name, or several names, and after two spaces what it holds. Further lines about it are indented more.
    """
    found = re.search(r"^-- args:\n((?:--   .*\n)+)", path.read_text(), re.MULTILINE)
    listed = found[1] if found else ""
    lines = re.findall(r"^--   (\w+(?:, \w+)*)(?:  .*)?$", listed, re.MULTILINE)
    return {name for line in lines for name in line.split(", ")}


def read_args(path: Path) -> set[str]:
    """The named arguments that a script or part reads."""
    return set(re.findall(r"\bargs\.(\w+)", without_comments(path.read_text()))) - {"conversation"}


def args_of_parts(path: Path) -> set[str]:
    """The named arguments of all parts that a script needs, and that those need."""
    parts = [SHARED[name] for name in needs(path)]
    return set().union(*(read_args(part) | args_of_parts(part) for part in parts))


_ARGS = {
    script.stem: read_args(script) | args_of_parts(script)
    for script in SCRIPTS
    if script not in PARTS
}


#: The same folders, with scripts that get the time from their caller.
_ON_PASSED_CLOCK = {
    folder: replace(folder, clock=Path(__file__).parent / "passed_clock.lua") for folder in FOLDERS
}


class CheckedScripts(ShardedScripts):
    """Scripts that refuse a named argument which neither the script nor one of its parts reads.

    With `clock`, in Unix seconds, that is the time for them, and not the time of the server.
    """

    def __init__(
        self,
        client: Redis,
        folder: ScriptFolder,
        *,
        prefix: str = PREFIX,
        clock: Callable[[], float] | None = None,
    ) -> None:
        super().__init__(client, _ON_PASSED_CLOCK[folder] if clock else folder, prefix=prefix)
        self._clock = clock

    def call(self, name: str, tag: Tag, args: Any, payloads: Any) -> Any:
        """Check the names, and pass the time in."""
        unknown = set(args) - _ARGS[name] - {"conversation"}
        assert not unknown, f"{name}.lua does not read {sorted(unknown)}"
        if self._clock:
            args = {**args, "clock_ms": round(self._clock() * 1000)}
        return super().call(name, tag, args, payloads)
