"""Clients: one connection pool to a vendor per event loop, for as long as that loop lives."""

from __future__ import annotations

import asyncio
import functools
import os
import ssl
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")

#: Seconds to connect, and between two pieces of an answer where a request has no limit of its own.
CONNECT_SECONDS, READ_SECONDS = 5.0, 600.0


class Clients(Generic[T]):
    """Lives as long as its provider. A connection belongs to the loop it was opened in, and to no forked process."""

    def __init__(self, make: Callable[[], T], close: Callable[[T], Awaitable[None]]) -> None:
        self._make, self._close = make, close
        self._begin()

    def __len__(self) -> int:
        return len(self._by_loop)

    def get(self) -> T:
        """The client of the running loop, made where there is none yet."""
        if self._pid != os.getpid():
            self._begin()
        loop = asyncio.get_running_loop()
        with self._lock:
            self._forget_dead()
            if loop not in self._by_loop:
                self._by_loop[loop] = self._make()
            return self._by_loop[loop]

    async def aclose(self) -> None:
        """Close the client of the running loop; the next `get` makes another."""
        with self._lock:
            client = self._by_loop.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await self._close(client)

    def _begin(self) -> None:
        """Loops of several threads come here. A forked process may find the lock taken for ever, so it has its own."""
        self._pid, self._lock = os.getpid(), threading.Lock()
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, T] = WeakKeyDictionary()

    def _forget_dead(self) -> None:
        """A client holds on to its loop, so weak keys alone would keep both for ever."""
        for loop in [each for each in self._by_loop if each.is_closed()]:
            del self._by_loop[loop]


def http_client() -> httpx2.AsyncClient:
    """An HTTP client for a vendor's library. The libraries' own close themselves when they are collected, in whichever
    loop then runs, and fail aloud because theirs has ended.
    """
    import httpx2

    timeout = httpx2.Timeout(READ_SECONDS, connect=CONNECT_SECONDS)
    return httpx2.AsyncClient(timeout=timeout, verify=_certificates(), follow_redirects=True)


@functools.cache
def _certificates() -> ssl.SSLContext:
    """Reading them takes 20 ms, so a process does it once."""
    import httpx2

    return httpx2.create_ssl_context()
