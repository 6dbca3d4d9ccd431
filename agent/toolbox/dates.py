"""Tools for the current time, for moving and comparing dates, and for time zones."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from typing import Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from pydantic import Field

from sayso.agent.toolbox import need, plural
from sayso.agent.tools.tool import tool
from sayso.infra.spelling import nearest

#: The environment variable with the default time zone, such as Europe/Berlin. Without it, the time
#: zone of the server is used.
ZONE_VARIABLE = "SAYSO_TIMEZONE"
#: Characters of the longest name of a time zone.
MAX_ZONE_CHARS = 60
#: A time zone as an offset from UTC: hours, and minutes after a colon or directly.
_OFFSET = re.compile(r"(?:UTC|GMT)?([+-])(\d{1,2})(?::?([0-5]\d))?", re.IGNORECASE | re.ASCII)
#: Characters of the longest time.
MAX_TIME_CHARS = 40
#: The largest number of years, days and so on by which a date is moved.
MAX_SHIFT = 100_000_000
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
#: Word for a day -> how many days after today it is.
_DAY_NAMES = {"yesterday": -1, "today": 0, "tomorrow": 1}
#: A date without a time, also as a day of a week of the year.
_DAY = re.compile(r"\d{4}-?\d\d-?\d\d|\d{4}-?W\d\d-?\d", re.ASCII)
#: An offset with 60 minutes or more, which Python accepts.
_INVALID_OFFSET = re.compile(r"[+-]\d\d:?[6-9]\d", re.ASCII)
_FORMATS = "write it like '2026-12-24', '2026-12-24T18:00', '2026-12-24T18:00+01:00', 'today', 'tomorrow' or 'now'"
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
Shift = Annotated[
    int, Field(ge=-MAX_SHIFT, le=MAX_SHIFT, description="How many to add; negative goes back")
]


def parse_zone(name: str) -> tzinfo:
    """Return the time zone of a name such as `Europe/Berlin`, `Berlin`, `UTC` or `+05:30`.

    For "", return the default, see ZONE_VARIABLE. Raise ValueError, which names the nearest zone,
    for an unknown name.
    """
    stripped = name.strip()
    if not stripped:
        return _default_zone()

    offset = _OFFSET.fullmatch(stripped)
    if offset:
        sign, hours, minutes = offset.groups()
        difference = timedelta(hours=int(hours), minutes=int(minutes or 0))
        if difference > timedelta(hours=14):
            raise ValueError(f"{stripped!r} is not an offset: they end at +14:00")
        return timezone(-difference if sign == "-" else difference)

    key = _zones().get(_fold(stripped))
    if key is None:
        nearest_name = nearest(_fold(stripped), _zones())
        hint = ""
        if nearest_name:
            hint = f"did you mean {_zones()[nearest_name]!r}? "
        raise ValueError(
            f"unknown time zone {name[:MAX_ZONE_CHARS]!r}; {hint}"
            "write it like 'Europe/Berlin' or '+02:00'"
        )
    return ZoneInfo(key)


def _default_zone() -> tzinfo:
    """Return the time zone of ZONE_VARIABLE, or that of the server.

    Raise ValueError for an unknown name in the variable.
    """
    name = os.environ.get(ZONE_VARIABLE)
    if not name:
        return datetime.now().astimezone().tzinfo or UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as exc:
        raise ValueError(
            f"{ZONE_VARIABLE} is not a time zone: {name!r}. Write it like Europe/Berlin."
        ) from exc


@functools.lru_cache(maxsize=1)
def _zones() -> Mapping[str, str]:
    """Return every zone by its folded name, and by its city if no other zone has the same city."""
    names = sorted(available_timezones())
    zones_by_city: dict[str, list[str]] = {}
    for name in names:
        city = _fold(name.rpartition("/")[2])
        zones_by_city.setdefault(city, []).append(name)

    zone_names = {city: zones[0] for city, zones in zones_by_city.items() if len(zones) == 1}
    zone_names |= {_fold(name): name for name in names}
    return zone_names


def _fold(name: str) -> str:
    """Return the form in which names are compared: in lower case, with _ for blanks."""
    return "_".join(name[:MAX_ZONE_CHARS].casefold().split())


# Where a library is missing, the import of this module fails with the command that installs it.
need("dates")


def _now() -> datetime:
    """Return the current time, in UTC."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class _Moment:
    """A point in time, or a whole day."""

    #: With a time zone. For a whole day, its midnight.
    at: datetime
    is_whole_day: bool = False

    def __str__(self) -> str:
        """Return the moment as the tools write it, with its weekday."""
        weekday = _WEEKDAYS[self.at.weekday()]
        if self.is_whole_day:
            return f"{weekday} {self.at.date().isoformat()}"
        text = f"{weekday} {self.at.isoformat(sep=' ', timespec='minutes')}"
        zone_name = getattr(self.at.tzinfo, "key", "")
        if zone_name:
            text += f" ({zone_name})"
        return text


@tool(read_only=True)
def current_time(time_zone: Zone = "", _clock: Clock = _now) -> str:
    """Tell the current date, time, weekday and calendar week, here or in another time zone."""
    at = _clock().astimezone(parse_zone(time_zone))
    return f"{_Moment(at)}, week {at.isocalendar().week}, day {at.timetuple().tm_yday} of the year"


