"""The judge under misleading input: marks, lateness, other bills and silence hide no broken promise."""

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
from tests.testing.simulation.test_conversations import (
    ASK,
    ASKED,
    CANCELLED,
    CORRECTED,
    DROPPED,
    EARLY,
    EFFECT,
    MARK,
    SAID,
    TEXTS,
    UNKNOWN,
    YES,
    judged,
    promises,
)

TWICE = Act(4, "agree", "b2", 3.0)
TAPS = [replace(YES, tapped=True), replace(TWICE, tapped=True)]
NEXT, NEXT_YES = Act(5, "ask", "b5", 5.0), Act(6, "agree", "b5", 6.0)
NEXT_ASKED, NEXT_EFFECT = ASKED.replace("b2", "b5"), replace(EFFECT, bill="b5")
FILE: dict[str, Any] = {"text": "", "media": {"filename": "t1.csv"}}


def test_second_effect_is_doubled_despite_a_marked_reply() -> None:
    """A marked reply about a second effect does not make the effect a repetition."""
    assert "doubled" in promises(
        judged([ASK, YES], [ASKED, "Paid b2.", MARK + "Paid b2."], [EFFECT, EFFECT])
    )
    keys = [replace(EFFECT, key="k1"), replace(EFFECT, key="k2")]
    assert "doubled" in promises(judged([ASK, YES], [ASKED, "Paid b2."], keys))


def test_second_start_is_doubled_although_the_action_took_effect_once() -> None:
    """Only an action with an idempotency key may start again."""
    begun = replace(EFFECT, step="begin")
    assert promises(judged([ASK, YES], [ASKED, "Paid b2."], [begun, begun, EFFECT])) == ["doubled"]
    keyed = [replace(entry, key="k1") for entry in (begun, begun, EFFECT)]
    assert promises(judged([ASK, YES], [ASKED, "Paid b2."], keyed)) == []


def test_shared_idempotency_key_of_two_bills_is_untrue(tmp_path: Path) -> None:
    """A payment service would ignore the second bill, which the reply reports as charged."""
    ledger = Effects(tmp_path)
    for bill in ("b2", "b5"):
        ledger.write(bill, "effect", "k1")
    heard = [ASKED, "Charged b2.", NEXT_ASKED, "Charged b5."]
    entries = [replace(entry, at=0.0) for entry in ledger.read()]
    assert promises(judged([ASK, YES, NEXT, NEXT_YES], heard, entries)) == ["untrue"]


def test_effect_is_recorded_with_its_time(tmp_path: Path) -> None:
    """The ledger uses the same clock as the people's diaries and inboxes."""
    began, ledger = time.monotonic(), Effects(tmp_path)
    ledger.write("b2", "effect")
    assert began <= ledger.read()[0].at <= time.monotonic()


def test_effect_without_a_request_is_unwanted() -> None:
    """A person must have requested each effect, in any conversation."""
    assert promises(judged([SAID], ["You said: t1"], [EFFECT])) == ["unwanted"]
    assert promises(judged([SAID], ["You said: t1"], [replace(EFFECT, step="refused")])) == []


def test_an_effect_before_the_yes_is_unwanted() -> None:
    """A later yes does not approve an earlier effect."""
    heard = [ASKED, "Paid b2."]
    assert promises(judged([ASK, YES], heard, [replace(EFFECT, at=2.9)])) == ["unwanted"]
    assert promises(judged([ASK, YES], heard, [replace(EFFECT, at=3.1)])) == []


def test_outcome_reported_before_the_effect_is_untrue() -> None:
    """The person read the outcome at 5 seconds, and the effect came later."""
    assert promises(judged([ASK, YES], [ASKED, "Paid b2."], [replace(EFFECT, at=5.1)])) == [
        "untrue"
    ]


def test_effect_without_a_question_loses_the_question() -> None:
    """An immediate effect skips the question, even if a yes follows."""
    assert "lost" in promises(judged([ASK, YES], ["Paid b2."], [EFFECT]))


def test_yes_to_another_bill_approves_nothing() -> None:
    """A yes to one bill does not approve the effect of another."""
    heard = [ASKED, "Paid b2."]
    assert "unwanted" in promises(judged([ASK, NEXT_YES], heard, [EFFECT]))


