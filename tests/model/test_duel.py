"""Duels: no interleaving of two workers at one confirmation breaks a promise, and a duel catches each broken rule."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterable, Iterator

import pytest
from redis import Redis

from tests.model.bot import Bot
from tests.model.duel import ALL, ENDS, Duel, Over, every
from tests.model.mutants import MUTANTS, Mutant
from tests.model.stage import Stage

#: Whether to play all schedules (`make duel`), or only a few seconds of them.
ASKED = bool(os.environ.get("SAYSO_DUEL"))
#: The confirmed actions: run once, repeatable, with a reconciler, failing; and a plan of two steps.
WISHES = (
    (("delete",), ("pay",), ("checked",), ("broken",), ("delete", "pay"))
    if ASKED
    else (("delete",),)
)
SAYINGS = ("yes", "confirm tap") if ASKED else ("yes",)
#: For how many steps a paused worker continues while the other is stopped: none, one call, or to its end.
FEW = (0, 2, ALL)
#: Rules whose breach shows only with a second worker.
RULES = (
    "no fence in commit", "no fence in start", "a started action runs again", "finish refuses the late truth",
    "the late truth is not told",
)  # fmt: skip


def agains(wish: tuple[str, ...]) -> Iterable[int]:
    """Return every number of steps in the full run. Plans, which take twice as many, get only FEW."""
    return itertools.count() if ASKED and len(wish) == 1 else FEW


def duels(bot: Bot, totals: Counter[str]) -> Iterator[tuple[Duel, list[str]]]:
    """Play every schedule, and yield it with the promises that it broke."""
    broken: list[str] = []

    def play(duel: Duel) -> Over:
        stage = Stage(bot)
        try:
            over = duel.play(stage)
        finally:
            stage.close()
        broken[:] = stage.world.violations
        totals.update(stage.world.counts)
        totals["unknowns"] += stage.books.count("unknown")
        return over

    for wish, says, end in itertools.product(WISHES, SAYINGS, ENDS):
        for duel in every(wish, says, end, lambda wish=wish: agains(wish), play):  # type: ignore[misc]
            totals["schedules"] += 1
            yield duel, list(broken)


# The 1,100 schedules of a plain run take 13 s of processor time, so a machine with twenty busy processes needs minutes.
@pytest.mark.timeout(3600 if ASKED else 600)
def test_no_schedule_of_two_workers_breaks_a_promise(
    client: Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each confirmed action has one effect at most and a reported outcome, wherever the two workers stop."""
    totals: Counter[str] = Counter()
    assert [(duel, broken) for duel, broken in duels(Bot(client, {}), totals) if broken] == []
    with capsys.disabled():
        print("duels: " + ", ".join(f"{count:,} {what}" for what, count in totals.items()))  # noqa: T201  # the proof
    assert totals["schedules"] > (16_000 if ASKED else 900)
    assert totals["effects"] > totals["unknowns"] > 0


@pytest.mark.parametrize(
    "mutant", [each for each in MUTANTS if each.name in RULES], ids=lambda mutant: mutant.name
)
def test_broken_rule_fails_in_a_duel(mutant: Mutant, client: Redis) -> None:
    """The enumeration of schedules catches each rule that needs a second worker."""
    with mutant.applied():
        assert any(broken for _, broken in duels(Bot(client, mutant.scripts), Counter()))
