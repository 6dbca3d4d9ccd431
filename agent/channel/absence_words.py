"""What people write behind /away: until when they are away, and who decides meanwhile."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import Literal

#: The word that ends an absence.
OFF = "off"
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
#: What stands before a colleague: a comma, in any language, or a space before @.
_BEFORE_COLLEAGUE = re.compile(r"\s*[,\uff0c\u3001\u060c]\s*|\s+(?=<?@)")
#: A length of time, such as 3d.
_LENGTH = re.compile(r"(\d{1,3})([hdw])")
#: The hours of each unit.
_UNITS = {"h": 1, "d": 24, "w": 7 * 24}
#: The fewest letters of a day of the week: "fri".
MIN_DAY_LETTERS = 3
#: The most words of the time, such as "until next friday".
MAX_TIME_WORDS = 3
#: The end of a day: a person who is away until Friday is back on Saturday.
_END_OF_DAY = time(23, 59, 59)


@dataclass(frozen=True, slots=True)
class AbsenceWords:
    """What a person wrote of their absence."""

    until: datetime
    #: The name or the id of a colleague, without @; "" for none.
    colleague: str = ""


def read_absence(
    text: str, now: datetime, weekdays: Sequence[str]
) -> AbsenceWords | Literal["off"] | None:
    """Return what a text says of an absence; None for a text that is not understood.

    * `text`: such as "until friday, @bob decides", "2026-12-05", "3d @bob" or "off".
    * `now`: the time in the zone of the person.
    * `weekdays`: the days of the week in the language of the person, Monday first, in lower case.
    """
    if text.strip().casefold() == OFF:
        return "off"
    when, *others = _BEFORE_COLLEAGUE.split(text.strip(), maxsplit=1)
    words = when.split()
    if not 1 <= len(words) <= MAX_TIME_WORDS:
        return None
    times = [until for until in (_time_of(word, now, weekdays) for word in words) if until]
    if len(times) != 1:
        return None
    return AbsenceWords(times[0], _colleague_in(" ".join(others)))


def _time_of(word: str, now: datetime, weekdays: Sequence[str]) -> datetime | None:
    """Return the time that a word names, None if it names none."""
    word = word.casefold()
    if _DATE.fullmatch(word):
        return _end_of_date(word, now)
    length = _LENGTH.fullmatch(word)
    if length:
        return now + timedelta(hours=int(length[1]) * _UNITS[length[2]])
    for number, day in enumerate(weekdays):
        is_short_form = len(word) >= MIN_DAY_LETTERS and day.startswith(word)
        if word == day or is_short_form:
            # On a Friday, "friday" is the next one.
            days = (number - now.weekday()) % 7 or 7
            return _end_of(now.date() + timedelta(days=days), now)
    return None


def _end_of_date(text: str, now: datetime) -> datetime | None:
    """Return the end of a date, None for a date that there is not, such as 2026-02-30."""
    try:
        return _end_of(date.fromisoformat(text), now)
    except ValueError:
        return None


def _end_of(day: date, now: datetime) -> datetime:
    return datetime.combine(day, _END_OF_DAY, now.tzinfo)


def _colleague_in(text: str) -> str:
    """Return the first word of a text, without @ and without marks around it; "" for none."""
    words = text.split()
    if not words:
        return ""
    return words[0].lstrip("<@").rstrip(">.,;:!")
