"""A proxy between the processes and Redis that loses replies with
their connections and delays them.

    python -m sayso.testing.simulation.proxy LISTEN TARGET CUT SLOW_MS SEED COUNTS

`LISTEN` and `TARGET` are Unix sockets. On SIGTERM it writes its counts to the file `COUNTS`,
as JSON.
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

#: Connections that may wait to be accepted.
BACKLOG = 512
#: How long the last commands of a closed client are still forwarded, in seconds.
LAST_COMMANDS_SECONDS = 1.0
_CHUNK = 65_536


class Proxy:
    """Forwards commands and replies.

    `cut` is the chance that a command reaches Redis and its reply is lost.

    Uses sockets, not streams: what a client sent before it died must reach Redis,
    as it would without a proxy.
    """

    def __init__(self, target: str, *, cut: float, slow_ms: float, chance: Random) -> None:
        self.counts: Counter[str] = Counter()
        self._target = target
        self._cut = cut
        self._slow_ms = slow_ms
        self._chance = chance
        self._connections: set[asyncio.Task[None]] = set()

    def listen(self, path: str) -> socket:
        """Return a Unix socket for `serve`."""
        front = _new_socket()
        front.bind(path)
        front.listen(BACKLOG)
        return front

    async def serve(self, front: socket) -> None:
        """Accept connections until cancelled."""
        loop = asyncio.get_running_loop()
        with front:
            while True:
                client, _ = await loop.sock_accept(front)
                task = loop.create_task(self._handle(client))
                self._connections.add(task)
                task.add_done_callback(self._connections.discard)

    async def _handle(self, client: socket) -> None:
        self.counts["connections"] += 1
        client.setblocking(False)
        with client, _new_socket() as redis, contextlib.suppress(OSError):
            # If Redis was killed, the client's connection is closed, as Redis itself would.
            await asyncio.get_running_loop().sock_connect(redis, self._target)
            doomed = asyncio.Event()
            commands = asyncio.create_task(self._commands(client, redis, doomed))
            replies = asyncio.create_task(self._replies(redis, client, doomed))
            await asyncio.wait({commands, replies}, return_when=asyncio.FIRST_COMPLETED)
            if replies.done() and replies.exception():  # the client is gone: forward what it sent
                await asyncio.wait({commands}, timeout=LAST_COMMANDS_SECONDS)
            for task in (commands, replies):
                task.cancel()
            await asyncio.gather(commands, replies, return_exceptions=True)

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
    unix_socket = socket(AF_UNIX, SOCK_STREAM)
    unix_socket.setblocking(False)
    return unix_socket


async def run(listen: str, proxy: Proxy, counts: Path) -> None:
    """Serve until SIGTERM, then write the counts."""
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    serving = asyncio.create_task(proxy.serve(proxy.listen(listen)))
    await over.wait()
    serving.cancel()
    counts.write_text(json.dumps(proxy.counts))  # noqa: ASYNC240  # the last thing it does


def main(arguments: Sequence[str]) -> None:
    """Run the proxy as a process."""
    listen, target, cut, slow_ms, seed, counts = arguments
    Path(listen).unlink(missing_ok=True)
    proxy = Proxy(target, cut=float(cut), slow_ms=float(slow_ms), chance=Random(int(seed)))
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run(listen, proxy, Path(counts)))


if __name__ == "__main__":
    main(sys.argv[1:])
