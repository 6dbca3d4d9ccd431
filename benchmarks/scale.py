"""Scale: throughput with more workers, and the cost of a turn beside a hundred thousand stored conversations.

    python -m benchmarks.scale

Costs are the CPU time of each process and of the server, so that neighbors on the machine distort them little.
Throughput is a figure of this run's cores. Every write is on disk before it is answered.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from redis import Redis

from benchmarks.stack import Stack, cpu_seconds
from benchmarks.turns import accept
from sayso.agent import ConversationMemory
from sayso.agent.messages import Message, Role
from sayso.channels.types import Conversation, Reply, Turn
from sayso.infra.concurrency import run_without_loop
from sayso.pending.sharded_scripts import shard_of
from sayso.pending.turn_changes import TurnChange, TurnReply
from sayso.pending.turns import QueuedReply, QueuedTurn
from sayso.testing.bench.load import SlackLoad
from sayso.workers.sender import Sent

#: The numbers of worker processes.
SIZES = (1, 2, 4)
#: Seconds until a new worker works at its full concurrency.
GROWN_SECONDS = 4.0
#: Turns of one measurement, and the rounds of each.
TURNS, ROUNDS = 320, 3
#: Stored conversations beside the active ones.
KEPT = (10, 1_000, 100_000)
#: Conversations whose memory is measured.
SAMPLE = 2_000
#: People who write at once.
CROWD = 16
TOOL_SECONDS = 0.02
TEXT = "please delete invoice INV-42"


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU microseconds of one turn in each process, and the turns per second."""

    web: float
    worker: float
    redis: float
    scripts: float
    per_second: float


def main() -> None:
    """Print the tables."""
    asyncio.run(measure())


async def measure() -> None:
    """Measure throughput first, then costs, then memory."""
    async with SlackLoad() as load:
        print(
            "| workers | turns/s, no latency | turns/s, tool of 20 ms |\n|---|---|---|", flush=True
        )
        for count in SIZES:
            await throughput(load, count)
        with (
            tempfile.TemporaryDirectory(prefix="sayso-bench-") as folder,
            Stack(Path(folder), load.url) as stack,
        ):
            await costs(stack, load)
    with (
        tempfile.TemporaryDirectory(prefix="sayso-bench-") as folder,
        Stack(Path(folder), "http://127.0.0.1:9") as stack,
    ):
        memory(stack)


async def throughput(load: SlackLoad, count: int) -> None:
    """Measure how fast these workers process a backlog, with a model of no latency and with a tool of 20 ms."""
    with (
        tempfile.TemporaryDirectory(prefix="sayso-bench-") as folder,
        Stack(Path(folder), load.url) as stack,
    ):
        workers = [await asyncio.to_thread(stack.worker) for _ in range(count)]
        await asyncio.sleep(GROWN_SECONDS)
        plain = await _backlogs(stack, load, workers, TEXT)
        waiting = await _backlogs(stack, load, workers, f"/work {TOOL_SECONDS}")
    print(f"| {count} | {plain:.0f} | {waiting:.0f} |", flush=True)


async def _backlogs(
    stack: Stack, load: SlackLoad, workers: list[subprocess.Popen[bytes]], text: str
) -> float:
    return statistics.median([await _backlog(stack, load, workers, text) for _ in range(ROUNDS)])


async def _backlog(
    stack: Stack, load: SlackLoad, workers: list[subprocess.Popen[bytes]], text: str
) -> float:
    """Return turns per second, from the moment the workers resume to the last reply."""
    mailbox = stack.mailbox()
    chats = [f"DB{next(_NUMBERS):07}" for _ in range(TURNS)]
    for worker in workers:
        worker.send_signal(signal.SIGSTOP)
    accept(mailbox, [(chat, text) for chat in chats])
    load.answers.clear()
    started = time.perf_counter()
    for worker in workers:
        worker.send_signal(signal.SIGCONT)
    return TURNS / (await load.until_answered(TURNS) - started)


async def costs(stack: Stack, load: SlackLoad) -> None:
    """Measure a turn with ever more stored conversations; each turn is the first of its chat in this process."""
    web, worker = await asyncio.gather(
        asyncio.to_thread(stack.web), asyncio.to_thread(stack.worker)
    )
    head = "| conversations kept | web us | worker us | Redis us | of these in scripts | turns/s |"
    print(f"\n{head}\n|---|---|---|---|---|---|", flush=True)
    kept = 0
    for count in KEPT:
        await asyncio.to_thread(preload, stack, range(kept, count))
        kept = count
        await _say(load, stack, 40)
        found = [await _cost(stack, load, web, worker) for _ in range(ROUNDS)]
        middle = [statistics.median(values) for values in zip(*map(_numbers, found), strict=True)]
        print(f"| {count:,} | " + " | ".join(f"{value:.0f}" for value in middle) + " |", flush=True)


