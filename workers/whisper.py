"""Whisper: hears at once that somebody said stop. A word that is missed is heard when the lease is renewed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from redis.asyncio import Redis
from redis.exceptions import RedisError

from sayso.workers.redis import PREFIX

log = logging.getLogger(__name__)

#: Seconds between two tries to listen while Redis is away.
PAUSE_SECONDS = 1.0


async def listen(url: str, heard: Callable[[str], None], *, prefix: str = PREFIX) -> None:
    """Call `heard` with each conversation in which somebody says stop, until cancelled."""
    while True:
        try:
            async with Redis.from_url(url, decode_responses=True) as client, client.pubsub() as pubsub:
                await pubsub.psubscribe(f"{prefix}*:stop")
                async for message in pubsub.listen():
                    if message["type"] == "pmessage":
                        heard(str(message["data"]))
        except (RedisError, OSError) as exc:
            log.warning("whisper.redis_away", extra={"reason": type(exc).__name__})
        except Exception:
            log.exception("whisper.failed")  # anybody may publish, and not only text
        await asyncio.sleep(PAUSE_SECONDS)
