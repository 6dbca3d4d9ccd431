"""The judge misled on purpose: what hides behind marks, lateness, other bills or silence is named all the same."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sayso.testing.simulation.faults import OutageRecord
from sayso.testing.simulation.judge import SimulationResult
from sayso.testing.simulation.profile import Profile
from sayso.testing.simulation.report import SimulationReport
from sayso.testing.simulation.tools import EffectEntry, Effects
from sayso.testing.simulation.users import PATIENCE, Act
from tests.testing.simulation.test_conversations import ASK, ASKED, EFFECT, MARK, SAID, YES, judged, promises

TWICE = Act(4, "agree", "b2", 3.0)
TAPS = [replace(YES, tapped=True), replace(TWICE, tapped=True)]
NEXT, NEXT_YES = Act(5, "ask", "b5", 5.0), Act(6, "agree", "b5", 6.0)
NEXT_ASKED, NEXT_EFFECT = ASKED.replace("b2", "b5"), replace(EFFECT, bill="b5")
DROPPED = "Not confirmed, so I dropped this: Pay b2."
EARLY = "I had not asked yet when you said that. Do you want this? Pay b2\nReply *yes* or *no*."
UNKNOWN = "I was interrupted while doing this: Pay b2\nI cannot tell whether it finished, and I will not repeat it."
CORRECTED = "Correction: it had finished after all. Paid b2."
FILE: dict[str, Any] = {"text": "", "media": {"filename": "t1.csv"}}


def test_an_effect_is_doubled_whatever_is_said_of_it() -> None:
    """A marked word about an effect that took place again does not make the effect a repeat."""
    assert "doubled" in promises(judged([ASK, YES], [ASKED, "Paid b2.", MARK + "Paid b2."], [EFFECT, EFFECT]))
    keys = [replace(EFFECT, key="k1"), replace(EFFECT, key="k2")]
    assert "doubled" in promises(judged([ASK, YES], [ASKED, "Paid b2."], keys))


def test_an_action_that_was_started_again_is_doubled_although_it_took_effect_once() -> None:
    """Only one with an idempotency key may be started again."""
    begun = replace(EFFECT, step="begin")
    assert promises(judged([ASK, YES], [ASKED, "Paid b2."], [begun, begun, EFFECT])) == ["doubled"]
    keyed = [replace(entry, key="k1") for entry in (begun, begun, EFFECT)]
    assert promises(judged([ASK, YES], [ASKED, "Paid b2."], keyed)) == []


def test_one_key_for_two_bills_is_named(tmp_path: Path) -> None:
    """A payment service would do nothing about the second, which is told to be done."""
    ledger = Effects(tmp_path)
    for bill in ("b2", "b5"):
        ledger.write(bill, "effect", "k1")
    heard = [ASKED, "Charged b2.", NEXT_ASKED, "Charged b5."]
    entries = [replace(entry, at=0.0) for entry in ledger.read()]
    assert promises(judged([ASK, YES, NEXT, NEXT_YES], heard, entries)) == ["untrue"]


def test_an_effect_is_written_down_with_its_moment(tmp_path: Path) -> None:
    """By the clock that the people's diaries and inboxes go by."""
    began, ledger = time.monotonic(), Effects(tmp_path)
    ledger.write("b2", "effect")
    assert began <= ledger.read()[0].at <= time.monotonic()


def test_an_effect_is_unwanted_that_nobody_asked_for() -> None:
    """Somebody must have asked for what takes effect, in any conversation."""
    assert promises(judged([SAID], ["You said: t1"], [EFFECT])) == ["unwanted"]
    assert promises(judged([SAID], ["You said: t1"], [replace(EFFECT, step="refused")])) == []


def test_an_effect_before_the_yes_is_unwanted() -> None:
    """The yes that comes afterwards has agreed to nothing."""
    heard = [ASKED, "Paid b2."]
    assert promises(judged([ASK, YES], heard, [replace(EFFECT, at=2.9)])) == ["unwanted"]
    assert promises(judged([ASK, YES], heard, [replace(EFFECT, at=3.1)])) == []


