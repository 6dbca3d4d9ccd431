"""Turns: the cost of a message from its webhook to its reply, beside the same work in plain RQ, in one run.

    python -m benchmarks.turns

All processes run at once and rounds alternate, so only ratios count. Sayso's path is complete: web, `sayso worker`
process, and a platform that gets the replies; Redis writes to disk before it answers. The peers
(`benchmarks.peers`) use the same server, the same Redis and the same platform, and promise nothing.
"""

from __future__ import annotations

import asyncio
import signal
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks.ingest import ingest
from benchmarks.stack import QUEUE, Stack, cpu_seconds, rss_mb
from benchmarks.table import HEAD, Row, show
from sayso.channels.types import Conversation, Turn
from sayso.testing.bench.load import SlackLoad
from sayso.workers.mailbox import RedisMailbox

#: Rounds of turns one after the other, and turns in each.
ROUNDS, TURNS = 5, 40
#: People who write at once to a slow model, its seconds, and for how long they continue.
CROWD, MODEL_SECONDS, CROWD_SECONDS = 32, 0.5, 6.0
#: Rounds of the same people without a model's latency, beside the floor, and the seconds of each.
FLOOR_ROUNDS, FLOOR_SECONDS = 5, 3.0
#: Milliseconds of a worker's processor time that a turn may cost.
WORKER_MS = 1.4
#: Turns parked at once in one process, their seconds, and how many chats have a second turn waiting behind.
PARKED, PARKED_SECONDS, FOLLOWED = 1000, 2.0, 100
PARKED_ROUNDS = 3
#: What makes a turn wait, the command for it, and its answer.
WAYS = (("model", ("/think", "thought")), ("tool", ("/work", "worked")))
#: Seconds until a new worker can hold that many turns.
GROWN_SECONDS = 8.0
LATER = "and then"


def main() -> None:
    """Print the table row by row."""
    print(HEAD, flush=True)
    asyncio.run(measure())


async def measure() -> None:
    """Run all measurements."""
    async with SlackLoad() as load:
        with (
            tempfile.TemporaryDirectory(prefix="sayso-bench-") as folder,
            Stack(Path(folder), load.url) as stack,
        ):
            show(await asyncio.to_thread(ingest, stack))
            stack.client.flushall()
            await live(stack, load)
        with tempfile.TemporaryDirectory(prefix="sayso-bench-") as folder, Stack(
            Path(folder), load.url
        ) as stack:  # fmt: skip
            await beside_floor(stack, load)
        with (
            tempfile.TemporaryDirectory(prefix="sayso-bench-") as folder,
            Stack(Path(folder), load.url, concurrency=PARKED) as stack,
        ):
            await parked(stack, load)


async def live(stack: Stack, load: SlackLoad) -> None:
    """Measure one turn at a time with a model of no latency, then a crowd with a slow one."""
    await asyncio.gather(*map(asyncio.to_thread, (stack.web, stack.worker, stack.peer_web)))
    costs: dict[str, list[float]] = {"ours": [], "fork": [], "simple": []}
    crowds: dict[str, tuple[float, list[float]]] = {}
    for kind in ("simple", "fork"):
        peer = await asyncio.to_thread(stack.peer_worker, kind)
        await asyncio.gather(
            *(load.say(port, "hello", connection=9) for port in (stack.port, stack.peer_port))
        )
        for _ in range(ROUNDS):
            costs["ours"] += await _one_by_one(load, stack.port)
            costs[kind] += await _one_by_one(load, stack.peer_port)
        if kind == "fork":
            crowds["ours"] = await _crowd(load, stack.port)
            crowds["fork"] = await _crowd(load, stack.peer_port)
        await asyncio.to_thread(stack.end, peer)
    show(_latency_rows(costs) + _crowd_rows(crowds))


def _latency_rows(costs: dict[str, list[float]]) -> list[Row]:
    medians = {name: statistics.median(seconds) * 1000 for name, seconds in costs.items()}
    ours = medians["ours"]
    words = "webhook to reply, p50, one at a time,"
    return [
        Row(
            f"{words} RQ's fork Worker to it",
            f"{ours:.2f} ms",
            f"{medians['fork']:.2f} ms",
            medians["fork"] / ours,
            5,
            at_least=True,
        ),
        Row(
            f"{words} SimpleWorker to it (aim: 2)",
            f"{ours:.2f} ms",
            f"{medians['simple']:.2f} ms",
            medians["simple"] / ours,
            1,
            at_least=True,
        ),
    ]


