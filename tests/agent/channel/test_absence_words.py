"""What people write behind /away, in each language."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from sayso.agent.channel.absence_words import AbsenceWords, read_absence
from sayso.channels.i18n.catalogue import LANGUAGES
from sayso.channels.i18n.texts import texts_for

#: A Sunday, 10:00 UTC.
NOW = datetime(2026, 11, 29, 10, 0, tzinfo=UTC)
FRIDAY = datetime(2026, 12, 4, 23, 59, 59, tzinfo=UTC)
ENGLISH = texts_for("en").weekdays


def read(text: str, language: str = "en"):
    """Return what a text says."""
    return read_absence(text, NOW, texts_for(language).weekdays)


@pytest.mark.parametrize(
    ("text", "until", "colleague"),
    [
        ("until friday, @bob decides", FRIDAY, "bob"),
        ("Friday", FRIDAY, ""),
        ("fri", FRIDAY, ""),
        ("until Friday @bob", FRIDAY, "bob"),
        ("until friday, bob.", FRIDAY, "bob"),
        ("friday <@U0BOB>", FRIDAY, "U0BOB"),
        ("2026-12-04", FRIDAY, ""),
        ("till 2026-12-04, 7", FRIDAY, "7"),
        ("3d", datetime(2026, 12, 2, 10, tzinfo=UTC), ""),
        ("12h, @U0BOB", datetime(2026, 11, 29, 22, tzinfo=UTC), "U0BOB"),
        ("2w", datetime(2026, 12, 13, 10, tzinfo=UTC), ""),
        ("sunday", datetime(2026, 12, 6, 23, 59, 59, tzinfo=UTC), ""),
    ],
)
def test_a_time_and_a_colleague_are_read(text, until, colleague):
    """A day counts to its end, and a day of the week is the next one."""
    assert read(text) == AbsenceWords(until, colleague)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "soon",
        "2026-02-30",
        "0x3d",
        "-3d",
        "until friday or monday",
        "until the end of next friday",
        "friday monday",
        "fr",
        "@bob",
        ", bob",
        "9999d9d",
    ],
)
def test_anything_else_is_not_understood(text):
    """The bot then says how to write it, and stores nothing."""
    assert read(text) is None


@pytest.mark.parametrize("text", ["off", " OFF "])
def test_off_ends_an_absence(text):
    """As /back does."""
    assert read(text) == "off"


@pytest.mark.parametrize("language", LANGUAGES)
def test_days_of_the_week_are_read_in_each_language(language):
    """The example in the answer is one of them."""
    days = texts_for(language).weekdays
    assert len(set(days)) == 7
    assert read(days[4].upper(), language) == AbsenceWords(FRIDAY)
    example = texts_for(language).away_how().partition("`/away ")[2].partition("`")[0]
    assert read(example, language) == AbsenceWords(FRIDAY)


def test_a_day_ends_in_the_zone_of_the_person():
    """Midnight is elsewhere."""
    zone = ZoneInfo("Asia/Tokyo")
    read_words = read_absence("2026-12-04", NOW.astimezone(zone), ENGLISH)
    assert read_words == AbsenceWords(datetime(2026, 12, 4, 23, 59, 59, tzinfo=zone))
