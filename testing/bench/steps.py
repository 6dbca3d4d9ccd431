"""Steps of the benchmark: a number of people who write at once, or a number of messages a second."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from sayso.testing.bench.load import Exchange, SlackLoad
from sayso.testing.bench.meters import LOOK_SECONDS, Meter, Usage

#: Seconds before each step that are not measured, as a share of the step.
WARM_UP = 0.2
TEXT = "hello there"


@dataclass(frozen=True, slots=True)
class Step:
    """One step: the number of people or messages, what happened to each message, how long it took,
    and its usage.
    """

    at_once: int
    seconds: float
    exchanges: Sequence[Exchange]
    usage: Usage

    @property
    def per_second(self) -> float:
        """Accepted messages a second."""
        return sum(each.status == 200 for each in self.exchanges) / self.seconds

    @property
    def refused(self) -> int:
        """How many webhooks got 503."""
        return sum(each.status == 503 for each in self.exchanges)


@dataclass(slots=True)
class Steps:
    """Runs steps of `seconds` each. Connections are spread over the ports of the web processes."""

    load: SlackLoad
    ports: Sequence[int]
    meter: Meter
    seconds: float
    _exchanges: list[Exchange] = field(default_factory=list)

    async def talk(self, port: int, line: int) -> None:
        """Send a message and wait for the answer."""
        self._exchanges.append(await self.load.exchange(port, TEXT, line=line))

    async def deliver(self, port: int, line: int) -> None:
        """Send a message and wait for no answer."""
        self._exchanges.append(await self.load.deliver(port, TEXT, line=line))

    async def at_once(self, count: int, send: Callable[[int, int], Awaitable[None]]) -> Step:
        """Have this many people send one message after the other.

        The step ends early after a 503.
        """
        stopped = asyncio.Event()

        async def person(line: int) -> None:
            while not stopped.is_set():
                await send(self._port(line), line)

        async with asyncio.TaskGroup() as people:
            for line in range(count):
                people.create_task(person(line))
            try:
                return await self._measured(count, self.seconds)
            finally:
                stopped.set()

    async def a_second(self, rate: float, seconds: float) -> Step:
        """Send this many messages a second, whether or not earlier ones are answered."""
        free = list[int]()
        lines = itertools.count(1000)
        began = time.perf_counter()
        stopped = asyncio.Event()

        async def one() -> None:
            line = free.pop() if free else next(lines)
            await self.talk(self._port(line), line)
            free.append(line)

        async def sender(people: asyncio.TaskGroup) -> None:
            for number in itertools.count():
                await asyncio.sleep(max(0.0, began + number / rate - time.perf_counter()))
                if stopped.is_set():
                    return
                people.create_task(one())

        async with asyncio.TaskGroup() as people:
            people.create_task(sender(people))
            try:
                return await self._measured(round(rate), seconds)
            finally:
                stopped.set()

    async def _measured(self, count: int, seconds: float) -> Step:
        """Measure what happens from now on, after a while in which the system becomes warm."""
        await asyncio.sleep(seconds * WARM_UP)
        self.load.answers.clear()
        self._exchanges = []
        exchanges = self._exchanges
        started = time.perf_counter()
        self.meter.start()
        while time.perf_counter() < started + seconds * (1 - WARM_UP):
            await asyncio.sleep(LOOK_SECONDS)
            self.meter.look()
            if exchanges and exchanges[-1].status == 503:
                break
        elapsed = time.perf_counter() - started
        usage = self.meter.stop()
        self._exchanges = []
        return Step(count, elapsed, exchanges, usage)

    def _port(self, line: int) -> int:
        return self.ports[line % len(self.ports)]