async def _cost(
    stack: Stack, load: SlackLoad, web: subprocess.Popen[bytes], worker: subprocess.Popen[bytes]
) -> Cost:
    server = stack.redis.pid or 0
    before = [cpu_seconds(who) for who in (web, worker, server)]
    scripts, started = _script_seconds(stack.client), time.perf_counter()
    await _say(load, stack, TURNS)
    took = time.perf_counter() - started
    await asyncio.sleep(0.3)  # until the worker has written its records
    spent = [
        (cpu_seconds(who) - was) / TURNS * 1e6
        for who, was in zip((web, worker, server), before, strict=True)
    ]
    in_scripts = (_script_seconds(stack.client) - scripts) / TURNS * 1e6
    return Cost(spent[0], spent[1], spent[2], in_scripts, TURNS / took)


async def _say(load: SlackLoad, stack: Stack, turns: int) -> None:
    async def person(connection: int) -> None:
        for _ in range(turns // CROWD):
            await load.say(stack.port, TEXT, connection=connection)

    await asyncio.gather(*map(person, range(CROWD)))


def memory(stack: Stack) -> None:
    """Measure the Redis memory of an idle conversation after one turn, and of waiting turns."""
    client, mailbox = stack.client, stack.mailbox()
    client.config_set("appendonly", "no")
    idle = _bytes_each(client, lambda: preload(stack, range(SAMPLE)))
    seen = list(client.scan_iter("sayso:*:event:*", count=1000))
    lasting = idle + _bytes_each(client, lambda: client.delete(*seen))
    fresh = range(SAMPLE, 2 * SAMPLE)
    first = _bytes_each(client, lambda: [mailbox.accept(_turn(number, 0)) for number in fresh])
    more = _bytes_each(client, lambda: [mailbox.accept(_turn(number, 1)) for number in fresh])
    print("\n| in Redis | bytes |\n|---|---|")
    print(f"| a conversation with its first turn waiting, RQ's job included | {first:.0f} |")
    print(f"| each further waiting turn | {more:.0f} |")
    print(f"| an idle conversation, its last event remembered (3 days) | {idle:.0f} |")
    print(f"| an idle conversation after that (30 days) | {lasting:.0f} |", flush=True)


def _bytes_each(client: Redis, act: Callable[[], object]) -> float:
    """Return by how many bytes the server's memory grew for each conversation of the sample."""
    before = _used(client)
    act()
    return (_used(client) - before) / SAMPLE


def preload(stack: Stack, numbers: range) -> None:
    """Store conversations as one finished turn leaves them: process one, and copy it for the others."""
    lived, client = _lived(stack), Redis.from_url(stack.redis.url)
    keys = [key.decode() for key in client.scan_iter(f"sayso:*{lived.id}*", count=1000)]
    parts = [(key, client.pttl(key), client.dump(key)) for key in keys]
    for start in range(numbers.start, numbers.stop, 1000):
        with client.pipeline(transaction=False) as pipe:
            for number in range(start, min(start + 1000, numbers.stop)):
                copy = _conversation(number).id
                for key, ttl, data in parts:
                    pipe.restore(_moved(key, lived.id, copy), ttl, data, replace=True)
            pipe.execute()


def _lived(stack: Stack) -> Conversation:
    """Return a conversation with one answered turn and no further work."""
    mailbox, outbox = stack.mailbox(wakes=False), stack.outbox()
    turn = _turn(-1 - next(_NUMBERS), 0)
    mailbox.accept(turn)
    lease, queued = run_without_loop(mailbox.lease(turn.conversation.id, "bench")) or (None, None)
    assert lease
    assert isinstance(queued, QueuedTurn)
    memory = ConversationMemory()
    memory.add_many([Message(Role.USER, TEXT), Message(Role.ASSISTANT, f"You said: {TEXT}")])
    change = TurnChange((TurnReply(Reply(f"You said: {TEXT}")),), json.dumps(memory.to_dict()))
    reply = run_without_loop(mailbox.commit(lease, queued, change))
    assert isinstance(reply, QueuedReply)
    run_without_loop(outbox.mark_delivered(lease, reply, Sent("1795300000.000001")))
    assert run_without_loop(mailbox.release(lease)) is None
    return turn.conversation


def _moved(key: str, lived: str, copy: str) -> str:
    return key.replace(f"{{{shard_of(lived)}}}", f"{{{shard_of(copy)}}}").replace(lived, copy)


_NUMBERS = itertools.count()


def _numbers(cost: Cost) -> Iterator[float]:
    yield from (cost.web, cost.worker, cost.redis, cost.scripts, cost.per_second)


def _conversation(number: int) -> Conversation:
    return Conversation("desk", f"DK{number:07}")


def _turn(number: int, nth: int) -> Turn:
    event = f"T0ACME:DK{number:07}:1795204800.{nth:06}"
    return Turn(
        event, _conversation(number), f"UDK{number:07}", TEXT, message_id=f"1795204800.{nth:06}"
    )


def _used(client: Redis) -> int:
    return int(cast("dict[str, Any]", client.info("memory"))["used_memory"])


def _script_seconds(client: Redis) -> float:
    stats = cast("dict[str, Any]", client.info("commandstats"))
    return float(stats.get("cmdstat_evalsha", {}).get("usec", 0)) / 1e6


if __name__ == "__main__":
    main()
