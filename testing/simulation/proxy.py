"""Proxy: stands between processes and Redis, loses replies with their connections, and makes Redis slow.

    python -m sayso.testing.simulation.proxy LISTEN TARGET CUT SLOW_MS SEED COUNTS

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
from socket import AF_UNIX, SOCK_STREAM, socket

#: Connections that may wait to be taken.
BACKLOG = 512
#: Seconds for what a client said that is gone.
LAST_WORDS_SECONDS = 1.0
_CHUNK = 65_536


class Proxy:
    """Lives as long as its process. `cut` is the chance that a command reaches Redis and its reply is lost.

    Sockets, not streams: what a client said before it died must reach Redis, as it would without us.
    """

    def __init__(self, target: str, *, cut: float, slow_ms: float, chance: Random) -> None:
        self.counts: Counter[str] = Counter()
        self._target, self._cut, self._slow_ms, self._chance = target, cut, slow_ms, chance
        self._connections: set[asyncio.Task[None]] = set()

    def listen(self, path: str) -> socket:
        """A Unix socket to `serve`."""
        front = _new_socket()
        front.bind(path)
        front.listen(BACKLOG)
        return front

    async def serve(self, front: socket) -> None:
        """Take whoever comes, until cancelled."""
        loop = asyncio.get_running_loop()
        with front:
            while True:
                client, _ = await loop.sock_accept(front)
                task = loop.create_task(self._connected(client))
                self._connections.add(task)
                task.add_done_callback(self._connections.discard)

    async def _connected(self, client: socket) -> None:
        self.counts["connections"] += 1
        client.setblocking(False)
        with client, _new_socket() as redis, contextlib.suppress(OSError):
            # Redis may have been killed: whoever wants it is turned away as it would.
            await asyncio.get_running_loop().sock_connect(redis, self._target)
            doomed = asyncio.Event()
            asking = asyncio.create_task(self._commands(client, redis, doomed))
            answering = asyncio.create_task(self._replies(redis, client, doomed))
            await asyncio.wait({asking, answering}, return_when=asyncio.FIRST_COMPLETED)
            if answering.done() and answering.exception():  # the client is gone: what it said goes on
                await asyncio.wait({asking}, timeout=LAST_WORDS_SECONDS)
            for way in (asking, answering):
                way.cancel()
            await asyncio.gather(asking, answering, return_exceptions=True)

    async def _commands(self, client: socket, redis: socket, doomed: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        while data := await loop.sock_recv(client, _CHUNK):
            self.counts["commands"] += 1
            if self._chance.random() < self._cut:
                doomed.set()
            await loop.sock_sendall(redis, data)

    async def _replies(self, redis: socket, client: socket, doomed: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        while data := await loop.sock_recv(redis, _CHUNK):
            if doomed.is_set():
                self.counts["lost replies"] += 1
                return
            if self._slow_ms:
                await asyncio.sleep(self._chance.random() * self._slow_ms / 1000)
            await loop.sock_sendall(client, data)


def _new_socket() -> socket:
    made = socket(AF_UNIX, SOCK_STREAM)
    made.setblocking(False)
    return made


async def run(listen: str, proxy: Proxy, counts: Path) -> None:
    """Serve until SIGTERM, then tell what was done."""
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    serving = asyncio.create_task(proxy.serve(proxy.listen(listen)))
    await over.wait()
    serving.cancel()
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
