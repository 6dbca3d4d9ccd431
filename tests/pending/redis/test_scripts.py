"""The Lua scripts: each names the shared parts that it uses, and the constants come from Python."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sayso.pending.redis import repository
from sayso.pending.redis.scripts import LuaScripts, lua_constants
from sayso.workers import mailbox

SHARED = repository.LUA / "shared"
PARTS = sorted(SHARED.glob("*.lua"))
SCRIPTS = [*PARTS, *sorted(repository.LUA.glob("*.lua")), *sorted(mailbox.LUA.glob("*.lua"))]
_LOCAL = re.compile(r"\blocal (?:function )?([\w, ]+?)\s*(?:[=(]|$)", re.MULTILINE)


def without_comments(text: str) -> str:
    """The code of a script."""
    return re.sub(r"--.*", "", text)


def defined(text: str) -> set[str]:
    """The local variables and functions that a text defines."""
    return {name for names in _LOCAL.findall(without_comments(text)) for name in names.replace(",", " ").split()}


def shared_names(path: Path) -> set[str]:
    """What a part defines for others: its definitions that are not inside of a function."""
    return defined("\n".join(line for line in path.read_text().splitlines() if line.startswith("local ")))


def used(path: Path) -> set[str]:
    """The words of a script that are no fields, texts or variables of its own."""
    code = re.sub(r"'[^']*'", "''", without_comments(path.read_text()))
    return set(re.findall(r"(?<![\w.])[A-Za-z_]\w*", code)) - defined(path.read_text())


def needs(path: Path) -> list[str]:
    """The parts that a script names in its first line."""
    found = re.match(r"-- needs: (.*)\n", path.read_text())
    return found[1].split(", ") if found else []


def declared_args(path: Path) -> set[str]:
    """The named arguments that the comment of a script or part lists after `-- args:`."""
    found = re.search(r"^-- args: (.*?)\.$", path.read_text(), re.MULTILINE | re.DOTALL)
    listed = found[1].replace("\n-- ", " ") if found else ""
    for _ in range(3):  # explanations, innermost first
        listed = re.sub(r"\([^()]*\)", "", listed)
    return set(re.findall(r"\w+", listed)) - {"and"}


def read_args(path: Path) -> set[str]:
    """The named arguments that a script or part reads."""
    return set(re.findall(r"\bargs\.(\w+)", without_comments(path.read_text()))) - {"conversation"}


def args_of_parts(path: Path) -> set[str]:
    """The named arguments of all parts that a script needs, and that those need."""
    parts = [SHARED / f"{name}.lua" for name in needs(path)]
    return set().union(*(read_args(part) | args_of_parts(part) for part in parts))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_script_lists_its_named_arguments(script):
    """All that it reads, and of those that its parts read, the ones that matter to it."""
    assert read_args(script) <= declared_args(script) <= read_args(script) | args_of_parts(script)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_script_names_exactly_the_parts_it_uses(script):
    """No more, for Redis runs each part on every call; and no fewer, so that a reader finds every definition."""
    parts = {part.stem: shared_names(part) for part in PARTS if part.stem not in ("header", script.stem)}
    assert needs(script) == sorted(name for name, names in parts.items() if names & used(script))


def test_no_two_parts_define_the_same_name():
    """And none has the name of a constant."""
    names = [name for part in PARTS for name in shared_names(part)] + sorted(defined(lua_constants()))
    assert len(names) == len(set(names))


def test_every_constant_is_used():
    """By a script or a part."""
    words = set().union(*(used(script) for script in SCRIPTS))
    assert defined(lua_constants()) - words == set()


def test_unknown_part_is_refused(redis_client, tmp_path):
    """At start, with the names that there are."""
    (tmp_path / "stray.lua").write_text("-- needs: keys, clocks\nreturn 1")
    with pytest.raises(ValueError, match=r"stray.lua needs the unknown part 'clocks'; known: \['actions', "):
        LuaScripts(redis_client, tmp_path)
