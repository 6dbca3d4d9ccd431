"""Run: one simulation from its first process to its report."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

from sayso.testing.platforms.fake_platforms import FakePlatforms
from sayso.testing.simulation.faults import Faults, Flaky
from sayso.testing.simulation.judge import Review, review
from sayso.testing.simulation.plan import Plan
from sayso.testing.simulation.processes import Machine, MemoryMeter
from sayso.testing.simulation.report import SimulationReport
from sayso.testing.simulation.tools import Effects
from sayso.testing.simulation.users import Crowd, load_stories

#: Seconds between two looks, and between two lines of progress.
STEP_SECONDS, PROGRESS_SECONDS = 0.02, 5.0
#: Seconds without a new reply after which nothing more is expected, and seconds to wait for that at most.
QUIET_SECONDS, LAST_SECONDS = 4.0, 90.0


@dataclass(frozen=True, slots=True)
class Simulation:
    """One plan on one data folder. `say` prints lines of progress."""

    plan: Plan
    data: Path
    say: Callable[[str], None]

    def run(self) -> SimulationReport:
        """Simulate, and judge. Raises StoriesUnusable, MachineError, EmbeddedRedisError."""
        plan = self.plan
        stories = load_stories(plan.stories, plan.only)
        flaky = Flaky(Random(f"{plan.seed} flaky"))  # noqa: S311  # no secret
        with ExitStack() as stack:
            platforms = FakePlatforms(trouble=flaky) if plan.flaky_platforms else FakePlatforms()
            stack.enter_context(platforms)
            machine = stack.enter_context(Machine(plan, self.data, platforms))
            crowd = stack.enter_context(Crowd(plan, platforms, machine, stories))
            began = time.monotonic()
            gauge = MemoryMeter(machine, began)
            faults = Faults(machine, plan, Random(f"{plan.seed} faults"), began)  # noqa: S311  # no secret
            self._break(crowd, faults, gauge, began)
            seconds = time.monotonic() - began
            found = self._settle(crowd)
            memory = gauge.read(plan.conversations)
        self._keep(crowd, found)
        return SimulationReport(
            plan=plan,
            review=found,
            hits=faults.hits,
            faults=faults.counts,
            http=crowd.courier.answers,
            lost_replies=machine.lost_replies(),
            failed_sends=flaky.failures,
            impatient=flaky.impatient,
            seconds=seconds,
            deliveries_repeated=crowd.courier.repeated,
            curt=crowd.courier.curt,
            never_done=faults.never_done,
            away=faults.outage.away,
            webhook_seconds=crowd.courier.seconds,
            killed_at=faults.killed_at,
            memory=memory,
        )

    def _break(self, crowd: Crowd, faults: Faults, gauge: MemoryMeter, began: float) -> None:
        """Break things while people begin something new; then let everybody hear everything."""
        told = began
        while not crowd.is_done or faults.is_broken:
            if crowd.budget.is_left:
                faults.strike(time.monotonic())
            else:
                faults.end(time.monotonic())
            crowd.courier.during = faults.outage.away.statuses if faults.outage.is_on else None
            gauge.tend(time.monotonic())
            time.sleep(STEP_SECONDS)
            if time.monotonic() - told > PROGRESS_SECONDS:
                told = time.monotonic()
                self._progress(crowd, faults, told - began)
        faults.end(time.monotonic())

    def _progress(self, crowd: Crowd, faults: Faults, seconds: float) -> None:
        done = ", ".join(f"{name} {count}" for name, count in faults.counts.items() if count)
        turns = f"{crowd.budget.taken:,} of {self.plan.turns:,} turns"
        self.say(f"{seconds:5.0f} s  {turns}, {crowd.heard:,} replies{f'; {done}' if done else ''}")

    def _settle(self, crowd: Crowd) -> Review:
        """Wait until nothing more arrives and nothing is missing any more, or until patience ends."""
        deadline, heard, quiet = time.monotonic() + LAST_SECONDS, -1, time.monotonic()
        while True:
            if crowd.heard != heard:
                heard, quiet = crowd.heard, time.monotonic()
            elif time.monotonic() - quiet > QUIET_SECONDS:
                found = self._review(crowd)
                if not found.count("lost") + found.count("untold") or time.monotonic() > deadline:
                    return found
            time.sleep(0.2)

    def _review(self, crowd: Crowd) -> Review:
        return review(crowd.people, Effects(self.data).read())

    def _keep(self, crowd: Crowd, found: Review) -> None:
        """Write down what people did and heard and what was found: evidence needs no memory of ours."""
        for name, lines in (
            ("did", [{"chat": person.phone.chat, **asdict(act)} for person in crowd.people for act in person.diary]),
            (
                "heard",
                [
                    {"chat": person.phone.chat, "at": heard.at, "text": heard.text, "files": sorted(heard.files)}
                    for person in crowd.people
                    for heard in person.inbox.heard
                ],
            ),
            ("findings", [asdict(finding) for finding in found.findings]),
        ):
            (self.data / f"{name}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
