"""Stop signals: after any published message the next stop is received."""

from __future__ import annotations

import asyncio

from redis import Redis

from sayso.infra.redis.client import PREFIX
from sayso.workers import lease
from sayso.workers.lease import listen_for_stops
from tests.flows.system import until


def test_published_message_that_is_no_text_does_not_end_listening(
    redis_url, redis_client, monkeypatch
):
    """It is logged, and the worker listens again."""
    monkeypatch.setattr(lease, "PAUSE_SECONDS", 0)

    def say(words: bytes | str) -> None:
        with Redis.from_url(redis_url) as client:
            until(lambda: client.publish(f"{PREFIX}{{0}}:stop", words))

    async def story():
        heard: asyncio.Queue[str] = asyncio.Queue()
        reported = asyncio.Event()
        monkeypatch.setattr(lease.log, "exception", lambda _: reported.set())
        listening = asyncio.create_task(listen_for_stops(redis_url, heard.put_nowait))
        await asyncio.to_thread(say, "first")
        first = await heard.get()
        await asyncio.to_thread(say, b"\xff\xfe")
        await reported.wait()
        await asyncio.to_thread(say, "second")
        second = await heard.get()
        listening.cancel()
        await asyncio.wait({listening})
        return first, second

    assert asyncio.run(story()) == ("first", "second")
