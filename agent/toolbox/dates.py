"""Dates and time zones."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from pathlib import Path
from typing import Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from pydantic import Field

from sayso.agent.toolbox import need
from sayso.agent.tools.errors import nearest
from sayso.agent.tools.tool import Tool, tool

#: Names the zone that people mean who name none, such as Europe/Berlin. Without it they mean the server's.
ZONE_VARIABLE = "SAYSO_TIMEZONE"


#: Characters of the longest name.
MAX_ZONE_CHARS = 60


_OFFSET = re.compile(r"(?:UTC|GMT)?([+-])(\d{1,2})(?::?([0-5]\d))?", re.IGNORECASE | re.ASCII)


def zone_named(name: str) -> tzinfo:
    """The zone: `Europe/Berlin`, `Berlin`, `UTC`, `+05:30`; of "" the one of ZONE_VARIABLE, else the server's.

    Raises ValueError, which names the nearest.
    """
    asked = name.strip()
    if not asked:
        return _own_zone()
    if found := _OFFSET.fullmatch(asked):
        return _fixed(found)
    key = _known().get(_folded(asked))
    if key is None:
        raise ValueError(
            f"unknown time zone {name[:MAX_ZONE_CHARS]!r}; {_hint(asked)}write it like 'Europe/Berlin' or '+02:00'"
        )
    return ZoneInfo(key)


def _own_zone() -> tzinfo:
    name = os.environ.get(ZONE_VARIABLE)
    if not name:
        own = datetime.now().astimezone().tzinfo
        assert own is not None  # noqa: S101  # an aware time has a zone
        return own
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as exc:
        raise ValueError(f"{ZONE_VARIABLE} names no time zone: {name!r}. Write it like Europe/Berlin.") from exc


def _fixed(found: re.Match[str]) -> tzinfo:
    offset = timedelta(hours=int(found[2]), minutes=int(found[3] or 0))
    if offset > timedelta(hours=14):
        raise ValueError(f"{found[0]!r} is no offset: they end at +14:00")
    return timezone(-offset if found[1] == "-" else offset)


@functools.lru_cache(maxsize=1)
def _known() -> Mapping[str, str]:
    """Every zone by its folded name, and by its city where only one has it."""
    names = sorted(available_timezones())
    cities: dict[str, list[str]] = {}
    for name in names:
        cities.setdefault(_folded(name.rpartition("/")[2]), []).append(name)
    alone = {city: found[0] for city, found in cities.items() if len(found) == 1}
    return {**alone, **{_folded(name): name for name in names}}


def _folded(name: str) -> str:
    return "_".join(name[:MAX_ZONE_CHARS].casefold().split())


def _hint(asked: str) -> str:
    close = nearest(_folded(asked), _known())
    return f"did you mean {_known()[close]!r}? " if close else ""


#: Characters of the longest time.
MAX_TIME_CHARS = 40


#: The largest number of any unit that a date is moved by.
MAX_SHIFT = 100_000_000


_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


_DAY_NAMES = {"yesterday": -1, "today": 0, "tomorrow": 1}


_DAY = re.compile(r"\d{4}-?\d\d-?\d\d|\d{4}-?W\d\d-?\d", re.ASCII)


#: An offset with more minutes than an hour has, which Python takes.
_LONG_HOUR = re.compile(r"[+-]\d\d:?[6-9]\d", re.ASCII)


_FORMS = "write it like '2026-12-24', '2026-12-24T18:00', '2026-12-24T18:00+01:00', 'today', 'tomorrow' or 'now'"


Clock = Callable[[], datetime]


Time = Annotated[
    str,
    Field(
        max_length=MAX_TIME_CHARS,
        description="ISO 8601 such as '2026-12-24' or '2026-12-24T18:00+01:00', or 'today', 'tomorrow', 'now'",
    ),
]


Zone = Annotated[
    str,
    Field(
        max_length=MAX_ZONE_CHARS,
        description="Such as 'Europe/Berlin', a city such as 'Tokyo', or an offset such as '+05:30'. Empty: our own",
    ),
]


Shift = Annotated[int, Field(ge=-MAX_SHIFT, le=MAX_SHIFT, description="How many to add; negative goes back")]


need("dates", "dateutil", "tzdata")


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class _Moment:
    """A point in time, which may be a whole day."""

    at: datetime
    whole_day: bool = False

    def __str__(self) -> str:
        weekday = _WEEKDAYS[self.at.weekday()]
        if self.whole_day:
            return f"{weekday} {self.at.date().isoformat()}"
        return f"{weekday} {self.at.isoformat(sep=' ', timespec='minutes')}{_label(self.at.tzinfo)}"


@tool(
    read_only=True, description="Tell the current date, time, weekday and calendar week, here or in another time zone"
)
def current_time(time_zone: Zone = "", _clock: Clock = _now) -> str:
    """Now, in a zone. Raises ValueError."""
    at = _clock().astimezone(zone_named(time_zone))
    return f"{_Moment(at)}, week {at.isocalendar().week}, day {at.timetuple().tm_yday} of the year"


@tool(read_only=True, description="Add or subtract years, months, weeks, days, hours or minutes to a date or time")
def shift_date(
    start: Time,
    years: Shift = 0,
    months: Shift = 0,
    weeks: Shift = 0,
    days: Shift = 0,
    hours: Shift = 0,
    minutes: Shift = 0,
    time_zone: Zone = "",
    _clock: Clock = _now,
) -> str:
    """The later or earlier date, with its weekday. Days keep the time of day, hours are hours. Raises ValueError."""
    from dateutil.relativedelta import relativedelta
    from dateutil.tz import resolve_imaginary

    zone = zone_named(time_zone)
    moment = _moment(start, zone, _clock())
    try:
        wall = moment.at + relativedelta(years=years, months=months) + timedelta(weeks=weeks, days=days)
        at = (resolve_imaginary(wall).astimezone(UTC) + timedelta(hours=hours, minutes=minutes)).astimezone(wall.tzinfo)
    except (OverflowError, ValueError) as exc:
        raise ValueError(f"{start!r} moved so far is outside the years 1 to 9999: add less") from exc
    return f"{moment} -> {_Moment(at, moment.whole_day and not (hours or minutes))}"


@tool(read_only=True, description="Count the days, working days, weeks and months between two dates or times")
def date_difference(start: Time, end: Time = "today", time_zone: Zone = "", _clock: Clock = _now) -> str:
    """How far `end` is from `start`. Raises ValueError."""
    zone, now = zone_named(time_zone), _clock()
    first, last = _moment(start, zone, now), _moment(end, zone, now)
    if first.whole_day and last.whole_day:
        return f"{first} to {last}: {_days(first.at.date(), last.at.date())}"
    return f"{first} to {last}: {_duration(_elapsed(first.at, last.at))}"


@tool(read_only=True, description="Convert a time of one time zone to another time zone")
def convert_time_zone(time: Time, to_zone: Zone, from_zone: Zone = "", _clock: Clock = _now) -> str:
    """The same moment on another clock. Raises ValueError."""
    moment = _moment(time, zone_named(from_zone), _clock())
    try:
        there = moment.at.astimezone(zone_named(to_zone))
    except OverflowError as exc:
        raise ValueError(f"{time!r} is outside the years 1 to 9999 there") from exc
    return f"{_Moment(moment.at)} = {_Moment(there)}"


def tools(_folder: Path | None = None, _hosts: Sequence[str] = ()) -> list[Tool]:
    """The tools of this family."""
    return [current_time, shift_date, date_difference, convert_time_zone]


def _moment(text: str, zone: tzinfo, now: datetime) -> _Moment:
    words = text.strip()
    if words.casefold() == "now":
        return _Moment(now.astimezone(zone))
    if words.casefold() in _DAY_NAMES:
        today = now.astimezone(zone).replace(hour=0, minute=0, second=0, microsecond=0)
        return _Moment(today + timedelta(days=_DAY_NAMES[words.casefold()]), whole_day=True)
    try:
        read = datetime.fromisoformat(words.upper())
        if read.tzinfo and _LONG_HOUR.search(words):
            raise ValueError("an offset has at most 59 minutes")
    except ValueError as exc:
        raise ValueError(f"{text!r} is no date that is understood: {_FORMS}") from exc
    return _Moment(read if read.tzinfo else read.replace(tzinfo=zone), whole_day=bool(_DAY.fullmatch(words.upper())))


def _days(first: date, last: date) -> str:
    """Days are counted from the first to the last, which is not in: Monday to Tuesday is one."""
    from dateutil.relativedelta import relativedelta

    early, late = min(first, last), max(first, last)
    total = (late - early).days
    span = relativedelta(late, early)
    parts = ", ".join(
        _counted(count, unit)
        for count, unit in ((span.years, "year"), (span.months, "month"), (span.days, "day"))
        if count
    )
    weeks = f"{_counted(total // 7, 'week')} {_counted(total % 7, 'day')}"
    told = f"{_counted(total, 'day')} ({parts or '0 days'}; {weeks}); {_working_days(early, total)} Monday to Friday"
    return f"minus {told}: the end is before the start" if last < first else told


def _working_days(early: date, total: int) -> int:
    """Without counting through them: weeks have five, the rest is looked at."""
    rest = range(total - total % 7, total)
    return total // 7 * 5 + sum((early.weekday() + day) % 7 < 5 for day in rest)


def _elapsed(first: datetime, last: datetime) -> timedelta:
    """In UTC: two times of one zone would be subtracted as if its clocks never changed."""
    try:
        return last.astimezone(UTC) - first.astimezone(UTC)
    except OverflowError as exc:
        raise ValueError("that is outside the years 1 to 9999") from exc


def _duration(span: timedelta) -> str:
    seconds = int(abs(span).total_seconds())
    hours, minutes, left = seconds // 3600, seconds // 60 % 60, seconds % 60
    parts = [(hours // 24, "day"), (hours % 24, "hour"), (minutes, "minute"), (left, "second")]
    told = ", ".join(_counted(count, unit) for count, unit in parts if count) or "0 minutes"
    whole = f"{told} ({_counted(hours, 'hour')} {minutes} min in all)" if hours >= 24 else told
    return f"minus {whole}: the end is before the start" if span < timedelta() else whole


def _counted(count: int, unit: str) -> str:
    return f"{count} {unit}{'' if count == 1 else 's'}"


def _label(zone: tzinfo | None) -> str:
    key = getattr(zone, "key", "")
    return f" ({key})" if key else ""
