"""Duel: two workers at one confirmation, and every place at which the first may stop and the second may be met."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from tests.model.stage import LEASE, Person, Stage
from tests.model.world import ROOM

ANA: Person = ("ana", ROOM)
#: More steps than any worker has to do.
ALL = 10_000
#: What becomes of the first: it goes on later, or it is dead, which others learn by its lease or from its machine.
End = Literal["pause", "crash", "burial"]
ENDS: tuple[End, ...] = ("pause", "crash", "burial")


@dataclass(frozen=True, slots=True)
class Over:
    """Whose work had ended within the steps that it was given."""

    first: bool
    second: bool
    again: bool


@dataclass(frozen=True, slots=True)
class Duel:
    """One schedule. The first worker stops after so many steps, and is paused or dead; the second takes over.

    After so many steps of the second the first does so many again, if it can; then the second ends, then the first.
    A step goes from one side of a store's call to the other, or to the next call.
    """

    wish: tuple[str, ...]
    says: str
    end: End
    first: int
    second: int
    again: int

    def play(self, stage: Stage) -> Over:
        """Asked, confirmed and followed by chat; then the two, and all that is left."""
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
    wish: tuple[str, ...], says: str, end: End, agains: Callable[[], Iterable[int]], play: Callable[[Duel], Over]
) -> Iterator[Duel]:
    """Play each schedule, by the steps that there really are. A paused worker goes on for each of `agains` of them."""
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
