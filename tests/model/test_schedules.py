"""Schedules that the model found, or that led to one of its rules: each once broke a promise."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis

from tests.model.bot import Bot
from tests.model.scenes import Interrupted, TakenOver
from tests.model.stage import LEASE, Person, Stage
from tests.model.world import HALL, ROOM

ANA: Person = ("ana", ROOM)
CLEO: Person = ("cleo", HALL)


@pytest.fixture
def stage(client: Redis) -> Iterator[Stage]:
    """Return a separate stage."""
    stage = Stage(Bot(client, {}))
    yield stage
    stage.close()


def broken(stage: Stage) -> list[str]:
    """Finish all work and return the broken promises."""
    stage.conclude()
    return stage.world.violations


def test_outcome_recorded_after_the_turn_was_read_is_reported(stage: Stage) -> None:
    """The second worker read the action as started; its claim finds it done, so the reply is not "nothing was done"."""
    TakenOver(
        ANA, ("delete",), "yes", first=("start", "after"), second=("lease", "after"), third=("finish", "after"),
        rounds=1, ends="crash", others="pause", back=True, silent=False,
    ).play(stage)  # fmt: skip
    assert broken(stage) == []


def test_tap_after_a_late_outcome_gets_the_text_of_the_correction(stage: Stage) -> None:
    """The question's message shows the outcome first, in its own words, which no reply has used yet."""
    TakenOver(
        ANA, ("delete",), "yes", first=("start", "after"), second=None, third=("lease", "after"),
        rounds=1, ends="crash", others="crash", back=False, silent=False,
    ).play(stage)  # fmt: skip
    stage.hear(ANA, "confirm tap")
    stage.work(ROOM)
    assert broken(stage) == []


def test_tap_in_another_conversation_ends_no_action(stage: Stage) -> None:
    """The button names an action that a worker in its own conversation has just claimed."""
    stage.asked(ANA, ("delete",), "yes")
    stage.hear(ANA, "yes")
    worker = stage.worker(ROOM)
    assert stage.go_to(worker, ("claim", "after"))
    stage.hear(CLEO, "foreign tap")
    stage.work(HALL)
    stage.steps(worker)
    assert broken(stage) == []


@pytest.mark.parametrize("how", ["args", "no args"])
@pytest.mark.parametrize("wish", [("archive",), ("archive", "archive")])
def test_record_changed_after_the_effect_is_not_offered_as_an_undo(
    stage: Stage, wish: tuple[str, ...], how: str
) -> None:
    """The first worker died before the answer; the second must not sign the changed record."""
    stage.asked(ANA, wish, "yes")
    stage.hear(ANA, "yes")
    worker = stage.worker(ROOM)
    assert stage.go_to(worker, ("commit", "before"))
    stage.end(worker, "crash")
    for proposal in stage.world.proposals.values():
        stage.tamper(proposal, how)
    stage.settle_down(ROOM)
    assert broken(stage) == []


def test_step_changed_during_the_step_before_it_contradicts_no_report(stage: Stage) -> None:
    """The first undo was done when the second's record was changed, so no reply says that nothing was done."""
    Interrupted(
        ANA, ("delete", "checked", "archive"), "undo tap", waits=0.0, times=1, extra="", stop=("finish", "before"),
        loses=False, tampers="", end="pause",
    ).play(stage)  # fmt: skip
    second = [each for each in stage.world.proposals.values() if each.undoes][-1]
    stage.tamper(second, "args")
    stage.steps(stage.aside.pop())
    assert broken(stage) == []


def test_outcome_found_late_is_reported_as_a_correction(stage: Stage) -> None:
    """The second worker queried the outcome and was stopped; the third could not query it and reported "unknown"."""
    stage.asked(ANA, ("checked",), "yes")
    stage.hear(ANA, "yes")
    first = stage.worker(ROOM)
    assert stage.go_to(first, ("finish", "before"))
    stage.end(first, "crash")
    stage.bot.pass_time(LEASE)
    second = stage.worker(ROOM)
    assert stage.go_to(second, ("change", "before"))
    stage.world.silent = True
    stage.settle_down(ROOM)
    stage.steps(second)
    assert broken(stage) == []
