"""The steps of the benchmark: people who write at once, or a number of messages a second."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from sayso.testing.bench.load import Exchange, SlackLoad
from sayso.testing.bench.meters import LOOK_SECONDS, Meter, Usage

#: The share of each step that is not measured, at its beginning: the system gets used to the load.
WARM_UP = 0.2
#: The text of every message.
TEXT = "hello there"


@dataclass(frozen=True, slots=True)
class Step:
    """The result of one step."""

    #: How many people wrote at once, or how many messages a second were sent.
    count: int
    #: How long was measured.
    seconds: float
    #: What happened to each message.
    exchanges: Sequence[Exchange]
    #: What the parts of the system used.
    usage: Usage

    @property
    def per_second(self) -> float:
        """The accepted messages a second."""
        accepted = sum(exchange.status == 200 for exchange in self.exchanges)
        return accepted / self.seconds

    @property
    def refused(self) -> int:
        """The number of webhooks that got 503."""
        return sum(exchange.status == 503 for exchange in self.exchanges)

    @property
    def accept_seconds(self) -> list[float]:
        """The seconds until the web answered each webhook, also those that it refused."""
        return [exchange.accept_seconds for exchange in self.exchanges]

    @property
    def reply_seconds(self) -> list[float]:
        """The seconds until the bot answered, for each message that it answered."""
        return [exchange.reply_seconds for exchange in self.exchanges if exchange.reply_seconds]


@dataclass(slots=True)
class Steps:
    """Runs the steps of one benchmark, of `seconds` each.

    Connections have numbers, and are spread over the `ports` of the web processes.
    """

    load: SlackLoad
    ports: Sequence[int]
    meter: Meter
    seconds: float
    #: What happened to the messages of the step that is measured now.
    _exchanges: list[Exchange] = field(default_factory=list)

    async def talk(self, port: int, connection: int) -> None:
        """Send a message and wait for the answer."""
        self._exchanges.append(await self.load.exchange(port, TEXT, connection=connection))

    async def deliver(self, port: int, connection: int) -> None:
        """Send a message and wait for no answer."""
        self._exchanges.append(await self.load.deliver(port, TEXT, connection=connection))

    async def at_once(self, count: int, send: Callable[[int, int], Awaitable[None]]) -> Step:
        """Have this many people send one message after the other, each on one connection.

        `send` is `talk` or `deliver`. The step ends early after a 503.
        """
        stopped = asyncio.Event()

        async def person(connection: int) -> None:
            while not stopped.is_set():
                await send(self._port(connection), connection)

        async with asyncio.TaskGroup() as people:
            for connection in range(count):
                people.create_task(person(connection))
            try:
                return await self._measured(count, self.seconds)
            finally:
                stopped.set()

    async def a_second(self, rate: float, seconds: float) -> Step:
        """Send this many messages a second, whether or not earlier ones are answered."""
        # A message needs a connection that no other message uses at the time.
        idle_connections: list[int] = []
        # The steps before used the lowest numbers, one for each person.
        new_connections = itertools.count(1000)
        began = time.perf_counter()
        stopped = asyncio.Event()

        async def talk_once() -> None:
            if idle_connections:
                connection = idle_connections.pop()
            else:
                connection = next(new_connections)
            await self.talk(self._port(connection), connection)
            idle_connections.append(connection)

        async def sender(people: asyncio.TaskGroup) -> None:
            for number in itertools.count():
                await asyncio.sleep(max(0.0, began + number / rate - time.perf_counter()))
                if stopped.is_set():
                    return
                people.create_task(talk_once())

        async with asyncio.TaskGroup() as people:
            people.create_task(sender(people))
            try:
                return await self._measured(round(rate), seconds)
            finally:
                stopped.set()

    async def _measured(self, count: int, seconds: float) -> Step:
        """Measure what happens from now on, after a while in which the system gets used to it."""
        await asyncio.sleep(seconds * WARM_UP)
        self.load.answers.clear()
        # Messages that end after the step are appended to another list.
        exchanges: list[Exchange] = []
        self._exchanges = exchanges
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

    def _port(self, connection: int) -> int:
        return self.ports[connection % len(self.ports)]
