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
from sayso.testing.bench.load import CHANNEL, SlackLoad
from sayso.testing.bench.meters import (
    WEB,
    WORKER,
    Limit,
    Meter,
    Places,
    RedisTimes,
    fsync_seconds,
    limit_of,
    redis_pid,
    redis_times,
)
from sayso.testing.bench.steps import Step, Steps
from sayso.testing.percentiles import percentile
from sayso.testing.simulation.processes import (
    HIGH_LIMITS,
    BotNotRunning,
    BotProcesses,
    fake_channel,
)
from sayso.testing.simulation.profile import Profile

#: How many people write at once in each step, and on how many connections webhooks are sent.
PEOPLE = (1, 4, 16, 64, 256)
#: The time of a run in steps: those of people, those of webhooks, and one that is twice as long, at
#: half of the load.
STEPS = 2 * len(PEOPLE) + 2
#: A step that takes up to this many times as much as another one counts as equal to it.
GROWTH = 1.05
#: The threads of a web process: the default of `sayso web --threads`.
WEB_THREADS = 32
#: Messages before the first step, which make the processes warm.
FIRST_MESSAGES = 20


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """What to measure."""

    #: For how long.
    seconds: float = 60.0
    #: The number of web and of worker processes.
    webs: int = 1
    workers: int = 1
    #: The bot whose `workers` and `spool` are used; None for the defaults. Everything else of a bot
    #: would reach its models, platforms or data.
    settings: Settings | None = None
    #: The Redis to measure; "" for one that is started for this.
    redis_url: str = ""

    @property
    def concurrency(self) -> int:
        """The number of turns that one worker process works on at once."""
        workers = self.settings.workers if self.settings else WorkerSettings()
        return workers.concurrency


@dataclass(slots=True)
class BenchResult:
    """What was measured."""

    plan: BenchPlan
    #: How long commands to Redis take without load.
    redis: RedisTimes
    #: How long a small write to the disk of the data folder takes.
    fsync_seconds: float
    #: Steps from webhook to reply, with more and more people.
    turns: list[Step] = field(default_factory=list)
    #: A step at half of the most turns a second; None before it was measured.
    half_load: Step | None = None
    #: Steps of the web alone, with more and more connections.
    webhooks: list[Step] = field(default_factory=list)

    def limit(self, steps: Sequence[Step]) -> Limit:
        """Return what limited the best step of `turns` or of `webhooks`."""
        if steps[-1].refused:
            return Limit(
                "limits.conversations",
                "the web answered 503: no more conversations may have work at once",
            )
        step = best(steps)
        # How many places were taken follows from how long one message takes without others.
        accepted = [exchange for exchange in steps[0].exchanges if exchange.status == 200]
        if steps is self.turns:
            seconds = percentile([exchange.reply_seconds for exchange in accepted], 0.5)
            setting = "workers.concurrency"
            count = self.plan.workers * self.plan.concurrency
        else:
            seconds = percentile([exchange.accept_seconds for exchange in accepted], 0.5)
            setting = "`sayso web --threads`"
            count = self.plan.webs * WEB_THREADS
        places = Places(setting, count, step.per_second * seconds)
        return limit_of(step.usage, places, self.redis)


def best(steps: Sequence[Step]) -> Step:
    """Return the first step that no other exceeds by more than GROWTH."""
    most = max(step.per_second for step in steps)
    return next(step for step in steps if step.per_second * GROWTH >= most)


