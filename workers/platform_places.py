"""How many calls with files a process makes to each platform at a time."""

from __future__ import annotations

import asyncio
from collections import defaultdict

from sayso.channels.base import Channel


class PlatformPlaces:
    """Gives each platform a number of places of its own, for calls that take memory or long. One per process and use.

    In common places, a platform that accepts connections and never answers would keep all others waiting. Channels of
    one adapter class are of one platform: they hang together.
    """

    def __init__(self, places: int) -> None:
        self._semaphores: defaultdict[type, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(places))

    def of(self, channel: Channel) -> asyncio.Semaphore:
        """Return the places of the channel's platform. Hold one during a call."""
        return self._semaphores[type(channel)]
