"""Tape: the bytes that decide what happens in a story; after its end the simplest choice is taken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Tape:
    """Reads one byte per decision, with 0 for the simplest choice: cheap to generate and to shrink."""

    def __init__(self, data: bytes) -> None:
        self._data = iter(data)

    def below(self, count: int) -> int:
        """Return a number from 0 to below `count`."""
        return next(self._data, 0) % count

    def pick(self, options: Sequence[T]) -> T:
        """Return one of the options; the first is the simplest."""
        return options[self.below(len(options))]

    def rarely(self, one_in: int = 8) -> bool:
        """Return whether something unusual happens."""
        return self.below(one_in) == one_in - 1
