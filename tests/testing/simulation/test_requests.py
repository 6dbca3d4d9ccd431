"""Requests of several steps: the model that carries them through, and the judge of what follows each outcome."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sayso import Agent, ChannelAgent
from sayso.channels.i18n.texts import texts_for
from sayso.testing.simulation.language_model import RequestModel
from sayso.testing.simulation.tools import EffectEntry, settle
from sayso.testing.simulation.users import Act
from tests.testing.simulation.test_conversations import MARK, judged, promises

TEXTS = texts_for("en")
FIRST = Act(2, "ask", "b2", 2.0, request="b2")
SECOND = Act(3, "next", "b3", 2.0, request="b2")
YES = Act(4, "agree", "b2", 3.0)
YES_TO_SECOND = Act(5, "agree", "b3", 7.5)
STEPS = [FIRST, SECOND, YES, YES_TO_SECOND]
EFFECTS = [EffectEntry("b2", "effect", "", 1, 4.5), EffectEntry("b3", "effect", "", 1, 8.0)]
REST = "Request b2: b2 done, b3 done."


def asked(bill: str) -> str:
    """Return the question about a bill."""
    return TEXTS.question(f"Settle {bill}", 300)


def done(bill: str) -> str:
    """Return the outcome of a settled bill, as a channel with continuations tells it."""
    return f"✅ Done: Settle {bill}\nSettled {bill}."


def at(second: float, text: str) -> dict[str, Any]:
    """Return a message that arrived at this second."""
    return {"text": text, "media": None, "at": second}


#: A request of two steps as it should be: each outcome, then the next question, then the line that names both.
TOLD: list[Any] = [
    at(2.5, asked("b2")),
    at(5.0, done("b2")),
    at(6.0, asked("b3")),
    at(9.0, done("b3")),
    at(10.0, REST),
]


@pytest.fixture
def chat(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ChannelAgent:
    """Return a bot on the model, whose effects are written to a folder of its own."""
    monkeypatch.setenv("SAYSO_DATA", str(tmp_path))
    return ChannelAgent(Agent([settle], RequestModel()))


def test_model_works_through_a_request_and_names_all_steps(chat: ChannelAgent) -> None:
    """Each yes settles one bill and brings the next question. What follows is small talk again."""
    assert "Settle b5" in chat.ask_channel("ana", "/each settle b5, b6").content
    assert "Settle b6" in chat.ask_channel("ana", "yes").content
    assert chat.ask_channel("ana", "yes").content.endswith("\n\nRequest b5: b5 done, b6 done.")
    assert chat.ask_channel("ana", "hello t9").content.startswith(
        "You said: hello t9\nThat matches none"
    )


def test_model_ends_a_request_with_a_no_or_another_subject(chat: ChannelAgent) -> None:
    """A step that was not done is named, and so are those that were not proposed."""
    chat.ask_channel("ana", "/each settle b5, b6, b7")
    chat.ask_channel("ana", "yes")
    assert chat.ask_channel("ana", "no").content.endswith(
        "Request b5: b5 done, b6 denied, b7 open."
    )
    chat.ask_channel("ana", "/each settle b8, b9")
    answer = chat.ask_channel("ana", "something else t9").content
    assert "You said: something else t9" in answer
    assert answer.endswith("Request b8: b8 replaced, b9 open.")


@pytest.mark.parametrize(
    "messages",
    [
        TOLD,
        [*TOLD[:3], at(9.0, f"{done('b3')}\n\n{REST}")],
        [TOLD[0], at(6.0, f"{done('b2')}\n\n{asked('b3')}"), *TOLD[3:]],
        [*TOLD, at(11.0, MARK + REST)],
        [*TOLD[:4], at(10.0, TEXTS.rest_missing())],
    ],
    ids=["each by itself", "outcome and rest", "outcome and question", "repeated rest", "reason"],
)
def test_request_that_was_carried_through_has_no_finding(messages: list[Any]) -> None:
    """Outcome and what follows it may be one message, and a reason may stand for the rest."""
    found = judged(list(STEPS), list(messages), list(EFFECTS))
    assert (promises(found), found.requests) == ([], 1)


@pytest.mark.parametrize(
    ("messages", "effects", "promise"),
    [
        (TOLD[:4], EFFECTS, "untold"),
        ([*TOLD[:2]], EFFECTS[:1], "untold"),
        ([TOLD[0], at(4.6, asked("b3")), TOLD[1], *TOLD[3:]], EFFECTS, "out of order"),
        (TOLD, [EFFECTS[0], replace(EFFECTS[1], at=5.0)], "unwanted"),
        (TOLD, [*EFFECTS, EFFECTS[0]], "doubled"),
        ([*TOLD[:4], at(10.0, "Request b2: b2 done.")], EFFECTS, "untrue"),
        ([*TOLD[:4], at(10.0, "Request b2: b2 done, b3 denied.")], EFFECTS, "untrue"),
        ([*TOLD, at(11.0, REST)], EFFECTS, "unmarked"),
    ],
    ids=[
        "no rest",
        "no next question",
        "question before the outcome",
        "effect before its yes",
        "two effects",
        "step not named",
        "wrong outcome",
        "rest twice",
    ],
)
def test_each_broken_promise_of_a_request_is_named(
    messages: list[Any], effects: list[EffectEntry], promise: str
) -> None:
    """Each step needs its own yes, and each outcome is followed by what comes next."""
    acts = [each for each in STEPS if each is not YES_TO_SECOND or len(messages) > 2]
    assert promise in promises(judged(list(acts), list(messages), list(effects)))


def test_no_ends_a_request_and_needs_the_line_that_names_it() -> None:
    """The refused step is told by itself, and then in the line."""
    no = replace(YES_TO_SECOND, verb="refuse")
    told = [*TOLD[:3], at(9.0, TEXTS.cancelled("Settle b3"))]
    line = at(9.5, "Request b2: b2 done, b3 denied.")
    assert promises(judged([*STEPS[:3], no], [*told, line], EFFECTS[:1])) == []
    assert promises(judged([*STEPS[:3], no], told, EFFECTS[:1])) == ["untold"]