def test_an_outcome_that_was_told_before_the_effect_is_untrue() -> None:
    """It was heard at 5 seconds."""
    assert promises(judged([ASK, YES], [ASKED, "Paid b2."], [replace(EFFECT, at=5.1)])) == ["untrue"]


def test_an_effect_without_a_question_is_named() -> None:
    """What is done at once was never asked, even where a yes follows."""
    assert "lost" in promises(judged([ASK, YES], ["Paid b2."], [EFFECT]))


def test_a_yes_in_somebody_elses_conversation_is_none() -> None:
    """Who was asked about one bill has not agreed to another's."""
    heard = [ASKED, "Paid b2."]
    assert "unwanted" in promises(judged([ASK, NEXT_YES], heard, [EFFECT]))


@pytest.mark.parametrize(
    ("acts", "texts", "effects"),
    [
        ([ASK], [ASKED, "Paid b2."], []),
        ([ASK], [ASKED, UNKNOWN], []),
        ([ASK, replace(YES, verb="refuse")], [ASKED, UNKNOWN], []),
        ([ASK, replace(YES, verb="refuse")], [ASKED, "Confirmed, but this failed: Pay b2"], []),
        ([ASK, YES], [ASKED, "Cancelled: Pay b2"], []),
        ([ASK, YES], [ASKED, UNKNOWN, CORRECTED], []),
    ],
)
def test_an_outcome_that_cannot_be_is_untrue(acts: list[Act], texts: list[str], effects: list[EffectEntry]) -> None:
    """Nothing is done, fails or is interrupted without a yes, and nothing is cancelled without a no."""
    assert "untrue" in promises(judged(acts, list(texts), effects))


def test_of_two_bills_in_one_message_each_must_be_true() -> None:
    """What is said of the one does not cover what is said of the other."""
    new = Act(3, "ask", "b5", 3.0)
    both = f"{DROPPED}\n\nPaid b5."
    assert "untrue" in promises(judged([ASK, new, NEXT_YES], [ASKED, NEXT_ASKED, both], []))
    assert "unwanted" in promises(judged([ASK, new, NEXT_YES], [ASKED, NEXT_ASKED, both], [EFFECT, NEXT_EFFECT]))
    mixed = "Cancelled: Pay b2\n\nPaid b5."
    no = replace(YES, verb="refuse")
    heard = [ASKED, "Cancelled: Pay b2", NEXT_ASKED, "Paid b5.", MARK + mixed]
    assert "stray" in promises(judged([ASK, no, NEXT, NEXT_YES], heard, [NEXT_EFFECT]))


def test_a_yes_is_not_answered_by_a_question_that_drops_it() -> None:
    """Who was never answered and asked for something else heard of the first only by the way."""
    heard = [ASKED, f"{DROPPED}\n\n{NEXT_ASKED}", "Paid b5."]
    assert promises(judged([ASK, YES, NEXT, NEXT_YES], heard, [NEXT_EFFECT])) == ["lost"]
    told_early = [ASKED, EARLY, f"{DROPPED}\n\n{NEXT_ASKED}", "Paid b5."]
    found = judged([ASK, YES, NEXT, NEXT_YES], told_early, [NEXT_EFFECT])
    assert (promises(found), found.repeated) == ([], 0)


def test_whoever_was_asked_again_in_time_would_have_answered() -> None:
    """People decide again while they wait: if that comes to nothing, its outcome was not told."""
    assert promises(judged([ASK, replace(YES, taken_at=3.1)], [ASKED, EARLY])) == ["untold"]
    late = replace(YES, sent_at=4.0 - PATIENCE, taken_at=4.9 - PATIENCE)
    assert promises(judged([ASK, late], [ASKED, EARLY])) == []
    again = replace(TWICE, sent_at=6.0, taken_at=6.1)
    assert "lost" in promises(judged([ASK, late, again], [ASKED, EARLY]))


