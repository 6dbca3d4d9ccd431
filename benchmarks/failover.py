"""What `redis_wait_replicas` costs, and what a failover loses with it and without.

    python -m benchmarks.failover

Cost: a message stored by one blocking caller, and by 16 at once on an event loop, with a replica on this machine.
Loss: web and worker on a primary with two replicas and three Sentinels. The replicas lose their primary, people write,
the primary is killed (kill -9), a replica takes over. Messages answered with 503 are sent again, as platforms do.
Effects: people confirm an action while the primary is killed, or frozen for eight seconds and let go. The outside
ledger counts how often each action ran.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

from sayso.channels.i18n.texts import texts_for
from sayso.channels.types import Conversation, Turn
from sayso.infra.redis.client import connect
from sayso.infra.redis.connections import AutoPipeline, Connections
from sayso.pending.sharded_scripts import ShardedScripts
from sayso.workers.mailbox import RedisMailbox
from sayso.workers.scripts import CONVERSATION_SCRIPTS
from tests.flows.failover import SentinelSystem
from tests.flows.system import TelegramPerson, until
from tests.workers.sentinels import Node

ROUNDS, CALLS = 25, 200
#: Invoices that the examples' desk has.
INVOICES = (
    1,
    3,
    4,
    7,
    8,
    11,
    12,
    15,
    18,
    19,
    22,
    23,
    26,
    29,
    31,
    34,
    35,
    42,
    45,
    47,
    51,
    55,
    58,
    60,
)


def main() -> None:
    """Print both tables."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--people", type=int, default=50)
    asked.add_argument("--effects", action="store_true", help="count effects only")
    options = asked.parse_args()
    if options.effects:
        _effects()
        return
    people = options.people
    print("| | without | redis_wait_replicas: 1 | ratio |\n|---|---|---|---|")
    for name, (without, waiting) in costs().items():
        print(f"| {name} | {without:.0f} us | {waiting:.0f} us | {waiting / without:.2f} |")
    columns = [
        "redis_wait_replicas",
        "answered 200 at once",
        "lost",
        "doubled",
        "halted",
        "accepted again after",
    ]
    for row in ("", " | ".join(columns), " | ".join(["---"] * len(columns))):
        print(f"| {row} |" if row else "")
    for replicas in (0, 1):
        with (
            tempfile.TemporaryDirectory(prefix="sayso-failover-") as folder,
            SentinelSystem(Path(folder), replicas=replicas) as system,
        ):
            print(f"| {replicas} | {' | '.join(map(str, lose_the_primary(system, people)))} |")
    _effects()


def _effects() -> None:
    columns = [
        "primary",
        "confirmed",
        "ran once",
        "never",
        "doubled",
        "not told",
        "accepted again after",
    ]
    for row in ("", " | ".join(columns), " | ".join(["---"] * len(columns))):
        print(f"| {row} |" if row else "")
    for name, number in (("killed", signal.SIGKILL), ("frozen, comes back", signal.SIGSTOP)):
        with (
            tempfile.TemporaryDirectory(prefix="sayso-failover-") as folder,
            SentinelSystem(Path(folder), replicas=1) as system,
        ):
            print(f"| {name} | {' | '.join(map(str, confirm_through(system, number)))} |")


def costs() -> dict[str, tuple[float, float]]:
    """Return microseconds per message without and with one replica: the best of the rounds, which alternate."""
    with tempfile.TemporaryDirectory(prefix="sayso-wait-") as folder:
        primary, replica = Node(Path(folder), "primary"), Node(Path(folder), "replica")
        primary.start()
        replica.start("--replicaof", f"127.0.0.1 {primary.port}")
        try:
            until(
                lambda: (
                    primary.client().info("replication").get("slave0", {}).get("state") == "online"
                )
            )
            return {"one caller": _compare(primary, _one), "16 at once": _compare(primary, _many)}
        finally:
            primary.stop()
            replica.stop()


def _compare(
    primary: Node, measure: Callable[[RedisMailbox, ShardedScripts, AutoPipeline], float]
) -> tuple[float, float]:
    taken: dict[int, list[float]] = {0: [], 1: []}
    for _ in range(ROUNDS):
        for replicas, seconds in taken.items():
            with connect(f"redis://127.0.0.1:{primary.port}/0") as client:
                connections = Connections.of(client)
                connections.replicas = replicas
                connections.pipeline = AutoPipeline(f"redis://127.0.0.1:{primary.port}/0")
                scripts = ShardedScripts(client, CONVERSATION_SCRIPTS)
                seconds.append(
                    measure(
                        RedisMailbox(scripts, lambda _: texts_for("en")),
                        scripts,
                        connections.pipeline,
                    )
                )
    return min(taken[0]) * 1e6, min(taken[1]) * 1e6


