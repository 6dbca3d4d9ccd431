"""The judge of simulations names each broken promise and accepts the truth."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from sayso.channels.i18n.texts import texts_for
from sayso.testing.simulation.judge import SimulationResult, droppable_taps, judge_simulation
from sayso.testing.simulation.profile import Profile, Repertoire
from sayso.testing.simulation.tools import EffectEntry
from sayso.testing.simulation.users import (
    PATIENCE,
    Act,
    ChatInbox,
    SimulatedUser,
    SimulatedUsers,
    TurnBudget,
)
from sayso.testing.simulation.webhooks import WebhookDelivery

TEXTS = texts_for("en")
MARK = TEXTS.repeated("")
ASKED = TEXTS.question("Pay b2", 300)
CANCELLED, DROPPED = TEXTS.cancelled("Pay b2"), TEXTS.dropped("Pay b2")
EARLY, UNKNOWN = TEXTS.early("Pay b2"), TEXTS.unknown("Pay b2")
CORRECTED = TEXTS.correction("Pay b2", "Paid b2.")
SAID, ASK, YES = Act(1, "say", "", 1.0), Act(2, "ask", "b2", 2.0), Act(3, "agree", "b2", 3.0)
EFFECT = EffectEntry("b2", "effect", "", 1)


def judged(
    acts: list[Act],
    texts: list[str | dict[str, Any]],
    effects: list[EffectEntry] | None = None,
    signs: Sequence[float] = (),
) -> SimulationResult:
    """Judge one person with these acts and messages. Messages without a time arrive one second apart."""
    client: Any = SimpleNamespace(chat="ada")
    delivery = WebhookDelivery(rng=random.Random(1))
    person = SimulatedUser(client, "", delivery, TurnBudget(9), random.Random(1), ChatInbox(), acts)
    for at, text in enumerate(texts, 4):
        message = text if isinstance(text, dict) else {"text": text, "media": None}
        person.inbox.add({"buttons": [], **message}, message.get("at", float(at)))
    person.inbox.signs += signs
    return judge_simulation([person], effects or [])


def promises(found: SimulationResult) -> list[str]:
    """Return the broken promises."""
    return [finding.kind for finding in found.findings]


@pytest.mark.parametrize(
    ("texts", "effects", "promise"),
    [
        (["You said: t1", ASKED, "Paid b2."], [EFFECT, EFFECT], "doubled"),
        (["You said: t1", ASKED, "Paid b2."], [], "untrue"),
        (["You said: t1", ASKED, CANCELLED], [EFFECT], "untrue"),
        (["You said: t1", ASKED], [EFFECT], "untold"),
        ([ASKED, "Paid b2."], [EFFECT], "lost"),
        ([ASKED, "You said: t1", "Paid b2."], [EFFECT], "out of order"),
        (["You said: t1", ASKED, "Paid b2.", "Paid b2."], [EFFECT], "unmarked"),
        (["You said: t1", "You said: t1", ASKED, "Paid b2."], [EFFECT], "unmarked"),
        (
            ["You said: t1", ASKED, "Paid b2.", "Something went wrong on my side."],
            [EFFECT],
            "stray",
        ),
    ],
)
def test_each_broken_promise_is_named(
    texts: list[str], effects: list[EffectEntry], promise: str
) -> None:
    """The judge reports each kind of fault, so its silence proves something."""
    assert promise in promises(judged([SAID, ASK, YES], list(texts), effects))


def test_effect_without_a_yes_is_unwanted() -> None:
    """A no, or no answer at all, is not a yes."""
    no = Act(3, "refuse", "b2", 3.0)
    assert "unwanted" in promises(judged([ASK, no], [ASKED, CANCELLED], [EFFECT]))
    assert "unwanted" in promises(judged([ASK], [ASKED], [EFFECT]))


def test_yes_of_a_stranger_does_not_count() -> None:
    """An effect that only strangers approved is unwanted, and so is a stranger's tap that was not refused."""
    not_yours = TEXTS.not_yours()
    tap = Act(3, "agree", "b2", 3.0, stranger=1, tapped=True)
    typed = Act(4, "agree", "b2", 3.0, stranger=2)
    assert promises(judged([ASK, tap, typed], [ASKED, not_yours, "Paid b2."], [EFFECT])) == [
        "unwanted"
    ]
    assert promises(judged([ASK, tap, YES], [ASKED, "Paid b2.", "Paid b2."], [EFFECT])) == [
        "unwanted"
    ]
    assert (
        promises(
            judged(
                [ASK, tap, typed, YES], [ASKED, not_yours, "You said: yes", "Paid b2."], [EFFECT]
            )
        )
        == []
    )
    dropped = f"{DROPPED}\n\nYou said: t5"
    subject = Act(5, "say", "", 5.0)
    assert (
        promises(judged([ASK, tap, typed, subject], [ASKED, not_yours, dropped, "You said: yes"]))
        == []
    )


