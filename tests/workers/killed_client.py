"""A Redis client whose process is killed, or hit by another event, before a chosen command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from redis import Redis


class Killed(BaseException):
    """Ends a process: none of its code runs afterwards."""


class Fate:
    """Calls `happens` right before a process's nth command; `Killed` ends all later ones."""

    def __init__(self, nth: int, happens: Callable[[], None]) -> None:
        self._left, self._happens, self._killed = nth, happens, False
        self.came = False

    def step(self) -> None:
        """Count one more command that is about to be sent."""
        if self._killed:
            raise Killed
        self._left -= 1
        if self._left == -1:
            self.came = True
            try:
                self._happens()
            except Killed:
                self._killed = True
                raise


def killed() -> None:
    """Kill -9."""
    raise Killed


class FatedRedis(Redis):
    """A client that counts a step before each round trip."""

    fate: Fate

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Count the step and send."""
        self.fate.step()
        return super().execute_command(*args, **options)

    def pipeline(self, *args: Any, **options: Any) -> Any:
        """Count the step and send."""
        self.fate.step()
        return super().pipeline(*args, **options)