_numbers = count(1)


def _turn() -> Turn:
    number = next(_numbers)
    return Turn(f"event-{number}", Conversation("web", f"chat-{number}"), "user", "hello")


def _one(mailbox: RedisMailbox, *_: object) -> float:
    turns = [_turn() for _ in range(CALLS)]
    began = time.perf_counter()
    for turn in turns:
        mailbox.accept(turn)
    return (time.perf_counter() - began) / CALLS


def _many(_: RedisMailbox, scripts: ShardedScripts, pipeline: AutoPipeline) -> float:
    async def worker(calls: int) -> None:
        for _ in range(calls):
            name = _turn().conversation.id
            await scripts.arun(
                "append_journal", name, {"token": "t", "fence": 1, "seq": 1, "at": 0}, "{}"
            )

    async def run() -> float:
        began = time.perf_counter()
        await asyncio.gather(*(worker(CALLS // 4) for _ in range(16)))
        seconds = (time.perf_counter() - began) / (16 * (CALLS // 4))
        await pipeline.close()
        return seconds

    return asyncio.run(run())


def lose_the_primary(system: SentinelSystem, number: int) -> tuple[int, int, int, str, str]:
    """Return how many messages were acknowledged, lost and answered twice, whether the server was halted, and how long
    no message was accepted.
    """
    people = [TelegramPerson(system, 1000 + each) for each in range(number)]
    old = system.redis.primary()
    system.redis.cut_replication()
    with ThreadPoolExecutor(16) as threads:
        answered = threads.map(
            lambda person: system.post(*person.text(1, "apples")).status_code, people
        )
    accepted = [person for person, status in zip(people, answered, strict=True) if status == 200]
    old.send(signal.SIGKILL)
    system.redis.mend_replication()
    began = time.monotonic()
    system.redis.primary()
    time.sleep(3)  # each process looks at the new primary
    halted = "not halted" not in system.printed("redis", "resume")
    system.said(TelegramPerson(system, 999), 1, "pears")
    seconds = time.monotonic() - began - 3
    for person in people:
        if person not in accepted:
            system.said(person, 1, "apples")
    time.sleep(15)
    answers = [
        sum("apples" in entry["text"] for entry in system.ledger(person.chat)) for person in people
    ]
    return (
        len(accepted),
        answers.count(0),
        sum(each > 1 for each in answers),
        str(halted),
        f"{seconds:.1f} s",
    )


def confirm_through(system: SentinelSystem, number: int) -> tuple[int, int, int, int, int, str]:
    """Return how many people confirmed, how many of their actions ran once, never, and more often, how many people were
    not told, and how long no message was accepted.
    """
    people = {invoice: TelegramPerson(system, 2000 + invoice) for invoice in INVOICES}
    for invoice, person in people.items():
        system.said(person, 1, f"delete invoice INV-{invoice}")
    until(
        lambda: (
            all(system.ledger(person.chat) for person in people.values()) and system.is_settled()
        )
    )
    accepted: list[float] = []

    def confirm(person: TelegramPerson) -> None:
        system.said(person, 2, "yes")
        accepted.append(time.monotonic())

    old = system.redis.primary()
    with ThreadPoolExecutor(6) as threads:
        confirmations = [threads.submit(confirm, person) for person in people.values()]
        until(lambda: len(accepted) >= len(people) // 5)
        old.send(number)
        began = time.monotonic()
        if number == signal.SIGSTOP:
            time.sleep(8)
            old.send(signal.SIGCONT)
        for confirmation in confirmations:
            confirmation.result()
    gap = min((at for at in accepted if at > began + 0.2), default=began) - began
    time.sleep(20)
    ran = [system.effects("delete", f"INV-{invoice}") for invoice in people]
    told = sum(
        any("deleted" in each["text"] for each in system.ledger(person.chat))
        for person in people.values()
    )
    return (
        len(ran),
        ran.count(1),
        ran.count(0),
        sum(n > 1 for n in ran),
        len(ran) - told,
        f"{gap:.1f} s",
    )


if __name__ == "__main__":
    main()
