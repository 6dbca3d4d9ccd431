"""What a failover of Redis costs people: turns lost, actions doubled, and seconds until answers flow again.

    python -m benchmarks.failover_matrix --topology sentinel --fault kill --link lossy --durability wait
    python -m benchmarks.failover_matrix --all

Sentinels or a Cluster, a web and two workers run as processes. People on fake platforms ask for a destructive action,
confirm it and wait for its outcome, again and again. After some seconds the primary is killed and started again ten
seconds later, or frozen for ten seconds. With `--link lossy` its replicas are silently cut off shortly
before. When the data-loss guard halts the server, `sayso redis resume` is run, as an operator would.

The judge reads only what platforms got 200 for, what people were sent, and the file to which the tool writes.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise, product
from pathlib import Path
from typing import Any, Protocol

import httpx
from redis.crc import key_slot
from redis.exceptions import RedisError

from sayso.channels.types import Conversation
from sayso.infra.redis.client import connect
from sayso.pending.sharded_scripts import shard_of
from sayso.workers.data_loss.resume import halts_of
from tests.flows.lossy_link import LossyLink
from tests.flows.system import System, TelegramPerson
from tests.workers.clusters import SLOTS, ClusterNode, ClusterWithQueue
from tests.workers.sentinels import Node, SentinelSetup

log = logging.getLogger(__name__)

#: Seconds before the fault, in which everything works, and after it.
CALM_SECONDS, AFTER_SECONDS = 10.0, 45.0
#: Seconds for which the replicas of a lossy primary get nothing before the fault.
LOSSY_SECONDS = 2.0
#: Seconds after which a killed primary is started again, as by its supervisor, and a paused one goes on.
AWAY_SECONDS = 10.0
#: Seconds for which a person waits for a message before they give up and ask for something else.
PATIENCE = 20.0
#: Seconds for which a person reads before they answer. Redis knows by then that the question was delivered.
READING_SECONDS = 0.4
#: Seconds that all notices and answers may take after the last message.
SETTLE_SECONDS = 90.0
#: The prefix of the system's keys: its configuration is called sayso.yaml.
PREFIX = "sayso:sayso:"
#: What a notice about lost turns says in English.
FORGOT = "made me forget"
#: What a yes is answered whose question was sent but not yet known to be: it is asked again, and nothing is lost.
EARLY = "I had not asked yet"
#: Lines of the configuration and options of the servers, by the name of the durability.
DURABILITIES: dict[str, tuple[str, tuple[str, ...]]] = {
    "none": ("", ()),
    "servers": ("", ("--min-replicas-to-write", "1", "--min-replicas-max-lag", "1")),
    "wait": ("redis_wait_replicas: 1\n", ()),
}


class Topology(Protocol):
    """Servers with replicas, on which the system runs."""

    url: str
    environ: Mapping[str, str]

    def start(self) -> None:
        """Start all servers, and wait until they are whole."""

    def stop(self) -> None:
        """Stop all servers."""

    def primary(self) -> Node:
        """Return the server that takes writes now."""

    def cut_off_replicas(self) -> None:
        """Let nothing of the primary reach its replicas from now on."""

    def is_affected(self, conversation: str) -> bool:
        """Return whether the primary that is killed or paused serves a conversation."""


class LinkedNode(Node):
    """A server behind a link that can become lossy. Others know it by the link's address."""

    def __init__(self, folder: Path, name: str, *options: str) -> None:
        super().__init__(folder, name, *options)
        self._server_port, self.link = self.port, LossyLink(self.port)
        self.port = self.link.port

    @property
    def command(self) -> list[str]:
        """Return the arguments of the server, which announces its link."""
        shown = ["--replica-announce-ip", "127.0.0.1", "--replica-announce-port", str(self.port)]
        command = super().command
        command[command.index("--port") + 1] = str(self._server_port)
        return [*command, *shown]


