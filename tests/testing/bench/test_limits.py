"""What limits a step of `sayso bench`: found from the usage of processes, machine and disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sayso.testing.bench.load import Exchange
from sayso.testing.bench.meters import (
    Places,
    RedisTimes,
    Usage,
    limit_of,
    usable_processors,
)
from sayso.testing.bench.run import BenchPlan, BenchResult, best
from sayso.testing.bench.steps import Step
from sayso.testing.percentiles import percentile

IDLE = {"web": 0.2, "worker": 0.3, "redis": 0.1, "bench": 0.1}
QUICK, SLOW_DISK = RedisTimes(0.0001, 0.0002), RedisTimes(0.0001, 0.005)


def usage(*, processors: int = 8, **changes: Any) -> Usage:
    """Return the usage of an idle step, with changes."""
    cpu, processes = (
        IDLE | changes.pop("cpu", {}),
        {"web": 1, "worker": 2} | changes.pop("processes", {}),
    )
    return Usage(
        cpu, processes, processors, **{"machine": 0.2, "disk_wait": 0.0, "waiting": {}} | changes
    )


@pytest.mark.parametrize(
    ("used", "name", "advice"),
    [
        (usage(cpu={"worker": 1.9}), "worker CPU", "sayso worker --processes N"),
        (
            usage(cpu={"worker": 1.0}),
            "round trips to Redis",
            "nothing is busy, and each takes 0.2 ms",
        ),
        (usage(cpu={"web": 0.97}), "web CPU", "sayso web --processes N"),
        (
            usage(cpu={"web": 0.97}, processes={"web": 2}),
            "round trips to Redis",
            "bring Redis nearer",
        ),
        (usage(cpu={"redis": 0.9, "web": 0.9}), "redis CPU", "a faster one"),
        (usage(cpu={"bench": 0.99}), "bench CPU", "takes more than this"),
        (usage(disk_wait=0.9), "disk of Redis", "90% of the time"),
        (usage(cpu={"redis": 0.4}, disk_wait=0.47), "disk of Redis", "47% of the time"),
        (usage(cpu={"redis": 0.6}, disk_wait=0.27), "redis CPU", "a faster one"),
        (
            usage(disk_wait=None, machine=None, waiting=None),
            "round trips to Redis",
            "nothing is busy",
        ),
        (usage(processors=1, machine=0.95), "processors of this machine", "web 20%, worker 30%"),
        (
            usage(processors=0.5, cpu={"worker": 0.2}),
            "processors of this machine",
            "all 0.5 that we may",
        ),
    ],
)
def test_the_busiest_part_is_the_limit(used: Usage, name: str, advice: str):
    """The cure is printed with it."""
    limit = limit_of(used, Places("workers.concurrency", 100, 3), QUICK)
    assert limit.name == name
    assert advice in limit.advice


@pytest.mark.parametrize(
    ("used", "name", "advice"),
    [
        (
            usage(
                processors=2,
                machine=0.95,
                cpu={"worker": 0.5},
                processes={"worker": 1},
                waiting={"worker": 0.45},
            ),
            "other programs on this machine",
            "they take 55% of all processors, while worker waits for one: measure again without them",
        ),
        (usage(processors=2, machine=0.95), "round trips to Redis", "nothing is busy"),
        (
            usage(processors=2, machine=0.95, waiting=None),
            "other programs on this machine",
            "measure again without",
        ),
        (
            usage(cpu={"web": 0.9}, machine=0.95, waiting={"web": 0.05}),
            "web CPU",
            "sayso web --processes N",
        ),
        (usage(cpu={"web": 0.5}, waiting={"web": 4.0}), "round trips to Redis", "nothing is busy"),
    ],
)
def test_other_programs_are_the_limit_only_if_they_take_processor_time_from_the_bot(
    used: Usage, name: str, advice: str
):
    """A machine may be busy with programs of lower priority."""
    limit = limit_of(used, Places("workers.concurrency", 100, 3), QUICK)
    assert limit.name == name
    assert advice in limit.advice


@pytest.mark.parametrize(
    ("taken", "redis", "disk_wait", "name"),
    [
        (66, QUICK, 0.0, "workers.concurrency"),
        (20, QUICK, 0.0, "round trips to Redis"),
        (99, SLOW_DISK, None, "disk of Redis"),
        (99, SLOW_DISK, 0.1, "workers.concurrency"),
    ],
)
def test_without_a_busy_part_concurrency_or_the_disk_of_a_remote_redis_is_the_limit(
    taken: float, redis: RedisTimes, disk_wait: float | None, name: str
):
    """A remote Redis shows no processes. A write that takes much longer than a PING points to its disk."""
    assert (
        limit_of(usage(disk_wait=disk_wait), Places("workers.concurrency", 100, taken), redis).name
        == name
    )


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
    result = BenchResult(BenchPlan(), QUICK, 0.001, webhooks=[step(10), step(40, refused=1)])
    assert result.limit(result.webhooks).name == "limits.conversations"


def test_percentiles_are_values_that_were_measured():
    """Without values each is 0."""
    values = [float(number) for number in range(100, 0, -1)]
    assert [percentile(values, share) for share in (0.5, 0.95, 0.99)] == [51, 96, 100]
    assert percentile([], 0.5) == 0


@pytest.mark.parametrize(
    ("files", "processors"),
    [
        ({"cpu.max": "25000 100000\n"}, 0.25),
        ({"cpu/cpu.cfs_quota_us": "25000\n", "cpu/cpu.cfs_period_us": "50000\n"}, 0.5),
        ({"units/bot/cpu.max": "75000 100000\n"}, 0.75),
    ],
)
def test_a_container_may_use_a_part_of_a_processor(
    files: dict[str, str], processors: float, tmp_path: Path
):
    """Without a limit, or without Linux's files, all processors count."""
    own = tmp_path / "own"
    own.write_text("3:cpuset:/other\n2:cpu:/\n0::/units/bot\n")
    every = usable_processors(tmp_path, own)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert (every >= 1, usable_processors(tmp_path, own)) == (True, processors)
    for name in files:
        if not name.endswith("period_us"):
            (tmp_path / name).write_text("max 100000\n" if name.endswith("max") else "-1\n")
    assert usable_processors(tmp_path, own) == every
