"""The model of votes: no tried schedule breaks a promise, and each broken rule is caught."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import Phase, seed
from redis import Redis

from tests.model.machine import Violation
from tests.model.mutants import Mutant
from tests.model.test_model import ASKED, SEED, progress, run, search
from tests.model.votes.machine import VoteMachine
from tests.model.votes.mutants import VOTE_MUTANTS
from tests.model.votes.office import VoteBot
from tests.model.votes.schedules import SCHEDULES
from tests.model.votes.stage import VoteStage

#: The number of schedules without a number from the environment: the same ones each time.
EXAMPLES = int(ASKED or 50)


@pytest.mark.timeout(600 + EXAMPLES)
def test_no_schedule_of_votes_breaks_a_promise(
    client: Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    """The schedules mix askers, deciders, roles, crashes, pauses and lost answers in any order."""

    def say(line: str) -> None:
        with capsys.disabled():
            print(line, flush=True)  # noqa: T201  # a run takes hours and should show its progress

    class Watched(VoteMachine):
        report = staticmethod(progress(say) if ASKED else lambda totals: None)

    VoteMachine.bot = VoteBot(client, {})
    VoteMachine.totals = Counter()
    run(EXAMPLES, Watched if ASKED else seed(SEED)(Watched), Phase.shrink)
    assert VoteMachine.totals["effects"] > EXAMPLES / 10
    assert VoteMachine.totals["votes"] > EXAMPLES / 2


@pytest.mark.parametrize("mutant", VOTE_MUTANTS, ids=lambda mutant: mutant.name)
def test_broken_rule_about_votes_is_caught(mutant: Mutant, client: Redis) -> None:
    """The model catches each deliberately broken rule, so its silence proves something."""

    class Broken(VoteMachine):
        pass

    with mutant.applied():
        VoteMachine.bot = VoteBot(client, mutant.scripts)
        if mutant.name in SCHEDULES:
            assert play(SCHEDULES[mutant.name], VoteMachine.bot)
            return
        with pytest.raises(Violation):
            search(Broken, SEED)


@pytest.mark.parametrize("schedule", SCHEDULES.values())
def test_schedule_of_a_broken_rule_about_votes_breaks_no_promise(
    schedule: Callable[[VoteStage], None], client: Redis
) -> None:
    """It is the broken rule that the model catches, and not the schedule."""
    assert play(schedule, VoteBot(client, {})) == []


def play(schedule: Callable[[VoteStage], None], bot: VoteBot) -> list[str]:
    """Play one schedule to its end, and return the broken promises."""
    stage = VoteStage(bot)
    try:
        schedule(stage)
        stage.conclude()
    finally:
        stage.close()
    return stage.world.violations