def _crowd_rows(crowds: dict[str, tuple[float, list[float]]]) -> list[Row]:
    (ours, latencies), (fork, _) = crowds["ours"], crowds["fork"]
    worst = sorted(latencies)[int(len(latencies) * 0.99)]
    words = f"{CROWD} people, a model of {MODEL_SECONDS * 1000:.0f} ms:"
    return [
        Row(
            f"{words} turns/s, to one fork Worker",
            f"{ours:.1f}/s",
            f"{fork:.1f}/s",
            ours / fork,
            25,
            at_least=True,
        ),
        Row(
            f"{words} p99 of {len(latencies)} turns, to the model",
            f"{worst * 1000:.0f} ms",
            f"{MODEL_SECONDS * 1000:.0f} ms",
            worst / MODEL_SECONDS,
            1.2,
        ),
    ]


async def _one_by_one(load: SlackLoad, port: int) -> list[float]:
    return [await load.say(port, "hello there") for _ in range(TURNS)]


async def _crowd(load: SlackLoad, port: int) -> tuple[float, list[float]]:
    """Return turns per second and each turn's seconds. People write again once answered; all sent a turn before."""
    seconds: list[float] = []

    async def person(number: int) -> None:
        await load.say(port, "/think 0", connection=number)
        while time.perf_counter() < until:
            seconds.append(await load.say(port, f"/think {MODEL_SECONDS}", connection=number))

    started = time.perf_counter()
    until = started + CROWD_SECONDS
    await asyncio.gather(*map(person, range(CROWD)))
    return len(seconds) / (time.perf_counter() - started), seconds


async def beside_floor(stack: Stack, load: SlackLoad) -> None:
    """Measure one turn at a time and a crowd, with a model of no latency, beside the bare floor."""
    _, worker, floor = await asyncio.gather(
        *map(asyncio.to_thread, (stack.web, stack.worker, stack.floor))
    )
    places = {"ours": (stack.port, worker), "floor": (stack.floor_port, floor)}
    seconds: dict[str, list[float]] = {name: [] for name in places}
    rates: dict[str, list[float]] = {name: [] for name in places}
    cpu_ms: dict[str, list[float]] = {name: [] for name in places}
    for port, _ in places.values():
        await _busy(load, port)
    for _ in range(FLOOR_ROUNDS):
        for name, (port, process) in places.items():
            seconds[name] += await _one_by_one(load, port)
            before = cpu_seconds(process)
            turns = await _busy(load, port)
            rates[name].append(turns / FLOOR_SECONDS)
            cpu_ms[name].append((cpu_seconds(process) - before) / turns * 1000)
    show(_floor_rows(seconds, rates, cpu_ms))


async def _busy(load: SlackLoad, port: int) -> int:
    """Return how many turns a crowd has taken in FLOOR_SECONDS."""
    until = time.perf_counter() + FLOOR_SECONDS
    turns = 0

    async def person(number: int) -> None:
        nonlocal turns
        while time.perf_counter() < until:
            await load.say(port, "hello there", connection=number)
            turns += 1

    await asyncio.gather(*map(person, range(CROWD)))
    return turns


def _floor_rows(
    seconds: dict[str, list[float]],
    rates: dict[str, list[float]],
    cpu_ms: dict[str, list[float]],
) -> list[Row]:
    ours_ms, floor_ms = (statistics.median(seconds[name]) * 1000 for name in ("ours", "floor"))
    ours_rate, floor_rate = (statistics.median(rates[name]) for name in ("ours", "floor"))
    ours_cpu, floor_cpu = (statistics.median(cpu_ms[name]) for name in ("ours", "floor"))
    return [
        Row(
            "webhook to reply, p50, one at a time, to the bare floor",
            f"{ours_ms:.2f} ms",
            f"{floor_ms:.2f} ms",
            ours_ms / floor_ms,
            3,
        ),
        Row(
            f"{CROWD} people, no latency: turns/s, to the bare floor",
            f"{ours_rate:.0f}/s",
            f"{floor_rate:.0f}/s",
            ours_rate / floor_rate,
            0.75,
            at_least=True,
        ),
        Row(
            f"{CROWD} people, no latency: CPU of the worker for a turn, to the bare floor",
            f"{ours_cpu:.2f} ms",
            f"{floor_cpu:.2f} ms",
            ours_cpu / floor_cpu,
        ),
        Row(
            f"{CROWD} people, no latency: CPU of the worker for a turn, to {WORKER_MS} ms",
            f"{ours_cpu:.2f} ms",
            f"{WORKER_MS} ms",
            ours_cpu / WORKER_MS,
            1,
        ),
    ]


