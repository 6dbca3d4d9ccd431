"""Installed: a context variable has a value for the length of a block, and the one before it afterwards."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

import pytest

from sayso.pending.concurrency import context_value

_whose = ContextVar("whose", default="nobody's")


def test_error_leaves_nothing_installed():
    """What was there before is there again, whatever ended the block."""
    with pytest.raises(KeyError), context_value(_whose, "ours"):
        raise KeyError
    assert _whose.get() == "nobody's"


def test_inner_block_gives_back_the_outer_value():
    """Blocks nest, and each is given its own value."""
    with context_value(_whose, "outer"):
        with context_value(_whose, "inner") as inner:
            assert inner == _whose.get() == "inner"
        assert _whose.get() == "outer"


def test_task_has_the_value_it_was_started_with():
    """Tasks that run at once do not see each other's."""

    async def said(name: str) -> str:
        with context_value(_whose, name):
            await asyncio.sleep(0)
            return _whose.get()

    async def both() -> list[str]:
        return await asyncio.gather(said("ana"), said("bo"))

    assert asyncio.run(both()) == ["ana", "bo"]