@pytest.mark.parametrize(
    ("acts", "texts", "effects"),
    [
        ([ASK], [ASKED, "Paid b2."], []),
        ([ASK], [ASKED, UNKNOWN], []),
        ([ASK, replace(YES, verb="refuse")], [ASKED, UNKNOWN], []),
        ([ASK, replace(YES, verb="refuse")], [ASKED, TEXTS.failed("Pay b2")], []),
        ([ASK, YES], [ASKED, CANCELLED], []),
        ([ASK, YES], [ASKED, UNKNOWN, CORRECTED], []),
    ],
)
def test_impossible_outcome_is_untrue(
    acts: list[Act], texts: list[str], effects: list[EffectEntry]
) -> None:
    """An action needs a yes to run, fail or be interrupted, and a no to be cancelled."""
    assert "untrue" in promises(judged(acts, list(texts), effects))


def test_message_about_two_bills_must_be_true_for_each() -> None:
    """A true statement about one bill does not cover the statement about the other."""
    new = Act(3, "ask", "b5", 3.0)
    both = f"{DROPPED}\n\nPaid b5."
    assert "untrue" in promises(judged([ASK, new, NEXT_YES], [ASKED, NEXT_ASKED, both], []))
    assert "unwanted" in promises(
        judged([ASK, new, NEXT_YES], [ASKED, NEXT_ASKED, both], [EFFECT, NEXT_EFFECT])
    )
    mixed = f"{CANCELLED}\n\nPaid b5."
    no = replace(YES, verb="refuse")
    heard = [ASKED, CANCELLED, NEXT_ASKED, "Paid b5.", MARK + mixed]
    assert "stray" in promises(judged([ASK, no, NEXT, NEXT_YES], heard, [NEXT_EFFECT]))


def test_question_that_drops_an_action_does_not_answer_its_yes() -> None:
    """The yes got no reply; the later question mentions the dropped action only in passing."""
    heard = [ASKED, f"{DROPPED}\n\n{NEXT_ASKED}", "Paid b5."]
    assert promises(judged([ASK, YES, NEXT, NEXT_YES], heard, [NEXT_EFFECT])) == ["lost"]
    told_early = [ASKED, EARLY, f"{DROPPED}\n\n{NEXT_ASKED}", "Paid b5."]
    found = judged([ASK, YES, NEXT, NEXT_YES], told_early, [NEXT_EFFECT])
    assert (promises(found), found.repeated) == ([], 0)


def test_early_yes_without_a_final_outcome_is_untold() -> None:
    """A person who is asked again in time decides again, so a missing outcome is a broken promise."""
    assert promises(judged([ASK, replace(YES, accepted_at=3.1)], [ASKED, EARLY])) == ["untold"]
    late = replace(YES, sent_at=4.0 - PATIENCE, accepted_at=4.9 - PATIENCE)
    assert promises(judged([ASK, late], [ASKED, EARLY])) == []
    again = replace(TWICE, sent_at=6.0, accepted_at=6.1)
    assert "lost" in promises(judged([ASK, late, again], [ASKED, EARLY]))


def test_late_first_attempt_counts_only_for_an_act_without_another_answer() -> None:
    """A marked "You said: yes" does not excuse a second answer to another question."""
    aside, acts = "You said: yes", [ASK, YES, TWICE, NEXT, NEXT_YES]
    heard = [ASKED, "Paid b2.", aside, MARK + aside, NEXT_ASKED, "Paid b5.", aside]
    assert promises(judged(acts, heard, [EFFECT, NEXT_EFFECT])) == ["unmarked"]
    assert "unmarked" in promises(
        judged(acts[:3], [ASKED, "Paid b2.", aside, MARK + aside, aside], [EFFECT])
    )


def test_only_answer_after_the_next_question_is_out_of_order() -> None:
    """Two taps need two answers. A second answer after the next question is out of order; without it, it is lost."""
    heard = [ASKED, "Paid b2.", NEXT_ASKED, MARK + "Paid b2.", "Paid b5."]
    found = judged([ASK, *TAPS, NEXT, NEXT_YES], heard, [EFFECT, NEXT_EFFECT])
    assert promises(found) == ["out of order"]