def test_answer_in_a_tap_is_one_to_its_bill() -> None:
    """Telegram shows it to the stranger alone, outside the chat: it is about the question whose button it was."""
    inbox = ChatInbox()
    inbox.bill_of_tap[3] = "b2"
    inbox.add_tap_answer(3, TEXTS.not_yours(), 4.0)
    (message,) = inbox.messages
    assert (message.bill, message.statement.kind) == ("b2", "foreign")


def test_stranger_within_the_limit_is_answered_each_time() -> None:
    """Of four taps at once the fourth may be dropped, and each other one without an answer is lost."""
    taps = [
        Act(number, "agree", "b2", 3.0, 3.1, stranger=1, tapped=True) for number in (3, 4, 5, 6)
    ]
    yes = Act(7, "agree", "b2", 4.0)
    heard = [ASKED, *[TEXTS.not_yours()] * 3, "Paid b2."]
    kept = judged([ASK, *taps, yes], heard, [EFFECT])
    assert (promises(kept), kept.dropped) == ([], 1)
    assert "lost" in promises(judged([ASK, *taps, yes], [ASKED, *heard[2:]], [EFFECT]))
    assert "lost" in promises(judged([ASK, *taps, yes], heard[:-1], [EFFECT]))


@pytest.mark.parametrize(
    ("gap", "dropped"), [(2.0, {6, 7, 8, 9, 10, 11}), (10.0, set()), (40.0, set())]
)
def test_limit_for_taps_of_strangers_is_free_again_after_a_while(
    gap: float, dropped: set[int]
) -> None:
    """Six a minute are answered, each stranger's own: those who tap more slowly are always answered."""
    taps = [
        Act(number, "agree", "b2", number * gap, number * gap, stranger=1, tapped=True)
        for number in range(3, 12)
    ]
    others = [replace(tap, number=tap.number + 20, stranger=tap.number) for tap in taps]
    assert droppable_taps([*taps, *others], 0.0) == dropped


def test_deadline_of_the_question_decides() -> None:
    """An effect of a late yes is unwanted, and a timely yes must not be called late."""
    expired, paid = (
        {"text": text, "media": None, "at": 311.0} for text in (TEXTS.expired("Pay b2"), "Paid b2.")
    )
    late = Act(3, "agree", "b2", 310.0, accepted_at=310.0, late=True)
    assert promises(judged([ASK, late], [ASKED, paid], [EFFECT])) == ["unwanted"]
    assert promises(judged([ASK, late], [ASKED, expired])) == []
    in_time = Act(3, "agree", "b2", 60.0, accepted_at=60.0)
    assert promises(judged([ASK, in_time], [ASKED, expired])) == ["untrue"]
    at_the_end = Act(3, "agree", "b2", 303.5, accepted_at=303.5)
    assert promises(judged([ASK, at_the_end], [ASKED, expired])) == []


def test_missing_file_is_lost() -> None:
    """The text alone is not the file; a notice instead of a second send is an answer."""
    want = Act(1, "want", "", 1.0)
    words, file = "Here is t1.", {"text": "", "media": {"filename": "t1.csv"}}
    assert promises(judged([want], [words])) == ["lost"]
    assert promises(judged([want], [words, file])) == []
    instead = TEXTS.maybe_missing("t1.csv")
    assert promises(judged([want], [words, instead])) == []
    assert judged([want], [words, file, instead]).repeated == 1


@pytest.mark.parametrize(
    ("texts", "repeated"),
    [
        (["You said: t1", ASKED, "Paid b2."], 0),
        (["You said: t1", MARK + "You said: t1", ASKED, "Paid b2."], 1),
        ([MARK + "You said: t1", ASKED, MARK + ASKED, "Paid b2.", MARK + "Paid b2."], 2),
    ],
)
def test_marked_repetition_is_counted(texts: list[str], repeated: int) -> None:
    """A marked repetition breaks no promise, but its number has a limit."""
    found = judged([SAID, ASK, YES], list(texts), [EFFECT])
    assert (found.repeated, promises(found)) == (repeated, [])


