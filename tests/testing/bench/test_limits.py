"""What limits a step of `sayso bench`: found from the usage of processes, machine and disk."""

from __future__ import annotations

from typing import Any

import pytest

from sayso.testing.bench.load import Exchange
from sayso.testing.bench.meters import Usage, limit_of, percentile
from sayso.testing.bench.run import BenchPlan, BenchResult, best
from sayso.testing.bench.steps import Step

IDLE = {"web": 0.2, "worker": 0.3, "redis": 0.1, "bench": 0.1}


def usage(*, processors: int = 8, **changes: Any) -> Usage:
    """Return the usage of an idle step, with changes."""
    processes = {"web": 1, "worker": 2} | changes.pop("processes", {})
    return Usage(IDLE | changes.pop("cpu", {}), processes, processors, **{"machine": 0.2, "disk_wait": 0.0} | changes)


@pytest.mark.parametrize(
    ("used", "name", "advice"),
    [
        (usage(cpu={"worker": 1.9}), "worker CPU", "sayso worker --processes N"),
        (usage(cpu={"worker": 1.0}), "round trips to Redis", "100 places"),
        (usage(cpu={"web": 0.97}), "web CPU", "sayso web --processes N"),
        (usage(cpu={"web": 0.97}, processes={"web": 2}), "round trips to Redis", "workers.concurrency"),
        (usage(cpu={"redis": 0.9, "web": 0.9}), "redis CPU", "a faster one"),
        (usage(cpu={"bench": 0.99}), "bench CPU", "takes more than this"),
        (usage(disk_wait=0.7), "disk of Redis", "70% of the time"),
        (usage(disk_wait=None, machine=None), "round trips to Redis", "nothing is busy"),
        (usage(processors=1, machine=0.95), "processors of this machine", "web 20%, worker 30%"),
        (usage(processors=2, machine=0.95), "other programs on this machine", "measure again without them"),
    ],
)
def test_the_busiest_part_is_the_limit(used: Usage, name: str, advice: str):
    """The cure is printed with it."""
    limit = limit_of(used, 100)
    assert limit.name == name
    assert advice in limit.advice


def step(per_second: int, *, refused: int = 0) -> Step:
    """Return a step of one second."""
    answers = [Exchange(200, 0.001)] * per_second + [Exchange(503, 0.001)] * refused
    return Step(1, 1.0, answers, usage())


def test_the_best_step_is_the_first_that_no_other_clearly_exceeds():
    """Four times the users for a few percent more turns is no growth. One slow step in between does not count."""
    assert best([step(10), step(40), step(41), step(42)]).per_second == 40
    assert best([step(10), step(40), step(20), step(60)]).per_second == 60
    assert best([step(10), step(40), step(90)]).per_second == 90


def test_a_503_is_the_limit_of_webhooks():
    """The best step is the last one in which all were accepted."""
    result = BenchResult(BenchPlan(), 0.001, 0.001, webhooks=[step(10), step(40, refused=1)])
    assert result.limit(result.webhooks).name == "limits.conversations"


def test_percentiles_are_values_that_were_measured():
    """Without values each is 0."""
    values = [float(number) for number in range(100, 0, -1)]
    assert [percentile(values, share) for share in (0.5, 0.95, 0.99)] == [51, 96, 100]
    assert percentile([], 0.5) == 0
