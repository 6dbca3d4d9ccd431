"""The report of a simulation: its counts, the broken promises, the memory used,
and the table that is printed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sayso.testing.simulation.faults import OutageRecord
from sayso.testing.simulation.judge import SimulationResult, percentile
from sayso.testing.simulation.processes import Machine
from sayso.testing.simulation.profile import Profile

#: What must never happen, as judge.py names it and as the table heads it.
PROMISES = ("lost", "doubled", "unwanted", "out of order", "untold", "untrue", "unmarked", "stray")
#: From this number of replies on, at most this share may be repeated; with fewer,
#: at most one for each hit.
MANY_REPLIES = 10_000
REPEATED_SHARE = 0.001
#: How long the spool may take to empty after an outage, in seconds.
DRAINED_SECONDS = 60.0
#: Promises of speed: milliseconds within which 99 % of webhooks are answered and then picked up; MB
#: by which a process may grow; the share of the rate that must be reached.
WEBHOOK_MS = 100.0
PICK_UP_MS = 500.0
GROWN_MB = 50.0
KEPT_RATE = 0.9
#: Promise of size: bytes of Redis for each conversation.
CONVERSATION_BYTES = 3072.0
#: Promise of recovery: seconds after a kill until everything that waited is answered.
RECOVERY_SECONDS = {"redis": 10.0, "machine": 15.0}
#: Seconds after which processes have imported everything they need:
#: memory is compared from there on.
WARM_SECONDS = 15.0
#: Findings that are printed; the data folder has all of them.
PRINTED_FINDINGS = 20
#: The columns of the table.
COLUMNS = (
    "faults",
    "turns",
    "confirmed",
    "kills, pauses",
    *PROMISES,
    "unknown",
    "repeated",
    "p50 / p99 / longest wait",
)


@dataclass(frozen=True, slots=True)
class Memory:
    """The measured memory.

    `processes` holds name, MB when warm and MB at the end, of those that lived so long.
    """

    processes: Sequence[tuple[str, float, float]] = ()
    redis_bytes_each: float = 0.0

    @property
    def grown_mb(self) -> float:
        """The MB by which the process grew that grew most."""
        return max((end - warm for _, warm, end in self.processes), default=0.0)


@dataclass(slots=True)
class MemoryMeter:
    """Measures the memory of a machine. Call `update` now and then, and `read` at the end."""

    machine: Machine
    began: float
    redis_bytes: int = 0
    warm: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.redis_bytes = self.machine.redis.used_bytes()

    def update(self, now: float) -> None:
        """Measure once, when the processes are warm and Redis knows the workers."""
        if not self.warm and now >= self.began + WARM_SECONDS and self.machine.workers.at_work():
            self.warm = {pid: _resident_mb(pid) for _, pid in self._processes()}

    def read(self, conversations: int) -> Memory:
        """Return the measurement. Raises RedisError."""
        lived = [(name, pid) for name, pid in self._processes() if pid in self.warm]
        processes = [(name, self.warm[pid], _resident_mb(pid)) for name, pid in lived]
        return Memory(
            processes, (self.machine.redis.used_bytes() - self.redis_bytes) / conversations
        )

    def _processes(self) -> list[tuple[str, int]]:
        webs = [("web", web.process.pid) for web in self.machine.webs if web.process]
        return [*webs, *(("worker", pid) for pid in sorted(self.machine.workers.at_work()))]


def _resident_mb(pid: int) -> float:
    """Return the resident memory of a process in MB; 0 if it has just ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    if "VmRSS:" in status:
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024
    return 0.0


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """The counts of one simulation.

    `hits` is how often the work of a worker may have been interrupted.

    `killed_at` holds the times of kills, by part, after which
    everything must continue within seconds.
    """

    profile: Profile
    result: SimulationResult
    hits: int
    faults: Counter[str] = field(default_factory=Counter)
    http: Counter[int] = field(default_factory=Counter)
    lost_replies: int = 0
    failed_sends: Counter[str] = field(default_factory=Counter)
    impatient: int = 0
    seconds: float = 0.0
    deliveries_repeated: int = 0
    without_retry_after: int = 0
    never_done: Sequence[str] = ()
    outage: OutageRecord = field(default_factory=OutageRecord)
    webhook_seconds: Sequence[float] = ()
    killed_at: Mapping[str, Sequence[float]] = field(default_factory=dict)
    memory: Memory = field(default_factory=Memory)

    @property
    def unknown(self) -> int:
        """The number of confirmed actions whose outcome is unknown in the end."""
        return self.result.endings["unknown"]

    @property
    def _cut_sends(self) -> int:
        """The number of failed sends that may have arrived all the same."""
        return sum(self.failed_sends[error] for error in ("drop", "lost", "503"))

    @property
    def _interrupted(self) -> int:
        """The number of acts that waited for an answer when Redis or a machine went away."""
        moments = [
            *([self.outage.began] if self.outage.began else []),
            *self.killed_at.get("machine", ()),
        ]
        return sum(
            sent_at < at < answered_at
            for at in moments
            for sent_at, answered_at in self.result.answered
        )

    @property
    def _met_outage(self) -> int:
        """The number of acts during an outage of Redis; their question may have closed meanwhile."""
        outage = self.outage
        return sum(
            sent_at < outage.back and answered_at > outage.began
            for sent_at, answered_at in self.result.answered
        )

    @property
    def _is_broken(self) -> bool:
        """Whether any fault happened that may lose a worker or a platform's answer."""
        return self.hits + self.lost_replies + self._cut_sends + sum(self.faults.values()) > 0

    @property
    def broken(self) -> list[str]:
        """The broken promises, one line each."""
        lines = [f"{name}: {count}" for name in PROMISES if (count := self.result.count(name))]
        lines += (
            [f"sent again before the platform allowed it: {self.impatient}"]
            if self.impatient
            else []
        )
        odd = {
            status: count
            for status, count in self.http.items()
            if status not in self.profile.statuses
        }
        lines += [f"webhooks: {_http(Counter(odd))}"] if odd else []
        lines += (
            [f"HTTP 503 without Retry-After: {self.without_retry_after}"]
            if self.without_retry_after
            else []
        )
        if self.faults["ended"] and (self.profile.full_every or self.profile.outage_seconds):
            lines.append(f"processes that ended for want of Redis: {self.faults['ended']}")
        due = 200 if self.profile.spool else 503
        strange = {status: count for status, count in self.outage.statuses.items() if status != due}
        return [
            *lines,
            *(f"HTTP {status} while Redis was away: {count}" for status, count in strange.items()),
        ]

    @property
    def exceeded(self) -> list[str]:
        """The exceeded limits on what faults may cost, one line each."""
        repeated = self.result.repeated
        replies = self.result.replies
        lines = [
            f"{fault}: never happened, so nothing was shown; run for longer"
            for fault in self._missing
        ]
        amounts = self._amounts()
        lines += [
            f"{name}: {amounts[name]:,}, too few: {least:,} were asked for"
            for name, least in self.profile.at_least.items()
            if amounts[name] < least
        ]
        if self.unknown > self.hits + self._interrupted:
            lines.append(f"unknown: {self.unknown}, and only {self.hits + self._interrupted} hits")
        if self.result.undone > self.hits + self._met_outage:
            lines.append(
                f"undone: {self.result.undone}, and only {self.hits + self._met_outage} hits"
            )
        if self.result.marked and not self._is_broken:
            lines.append(f"marked: {self.result.marked}, and there was no fault")
        if repeated > self.hits + self._interrupted + self.lost_replies + self._cut_sends:
            lines.append(f"repeated: {repeated}, more than there were faults")
        # The next worker can know what has arrived.
        certain = not self._cut_sends and self.profile.machines == 1
        if replies >= MANY_REPLIES and certain and repeated > REPEATED_SHARE * replies:
            lines.append(f"repeated: {repeated} of {replies} replies, above {REPEATED_SHARE:.1%}")
        if self.outage.drained_seconds > DRAINED_SECONDS:
            lines.append(f"spool: empty {self.outage.drained_seconds:.0f} s after Redis was back")
        return [
            *lines,
            *(
                f"{figure}: {value:,.0f}, and {bound:,.0f} is promised"
                for figure, value, bound in self._figures()
                if value > bound
            ),
        ]

    def _amounts(self) -> Counter[str]:
        """Return the counts that a profile can require: the faults and four more."""
        confirmed = self.result.confirmed
        accepted = self.http[200]
        during = len(self._during_outage)
        return self.faults + Counter(
            confirmed=confirmed,
            deliveries=accepted,
            **{"lost replies": self.lost_replies, "acts in the outage": during},
        )

    @property
    def _during_outage(self) -> list[float]:
        """The times of the answers to acts that were done while Redis was away."""
        outage = self.outage
        return [
            answered_at
            for sent_at, answered_at in self.result.answered
            if outage.began <= sent_at < outage.back
        ]

    @property
    def _missing(self) -> list[str]:
        """The planned faults that did not happen."""
        done: dict[str, tuple[float, float]] = {
            "outage": (self.profile.outage_seconds, self.outage.began),
            "lost replies": (self.profile.lost_replies, self.lost_replies),
            "repeated webhooks": (self.profile.repeated_webhooks, self.deliveries_repeated),
            "failing platforms": (self.profile.failing_platforms, self.failed_sends.total()),
        }
        if self.profile.measures == "recovery":
            done |= {
                f"waiting when {part} is killed": (1, self._recovery(part))
                for part in self.killed_at
            }
        return [
            *self.never_done,
            *(fault for fault, (planned, count) in done.items() if planned and not count),
        ]

    def _figures(self) -> list[tuple[str, float, float]]:
        """Return the measurements that the profile promises: name, value, and limit."""
        slow = self.profile.turns_per_second * KEPT_RATE - self._per_second
        each = (
            "bytes of Redis for each conversation",
            self.memory.redis_bytes_each,
            CONVERSATION_BYTES,
        )
        speed = [
            (
                "milliseconds in which 99 % of webhooks were answered",
                self._webhook_ms(0.99),
                WEBHOOK_MS,
            ),
            ("milliseconds to the first sign of life for 99 %", self._pick_up_ms(0.99), PICK_UP_MS),
            ("MB by which a process grew", self.memory.grown_mb, GROWN_MB),
            ("turns a second below the rate", slow, 0.0),
        ]
        recovery = [
            (
                f"seconds to answer all that waited when {part} was killed",
                self._recovery(part),
                RECOVERY_SECONDS[part],
            )
            for part in self.killed_at
        ]
        return {"": [], "size": [each], "speed": speed, "recovery": recovery}[self.profile.measures]

    def _recovery(self, part: str) -> float:
        """Return the longest time from the kill of a part to the answer of something sent before,
        in seconds.
        """
        waits = [
            answered_at - killed_at
            for killed_at in self.killed_at[part]
            for sent_at, answered_at in self.result.answered
            if sent_at < killed_at < answered_at
        ]
        return max(waits, default=0.0)

    def _webhook_ms(self, share: float) -> float:
        return percentile(self.webhook_seconds, share) * 1000

    def _pick_up_ms(self, share: float) -> float:
        return percentile(self.result.picked_up, share) * 1000

    @property
    def _per_second(self) -> float:
        return self.result.turns / max(1.0, self.seconds)

    def row(self) -> list[str]:
        """Return the row of the table."""
        result = self.result
        share = f"{result.repeated} ({result.repeated / max(1, result.replies):.2%})"
        waits = " / ".join(f"{result.wait(share):.1f}" for share in (0.5, 0.99, 1.0))
        counts = [f"{result.count(name)}" for name in PROMISES]
        return [
            self.profile.description(),
            str(result.turns),
            str(result.confirmed),
            str(self.hits),
            *counts,
            str(self.unknown),
            share,
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
            "interruptions": self.hits,
            "promises": {name: result.count(name) for name in PROMISES},
            "unknown": self.unknown,
            "repeated": result.repeated,
            "wait_seconds": [round(result.wait(share), 1) for share in (0.5, 0.99, 1.0)],
            "broken": self.broken,
            "exceeded": self.exceeded,
        }

    def details(self) -> list[str]:
        """Return what does not fit into the table, as lines."""
        result = self.result
        done = (
            ", ".join(f"{name} {count}" for name, count in self.faults.items() if count)
            or "nothing"
        )
        endings = ", ".join(f"{name} {count}" for name, count in result.endings.most_common())
        lines = [
            f"{self.seconds:.0f} s, {self._per_second:.0f} turns a second; seed {self.profile.seed}",
            f"done to it: {done}; replies of Redis lost: {self.lost_replies}",
            f"webhooks: {_http(self.http)}; of these repeated: {self.deliveries_repeated}",
            f"decisions ended: {endings or 'none'}; agreed to in time, and nothing done: {result.undone}",
            f"requests of several steps that went on: {result.requests}",
            f"replies that say they may be repeats: {result.marked}",
        ]
        if result.dropped:
            lines.append(f"taps of strangers dropped, beyond their limit: {result.dropped}")
        failures = ", ".join(f"{name} {count}" for name, count in self.failed_sends.most_common())
        if failures:
            lines.append(f"sends that platforms failed: {failures}")
        return [*lines, *self._measured(), *self._away()]

    def _measured(self) -> list[str]:
        """Return the speed, and the memory when warm and at the end."""
        webhooks = " / ".join(f"{self._webhook_ms(share):.0f}" for share in (0.5, 0.99))
        pick_up = " / ".join(f"{self._pick_up_ms(share):.0f}" for share in (0.5, 0.99))
        lines = [
            f"p50 / p99: webhooks answered in {webhooks} ms, first sign of life {pick_up} ms later"
        ]
        grown = ", ".join(
            f"{name} {warm:.0f} to {end:.0f}" for name, warm, end in self.memory.processes
        )
        lines += [f"MB: {grown}"] if grown else []
        lines += [f"Redis: {self.memory.redis_bytes_each:,.0f} bytes for each conversation"]
        return lines + [
            f"what waited when {part} was killed was answered within {self._recovery(part):.1f} s"
            for part in self.killed_at
        ]

    def _away(self) -> list[str]:
        """Return what happened in an outage, if there was one."""
        began = self.outage.began
        back = self.outage.back
        if not began:
            return []
        during = self._during_outage
        http = _http(self.outage.statuses)
        drained = self.outage.drained_seconds
        last = max([back, *during]) - back
        return [
            f"Redis away for {back - began:.0f} s: {len(during)} acts, webhooks {http}; "
            f"then the spool was empty after {drained:.1f} s and everything answered after {last:.1f} s"
        ]

    def evidence(self) -> list[str]:
        """Return the first findings, one line each."""
        return [
            f"{finding.promise}: {finding.chat}, turn {finding.number}: {finding.text}"
            for finding in self.result.findings[:PRINTED_FINDINGS]
        ]


def _http(statuses: Counter[int]) -> str:
    return ", ".join(
        f"{status or 'no answer'} {count}" for status, count in sorted(statuses.items())
    )


def table(reports: Sequence[SimulationReport], *, markdown: bool = False) -> str:
    """Return one line for each simulation.

    In plain text, columns are padded and the faults come last.
    """
    rows = [list(COLUMNS), *(report.row() for report in reports)]
    if markdown:
        rows.insert(1, ["---"] * len(COLUMNS))
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)
    reordered = [[*row[1:], row[0]] for row in rows]
    widths = [max(len(row[column]) for row in reordered) for column in range(len(COLUMNS))]
    return "\n".join(
        "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip()
        for row in reordered
    )
