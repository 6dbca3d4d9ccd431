"""Outage: Redis is away once, for long, while people go on writing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from sayso.config.simulation.door import spooled
from sayso.config.simulation.server import Server

#: Seconds after which it begins: by then everybody talks.
BEGIN_SECONDS = 5.0
#: Seconds between two looks at the spool.
LOOK_SECONDS = 0.25


@dataclass(slots=True)
class Away:
    """What is known of one outage. Moments are of the monotonic clock; `statuses` are what webhooks heard in it."""

    began: float = 0.0
    back: float = 0.0
    spool_empty: float = 0.0
    statuses: Counter[int] = field(default_factory=Counter)

    @property
    def drained_seconds(self) -> float:
        """From Redis's return until no message waited on the disk of the web; 0 without a spool."""
        return max(0.0, self.spool_empty - self.back)


class Outage:
    """Lives as long as its machine, in the thread that made it. `away` tells what is known so far."""

    def __init__(self, server: Server, doors: Sequence[str], seconds: float, now: float) -> None:
        self.away = Away()
        self._server, self._doors, self._seconds = server, doors, seconds
        self._due = now + BEGIN_SECONDS if seconds else float("inf")
        self._look = 0.0

    @property
    def is_on(self) -> bool:
        """Whether Redis is away now."""
        return self.away.began > self.away.back

    @property
    def is_ahead(self) -> bool:
        """Whether it is still to come, or to end."""
        return self._due != float("inf") or self.is_on

    def tend(self, now: float) -> None:
        """Begin and end when it is time, then watch the spool."""
        if self.is_on and now >= self.away.began + self._seconds:
            self._server.restart()
            self.away.back = now
        elif now >= self._due:
            self._due = float("inf")
            self._server.kill()
            self.away.began = now
        elif self.away.back and now >= self._look:
            self._look = now + LOOK_SECONDS
            self._watch(now)

    def _watch(self, now: float) -> None:
        if any(spooled(door) for door in self._doors):
            self.away.spool_empty = now
