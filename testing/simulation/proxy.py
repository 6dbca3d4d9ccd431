"""A proxy between the processes of a bot and Redis, which loses replies of Redis and delays them.

A lost reply is the hard case for a client: the command was executed, the connection breaks, and the
client does not know whether the command reached Redis.

    python -m sayso.testing.simulation.proxy LISTEN TARGET LOSS SLOW_MS SEED COUNTS

`LISTEN` and `TARGET` are Unix sockets: where the processes connect, and where Redis listens. `LOSS`
is the share of commands whose reply is lost, `SLOW_MS` how late replies are at most, and `SEED` the
seed of the random numbers. They are drawn in the order of the traffic, so another run with the same
seed loses other replies. On SIGTERM the proxy writes its counts to the file `COUNTS` as JSON.
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
#: The longest time to forward the last commands of a client that is gone, in seconds.
LAST_COMMANDS_SECONDS = 1.0
#: The most bytes that are read at once.
_CHUNK = 65_536


class Proxy:
    """Forwards commands and replies between clients and the Redis at the socket `target`.

    `loss` is the chance, from 0 to 1, that a command reaches Redis and its reply is lost together
    with the connection. `slow_ms` is the most milliseconds by which a reply is late.

    The proxy does not read the protocol of Redis. A command is what one read returns, which may be
    a pipeline or a part of a large command, and a lost reply is what Redis sends next.

    The proxy uses sockets, not streams of asyncio: a stream whose client is gone drops what it has
    read. What a client sent before it died must reach Redis, as it would without a proxy.
    """

    def __init__(self, target: str, *, loss: float, slow_ms: float, rng: Random) -> None:
        #: The number of "connections", "commands" and "lost replies".
        self.counts: Counter[str] = Counter()
        self._target = target
        self._loss = loss
        self._slow_ms = slow_ms
        self._rng = rng
        self._connections: set[asyncio.Task[None]] = set()

    def listen(self, path: str) -> socket:
        """Return a listening Unix socket at this path, for `serve`."""
        listener = _new_socket()
        listener.bind(path)
        listener.listen(BACKLOG)
        return listener

    async def serve(self, listener: socket) -> None:
        """Accept and handle connections until cancelled. Close the listener then."""
        loop = asyncio.get_running_loop()
        with listener:
            while True:
                client, _ = await loop.sock_accept(listener)
                task = loop.create_task(self._handle(client))
                self._connections.add(task)
                task.add_done_callback(self._connections.discard)

    async def _handle(self, client: socket) -> None:
        """Forward between one client and Redis, until one of them hangs up or a reply is lost."""
        self.counts["connections"] += 1
        client.setblocking(False)
        with client, _new_socket() as redis:
            try:
                await asyncio.get_running_loop().sock_connect(redis, self._target)
            except OSError:
                # Redis was killed. The client's connection closes, as it would without a proxy.
                return
            lose_reply = asyncio.Event()
            commands = asyncio.create_task(self._forward_commands(client, redis, lose_reply))
            replies = asyncio.create_task(self._forward_replies(redis, client, lose_reply))
            await asyncio.wait({commands, replies}, return_when=asyncio.FIRST_COMPLETED)

            # An error here means in most cases that a reply could not be sent, because the client is
            # gone. Forward what it sent before. If it hung up without a reply on its way, `commands`
            # has forwarded all of it already. After a lost reply nothing more is forwarded.
            if replies.done() and replies.exception():
                await asyncio.wait({commands}, timeout=LAST_COMMANDS_SECONDS)
            for task in (commands, replies):
                task.cancel()
            await asyncio.gather(commands, replies, return_exceptions=True)

    async def _forward_commands(
        self, client: socket, redis: socket, lose_reply: asyncio.Event
    ) -> None:
        """Forward what the client sends, until it hangs up. Draw whether to lose the reply."""
        loop = asyncio.get_running_loop()
        while data := await loop.sock_recv(client, _CHUNK):
            self.counts["commands"] += 1
            if self._rng.random() < self._loss:
                lose_reply.set()
            await loop.sock_sendall(redis, data)

    async def _forward_replies(
        self, redis: socket, client: socket, lose_reply: asyncio.Event
    ) -> None:
        """Forward what Redis sends, until one reply is lost or Redis hangs up."""
        loop = asyncio.get_running_loop()
        while data := await loop.sock_recv(redis, _CHUNK):
            if lose_reply.is_set():
                self.counts["lost replies"] += 1
                return
            if self._slow_ms:
                await asyncio.sleep(self._rng.random() * self._slow_ms / 1000)
            await loop.sock_sendall(client, data)


def _new_socket() -> socket:
    unix_socket = socket(AF_UNIX, SOCK_STREAM)
    unix_socket.setblocking(False)
    return unix_socket


async def run(listen: str, proxy: Proxy, counts: Path) -> None:
    """Serve until SIGTERM, then write the counts. Raises OSError if no client can be accepted."""
    serving = asyncio.create_task(proxy.serve(proxy.listen(listen)))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, serving.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await serving
    counts.write_text(json.dumps(proxy.counts))  # noqa: ASYNC240  # nothing else runs


def main(arguments: Sequence[str]) -> None:
    """Run the proxy as a process."""
    listen, target, loss, slow_ms, seed, counts = arguments
    Path(listen).unlink(missing_ok=True)
    proxy = Proxy(target, loss=float(loss), slow_ms=float(slow_ms), rng=Random(int(seed)))
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run(listen, proxy, Path(counts)))


if __name__ == "__main__":
    main(sys.argv[1:])
