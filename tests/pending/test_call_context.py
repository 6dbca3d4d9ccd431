"""CallContext: a field has a value for the length of a block, and its earlier value afterwards."""

from __future__ import annotations

import asyncio

import pytest

from sayso.pending.call_context import call_context, context_field


def key() -> str:
    """Return the field that these tests set."""
    return call_context().idempotency_key


def test_error_restores_the_earlier_value():
    """The value does not outlive the block, however it ends."""
    with pytest.raises(KeyError), context_field("idempotency_key", "ours"):
        raise KeyError
    assert key() == ""


def test_inner_block_restores_the_outer_value():
    """Blocks nest, and each yields its own value."""
    with context_field("idempotency_key", "outer"):
        with context_field("idempotency_key", "inner") as inner:
            assert inner == key() == "inner"
        assert key() == "outer"


def test_task_has_the_value_it_was_started_with():
    """Parallel tasks do not see each other's values."""

    async def key_in_task(name: str) -> str:
        with context_field("idempotency_key", name):
            await asyncio.sleep(0)
            return key()

    async def both() -> list[str]:
        return await asyncio.gather(key_in_task("ana"), key_in_task("bo"))

    assert asyncio.run(both()) == ["ana", "bo"]
