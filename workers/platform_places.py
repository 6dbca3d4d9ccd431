"""PlatformPlaces: bounds how many calls with files a process makes to each platform at a time."""

from __future__ import annotations

import asyncio
from collections import defaultdict

from sayso.channels.base import Channel


class PlatformPlaces:
    """Gives each platform a number of places for calls that need memory or time.

    If all platforms shared the places, a platform that accepts connections and never answers would
    keep the others waiting. All channels of one adapter class share the places of their platform.
    One object per process and use.
    """

    def __init__(self, places: int) -> None:
        """`places`: how many calls to one platform may be under way at a time."""
        self._semaphores: defaultdict[type, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(places)
        )

    def of(self, channel: Channel) -> asyncio.Semaphore:
        """Return the places of the channel's platform. Hold one during a call."""
        return self._semaphores[type(channel)]
