"""The Lua scripts: each names the shared parts that it uses, and the constants come from Python."""

from __future__ import annotations

import pytest

from sayso.infra.redis.scripts import LuaScripts, ScriptFolder
from sayso.workers.scripts import CONVERSATION_SCRIPTS
from tests.infra.redis.lua_source import (
    PARTS,
    SCRIPTS,
    args_of_parts,
    declared_args,
    defined,
    needs,
    read_args,
    shared_names,
    used,
)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_script_lists_its_named_arguments(script):
    """All that it reads, and of those that its parts read, the ones that matter to it."""
    assert read_args(script) <= declared_args(script) <= read_args(script) | args_of_parts(script)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_script_names_exactly_the_parts_it_uses(script):
    """No more, for Redis runs each part on every call; and no fewer, so that a reader finds every definition."""
    parts = {
        part.stem: shared_names(part)
        for part in PARTS
        if part.stem not in ("header", "clock", script.stem)
    }
    assert needs(script) == sorted(name for name, names in parts.items() if names & used(script))


def test_no_two_parts_define_the_same_name():
    """And none has the name of a constant."""
    names = [name for part in PARTS for name in shared_names(part)] + sorted(
        defined(CONVERSATION_SCRIPTS.lua_constants())
    )
    assert len(names) == len(set(names))


def test_every_constant_is_used():
    """By a script or a part."""
    words = set().union(*(used(script) for script in SCRIPTS))
    assert defined(CONVERSATION_SCRIPTS.lua_constants()) - words == set()


def test_unknown_part_is_refused(redis_client, tmp_path):
    """At start, with the names that there are."""
    (tmp_path / "stray.lua").write_text("-- needs: keys, clocks\nreturn 1")
    with pytest.raises(
        ValueError, match=r"stray.lua needs the unknown part 'clocks'; known: \['accept_turn', "
    ):
        LuaScripts(redis_client, ScriptFolder(tmp_path, parts=CONVERSATION_SCRIPTS.parts))
