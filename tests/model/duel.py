"""Duel: two workers process one confirmation, and the first stops at every possible place."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from tests.model.stage import LEASE, Person, Stage
from tests.model.world import ROOM

ANA: Person = ("ana", ROOM)
#: More steps than any worker needs.
ALL = 10_000
#: The first worker is paused, or it dies: others notice the expired lease (crash) or the dead process (burial).
End = Literal["pause", "crash", "burial"]
ENDS: tuple[End, ...] = ("pause", "crash", "burial")


@dataclass(frozen=True, slots=True)
class Over:
    """Which workers had finished within their given steps."""

    first: bool
    second: bool
    again: bool


@dataclass(frozen=True, slots=True)
class Duel:
    """One schedule. The first worker stops after `first` steps, paused or dead, and the second takes over.

    After `second` steps of the second worker, a paused first worker runs `again` steps. Then the second finishes, then
    the first. A step leads from one side of a store call to the other, or to the next call.
    """

    wish: tuple[str, ...]
    says: str
    end: End
    first: int
    second: int
    again: int

    def play(self, stage: Stage) -> Over:
        """Ask, confirm and chat; then run the two workers, and all remaining work."""
        stage.asked(ANA, self.wish, self.says)
        stage.hear(ANA, self.says)
        stage.hear(ANA, "chat")
        first = stage.worker(ROOM)
        over = not stage.steps(first, self.first)
        if not over and self.end != "pause":
            stage.end(first, self.end)
        if self.end != "burial":
            stage.bot.pass_time(LEASE)
        second = stage.worker(ROOM)
        met = not stage.steps(second, self.second)
        again = over or self.end != "pause" or not stage.steps(first, self.again)
        if not met:
            stage.steps(second)
        if not again:
            stage.steps(first)
        stage.conclude()
        return Over(over, met, again)


def every(
    wish: tuple[str, ...],
    says: str,
    end: End,
    agains: Callable[[], Iterable[int]],
    play: Callable[[Duel], Over],
) -> Iterator[Duel]:
    """Play each schedule up to the workers' real numbers of steps. A paused worker runs each of `agains` steps more."""
    for first in itertools.count(1):
        for second in itertools.count():
            for again in agains():
                duel = Duel(wish, says, end, first, second, again)
                over = play(duel)
                yield duel
                if over.again:
                    break
            if over.second:
                break
        if over.first:
            return