def test_true_conversation_has_no_finding() -> None:
    """A change of subject, an early yes, two yeses and a correction are all in order."""
    subject = [ASK, Act(3, "say", "", 3.0)]
    dropped = f"{DROPPED}\n\nYou said: something else t3"
    assert promises(judged(subject, [ASKED, dropped])) == []
    again = Act(4, "agree", "b2", 4.0)
    assert promises(judged([ASK, YES, again], [ASKED, EARLY, "Paid b2."], [EFFECT])) == []
    assert promises(judged([ASK, YES, again], [ASKED, "Paid b2.", "You said: yes"], [EFFECT])) == []
    found = judged([ASK, YES], [ASKED, UNKNOWN, CORRECTED], [EFFECT])
    assert (promises(found), found.endings["corrected"]) == ([], 1)


def test_waits_begin_with_the_first_delivery() -> None:
    """A wait lasts from the act to its first answer."""
    found = judged([SAID, ASK], ["You said: t1", ASKED])
    assert (found.waits, found.wait(0.5), found.wait(1.0)) == ([3.0, 3.0], 3.0, 3.0)


def test_message_may_ask_a_question_and_drop_an_older_one() -> None:
    """A person who stopped waiting asks anew, and one message handles both questions."""
    new, yes = Act(3, "ask", "b3", 3.0), Act(4, "agree", "b3", 4.0)
    both = f"{DROPPED}\n\n" + ASKED.replace("b2", "b3")
    paid = EffectEntry("b3", "effect", "", 1)
    assert promises(judged([ASK, new, yes], [ASKED, both, "Paid b3."], [paid])) == []
    assert promises(judged([ASK, new, yes], [ASKED, both, "Paid b3."], [EFFECT, paid])) == [
        "untrue",
        "unwanted",
    ]
    assert judged([ASK, new, yes], [ASKED, both, MARK + both, "Paid b3."], [paid]).repeated == 1


def test_early_yes_without_a_second_answer_ends_as_asked_again() -> None:
    """An early yes changes nothing, and the person left before answering the repeated question."""
    left = replace(YES, sent_at=4.0 - PATIENCE)
    found = judged([ASK, left], [ASKED, EARLY])
    assert (promises(found), found.endings["asked again"]) == ([], 1)
    assert "untold" in promises(judged([ASK, YES], [ASKED, EARLY], [EFFECT]))


def test_first_attempt_may_arrive_after_its_repetition() -> None:
    """A worker that was stopped while sending resumes after another worker has repeated the reply."""
    twice, new, yes = (
        Act(4, "agree", "b2", 4.0),
        Act(5, "ask", "b5", 5.0),
        Act(6, "agree", "b5", 6.0),
    )
    heard = [
        ASKED,
        "Paid b2.",
        MARK + "You said: yes",
        ASKED.replace("b2", "b5"),
        "You said: yes",
        "Paid b5.",
    ]
    effects = [EFFECT, EffectEntry("b5", "effect", "", 1)]
    found = judged([ASK, YES, twice, new, yes], heard, effects)
    assert (promises(found), found.repeated) == ([], 1)
    again = Act(7, "agree", "b5", 7.0)
    answered = [*heard[:4], "Paid b5.", "You said: yes"]
    assert promises(judged([ASK, YES, twice, new, yes, again], answered, effects)) == []


def test_late_first_attempt_is_not_out_of_order() -> None:
    """Two taps have equal answers. The second was repeated before its first attempt, which came after a question."""
    twice, new, yes = (
        Act(4, "agree", "b2", 4.0, tapped=True),
        Act(5, "ask", "b5", 5.0),
        Act(6, "agree", "b5", 6.0),
    )
    asked = ASKED.replace("b2", "b5")
    heard = [ASKED, "Paid b2.", MARK + "Paid b2.", asked, "Paid b5.", "Paid b2."]
    found = judged([ASK, YES, twice, new, yes], heard, [EFFECT, EffectEntry("b5", "effect", "", 1)])
    assert (promises(found), found.repeated) == ([], 1)


def test_reader_of_messages_that_fails_ends_the_simulation(monkeypatch: pytest.MonkeyPatch):
    """Its messages would count as lost replies of the bot."""

    class BrokenPlatforms:
        calls: Sequence[Any] = ()

        @property
        def sent(self) -> Sequence[Any]:
            raise ValueError("unreadable")

    monkeypatch.setattr("sayso.testing.simulation.users.webhook_clients", lambda *_: [])
    platforms: Any = BrokenPlatforms()
    bot: Any = SimpleNamespace(addresses=list, hooks=[])
    users = SimulatedUsers(Profile(), platforms, bot, Repertoire((), ""))
    with users, pytest.raises(ValueError, match="unreadable"):
        wait_for_replies(users)


def wait_for_replies(users: SimulatedUsers) -> None:
    """Wait until a reply has arrived, at most 30 seconds."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and not users.message_count:
        time.sleep(0.01)
