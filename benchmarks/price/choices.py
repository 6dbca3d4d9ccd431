"""Choices: what settings change in the price of the 40 turns, and of a long result."""

from __future__ import annotations

import json
from collections.abc import Iterator

from benchmarks.price.chats import sayso_price
from benchmarks.price.results import sayso_price as result_price
from benchmarks.price.rows import Row
from benchmarks.price.units import Encode

#: What a model notes of who and what was named in the conversation, in each turn.
_NAMES = ("Ada Hopper", "Fresh Fields", "Altes Land", "order 1007", "apples", "pears", "Altona")
_NOTES = {"type": "unknown", "attributes": {"named in": "the last order"}}
ENTITIES = json.dumps([{"name": name, **_NOTES} for name in _NAMES])
#: Settings below `agent`, whose price for OpenAI is measured.
OPENAI = (
    "memory: {max_messages: 20}",
    "memory: {max_messages: 100}",
    "memory: {summarize: true}",
    "memory: {entities: true}",
)


def rows(encode: Encode) -> Iterator[Row]:
    """Yield a row for each setting. Calls beside the conversation count, at the same price."""
    default, _ = sayso_price("openai", encode)
    yield Row("40 turns, OpenAI, defaults: units", default.units, unit="k")
    for setting in OPENAI:
        side_text = ENTITIES if "entities" in setting else ""
        price, calls = sayso_price("openai", encode, agent=f"  {setting}", side_text=side_text)
        more_calls = f", {calls} more calls" if calls else ""
        yield Row(f"the same with `{setting}`{more_calls}", price.units, unit="k")

    default, _ = sayso_price("anthropic", encode)
    yield Row("40 turns, Anthropic, defaults: units", default.units, unit="k")
    price, _ = sayso_price("anthropic", encode, agent="  cache_prompt: false")
    yield Row("the same with `cache_prompt: false`", price.units, unit="k")

    for tokens in (8000, 4000, 2000):
        price = result_price(encode, f"  results: {{max_tokens: {tokens}}}")
        what = f"a result of 200 KB, `results: {{max_tokens: {tokens}}}`: units"
        yield Row(what, price.units, unit="k")
