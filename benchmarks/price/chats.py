"""Chats: the rows of conversations of 40 turns."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.price.bot import Bot
from benchmarks.price.peers import installed_peers
from benchmarks.price.rows import Row
from benchmarks.price.shop import PROMPT, TOOLS, conversation
from benchmarks.price.units import Encode, Price, anthropic_price, openai_price
from tests.agent.providers.recorder import ModelRecorder

PRICES = {"openai": openai_price, "anthropic": anthropic_price}
SHOP = "[benchmarks.price.shop_tools]"


def rows(encode: Encode) -> Iterator[Row]:
    """Yield the rows of the 40 turns, 10 of them with a tool."""
    what = "40 turns, 10 with a tool"
    ours, _ = sayso_price("openai", encode)
    peers = peer_prices("openai", encode)
    units = {name: price.units for name, price in peers.items()}
    stable = {name: price.stable for name, price in peers.items()}
    yield Row(f"{what}, defaults, OpenAI: units", ours.units, 28_000, unit="k", peers=units)
    share = "the same: share of the prompt that is a stable prefix"
    yield Row(share, ours.stable, 0.9, True, "%", stable)

    ours, summaries = sayso_price("openai", encode, agent="  memory: {summarize: true}")
    yield Row(f"{what}, `summarize: true`: units, summaries included", ours.units, unit="k")
    yield Row("the same: summary calls", summaries, 4)

    ours, _ = sayso_price("anthropic", encode, agent="  memory: {max_messages: 200}")
    units = {name: price.units for name, price in peer_prices("anthropic", encode).items()}
    what += ", 200 messages kept, Anthropic: units"
    yield Row(what, ours.units, 25_000, unit="k", peers=units)


def sayso_price(
    vendor: str,
    encode: Encode,
    *,
    agent: str = "",
    side_text: str = "",
) -> tuple[Price, int]:
    """Return the price of the conversation in Sayso, and the number of calls beside it.

    `agent` is YAML below `agent`; `side_text` is what such calls are answered with.
    """
    with Bot(vendor, PROMPT, SHOP, agent=agent) as bot:
        if side_text:
            bot.recorder.side_answer = {"text": side_text}
        for exchange in conversation():
            bot.recorder.script(*exchange.steps)
            answer = bot.say(exchange.text)
            assert answer == exchange.steps[-1]["text"], answer
        return PRICES[vendor](bot.recorder.bodies, encode), len(bot.recorder.side_bodies)


def peer_prices(vendor: str, encode: Encode) -> dict[str, Price]:
    """Return the price of the conversation in each installed peer."""
    prices = {}
    for name, peer in installed_peers().items():
        with ModelRecorder() as recorder:
            say = peer(vendor, recorder, TOOLS)
            for exchange in conversation():
                recorder.script(*exchange.steps)
                say(exchange.text)
            prices[name] = PRICES[vendor](recorder.bodies, encode)
    return prices
