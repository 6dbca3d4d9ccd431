"""Http: connections to a platform that stay open from call to call, as long as the event loop they belong to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from ssl import SSLContext
from typing import TYPE_CHECKING, Generic, TypeVar
from urllib.request import getproxies

if TYPE_CHECKING:
    from aiohttp import ClientSession

T = TypeVar("T")

#: Connections to one platform at once; further calls wait for one that is free, as long as a call may take.
POOL_SIZE = 64
#: Seconds until a connection stands.
CONNECT_SECONDS = 5.0
#: Seconds for which an answer may say nothing, and for a whole call: a large file may take its time on its way out.
ANSWER_SECONDS, CALL_SECONDS = 10.0, 60.0
#: Seconds that a connection is kept unused. Shorter than platforms keep theirs: what is sent on one that they are just
#: hanging up is lost, and nobody knows whether it was read.
IDLE_SECONDS = 5.0


class PerLoop(Generic[T]):
    """A platform's client for each event loop, made of a session of its own. It is closed when its loop ends, which
    cancels what still runs on it. One instance serves a whole process, from any thread and across forks. Without `tls`
    the system's certificates count.
    """

    def __init__(self, make: Callable[[ClientSession], T], *, tls: Callable[[], SSLContext] | None = None) -> None:
        self._make, self._tls = make, tls
        self._kept: dict[asyncio.AbstractEventLoop, tuple[T, asyncio.Task[None]]] = {}

    def here(self) -> T:
        """The client of the running loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._kept:
            session = _new_session(self._tls() if self._tls else True)
            mine = self._make(session), loop.create_task(_close_at_the_end(session))
            # Replaced as a whole, so that threads with loops of their own need no lock.
            self._kept = {old: kept for old, kept in self._kept.items() if not old.is_closed()} | {loop: mine}
        return self._kept[loop][0]


def never_sent(exc: BaseException) -> bool:
    """Whether this error of a session says that its request certainly did not leave: there was no connection."""
    from aiohttp import ClientConnectorError, ClientHttpProxyError, ConnectionTimeoutError

    return isinstance(exc, (ClientConnectorError, ClientHttpProxyError, ConnectionTimeoutError))


def _new_session(tls: SSLContext | bool) -> ClientSession:
    from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector

    times = ClientTimeout(total=CALL_SECONDS, sock_connect=CONNECT_SECONDS, sock_read=ANSWER_SECONDS)
    connector = TCPConnector(limit=POOL_SIZE, keepalive_timeout=IDLE_SECONDS, ssl=tls)
    # Looking for a proxy costs as much as a request: where none is named, nobody looks.
    proxied = bool(getproxies())
    return ClientSession(connector=connector, timeout=times, cookie_jar=DummyCookieJar(), trust_env=proxied)


async def _close_at_the_end(session: ClientSession) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        await session.close()
