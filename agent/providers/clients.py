"""Clients: one connection pool to a vendor per event loop, for as long as that loop lives."""

from __future__ import annotations

import asyncio
import functools
import os
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")

#: Seconds to connect, and between two pieces of an answer where a request has no limit of its own.
CONNECT_SECONDS, READ_SECONDS = 5.0, 600.0
#: Connections of one event loop, and those of them that are kept while nobody needs them.
MAX_CONNECTIONS, MAX_IDLE_CONNECTIONS = 1000, 100

#: Whoever wants to close the responses that a vendor's library begins to read.
_seen: ContextVar[list[httpx2.Response] | None] = ContextVar("sayso_responses", default=None)


class Clients(Generic[T]):
    """Lives as long as its provider. A connection belongs to the loop it was opened in, and to no forked process."""

    def __init__(self, make: Callable[[], T], close: Callable[[T], Awaitable[None]]) -> None:
        self._make, self._close = make, close
        self._begin()

    def __len__(self) -> int:
        return len(self._by_loop)

    def get(self) -> T:
        """The client of the running loop, made where there is none yet."""
        self._begin_after_fork()
        loop = asyncio.get_running_loop()
        with self._lock:
            self._forget_dead()
            if loop not in self._by_loop:
                self._by_loop[loop] = self._make()
            return self._by_loop[loop]

    async def aclose(self) -> None:
        """Close the client of the running loop; the next `get` makes another."""
        self._begin_after_fork()
        with self._lock:
            client = self._by_loop.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await self._close(client)

    def _begin_after_fork(self) -> None:
        if self._pid != os.getpid():
            self._begin()

    def _begin(self) -> None:
        """Loops of several threads come here. A forked process may find the lock taken for ever, so it has its own."""
        self._pid, self._lock = os.getpid(), threading.Lock()
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, T] = WeakKeyDictionary()

    def _forget_dead(self) -> None:
        """A client holds on to its loop, so weak keys alone would keep both for ever."""
        for loop in [each for each in self._by_loop if each.is_closed()]:
            del self._by_loop[loop]


def http_client() -> httpx2.AsyncClient:
    """An HTTP client for a vendor's library. It follows nobody elsewhere: some headers with a key would come along,
    and so would what people wrote. The libraries' own close themselves when they are collected, in whichever
    loop then runs, and fail aloud because theirs has ended.
    """
    import httpx2

    timeout = httpx2.Timeout(READ_SECONDS, connect=CONNECT_SECONDS)
    limits = httpx2.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_IDLE_CONNECTIONS)
    hooks = {"response": [_see]}
    return httpx2.AsyncClient(timeout=timeout, limits=limits, verify=_certificates(), event_hooks=hooks)


@asynccontextmanager
async def released(opening: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
    """What a vendor's library opens. In the end no connection is left: a stream that nobody reads to its end is left to
    the garbage collector by some, which closes some of them.
    """
    responses = list["httpx2.Response"]()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(_close, responses)
        token = _seen.set(responses)
        try:
            opened = await stack.enter_async_context(opening)
        finally:
            _seen.reset(token)
        stack.push_async_callback(_close, responses)  # before the library comes to it
        yield opened


async def _see(response: httpx2.Response) -> None:
    seen = _seen.get()
    if seen is not None:
        seen.append(response)


async def _close(responses: list[httpx2.Response]) -> None:
    for response in responses:
        with suppress(Exception):  # the answer is whole, or its error is on its way
            await response.aclose()


@functools.cache
def _certificates() -> ssl.SSLContext:
    """Reading them takes 20 ms, so a process does it once."""
    import httpx2

    return httpx2.create_ssl_context()
