"""A Redis client whose process is killed, or something else happens, before a chosen command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from redis import Redis


class Killed(BaseException):
    """What ends a process: nothing of it runs any more."""


class Fate:
    """Something that happens right before a process's nth command; `Killed` ends all that would follow."""

    def __init__(self, nth: int, happens: Callable[[], None]) -> None:
        self._left, self._happens, self._killed = nth, happens, False
        self.came = False

    def step(self) -> None:
        """One more command is about to be sent."""
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
    """A client that asks its process's fate before each round trip."""

    fate: Fate

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Ask, and send."""
        self.fate.step()
        return super().execute_command(*args, **options)

    def pipeline(self, *args: Any, **options: Any) -> Any:
        """Ask, and send."""
        self.fate.step()
        return super().pipeline(*args, **options)
