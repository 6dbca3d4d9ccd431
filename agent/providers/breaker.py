"""Breaker: whether something that failed is worth asking again already."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Permit:
    """The right to ask once. Each is given back, with how it went: `passed`, `failed` or `left`."""

    __slots__ = ()


class Breaker:
    """Closed at first. After `max_failures` in a row it admits nobody for `cooldown` seconds, then one at a time until
    one of them passes. Thread-safe; lives as long as its provider.
    """

    def __init__(self, max_failures: int, cooldown: float, clock: Callable[[], float]) -> None:
        self._max_failures, self._cooldown, self._clock = max_failures, cooldown, clock
        self._lock = threading.Lock()
        self._failures = 0
        self._until = 0.0
        self._trial: Permit | None = None

    @property
    def until(self) -> float:
        """When the cooldown ends, by the clock."""
        return self._until

    @property
    def is_open(self) -> bool:
        """Whether the last `max_failures` attempts failed."""
        return self._failures >= self._max_failures

    def insist(self) -> Permit:
        """A permit, however early it is."""
        return Permit()

    def take(self) -> Permit | None:
        """A permit, None where it is too early or another one tries."""
        with self._lock:
            permit = Permit()
            if not self.is_open:
                return permit
            if self._trial is not None or self._clock() < self._until:
                return None
            self._trial = permit
            return permit

    def passed(self, permit: Permit) -> None:
        """It went well: everybody is admitted again."""
        with self._lock:
            self._give_back(permit)
            self._failures = 0

    def failed(self, permit: Permit) -> None:
        """One more failure in a row."""
        with self._lock:
            self._give_back(permit)
            self._failures += 1
            if self.is_open:
                self._until = self._clock() + self._cooldown

    def left(self, permit: Permit) -> None:
        """Nobody waited for how it went."""
        with self._lock:
            self._give_back(permit)

    def _give_back(self, permit: Permit) -> None:
        if self._trial is permit:
            self._trial = None