class LinkedClusterNode(LinkedNode, ClusterNode):
    """A node of a Cluster behind a link."""

    @property
    def command(self) -> list[str]:
        """Return the arguments of the node, which announces its link."""
        shown = ["--cluster-announce-ip", "127.0.0.1", "--cluster-announce-port", str(self.port)]
        return [*super().command, *shown, "--cluster-announce-bus-port", str(self.bus_port)]


class LinkedSentinels(SentinelSetup):
    """A primary, two replicas and three Sentinels; all servers are behind links."""

    environ: Mapping[str, str] = {}

    def __init__(self, folder: Path, options: Sequence[str]) -> None:
        super().__init__(folder)
        self.linked = [LinkedNode(folder, f"linked{number}", *options) for number in range(3)]
        self.nodes = list(self.linked)

    def cut_off_replicas(self) -> None:
        """Let nothing of the primary reach its replicas from now on."""
        primary = self.primary()
        next(node for node in self.linked if node is primary).link.drop()

    def is_affected(self, conversation: str) -> bool:
        """Return True: one primary serves all."""
        return True


class LinkedCluster(ClusterWithQueue):
    """Three masters with a replica each, all behind links, and a server for the queue. The first master fails."""

    def __init__(self, folder: Path, options: Sequence[str]) -> None:
        super().__init__(folder, replicas=1)
        self.linked = [
            LinkedClusterNode(folder, f"linked{number}", *options) for number in range(6)
        ]
        self.masters, self.replicas = list(self.linked[:3]), list(self.linked[3:])

    @property
    def pid(self) -> int | None:
        """None: there is no single process."""
        return None

    def primary(self) -> Node:
        """Return the first master."""
        return self.masters[0]

    def cut_off_replicas(self) -> None:
        """Let nothing of the first master reach its replica from now on."""
        self.linked[0].link.drop()

    def is_affected(self, conversation: str) -> bool:
        """Return whether the first third of the slots has the conversation's shard."""
        return key_slot(f"{{{shard_of(conversation)}}}".encode()) < SLOTS // len(self.masters)


TOPOLOGIES: dict[str, Callable[[Path, Sequence[str]], Topology]] = {
    "sentinel": LinkedSentinels,
    "cluster": LinkedCluster,
}
FAULTS, LINKS = ("kill", "pause"), ("sound", "lossy")


@dataclass(slots=True)
class Cycle:
    """One request of a person: when its messages were acknowledged (0.0: never), and how many messages the person had
    received then.
    """

    person: TelegramPerson
    disk: str
    asked_at: float = 0.0
    received_before: int = 0
    confirmed_at: float = 0.0
    received_before_yes: int = 0


