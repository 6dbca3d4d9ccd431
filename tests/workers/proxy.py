"""A TCP proxy between a client and Redis that behaves like a bad network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

#: Maps bytes that pass to themselves or to others; None cuts the connection.
Fate = Callable[[bytes], bytes | None]


def as_it_is(data: bytes) -> bytes:
    """Return the bytes unchanged."""
    return data


def socket_of(redis_url: str) -> str:
    """Return the Unix socket of the session's Redis."""
    return redis_url.partition("unix://")[2].partition("?")[0]


class Proxy:
    """Lives in one event loop. `questions` and `answers` decide what passes; `opened` counts connections."""

    def __init__(self, redis_url: str) -> None:
        self.questions: Fate = as_it_is
        self.answers: Fate = as_it_is
        self.opened = 0
        self._socket = socket_of(redis_url)
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """Return the URL to connect to."""
        return f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        redis_reader, redis_writer = await asyncio.open_unix_connection(self._socket)
        for source, sink, side in (
            (reader, redis_writer, "questions"),
            (redis_reader, writer, "answers"),
        ):
            task = asyncio.create_task(self._pump(source, sink, side, (writer, redis_writer)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        side: str,
        ends: tuple[asyncio.StreamWriter, ...],
    ) -> None:
        while data := await source.read(1 << 16):
            passes = getattr(self, side)(data)
            if passes is None:
                break
            sink.write(passes)
        for end in ends:
            end.transport.abort()