def test_repetition_of_one_answer_does_not_replace_another() -> None:
    """The text identifies a late first attempt; other texts after the next question are out of order."""
    acts = [ASK, *TAPS, TAPS[1], NEXT, NEXT_YES]
    heard = [ASKED, EARLY, MARK + EARLY, "Paid b2.", NEXT_ASKED, "Paid b2.", "Paid b5."]
    assert promises(judged(acts, list(heard), [EFFECT, NEXT_EFFECT])) == ["out of order"]


def test_extra_typed_yes_excuses_no_second_outcome() -> None:
    """Only a tap gets the outcome again; the second of two typed yeses is small talk."""
    heard = [ASKED, "Paid b2.", "Paid b2."]
    assert promises(judged([ASK, YES, TWICE], heard, [EFFECT])) == ["unmarked"]
    assert promises(judged([ASK, *TAPS], heard, [EFFECT])) == []
    assert promises(judged([ASK, TAPS[0], TWICE], heard, [EFFECT])) == []


def test_repeated_yes_needs_no_answer_after_the_outcome() -> None:
    """The person knows the outcome. Without it, or with another answer, an act without an answer is lost."""
    assert promises(judged([ASK, YES, TWICE], [ASKED, "Paid b2."], [EFFECT])) == []
    assert promises(judged([ASK, *TAPS], [ASKED, "Paid b2."], [EFFECT])) == []
    assert "lost" in promises(judged([ASK, YES, TWICE], [ASKED], [EFFECT]))
    assert "lost" in promises(
        judged([ASK, YES, replace(TWICE, verb="refuse")], [ASKED, "Paid b2."], [EFFECT])
    )


def test_repeated_correction_must_be_marked() -> None:
    """A correction answers no act, and needs a mark like any other message."""
    told = [ASKED, UNKNOWN, CORRECTED]
    assert promises(judged([ASK, YES], [*told, CORRECTED], [EFFECT])) == ["unmarked"]
    found = judged([ASK, YES], [*told, MARK + CORRECTED], [EFFECT])
    assert (promises(found), found.repeated) == ([], 1)


def test_different_text_is_no_repetition_of_a_marked_answer() -> None:
    """A marked answer may arrive first, and is then the only answer to its act."""
    heard = [ASKED, MARK + "Paid b2.", "You said: yes"]
    assert promises(judged([ASK, YES], heard, [EFFECT])) == ["unmarked"]
    assert promises(judged([ASK, YES, TWICE], heard, [EFFECT])) == []


def test_small_talk_before_the_outcome_is_out_of_order() -> None:
    """A yes is small talk only after another yes has decided; a stranger's yes always is."""
    heard = [ASKED, "You said: yes", "Paid b2."]
    assert promises(judged([ASK, YES, TWICE], heard, [EFFECT])) == ["out of order"]
    assert promises(judged([ASK, YES, replace(TWICE, stranger=1)], heard, [EFFECT])) == []


def test_answer_before_its_act_is_stray() -> None:
    """The message arrived at 5 seconds, before the act."""
    late = replace(YES, sent_at=5.5)
    assert promises(judged([ASK, late], [ASKED, "Paid b2."], [EFFECT])) == ["stray"]
    heard = [ASKED, "Paid b2.", MARK + "You said: yes", NEXT_ASKED, "You said: yes", "Paid b5."]
    acts = [ASK, YES, TWICE, NEXT, replace(NEXT_YES, sent_at=8.5)]
    assert promises(judged(acts, heard, [EFFECT, NEXT_EFFECT])) == []


def test_file_after_the_next_answer_is_out_of_order() -> None:
    """The text arrived in time, but its file came after the next answer."""
    want, say = Act(1, "want", "", 1.0), Act(2, "say", "", 1.0)
    assert promises(judged([want, say], ["Here is t1.", "You said: t2", FILE])) == ["out of order"]
    assert promises(judged([want, say], ["Here is t1.", FILE, "You said: t2"])) == []


