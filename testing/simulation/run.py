"""Run one simulation: start the processes, let users play, inject faults, judge, and report."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from sayso.testing.platforms.fake_platforms import FakePlatforms
from sayso.testing.simulation.faults import Faults, FlakyPlatforms
from sayso.testing.simulation.judge import SimulationResult, judge_simulation
from sayso.testing.simulation.processes import BotProcesses, simulated_settings
from sayso.testing.simulation.profile import Profile, load_stories
from sayso.testing.simulation.report import MemoryMeter, SimulationReport
from sayso.testing.simulation.tools import Effects
from sayso.testing.simulation.users import SimulatedUsers

#: Pause between two looks at what is due, in seconds.
STEP_SECONDS = 0.02
#: Pause between two lines of progress, in seconds.
PROGRESS_SECONDS = 5.0
#: Seconds without a new reply after which no more is expected.
QUIET_SECONDS = 4.0
#: The longest wait for missing replies, in seconds.
MAX_SETTLE_SECONDS = 90.0


@dataclass(frozen=True, slots=True)
class Simulation:
    """One run of a profile. Use it once."""

    profile: Profile
    #: The data folder, which must be empty. It holds the evidence afterwards.
    data: Path
    #: Prints a line of progress.
    say: Callable[[str], None]

    def run(self) -> SimulationReport:
        """Run the profile and return its report.

        Raises InvalidStories, BotNotRunning, EmbeddedRedisError.
        """
        profile = self.profile
        stories = load_stories(profile.stories, profile.only_stories)
        # Each part draws from a separate generator, so that all make the same choices in every
        # run with this seed, in whatever order they act.
        flaky = FlakyPlatforms(Random(f"{profile.seed} flaky"))
        with ExitStack() as stack:
            failures = flaky if profile.failing_platforms else None
            platforms = stack.enter_context(FakePlatforms(failures=failures))
            make_settings = partial(simulated_settings, profile, platforms)
            bot = stack.enter_context(BotProcesses(profile, self.data, make_settings))
            users = stack.enter_context(SimulatedUsers(profile, platforms, bot, stories))

            began = time.monotonic()
            memory_meter = MemoryMeter(bot, began)
            faults = Faults(bot, profile, Random(f"{profile.seed} faults"), began)
            self._inject_faults(users, faults, memory_meter, began)
            seconds = time.monotonic() - began
            result = self._settle(users)
            memory = memory_meter.read(profile.conversations)

        self._write_evidence(users, result)
        return SimulationReport(
            profile=profile,
            result=result,
            interruptions=faults.interruptions,
            faults=faults.counts,
            http=users.delivery.answers,
            lost_replies=bot.lost_replies(),
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
        while not users.is_done or faults.is_timed_fault_pending:
            if users.budget.is_left:
                faults.inject_due(time.monotonic())
            else:
                faults.end(time.monotonic())
            outage = faults.outage
            users.delivery.during = outage.record.statuses if outage.is_on else None
            memory_meter.update(time.monotonic())
            time.sleep(STEP_SECONDS)

            if time.monotonic() - last_progress > PROGRESS_SECONDS:
                last_progress = time.monotonic()
                progress = self._progress(users, faults)
                self.say(f"{last_progress - began:5.0f} s  {progress}")
        faults.end(time.monotonic())

    def _progress(self, users: SimulatedUsers, faults: Faults) -> str:
        """Return the turns, replies and faults so far, in words."""
        taken = f"{users.budget.taken_turns:,} of {self.profile.turns:,} turns"
        counts = [f"{name} {count}" for name, count in faults.counts.items() if count]
        progress = f"{taken}, {users.message_count:,} replies"
        if counts:
            progress += f"; {', '.join(counts)}"
        return progress

    def _settle(self, users: SimulatedUsers) -> SimulationResult:
        """Wait until no reply is missing and no more arrive. Return the result.

        After MAX_SETTLE_SECONDS replies that are still missing count as lost or untold.
        """
        deadline = time.monotonic() + MAX_SETTLE_SECONDS
        count = -1
        last_reply_at = time.monotonic()
        while True:
            if users.message_count != count:
                count = users.message_count
                last_reply_at = time.monotonic()
            elif time.monotonic() - last_reply_at > QUIET_SECONDS:
                result = judge_simulation(users.people, Effects(self.data).read())
                missing = result.count("lost") + result.count("untold")
                if not missing or time.monotonic() > deadline:
                    return result
            time.sleep(0.2)

    def _write_evidence(self, users: SimulatedUsers, result: SimulationResult) -> None:
        """Write what happened as files of JSON lines in the data folder.

        `acts.jsonl` has what the users did, `messages.jsonl` what arrived in their chats, and
        `findings.jsonl` what the judge found.
        """
        acts: list[dict[str, Any]] = []
        messages: list[dict[str, Any]] = []
        for person in users.people:
            chat = person.client.chat
            acts += [{"chat": chat, **asdict(act)} for act in person.acts]
            for message in person.inbox.messages:
                files = sorted(message.files)
                messages.append(
                    {"chat": chat, "at": message.at, "text": message.text, "files": files}
                )
        self._write_lines("acts", acts)
        self._write_lines("messages", messages)
        self._write_lines("findings", [asdict(finding) for finding in result.findings])

    def _write_lines(self, name: str, lines: Sequence[Mapping[str, Any]]) -> None:
        text = "".join(f"{json.dumps(line)}\n" for line in lines)
        (self.data / f"{name}.jsonl").write_text(text)
