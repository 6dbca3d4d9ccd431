"""Full: Redis has no memory or no disk left for a while, and then has room again."""

from __future__ import annotations

import contextlib

from redis.exceptions import RedisError

from sayso.config.embedded import EmbeddedRedisError
from sayso.config.simulation.plan import Room
from sayso.config.simulation.server import Server

#: Seconds without room, and between two tries to start what ended itself for want of it.
FULL_SECONDS, RETRY_SECONDS = 5.0, 1.0


class Full:
    """Lives as long as its server. With a full disk Redis ends itself, and is started again as `sayso up` would."""

    def __init__(self, server: Server) -> None:
        self.deaths = 0
        self._server = server
        self._room: Room | None = None
        self._until = self._retry = 0.0

    @property
    def is_on(self) -> bool:
        """Whether there is no room now."""
        return self._room is not None

    def begin(self, room: Room, now: float) -> bool:
        """Take the room away. Whether that was possible: not while Redis is away."""
        with contextlib.suppress(RedisError, OSError):
            self._limit(room)
            self._room, self._until = room, now + FULL_SECONDS
            return True
        return False

    def tend(self, now: float) -> None:
        """Start Redis again where it ended itself, and give the room back when it is time."""
        if self._room is None:
            return
        with contextlib.suppress(RedisError, OSError, EmbeddedRedisError):
            if not self._server.is_alive() and (now >= self._retry or now >= self._until):
                self._retry = now + RETRY_SECONDS
                self.deaths += 1
                self._server.restart()
                if now < self._until:
                    self._limit(self._room)
            if now >= self._until and self._server.is_alive():
                self._server.unlimit()
                self._room = None

    def _limit(self, room: Room) -> None:
        if room == "memory":
            self._server.limit_memory()
        else:
            self._server.limit_disk()