def test_a_late_first_try_is_one_only_where_its_act_has_no_other_answer() -> None:
    """A marked "You said: yes" excuses no second answer to another question for ever after."""
    aside, acts = "You said: yes", [ASK, YES, TWICE, NEXT, NEXT_YES]
    heard = [ASKED, "Paid b2.", aside, MARK + aside, NEXT_ASKED, "Paid b5.", aside]
    assert promises(judged(acts, heard, [EFFECT, NEXT_EFFECT])) == ["unmarked"]
    assert "unmarked" in promises(judged(acts[:3], [ASKED, "Paid b2.", aside, MARK + aside, aside], [EFFECT]))


def test_a_marked_answer_behind_the_next_question_is_late_when_no_other_is_there() -> None:
    """Two taps have two answers: if the second came only now, it is out of order; if it never came, it is lost."""
    heard = [ASKED, "Paid b2.", NEXT_ASKED, MARK + "Paid b2.", "Paid b5."]
    found = judged([ASK, *TAPS, NEXT, NEXT_YES], heard, [EFFECT, NEXT_EFFECT])
    assert promises(found) == ["out of order"]


def test_a_repeat_of_one_answer_takes_no_other_ones_place() -> None:
    """A first try that is late is told by its words: other words behind the next question are out of order."""
    acts = [ASK, *TAPS, TAPS[1], NEXT, NEXT_YES]
    heard = [ASKED, EARLY, MARK + EARLY, "Paid b2.", NEXT_ASKED, "Paid b2.", "Paid b5."]
    assert promises(judged(acts, list(heard), [EFFECT, NEXT_EFFECT])) == ["out of order"]


def test_a_typed_yes_too_much_hides_no_second_outcome() -> None:
    """Only taps are told the outcome again: of two typed ones the second is small talk."""
    heard = [ASKED, "Paid b2.", "Paid b2."]
    assert promises(judged([ASK, YES, TWICE], heard, [EFFECT])) == ["unmarked"]
    assert promises(judged([ASK, *TAPS], heard, [EFFECT])) == []
    assert promises(judged([ASK, TAPS[0], TWICE], heard, [EFFECT])) == []


def test_a_correction_that_comes_again_says_so() -> None:
    """It answers no act, and is a message like any other."""
    told = [ASKED, UNKNOWN, CORRECTED]
    assert promises(judged([ASK, YES], [*told, CORRECTED], [EFFECT])) == ["unmarked"]
    found = judged([ASK, YES], [*told, MARK + CORRECTED], [EFFECT])
    assert (promises(found), found.repeated) == ([], 1)


def test_other_words_are_no_repeat_of_a_marked_answer() -> None:
    """A marked answer may be the first to arrive, and is the only one to its act then."""
    heard = [ASKED, MARK + "Paid b2.", "You said: yes"]
    assert promises(judged([ASK, YES], heard, [EFFECT])) == ["unmarked"]
    assert promises(judged([ASK, YES, TWICE], heard, [EFFECT])) == []


def test_small_talk_before_the_outcome_is_out_of_order() -> None:
    """A yes is small talk only when another one has decided before it; a stranger's always is."""
    heard = [ASKED, "You said: yes", "Paid b2."]
    assert promises(judged([ASK, YES, TWICE], heard, [EFFECT])) == ["out of order"]
    assert promises(judged([ASK, YES, replace(TWICE, stranger=1)], heard, [EFFECT])) == []


def test_an_answer_before_its_act_answers_something_else() -> None:
    """It was heard at 5 seconds."""
    late = replace(YES, sent_at=5.5)
    assert promises(judged([ASK, late], [ASKED, "Paid b2."], [EFFECT])) == ["stray"]
    heard = [ASKED, "Paid b2.", MARK + "You said: yes", NEXT_ASKED, "You said: yes", "Paid b5."]
    acts = [ASK, YES, TWICE, NEXT, replace(NEXT_YES, sent_at=8.5)]
    assert promises(judged(acts, heard, [EFFECT, NEXT_EFFECT])) == []


def test_a_file_behind_the_next_answer_is_out_of_order() -> None:
    """Its words came in time, and it did not."""
    want, say = Act(1, "want", "", 1.0), Act(2, "say", "", 1.0)
    assert promises(judged([want, say], ["Here is t1.", "You said: t2", FILE])) == ["out of order"]
    assert promises(judged([want, say], ["Here is t1.", FILE, "You said: t2"])) == []


