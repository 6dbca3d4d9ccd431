"""Reaper: runs round after round for as long as its worker lives, whatever fails."""

from __future__ import annotations

import asyncio
import threading

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from sayso.pending.sharded_scripts import SHARDS, ShardedScripts
from sayso.workers import recovery as reapers
from sayso.workers.recovery import Reaper, WorkerLock
from sayso.workers.scripts import CONVERSATION_SCRIPTS
from sayso.workers.wake_ups import no_wake_up


@pytest.mark.parametrize(
    "error", [RedisConnectionError("away"), ValueError("no number"), KeyError("gone")]
)
def test_round_that_fails_is_reported_and_not_the_last(
    redis_client, monkeypatch, caplog, tmp_path, error
):
    """Without its rounds and heartbeats a worker would be half dead, unnoticed."""
    monkeypatch.setattr(reapers, "INTERVAL", 0)
    reaper = Reaper(
        redis_client,
        ShardedScripts(redis_client, CONVERSATION_SCRIPTS),
        no_wake_up,
        WorkerLock(tmp_path),
    )
    rounds = []

    async def story():
        third = asyncio.Event()
        loop = asyncio.get_running_loop()

        def go_round() -> None:
            rounds.append("round")
            if len(rounds) == 3:
                loop.call_soon_threadsafe(third.set)
            raise error

        monkeypatch.setattr(reaper, "round", go_round)
        going = asyncio.create_task(reaper.forever())
        await third.wait()
        going.cancel()
        await asyncio.wait({going})
        assert going.cancelled()

    asyncio.run(story())
    said = [record.message for record in caplog.records if record.name == "sayso.workers.recovery"]
    assert set(said) <= {"reaper.redis_away", "reaper.failed"}
    assert len(said) >= 2


def test_heartbeats_and_releases_do_not_wait_for_a_long_round(redis_client, monkeypatch, tmp_path):
    """A worker with a long round does not count as dead, and dead workers' leases are released in time."""
    monkeypatch.setattr(reapers, "INTERVAL", 0)
    reaper = Reaper(
        redis_client,
        ShardedScripts(redis_client, CONVERSATION_SCRIPTS),
        no_wake_up,
        WorkerLock(tmp_path),
    )
    begun, over = threading.Event(), threading.Event()
    monkeypatch.setattr(reaper, "round", lambda: (begun.set(), over.wait()))

    async def story():
        third = {name: asyncio.Event() for name in ("beat", "release_dead")}
        loop = asyncio.get_running_loop()

        def count(name: str, times: list[str]) -> None:
            times.append(name)
            if begun.is_set() and len(times) >= 3:
                loop.call_soon_threadsafe(third[name].set)

        beats, burials = [], []
        monkeypatch.setattr(reaper.heartbeat, "beat", lambda: count("beat", beats))
        monkeypatch.setattr(reaper, "release_dead", lambda: count("release_dead", burials))
        going = asyncio.create_task(reaper.forever())
        await asyncio.gather(*(each.wait() for each in third.values()))
        over.set()
        going.cancel()
        await asyncio.wait({going})

    asyncio.run(story())


class SlowScripts:
    """Scripts that note the shards asked for; each call takes this many seconds of `now`."""

    def __init__(self, seconds: float) -> None:
        self.now = 0.0
        self.looked: list[int] = []
        self._seconds = seconds

    def on_shard(self, name: str, shard: int, *_: object) -> list[str]:
        """Return no overdue conversation."""
        self.now += self._seconds
        self.looked.append(shard)
        return []


def test_long_round_ends_and_the_next_goes_on_from_there(redis_client, tmp_path):
    """Redis has other clients to answer, and no shard is left out."""
    scripts = SlowScripts(seconds=0.2)
    reaper = Reaper(
        redis_client, scripts, no_wake_up, WorkerLock(tmp_path), clock=lambda: scripts.now
    )
    for _ in range(SHARDS):
        redis_client.delete(reaper._round_lock)
        reaper.round()
    assert scripts.looked[:6] == [0, 1, 2, 3, 4, 5]
    assert {scripts.looked.count(shard) for shard in range(SHARDS)} == {3}
