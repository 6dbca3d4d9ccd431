"""Decisions: the tables in the docstrings of `decide` are what the functions do, row by row."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sayso.agent.channel.decide import (
    MAX_UNCLEAR_ANSWERS,
    ActionFacts,
    ButtonTap,
    MessageReading,
    decide,
    decide_after_failure,
    decide_continuation,
    decide_tap,
    phase_of,
    tap_phase_of,
)
from sayso.pending.action import PendingAction
from sayso.pending.stored_action import StoredAction

PLAIN = ActionFacts("open")
CODED = ActionFacts("open", code="1234")
KEPT = ActionFacts("open", is_kept=True)
ASKED_OFTEN = ActionFacts("open", unclear_answers=MAX_UNCLEAR_ANSWERS)
ASKED_ONCE = ActionFacts("open", unclear_answers=1)

#: What each row of the first table of `decide` says: the actions and the messages that it is about.
WHILE_WAITING = {
    "no": (
        [PLAIN, KEPT, CODED, ASKED_OFTEN],
        [
            MessageReading("no"),
            MessageReading("no", quotes="another"),
            MessageReading("no", is_written_before=True),
            MessageReading("no", follows_something_else=True),
        ],
    ),
    "ambiguous no, repeated": (
        [PLAIN, KEPT],
        [MessageReading("ambiguous_no", is_repeated=True)],
    ),
    "ambiguous no, after MAX_UNCLEAR_ANSWERS": ([ASKED_OFTEN], [MessageReading("ambiguous_no")]),
    "ambiguous no": ([PLAIN, KEPT], [MessageReading("ambiguous_no")]),
    "yes that quotes another message": (
        [PLAIN, KEPT],
        [MessageReading("yes", quotes="another")],
    ),
    "yes, written before the question": (
        [PLAIN, KEPT],
        [
            MessageReading("yes", is_written_before=True),
            MessageReading("yes", is_written_before=True, quotes="question"),
        ],
    ),
    "yes, but the code is missing or wrong": (
        [CODED, replace(CODED, is_kept=True)],
        [MessageReading("yes"), MessageReading("yes", code="4321")],
    ),
    "yes with a code that was not asked for": (
        [PLAIN, KEPT],
        [
            MessageReading("yes", code="1234"),
            MessageReading("yes", code="1234", follows_something_else=True),
        ],
    ),
    "yes, after the bot said something else": (
        [PLAIN, KEPT],
        [MessageReading("yes", follows_something_else=True)],
    ),
    "the same, quoting the question": (
        [PLAIN, KEPT],
        [MessageReading("yes", follows_something_else=True, quotes="question")],
    ),
    "the same, with its code": (
        [CODED, replace(CODED, is_kept=True)],
        [MessageReading("yes", code="1234", follows_something_else=True)],
    ),
    "yes": (
        [PLAIN, KEPT, ASKED_OFTEN],
        [MessageReading("yes"), MessageReading("yes", quotes="question")],
    ),
    "value of a field": ([PLAIN, KEPT], [MessageReading("field_value")]),
    "anything else that quotes another message": (
        [PLAIN, KEPT],
        [
            MessageReading(meaning, quotes="another")
            for meaning in ("asks", "maybe_asks", "waits", "no_with_more", "unclear", "other")
        ],
    ),
    "the request again, from before the question": (
        [PLAIN, KEPT],
        [MessageReading("other", repeats_request=True, is_received_before=True)],
    ),
    "asks for time, once more": ([ASKED_ONCE, ASKED_OFTEN], [MessageReading("waits")]),
    "the same, but its sender needs a text": (
        [ASKED_ONCE],
        [MessageReading("waits", needs_text=True)],
    ),
    "kept question, which the message does not follow": (
        [KEPT, replace(ASKED_ONCE, is_kept=True)],
        [
            MessageReading(meaning, follows_something_else=True)
            for meaning in ("asks", "maybe_asks", "waits", "no_with_more", "unclear", "other")
        ],
    ),
    "no with more words, after the question": (
        [PLAIN, KEPT],
        [
            MessageReading("no_with_more"),
            MessageReading("no_with_more", quotes="question", follows_something_else=True),
        ],
    ),
    "no with more words, elsewhere": (
        [PLAIN],
        [
            MessageReading("no_with_more", is_received_before=True),
            MessageReading("no_with_more", is_written_before=True),
            MessageReading("no_with_more", follows_something_else=True),
        ],
    ),
    "asks or unclear, after MAX_UNCLEAR_ANSWERS": (
        [ASKED_OFTEN],
        [MessageReading("asks"), MessageReading("unclear"), MessageReading("maybe_asks")],
    ),
    "asks what the question is": ([PLAIN, KEPT, ASKED_ONCE], [MessageReading("asks")]),
    "asks for time": ([PLAIN, KEPT], [MessageReading("waits")]),
    "the request again": (
        [PLAIN, KEPT],
        [
            MessageReading("other", repeats_request=True),
            MessageReading("no_with_more", repeats_request=True),
        ],
    ),
    "may be an answer, in new words": ([PLAIN, KEPT, ASKED_ONCE], [MessageReading("unclear")]),
    "may be an answer, repeated": (
        [PLAIN, KEPT],
        [MessageReading("unclear", is_repeated=True)],
    ),
    "may ask, in new words": ([PLAIN, KEPT], [MessageReading("maybe_asks")]),
    "may ask, repeated": ([PLAIN, KEPT], [MessageReading("maybe_asks", is_repeated=True)]),
    "anything else": ([PLAIN, KEPT], [MessageReading("other")]),
}
#: The messages of each column of the second table of `decide`.
NO_MORE = {
    "yes": [MessageReading("yes"), MessageReading("yes", quotes="another")],
    "yes, other code": [MessageReading("yes", code="1234")],
    "field value": [MessageReading("field_value")],
    "no": [MessageReading("no"), MessageReading("ambiguous_no")],
    "anything else": [
        MessageReading(meaning)
        for meaning in ("asks", "maybe_asks", "waits", "no_with_more", "unclear", "other")
    ],
}
TAPS = {
    "an offered answer": ("", ButtonTap("choice")),
    "yes": ("", ButtonTap("confirm")),
    "yes, and it stands": ("", ButtonTap("standing", may_stand=True)),
    "the same, not offered": ("", ButtonTap("standing")),
    "yes, code is asked for": ("1234", ButtonTap("confirm")),
    "no": ("", ButtonTap("cancel")),
    "change, with a form": ("", ButtonTap("change", has_form=True, sends_form=True)),
    "change": ("", ButtonTap("change", has_form=True)),
    "change, no fields": ("", ButtonTap("change")),
    "ignore": ("", ButtonTap("ignore")),
}
FAILURES = {
    "/stop": (MessageReading("other"), True),
    "no with more words, after the question": (MessageReading("no_with_more"), False),
    "yes or no": (MessageReading("yes"), False),
    "anything else": (MessageReading("other"), False),
}

#: What each case of a continuation knows: `is_answered`, `is_stopped` and `has_record`.
CONTINUATIONS = {
    "a model has answered since": [
        (True, False, True),
        (True, True, True),
        (True, False, False),
    ],
    "the person has said /stop": [(False, True, True), (False, True, False)],
    "the record of the action is gone": [(False, False, False)],
    "the request waits to go on": [(False, False, True)],
}


def tables(function) -> list[list[dict[str, str]]]:
    """Return the tables of a docstring: for each its rows, by the names of the columns."""
    found: list[list[list[str]]] = [[]]
    for line in function.__doc__.splitlines():
        if line.strip().startswith("|"):
            found[-1].append([cell.strip() for cell in line.strip().strip("|").split("|")])
        elif found[-1]:
            found.append([])
    return [
        [dict(zip(["row", *head[1:]], row, strict=True)) for row in rows]
        for head, _, *rows in filter(None, found)
    ]


WAITING_TABLE, OVER_TABLE = tables(decide)
(TAP_TABLE,) = tables(decide_tap)
(FAILURE_TABLE,) = tables(decide_after_failure)
(CONTINUATION_TABLE,) = tables(decide_continuation)


def decided(decision: object) -> str:
    """Return a decision as the tables name it."""
    return type(decision).__name__


@pytest.mark.parametrize("row", WAITING_TABLE, ids=lambda row: row["row"])
@pytest.mark.parametrize("phase", ["open", "not_shown", "time_over"])
def test_row_of_an_action_that_waits_is_what_decide_returns(row, phase):
    """Each message of the row means what the cell says, for each action of the row."""
    actions, messages = WHILE_WAITING[row["row"]]
    for action in actions:
        cell = row[phase]
        if cell == "other":
            stays = action.is_kept and phase != "time_over"
            cell = "KeepAndRun" if stays else "DropAndRun"
        for message in messages:
            assert decided(decide(replace(action, phase=phase), message)) == cell, message


@pytest.mark.parametrize("row", OVER_TABLE, ids=lambda row: row["row"])
def test_row_of_an_action_that_waits_no_more_is_what_decide_returns(row):
    """How often the question was repeated makes no difference here."""
    phase = row["row"]
    for column in list(row)[1:]:
        for message in NO_MORE[column]:
            for action in (ActionFacts(phase), ActionFacts(phase, unclear_answers=1)):
                assert decided(decide(action, message)) == row[column], (column, message)


@pytest.mark.parametrize("row", TAP_TABLE, ids=lambda row: row["row"])
def test_row_of_a_tap_is_what_decide_tap_returns(row):
    """A button does in each phase what the cell says."""
    code, tap = TAPS[row["row"]]
    for phase in list(row)[1:]:
        assert decided(decide_tap(phase, code, tap)) == row[phase], phase


@pytest.mark.parametrize("row", FAILURE_TABLE, ids=lambda row: row["row"])
def test_row_of_a_failed_turn_is_what_decide_after_failure_returns(row):
    """It makes no difference in which of the waiting phases the action is."""
    message, is_stop = FAILURES[row["row"]]
    for phase in ("open", "not_shown", "time_over"):
        for name, is_kept in (("kept question", True), ("any other question", False)):
            action = ActionFacts(phase, is_kept=is_kept)
            decision = decide_after_failure(action, message, is_stop=is_stop)
            assert decided(decision) == row[name], phase


@pytest.mark.parametrize("row", CONTINUATION_TABLE, ids=lambda row: row["row"])
def test_row_of_a_continuation_is_what_decide_continuation_returns(row):
    """Each case has one step."""
    for is_answered, is_stopped, has_record in CONTINUATIONS[row["row"]]:
        step = decide_continuation(
            is_answered=is_answered, is_stopped=is_stopped, has_record=has_record
        )
        assert step == row["step"]


def test_every_row_has_its_data():
    """A row that is added to a table needs data here, and data that no row names is never tried."""
    assert [row["row"] for row in WAITING_TABLE] == list(WHILE_WAITING)
    assert [column for column in OVER_TABLE[0] if column != "row"] == list(NO_MORE)
    assert [row["row"] for row in TAP_TABLE] == list(TAPS)
    assert [row["row"] for row in FAILURE_TABLE] == list(FAILURES)
    assert [row["row"] for row in CONTINUATION_TABLE] == list(CONTINUATIONS)


@pytest.mark.parametrize(
    ("message", "obstacle"),
    [
        (MessageReading("yes", quotes="another", is_written_before=True), "quotes_another"),
        (MessageReading("yes", is_written_before=True), "written_before"),
        (MessageReading("yes", follows_something_else=True), "code_needed"),
    ],
)
def test_first_obstacle_of_a_yes_is_told(message, obstacle):
    """Several may stand in its way; the person reads of one."""
    assert decide(CODED, message).obstacle == obstacle


def test_other_obstacles_of_a_yes_are_told():
    """The bot has said something else since, or the question was not delivered yet."""
    assert decide(PLAIN, MessageReading("yes", follows_something_else=True)).obstacle == (
        "asked_before"
    )
    assert decide(ActionFacts("not_shown"), MessageReading("yes")).obstacle == "not_delivered"


def stored(state: str, **fields) -> StoredAction:
    """Return a stored action that expires at 100."""
    action = PendingAction(user_id="ana", kind="pay", preview="Pay", state=state, expires_at=100.0)
    kept = StoredAction("a" * 22, fields.pop("record", "{}"), "", state, 100.0, **fields)
    object.__setattr__(kept, "_parsed_record", (kept.action_id, action))
    return kept


@pytest.mark.parametrize(
    ("action", "phase", "tap_phase"),
    [
        (stored("shown"), "open", "open"),
        (stored("armed"), "not_shown", "not_shown"),
        (stored("claimed", decided_by_event="e1"), "confirmed_here", "running"),
        (stored("started", decided_by_event="e0"), "ended", "running"),
        (stored("done", decided_by_event="e0"), "ended", "ended"),
        (stored("expired"), "expired", "ended"),
        (stored("unknown"), "unknown", "ended"),
        (stored("shown", record=""), "tampered", "open"),
        (stored("armed", record=""), "tampered", "open"),
        (stored("claimed", record="", decided_by_event="e1"), "tampered_here", "running"),
    ],
)
def test_phase_follows_the_record(action, phase, tap_phase):
    """Event "e1" came in at 99, a second before the time of the question is over."""
    assert (phase_of(action, "e1", 99.0), tap_phase_of(action, 99.0)) == (phase, tap_phase)


def test_time_over_counts_from_when_the_message_came_in():
    """At 100 the time is over, however the record stands in the store."""
    action = stored("shown")
    assert (phase_of(action, "e1", 100.0), tap_phase_of(action, 100.0)) == (
        "time_over",
        "time_over",
    )
