"""What an agent's run costs beside selectools, pydantic-ai and a bare loop, also with a thousand runs at once.

    python -m benchmarks.agent

All contenders run the same conversations in one process, with a stub model that answers at once. Rounds are
interleaved, and the best of each counts (the median of makespans), so only ratios mean anything. Each contender has
its defaults: Sayso validates, traces, counts, detects loops and limits the time. The crowd runs in a process for each
contender with a model of one second; memory is the growth of that process until all runs wait for the model.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.contenders import ANSWER, CONTENDERS, Case, Doors, weather
from benchmarks.table import HEAD, Row, show

ROUNDS, RUNS = 25, 100
#: Rounds of makespans: their tools wait, so fewer rounds are enough.
SPANS = 15
#: Seconds that each of three tools takes.
TOOL_SECONDS = 0.05
#: The numbers of concurrent runs, the seconds of their model, and the rounds.
CROWDS, MODEL_SECONDS, CROWD_ROUNDS = (1_000, 10_000), 1.0, 3
#: The seconds that a thousand runs may take.
CROWD_GOAL = 1.3

OURS = "sayso"
PEERS = ("selectools", "pydantic-ai")
FLOOR = "bare loop"


async def aweather(place: str, days: int) -> str:
    """Tell the weather of a place.

    Args:
        place: Its name.
        days: For how many days ahead.
    """
    return weather(place, days)


def slow(number: int) -> Callable[..., str]:
    """Return a tool that blocks."""

    def tool(place: str, days: int) -> str:
        """Tell the weather of a place."""
        time.sleep(TOOL_SECONDS)
        return weather(place, days)

    tool.__name__ = f"slow_{number}"
    return tool


def aslow(number: int) -> Callable[..., Awaitable[str]]:
    """Return a tool that waits."""

    async def tool(place: str, days: int) -> str:
        """Tell the weather of a place."""
        await asyncio.sleep(TOOL_SECONDS)
        return weather(place, days)

    tool.__name__ = f"aslow_{number}"
    return tool


CASES = {
    "no tool": Case(),
    "one sync tool": Case((weather,)),
    "one async tool": Case((aweather,)),
    "ten turns, each": Case(turns=10),
}
SLOW_CASES = {
    "three sync tools of 50 ms": Case(tuple(map(slow, range(3)))),
    "three async tools of 50 ms": Case(tuple(map(aslow, range(3)))),
}


def measure(case: Case, rounds: int, runs: int) -> dict[str, dict[str, list[float]]]:
    """Return the seconds of a turn by API and contender: one number for each of the interleaved rounds."""
    doors = {name: make(case) for name, make in CONTENDERS.items()}
    times = {
        "awaited": asyncio.run(_awaited(doors, rounds, runs)),
        "sync": _called(doors, rounds, runs),
    }
    return {
        door: {
            name: [seconds / runs / case.turns for seconds in each]
            for name, each in by_name.items()
        }
        for door, by_name in times.items()
    }


async def _awaited(doors: Mapping[str, Doors], rounds: int, runs: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in doors}
    for _ in range(rounds):
        for name, each in doors.items():
            assert await each.arun() == ANSWER
            started = time.perf_counter()
            for _ in range(runs):
                await each.arun()
            times[name].append(time.perf_counter() - started)
    return times


def _called(doors: Mapping[str, Doors], rounds: int, runs: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in doors}
    for _ in range(rounds):
        for name, each in doors.items():
            assert each.run() == ANSWER
            started = time.perf_counter()
            for _ in range(runs):
                each.run()
            times[name].append(time.perf_counter() - started)
    return times


def rows(title: str, times: Mapping[str, float], unit: str, per_second: float) -> list[Row]:
    """Compare one case by one API: each peer beside Sayso, and Sayso beside the floor."""

    def said(name: str) -> str:
        return f"{times[name] * per_second:.1f} {unit}"

    ours, bare = times[OURS], times[FLOOR]
    return [
        *(
            Row(f"{title}, {name}", said(OURS), said(name), times[name] / ours, 1, at_least=True)
            for name in PEERS
        ),
        Row(f"{title}, to the bare loop", said(OURS), said(FLOOR), ours / bare),
    ]


@dataclass(frozen=True, slots=True)
class Crowd:
    """The result of concurrent runs: seconds from the first to the last, and kB of memory for each."""

    seconds: float
    kb: float


def crowd(name: str, number: int) -> Crowd:
    """Run the crowd in a separate process, for its memory; return the median of several."""
    found = [_child(name, number) for _ in range(CROWD_ROUNDS)]
    return Crowd(
        statistics.median(each.seconds for each in found),
        statistics.median(each.kb for each in found),
    )


def _child(name: str, number: int) -> Crowd:
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.agent", name, str(number)]
    seconds, kb = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return Crowd(float(seconds), float(kb))


async def _crowd(name: str, number: int) -> Crowd:
    """Run this many copies of one agent at once. A first single run warms it up."""
    await CONTENDERS[name](Case()).arun()
    doors = CONTENDERS[name](Case(seconds=MODEL_SECONDS))
    _forget_peak()
    before, started = _peak_kb(), time.perf_counter()
    answers = await asyncio.gather(*(doors.arun() for _ in range(number)))
    took = time.perf_counter() - started
    assert answers == [ANSWER] * number
    return Crowd(took, (_peak_kb() - before) / number)


def _forget_peak() -> None:
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")


def _peak_kb() -> int:
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])


def crowd_rows(number: int) -> list[Row]:
    """Return the rows of the crowd; only a thousand runs have a goal."""
    found = {name: crowd(name, number) for name in CONTENDERS}
    ours, goal = found[OURS], CROWD_GOAL if number == CROWDS[0] else 0
    title = f"{number:,} at once, a model of {MODEL_SECONDS:g} s"
    return [
        Row(
            f"{title}: makespan",
            f"{ours.seconds:.2f} s",
            f"{MODEL_SECONDS:g} s",
            ours.seconds / MODEL_SECONDS,
            goal,
        ),
        *(
            _beside(f"{title}: makespan, {name}", "s", ours.seconds, found[name].seconds)
            for name in (*PEERS, FLOOR)
        ),
        *(
            _beside(f"{title}: memory of a run, {name}", "kB", ours.kb, found[name].kb)
            for name in (*PEERS, FLOOR)
        ),
    ]


def _beside(what: str, unit: str, ours: float, other: float) -> Row:
    return Row(what, f"{ours:.2f} {unit}", f"{other:.2f} {unit}", other / ours)


def main() -> None:
    """Print the table."""
    warnings.simplefilter("ignore")
    print(HEAD)
    for title, case in CASES.items():
        for door, times in measure(case, ROUNDS, RUNS // case.turns).items():
            show(
                rows(
                    f"{title}, {door}", {name: min(each) for name, each in times.items()}, "µs", 1e6
                )
            )
    for title, case in SLOW_CASES.items():
        for door, times in measure(case, SPANS, 1).items():
            medians = {name: statistics.median(each) for name, each in times.items()}
            show(rows(f"{title}, {door}", medians, "ms", 1e3))
    for number in CROWDS:
        show(crowd_rows(number))


if __name__ == "__main__":
    if sys.argv[1:]:
        came_to = asyncio.run(_crowd(sys.argv[1], int(sys.argv[2])))
        print(came_to.seconds, came_to.kb)
    else:
        main()
