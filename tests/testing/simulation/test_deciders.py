"""Deciders of a simulation, and the judge of what they decide."""

from __future__ import annotations

import asyncio
import random
import time
from types import SimpleNamespace
from typing import Any

import pytest

from sayso.channels.i18n.texts import texts_for
from sayso.testing.simulation.deciders import Decision, SimulatedDecider, open_request
from sayso.testing.simulation.judge import SimulationResult, judge_simulation
from sayso.testing.simulation.tools import EffectEntry
from sayso.testing.simulation.users import Act, ChatInbox, SimulatedUser, TurnBudget
from sayso.testing.simulation.webhooks import WebhookDelivery

TEXTS = texts_for("en")
REQUEST = TEXTS.request("Transfer b2", "`ana`", 2, "KMTX", 300)
CLOSED = "Transfer b2\n\n✅ Agreed by dora, emil, 2026-01-01 10:00 UTC"
ASKED = TEXTS.others_asked("Transfer b2", "dora, emil, fred", 2, 300)
DONE = "Agreed by dora, emil, 2026-01-01 10:00 UTC\n\n✅ Transferred b2."
REFUSED = "❌ " + TEXTS.refusal("Transfer b2", "dora", "")
ASK = Act(2, "ask", "b2", 2.0, need=2)
EFFECT = EffectEntry("b2", "effect", "", 1, at=5.0)


def decider(name: str, answer: Any = "", sent_at: float = 3.0, text: str = CLOSED) -> Any:
    """Return a decider who has answered, if at all, and whose request reads so in the end."""
    person = SimulatedDecider(
        name, SimpleNamespace(chat=name), "", Any, lambda: None, random.Random(1)
    )
    person.messages.append({"text": text, "buttons": []})
    if text == REQUEST:
        person.messages[0] = {"text": text, "buttons": [{"data": "y"}, {"data": "n"}]}
    if answer:
        person.decisions.append(Decision(3, name, "b2", answer, sent_at, sent_at))
    return person


def judged(texts: list[str], effects: list[EffectEntry], *deciders: Any) -> SimulationResult:
    """Judge one person who has asked for what others decide."""
    client: Any = SimpleNamespace(chat="ana")
    delivery = WebhookDelivery(rng=random.Random(1))
    inbox = ChatInbox()
    person = SimulatedUser(client, "", delivery, TurnBudget(9), random.Random(1), inbox, [ASK])
    for at, text in enumerate(texts, 4):
        inbox.add({"buttons": [], "text": text, "media": None}, at * 2.0)
    return judge_simulation([person], effects, deciders)


def test_two_people_agree() -> None:
    """Nothing is broken."""
    result = judged([ASKED, DONE], [EFFECT], decider("dora", "yes"), decider("emil", "yes"))
    assert result.findings == []
    assert (result.by_others, result.agreed_by_others, result.endings["done"]) == (1, 1, 1)


def test_one_person_refuses() -> None:
    """The person who asked is told, and nothing takes effect."""
    result = judged([ASKED, REFUSED], [], decider("dora", "no"), decider("emil", "yes"))
    assert result.findings == []
    assert (result.by_others, result.agreed_by_others) == (1, 0)


@pytest.mark.parametrize(
    ("texts", "effects", "deciders", "promise"),
    [
        ([ASKED, DONE], [EFFECT], [decider("dora", "yes")], "unwanted"),
        (
            [ASKED, DONE],
            [EFFECT],
            [decider("dora", "yes"), decider("emil", "yes", 6.0)],
            "unwanted",
        ),
        (
            [ASKED, DONE],
            [EFFECT, EFFECT],
            [decider("dora", "yes"), decider("emil", "yes")],
            "doubled",
        ),
        ([ASKED], [EFFECT], [decider("dora", "yes"), decider("emil", "yes")], "untold"),
        ([ASKED], [], [decider("dora", "no"), decider("emil")], "untold"),
        (
            [ASKED, DONE],
            [EFFECT],
            [decider("dora", "yes"), decider("emil", "yes", text=REQUEST)],
            "untold",
        ),
        ([ASKED, REFUSED], [EFFECT], [decider("dora", "yes"), decider("emil", "yes")], "untrue"),
        ([], [], [], "lost"),
    ],
)
def test_broken_promise_is_found(
    texts: list[str], effects: list[EffectEntry], deciders: list[Any], promise: str
) -> None:
    """Without enough people, before they agreed, twice, untold, not closed, untrue, never asked."""
    result = judged(texts, effects, *deciders)
    assert promise in {finding.kind for finding in result.findings}


def test_request_is_read_and_answered_once() -> None:
    """A repeated request is not answered again, and what takes its place is none."""
    message = {"text": REQUEST, "buttons": [{"data": "y"}, {"data": "n"}]}
    request = open_request(message)
    assert request
    assert (request.bill, request.code, request.buttons) == ("b2", "KMTX", ["y", "n"])
    assert open_request({"text": CLOSED, "buttons": []}) is None

    hooks: list[Any] = []

    async def deliver(_: str, hook: Any) -> float:
        hooks.append(hook())
        return time.monotonic()

    async def take_turn() -> int:
        return 7

    client: Any = SimpleNamespace(
        chat="dora", tap=lambda number, data: (number, data), text=lambda *given: given
    )
    person = SimulatedDecider(
        "dora",
        client,
        "",
        SimpleNamespace(deliver=deliver),
        take_turn,
        SimpleNamespace(random=lambda: 0.0),
    )

    async def read_twice() -> None:
        await person.read(message)
        await person.read(message)

    asyncio.run(read_twice())
    assert set(hooks) == {(7, "y")}
    assert len(person.decisions) == 1
