"""Reminder tools: "remind me tomorrow at 9". The timers are stored and survive restarts."""

from __future__ import annotations

import os
import re
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from sayso.agent import tool
from sayso.agent.tools import (
    SchedulingError,
    cancel_scheduled,
    remind,
    scheduled,
    texts_of_turn,
    time_of_turn,
)
from sayso.pending.turns import Timer

#: Environment variable with the users' time zone, such as Europe/Berlin. Without it, the server's zone is used.
ZONE_VARIABLE = "SAYSO_TIMEZONE"
#: The hour of a reminder for a day without a time.
DEFAULT_HOUR = 9

FORMATS = (
    'Say when like this: "in 20 minutes", "at 17:30", "tomorrow at 9", "on friday at 2:30 pm", "2026-12-24", '
    '"2026-12-24T18:00" or "2026-12-24T18:00+01:00".'
)

_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_SECONDS = {"second": 1, "minute": 60, "hour": 3600}
_DELAY = re.compile(
    r"in (?P<count>\d{1,6}|an?|one|half an) (?P<unit>second|minute|hour|day|week)s?"
)
_DAY = rf"(?:on )?(?P<day>today|tomorrow|{'|'.join(_WEEKDAYS)}|\d{{4}}-\d\d-\d\d)"
_TIME = r"(?:at )?(?:(?P<hour>\d{1,2})(?::(?P<minute>\d\d))? ?(?P<half>[ap]m)?|(?P<named>noon|midnight))"
_CLOCK_PATTERNS = [
    re.compile(pattern) for pattern in (rf"{_DAY}(?: {_TIME})?", rf"{_TIME}(?: {_DAY})?")
]


@tool(
    description="Remind the user of something later",
    param_metadata={
        "text": {"description": "What to remind the user of, in the user's own words"},
        "when": {"description": FORMATS},
    },
)
def remind_me(text: str, when: str) -> str:
    """Set a reminder and return its exact time, so that the user notices a misunderstanding."""
    try:
        timer = remind(text, moment(when, time_of_turn(), _zone()))
        return texts_of_turn().reminder_set(text, _format_time(timer.at))
    except (SchedulingError, ValueError) as exc:
        return f"No reminder was set. {exc}"


@tool(description="List the user's reminders that are still to come")
def list_reminders() -> str:
    """Return one line per reminder, with the number that cancels it."""
    try:
        return "\n".join(map(_line, scheduled())) or "There are no reminders."
    except SchedulingError as exc:
        return str(exc)


@tool(
    description="Cancel one reminder",
    param_metadata={"reminder_id": {"description": "The reminder's number, as in the list"}},
)
def cancel_reminder(reminder_id: str) -> str:
    """Cancel a reminder of this user."""
    try:
        timer = cancel_scheduled(reminder_id.strip().lstrip("#"))
    except SchedulingError as exc:
        return str(exc)
    return f"Cancelled: {_line(timer)}" if timer else f"You have no reminder {reminder_id} here."


def moment(phrase: str, now: float, zone: ZoneInfo | None) -> float:
    """Return the Unix time in seconds of a phrase said at `now` in this zone (None: the server's).

    Raises ValueError with a text for the user if it has none of FORMATS.
    """
    text = " ".join(phrase.casefold().replace(",", " ").split())
    try:
        if delay := _DELAY.fullmatch(text):
            return _after(delay, now, zone)
        if clock := next(
            (match for pattern in _CLOCK_PATTERNS if (match := pattern.fullmatch(text))), None
        ):
            return _next_clock_time(clock, now, zone)
        return _unix(datetime.fromisoformat(text.upper()), zone)
    except (ValueError, OverflowError, OSError) as exc:
        raise ValueError(f"{phrase!r} is not a time that I understand. {FORMATS}") from exc


def _after(delay: re.Match[str], now: float, zone: ZoneInfo | None) -> float:
    """Return the time after a delay. Days keep the time of day, also across a clock change."""
    count = {"a": 1.0, "an": 1.0, "one": 1.0, "half an": 0.5}.get(delay["count"]) or float(
        delay["count"]
    )
    unit = delay["unit"]
    if unit in _SECONDS:
        return now + count * _SECONDS[unit]
    return _unix(_local(now, zone) + timedelta(days=count * (7 if unit == "week" else 1)), zone)


def _next_clock_time(match: re.Match[str], now: float, zone: ZoneInfo | None) -> float:
    """Return the next such time. A time without a day, or with a weekday, may be today if it is still to come."""
    today = _local(now, zone)
    at = _day(match["day"], today).replace(
        hour=_hour(match), minute=int(match["minute"] or 0), second=0, microsecond=0
    )
    if at <= today and match["day"] is None:
        at += timedelta(days=1)
    if at <= today and match["day"] in _WEEKDAYS:
        at += timedelta(days=7)
    return _unix(at, zone)


def _day(name: str | None, today: datetime) -> datetime:
    if name in _WEEKDAYS:
        return today + timedelta(days=(_WEEKDAYS.index(name) - today.weekday()) % 7)
    if name in (None, "today", "tomorrow"):
        return today + timedelta(days=name == "tomorrow")
    return datetime.fromisoformat(name)


def _hour(match: re.Match[str]) -> int:
    if match["named"]:
        return 12 if match["named"] == "noon" else 0
    if match["hour"] is None:
        return DEFAULT_HOUR
    hour = int(match["hour"])
    if not match["half"]:
        return hour
    if not 1 <= hour <= 12:
        raise ValueError(f"{hour} {match['half']} is not a time of day")
    return hour % 12 + (12 if match["half"] == "pm" else 0)


def _zone() -> ZoneInfo | None:
    """Return the users' zone. Raises ValueError if the variable does not name one."""
    name = os.environ.get(ZONE_VARIABLE)
    try:
        return ZoneInfo(name) if name else None
    except (ZoneInfoNotFoundError, ValueError, OSError) as exc:
        raise ValueError(
            f"{ZONE_VARIABLE} is not a time zone: {name!r}. Write it like Europe/Berlin."
        ) from exc


def _local(at: float, zone: ZoneInfo | None) -> datetime:
    """Return the local time without its zone, in which days can be added."""
    return datetime.fromtimestamp(at, zone).replace(tzinfo=None)


def _unix(wall: datetime, zone: ZoneInfo | None) -> float:
    return (wall if wall.tzinfo else wall.replace(tzinfo=zone)).timestamp()


def _format_time(at: float) -> str:
    """Return the time in digits, which read the same in every language, and its zone."""
    wall = datetime.fromtimestamp(at, _zone()).astimezone(_zone())
    return f"{wall:%Y-%m-%d %H:%M} ({os.environ.get(ZONE_VARIABLE) or wall.tzname()})"


def _line(timer: Timer) -> str:
    return f"{timer.id}: {timer.note}, {_format_time(timer.at)}"