def test_two_different_replies_swapped_are_out_of_order() -> None:
    """Also where both are marked, or one of them is said again in its place."""
    says = [SAID, Act(2, "say", "", 1.0)]
    assert promises(judged(says, [MARK + "You said: t2", MARK + "You said: t1"])) == ["out of order"]
    late = ["You said: t2", "You said: t1", MARK + "You said: t2"]
    assert promises(judged(says, late)) == ["out of order"]


def test_what_was_meant_for_somebody_else_is_stray() -> None:
    """Another one's answer is no answer here."""
    assert promises(judged([SAID], ["You said: t1", "You said: t9"])) == ["stray"]
    assert promises(judged([SAID], ["You said: t1", {**FILE, "media": {"filename": "t9.csv"}}])) == ["stray"]
    assert promises(judged([SAID], ["You said: t1", "Paid b9."])) == ["stray"]


def test_what_nobody_decided_has_no_answer() -> None:
    """An answer without an act is one too much."""
    assert promises(judged([ASK], [ASKED, "You said: yes"])) == ["unmarked"]
    subject = Act(3, "say", "", 3.0)
    assert promises(judged([ASK, subject], [ASKED, f"{DROPPED}\n\nYou said: t3"])) == []


def test_who_agreed_in_time_and_was_told_that_nothing_was_done_is_counted() -> None:
    """A fault may undo a yes; without one, nothing does."""
    stale = "That button no longer applies. Nothing was done."
    found = judged([ASK, replace(YES, tapped=True, taken_at=3.1)], [ASKED, stale])
    assert (promises(found), found.undone) == ([], 1)
    assert SimulationReport(Profile(), found, hits=0).exceeded == ["undone: 1, and only 0 hits"]
    assert SimulationReport(Profile(), found, hits=1).exceeded == []
    refused = judged([ASK, replace(YES, verb="refuse")], [ASKED, "Cancelled: Pay b2"])
    assert refused.undone == 0


def test_a_yes_that_met_an_outage_may_be_undone() -> None:
    """Its question may be over when Redis is back."""
    found = SimulationResult(undone=1, answered=[(6.0, 12.0)])
    assert SimulationReport(Profile(outage_seconds=9), found, hits=0, outage=OutageRecord(5.0, 10.0)).exceeded == []
    assert SimulationReport(Profile(outage_seconds=9), found, hits=0, outage=OutageRecord(1.0, 5.0)).exceeded != []


def test_marks_need_a_fault() -> None:
    """Who marks everything would hide everything."""
    found = judged([SAID], [MARK + "You said: t1"])
    assert (found.marked, found.repeated) == (1, 0)
    assert SimulationReport(Profile(), found, hits=0).exceeded == ["marked: 1, and there was no fault"]
    instead = "I was interrupted while sending t1.csv. If it did not arrive, please ask for it again."
    assert judged([replace(SAID, verb="want")], [instead]).marked == 1
    assert SimulationReport(Profile(), found, hits=1).exceeded == []


def test_a_question_that_is_repeated_late_is_not_what_later_words_are_about() -> None:
    """A worker that was stopped in mid-send says it, marked, when another question is open already."""
    acts = [ASK, YES, NEXT, NEXT_YES, replace(NEXT_YES, number=7)]
    heard = [MARK + ASKED, "Paid b2.", NEXT_ASKED, MARK + ASKED, "Paid b5.", MARK + "You said: yes"]
    assert promises(judged(acts, heard, [EFFECT, NEXT_EFFECT])) == []
    assert promises(judged(acts, heard[:-1], [EFFECT, NEXT_EFFECT])) == ["lost"]


def test_a_reference_that_looks_like_a_bill_is_none() -> None:
    """A reference has eight hexadecimal digits: one in some hundred begins with a `b` and has no other letter."""
    failed = "Confirmed, but this failed: Pay b2\nReference: b8812926 (RuntimeError)"
    assert promises(judged([ASK, YES], [ASKED, failed], [])) == promises(
        judged([ASK, YES], [ASKED, failed.replace("b8812926", "c8812926")], [])
    )
    assert "stray" not in promises(judged([ASK, YES], [ASKED, failed], []))
