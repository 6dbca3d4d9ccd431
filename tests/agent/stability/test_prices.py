"""Prices: what the benchmark `benchmarks.price` measures stays within generous bounds.

Tokens are estimated as four letters each, so no tokenizer is needed. Nothing here depends on time.
"""

from __future__ import annotations

from functools import cache

import pytest

from benchmarks.price import catalog, chats, results
from benchmarks.price.units import Price, letters

pytestmark = pytest.mark.slow


@cache
def forty_turns(vendor: str, agent: str) -> tuple[Price, int]:
    """Return the price of 40 turns with these lines below `agent`, and the summary calls."""
    return chats.sayso_price(vendor, letters, agent=agent)


def test_forty_turns_cost_what_peers_pay_that_keep_everything():
    """A history that loses its first exchange in each turn would cost twice as much."""
    price, _ = forty_turns("openai", "")
    assert price.units <= 28_000
    assert price.stable >= 0.9


def test_a_conversation_is_seldom_summarized():
    """One summary serves many turns."""
    price, summaries = forty_turns("openai", "  memory: {summarize: true}")
    assert 1 <= summaries <= 4
    assert price.units <= 35_000


def test_anthropic_reads_the_conversation_from_its_cache():
    """Without marks on the messages it costs six times as much."""
    price, _ = forty_turns("anthropic", "  memory: {max_messages: 200}")
    assert price.units <= 26_000


def test_a_long_result_is_paid_once_and_not_whole():
    """Of 50,000 tokens a model reads a part, and the turns after it less."""
    assert results.sayso_price(letters, "").units <= 15_000
    assert results.sayso_price(letters, "  results: {compress: true}").units <= 15_000


def test_a_selector_costs_no_more_than_showing_twenty_tools():
    """A list of tools that changes with each message would keep everything out of the cache."""
    names = catalog.small_names()
    wanted = catalog.requests_for(names)
    whole, _ = catalog.sayso_price(letters, names, wanted, "")
    selected, found = catalog.sayso_price(letters, names, wanted, catalog.SELECTOR)
    assert selected.units <= whole.units
    assert found == len(wanted)


def test_the_right_one_of_many_tools_is_found_from_a_stable_prompt():
    """Tools that a conversation has needed stay, and new ones stand behind them."""
    names = [tool.name for tool in catalog.all_tools()]
    wanted = catalog.requests_for(names)
    price, found = catalog.sayso_price(letters, names, wanted, catalog.SELECTOR)
    assert found == len(wanted)
    assert price.units <= 22_000
    assert price.stable >= 0.6