def test_two_swapped_replies_are_out_of_order() -> None:
    """The rule also holds if both are marked, or if one is repeated in its place."""
    says = [SAID, Act(2, "say", "", 1.0)]
    assert promises(judged(says, [MARK + "You said: t2", MARK + "You said: t1"])) == [
        "out of order"
    ]
    late = ["You said: t2", "You said: t1", MARK + "You said: t2"]
    assert promises(judged(says, late)) == ["out of order"]


def test_answer_for_another_person_is_stray() -> None:
    """Another person's answer does not count in this chat."""
    assert promises(judged([SAID], ["You said: t1", "You said: t9"])) == ["stray"]
    assert promises(
        judged([SAID], ["You said: t1", {**FILE, "media": {"filename": "t9.csv"}}])
    ) == ["stray"]
    assert promises(judged([SAID], ["You said: t1", "Paid b9."])) == ["stray"]


def test_answer_without_an_act_is_unmarked() -> None:
    """An answer without an act is one too many."""
    assert promises(judged([ASK], [ASKED, "You said: yes"])) == ["unmarked"]
    subject = Act(3, "say", "", 3.0)
    assert promises(judged([ASK, subject], [ASKED, f"{DROPPED}\n\nYou said: t3"])) == []


def test_timely_yes_without_an_effect_is_counted_as_undone() -> None:
    """A fault may undo a yes; without a fault, the count exceeds its limit."""
    stale = TEXTS.stale()
    found = judged([ASK, replace(YES, tapped=True, accepted_at=3.1)], [ASKED, stale])
    assert (promises(found), found.undone) == ([], 1)
    assert SimulationReport(Profile(), found, interruptions=0).exceeded == [
        "undone: 1, and only 0 hits"
    ]
    assert SimulationReport(Profile(), found, interruptions=1).exceeded == []
    refused = judged([ASK, replace(YES, verb="refuse")], [ASKED, CANCELLED])
    assert refused.undone == 0


def test_yes_during_an_outage_may_be_undone() -> None:
    """Its question may have expired by the time Redis is back."""
    found = SimulationResult(undone=1, answered=[(6.0, 12.0)])
    assert (
        SimulationReport(
            Profile(outage_seconds=9), found, interruptions=0, outage=OutageRecord(5.0, 10.0)
        ).exceeded
        == []
    )
    assert (
        SimulationReport(
            Profile(outage_seconds=9), found, interruptions=0, outage=OutageRecord(1.0, 5.0)
        ).exceeded
        != []
    )


def test_marks_need_a_fault() -> None:
    """A bot that marks every reply would hide every repetition."""
    found = judged([SAID], [MARK + "You said: t1"])
    assert (found.marked, found.repeated) == (1, 0)
    assert SimulationReport(Profile(), found, interruptions=0).exceeded == [
        "marked: 1, and there was no fault"
    ]
    instead = TEXTS.maybe_missing("t1.csv")
    assert judged([replace(SAID, verb="want")], [instead]).marked == 1
    assert SimulationReport(Profile(), found, interruptions=1).exceeded == []


def test_late_repetition_of_a_question_does_not_open_it_again() -> None:
    """A worker that was stopped while sending repeats the question, marked, after another question is open."""
    acts = [ASK, YES, NEXT, NEXT_YES, replace(NEXT_YES, number=7)]
    heard = [MARK + ASKED, "Paid b2.", NEXT_ASKED, MARK + ASKED, "Paid b5.", MARK + "You said: yes"]
    assert promises(judged(acts, heard, [EFFECT, NEXT_EFFECT])) == []
    assert "lost" in promises(judged(acts, heard[:-2], [EFFECT, NEXT_EFFECT]))


def test_error_reference_is_not_read_as_a_bill() -> None:
    """A reference has eight hexadecimal digits; about one in a hundred is a `b` followed by digits only."""
    failed = f"{TEXTS.failed('Pay b2')}\n{TEXTS.reference('b8812926')}"
    assert promises(judged([ASK, YES], [ASKED, failed], [])) == promises(
        judged([ASK, YES], [ASKED, failed.replace("b8812926", "c8812926")], [])
    )
    assert "stray" not in promises(judged([ASK, YES], [ASKED, failed], []))
