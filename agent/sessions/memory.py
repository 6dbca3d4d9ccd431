"""InMemorySessionStore: sessions that live as long as their process."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock

from sayso.agent.sessions.record import SessionKey
from sayso.agent.sessions.shelved import ShelvedSessions


class InMemorySessionStore(ShelvedSessions):
    """For tests, and for one process whose conversations may end with it. It keeps texts, as the others do."""

    def __init__(self, default_ttl: float | None = None, *, clock: Callable[[], float] = time.time) -> None:
        super().__init__(default_ttl, clock=clock)
        self._shelves: dict[str, dict[str, str]] = {}
        self._lock = Lock()

    def _get(self, key: SessionKey) -> str | None:
        with self._lock:
            return self._shelves.get(key.shelf, {}).get(key.name)

    def _put(self, key: SessionKey, text: str, ttl: float | None) -> None:
        with self._lock:
            self._shelves.setdefault(key.shelf, {})[key.name] = text

    def _remove(self, key: SessionKey) -> bool:
        with self._lock:
            return self._shelves.get(key.shelf, {}).pop(key.name, None) is not None

    def _remove_if(self, key: SessionKey, text: str) -> None:
        with self._lock:
            shelf = self._shelves.get(key.shelf, {})
            if shelf.get(key.name) == text:
                del shelf[key.name]

    def _texts(self, shelf: str) -> list[tuple[str, str]]:
        with self._lock:
            return list(self._shelves.get(shelf, {}).items())
