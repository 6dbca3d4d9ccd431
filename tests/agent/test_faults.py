"""Faults: a run ends as promised, whatever faults its models, tools, observers, stores and users cause."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.agent.faults.clock import ClockLoop
from tests.agent.faults.judge import Broken, judge
from tests.agent.faults.mutants import MUTANTS, Mutant
from tests.agent.faults.story import Errors, Story

#: The number of random stories, and how many may be needed to detect a mutant.
STORIES, MUTANT_STORIES = int(os.environ.get("SAYSO_FAULTS", "") or 500), 2000
#: The seed whose stories soon detect a mutant, where the first ones do not.
SOON = {"forget what was stopped": 12, "leave the rest of a batch behind": 9}
#: The number of decisions per story, after which the simplest choice is taken.
DECISIONS = 120

Tell = Callable[[bytes], None]


@pytest.fixture
def tell() -> Iterator[Tell]:
    """Return a function that runs a story and checks it. All share one loop, and each must leave it empty."""
    loop, errors = ClockLoop(), Errors()
    logging.disable(logging.WARNING)
    logging.getLogger().addHandler(errors)

    def told(data: bytes) -> None:
        for account in Story(data, loop, errors).told():
            judge(account)

    yield told
    logging.getLogger().removeHandler(errors)
    logging.disable(logging.NOTSET)
    loop.close()


@pytest.mark.timeout(600 + STORIES)
def test_no_story_breaks_a_promise(tell: Tell) -> None:
    """Stories have faults of every kind, at every place, in any order."""
    stories = st.binary(min_size=DECISIONS, max_size=DECISIONS)
    asked = "SAYSO_FAULTS" in os.environ
    settings(max_examples=STORIES, derandomize=not asked, database=None)(given(stories)(tell))()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_broken_rule_is_caught(mutant: Mutant, tell: Tell) -> None:
    """Each mutant breaks one rule, and the checks must detect it."""
    chance = Random(SOON.get(mutant.name, 1))
    stories = (chance.randbytes(DECISIONS) for _ in range(MUTANT_STORIES))
    with mutant.applied(), pytest.raises(Broken):
        any(map(tell, stories))  # up to the first story that breaks a promise