@dataclass(slots=True)
class Load:
    """People who ask, confirm and wait, each in a thread, until `end`."""

    system: System
    count: int
    cycles: list[Cycle] = field(default_factory=list)
    reading_seconds: float = READING_SECONDS
    answered: list[tuple[float, TelegramPerson]] = field(default_factory=list)
    refused: int = 0
    _ending: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        """Start all people."""
        for number in range(self.count):
            person = TelegramPerson(self.system, 100 + number)
            self._threads.append(threading.Thread(target=self._live, args=(person,), daemon=True))
            self._threads[-1].start()

    def end(self) -> None:
        """Let all people finish what they are at."""
        self._ending.set()
        for thread in self._threads:
            thread.join()

    def _live(self, person: TelegramPerson) -> None:
        number = 0
        while not self._ending.is_set():
            number += 1
            cycle = Cycle(
                person, f"d{person.name}x{number}", received_before=self._received(person)
            )
            self.cycles.append(cycle)
            cycle.asked_at = self._say(person, f"/wipe_disk disk={cycle.disk}")
            if not self._hears(person, f"Wipe disk {cycle.disk}", cycle.received_before):
                continue
            time.sleep(self.reading_seconds)
            cycle.received_before_yes = self._received(person)
            cycle.confirmed_at = self._say(person, "yes")
            if not self._hears(person, f"Disk {cycle.disk} is wiped", cycle.received_before_yes):
                time.sleep(1.0)
            time.sleep(self.reading_seconds)

    def _say(self, person: TelegramPerson, text: str) -> float:
        """Deliver a message again and again, as a platform does, and return when it was acknowledged; 0.0 if never."""
        hook, gives_up = person.text(person._next(), text), time.monotonic() + 60.0
        while time.monotonic() < gives_up:
            with suppress(httpx.HTTPError):
                if self.system.post(*hook).status_code == 200:
                    return time.monotonic()
            self.refused += 1
            time.sleep(0.25)
        return 0.0

    def _hears(self, person: TelegramPerson, text: str, after: int) -> bool:
        gives_up = time.monotonic() + PATIENCE
        while time.monotonic() < gives_up:
            if any(text in entry["text"] for entry in self.system.ledger(person.chat)[after:]):
                self.answered.append((time.monotonic(), person))
                return True
            time.sleep(0.05)
        return False

    def _received(self, person: TelegramPerson) -> int:
        return len(self.system.ledger(person.chat))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of all turns of one run.

    `lost`: acknowledged turns without a question or an effect. `untold`: those of them whose person heard nothing about
    it. `flowing_again`: seconds from the fault to the first answer to a person whose conversation was on the
    failed primary; `longest_silence` among these people.
    """

    turns: int
    confirmed: int
    effects: int
    doubled: int
    lost: int
    untold: int
    refused: int
    halted: bool
    flowing_again: float
    longest_silence: float

    @property
    def faults(self) -> int:
        """Return the number of what must never happen."""
        return self.doubled + self.untold


def judge(load: Load, topology: Topology, fault_at: float, *, halted: bool) -> Verdict:
    """Return the verdict about a load that has ended."""
    file = load.system.data / "wiped.txt"
    effects = Counter(file.read_text().split() if file.exists() else [])
    lost = untold = 0
    for cycle in load.cycles:
        sent = [entry["text"] for entry in load.system.ledger(cycle.person.chat)]
        after_question = sent[cycle.received_before :]
        if cycle.asked_at and not any(f"Wipe disk {cycle.disk}" in text for text in after_question):
            lost += 1
            untold += not any(FORGOT in text for text in after_question)
        after_yes = sent[cycle.received_before_yes :]
        is_asked_again = any(EARLY in text and cycle.disk in text for text in after_yes)
        if cycle.confirmed_at:
            lost += not (effects[cycle.disk] or is_asked_again)
            untold += not any(FORGOT in text or cycle.disk in text for text in after_yes)
        if cycle.confirmed_at and not (effects[cycle.disk] or is_asked_again):
            log.info("not run: %s", after_yes[:3])
    answered = sorted(
        at for at, person in load.answered if topology.is_affected(_conversation(person))
    )
    # An answer that was on its way does not count.
    after = [at for at in answered if at > fault_at + 0.5]
    around = [at for at in answered if at <= fault_at][-1:] + after
    return Verdict(
        turns=sum(bool(cycle.asked_at) + bool(cycle.confirmed_at) for cycle in load.cycles),
        confirmed=sum(bool(cycle.confirmed_at) for cycle in load.cycles),
        effects=sum(effects.values()),
        doubled=sum(count > 1 for count in effects.values()),
        lost=lost,
        untold=untold,
        refused=load.refused,
        halted=halted,
        flowing_again=after[0] - fault_at if after else float("inf"),
        longest_silence=max((b - a for a, b in pairwise(around)), default=float("inf")),
    )


def _conversation(person: TelegramPerson) -> str:
    return Conversation(person.channel, person.chat).id


class Operator:
    """Runs `sayso redis resume` whenever the data-loss guard has halted Redis."""

    def __init__(self, system: System, url: str) -> None:
        self._system, self._url = system, url
        self.resumes = 0

    def look(self) -> None:
        """Resume the server if it is halted."""
        with suppress(RedisError), connect(self._url) as client:
            if halts_of(client, prefix=PREFIX):
                assert self._system.process("redis resume").wait(60) == 0
                self.resumes += 1


def run(
    topology: Topology, folder: Path, lines: str, *, fault: str, is_lossy: bool, people: int
) -> Verdict:
    """Run the system through one fault, and return the verdict."""
    with running(folder, topology, lines) as system:
        load, operator = Load(system, people), Operator(system, topology.url)
        load.start()
        time.sleep(CALM_SECONDS)
        primary = topology.primary()
        if is_lossy:
            topology.cut_off_replicas()
            time.sleep(LOSSY_SECONDS)
        fault_at = time.monotonic()
        primary.send(signal.SIGKILL if fault == "kill" else signal.SIGSTOP)
        is_back = False
        while time.monotonic() < fault_at + AFTER_SECONDS:
            if not is_back and time.monotonic() > fault_at + AWAY_SECONDS:
                is_back = True
                if fault == "kill":
                    primary.start()
                else:
                    primary.send(signal.SIGCONT)
            operator.check_server()
            time.sleep(0.5)
        load.end()
        settled = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < settled and judge(load, topology, fault_at, halted=False).faults:
            operator.check_server()
            time.sleep(1.0)
        return judge(load, topology, fault_at, halted=bool(operator.resumes))


@contextmanager
def running(folder: Path, topology: Any, lines: str = "") -> Iterator[System]:
    """Run a web and two workers on these servers. `lines` are added to their configuration."""
    system: Any = System(folder, workers=2, environ=topology.environ)
    system.config.write_text(f"{system.config.read_text()}{lines}")
    system.redis = topology
    with system:
        yield system


def report(verdict: Verdict, asked: argparse.Namespace, *, heading: bool) -> None:
    """Print the row of one run as Markdown."""
    columns = {
        "topology": asked.topology,
        "fault": asked.fault,
        "link": asked.link,
        "durability": asked.durability,
        "turns acknowledged": verdict.turns,
        "503 or no answer": verdict.refused,
        "confirmed": verdict.confirmed,
        "effects": verdict.effects,
        "effects doubled": verdict.doubled,
        "acknowledged and lost": verdict.lost,
        "untold": verdict.untold,
        "halted and resumed": "yes" if verdict.halted else "no",
        "first answer after": f"{verdict.flowing_again:.1f} s",
        "longest silence": f"{verdict.longest_silence:.1f} s",
    }
    rows = [columns.keys(), ["---"] * len(columns), columns.values()]
    for row in rows if heading else rows[2:]:
        print(f"| {' | '.join(map(str, row))} |", flush=True)


def main() -> None:
    """Run failovers, print a row of each, and fail if an action ran twice or a person was not told."""
    asked = _arguments()
    logging.basicConfig(
        level=logging.INFO if asked.verbose else logging.WARNING, format="%(message)s"
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)
    own = [(asked.topology, asked.fault, asked.link, asked.durability)]
    faults = 0
    cases = product(TOPOLOGIES, FAULTS, LINKS, DURABILITIES)
    for number, case in enumerate(cases if asked.all else own):
        asked.topology, asked.fault, asked.link, asked.durability = case
        with tempfile.TemporaryDirectory(prefix="sayso-fail-") as folder:
            lines, options = DURABILITIES[asked.durability]
            topology = TOPOLOGIES[asked.topology](Path(folder), options)
            is_lossy = asked.link == "lossy"
            verdict = run(
                topology,
                Path(folder),
                lines,
                fault=asked.fault,
                is_lossy=is_lossy,
                people=asked.people,
            )
        report(verdict, asked, heading=number == 0)
        faults += verdict.faults
    sys.exit(bool(faults))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Failovers of Redis, judged from outside.")
    parser.add_argument("--topology", choices=list(TOPOLOGIES), default="sentinel")
    parser.add_argument("--fault", choices=FAULTS, default="kill")
    parser.add_argument("--link", choices=LINKS, default="sound")
    parser.add_argument("--durability", choices=list(DURABILITIES), default="none")
    parser.add_argument("--all", action="store_true", help="all cases, one after the other")
    parser.add_argument(
        "--verbose", action="store_true", help="print what people read whose action was not run"
    )
    parser.add_argument("--people", type=int, default=16)
    return parser.parse_args()


if __name__ == "__main__":
    main()
