"""The report of a simulation: what was counted, what was broken, and the table that is printed.

A simulation lets simulated people talk to a real bot that is broken on purpose. The judge says how
often each promise of Sayso was broken (`SimulationResult`). The report compares this, and what the
faults cost, with what is allowed. It knows two kinds of failure: a broken promise, and an exceeded
limit on what faults may cost.

An act is one thing that a person did: a message, a tap, a file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from sayso.testing.percentiles import percentile
from sayso.testing.simulation.faults import PROCESSES_ENDED, OutageRecord
from sayso.testing.simulation.judge import SimulationResult
from sayso.testing.simulation.outcomes import BREACHES
from sayso.testing.simulation.processes import BotProcesses
from sayso.testing.simulation.profile import Profile

#: From this number of replies on, at most `REPEATED_SHARE` of them may be repeats. With fewer
#: replies a share says little, so then there may be one repeat for each fault.
MANY_REPLIES = 10_000
REPEATED_SHARE = 0.001
#: How long the spool may take to empty after an outage, in seconds.
DRAINED_SECONDS = 60.0

# What a profile with `measures: speed` promises.
#: Milliseconds within which 99 % of webhooks are answered.
WEBHOOK_MS = 100.0
#: Milliseconds from that answer to the first sign of life, for 99 % of acts.
PICK_UP_MS = 500.0
#: Megabytes by which a process may grow.
MAX_GROWTH_MB = 50.0
#: The share of the rate of turns that must be reached.
MIN_RATE_SHARE = 0.9
# What a profile with `measures: size` promises.
#: Bytes of Redis for each conversation.
CONVERSATION_BYTES = 3072.0
# What a profile with `measures: recovery` promises.
#: Seconds after a kill until everything that waited is answered, by what is killed.
RECOVERY_SECONDS = {"redis": 10.0, "machine": 15.0}

#: Seconds after which processes have imported everything they need. Their memory then is compared
#: with that at the end.
WARM_SECONDS = 15.0
#: The most findings that are printed; the data folder has all of them.
PRINTED_FINDINGS = 20
#: The columns of the table.
COLUMNS = (
    "faults",
    "turns",
    "confirmed",
    "kills, pauses",
    *BREACHES,
    "unknown",
    "repeated",
    "p50 / p99 / longest wait",
)


class ProcessMemory(NamedTuple):
    """The resident memory of one process."""

    name: str
    #: Megabytes when the process had imported everything it needs.
    warm_mb: float
    #: Megabytes at the end of the simulation.
    end_mb: float


@dataclass(frozen=True, slots=True)
class Memory:
    """The measured memory of a simulation."""

    #: The processes that lived from the first measurement to the end.
    processes: Sequence[ProcessMemory] = ()
    #: By how many bytes Redis grew, divided by the number of conversations.
    redis_bytes_each: float = 0.0

    @property
    def grown_mb(self) -> float:
        """The megabytes by which the process grew that grew most; 0 without processes."""
        growths = [process.end_mb - process.warm_mb for process in self.processes]
        return max(growths, default=0.0)


@dataclass(slots=True)
class MemoryMeter:
    """Measures the memory of a bot during one simulation.

    Make it when the simulation begins (`began`, on the monotonic clock), call `update` now and
    then, and `read` at the end.
    """

    bot: BotProcesses
    began: float
    #: The memory that Redis used at the beginning, in bytes.
    redis_bytes: int = 0
    #: The megabytes of each warm process, by process id; empty until they are warm.
    warm: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.redis_bytes = self.bot.redis.used_bytes()

    def update(self, now: float) -> None:
        """Measure once, when the processes are warm and Redis knows the workers."""
        if self.warm or now < self.began + WARM_SECONDS:
            return
        if self.bot.workers.at_work():
            self.warm = {pid: _resident_mb(pid) for _, pid in self._processes()}

    def read(self, conversations: int) -> Memory:
        """Return the measurement. Raises RedisError."""
        processes = [
            ProcessMemory(name, self.warm[pid], _resident_mb(pid))
            for name, pid in self._processes()
            if pid in self.warm
        ]
        grown_bytes = self.bot.redis.used_bytes() - self.redis_bytes
        return Memory(processes, grown_bytes / conversations)

    def _processes(self) -> list[tuple[str, int]]:
        """Return the name and the process id of each web and worker process."""
        webs = [("web", web.process.pid) for web in self.bot.webs if web.process]
        workers = [("worker", pid) for pid in sorted(self.bot.workers.at_work())]
        return [*webs, *workers]


def _resident_mb(pid: int) -> float:
    """Return the resident memory of a process in megabytes; 0 if it has just ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    if "VmRSS:" in status:
        kilobytes = status.partition("VmRSS:")[2].split()[0]
        return int(kilobytes) / 1024
    return 0.0


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """What one simulation counted. All times are of the monotonic clock."""

    profile: Profile
    #: What the judge counted and found.
    result: SimulationResult
    #: How often a fault may have interrupted a worker.
    interruptions: int
    #: The number of faults, by name.
    faults: Counter[str] = field(default_factory=Counter)
    #: The number of responses to webhooks, by HTTP status; 0 is no response.
    http: Counter[int] = field(default_factory=Counter)
    #: How many replies of Redis the proxy lost.
    lost_replies: int = 0
    #: The number of sends that a platform failed on purpose, by error.
    failed_sends: Counter[str] = field(default_factory=Counter)
    #: The number of sends before the pause that the platform asked for was over.
    impatient: int = 0
    #: How long people began new stories, in seconds.
    seconds: float = 0.0
    #: How often a webhook was delivered again.
    deliveries_repeated: int = 0
    #: The number of 503 that did not say when to try again.
    without_retry_after: int = 0
    #: The names of planned faults that never happened.
    never_done: Sequence[str] = ()
    #: What is known of the outage of Redis, if there was one.
    outage: OutageRecord = field(default_factory=OutageRecord)
    #: How long each accepted webhook took, in seconds.
    webhook_seconds: Sequence[float] = ()
    #: When something was killed, by what it was: "redis" or "machine".
    killed_at: Mapping[str, Sequence[float]] = field(default_factory=dict)
    memory: Memory = field(default_factory=Memory)

    @property
    def unknown(self) -> int:
        """The number of confirmed actions whose outcome is unknown in the end."""
        return self.result.endings["unknown"]

    @property
    def _uncertain_sends(self) -> int:
        """The number of failed sends that may have arrived all the same."""
        return sum(self.failed_sends[error] for error in ("drop", "lost", "503"))

    @property
    def _waiting_at_crashes(self) -> int:
        """The number of acts that waited for an answer when Redis or a machine went away.

        An act counts once for each crash.
        """
        crashes = list(self.killed_at.get("machine", ()))
        if self.outage.began:
            crashes.append(self.outage.began)
        return sum(self._count_waiting(crash) for crash in crashes)

    def _count_waiting(self, moment: float) -> int:
        """Return the number of acts that waited for an answer at a moment."""
        return sum(sent_at < moment < answered_at for sent_at, answered_at in self.result.answered)

    @property
    def _acts_touched_by_outage(self) -> int:
        """The number of acts that were sent or waited during the outage of Redis.

        Their questions may have closed meanwhile.
        """
        outage = self.outage
        return sum(
            sent_at < outage.back and answered_at > outage.began
            for sent_at, answered_at in self.result.answered
        )

    @property
    def _has_faults(self) -> bool:
        """Whether any fault happened that may stop a worker or lose a platform's answer."""
        count = self.interruptions + self.lost_replies + self._uncertain_sends
        return count + self.faults.total() > 0

    @property
    def broken(self) -> list[str]:
        """The broken promises, one line each."""
        result = self.result
        lines = [f"{name}: {result.count(name)}" for name in BREACHES if result.count(name)]
        if self.impatient:
            lines.append(f"sent again before the platform allowed it: {self.impatient}")

        allowed = self.profile.statuses
        unexpected = [status for status in self.http if status not in allowed]
        if unexpected:
            lines.append(f"webhooks: {_http({status: self.http[status] for status in unexpected})}")
        if self.without_retry_after:
            lines.append(f"HTTP 503 without Retry-After: {self.without_retry_after}")
        if self.faults[PROCESSES_ENDED] and (
            self.profile.full_every or self.profile.outage_seconds
        ):
            lines.append(f"processes that ended for want of Redis: {self.faults[PROCESSES_ENDED]}")

        # While Redis is away, a web with a spool takes every message, and one without takes none.
        due_status = 200 if self.profile.spool else 503
        for status, count in self.outage.statuses.items():
            if status != due_status:
                lines.append(f"HTTP {status} while Redis was away: {count}")
        return lines

    @property
    def exceeded(self) -> list[str]:
        """The exceeded limits on what faults may cost, one line each.

        Also the planned faults and counts that were not reached, because a run without them shows
        nothing.
        """
        lines = [
            f"{fault}: never happened, so nothing was shown; run for longer"
            for fault in self._missing_faults()
        ]
        amounts = self._amounts()
        for name, least in self.profile.at_least.items():
            if amounts[name] < least:
                lines.append(f"{name}: {amounts[name]:,}, too few: {least:,} were asked for")
        lines += self._unexplained_outcomes()
        lines += self._excess_repeats()
        if self.outage.drained_seconds > DRAINED_SECONDS:
            lines.append(f"spool: empty {self.outage.drained_seconds:.0f} s after Redis was back")
        for figure in self._figures():
            if figure.value > figure.limit:
                lines.append(
                    f"{figure.name}: {figure.value:,.0f}, and {figure.limit:,.0f} is promised"
                )
        return lines

    def _unexplained_outcomes(self) -> list[str]:
        """Return a line for each bad outcome that happened more often than faults explain."""
        lines = []
        explained = self.interruptions + self._waiting_at_crashes
        if self.unknown > explained:
            lines.append(f"unknown: {self.unknown}, and only {explained} hits")
        explained = self.interruptions + self._acts_touched_by_outage
        if self.result.undone > explained:
            lines.append(f"undone: {self.result.undone}, and only {explained} hits")
        if self.result.marked and not self._has_faults:
            lines.append(f"marked: {self.result.marked}, and there was no fault")
        return lines

    def _excess_repeats(self) -> list[str]:
        """Return the exceeded limits on repeated replies."""
        lines = []
        repeated = self.result.repeated
        replies = self.result.replies
        explained = self.interruptions + self._waiting_at_crashes
        explained += self.lost_replies + self._uncertain_sends
        if repeated > explained:
            lines.append(f"repeated: {repeated}, more than there were faults")

        # The share is promised only where the next worker can know what has arrived: workers of one
        # machine share their receipts, and no platform fails a send that it has accepted.
        is_known = not self._uncertain_sends and self.profile.machines == 1
        if is_known and replies >= MANY_REPLIES and repeated > REPEATED_SHARE * replies:
            lines.append(f"repeated: {repeated} of {replies} replies, above {REPEATED_SHARE:.1%}")
        return lines

    def _amounts(self) -> Counter[str]:
        """Return the counts that `at_least` of a profile can name: the faults and four more."""
        other_counts = Counter(
            {
                "confirmed": self.result.confirmed,
                "decided by others": self.result.by_others,
                "deliveries": self.http[200],
                "lost replies": self.lost_replies,
                "acts in the outage": len(self._outage_answers),
            }
        )
        return self.faults + other_counts

    @property
    def _outage_answers(self) -> list[float]:
        """The times of the answers to acts that were done while Redis was away."""
        outage = self.outage
        return [
            answered_at
            for sent_at, answered_at in self.result.answered
            if outage.began <= sent_at < outage.back
        ]

    def _missing_faults(self) -> list[str]:
        """Return the names of the planned faults that did not happen."""
        profile = self.profile
        missing = list(self.never_done)
        if profile.outage_seconds and not self.outage.began:
            missing.append("outage")
        if profile.lost_replies and not self.lost_replies:
            missing.append("lost replies")
        if profile.repeated_webhooks and not self.deliveries_repeated:
            missing.append("repeated webhooks")
        if profile.failing_platforms and not self.failed_sends.total():
            missing.append("failing platforms")
        if profile.measures == "recovery":
            missing += [
                f"waiting when {part} is killed"
                for part in self.killed_at
                if not self._recovery_seconds(part)
            ]
        return missing

    def _figures(self) -> list[_Figure]:
        """Return the measurements for which the profile promises a limit."""
        if self.profile.measures == "size":
            each = self.memory.redis_bytes_each
            return [_Figure("bytes of Redis for each conversation", each, CONVERSATION_BYTES)]
        if self.profile.measures == "speed":
            missing_rate = self.profile.turns_per_second * MIN_RATE_SHARE - self._per_second
            return [
                _Figure(
                    "milliseconds in which 99 % of webhooks were answered",
                    self._webhook_ms(0.99),
                    WEBHOOK_MS,
                ),
                _Figure(
                    "milliseconds to the first sign of life for 99 %",
                    self._pick_up_ms(0.99),
                    PICK_UP_MS,
                ),
                _Figure("MB by which a process grew", self.memory.grown_mb, MAX_GROWTH_MB),
                _Figure("turns a second below the rate", missing_rate, 0.0),
            ]
        if self.profile.measures == "recovery":
            return [
                _Figure(
                    f"seconds to answer all that waited when {part} was killed",
                    self._recovery_seconds(part),
                    RECOVERY_SECONDS[part],
                )
                for part in self.killed_at
            ]
        return []

    def _recovery_seconds(self, part: str) -> float:
        """Return the longest time from a kill of a part to the answer of an act before it."""
        longest = 0.0
        for killed_at in self.killed_at[part]:
            for sent_at, answered_at in self.result.answered:
                if sent_at < killed_at < answered_at:
                    longest = max(longest, answered_at - killed_at)
        return longest

    def _webhook_ms(self, share: float) -> float:
        """Return the milliseconds within which this share of the webhooks was answered."""
        return percentile(self.webhook_seconds, share) * 1000

    def _pick_up_ms(self, share: float) -> float:
        """Return the milliseconds within which this share of the acts got a sign of life."""
        return percentile(self.result.picked_up, share) * 1000

    @property
    def _per_second(self) -> float:
        """The turns a second."""
        return self.result.turns / max(1.0, self.seconds)

    def row(self) -> list[str]:
        """Return the row of the table, in the order of `COLUMNS`."""
        result = self.result
        repeated_share = result.repeated / max(1, result.replies)
        waits = " / ".join(f"{result.wait(share):.1f}" for share in (0.5, 0.99, 1.0))
        return [
            self.profile.description(),
            str(result.turns),
            str(result.confirmed),
            str(self.interruptions),
            *(str(result.count(name)) for name in BREACHES),
            str(self.unknown),
            f"{result.repeated} ({repeated_share:.2%})",
            f"{waits} s",
        ]

    def as_json(self) -> dict[str, Any]:
        """Return the row of the table, the seed, and what was broken or cost too much."""
        result = self.result
        return {
            "faults": self.profile.description(),
            "seed": self.profile.seed,
            "seconds": round(self.seconds),
            "turns": result.turns,
            "confirmed": result.confirmed,
            "interruptions": self.interruptions,
            "promises": {name: result.count(name) for name in BREACHES},
            "unknown": self.unknown,
            "repeated": result.repeated,
            "wait_seconds": [round(result.wait(share), 1) for share in (0.5, 0.99, 1.0)],
            "broken": self.broken,
            "exceeded": self.exceeded,
        }

    def details(self) -> list[str]:
        """Return what does not fit into the table, as lines."""
        result = self.result
        faults = ", ".join(f"{name} {count}" for name, count in self.faults.items() if count)
        endings = ", ".join(f"{name} {count}" for name, count in result.endings.most_common())
        lines = [
            f"{self.seconds:.0f} s, {self._per_second:.0f} turns a second; "
            f"seed {self.profile.seed}",
            f"done to it: {faults or 'nothing'}; replies of Redis lost: {self.lost_replies}",
            f"webhooks: {_http(self.http)}; of these repeated: {self.deliveries_repeated}",
            f"decisions ended: {endings or 'none'}; "
            f"agreed to in time, and nothing done: {result.undone}",
            f"requests of several steps that went on: {result.requests}",
            f"replies that say they may be repeats: {result.marked}",
        ]
        if result.by_others:
            lines.append(
                f"actions that other people decided: {result.by_others}, "
                f"of these agreed to: {result.agreed_by_others}"
            )
        if result.dropped:
            lines.append(f"taps of strangers dropped, beyond their limit: {result.dropped}")
        failures = ", ".join(f"{name} {count}" for name, count in self.failed_sends.most_common())
        if failures:
            lines.append(f"sends that platforms failed: {failures}")
        return [*lines, *self._measured_lines(), *self._outage_lines()]

    def _measured_lines(self) -> list[str]:
        """Return the speed, the memory when warm and at the end, and the time to recover."""
        webhooks = " / ".join(f"{self._webhook_ms(share):.0f}" for share in (0.5, 0.99))
        pick_up = " / ".join(f"{self._pick_up_ms(share):.0f}" for share in (0.5, 0.99))
        lines = [
            f"p50 / p99: webhooks answered in {webhooks} ms, first sign of life {pick_up} ms later"
        ]
        processes = ", ".join(
            f"{process.name} {process.warm_mb:.0f} to {process.end_mb:.0f}"
            for process in self.memory.processes
        )
        if processes:
            lines.append(f"MB: {processes}")
        lines.append(f"Redis: {self.memory.redis_bytes_each:,.0f} bytes for each conversation")
        for part in self.killed_at:
            seconds = self._recovery_seconds(part)
            lines.append(f"what waited when {part} was killed was answered within {seconds:.1f} s")
        return lines

    def _outage_lines(self) -> list[str]:
        """Return what happened in an outage; empty if there was none."""
        began = self.outage.began
        back = self.outage.back
        if not began:
            return []
        answers = self._outage_answers
        http = _http(self.outage.statuses)
        spool_seconds = self.outage.drained_seconds
        last_seconds = max([back, *answers]) - back
        return [
            f"Redis away for {back - began:.0f} s: {len(answers)} acts, webhooks {http}; "
            f"then the spool was empty after {spool_seconds:.1f} s "
            f"and everything answered after {last_seconds:.1f} s"
        ]

    def evidence(self) -> list[str]:
        """Return the first findings of the judge, one line each."""
        return [
            f"{finding.kind}: {finding.chat}, turn {finding.number}: {finding.text}"
            for finding in self.result.findings[:PRINTED_FINDINGS]
        ]


class _Figure(NamedTuple):
    """A measurement and the most that it may be."""

    name: str
    value: float
    limit: float


def _http(statuses: Mapping[int, int]) -> str:
    """Return counts of HTTP statuses in words, such as "200 12, 503 1"."""
    return ", ".join(
        f"{status or 'no answer'} {count}" for status, count in sorted(statuses.items())
    )


def table(reports: Sequence[SimulationReport], *, markdown: bool = False) -> str:
    """Return a table with one line for each simulation.

    In plain text the columns are padded, and the faults, whose description is long, come last.
    """
    rows = [list(COLUMNS), *(report.row() for report in reports)]
    if markdown:
        rows.insert(1, ["---"] * len(COLUMNS))
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)

    reordered = [[*row[1:], row[0]] for row in rows]
    widths = [max(len(row[column]) for row in reordered) for column in range(len(COLUMNS))]
    lines = []
    for row in reordered:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
