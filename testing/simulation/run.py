"""Run one simulation: start the processes, let users play, inject faults, judge, and report."""

from __future__ import annotations

import json
import time
from collections import Counter
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
#: Seconds without a new reply after which the judge looks for missing replies.
QUIET_SECONDS = 4.0
#: The longest wait for the last replies, in seconds.
MAX_SETTLE_SECONDS = 90.0
#: Pause between two looks for the last replies, in seconds.
SETTLE_STEP_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Simulation:
    """One run of a profile. Use it once."""

    profile: Profile
    #: The data folder, which must be empty. A run that ends without an error leaves its evidence
    #: there: see `_write_evidence`.
    data: Path
    #: Prints a line of progress.
    say: Callable[[str], None]

    def run(self) -> SimulationReport:
        """Run the profile and return its report.

        Raises InvalidStories, and BotNotRunning or EmbeddedRedisError if the bot does not start.
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
            result = result_after_last_replies(
                lambda: users.message_count,
                lambda: judge_simulation(users.people, Effects(self.data).read(), users.deciders),
            )
            # The memory is that of the running processes.
            memory = memory_meter.read(profile.conversations)

        self._write_evidence(users, result)
        return SimulationReport(
            profile=profile,
            result=result,
            interruptions=faults.interruptions,
            faults=faults.counts,
            http=users.delivery.answers,
            # The proxy writes this count when it is stopped, at the end of the `with` block.
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
        """Inject faults while users begin new stories; then wait until all users are done.

        Wait for the end of the outage too, and of a full memory or disk. Meanwhile measure the
        memory and print the progress.
        """
        last_progress = began
        # A user waits a limited time for each reply, so a bot without replies does not hold this.
        while not users.is_done or faults.is_timed_fault_pending:
            if users.budget.is_left:
                faults.inject_due(time.monotonic())
            else:
                # Begins and ends the outage too, if its time has come.
                faults.wind_down(time.monotonic())
            self._count_outage_statuses(users, faults)
            memory_meter.update(time.monotonic())
            time.sleep(STEP_SECONDS)

            if time.monotonic() - last_progress > PROGRESS_SECONDS:
                last_progress = time.monotonic()
                progress = self._progress(users, faults)
                self.say(f"{last_progress - began:5.0f} s  {progress}")
        # The last users may be done within one step. Workers that are still paused then continue.
        faults.wind_down(time.monotonic())

    def _count_outage_statuses(self, users: SimulatedUsers, faults: Faults) -> None:
        """Let deliveries of webhooks count their HTTP statuses in the record of an outage."""
        statuses: Counter[int] | None = None
        if faults.outage.is_on:
            statuses = faults.outage.record.statuses
        # Set in one step, because the thread of the users reads it.
        users.delivery.outage_statuses = statuses

    def _progress(self, users: SimulatedUsers, faults: Faults) -> str:
        """Return the turns, replies and faults so far, in words."""
        taken = f"{users.budget.taken_turns:,} of {self.profile.turns:,} turns"
        counts = [f"{name} {count}" for name, count in faults.counts.items() if count]
        progress = f"{taken}, {users.message_count:,} replies"
        if counts:
            progress += f"; {', '.join(counts)}"
        return progress

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


def result_after_last_replies(
    count_replies: Callable[[], int],
    judge: Callable[[], SimulationResult],
    max_seconds: float = MAX_SETTLE_SECONDS,
) -> SimulationResult:
    """Wait until no reply is missing and no more arrive. Return what `judge` then finds.

    `count_replies` returns how many replies have arrived. After `max_seconds` the wait ends in any
    case, also for a bot that never stops replying. Replies that are still missing are findings:
    "lost", or "untold" for the outcome of a decision.
    """
    deadline = time.monotonic() + max_seconds
    count = count_replies()
    last_reply_at = time.monotonic()
    while True:
        if count_replies() != count:
            count = count_replies()
            last_reply_at = time.monotonic()

        is_quiet = time.monotonic() - last_reply_at > QUIET_SECONDS
        is_out_of_time = time.monotonic() > deadline
        if is_quiet or is_out_of_time:
            # Judge in each step: an effect of a tool may be recorded without a new reply.
            result = judge()
            missing = result.count("lost") + result.count("untold")
            if not missing or is_out_of_time:
                return result
        time.sleep(SETTLE_STEP_SECONDS)
