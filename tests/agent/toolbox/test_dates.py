"""Dates: right over months, leap years and changes of the clocks, and within the calendar."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sayso.agent import Tool, ToolParameterError
from sayso.agent.toolbox.dates import (
    MAX_SHIFT,
    convert_time_zone,
    current_time,
    date_difference,
    shift_date,
)
from tests.agent.toolbox.words import said


@pytest.fixture(autouse=True)
def _berlin(monkeypatch: pytest.MonkeyPatch):
    """The zone people mean who name none."""
    monkeypatch.setenv("SAYSO_TIMEZONE", "Europe/Berlin")


def noon() -> datetime:
    """A Sunday."""
    return datetime(2026, 11, 22, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize("unit", ["years", "months", "weeks", "days", "hours", "minutes"])
@pytest.mark.parametrize("count", [MAX_SHIFT, -MAX_SHIFT])
def test_a_huge_step_is_refused(unit: str, count: int):
    """The calendar has years 1 to 9999."""
    if unit == "minutes":
        count *= 100
    with pytest.raises(ValueError, match="outside the years 1 to 9999"):
        shift_date("2026-01-01", **{unit: count})


def test_a_step_beyond_all_measure_is_refused_by_its_schema():
    """Before it is calculated with."""
    with pytest.raises(ToolParameterError, match="less than or equal"):
        shift_date.execute({"start": "2026-01-01", "years": 10**30})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "24.12.2026",
        "2026-02-29",
        "soon",
        "2026-13-01",
        "\0",
        "9" * 40,
        "2026-01-01T25:00",
        "2026-01-01T10:00+05:99",
        "20260101T1000-0560",
        "\u0662\u0660\u0662\u0666-\u0660\u0661-\u0660\u0661",
        "\ud800",
    ],
)
def test_what_is_no_date_is_refused_with_the_forms(text: str):
    """An ambiguous date such as 3/4 is refused, not guessed."""
    with pytest.raises(ValueError, match="write it like '2026-12-24'"):
        shift_date(text, days=1)


@pytest.mark.parametrize(
    "zone",
    [
        "../../etc/passwd",
        "/etc/passwd",
        "Europe",
        "Atlantis",
        "+25:00",
        "+05:99",
        "-0360",
        "x" * 60,
        "\0",
        "America/../Europe/Berlin",
    ],
)
def test_what_is_no_zone_is_refused(zone: str):
    """Names are looked up in a list, never on the disk."""
    with pytest.raises(ValueError, match=r"time zone|not an offset"):
        current_time(zone)


@pytest.mark.parametrize("tool", [shift_date, date_difference])
@given(start=st.text(max_size=40), zone=st.text(max_size=60))
def test_any_text_is_a_date_or_refused_in_words(tool: Tool, start: str, zone: str):
    """Nothing but ValueError leaves it."""
    assert said(lambda: tool(start, time_zone=zone))


@given(st.dates(), st.integers(-5000, 5000), st.integers(-100_000, 100_000))
def test_any_date_moves_or_is_refused(start: date, months: int, days: int):
    """To a real date, or in words."""
    moved = said(lambda: shift_date(start.isoformat(), months=months, days=days))
    assert "outside the years" in moved or date.fromisoformat(moved.rsplit(" ", 1)[1])


@given(st.dates(), st.dates())
def test_days_and_working_days_are_counted_exactly(first: date, last: date):
    """As counting them one by one would."""
    told = date_difference(first.isoformat(), last.isoformat())
    assert f"{abs((last - first).days)} day" in told
    if abs((last - first).days) < 1000:
        early = min(first, last)
        working = sum(
            (early + timedelta(days=day)).weekday() < 5 for day in range(abs((last - first).days))
        )
        assert f"; {working} Monday to Friday" in told


def test_the_time_is_told_in_the_users_own_zone():
    """SAYSO_TIMEZONE, unless a zone is named."""
    assert (
        current_time(_clock=noon)
        == "Sunday 2026-11-22 13:00+01:00 (Europe/Berlin), week 47, day 326 of the year"
    )
    assert current_time("tokyo", _clock=noon).startswith(
        "Sunday 2026-11-22 21:00+09:00 (Asia/Tokyo)"
    )
    assert current_time("+05:30", _clock=noon).startswith("Sunday 2026-11-22 17:30+05:30,")


def test_without_a_setting_the_servers_zone_counts(monkeypatch: pytest.MonkeyPatch):
    """As docs/reference/yaml.md says."""
    monkeypatch.delenv("SAYSO_TIMEZONE")
    assert current_time(_clock=noon).startswith(
        f"Sunday {noon().astimezone().isoformat(sep=' ', timespec='minutes')}"
    )


def test_a_setting_that_names_no_zone_is_said(monkeypatch: pytest.MonkeyPatch):
    """The error tells the operator what to write."""
    monkeypatch.setenv("SAYSO_TIMEZONE", "Berlin/Europe")
    with pytest.raises(ValueError, match="SAYSO_TIMEZONE is not a time zone: 'Berlin/Europe'"):
        current_time()


@pytest.mark.parametrize(
    ("start", "step", "end"),
    [
        ("2026-01-31", {"months": 1}, "Saturday 2026-02-28"),
        ("2024-02-29", {"years": 1}, "Friday 2025-02-28"),
        ("2026-12-31", {"days": 1}, "Friday 2027-01-01"),
        ("tomorrow", {"weeks": -1}, "Monday 2026-11-16"),
        ("2026-03-28T12:00", {"days": 1}, "Sunday 2026-03-29 12:00+02:00 (Europe/Berlin)"),
        ("2026-03-28T12:00", {"hours": 24}, "Sunday 2026-03-29 13:00+02:00 (Europe/Berlin)"),
        ("2026-03-28T02:30", {"days": 1}, "Sunday 2026-03-29 03:30+02:00 (Europe/Berlin)"),
        ("2026-10-25T01:30", {"hours": 2}, "Sunday 2026-10-25 02:30+01:00 (Europe/Berlin)"),
        ("2026-01-01", {"minutes": 90}, "Thursday 2026-01-01 01:30+01:00 (Europe/Berlin)"),
    ],
)
def test_dates_move_as_a_calendar_says(start: str, step: dict[str, int], end: str):
    """Days keep the time of day, hours are hours, the last of a month stays one."""
    assert shift_date(start, **step, _clock=noon).endswith(f"-> {end}")


def test_times_of_one_zone_are_an_hour_more_apart_when_clocks_go_back():
    """Python alone would say twelve."""
    assert date_difference("2026-10-25T00:00", "2026-10-25T12:00").endswith(": 13 hours")


def test_a_difference_is_told_in_every_way_people_ask():
    """Days, months, weeks, working days, and that it is the other way round."""
    told = date_difference("2026-11-22", "2026-12-24")
    assert told.endswith(": 32 days (1 month, 2 days; 4 weeks 4 days); 23 Monday to Friday")
    assert "minus 32 days" in date_difference("2026-12-24", "2026-11-22")


def test_a_time_is_told_on_another_clock():
    """From our own zone, or from one that is named."""
    told = convert_time_zone("2026-12-24T18:00", "America/New_York")
    assert (
        told
        == "Thursday 2026-12-24 18:00+01:00 (Europe/Berlin) = Thursday 2026-12-24 12:00-05:00 (America/New_York)"
    )
    assert convert_time_zone("2026-12-24T18:00", "UTC", "Tokyo").endswith("09:00+00:00 (UTC)")
