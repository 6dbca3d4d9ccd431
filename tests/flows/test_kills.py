"""Kills: workers are killed between claim and outcome. One effect at most, and every person gets the true outcome."""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx
import pytest
from redis import Redis

from sayso.channels.i18n.texts import texts_for
from sayso.channels.types import Conversation
from sayso.infra.redis.client import PREFIX
from sayso.testing.platforms import webhooks as signing
from sayso.testing.simulation.outcomes import (
    BillResult,
    BillStatement,
    judge_bill,
    statements_by_bill,
)
from sayso.testing.simulation.tools import EffectEntry, Effects
from sayso.workers.lease import LEASE_MS
from tests.flows import points
from tests.flows.killer import FREEZE, Killer
from tests.flows.system import System, TelegramPerson, until

#: How many confirmations; `make kills` asks for 5,000.
COUNT = int(os.environ.get("SAYSO_KILLS", "120"))
#: The number of kills that a run needs. Where workers finish before the killer strikes, more people confirm, up to
#: four times as many confirmations.
KILLS, MOST = COUNT // 40, 4 * COUNT
#: How often workers are killed at each point of an action.
ROUNDS = max(1, COUNT // 250)
#: How many people confirm at once: some of them always wait for a dead worker's lease to end.
PEOPLE = 24
#: Seconds after which a person counts as uninformed.
PATIENCE = 120.0
#: Seconds that a worker's death may delay its person's answer: the lease, and the reaper's next round.
DEATH_SECONDS = LEASE_MS / 1000 + 1
#: Seconds for everything else: a queue behind others, workers that start, a machine busy with other things. Less
#: than RQ takes to notice a dead worker's job: a longer wait means that the reaper missed the conversation.
WORK_SECONDS = 60.0

CHANNEL = "till"
#: The payment that must never be repeated counts twice.
TOOLS = ("pay", "pay", "book", "charge", "refund")
#: How a person decides: by text or tap, once, delivered twice by the platform, or (a tap) done twice by the person.
MANNERS = ("text", "text twice delivered", "tap", "tap twice delivered", "two taps")

YAML = """
public_url: {public_url}
redis_url: ${{REDIS_URL}}
agent: {{model: offline}}
tools: [sayso.testing.simulation.tools, tests.flows.points]
workers: {{concurrency: 4}}
limits: {{per_minute: 60000}}  # a quiet machine is faster than people
channels:
  till:
    {{platform: telegram, token: "${{TELEGRAM_TOKEN}}", secret_token: "${{TELEGRAM_SECRET}}", api_url: {url}/telegram,
     messages_per_second: 0}}
"""


def entry(step: str, key: str = "") -> EffectEntry:
    """Return a line of the ledger."""
    return EffectEntry("b1", step, key, 1)


BEGUN, EFFECT = entry("begin"), entry("effect")
TEXTS = texts_for("en")
QUESTION = TEXTS.question("Pay b1", 60)
UNKNOWN, FAILED, EXPIRED = TEXTS.unknown("Pay b1"), TEXTS.failed("Pay b1"), TEXTS.expired("Pay b1")
CORRECTED = TEXTS.correction("Pay b1", "Paid b1.")
MARK = TEXTS.repeated("")


@pytest.mark.parametrize(
    ("texts", "entries", "acts", "fault"),
    [
        (["Paid b1."], [BEGUN, EFFECT, BEGUN, EFFECT], 1, "2 effects"),
        (["Paid b1."], [BEGUN], 1, "told done without an effect"),
        ([UNKNOWN, CORRECTED], [BEGUN], 1, "told done without an effect"),
        ([FAILED], [BEGUN, EFFECT], 1, "told failed, with an effect"),
        ([EXPIRED], [BEGUN, EFFECT], 1, "told that nothing was done, with an effect"),
        ([], [BEGUN, EFFECT], 1, "told nothing"),
        ([UNKNOWN, "Paid b1."], [BEGUN, EFFECT], 1, "told unknown and done"),
        ([CORRECTED, UNKNOWN], [BEGUN, EFFECT], 1, "told correction and unknown"),
        (["Paid b1.", "Paid b1."], [BEGUN, EFFECT], 1, "answered 2 times to 1 acts"),
        (["You said: yes"], [], 1, "told nothing"),
        (
            ["Charged b1."],
            [entry("begin", "k1"), entry("effect", "k2")],
            1,
            "its idempotency key changed",
        ),
    ],
)
def test_the_judge_names_every_broken_promise(
    texts: list[str], entries: list[EffectEntry], acts: int, fault: str
) -> None:
    """The judge of the long runs reports each kind of fault, so its silence proves something."""
    verdict = judge_bill(statements_by_bill([QUESTION, *texts])["b1"], entries, acts)
    assert fault in [each.text for each in verdict.faults]


@pytest.mark.parametrize(
    ("texts", "entries", "acts", "ending"),
    [
        (["Paid b1."], [BEGUN, EFFECT], 1, "done"),
        (["Paid b1.", MARK + "Paid b1."], [BEGUN, EFFECT], 1, "done"),
        (["Paid b1.", "Paid b1."], [BEGUN, EFFECT], 2, "done"),
        ([FAILED], [BEGUN, entry("refused")], 1, "failed"),
        ([UNKNOWN], [BEGUN], 1, "unknown"),
        ([UNKNOWN], [BEGUN, EFFECT], 1, "unknown"),
        ([UNKNOWN, CORRECTED], [BEGUN, EFFECT], 1, "corrected"),
        ([EXPIRED], [], 1, "not started"),
    ],
)
def test_the_judge_accepts_every_true_report(
    texts: list[str], entries: list[EffectEntry], acts: int, ending: str
) -> None:
    """The judge accepts each report that a person may get."""
    verdict = judge_bill(statements_by_bill([QUESTION, *texts])["b1"], entries, acts)
    assert (verdict.ending, verdict.faults) == (ending, ())


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    """Return the running system, which all kills of this module share."""
    with (
        tempfile.TemporaryDirectory(prefix="sayso-kills-") as folder,
        Till(Path(folder)) as till,
        Arrivals(till) as arrivals,
    ):
        yield Running(till, arrivals, Effects(Path(folder)))


@pytest.mark.timeout(180 + 2 * COUNT)
def test_confirmations_cut_short_by_kill_9_have_one_effect_at_most_and_a_true_outcome(
    running: Running,
) -> None:
    """The killer ends two workers again and again at random moments between claim and outcome, and right after it."""
    till, arrivals, ledger = running.till, running.arrivals, running.ledger
    with Killer(
        till, ledger, CHANNEL, random.Random(), freeze=FREEZE if COUNT >= 1000 else 0.0
    ) as killer:
        visits = crowd(till, arrivals, killer)
    until(lambda: not killer.at_work() and till.is_quiet(), seconds=PATIENCE)
    until(arrivals.has_read_all)
    cases = review(visits, arrivals, ledger)
    say(report(cases, killer))
    assert [(case.visit.bill, fault) for case in cases for fault in case.verdict.faults] == []
    assert [
        case.visit.bill for case in cases if working_seconds(case.visit, killer) > WORK_SECONDS
    ] == []
    assert killer.kills >= KILLS


#: What the kills at each point leave: the outcome that is told, how often the tool was prepared, and its effects.
AT_EACH_POINT: Mapping[str, tuple[str, int, int]] = {
    "not claimed": ("done", 1, 1),
    "claimed": ("done", 1, 1),
    "preparing": ("done", 2, 1),
    "before the effect": ("done", 2, 1),
    "effect begun": ("unknown", 1, 0),
    "after the effect": ("unknown", 1, 1),
    "result stored": ("done", 1, 1),
}


@pytest.mark.timeout(180 + 120 * ROUNDS)
def test_only_a_kill_between_effect_and_result_leaves_doubt(running: Running) -> None:
    """A tool that says where its effect begins is run once more by the next worker if it had not got there."""
    found = Counter(
        ending for number in range(ROUNDS) for ending in killed_at_each_point(running, number)
    )
    for point in AT_EACH_POINT:
        say(
            f"{point:18} {[(ending, count) for (at, *ending), count in found.items() if at == point]}"
        )
    assert found == {(point, *expected): ROUNDS for point, expected in AT_EACH_POINT.items()}


def killed_at_each_point(running: Running, number: int) -> list[tuple[str, str, int, int]]:
    """Kill all workers while each of these people's payments is at another point. Return what became of each."""
    till = running.till
    bills = {point: f"b{900_000 + 10 * number + at}" for at, point in enumerate(AT_EACH_POINT)}
    people = {
        point: Customer(till, 900_000 + 10 * number + at) for at, point in enumerate(AT_EACH_POINT)
    }
    for point, person in people.items():
        persist(person, person.text(person._next(), f'/remit bill={bills[point]} point="{point}"'))
    for point, person in people.items():
        assert heard(running.arrivals, person.chat, bills[point], "question")
    until(till.is_settled, seconds=PATIENCE)  # before that, a yes is too early

    def agree(point: str) -> None:
        persist(people[point], people[point].text(people[point]._next(), "yes"))

    agree("result stored")
    assert outcome_at(running.arrivals, people["result stored"].chat, bills["result stored"], 1)
    # A preview may take ten seconds at the yes: the one that stands still comes last.
    for point in reversed(points.POINTS):
        agree(point)
        until(points.reached(till.data, bills[point]).exists, seconds=PATIENCE)
    for worker in till.workers:
        worker.send_signal(signal.SIGSTOP)
    agree("not claimed")
    till.replace_workers()

    for point, person in people.items():
        assert outcome_at(running.arrivals, person.chat, bills[point], 1), f"{point}: told nothing"
    until(till.is_quiet, seconds=PATIENCE)
    until(running.arrivals.has_read_all)
    outcomes = []
    for point, person in people.items():
        entries = [each for each in running.ledger.read() if each.bill == bills[point]]
        told = statements_by_bill(each.text for each in running.arrivals.chats[person.chat])[
            bills[point]
        ]
        verdict = judge_bill(told, entries, 1)
        assert verdict.faults == (), point
        steps = Counter(each.step for each in entries)
        outcomes.append((point, verdict.ending, steps["prepare"], steps["effect"]))
    return outcomes


class Till(System):
    """The running system with one channel and the four payments. It posts over kept connections."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, workers=2)
        self.config.write_text(YAML.format(public_url=self.url, url=self.platforms.url))
        self._client = httpx.Client(timeout=30)

    def post(self, path: str, signed: signing.SignedWebhook) -> httpx.Response:
        """Deliver a webhook once."""
        headers, body = signed
        return self._client.post(f"{self.url}/hooks/{path}", headers=headers, content=body)

    def replace_workers(self) -> None:
        """Kill all workers at once with kill -9, and start as many."""
        killed, self.workers = self.workers, []
        for worker in killed:
            worker.kill()
        for worker in killed:
            worker.wait()
            self.start_worker()

    def is_quiet(self) -> bool:
        """Return whether no turn and no reply waits anywhere."""
        with Redis.from_url(self.redis.url) as client:
            return not any(
                next(client.scan_iter(f"{PREFIX}*:{kind}:*", count=1000), None)
                for kind in ("inbox", "outbox")
            )


@dataclass(frozen=True, slots=True)
class Arrival:
    """One message as it arrived at its chat."""

    at: float
    text: str
    buttons: list[dict[str, str]]


class Arrivals:
    """The messages that arrive at each chat, with their times, read from the fake platform in a `with` block."""

    def __init__(self, system: System) -> None:
        self.chats: dict[str, list[Arrival]] = defaultdict(list)
        self._platforms, self._read = system.platforms, 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="arrivals")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._take()

    def has_read_all(self) -> bool:
        """Return whether each message that has arrived was read."""
        return self._read == len(self._platforms.sent)

    def about(self, chat: str, bill: str) -> list[tuple[Arrival, BillStatement]]:
        """Return the messages about one bill that a chat got so far."""
        arrived = [
            arrival for arrival in self.chats[chat][:] if f"{bill} " in f"{_words(arrival.text)} "
        ]
        return [(arrival, statements_by_bill([arrival.text])[bill][0]) for arrival in arrived]

    def _follow(self) -> None:
        while not self._over.wait(0.005):
            self._take()

    def _take(self) -> None:
        for sent in self._platforms.sent[self._read :]:
            self._read += 1
            self.chats[sent["chat"]].append(
                Arrival(time.monotonic(), sent["text"], sent["buttons"])
            )


@dataclass(frozen=True, slots=True)
class Running:
    """The running system, what arrives in its chats, and the effects of its tools."""

    till: Till
    arrivals: Arrivals
    ledger: Effects


def _words(text: str) -> str:
    return text.replace(".", " ").replace("\n", " ")


class Customer(TelegramPerson):
    """A person with a chat at the till."""

    channel = CHANNEL


@dataclass(frozen=True, slots=True)
class Visit:
    """One person's confirmation: the decision, its number of acts, its time, and the time of the answer."""

    chat: str
    bill: str
    tool: str
    acts: int
    decided_at: float
    told_at: float


@dataclass(frozen=True, slots=True)
class Case:
    """A visit and the verdict on it."""

    visit: Visit
    verdict: BillResult


def crowd(till: Till, arrivals: Arrivals, killer: Killer) -> list[Visit]:
    """Run all confirmations, by many people at once, each with one after the other."""
    bills = iter(range(1, MOST + 1))
    visits: list[Visit] = []

    def come(name: int) -> None:
        customer, chance = Customer(till, name), random.Random(name)
        for number in bills:
            if number > COUNT and killer.kills >= KILLS:
                return
            visit = confirm(customer, arrivals, f"b{number}", TOOLS[number % len(TOOLS)], chance)
            visits.append(visit)

    people = min(PEOPLE, COUNT)
    with ThreadPoolExecutor(people) as pool:
        coming = {pool.submit(come, 1000 + name) for name in range(people)}
        while coming := _watched(coming):
            told = f"{len(visits):5} of {COUNT} confirmed and told"
            say(f"{told}, {killer.kills} workers killed, {killer.waiting()} wake-ups wait")
    return visits


def _watched(coming: set[Future[None]]) -> set[Future[None]]:
    done, waiting = wait(coming, timeout=10)
    for future in done:
        future.result()
    return waiting


def confirm(
    customer: Customer, arrivals: Arrivals, bill: str, tool: str, chance: random.Random
) -> Visit:
    """Ask for a payment, read the question, decide, and await the outcome. A person who was too early repeats it."""
    acts, decided_at, told_at = 0, 0.0, 0.0
    persist(customer, customer.text(customer._next(), f"/{tool} bill={bill}"))
    question = heard(arrivals, customer.chat, bill, "question")
    while question and not told_at:
        decided_at = time.monotonic()
        acts += decide(customer, question[0], chance.choice(MANNERS))
        told_at = outcome_at(arrivals, customer.chat, bill, acts)
        if not told_at and time.monotonic() - decided_at > PATIENCE:
            break
    return Visit(customer.chat, bill, tool, acts, decided_at, told_at)


def decide(customer: Customer, question: Arrival, manner: str) -> int:
    """Say yes in one of many manners. Returns how many acts of the person it took."""
    data = question.buttons[0]["data"]
    if manner.startswith("text"):
        hooks = [customer.text(customer._next(), "yes")]
    else:
        hooks = [
            customer.tapped(customer._next(), data) for _ in range(2 if manner == "two taps" else 1)
        ]
    for hook in hooks:
        for _ in range(2 if manner.endswith("twice delivered") else 1):
            persist(customer, hook)
    return len(hooks)


def persist(customer: Customer, hook: tuple[str, signing.SignedWebhook]) -> None:
    """Deliver a webhook as Telegram does: again until it is accepted."""
    until(lambda: customer.system.post(*hook).status_code == 200, seconds=PATIENCE)


def heard(arrivals: Arrivals, chat: str, bill: str, kind: str) -> list[Arrival]:
    """Return the messages of this kind; none when the deadline passes."""
    return within(
        lambda: [arrival for arrival, telling in arrivals.about(chat, bill) if telling.kind == kind]
    )


def outcome_at(arrivals: Arrivals, chat: str, bill: str, acts: int) -> float:
    """Return when the outcome arrived; 0 when every act so far was too early, or when the deadline passes."""

    def answered() -> list[float]:
        told = [
            (arrival, telling)
            for arrival, telling in arrivals.about(chat, bill)
            if telling.kind != "question"
        ]
        outcomes = [arrival.at for arrival, telling in told if telling.kind != "early"]
        early = sum(
            telling.kind == "early" for _, telling in told
        )  # a marked message may be the first to arrive
        return outcomes or [0.0] * (early >= acts)

    return (within(answered) or [0.0])[0]


def within(look: Any) -> list[Any]:
    """Return the first result of `look` that is not empty; an empty list when the deadline passes."""
    deadline = time.monotonic() + PATIENCE
    while not (seen := look()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return list(seen)


def review(visits: Sequence[Visit], arrivals: Arrivals, ledger: Effects) -> list[Case]:
    """Return the verdict on every visit, after the run."""
    entries: dict[str, list[EffectEntry]] = defaultdict(list)
    for line in ledger.read():
        entries[line.bill].append(line)
    told = {
        chat: statements_by_bill(arrival.text for arrival in arrived)
        for chat, arrived in arrivals.chats.items()
    }
    return [
        Case(visit, judge_bill(told[visit.chat][visit.bill], entries[visit.bill], visit.acts))
        for visit in visits
    ]


def working_seconds(visit: Visit, killer: Killer) -> float:
    """Return how long a person waited, without the leases of workers hit while processing that conversation."""
    place = Conversation(CHANNEL, visit.chat).id
    since = visit.decided_at - DEATH_SECONDS
    hits = sum(
        blow.conversation == place and since < blow.at < visit.told_at for blow in killer.blows
    )
    return max(0.0, visit.told_at - visit.decided_at - hits * DEATH_SECONDS)


def report(cases: Sequence[Case], killer: Killer) -> str:
    """Return the table of one run."""
    columns = ("done", "failed", "unknown", "corrected", "not started")
    head = ["", "confirmations", "effects", *columns, "doubled", "untold", "untrue"]
    groups = [
        (tool, [case for case in cases if case.visit.tool == tool]) for tool in dict.fromkeys(TOOLS)
    ]
    rows = [[name, *_counts(some, columns)] for name, some in [*groups, ("all", list(cases))]]
    waits = [case.visit.told_at - case.visit.decided_at for case in cases if case.visit.told_at]
    works = [working_seconds(case.visit, killer) for case in cases if case.visit.told_at]
    hits = ", ".join(f"{stage} {count}" for stage, count in killer.tally().most_common())
    return "\n".join(
        [
            "",
            *(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows]),
            "",
            f"kills: {killer.kills}, both workers at once: {killer.double_kills}; what the worker was at: {hits}",
            f"workers that ended although nobody killed them: {killer.ended}",
            f"longest wait: {max(waits):.1f} s, without the dead workers' leases {max(works):.1f} s",
            *(_evidence(case, killer) for case in cases if case.verdict.faults),
        ]
    )


def _evidence(case: Case, killer: Killer) -> str:
    place = Conversation(CHANNEL, case.visit.chat).id
    blows = [
        f"{blow.at - case.visit.decided_at:+.2f} s {blow.stage}{' (stopped)' if blow.frozen else ''}"
        for blow in killer.blows
        if blow.conversation == place
    ]
    return f"{case.visit}: {case.verdict}; workers hit in this chat: {blows}"


def _counts(cases: Sequence[Case], columns: Sequence[str]) -> list[str]:
    endings = [case.verdict.ending for case in cases]
    doubled = sum(case.verdict.effects > 1 for case in cases)
    untrue = sum(bool(case.verdict.faults) for case in cases)
    counts = [
        len(cases),
        sum(case.verdict.effects for case in cases),
        *(endings.count(name) for name in columns),
    ]  # type: ignore[arg-type]
    return [str(count) for count in [*counts, doubled, endings.count("untold"), untrue]]


def say(text: str) -> None:
    """Print a line; pytest shows it with -s."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
