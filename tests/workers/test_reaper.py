"""Reaper: goes round for as long as its worker lives, whatever a round meets."""

from __future__ import annotations

import asyncio

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from workers import reaper as reapers
from workers.lifeline import Lifeline
from workers.mailbox import LUA
from workers.reaper import Reaper
from workers.redis import Scripts


@pytest.mark.parametrize("error", [RedisConnectionError("away"), ValueError("no number"), KeyError("gone")])
def test_round_that_fails_is_reported_and_not_the_last(redis_client, monkeypatch, caplog, tmp_path, error):
    """A worker that stopped to reap, and to show signs of life, would be half dead and nobody would know."""
    monkeypatch.setattr(reapers, "INTERVAL", 0)
    reaper = Reaper(redis_client, Scripts(redis_client, LUA), lambda _: (), Lifeline(tmp_path))
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
    said = [record.message for record in caplog.records if record.name == "workers.reaper"]
    assert set(said) <= {"reaper.redis_away", "reaper.failed"}
    assert len(said) >= 2
