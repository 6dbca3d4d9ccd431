"""Faults: whatever models, tools, observers, stores and people do, a run ends as it promises to."""

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

#: Stories told, and those within which a broken rule must be caught.
STORIES, MUTANT_STORIES = int(os.environ.get("SAYSO_FAULTS", "") or 1_500), 2000
#: Decisions of one story, after which the plainest thing happens.
DECISIONS = 120

Tell = Callable[[bytes], None]


@pytest.fixture
def tell() -> Iterator[Tell]:
    """Tells a story and judges it. One loop for all: each must leave it empty. Warnings in thousands help nobody."""
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
    """Faults of every kind, at every place, in any order."""
    stories = st.binary(min_size=DECISIONS, max_size=DECISIONS)
    settings(max_examples=STORIES, deadline=None, database=None)(given(stories)(tell))()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_broken_rule_is_caught(mutant: Mutant, tell: Tell) -> None:
    """A judge that lets a broken rule pass proves nothing."""
    chance = Random(1)
    stories = (chance.randbytes(DECISIONS) for _ in range(MUTANT_STORIES))
    with mutant.applied(), pytest.raises(Broken):
        any(map(tell, stories))  # up to the first that breaks a promise
