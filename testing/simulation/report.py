"""Report: what one simulation counted, which promises it held, and how that is printed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sayso.testing.simulation.faults import Away
from sayso.testing.simulation.judge import Review, percentile
from sayso.testing.simulation.plan import Plan
from sayso.testing.simulation.processes import Memory

#: What must never happen, as review.py names it, and as the table heads it.
PROMISES = ("lost", "doubled", "unwanted", "out of order", "untold", "untrue", "unmarked", "stray")
#: Of so many replies on, repeated ones are at most this share of all; below, at most the hits.
MANY_REPLIES, REPEATED_SHARE = 10_000, 0.001
#: Seconds in which the spool is empty after an outage.
DRAINED_SECONDS = 60.0
#: Where speed is promised: milliseconds in which 99 of 100 webhooks are answered, and then work on them begins; MB that
#: a process grows by; the share of the rate that is reached.
WEBHOOK_MS, PICK_UP_MS, GROWN_MB, KEPT_RATE = 100.0, 500.0, 50.0, 0.9
#: Where size is promised: bytes that Redis keeps of each conversation.
EACH_BYTES = 3072.0
#: Where recovery is promised: seconds from the end of a part until everything is answered that waited then.
RECOVERY_SECONDS = {"redis": 10.0, "machine": 15.0}
#: Findings that are printed; all are in the data folder.
SHOWN = 20
#: The columns of the table.
COLUMNS = (
    "faults", "turns", "confirmed", "kills, pauses", *PROMISES, "unknown", "repeated", "p50 / p99 / longest wait",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """One simulation. `hits` are the moments at which something was taken out of a worker's hands.

    `killed_at` are the moments, by part, at which one was killed after which all must go on within seconds.
    """

    plan: Plan
    review: Review
    hits: int
    faults: Counter[str] = field(default_factory=Counter)
    http: Counter[int] = field(default_factory=Counter)
    lost_replies: int = 0
    failed_sends: Counter[str] = field(default_factory=Counter)
    impatient: int = 0
    seconds: float = 0.0
    deliveries_repeated: int = 0
    curt: int = 0
    never_done: Sequence[str] = ()
    away: Away = field(default_factory=Away)
    webhook_seconds: Sequence[float] = ()
    killed_at: Mapping[str, Sequence[float]] = field(default_factory=dict)
    memory: Memory = field(default_factory=Memory)

    @property
    def unknown(self) -> int:
        """Confirmed actions of which nobody could tell in the end whether they were done."""
        return self.review.endings["unknown"]

    @property
    def _cut_sends(self) -> int:
        """Sends that may have arrived: only the platform knows."""
        return sum(self.failed_sends[error] for error in ("drop", "lost", "503"))

    @property
    def _interrupted(self) -> int:
        """Acts that waited for their answers when Redis went away for long, or a machine: each worker held many."""
        moments = [*([self.away.began] if self.away.began else []), *self.killed_at.get("machine", ())]
        return sum(sent_at < at < heard_at for at in moments for sent_at, heard_at in self.review.answered)

    @property
    def _met_outage(self) -> int:
        """Acts that waited for their answers, or came, while Redis was away for long: a question may be over then."""
        away = self.away
        return sum(sent_at < away.back and heard_at > away.began for sent_at, heard_at in self.review.answered)

    @property
    def _is_broken(self) -> bool:
        """Whether anything was done that may make a worker, or a platform's answer, go missing."""
        return self.hits + self.lost_replies + self._cut_sends + sum(self.faults.values()) > 0

    @property
    def broken(self) -> list[str]:
        """Every promise that was not held, in words."""
        words = [f"{name}: {count}" for name in PROMISES if (count := self.review.count(name))]
        words += [f"sent again before the platform allowed it: {self.impatient}"] if self.impatient else []
        odd = {status: count for status, count in self.http.items() if status not in self.plan.statuses}
        words += [f"webhooks: {_http(Counter(odd))}"] if odd else []
        words += [f"HTTP 503 without Retry-After: {self.curt}"] if self.curt else []
        if self.faults["ended"] and (self.plan.full or self.plan.outage):
            words.append(f"processes that ended for want of Redis: {self.faults['ended']}")
        due = 200 if self.plan.spool else 503
        strange = {status: count for status, count in self.away.statuses.items() if status != due}
        return [*words, *(f"HTTP {status} while Redis was away: {count}" for status, count in strange.items())]

    @property
    def exceeded(self) -> list[str]:
        """Every bound on what faults may cost that was passed, in words."""
        repeated, replies = self.review.repeated, self.review.replies
        words = [f"{fault}: never happened, so nothing was shown; run for longer" for fault in self._missing]
        amounts = self._amounts()
        words += [
            f"{name}: {amounts[name]:,}, too few: {least:,} were asked for"
            for name, least in self.plan.least.items()
            if amounts[name] < least
        ]
        if self.unknown > self.hits + self._interrupted:
            words.append(f"unknown: {self.unknown}, and only {self.hits + self._interrupted} hits")
        if self.review.undone > self.hits + self._met_outage:
            words.append(f"undone: {self.review.undone}, and only {self.hits + self._met_outage} hits")
        if self.review.marked and not self._is_broken:
            words.append(f"marked: {self.review.marked}, and there was no fault")
        if repeated > self.hits + self._interrupted + self.lost_replies + self._cut_sends:
            words.append(f"repeated: {repeated}, more than there were faults")
        told = not self._cut_sends and self.plan.machines == 1  # whoever goes on can know what has arrived
        if replies >= MANY_REPLIES and told and repeated > REPEATED_SHARE * replies:
            words.append(f"repeated: {repeated} of {replies} replies, above {REPEATED_SHARE:.1%}")
        if self.away.drained_seconds > DRAINED_SECONDS:
            words.append(f"spool: empty {self.away.drained_seconds:.0f} s after Redis was back")
        return [
            *words,
            *(
                f"{figure}: {value:,.0f}, and {bound:,.0f} is promised"
                for figure, value, bound in self._figures()
                if value > bound
            ),
        ]

    def _amounts(self) -> Counter[str]:
        """How much there was of what a plan can ask for, beside the faults."""
        confirmed, taken, during = self.review.confirmed, self.http[200], len(self._during_outage)
        return self.faults + Counter(
            confirmed=confirmed, deliveries=taken, **{"lost replies": self.lost_replies, "acts in the outage": during}
        )

    @property
    def _during_outage(self) -> list[float]:
        """When each act was answered that was done while Redis was away."""
        away = self.away
        return [heard_at for sent_at, heard_at in self.review.answered if away.began <= sent_at < away.back]

    @property
    def _missing(self) -> list[str]:
        """What was planned and did not happen."""
        done: dict[str, tuple[float, float]] = {
            "outage": (self.plan.outage, self.away.began),
            "cut": (self.plan.cut, self.lost_replies),
            "redeliver": (self.plan.redeliver, self.deliveries_repeated),
            "flaky platforms": (self.plan.flaky_platforms, self.failed_sends.total()),
        }
        if self.plan.figures == "recovery":
            done |= {f"waiting when {part} is killed": (1, self._recovery(part)) for part in self.killed_at}
        return [*self.never_done, *(fault for fault, (planned, count) in done.items() if planned and not count)]

    def _figures(self) -> list[tuple[str, float, float]]:
        """Speed or size as measured, where the plan promises it: what, how much, and how much it may be."""
        slow = self.plan.rate * KEPT_RATE - self._per_second
        each = ("bytes of Redis for each conversation", self.memory.redis_bytes_each, EACH_BYTES)
        speed = [
            ("milliseconds in which 99 % of webhooks were answered", self._webhook_ms(0.99), WEBHOOK_MS),
            ("milliseconds to the first sign of life for 99 %", self._pick_up_ms(0.99), PICK_UP_MS),
            ("MB by which a process grew", self.memory.grown_mb, GROWN_MB),
            ("turns a second below the rate", slow, 0.0),
        ]
        recovery = [
            (f"seconds to answer all that waited when {part} was killed", self._recovery(part), RECOVERY_SECONDS[part])
            for part in self.killed_at
        ]
        return {"": [], "size": [each], "speed": speed, "recovery": recovery}[self.plan.figures]

    def _recovery(self, part: str) -> float:
        """How long it took at most, after a part was killed, to answer what had been sent before, in seconds."""
        answered = self.review.answered
        return max(
            (heard - at for at in self.killed_at[part] for sent, heard in answered if sent < at < heard), default=0.0
        )

    def _webhook_ms(self, share: float) -> float:
        return percentile(self.webhook_seconds, share) * 1000

    def _pick_up_ms(self, share: float) -> float:
        return percentile(self.review.picked_up, share) * 1000

    @property
    def _per_second(self) -> float:
        return self.review.turns / max(1.0, self.seconds)

    def row(self) -> list[str]:
        """This simulation as a line of the table."""
        found = self.review
        share = f"{found.repeated} ({found.repeated / max(1, found.replies):.2%})"
        waits = " / ".join(f"{found.wait(share):.1f}" for share in (0.5, 0.99, 1.0))
        counts = [f"{found.count(name)}" for name in PROMISES]
        return [
            self.plan.described(), str(found.turns), str(found.confirmed), str(self.hits), *counts, str(self.unknown),
            share, f"{waits} s",
        ]  # fmt: skip

    def details(self) -> list[str]:
        """What the table has no room for, a line each."""
        found = self.review
        done = ", ".join(f"{name} {count}" for name, count in self.faults.items() if count) or "nothing"
        endings = ", ".join(f"{name} {count}" for name, count in found.endings.most_common())
        lines = [
            f"{self.seconds:.0f} s, {self._per_second:.0f} turns a second; seed {self.plan.seed}",
            f"done to it: {done}; replies of Redis lost: {self.lost_replies}",
            f"webhooks: {_http(self.http)}; of these repeated: {self.deliveries_repeated}",
            f"decisions ended: {endings or 'none'}; agreed to in time, and nothing done: {found.undone}",
            f"replies that say they may be repeats: {found.marked}",
        ]
        failures = ", ".join(f"{name} {count}" for name, count in self.failed_sends.most_common())
        lines += [f"sends that platforms failed: {failures}"] if failures else []
        return [*lines, *self._measured(), *self._away()]

    def _measured(self) -> list[str]:
        """Speed, and memory when everything was warm and at the end."""
        webhooks = " / ".join(f"{self._webhook_ms(share):.0f}" for share in (0.5, 0.99))
        pick_up = " / ".join(f"{self._pick_up_ms(share):.0f}" for share in (0.5, 0.99))
        lines = [f"p50 / p99: webhooks answered in {webhooks} ms, first sign of life {pick_up} ms later"]
        grown = ", ".join(f"{name} {warm:.0f} to {end:.0f}" for name, warm, end in self.memory.processes)
        lines += [f"MB: {grown}"] if grown else []
        lines += [f"Redis: {self.memory.redis_bytes_each:,.0f} bytes for each conversation"]
        return lines + [
            f"what waited when {part} was killed was answered within {self._recovery(part):.1f} s"
            for part in self.killed_at
        ]

    def _away(self) -> list[str]:
        """What came of an outage, if there was one."""
        began, back = self.away.began, self.away.back
        if not began:
            return []
        during = self._during_outage
        http, drained, last = _http(self.away.statuses), self.away.drained_seconds, max([back, *during]) - back
        return [
            f"Redis away for {back - began:.0f} s: {len(during)} acts, webhooks {http}; "
            f"then the spool was empty after {drained:.1f} s and everything answered after {last:.1f} s"
        ]

    def evidence(self) -> list[str]:
        """The conversations in which promises were broken."""
        return [
            f"{finding.promise}: {finding.chat}, turn {finding.number}: {finding.words}"
            for finding in self.review.findings[:SHOWN]
        ]


def _http(statuses: Counter[int]) -> str:
    return ", ".join(f"{status or 'no answer'} {count}" for status, count in sorted(statuses.items()))


def table(reports: Sequence[SimulationReport], *, markdown: bool = False) -> str:
    """One line for each simulation; for people, columns are padded and the faults come last."""
    rows = [list(COLUMNS), *(report.row() for report in reports)]
    if markdown:
        rows.insert(1, ["---"] * len(COLUMNS))
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)
    turned = [[*row[1:], row[0]] for row in rows]
    widths = [max(len(row[column]) for row in turned) for column in range(len(COLUMNS))]
    return "\n".join(
        "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in turned
    )
