"""McpLink: the connection to one MCP server, made when it is needed and made again after it broke."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from sayso.agent.sources.errors import AnswerLost, SourceUnreachable
from sayso.agent.sources.mcp_connection import McpConnection
from sayso.agent.sources.mcp_server import McpServer
from sayso.agent.sources.pause import pause_seconds
from sayso.workers.loop import LoopThread

if TYPE_CHECKING:
    from mcp.types import CallToolResult
    from mcp.types import Tool as Definition

T = TypeVar("T")

#: Seconds after a first failure before a server is tried again; they double with each further one.
FIRST_PAUSE_SECONDS = 0.5
#: Seconds between two attempts at most.
LONGEST_PAUSE_SECONDS = 30.0
#: Seconds of a pause that a call waits for; for a longer one it is refused at once.
PATIENCE_SECONDS = 2.0
#: Seconds that closing may take: a server that ignores the end of its input is killed meanwhile.
CLOSE_SECONDS = 5.0


class McpLink:
    """Lives as long as its provider. Callers may be on any thread and any event loop.

    The connection lives on an event loop of its own, in a daemon thread of the process that asks first: a fork has
    none of its parent's, and makes its own. `changed` is called on that thread when the server says that its tools
    have changed, and when it is lost.
    """

    def __init__(self, server: McpServer, *, connect_seconds: float, call_seconds: float) -> None:
        self._server = server
        self._connect_seconds = connect_seconds
        self._call_seconds = call_seconds
        self._homes: dict[int, _Home] = {}
        self.changed: Callable[[], None] = lambda: None

    async def definitions(self) -> list[Definition]:
        """The server's tools, as it last listed them. Raises SourceUnreachable."""
        return await self._at_home(_Home.definitions)

    async def call(self, name: str, arguments: Mapping[str, Any]) -> CallToolResult:
        """Call a tool by the server's own name for it. Raises SourceUnreachable, CallRefused and AnswerLost."""
        return await self._at_home(lambda home: home.call(name, dict(arguments), self._call_seconds))

    def close(self) -> None:
        """End the connection and its thread; the next call makes new ones."""
        home = self._homes.pop(os.getpid(), None)
        if home is not None:
            home.close()

    async def _at_home(self, work: Callable[[_Home], Coroutine[Any, Any, T]]) -> T:
        home = self._homes.setdefault(os.getpid(), _Home(self._server, self._connect_seconds, self._tell))
        return await asyncio.wrap_future(home.loop.submit(work(home)))

    def _tell(self) -> None:
        self.changed()


@dataclass(slots=True)
class _Home:
    """What one process has of a link. Everything but `loop` and `close` is called on its loop."""

    server: McpServer
    connect_seconds: float
    tell: Callable[[], None]
    clock: Callable[[], float] = time.monotonic
    pid: int = field(default_factory=os.getpid)
    connection: McpConnection | None = None
    connections: list[McpConnection] = field(default_factory=list)
    failures: int = 0
    not_before: float = 0.0
    _why: str = ""
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    _thread: LoopThread | None = None
    _making: threading.Lock = field(default_factory=threading.Lock)

    @property
    def loop(self) -> LoopThread:
        with self._making:
            if self._thread is None:
                self._thread = LoopThread(asyncio.new_event_loop(), f"sayso-mcp-{self.server.name}")
                atexit.register(self.close)
            return self._thread

    def close(self) -> None:
        if self.pid != os.getpid():  # the parent's, seen by a fork at its exit
            return
        atexit.unregister(self.close)
        with self._making:
            thread, self._thread = self._thread, None
        if thread is not None:
            with contextlib.suppress(TimeoutError):
                thread.submit(self._leave()).result(CLOSE_SECONDS)
            thread.close()

    async def definitions(self) -> list[Definition]:
        return (await self._connected()).definitions

    async def call(self, name: str, arguments: dict[str, Any], seconds: float) -> CallToolResult:
        connection = await self._connected()
        try:
            result = await connection.call(name, arguments, seconds)
        except AnswerLost:
            self._failed()
            raise
        self.failures = 0
        return result

    async def _connected(self) -> McpConnection:
        async with self._opening:
            if self.connection is None or not self.connection.is_open:
                await self._pause()
                self.connection = await self._opened()
            return self.connection

    async def _opened(self) -> McpConnection:
        connection = McpConnection(self.server, self.tell)
        self.connections = [*filter(lambda each: not each.is_over, self.connections), connection]
        try:
            await connection.open(self.connect_seconds)
        except SourceUnreachable as exc:
            self._why = str(exc)
            self._failed()
            raise
        self.failures = 0
        return connection

    async def _pause(self) -> None:
        left = self.not_before - self.clock()
        if left > PATIENCE_SECONDS:
            raise SourceUnreachable(f"{self._why or f'{self.server} broke off'}; the next attempt is in {left:.0f} s")
        await asyncio.sleep(max(left, 0))

    def _failed(self) -> None:
        self.not_before = self.clock() + pause_seconds(self.failures, FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        self.failures += 1

    async def _leave(self) -> None:
        await asyncio.gather(*(connection.close() for connection in self.connections))
