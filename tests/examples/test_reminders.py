"""The reminders: how phrases map to times, and what the tools do with them."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from sayso.agent.tools.environment import ToolEnvironment
from sayso.agent.tools.timers import MAX_TIMER_CHARS, TurnTimers
from sayso.examples.reminders import (
    ZONE_VARIABLE,
    cancel_reminder,
    list_reminders,
    moment,
    remind_me,
)
from sayso.pending.call_context import own_context
from sayso.pending.stored_limits import MAX_TIMERS
from sayso.pending.turn_changes import Timer

BERLIN = ZoneInfo("Europe/Berlin")
#: A Thursday, 10:30 in Berlin.
NOW = datetime(2026, 11, 19, 9, 30, tzinfo=UTC).timestamp()


@pytest.fixture
def book(monkeypatch):
    """Return the timer book of ana's turn at NOW in Berlin, where bob has a reminder."""
    monkeypatch.setenv(ZONE_VARIABLE, "Europe/Berlin")
    given = TurnTimers("ana", NOW, "en", (Timer("3", NOW + 60, "Reminder: tea", "bob", "tea"),))
    with own_context(ToolEnvironment) as own:
        own.timers = given
        yield given


@pytest.mark.parametrize(
    ("phrase", "wall"),
    [
        ("in 20 minutes", "2026-11-19 10:50"),
        ("in an hour", "2026-11-19 11:30"),
        ("in half an hour", "2026-11-19 11:00"),
        ("in 2 days", "2026-11-21 10:30"),
        ("in a week", "2026-11-26 10:30"),
        ("tomorrow at 9", "2026-11-20 09:00"),
        ("Tomorrow, at 9", "2026-11-20 09:00"),
        ("at 9 tomorrow", "2026-11-20 09:00"),
        ("tomorrow", "2026-11-20 09:00"),
        ("today at 17:30", "2026-11-19 17:30"),
        ("at 9", "2026-11-20 09:00"),
        ("at 11", "2026-11-19 11:00"),
        ("noon", "2026-11-19 12:00"),
        ("at midnight", "2026-11-20 00:00"),
        ("at 12 am", "2026-11-20 00:00"),
        ("12pm", "2026-11-19 12:00"),
        ("on friday at 14:30", "2026-11-20 14:30"),
        ("friday 2:30 pm", "2026-11-20 14:30"),
        ("thursday at 10", "2026-11-26 10:00"),
        ("thursday at 11", "2026-11-19 11:00"),
        ("on 2026-12-24", "2026-12-24 09:00"),
        ("2026-12-24 at 18:00", "2026-12-24 18:00"),
        ("2026-12-24T18:00", "2026-12-24 18:00"),
        ("2026-12-24 18:00:00", "2026-12-24 18:00"),
        ("2026-12-24T17:00Z", "2026-12-24 18:00"),
        ("2026-12-24T12:00-05:00", "2026-12-24 18:00"),
    ],
)
def test_phrase_maps_to_one_moment(phrase: str, wall: str):
    """The moment follows the local time of the zone."""
    assert f"{datetime.fromtimestamp(moment(phrase, NOW, BERLIN), BERLIN):%Y-%m-%d %H:%M}" == wall


@pytest.mark.parametrize(
    "phrase",
    ["", "soon", "at 25", "at 13 pm", "at 0 am", "tomorrow at 9:75", "2026-13-01", "in 999999 weeks", "in -1 minutes",
     "next friday", "9 or 10", "2026-02-30 at 9", "in 20", "tomorrow at"],
)  # fmt: skip
def test_unknown_phrase_is_refused_with_the_accepted_forms(phrase: str):
    """The tool guesses no time."""
    with pytest.raises(ValueError, match="Say when like this"):
        moment(phrase, NOW, BERLIN)


def test_days_keep_the_time_of_day_across_a_clock_change():
    """A day with an extra hour delays the reminder by that hour."""
    evening = datetime(2026, 10, 24, 20, 0, tzinfo=BERLIN).timestamp()
    assert (
        moment("in 1 day", evening, BERLIN) - evening
        == moment("tomorrow at 20:00", evening, BERLIN) - evening
    )
    assert moment("tomorrow at 20:00", evening, BERLIN) - evening == 25 * 3600


def test_tool_returns_the_time_of_the_reminder(book):
    """The answer names time and zone, so that the user notices a misunderstanding."""
    assert remind_me(text="stretch", when="tomorrow at 9") == (
        "Reminder set for 2026-11-20 09:00 (Europe/Berlin): stretch"
    )
    (timer,) = book.added
    assert (timer.id, timer.text, timer.note, timer.user) == (
        "4",
        "Reminder: stretch",
        "stretch",
        "ana",
    )
    assert timer.at == datetime(2026, 11, 20, 9, 0, tzinfo=BERLIN).timestamp()


def test_impossible_reminder_is_refused(book):
    """A past time, another year, a long text and a phrase without a time each get an error and set nothing."""
    for text, when, why in (
        ("x", "2026-11-19 at 9", "in the past"),
        ("x", "2028-01-01", "too far"),
        ("x" * (MAX_TIMER_CHARS + 1), "tomorrow", "too long"),
        ("x", "soon", "is not a time"),
    ):
        told = remind_me(text=text, when=when)
        assert told.startswith("No reminder was set.")
        assert why in told
    assert book.added == []


def test_reminder_above_the_limit_is_refused(book):
    """A conversation has MAX_TIMERS reminders at most; a cancelled one makes room."""
    book.waiting = tuple(
        Timer(str(number), NOW + 60, "r", "ana", "r") for number in range(MAX_TIMERS)
    )
    assert "cancel one first" in remind_me(text="x", when="tomorrow")
    cancel_reminder(reminder_id="7")
    assert "Reminder set for" in remind_me(text="x", when="tomorrow")


def test_people_see_and_cancel_only_their_own_reminders(book):
    """The rule also holds in a group."""
    remind_me(text="late", when="on friday")
    remind_me(text="soon", when="in 5 minutes")
    lines = [
        "5: soon, 2026-11-19 10:35 (Europe/Berlin)",
        "4: late, 2026-11-20 09:00 (Europe/Berlin)",
    ]
    assert list_reminders().splitlines() == lines
    assert cancel_reminder(reminder_id="3") == "You have no reminder 3 here."
    assert cancel_reminder(reminder_id="#5") == f"Cancelled: {lines[0]}"
    assert ([timer.id for timer in book.added], book.cancelled) == (["4"], [])


def test_reminder_of_an_earlier_turn_is_cancelled_once(book):
    """Repeated calls cancel the timer once."""
    book.waiting += (Timer("8", NOW + 60, "Reminder: old", "ana", "old"),)
    assert cancel_reminder(reminder_id="8").startswith("Cancelled: 8: old")
    assert cancel_reminder(reminder_id="8") == "You have no reminder 8 here."
    assert (book.cancelled, list_reminders()) == (["8"], "There are no reminders.")


def test_tools_report_that_reminders_are_unavailable():
    """`sayso chat` and confirmed actions cannot send a later message."""
    for told in (
        remind_me(text="x", when="tomorrow"),
        list_reminders(),
        cancel_reminder(reminder_id="1"),
    ):
        assert "needs a channel" in told


def test_unknown_zone_is_named_in_the_error(book, monkeypatch):
    """The operator's mistake sets no reminder at a wrong hour."""
    monkeypatch.setenv(ZONE_VARIABLE, "Europe/Atlantis")
    assert f"{ZONE_VARIABLE} is not a time zone" in remind_me(text="x", when="tomorrow")