@dataclass(slots=True)
class Bench:
    """One run of the benchmark."""

    plan: BenchPlan
    #: The data folder, which must be empty.
    data: Path
    #: Prints a line of progress.
    say: Callable[[str], None]
    #: The name of the bot, which is in all its keys of Redis, so that they can be removed.
    name: str = field(default_factory=lambda: f"bench-{secrets.token_hex(4)}")

    def run(self) -> BenchResult:
        """Measure. Raises BotNotRunning, EmbeddedRedisError, redis.RedisError and OSError."""
        return uvloop.run(self._run())

    async def _run(self) -> BenchResult:
        """Measure on the running event loop. Raises BotNotRunning if an answer does not come."""
        async with SlackLoad() as load:
            profile = Profile(workers=self.plan.workers, webs=self.plan.webs)
            bot = BotProcesses(
                profile, self.data, lambda url: self._settings(load, url), self.plan.redis_url
            )
            # The keys are removed when no process writes them any more.
            with self._keys_removed(), bot:
                try:
                    return await self._measure(load, bot)
                except (TimeoutError, ExceptionGroup) as exc:
                    raise BotNotRunning(
                        f"a message was not answered: see the log in {self.data}"
                    ) from exc

    async def _measure(self, load: SlackLoad, bot: BotProcesses) -> BenchResult:
        """Run all steps. Raises TimeoutError, or ExceptionGroup of one, for a missing answer."""
        with connect(bot.redis_url) as client:
            redis = redis_times(client, f"{self.name}:probe")
            result = BenchResult(self.plan, redis, fsync_seconds(self.data))
            meter = Meter(lambda: _pids(bot), client, bot.redis.pid or redis_pid(client))
            ports = [int(address.rpartition(":")[2]) for address in bot.addresses]
            steps = Steps(load, ports, meter, self.plan.seconds / STEPS)
            for _ in range(FIRST_MESSAGES):
                await steps.talk(ports[0], 0)

            for people in PEOPLE:
                step = await steps.at_once(people, steps.talk)
                result.turns.append(step)
                self.say(f"{people:4} people at once: {step.per_second:,.0f} turns a second")
            rate = max(1.0, best(result.turns).per_second / 2)
            result.half_load = await steps.a_second(rate, 2 * self.plan.seconds / STEPS)
            self.say(f"at half of that, {rate:,.0f} turns a second: measured")

            # The web alone: without workers, what it accepts stays in Redis.
            for parent in bot.workers.parents:
                await asyncio.to_thread(parent.stop)
            for connections in PEOPLE:
                step = await steps.at_once(connections, steps.deliver)
                result.webhooks.append(step)
                self.say(f"{connections:4} connections: {step.per_second:,.0f} webhooks a second")
                if step.refused:
                    break
        return result

    @contextmanager
    def _keys_removed(self) -> Iterator[None]:
        """Remove all keys of this run at the end, from a Redis that was not started for it.

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
        """Remove the keys that contain our name, and those of RQ that name our queue inside."""
        queue = f"sayso-{self.name}"
        keys = list(client.scan_iter(f"*{self.name}*", count=1000))
        keys += _keys_of_queue(client, "rq:job:process-*", "origin", queue)
        keys += _keys_of_queue(client, "rq:worker:*", "queues", queue)
        for batch in batched(keys):
            client.unlink(*batch)
        client.srem("rq:queues", f"rq:queue:{queue}")

    def _settings(self, load: SlackLoad, url: str) -> dict[str, Any]:
        """Return the configuration: one channel on our Slack, a model that costs nothing, no tools.

        `url` is the public URL of the first web.
        """
        channel = {
            "platform": "slack",
            "messages_per_second": 0,
            **fake_channel("slack", load.url),
        }
        settings: dict[str, Any] = {
            "name": self.name,
            "public_url": url,
            "redis_url": "${REDIS_URL}",
            "agent": {"model": "offline"},
            "workers": {"still_after": 0},
            "limits": HIGH_LIMITS,
            "channels": {CHANNEL: channel},
        }
        bot_settings = self.plan.settings
        if bot_settings:
            settings["spool"] = bot_settings.spool
            settings["allow_open_redis"] = bot_settings.allow_open_redis
            settings["workers"] = {**bot_settings.workers.model_dump(), "still_after": 0}
        return settings


def _keys_of_queue(client: Redis, pattern: str, field_name: str, queue: str) -> list[Any]:
    """Return the hashes of a key pattern whose field names a queue of RQ."""
    keys: list[Any] = []
    for batch in batched(client.scan_iter(pattern, count=1000)):
        with client.pipeline(transaction=False) as pipeline:
            for key in batch:
                pipeline.hget(key, field_name)
            names = pipeline.execute()
        for key, name in zip(batch, names, strict=True):
            if name in (queue, queue.encode()):
                keys.append(key)
    return keys


def _pids(bot: BotProcesses) -> Mapping[str, Sequence[int]]:
    """Return the process ids of webs and of the parents of workers."""
    parts = {WEB: bot.webs, WORKER: bot.workers.parents}
    return {
        part: [child.process.pid for child in children if child.process]
        for part, children in parts.items()
    }


def batched(keys: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield the keys in lists of up to a thousand."""
    rest = iter(keys)
    while batch := list(islice(rest, 1000)):
        yield batch
