"""Simulated deciders: people who are asked about the actions of others, and say yes or no.

A decider has one private chat on Telegram. They answer each request there once, by a tap or in words
with its code, and sometimes a second time. The people who ask never see this chat.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from random import Random
from typing import Any, Literal

from sayso.channels.i18n.texts import texts_for
from sayso.testing.simulation.outcomes import text_pattern
from sayso.testing.simulation.webhooks import SignWebhook, WebhookClient, WebhookDelivery

#: Who decides about what people of a channel ask for, by the name of the channel. A platform lets a
#: chat have about one message a second, so the channels do not share their deciders.
DECIDERS: Mapping[str, Sequence[str]] = {
    "shop-wa": ("dora", "emil", "fred"),
    "ops-tg": ("gina", "hugo", "iris"),
    "desk": ("jana", "karl", "lena"),
}
#: The number of each decider as a person, beyond those of all others, by name.
DECIDER_NUMBERS: Mapping[str, int] = {
    name: number for number, name in enumerate(chain(*DECIDERS.values()), 900_001)
}
#: The share of answers that are a yes, that are tapped, and that are given twice.
YES_SHARE, TAP_SHARE, TWICE_SHARE = 0.85, 0.6, 0.2
#: The longest time in which a decider reads a request, in seconds.
READING_SECONDS = 1.0
_ENGLISH = texts_for("en")
#: An open request. What takes its place once it is decided has no code.
_REQUEST = re.compile("|".join(text_pattern(key) for key in ("request", "request_many")))
_CODE = re.compile(rf"\b{_ENGLISH.yes} ([A-Z]{{4}})\b")
_BILL = re.compile(r"\bb\d{1,6}\b")


@dataclass(slots=True)
class Decision:
    """One answer of a decider. Times are of the monotonic clock."""

    #: The number of its turn.
    number: int
    person: str
    bill: str
    answer: Literal["yes", "no"]
    sent_at: float
    #: When a web process accepted its webhook; 0 for not yet.
    accepted_at: float = 0.0


@dataclass(slots=True)
class SimulatedDecider:
    """One person who decides. Used on the event loop of the users only."""

    name: str
    client: WebhookClient
    #: Where the webhooks go.
    url: str
    delivery: WebhookDelivery
    #: Returns the number of the next turn, from the budget of all users.
    take_turn: Callable[[], Any]
    rng: Random
    decisions: list[Decision] = field(default_factory=list)
    #: The messages in the chat. The platform changes an entry when its message is edited.
    messages: list[Mapping[str, Any]] = field(default_factory=list)

    async def read(self, message: Mapping[str, Any]) -> None:
        """Read a message, and answer a request that was not answered before."""
        self.messages.append(message)
        request = open_request(message)
        if request is None or any(each.bill == request.bill for each in self.decisions):
            return
        answer: Literal["yes", "no"] = "yes" if self.rng.random() < YES_SHARE else "no"
        is_tap = self.rng.random() < TAP_SHARE
        times = 2 if self.rng.random() < TWICE_SHARE else 1
        decision = Decision(0, self.name, request.bill, answer, time.monotonic())
        self.decisions.append(decision)
        await asyncio.sleep(self.rng.random() * READING_SECONDS)
        for repeat in range(times):
            decision.number = await self.take_turn()
            if repeat == 0:
                decision.sent_at = time.monotonic()
            webhook = self._webhook(decision, request, is_tap=is_tap)
            accepted_at = await self.delivery.deliver(self.url, webhook)
            decision.accepted_at = decision.accepted_at or accepted_at

    def _webhook(self, decision: Decision, request: OpenRequest, *, is_tap: bool) -> SignWebhook:
        """Return the function that signs the webhook of an answer."""
        number = decision.number
        if is_tap:
            place = 0 if decision.answer == "yes" else 1
            return lambda: self.client.tap(number, request.buttons[place])
        words = f"{decision.answer} {request.code}"
        return lambda: self.client.text(number, words)

    def knows_end_of(self, bill: str) -> bool:
        """Return whether a request about a bill was replaced by what became of it."""
        about = [each for each in self.messages if _BILL.findall(each["text"])[:1] == [bill]]
        return any(open_request(each) is None for each in about)


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """A request as its message shows it."""

    bill: str
    code: str
    #: The data of the buttons for yes and no.
    buttons: Sequence[str]


def open_request(message: Mapping[str, Any]) -> OpenRequest | None:
    """Return the request that a message shows, None if it shows none, or none any more."""
    text = message["text"].replace("*", "")
    bill = _BILL.search(text)
    code = _CODE.search(text)
    buttons = [button["data"] for button in message["buttons"]]
    if not (_REQUEST.search(text) and bill and code and len(buttons) > 1):
        return None
    return OpenRequest(bill[0], code[1], buttons)
