"""Run the benchmark: start the system, raise the load step by step, and find what limits it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import uvloop
from redis import Redis

from sayso.config.settings.schema import Settings, WorkerSettings
from sayso.infra.redis.client import connect
from sayso.testing.bench.load import SlackLoad
from sayso.testing.bench.meters import (
    WEB,
    WORKER,
    Limit,
    Meter,
    Places,
    RedisTimes,
    fsync_seconds,
    limit_of,
    percentile,
    redis_pid,
    redis_times,
)
from sayso.testing.bench.steps import Step, Steps
from sayso.testing.simulation.processes import HIGH_LIMITS, Machine, MachineError, fake_channel
from sayso.testing.simulation.profile import Profile

#: How many people write at once in each step, and on how many connections webhooks are sent.
PEOPLE = (1, 4, 16, 64, 256)
#: The steps of a run: two rows of PEOPLE, and one of twice their length at half of the load.
STEPS = 2 * len(PEOPLE) + 2
#: A step that takes no more than so much more takes as much.
GROWTH = 1.05
#: The threads of a web process: the default of `sayso web --threads`.
WEB_THREADS = 32
#: Messages before the first step, which make the processes warm.
FIRST_MESSAGES = 20


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """What to measure: for how many seconds, with how many processes,
    and on which Redis ("" for one of its own).

    Of the bot's `settings` it takes what its processes do at once. All else would reach models,
    platforms or data.
    """

    seconds: float = 60.0
    webs: int = 1
    workers: int = 1
    settings: Settings | None = None
    redis_url: str = ""

    @property
    def concurrency(self) -> int:
        """How many turns one worker process works on at once."""
        return (self.settings.workers if self.settings else WorkerSettings()).concurrency


@dataclass(slots=True)
class BenchResult:
    """What was measured. `half` is the step at half of the most turns a second."""

    plan: BenchPlan
    redis: RedisTimes
    fsync_seconds: float
    turns: list[Step] = field(default_factory=list)
    half: Step | None = None
    webhooks: list[Step] = field(default_factory=list)

    def limit(self, steps: Sequence[Step]) -> Limit:
        """Return what limited the best step."""
        if steps[-1].refused:
            return Limit(
                "limits.conversations",
                "the web answered 503: no more conversations may have work at once",
            )
        step = best(steps)
        alone = steps[0].exchanges
        is_turns = steps is self.turns
        seconds = [
            each.reply_seconds if is_turns else each.accept_seconds
            for each in alone
            if each.status == 200
        ]
        name, count = (
            ("workers.concurrency", self.plan.workers * self.plan.concurrency)
            if is_turns
            else ("`sayso web --threads`", self.plan.webs * WEB_THREADS)
        )
        return limit_of(
            step.usage, Places(name, count, step.per_second * percentile(seconds, 0.5)), self.redis
        )


def best(steps: Sequence[Step]) -> Step:
    """Return the first step that none exceeds by more than GROWTH."""
    most = max(step.per_second for step in steps)
    return next(step for step in steps if step.per_second * GROWTH >= most)


@dataclass(slots=True)
class Bench:
    """One run on one data folder, which must be empty. `say` prints a line of progress."""

    plan: BenchPlan
    data: Path
    say: Callable[[str], None]
    #: The name of the deployment, which stands in all its keys of Redis.
    name: str = field(default_factory=lambda: f"bench-{secrets.token_hex(4)}")

    def run(self) -> BenchResult:
        """Measure. Raises MachineError, EmbeddedRedisError, redis.RedisError and OSError."""
        return uvloop.run(self._run())

    async def _run(self) -> BenchResult:
        async with SlackLoad() as load:
            profile = Profile(workers=self.plan.workers, webs=self.plan.webs)
            machine = Machine(
                profile, self.data, lambda url: self._settings(load, url), self.plan.redis_url
            )
            with self._keys_removed(), machine:
                try:
                    return await self._measure(load, machine)
                except (TimeoutError, ExceptionGroup) as exc:
                    raise MachineError(
                        f"a message was not answered: see the log in {self.data}"
                    ) from exc

    async def _measure(self, load: SlackLoad, machine: Machine) -> BenchResult:
        with connect(machine.redis_url) as client:
            result = BenchResult(
                self.plan, redis_times(client, f"{self.name}:probe"), fsync_seconds(self.data)
            )
            meter = Meter(lambda: _pids(machine), client, machine.redis.pid or redis_pid(client))
            ports = [int(address.rpartition(":")[2]) for address in machine.addresses]
            steps = Steps(load, ports, meter, self.plan.seconds / STEPS)
            for _ in range(FIRST_MESSAGES):
                await steps.talk(ports[0], 0)
            for people in PEOPLE:
                result.turns.append(await steps.at_once(people, steps.talk))
                self.say(
                    f"{people:4} people at once: {result.turns[-1].per_second:,.0f} turns a second"
                )
            rate = max(1.0, best(result.turns).per_second / 2)
            result.half = await steps.a_second(rate, 2 * self.plan.seconds / STEPS)
            self.say(f"at half of that, {rate:,.0f} turns a second: measured")
            for parent in machine.workers.parents:  # the web alone: what it accepts stays in Redis
                await asyncio.to_thread(parent.stop)
            for connections in PEOPLE:
                result.webhooks.append(await steps.at_once(connections, steps.deliver))
                self.say(
                    f"{connections:4} connections: {result.webhooks[-1].per_second:,.0f} webhooks a second"
                )
                if result.webhooks[-1].refused:
                    break
        return result

    @contextmanager
    def _keys_removed(self) -> Iterator[None]:
        """Remove all keys of this run from a Redis that is not its own.

        Raises redis.RedisError and ValueError.
        """
        if not self.plan.redis_url:
            yield
            return
        with connect(self.plan.redis_url) as client:
            client.ping()
            try:
                yield
            finally:
                self._remove_keys(client)

    def _remove_keys(self, client: Redis) -> None:
        """Remove the keys that have our name, and those of RQ that name our queue."""
        queue = f"sayso-{self.name}"
        keys = list(client.scan_iter(f"*{self.name}*", count=1000))
        for pattern, field_name in (("rq:job:process-*", "origin"), ("rq:worker:*", "queues")):
            for part in batched(client.scan_iter(pattern, count=1000)):
                with client.pipeline(transaction=False) as pipeline:
                    for key in part:
                        pipeline.hget(key, field_name)
                    names = pipeline.execute()
                keys += [
                    key
                    for key, name in zip(part, names, strict=True)
                    if name in (queue, queue.encode())
                ]
        for part in batched(keys):
            client.unlink(*part)
        client.srem("rq:queues", f"rq:queue:{queue}")

    def _settings(self, load: SlackLoad, url: str) -> dict[str, Any]:
        """Return the configuration: one channel on our Slack, a model that costs nothing, no tools."""
        bot = self.plan.settings
        if bot:
            given = {"spool": bot.spool, "allow_open_redis": bot.allow_open_redis}
        else:
            given = {}
        workers = bot.workers.model_dump() if bot else {}
        return {
            **given,
            "name": self.name,
            "public_url": url,
            "redis_url": "${REDIS_URL}",
            "agent": {"model": "offline"},
            "workers": {**workers, "still_after": 0},
            "limits": HIGH_LIMITS,
            "channels": {
                "desk": {
                    "platform": "slack",
                    "messages_per_second": 0,
                    **fake_channel("slack", load.url),
                }
            },
        }


def _pids(machine: Machine) -> Mapping[str, Sequence[int]]:
    parts = {WEB: machine.webs, WORKER: machine.workers.parents}
    return {
        name: [each.process.pid for each in children if each.process]
        for name, children in parts.items()
    }


def batched(keys: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield the keys in lists of up to a thousand."""
    rest = iter(keys)
    while part := list(islice(rest, 1000)):
        yield part
