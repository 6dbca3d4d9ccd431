"""The job of the contenders: a shop's bot with seven tools, and a conversation of 40 turns, 10 of
them with a tool.

The tools are plain functions, which each contender takes in the way that its documentation shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

PROMPT = (
    "You help the people of Fresh Fields, a shop for fruit and vegetables with three branches in "
    "Hamburg. Answer in the language of the person, in at most three sentences. Look things up "
    "with the tools instead of guessing. Never promise a delivery that the delivery slots do not "
    "show. Prices are in euros and include tax. If a person is angry, say sorry once, then solve "
    "the problem."
)


Status = Literal["open", "sent", "delivered", "returned"]
Branch = Literal["Altona", "Eimsbuettel", "Wandsbek"]


def find_customer(query: str) -> str:
    """Find a customer by name, e-mail or phone number."""
    return f"C-204: Ada Hopper, ada@example.com, postcode 20095, since 2021. Found by {query!r}."


def list_orders(customer_id: str, status: Status | None = None) -> str:
    """List the orders of a customer, newest first."""
    state = status or "sent"
    lines = [f"{1000 + at}: {state}, {2 + at} boxes, {18 + 3 * at}.40 EUR" for at in range(4)]
    return f"Orders of {customer_id}:\n" + "\n".join(lines)


def get_order(order_id: str) -> str:
    """Show one order with its items and where it is."""
    items = [
        "2 kg apples, Elstar, 5.80 EUR",
        "1 kg pears, Conference, 3.90 EUR",
        "6 lemons, untreated, 3.30 EUR",
    ]
    return f"Order {order_id}, sent on Tuesday with Hermes, due on Thursday:\n" + "\n".join(
        f"- {item}" for item in items
    )


def check_stock(product: str, branch: Branch | None = None) -> str:
    """Say how much of a product a branch has, or all branches together."""
    stock = "Altona 42 kg, Eimsbuettel 17 kg, Wandsbek 0 kg until Friday"
    return f"{product}: {stock}. Asked for: {branch or 'all'}."


def delivery_slots(postcode: str, day: str) -> str:
    """List the free delivery slots of a day (YYYY-MM-DD) in a postcode."""
    slots = "08:00-10:00, 12:00-14:00, 18:00-20:00"
    return f"{postcode} on {day}: {slots}. Each costs 2.90 EUR, free from 40 EUR."


def send_receipt(order_id: str, email: str) -> str:
    """Send the receipt of an order by e-mail."""
    return f"The receipt of order {order_id} was sent to {email}."


def refund_order(order_id: str, amount: float, reason: str) -> str:
    """Refund an order, in whole or in part."""
    return f"Order {order_id}: {amount:.2f} EUR refunded. Reason: {reason}."


TOOLS: tuple[Callable[..., str], ...] = (
    find_customer,
    list_orders,
    get_order,
    check_stock,
    delivery_slots,
    send_receipt,
    refund_order,
)
#: The tool that needs a yes.
DANGEROUS = refund_order.__name__


@dataclass(frozen=True, slots=True)
class Exchange:
    """One turn: what the person writes, the model's answers in order, each a scripted step."""

    text: str
    steps: tuple[dict[str, Any], ...]


def call_step(name: str, arguments: dict[str, Any], number: int) -> dict[str, Any]:
    """Return the step of a model that calls a tool. The id of a call is the same in every run."""
    return {"calls": [{"id": f"call_{number:04}", "name": name, "arguments": arguments}]}


_QUESTIONS = (
    "Do you have {fruit} from the region this week, and what does a box of five kilos cost?",
    "Thanks! And how long do {fruit} keep if I put them into the fridge right after the delivery?",
    "My neighbor told me that your {fruit} were a bit sour last time. Is that another kind now?",
    "Could the driver put the box with the {fruit} behind the house? We are at work until five.",
)
_ANSWERS = (
    "Yes, the {fruit} come from the Altes Land, forty kilometers away. A box of five kilos costs "
    "14.90 euros, and from three boxes on each is a euro cheaper. Shall I put one aside for you? "
    "They are picked fresh every other morning.",
    "In the fridge {fruit} keep for about two weeks, best in the drawer at the bottom. Take them "
    "out an hour before you eat them, then they have more taste. Keep them away from bananas, "
    "which make other fruit ripen too fast.",
    "Last time it was an early kind, which is always a little sour. Since Monday we have had a "
    "sweeter one, and most people who tried the {fruit} came back for more. You can taste them in"
    " every branch before you buy.",
    "Of course. I noted for the driver that the box with the {fruit} goes behind the house, dry "
    "and in the shade. You get a message as soon as it is there. If it rains, he puts it under "
    "the roof of the bicycle stand.",
)
_FRUIT = (
    "apples",
    "pears",
    "plums",
    "cherries",
    "grapes",
    "carrots",
    "potatoes",
    "tomatoes",
    "leeks",
    "pumpkins",
)
_CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("find_customer", {"query": "Ada Hopper"}),
    ("list_orders", {"customer_id": "C-204", "status": "open"}),
    ("get_order", {"order_id": "1007"}),
    ("check_stock", {"product": "apples", "branch": "Altona"}),
    ("delivery_slots", {"postcode": "20095", "day": "2026-12-03"}),
)


def conversation(turns: int = 40, every: int = 4) -> list[Exchange]:
    """Return a conversation; each turn of a number that `every` divides has one call of a "
    "tool."""
    return [_exchange(number, with_tool=number % every == 0) for number in range(1, turns + 1)]


def _exchange(number: int, *, with_tool: bool) -> Exchange:
    fruit = _FRUIT[number % len(_FRUIT)]
    question = _QUESTIONS[number % len(_QUESTIONS)].format(fruit=fruit)
    said = _ANSWERS[number % len(_ANSWERS)].format(fruit=fruit)
    text = f"{question} I ask for order {1000 + number}."
    answer = {"text": f"{said} That is for order {1000 + number}, as you asked."}
    if not with_tool:
        return Exchange(text, (answer,))
    name, arguments = _CALLS[number // 4 % len(_CALLS)]
    return Exchange(text, (call_step(name, arguments, number), answer))
