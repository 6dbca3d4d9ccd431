"""Zones: the time zone somebody means, by its name, its city or its offset."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from sayso.agent.tools.nearest import nearest

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