async def parked(stack: Stack, load: SlackLoad) -> None:
    """Measure a thousand turns that wait at once in one process; the medians of the rounds, and the most memory."""
    worker = await asyncio.to_thread(stack.worker)
    await asyncio.sleep(GROWN_SECONDS)
    mailbox = stack.mailbox()
    rounds: dict[str, list[tuple[float, float]]] = {"model": [], "tool": []}
    for number, (slow, way) in enumerate(WAYS * PARKED_ROUNDS):
        chats = [f"DP{number:02}{index:04}" for index in range(PARKED)]
        load.answers.clear()
        accept(mailbox, [(f"DW{number:05}", "hello")])
        await load.until_answered(1)
        load.answers.clear()
        rounds[slow].append(await _park(stack, load, worker, mailbox, chats, way))
    show(_parked_rows(rounds))


def _parked_rows(rounds: dict[str, list[tuple[float, float]]]) -> list[Row]:
    seconds = {
        slow: statistics.median(makespan for makespan, _ in each) for slow, each in rounds.items()
    }
    most = max(megabytes for each in rounds.values() for _, megabytes in each) / PARKED * 10
    words, beside = (
        f"{PARKED} turns of {PARKED_SECONDS:g} s in one process:",
        f"{PARKED_SECONDS:g} s",
    )
    return [
        Row(
            f"{words} first lease to last reply, {FOLLOWED} chats with a second turn, all in order",
            f"{seconds['model']:.2f} s",
            beside,
            seconds["model"] / PARKED_SECONDS,
            1.3,
        ),
        Row(
            f"{words} where a tool takes these seconds, whose begin and end are journalled",
            f"{seconds['tool']:.2f} s",
            beside,
            seconds["tool"] / PARKED_SECONDS,
        ),
        Row(f"{words} memory for 10 of them", f"{most:.2f} MB", "1 MB", most, 1.0),
    ]


async def _park(
    stack: Stack,
    load: SlackLoad,
    worker: subprocess.Popen[bytes],
    mailbox: RedisMailbox,
    chats: list[str],
    way: tuple[str, str],
) -> tuple[float, float]:
    """Accept all turns while the worker is paused. Return the seconds after its resumption, and its growth in MB."""
    worker.send_signal(signal.SIGSTOP)
    accept(mailbox, [(chat, f"{way[0]} {PARKED_SECONDS}") for chat in chats])
    accept(mailbox, [(chat, LATER) for chat in chats[:FOLLOWED]])
    waiting = stack.client.llen(f"rq:queue:{QUEUE}")
    assert waiting >= PARKED - 1, waiting  # one turn is in progress already
    base, started = rss_mb(worker), time.perf_counter()
    worker.send_signal(signal.SIGCONT)
    most = asyncio.create_task(_most_mb(worker, load, PARKED + FOLLOWED))
    seconds = await load.until_answered(PARKED + FOLLOWED) - started
    _check_order(load, chats, way[1])
    return seconds, await most - base


def accept(mailbox: RedisMailbox, texts: list[tuple[str, str]]) -> None:
    """Store these turns as the web does; each has a chat and a text."""
    for chat, text in texts:
        event = f"bench:{chat}:{text}:{time.monotonic_ns()}"
        mailbox.accept(Turn(event, Conversation("desk", chat), f"U{chat}", text))


async def _most_mb(worker: subprocess.Popen[bytes], load: SlackLoad, count: int) -> float:
    most = 0.0
    while sum(map(len, load.answers.values())) < count:
        most = max(most, rss_mb(worker))
        await asyncio.sleep(0.05)
    return most


def _check_order(load: SlackLoad, chats: list[str], answer: str) -> None:
    first, then = [answer], [answer, f"You said: {LATER}"]
    expected = {chat: then if number < FOLLOWED else first for number, chat in enumerate(chats)}
    heard = {
        chat: [text.partition("\n")[0] for _, text in answers]
        for chat, answers in load.answers.items()
    }
    wrong = {
        chat: heard.get(chat)
        for chat in {**expected, **heard}
        if heard.get(chat) != expected.get(chat)
    }
    assert not wrong, wrong


if __name__ == "__main__":
    main()
