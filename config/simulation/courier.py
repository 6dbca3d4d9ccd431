"""Courier: delivers webhooks as platforms do: to any web, until they are taken, and some of them again."""

from __future__ import annotations

import asyncio
import http.client
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random
from urllib.parse import urlsplit

from sayso.channels.signing import Signed
from sayso.config.simulation.plan import LATE_SECONDS

#: Webhooks on their way at once.
HANDS = 24
#: Seconds for one delivery.
TIMEOUT = 15.0
#: Seconds at most until a webhook that was not taken is delivered again, after so many tries ever twice as many, and
#: never more. Real platforms take longer.
AGAIN_SECONDS, PATIENT_TRIES, MOST_SECONDS = 1.0, 5, 10.0
#: Times a webhook is delivered at most.
MOST_DELIVERIES = 5

#: Makes the webhook, signed at the moment it is sent.
Hook = Callable[[], Signed]


@dataclass(frozen=True, slots=True)
class Answer:
    """What one delivery heard. Status 0 is no answer; `again` is what Retry-After says, "" where nothing does.

    Moments are of the monotonic clock.
    """

    status: int
    again: str
    began: float
    at: float

    @property
    def is_curt(self) -> bool:
        """Whether it refuses for now, and does not say for how many seconds."""
        return self.status == 503 and not self.again.isdigit()


class Courier:
    """Lives as long as the people's event loop. `answers` counts what the web said, by status; 0 is no answer.

    `curt` counts refusals that did not say when to come again. `late` is by how many seconds a repeat is late at most.

    Each delivery goes to one of the `doors`, host and port of a web; without any, to the host of its URL. While
    `during` is a counter, what is answered to deliveries that begin and end meanwhile is counted there as well.
    `seconds` are how long those took that were taken.
    """

    def __init__(
        self,
        *,
        redeliver: float,
        shuffle: float,
        chance: Random,
        late: float = LATE_SECONDS,
        doors: Sequence[str] = (),
    ) -> None:
        self.answers: Counter[int] = Counter()
        self.repeated = self.curt = 0
        self.during: Counter[int] | None = None
        self.seconds: list[float] = []
        self._redeliver, self._shuffle, self._late = redeliver, shuffle, late
        self._chance, self._doors = chance, doors
        self._hands = ThreadPoolExecutor(HANDS, thread_name_prefix="courier")
        self._local = threading.local()
        self._later: set[asyncio.Task[None]] = set()

    async def deliver(self, url: str, hook: Hook) -> float:
        """Deliver until it is taken; perhaps several times at once, or again later, beside everything else.

        Returns the moment at which it was taken, of the monotonic clock.
        """
        if self._chance.random() < self._redeliver:
            for _ in range(self._chance.randint(1, MOST_DELIVERIES - 1)):
                self._plan(url, hook)
        tries = 0
        while True:
            answer = await self._post(url, hook)
            if answer.status == 200:
                return answer.at
            tries += 1
            again = AGAIN_SECONDS * min(2 ** max(0, tries - PATIENT_TRIES), MOST_SECONDS)
            await asyncio.sleep(again * (0.5 + self._chance.random() / 2))

    async def drained(self) -> None:
        """Wait until everything that is delivered again was."""
        while self._later:
            await asyncio.gather(*self._later)

    def close(self) -> None:
        """No more deliveries."""
        self._hands.shutdown(cancel_futures=True)

    def _plan(self, url: str, hook: Hook) -> None:
        late = self._chance.random() * self._late if self._chance.random() < self._shuffle else 0.0
        task = asyncio.create_task(self._repeat(url, hook, late))
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    async def _repeat(self, url: str, hook: Hook, late: float) -> None:
        await asyncio.sleep(late)
        self.repeated += 1
        await self._post(url, hook)

    async def _post(self, url: str, hook: Hook) -> Answer:
        place, during = urlsplit(url), self.during
        door = self._chance.choice(self._doors) if self._doors else place.netloc
        loop = asyncio.get_running_loop()
        answer = await loop.run_in_executor(self._hands, self._posted, door, place.path, hook)
        self.answers[answer.status] += 1
        self.curt += answer.is_curt
        if during is not None and during is self.during:
            during[answer.status] += 1
        if answer.status == 200:
            self.seconds.append(answer.at - answer.began)
        return answer

    def _posted(self, door: str, path: str, hook: Hook) -> Answer:
        connection, began = self._connection(door), time.monotonic()
        kept = connection.sock is not None
        status, again = _posted(connection, path, hook)
        if kept and not status:  # the web may have closed what nobody used for a while: that is no failed delivery
            status, again = _posted(connection, path, hook)
        return Answer(status, again, began, time.monotonic())

    def _connection(self, address: str) -> http.client.HTTPConnection:
        """This thread's connection, kept between deliveries."""
        kept = vars(self._local)
        if address not in kept:
            kept[address] = http.client.HTTPConnection(address, timeout=TIMEOUT)
        connection: http.client.HTTPConnection = kept[address]
        return connection


def _posted(connection: http.client.HTTPConnection, path: str, hook: Hook) -> tuple[int, str]:
    """The status and Retry-After; 0 when there was no answer: the web was killed, or has not come back yet."""
    headers, body = hook()
    try:
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        answer.read()
    except (OSError, http.client.HTTPException):
        connection.close()
        return 0, ""
    return answer.status, answer.headers.get("Retry-After", "")