@tool(read_only=True)
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
    """Add or subtract years, months, weeks, days, hours or minutes to a date or time."""
    from dateutil.relativedelta import relativedelta
    from dateutil.tz import resolve_imaginary

    zone = parse_zone(time_zone)
    moment = _parse_moment(start, zone, _clock())
    try:
        # Adding days keeps the time of day, also across a clock change. That may give a time which
        # the change skips; it becomes the time after it.
        same_time = moment.at + relativedelta(years=years, months=months)
        same_time += timedelta(weeks=weeks, days=days)
        # Hours and minutes are added in UTC, since they are elapsed time.
        in_utc = resolve_imaginary(same_time).astimezone(UTC)
        in_utc += timedelta(hours=hours, minutes=minutes)
        at = in_utc.astimezone(same_time.tzinfo)
    except (OverflowError, ValueError) as exc:
        raise ValueError(
            f"{start!r} moved so far is outside the years 1 to 9999: add less"
        ) from exc

    is_whole_day = moment.is_whole_day and not (hours or minutes)
    return f"{moment} -> {_Moment(at, is_whole_day)}"


@tool(read_only=True)
def date_difference(
    start: Time, end: Time = "today", time_zone: Zone = "", _clock: Clock = _now
) -> str:
    """Count the days, working days, weeks and months between two dates or times."""
    zone = parse_zone(time_zone)
    now = _clock()
    first = _parse_moment(start, zone, now)
    last = _parse_moment(end, zone, now)
    if first.is_whole_day and last.is_whole_day:
        return f"{first} to {last}: {_format_days(first.at.date(), last.at.date())}"

    try:  # in UTC, because Python ignores clock changes between two times of one zone
        elapsed = last.at.astimezone(UTC) - first.at.astimezone(UTC)
    except OverflowError as exc:
        raise ValueError("that is outside the years 1 to 9999") from exc

    total_seconds = int(abs(elapsed).total_seconds())
    hours = total_seconds // 3600
    minutes = total_seconds // 60 % 60
    seconds = total_seconds % 60
    parts = [(hours // 24, "day"), (hours % 24, "hour"), (minutes, "minute"), (seconds, "second")]
    answer = ", ".join(plural(count, unit) for count, unit in parts if count) or "0 minutes"
    if hours >= 24:
        answer = f"{answer} ({plural(hours, 'hour')} {minutes} min in all)"
    if elapsed < timedelta():
        answer = f"minus {answer}: the end is before the start"
    return f"{first} to {last}: {answer}"


@tool(read_only=True)
def convert_time_zone(time: Time, to_zone: Zone, from_zone: Zone = "", _clock: Clock = _now) -> str:
    """Convert a time of one time zone to another time zone."""
    moment = _parse_moment(time, parse_zone(from_zone), _clock())
    try:
        there = moment.at.astimezone(parse_zone(to_zone))
    except OverflowError as exc:
        raise ValueError(f"{time!r} is outside the years 1 to 9999 there") from exc
    return f"{_Moment(moment.at)} = {_Moment(there)}"


def _parse_moment(text: str, zone: tzinfo, now: datetime) -> _Moment:
    """Return the moment that a text names. One without a time zone is in `zone`.

    Raise ValueError for a text that cannot be read.
    """
    stripped = text.strip()
    word = stripped.casefold()
    if word == "now":
        return _Moment(now.astimezone(zone))
    if word in _DAY_NAMES:
        today = now.astimezone(zone).replace(hour=0, minute=0, second=0, microsecond=0)
        return _Moment(today + timedelta(days=_DAY_NAMES[word]), is_whole_day=True)

    try:
        time = datetime.fromisoformat(stripped.upper())
        if time.tzinfo and _INVALID_OFFSET.search(stripped):
            raise ValueError("an offset has at most 59 minutes")
    except ValueError as exc:
        raise ValueError(f"{text!r} is not a date that can be read: {_FORMATS}") from exc
    if not time.tzinfo:
        time = time.replace(tzinfo=zone)
    return _Moment(time, is_whole_day=_DAY.fullmatch(stripped.upper()) is not None)


def _format_days(first: date, last: date) -> str:
    """Return the time between two dates in days, months, weeks and working days.

    The last date is not counted: Monday to Tuesday is one day.
    """
    from dateutil.relativedelta import relativedelta

    early = min(first, last)
    late = max(first, last)
    total = (late - early).days
    weeks = total // 7
    remaining_days = total % 7

    span = relativedelta(late, early)
    units = ((span.years, "year"), (span.months, "month"), (span.days, "day"))
    in_months = ", ".join(plural(count, unit) for count, unit in units if count) or "0 days"
    in_weeks = f"{plural(weeks, 'week')} {plural(remaining_days, 'day')}"

    # Each whole week has five working days. Of the other days, those from Monday to Friday count.
    weekdays = [(early.weekday() + day) % 7 for day in range(total - remaining_days, total)]
    working_days = 5 * weeks + sum(weekday < 5 for weekday in weekdays)

    answer = f"{plural(total, 'day')} ({in_months}; {in_weeks}); {working_days} Monday to Friday"
    if last < first:
        return f"minus {answer}: the end is before the start"
    return answer
