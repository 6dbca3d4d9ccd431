"""Results: what the turns after a very long result of a tool cost, and what a confirmed action
costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.price.bot import Bot
from benchmarks.price.chats import SHOP
from benchmarks.price.peers import approvals, installed_peers
from benchmarks.price.prompts import openai_parts
from benchmarks.price.rows import Row
from benchmarks.price.shop import DANGEROUS, PROMPT, TOOLS, call_step, conversation
from benchmarks.price.units import Encode, Price, openai_price, shared_with, tokens_of
from tests.agent.providers.recorder import ModelRecorder

#: The size of the long result in bytes.
RESULT_BYTES = 200_000
#: The turns after it.
TURNS = 7
REPORT = "[benchmarks.price.shop_tools, benchmarks.price.report_tool]"


def export_orders(year: int) -> str:
    """Export all orders of a year, one a line."""
    lines: list[str] = []
    size = 0
    while size < RESULT_BYTES:
        number = len(lines)
        who = f"{_NAMES[number % 7]}, {_PLACES[number % 5]}"
        what = f"{number % 9 + 1} boxes of {_GOODS[number % 11]}, {number * 37 % 90 + 10} euros"
        when = f"{_STATES[number % 3]} in {_MONTHS[number % 12]} {year}"
        lines.append(f"Order {1000 + number} of {who}: {what}, {when}.")
        size += len(lines[-1]) + 1
    return "\n".join(lines)[:RESULT_BYTES]


_NAMES = (
    "Ada Hopper",
    "Grace Keller",
    "Alan Brandt",
    "Edith Clarke",
    "Karl Jansen",
    "Mary Weber",
    "John Vogel",
)
_PLACES = ("Altona", "Eimsbuettel", "Wandsbek", "Harburg", "Bergedorf")
_GOODS = (
    *("apples", "pears", "plums", "cherries", "grapes", "carrots"),
    *("potatoes", "tomatoes", "leeks", "pumpkins", "lemons"),
)
_STATES = ("still open", "sent", "delivered")
_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)

_EXPORT = call_step(export_orders.__name__, {"year": 2026}, 1)
_FOUND = {"text": "There are about 2,500 orders in 2026. The largest is order 1043 with 99 euros."}


def rows(encode: Encode) -> Iterator[Row]:
    """Yield the rows of long results and of a confirmed action."""
    what = f"a result of {RESULT_BYTES // 1000} KB and {TURNS} turns after it"
    peers = {name: _peer_price(peer, encode).units for name, peer in installed_peers().items()}
    ours = sayso_price(encode, "")
    yield Row(f"{what}, defaults: units", ours.units, 15_000, unit="k", peers=peers)
    compressed = sayso_price(encode, "  results: {compress: true}")
    yield Row(
        "the same with `compress: true`, the compressing model included",
        compressed.units,
        15_000,
        unit="k",
    )
    yield from _confirmed(encode)


def sayso_price(encode: Encode, agent: str) -> Price:
    """Return the price of the long result and the turns after it; `agent` is YAML below `agent`."""
    with Bot("openai", PROMPT, REPORT, agent=agent) as bot:
        _converse(bot.recorder, bot.say)
        return openai_price(bot.recorder.bodies, encode)


def _peer_price(peer: Any, encode: Encode) -> Price:
    with ModelRecorder() as recorder:
        _converse(recorder, peer("openai", recorder, [*TOOLS, export_orders]))
        return openai_price(recorder.bodies, encode)


def _converse(recorder: ModelRecorder, say: Callable[[str], object]) -> None:
    recorder.script(_EXPORT, _FOUND)
    say("Please export the orders of 2026 and tell me the largest.")
    for exchange in conversation(TURNS, every=TURNS + 1):
        recorder.script(*exchange.steps)
        say(exchange.text)


def _confirmed(encode: Encode) -> Iterator[Row]:
    """Ask for a refund, confirm it, and read the outcome and what the model says below it."""
    refund = call_step(DANGEROUS, {"order_id": "1007", "amount": 12.0, "reason": "bad pears"}, 1)
    ask = "Please refund 12 euros of order 1007, the pears were bad."
    done = {"text": "The refund is done."}
    with Bot("openai", PROMPT, SHOP) as bot:
        bot.recorder.script(refund, done)
        bot.say(ask)
        words = bot.say("yes")
        outcome = str(bot.platforms.sent[-2]["text"])
        assert "12.00 EUR refunded" in outcome, outcome
        assert words == done["text"], words
        ours = openai_price(bot.recorder.bodies, encode)
        first, second = (tokens_of(openai_parts(body), encode) for body in bot.recorder.bodies)
        kept = shared_with(second, [first]) / len(first)
    peers = {}
    for name, approve in approvals().items():
        with ModelRecorder() as recorder:
            recorder.script(refund, done)
            approve(recorder, ask)
            peers[name] = openai_price(recorder.bodies, encode)
    calls = {name: float(price.calls) for name, price in peers.items()}
    tokens = {name: float(price.tokens) for name, price in peers.items()}
    yield Row(
        "a confirmed action, and what the model says of it: model calls", ours.calls, 2, peers=calls
    )
    yield Row("the same: tokens", ours.tokens, peers=tokens)
    what = "the same: share of the first request with which the second one begins"
    yield Row(what, kept, 1, True, "%")
