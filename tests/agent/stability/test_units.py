"""Units: the price of recorded requests is what the vendors charge for them."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.price.units import anthropic_price, letters, openai_price

#: One token in the estimate.
WORD = "word"
MARK = {"cache_control": {"type": "ephemeral"}}


def chat(*words: int) -> dict[str, Any]:
    """Return a request of OpenAI whose messages have these numbers of words."""
    return {"messages": [{"role": "system", "content": WORD * count} for count in words]}


def blocks(*words: int, marked: int = -1) -> dict[str, Any]:
    """Return a request of Anthropic with blocks of these numbers of words; one is marked."""
    texts: list[dict[str, Any]] = [{"type": "text", "text": WORD * count} for count in words]
    texts[marked] |= MARK
    return {"system": texts, "messages": []}


def test_openai_charges_a_tenth_for_whole_steps_of_the_shared_beginning():
    """Of 1,502 shared tokens 1,408 are read from the cache, as 11 steps of 128."""
    price = openai_price([chat(1500), chat(1500, 98)], letters)
    assert price.tokens == 1502 + 1602
    assert price.units == pytest.approx(1502 + 1602 - 0.9 * 1408)


def test_openai_caches_no_short_beginning():
    """Below 1,024 tokens each request is paid in full."""
    price = openai_price([chat(1000), chat(1000)], letters)
    assert price.units == price.tokens


def test_a_beginning_that_any_earlier_request_had_is_stable():
    """It need not be the request just before."""
    other = {"messages": [{"role": "user", "content": WORD * 500}]}
    price = openai_price([chat(1500), other, chat(1500)], letters)
    assert price.stable == pytest.approx(1502 / (1502 + 502), abs=0.001)


def test_anthropic_charges_for_writing_and_a_tenth_for_reading():
    """The first request writes 1,500 tokens; the second reads them and writes 100 more."""
    price = anthropic_price([blocks(1500), blocks(1500, 100)], letters)
    assert price.units == pytest.approx(1.25 * 1500 + 0.1 * 1500 + 1.25 * 100)


def test_anthropic_charges_in_full_for_what_stands_behind_the_last_mark():
    """A mark on the first block writes only that."""
    price = anthropic_price([blocks(1500, 100, marked=0)], letters)
    assert price.units == pytest.approx(1.25 * 1500 + 100)


def test_anthropic_caches_no_short_beginning():
    """A mark below 1,024 tokens has no effect."""
    price = anthropic_price([blocks(1000), blocks(1000)], letters)
    assert price.units == price.tokens


@pytest.mark.parametrize(("blocks_between", "read"), [(19, True), (20, False)])
def test_anthropic_looks_for_a_written_block_through_twenty(blocks_between: int, read: bool):
    """What was written further before a mark is paid again."""
    added = [1] * blocks_between
    price = anthropic_price([blocks(1500), blocks(1500, *added)], letters)
    second = 0.1 * 1500 + 1.25 * blocks_between if read else 1.25 * (1500 + blocks_between)
    assert price.units == pytest.approx(1.25 * 1500 + second)


def test_a_mark_of_the_whole_request_is_one_on_its_last_block():
    """Anthropic marks the last block by itself when the request asks for it."""
    marked = {"system": WORD * 1500, "messages": [], **MARK}
    assert anthropic_price([marked], letters).units == pytest.approx(1.25 * 1500)
