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
#: Characters of the longest name.
MAX_ZONE_CHARS = 60
_OFFSET = re.compile(r"(?:UTC|GMT)?([+-])(\d{1,2})(?::?([0-5]\d))?", re.IGNORECASE | re.ASCII)
#: Characters of the longest time.
MAX_TIME_CHARS = 40
#: The largest number of years, days and so on by which a date is moved.
MAX_SHIFT = 100_000_000
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_DAY_NAMES = {"yesterday": -1, "today": 0, "tomorrow": 1}
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

    "" is the default of ZONE_VARIABLE. Raises ValueError, which names the nearest zone.
    """
    stripped = name.strip()
    if not stripped:
        return _default_zone()
    if match := _OFFSET.fullmatch(stripped):
        offset = timedelta(hours=int(match[2]), minutes=int(match[3] or 0))
        if offset > timedelta(hours=14):
            raise ValueError(f"{match[0]!r} is not an offset: they end at +14:00")
        return timezone(-offset if match[1] == "-" else offset)
    key = _zones().get(_fold(stripped))
    if key is None:
        close = nearest(_fold(stripped), _zones())
        hint = ""
        if close:
            hint = f"did you mean {_zones()[close]!r}? "
        raise ValueError(
            f"unknown time zone {name[:MAX_ZONE_CHARS]!r}; {hint}write it like 'Europe/Berlin' or '+02:00'"
        )
    return ZoneInfo(key)


def _default_zone() -> tzinfo:
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
    cities: dict[str, list[str]] = {}
    for name in names:
        cities.setdefault(_fold(name.rpartition("/")[2]), []).append(name)
    unique = {city: zones[0] for city, zones in cities.items() if len(zones) == 1}
    return {**unique, **{_fold(name): name for name in names}}


def _fold(name: str) -> str:
    return "_".join(name[:MAX_ZONE_CHARS].casefold().split())


need("dates")


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class _Moment:
    """A point in time, or a whole day."""

    at: datetime
    whole_day: bool = False

    def __str__(self) -> str:
        weekday = _WEEKDAYS[self.at.weekday()]
        if self.whole_day:
            return f"{weekday} {self.at.date().isoformat()}"
        zone_name = getattr(self.at.tzinfo, "key", "")
        return f"{weekday} {self.at.isoformat(sep=' ', timespec='minutes')}{f' ({zone_name})' if zone_name else ''}"


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
    try:  # adding days keeps the time of day, also across a clock change
        wall = (
            moment.at
            + relativedelta(years=years, months=months)
            + timedelta(weeks=weeks, days=days)
        )
        at = (
            resolve_imaginary(wall).astimezone(UTC) + timedelta(hours=hours, minutes=minutes)
        ).astimezone(wall.tzinfo)
    except (OverflowError, ValueError) as exc:
        raise ValueError(
            f"{start!r} moved so far is outside the years 1 to 9999: add less"
        ) from exc
    return f"{moment} -> {_Moment(at, moment.whole_day and not (hours or minutes))}"


@tool(read_only=True)
def date_difference(
    start: Time, end: Time = "today", time_zone: Zone = "", _clock: Clock = _now
) -> str:
    """Count the days, working days, weeks and months between two dates or times."""
    zone = parse_zone(time_zone)
    now = _clock()
    first = _parse_moment(start, zone, now)
    last = _parse_moment(end, zone, now)
    if first.whole_day and last.whole_day:
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
    stripped = text.strip()
    if stripped.casefold() == "now":
        return _Moment(now.astimezone(zone))
    if stripped.casefold() in _DAY_NAMES:
        today = now.astimezone(zone).replace(hour=0, minute=0, second=0, microsecond=0)
        return _Moment(today + timedelta(days=_DAY_NAMES[stripped.casefold()]), whole_day=True)
    try:
        time = datetime.fromisoformat(stripped.upper())
        if time.tzinfo and _INVALID_OFFSET.search(stripped):
            raise ValueError("an offset has at most 59 minutes")
    except ValueError as exc:
        raise ValueError(f"{text!r} is not a date that can be read: {_FORMATS}") from exc
    return _Moment(
        time if time.tzinfo else time.replace(tzinfo=zone),
        whole_day=bool(_DAY.fullmatch(stripped.upper())),
    )


def _format_days(first: date, last: date) -> str:
    """Return the days between two dates. The last date is not counted: Monday to Tuesday is one day."""
    from dateutil.relativedelta import relativedelta

    early = min(first, last)
    late = max(first, last)
    total = (late - early).days
    span = relativedelta(late, early)
    parts = ", ".join(
        plural(count, unit)
        for count, unit in ((span.years, "year"), (span.months, "month"), (span.days, "day"))
        if count
    )
    # The days beside the whole weeks, which have five working days each.
    rest = range(total - total % 7, total)
    working = total // 7 * 5 + sum((early.weekday() + day) % 7 < 5 for day in rest)
    weeks = f"{plural(total // 7, 'week')} {plural(total % 7, 'day')}"
    answer = f"{plural(total, 'day')} ({parts or '0 days'}; {weeks}); {working} Monday to Friday"
    if last < first:
        return f"minus {answer}: the end is before the start"
    return answer
