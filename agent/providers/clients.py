"""HTTP connections to vendors: one client per event loop, and connections that are closed after each request."""

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
#: Time to connect, and the longest pause in an answer where a request has no timeout of its own, in seconds.
CONNECT_SECONDS, READ_SECONDS = 5.0, 600.0
#: How many connections one event loop may have, and how many of them it keeps open while they are idle.
MAX_CONNECTIONS, MAX_IDLE_CONNECTIONS = 1000, 100
#: Collects the HTTP responses that a vendor's library opens; see `closing_responses`.
_opened_responses: ContextVar[list[httpx2.Response] | None] = ContextVar("sayso_responses", default=None)


class Clients(Generic[T]):
    """One client per event loop and process, as connections work only in the loop and the process that opened them.

    Thread-safe. Lives as long as its provider.
    """

    def __init__(self, make: Callable[[], T], close: Callable[[T], Awaitable[None]]) -> None:
        self._make, self._close = make, close
        self._start()

    def __len__(self) -> int:
        return len(self._by_loop)

    def get(self) -> T:
        """Return the client of the running loop; make it if there is none yet."""
        self._restart_after_fork()
        loop = asyncio.get_running_loop()
        with self._lock:
            # A client holds a reference to its loop, so the weak keys alone would keep both for ever.
            for closed in [each for each in self._by_loop if each.is_closed()]:
                del self._by_loop[closed]
            if loop not in self._by_loop:
                self._by_loop[loop] = self._make()
            return self._by_loop[loop]

    async def aclose(self) -> None:
        """Close the client of the running loop; the next `get` makes a new one."""
        self._restart_after_fork()
        with self._lock:
            client = self._by_loop.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await self._close(client)

    def _restart_after_fork(self) -> None:
        if self._pid != os.getpid():
            self._start()

    def _start(self) -> None:
        # The lock too is made anew: in a forked process the old one may be held for ever.
        self._pid, self._lock = os.getpid(), threading.Lock()
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, T] = WeakKeyDictionary()


def http_client() -> httpx2.AsyncClient:
    """Return an HTTP client for a vendor's library.

    It follows no redirects, which would take the API key and the conversation to another server. The libraries' own
    clients are not used: they close themselves when garbage is collected, in whichever loop runs then, and log errors
    because their own loop has ended.
    """
    import httpx2

    timeout = httpx2.Timeout(READ_SECONDS, connect=CONNECT_SECONDS)
    limits = httpx2.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_IDLE_CONNECTIONS)
    hooks = {"response": [_collect]}
    return httpx2.AsyncClient(timeout=timeout, limits=limits, verify=_tls_context(), event_hooks=hooks)


@functools.cache
def _tls_context() -> ssl.SSLContext:
    """Return the TLS context of this process. Loading the certificates takes 20 ms."""
    import httpx2

    return httpx2.create_ssl_context()


async def _collect(response: httpx2.Response) -> None:
    responses = _opened_responses.get()
    if responses is not None:
        responses.append(response)


@asynccontextmanager
async def closing_responses(opening: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
    """Enter a stream of a vendor's library, and close every HTTP response that it opened at the end.

    Some libraries leave a stream that is not read to its end to the garbage collector, which closes it late or never.
    """
    responses = list["httpx2.Response"]()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(_close, responses)
        token = _opened_responses.set(responses)
        try:
            opened = await stack.enter_async_context(opening)
        finally:
            _opened_responses.reset(token)
        stack.push_async_callback(_close, responses)  # before the library's own cleanup
        yield opened


async def _close(responses: list[httpx2.Response]) -> None:
    for response in responses:
        with suppress(Exception):  # the answer is complete, or its error is being raised already
            await response.aclose()
