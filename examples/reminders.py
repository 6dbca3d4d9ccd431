"""Reminder tools: "remind me tomorrow at 9".

A reminder is a timer of the conversation. Sayso stores it with the conversation, so it survives a
restart. What is here is how people say when.
"""

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
from sayso.pending.turn_changes import Timer

#: The environment variable with the time zone of the users, such as Europe/Berlin. Without it, that
#: of the server is used.
ZONE_VARIABLE = "SAYSO_TIMEZONE"
#: The hour of a reminder for a day without a time.
DEFAULT_HOUR = 9

#: How a time is written, for the model and for people.
FORMATS = (
    'Say when like this: "in 20 minutes", "at 17:30", "tomorrow at 9", "on friday at 2:30 pm", "2026-12-24", '
    '"2026-12-24T18:00" or "2026-12-24T18:00+01:00".'
)

_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_COUNTS = {"a": 1.0, "an": 1.0, "one": 1.0, "half an": 0.5}
_SECONDS = {"second": 1, "minute": 60, "hour": 3600}
_DELAY = re.compile(
    r"in (?P<count>\d{1,6}|an?|one|half an) (?P<unit>second|minute|hour|day|week)s?"
)
_DAY = rf"(?:on )?(?P<day>today|tomorrow|{'|'.join(_WEEKDAYS)}|\d{{4}}-\d\d-\d\d)"
_TIME = r"(?:at )?(?:(?P<hour>\d{1,2})(?::(?P<minute>\d\d))? ?(?P<half>[ap]m)?|(?P<named>noon|midnight))"
_DAY_AND_TIME = re.compile(rf"{_DAY}(?: {_TIME})?")
_TIME_AND_DAY = re.compile(rf"{_TIME}(?: {_DAY})?")


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
        at = moment(when, time_of_turn(), _zone())
        timer = remind(text, at)
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
    if timer is None:
        return f"You have no reminder {reminder_id} here."
    return f"Cancelled: {_line(timer)}"


def moment(phrase: str, now: float, zone: ZoneInfo | None) -> float:
    """Return the Unix time, in seconds, that a phrase means at `now`.

    `zone` is the time zone of the user; None is that of the server. Raise ValueError, with a text
    for the user, if the phrase has none of FORMATS.
    """
    text = " ".join(phrase.casefold().replace(",", " ").split())
    try:
        delay = _DELAY.fullmatch(text)
        if delay:
            return _after(delay, now, zone)
        clock_time = _DAY_AND_TIME.fullmatch(text) or _TIME_AND_DAY.fullmatch(text)
        if clock_time:
            return _next_clock_time(clock_time, now, zone)
        return _unix(datetime.fromisoformat(text.upper()), zone)
    except (ValueError, OverflowError, OSError) as exc:
        raise ValueError(f"{phrase!r} is not a time that I understand. {FORMATS}") from exc


def _after(delay: re.Match[str], now: float, zone: ZoneInfo | None) -> float:
    """Return the Unix time after a delay. Days keep the time of day, also across a clock change."""
    count = _COUNTS.get(delay["count"]) or float(delay["count"])
    unit = delay["unit"]
    if unit in _SECONDS:
        return now + count * _SECONDS[unit]
    days = count * 7 if unit == "week" else count
    return _unix(_local(now, zone) + timedelta(days=days), zone)


def _next_clock_time(match: re.Match[str], now: float, zone: ZoneInfo | None) -> float:
    """Return the Unix time of the next such time.

    A time without a day, or with a weekday, may be today if it is still to come.
    """
    local_now = _local(now, zone)
    day = _day(match["day"], local_now)
    at = day.replace(hour=_hour(match), minute=int(match["minute"] or 0), second=0, microsecond=0)
    if at <= local_now and match["day"] is None:
        at += timedelta(days=1)
    if at <= local_now and match["day"] in _WEEKDAYS:
        at += timedelta(days=7)
    return _unix(at, zone)


def _day(name: str | None, today: datetime) -> datetime:
    """Return the day of a name or a date, today without one. Its time of day means nothing."""
    if name is None or name == "today":
        return today
    if name == "tomorrow":
        return today + timedelta(days=1)
    if name in _WEEKDAYS:
        days_until = (_WEEKDAYS.index(name) - today.weekday()) % 7
        return today + timedelta(days=days_until)
    return datetime.fromisoformat(name)


def _hour(match: re.Match[str]) -> int:
    """Return the hour of a time, from 0 to 23. Raise ValueError for one such as 13 pm."""
    if match["named"]:
        return 12 if match["named"] == "noon" else 0
    if match["hour"] is None:
        return DEFAULT_HOUR
    hour = int(match["hour"])
    half = match["half"]
    if not half:
        return hour
    if not 1 <= hour <= 12:
        raise ValueError(f"{hour} {half} is not a time of day")
    hour_of_half = hour % 12
    return hour_of_half + 12 if half == "pm" else hour_of_half


def _zone() -> ZoneInfo | None:
    """Return the time zone of the users, None for that of the server.

    Raise ValueError if the variable names no time zone.
    """
    name = os.environ.get(ZONE_VARIABLE)
    if not name:
        return None
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as exc:
        raise ValueError(
            f"{ZONE_VARIABLE} is not a time zone: {name!r}. Write it like Europe/Berlin."
        ) from exc


def _local(at: float, zone: ZoneInfo | None) -> datetime:
    """Return a Unix time as the local time without its zone. Days can be added to it."""
    return datetime.fromtimestamp(at, zone).replace(tzinfo=None)


def _unix(time: datetime, zone: ZoneInfo | None) -> float:
    """Return the Unix time of a time. One without a zone is in `zone`."""
    if not time.tzinfo:
        time = time.replace(tzinfo=zone)
    return time.timestamp()


def _format_time(at: float) -> str:
    """Return a Unix time in digits, which read the same in every language, and its zone."""
    zone = _zone()
    time = datetime.fromtimestamp(at, zone).astimezone(zone)
    zone_name = os.environ.get(ZONE_VARIABLE) or time.tzname()
    return f"{time:%Y-%m-%d %H:%M} ({zone_name})"


def _line(timer: Timer) -> str:
    """Return a reminder on one line, with the number that cancels it."""
    return f"{timer.id}: {timer.note}, {_format_time(timer.at)}"
