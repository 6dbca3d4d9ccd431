"""Reminders: the tools behind "remind me tomorrow at 9", whose timers outlive every restart."""

from __future__ import annotations

import os
import re
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from sayso.agent import tool
from sayso.agent.tools import SchedulingError, cancel_scheduled, remind, scheduled, texts_of_turn, time_of_turn
from sayso.pending.turns.change import Timer

#: Names the time zone that people mean, such as Europe/Berlin. Without it they mean the server's.
ZONE_VARIABLE = "SAYSO_TIMEZONE"
#: The hour of a day that comes without one.
MORNING = 9

FORMS = (
    'Say when like this: "in 20 minutes", "at 17:30", "tomorrow at 9", "on friday at 2:30 pm", "2026-12-24", '
    '"2026-12-24T18:00" or "2026-12-24T18:00+01:00".'
)

_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_SECONDS = {"second": 1, "minute": 60, "hour": 3600}
_DELAY = re.compile(r"in (?P<count>\d{1,6}|an?|one|half an) (?P<unit>second|minute|hour|day|week)s?")
_DAY = rf"(?:on )?(?P<day>today|tomorrow|{'|'.join(_WEEKDAYS)}|\d{{4}}-\d\d-\d\d)"
_TIME = r"(?:at )?(?:(?P<hour>\d{1,2})(?::(?P<minute>\d\d))? ?(?P<half>[ap]m)?|(?P<named>noon|midnight))"
_CLOCK = [re.compile(form) for form in (rf"{_DAY}(?: {_TIME})?", rf"{_TIME}(?: {_DAY})?")]


@tool(
    description="Remind the user of something later",
    param_metadata={
        "text": {"description": "What to remind the user of, in the user's own words"},
        "when": {"description": FORMS},
    },
)
def remind_me(text: str, when: str) -> str:
    """Set a reminder and say for when exactly, so that a misunderstanding is seen."""
    try:
        timer = remind(text, moment(when, time_of_turn(), _zone()))
        return texts_of_turn().reminder_set(text, _told(timer.at))
    except (SchedulingError, ValueError) as exc:
        return f"No reminder was set. {exc}"


@tool(description="List the user's reminders that are still to come")
def list_reminders() -> str:
    """One line per reminder, with the number that cancels it."""
    try:
        return "\n".join(map(_line, scheduled())) or "There are no reminders."
    except SchedulingError as exc:
        return str(exc)


@tool(
    description="Cancel one reminder",
    param_metadata={"reminder_id": {"description": "The reminder's number, as it is listed"}},
)
def cancel_reminder(reminder_id: str) -> str:
    """Take a reminder of this user back."""
    try:
        timer = cancel_scheduled(reminder_id.strip().lstrip("#"))
    except SchedulingError as exc:
        return str(exc)
    return f"Cancelled: {_line(timer)}" if timer else f"You have no reminder {reminder_id} here."


def moment(phrase: str, now: float, zone: ZoneInfo | None) -> float:
    """The Unix seconds that a phrase means to somebody in this zone (None: the server's) who says it at `now`.

    Raises ValueError, in words for the user, when it is none of FORMS.
    """
    words = " ".join(phrase.casefold().replace(",", " ").split())
    try:
        if delay := _DELAY.fullmatch(words):
            return _after(delay, now, zone)
        if found := next((match for form in _CLOCK if (match := form.fullmatch(words))), None):
            return _on_the_clock(found, now, zone)
        return _unix(datetime.fromisoformat(words.upper()), zone)
    except (ValueError, OverflowError, OSError) as exc:
        raise ValueError(f"{phrase!r} is no time that I understand. {FORMS}") from exc


def _after(delay: re.Match[str], now: float, zone: ZoneInfo | None) -> float:
    """A number of days keeps the time of day, also over a change of the clocks."""
    count = {"a": 1.0, "an": 1.0, "one": 1.0, "half an": 0.5}.get(delay["count"]) or float(delay["count"])
    unit = delay["unit"]
    if unit in _SECONDS:
        return now + count * _SECONDS[unit]
    return _unix(_local(now, zone) + timedelta(days=count * (7 if unit == "week" else 1)), zone)


def _on_the_clock(found: re.Match[str], now: float, zone: ZoneInfo | None) -> float:
    """A time without a day is the next one; so is a weekday."""
    today = _local(now, zone)
    at = _day(found["day"], today).replace(
        hour=_hour(found), minute=int(found["minute"] or 0), second=0, microsecond=0
    )  # fmt: skip
    if at <= today and found["day"] is None:
        at += timedelta(days=1)
    if at <= today and found["day"] in _WEEKDAYS:
        at += timedelta(days=7)
    return _unix(at, zone)


def _day(name: str | None, today: datetime) -> datetime:
    if name in _WEEKDAYS:
        return today + timedelta(days=(_WEEKDAYS.index(name) - today.weekday()) % 7)
    if name in (None, "today", "tomorrow"):
        return today + timedelta(days=name == "tomorrow")
    return datetime.fromisoformat(name)


def _hour(found: re.Match[str]) -> int:
    if found["named"]:
        return 12 if found["named"] == "noon" else 0
    if found["hour"] is None:
        return MORNING
    hour = int(found["hour"])
    if not found["half"]:
        return hour
    if not 1 <= hour <= 12:
        raise ValueError(f"{hour} {found['half']} is no time of day")
    return hour % 12 + (12 if found["half"] == "pm" else 0)


def _zone() -> ZoneInfo | None:
    """The zone that people mean. Raises ValueError when the variable names none."""
    name = os.environ.get(ZONE_VARIABLE)
    try:
        return ZoneInfo(name) if name else None
    except (ZoneInfoNotFoundError, ValueError, OSError) as exc:
        raise ValueError(f"{ZONE_VARIABLE} names no time zone: {name!r}. Write it like Europe/Berlin.") from exc


def _local(at: float, zone: ZoneInfo | None) -> datetime:
    """What clocks on the wall show, without a zone: days are counted on it."""
    return datetime.fromtimestamp(at, zone).replace(tzinfo=None)


def _unix(wall: datetime, zone: ZoneInfo | None) -> float:
    return (wall if wall.tzinfo else wall.replace(tzinfo=zone)).timestamp()


def _told(at: float) -> str:
    """The time in figures, which read the same in every language, and the zone it is meant in."""
    wall = datetime.fromtimestamp(at, _zone()).astimezone(_zone())
    return f"{wall:%Y-%m-%d %H:%M} ({os.environ.get(ZONE_VARIABLE) or wall.tzname()})"


def _line(timer: Timer) -> str:
    return f"{timer.id}: {timer.note}, {_told(timer.at)}"
