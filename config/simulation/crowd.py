"""Crowd: all people of one simulation, on an event loop in a thread of their own."""

from __future__ import annotations

import asyncio
import threading
import time
from random import Random
from typing import Self

from sayso.channels.fakes.platforms import FakePlatforms
from sayso.config.simulation.courier import Courier
from sayso.config.simulation.inbox import Inbox, follow, follow_signs
from sayso.config.simulation.machine import Machine
from sayso.config.simulation.people import Budget, Person
from sayso.config.simulation.phones import phones
from sayso.config.simulation.plan import Plan
from sayso.config.simulation.stories import Repertoire


class Crowd:
    """From `with` to its end. `people` may be read by others once `is_done`."""

    def __init__(self, plan: Plan, platforms: FakePlatforms, machine: Machine, repertoire: Repertoire) -> None:
        until = time.monotonic() + plan.minutes * 60 if plan.minutes else float("inf")
        self.budget = Budget(plan.turns, until=until, rate=plan.rate)
        self.people: list[Person] = []
        self._plan, self._platforms, self._stories = plan, platforms, repertoire.stories
        self.courier = Courier(
            redeliver=plan.redeliver,
            shuffle=plan.shuffle,
            late=plan.late,
            chance=Random(f"{plan.seed} courier"),  # noqa: S311  # no secret
            doors=machine.doors,
        )
        for name, (phone, url) in enumerate(phones(platforms, machine.hooks, plan.conversations, plan.skew)):
            chance = Random(f"{plan.seed} {name}")  # noqa: S311  # no secret
            inbox, others = Inbox(repertoire.done), phone.others(plan.strangers) if plan.strangers else ()
            self.people.append(Person(phone, url, self.courier, self.budget, chance, inbox, strangers=others))
        self._done, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._live()), name="crowd", daemon=True)
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._playing: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._cancel)
        self._thread.join()
        self.courier.close()

    @property
    def is_done(self) -> bool:
        """Whether everybody has done and heard everything. Raises what went wrong among them."""
        if self._error is not None:
            raise self._error
        return self._done.is_set()

    @property
    def heard(self) -> int:
        """How many replies have arrived."""
        return sum(len(person.inbox.heard) for person in self.people)

    async def _live(self) -> None:
        inboxes = {person.phone.chat: person.inbox for person in self.people}
        following = [
            asyncio.create_task(follow(lambda: self._platforms.sent, inboxes)),
            asyncio.create_task(follow_signs(lambda: self._platforms.calls, inboxes)),
        ]
        self._loop, self._playing = asyncio.get_running_loop(), asyncio.create_task(self._play())
        await asyncio.wait({self._playing})
        self._error = None if self._playing.cancelled() else self._playing.exception()
        self._done.set()
        await asyncio.to_thread(self._over.wait)
        for task in following:
            task.cancel()

    async def _play(self) -> None:
        async with asyncio.TaskGroup() as group:
            for person in self.people:
                group.create_task(person.live(self._stories))
        await self.courier.drained()

    def _cancel(self) -> None:
        if self._playing is not None:
            self._playing.cancel()
