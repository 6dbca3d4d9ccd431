"""Run one simulation: start the processes, inject faults, wait for the answers, and report."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from random import Random

from sayso.testing.platforms.fake_platforms import FakePlatforms
from sayso.testing.simulation.faults import Faults, FlakyPlatforms
from sayso.testing.simulation.judge import SimulationResult, judge_simulation
from sayso.testing.simulation.processes import Machine, simulated_settings
from sayso.testing.simulation.profile import Profile, load_stories
from sayso.testing.simulation.report import MemoryMeter, SimulationReport
from sayso.testing.simulation.tools import Effects
from sayso.testing.simulation.users import SimulatedUsers

#: Pause between two steps, and between two lines of progress, in seconds.
STEP_SECONDS = 0.02
PROGRESS_SECONDS = 5.0
#: Seconds without a new reply after which no more is expected, and the longest wait for that.
QUIET_SECONDS = 4.0
MAX_SETTLE_SECONDS = 90.0


@dataclass(frozen=True, slots=True)
class Simulation:
    """One profile on one data folder. `say` prints a line of progress."""

    profile: Profile
    data: Path
    say: Callable[[str], None]

    def run(self) -> SimulationReport:
        """Run the profile and return its report.

        Raises InvalidStories, MachineError, EmbeddedRedisError.
        """
        profile = self.profile
        stories = load_stories(profile.stories, profile.only_stories)
        flaky = FlakyPlatforms(Random(f"{profile.seed} flaky"))
        with ExitStack() as stack:
            if profile.failing_platforms:
                platforms = FakePlatforms(failures=flaky)
            else:
                platforms = FakePlatforms()
            stack.enter_context(platforms)
            machine = stack.enter_context(
                Machine(profile, self.data, partial(simulated_settings, profile, platforms))
            )
            users = stack.enter_context(SimulatedUsers(profile, platforms, machine, stories))
            began = time.monotonic()
            memory_meter = MemoryMeter(machine, began)
            faults = Faults(machine, profile, Random(f"{profile.seed} faults"), began)
            self._inject_faults(users, faults, memory_meter, began)
            seconds = time.monotonic() - began
            result = self._settle(users)
            memory = memory_meter.read(profile.conversations)
        self._write_evidence(users, result)
        return SimulationReport(
            profile=profile,
            result=result,
            hits=faults.hits,
            faults=faults.counts,
            http=users.delivery.answers,
            lost_replies=machine.lost_replies(),
            failed_sends=flaky.failures,
            impatient=flaky.impatient,
            seconds=seconds,
            deliveries_repeated=users.delivery.repeated,
            without_retry_after=users.delivery.without_retry_after,
            never_done=faults.never_done,
            outage=faults.outage.record,
            webhook_seconds=users.delivery.seconds,
            killed_at=faults.killed_at,
            memory=memory,
        )

    def _inject_faults(
        self, users: SimulatedUsers, faults: Faults, memory_meter: MemoryMeter, began: float
    ) -> None:
        """Inject faults while users begin new stories; then wait until all users are done."""
        last_progress = began
        while not users.is_done or faults.is_broken:
            if users.budget.is_left:
                faults.inject_due(time.monotonic())
            else:
                faults.end(time.monotonic())
            if faults.outage.is_on:
                users.delivery.during = faults.outage.record.statuses
            else:
                users.delivery.during = None
            memory_meter.update(time.monotonic())
            time.sleep(STEP_SECONDS)
            if time.monotonic() - last_progress > PROGRESS_SECONDS:
                last_progress = time.monotonic()
                done = ", ".join(
                    f"{name} {count}" for name, count in faults.counts.items() if count
                )
                progress = f"{users.budget.taken:,} of {self.profile.turns:,} turns, {users.message_count:,} replies"
                self.say(f"{last_progress - began:5.0f} s  {progress}{f'; {done}' if done else ''}")
        faults.end(time.monotonic())

    def _settle(self, users: SimulatedUsers) -> SimulationResult:
        """Wait until no reply is missing and no more arrive, at most MAX_SETTLE_SECONDS.

        Return the result.
        """
        deadline = time.monotonic() + MAX_SETTLE_SECONDS
        count = -1
        quiet = time.monotonic()
        while True:
            if users.message_count != count:
                count = users.message_count
                quiet = time.monotonic()
            elif time.monotonic() - quiet > QUIET_SECONDS:
                result = judge_simulation(users.people, Effects(self.data).read())
                if not result.count("lost") + result.count("untold") or time.monotonic() > deadline:
                    return result
            time.sleep(0.2)

    def _write_evidence(self, users: SimulatedUsers, result: SimulationResult) -> None:
        """Write the acts of the users, the messages they got, and the findings,
        as files in the data folder.
        """
        for name, lines in (
            (
                "acts",
                [
                    {"chat": person.client.chat, **asdict(act)}
                    for person in users.people
                    for act in person.acts
                ],
            ),
            (
                "messages",
                [
                    {
                        "chat": person.client.chat,
                        "at": message.at,
                        "text": message.text,
                        "files": sorted(message.files),
                    }
                    for person in users.people
                    for message in person.inbox.messages
                ],
            ),
            ("findings", [asdict(finding) for finding in result.findings]),
        ):
            (self.data / f"{name}.jsonl").write_text(
                "".join(f"{json.dumps(line)}\n" for line in lines)
            )
