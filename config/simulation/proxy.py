"""Proxy: stands between processes and Redis, loses replies with their connections, and makes Redis slow.

    python -m config.simulation.proxy LISTEN TARGET CUT SLOW_MS SEED COUNTS

`LISTEN` and `TARGET` are Unix sockets. Told to stop, it writes what it did into the file `COUNTS`, as JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random

_CHUNK = 65_536


class Proxy:
    """Lives as long as its process. `cut` is the chance that a command reaches Redis and its reply is lost."""

    def __init__(self, target: str, *, cut: float, slow_ms: float, chance: Random) -> None:
        self.counts: Counter[str] = Counter()
        self._target, self._cut, self._slow_ms, self._chance = target, cut, slow_ms, chance

    async def serve(self, listen: str) -> asyncio.Server:
        """Listen on a Unix socket."""
        return await asyncio.start_unix_server(self._connected, listen)

    async def _connected(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        self.counts["connections"] += 1
        try:
            redis, to_redis = await asyncio.open_unix_connection(self._target)
        except OSError:  # Redis was killed: whoever wants it is turned away as it would
            to_client.close()
            return
        doomed = asyncio.Event()
        ways = {
            asyncio.create_task(self._commands(client, to_redis, doomed)),
            asyncio.create_task(self._replies(redis, to_client, doomed)),
        }
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        to_redis.close()
        to_client.close()

    async def _commands(self, client: asyncio.StreamReader, redis: asyncio.StreamWriter, doomed: asyncio.Event) -> None:
        while data := await client.read(_CHUNK):
            self.counts["commands"] += 1
            if self._chance.random() < self._cut:
                doomed.set()
            redis.write(data)
            await redis.drain()

    async def _replies(self, redis: asyncio.StreamReader, client: asyncio.StreamWriter, doomed: asyncio.Event) -> None:
        while data := await redis.read(_CHUNK):
            if doomed.is_set():
                self.counts["lost replies"] += 1
                return
            if self._slow_ms:
                await asyncio.sleep(self._chance.random() * self._slow_ms / 1000)
            client.write(data)
            await client.drain()


async def run(listen: str, proxy: Proxy, counts: Path) -> None:
    """Serve until SIGTERM, then tell what was done."""
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    server = await proxy.serve(listen)
    await over.wait()
    server.close()
    counts.write_text(json.dumps(proxy.counts))  # noqa: ASYNC240  # the last thing it does


def main(arguments: Sequence[str]) -> None:
    """Serve as a process."""
    listen, target, cut, slow_ms, seed, counts = arguments
    Path(listen).unlink(missing_ok=True)
    proxy = Proxy(target, cut=float(cut), slow_ms=float(slow_ms), chance=Random(int(seed)))  # noqa: S311
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run(listen, proxy, Path(counts)))


if __name__ == "__main__":
    main(sys.argv[1:])
