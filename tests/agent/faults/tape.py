"""Tape: the bytes that decide what happens in one story; where it ends, the plainest thing happens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Tape:
    """A byte a decision, read once, 0 for the plainest: cheap to draw, and to shrink."""

    def __init__(self, data: bytes) -> None:
        self._data = iter(data)

    def below(self, count: int) -> int:
        """A number from 0 on."""
        return next(self._data, 0) % count

    def pick(self, options: Sequence[T]) -> T:
        """One of these; the first is the plainest."""
        return options[self.below(len(options))]

    def rarely(self, one_in: int = 8) -> bool:
        """Whether something unusual happens."""
        return self.below(one_in) == one_in - 1
