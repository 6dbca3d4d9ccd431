"""McpConnection: one connection to an MCP server, from its handshake until it is closed or lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, TypeVar

from sayso.agent.extras import install_command
from sayso.agent.sources.errors import AnswerLost, CallRefused, SourceError, SourceUnreachable, scrub
from sayso.agent.sources.mcp_errors import broke_off, is_forgotten, is_unclear, told, words
from sayso.agent.sources.mcp_server import HttpAnswer, McpServer, Noticed, http_answer
from sayso.agent.sources.names import MAX_TOOLS

if TYPE_CHECKING:
    from mcp import Client
    from mcp.shared.exceptions import MCPError
    from mcp.types import CallToolResult
    from mcp.types import Tool as Definition

T = TypeVar("T")

log = logging.getLogger(__name__)

#: Pages of a list of tools that are read.
MAX_PAGES = 50
#: Seconds that a call which is given up has to tell the server so.
CANCEL_SECONDS = 1.0


class McpConnection:
    """Entered and left by one task of its own, the actor, as the SDK's cancel scopes demand; calls are other tasks.

    A connection that broke, or on which a call was given up, takes no new calls, and closes after the last one.
    """

    def __init__(self, server: McpServer, changed: Callable[[], None]) -> None:
        self._server = server
        self._changed = changed
        self._noticed = Noticed(self._lose)
        self._ready = asyncio.Event()
        self._ended = asyncio.Event()
        self._stop = asyncio.Event()
        self._stale = asyncio.Event()
        self._calls = 0
        self._lost = False
        self._reason = ""
        self._client: Client | None = None
        self._actor: asyncio.Task[None] | None = None
        self.definitions: list[Definition] = []

    @property
    def is_open(self) -> bool:
        """Whether it takes calls."""
        return self._ready.is_set() and not (self._lost or self._ended.is_set())

    @property
    def is_over(self) -> bool:
        """Whether nothing of it is left."""
        return self._ended.is_set()

    async def open(self, seconds: float) -> None:
        """Connect and list the tools. Raises SourceUnreachable."""
        self._actor = asyncio.create_task(self._run())
        try:
            await _first(self._ready, self._ended, seconds=seconds)
        except BaseException:
            self._abandon()
            raise
        if not self._ready.is_set():
            self._abandon()
            raise SourceUnreachable(self._unreachable(seconds))

    async def call(self, name: str, arguments: dict[str, Any], seconds: float) -> CallToolResult:
        """Call a tool. Raises AnswerLost when no answer comes, and CallRefused for one that is a refusal."""
        assert self._client is not None  # noqa: S101  # `open` has returned
        self._calls += 1
        answer = HttpAnswer()
        asked = asyncio.create_task(_noting(answer, self._client.call_tool(name, arguments)))
        gone = asyncio.create_task(self._ended.wait())
        try:
            await asyncio.wait({asked, gone}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            return self._answer(asked, seconds, answer.status)
        finally:
            gone.cancel()
            await _given_up(asked)
            self._calls -= 1
            self._close_if_idle()

    async def close(self) -> None:
        """Leave the server. One that does not end by itself is killed."""
        self._lost = True
        self._stop.set()
        if not self._ready.is_set():
            self._abandon()
        await self._ended.wait()

    def _abandon(self) -> None:
        """Leave in the middle of the handshake. Once: another cancellation would end the leaving itself."""
        if self._actor is not None:
            self._actor.cancel()
            self._actor = None

    def _answer(self, asked: asyncio.Task[CallToolResult], seconds: float, status: int) -> CallToolResult:
        from mcp.shared.exceptions import MCPError

        if not asked.done():
            self._lose()
            late = f"gave no answer within {seconds:g} s"
            raise AnswerLost(f"{self._server} {'ended before it answered' if self._ended.is_set() else late}")
        try:
            return asked.result()
        except MCPError as exc:
            raise self._failure(exc, status) from None
        except (Exception, asyncio.CancelledError) as exc:  # what the answer held was no result
            raise AnswerLost(f"{self._server} answered with something unreadable ({type(exc).__name__})") from exc

    def _failure(self, exc: MCPError, status: int) -> SourceError:
        if broke_off(exc):
            self._lose()
            return AnswerLost(f"{self._server} ended before it answered")
        if is_forgotten(exc, status):
            self._lose()
        said = told(exc, status, self._server.secrets)
        return AnswerLost(f"{self._server} failed: {said}") if is_unclear(exc, status) else CallRefused(said)

    async def _run(self) -> None:
        _hush()
        try:
            async with AsyncExitStack() as stack:
                await self._enter(stack)
                self._ready.set()
                await self._stay()
        except (Exception, asyncio.CancelledError) as exc:  # noqa: BLE001  # told to whoever waits; groups of them too
            self._reason = words(exc, self._server.secrets)
        finally:
            was_ready, self._lost = self._ready.is_set() and not self._lost, True
            self._ended.set()
            if was_ready:
                self._changed()

    async def _enter(self, stack: AsyncExitStack) -> None:
        try:
            from mcp import Client
        except ImportError as exc:
            raise SourceError(f"the SDK is not installed: {install_command('mcp')}") from exc
        transport = self._server.transport(self._noticed)
        client = await stack.enter_async_context(Client(transport, message_handler=self._heard, cache=None))
        # The SDK's own check is by the server's patterns and references, which can keep a process busy for ever.
        setattr(client.session, "validate_tool_result", _unchecked)  # noqa: B010
        self.definitions = await _listed(client)
        listening = asyncio.create_task(self._listen(client))
        stack.callback(listening.cancel)
        self._client = client

    async def _stay(self) -> None:
        """Until it is to end. Told of other tools, list them again."""
        while not self._stop.is_set():
            await _first(self._stop, self._stale)
            if self._stale.is_set() and not self._stop.is_set():
                self._stale.clear()
                self.definitions = await _listed(self._client)
                self._changed()

    async def _listen(self, client: Client) -> None:
        """Hear of other tools where the protocol has a subscription for it; older servers just send a message."""
        from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
        from mcp.shared.exceptions import MCPError

        try:
            async with client.listen(tools_list_changed=True) as subscription:
                async for _ in subscription:
                    self._stale.set()
        except SubscriptionLost:
            self._lose()
        except (ListenNotSupportedError, MCPError):
            return

    async def _heard(self, message: Any) -> None:
        from mcp.types import ToolListChangedNotification

        if isinstance(message, ToolListChangedNotification):
            self._stale.set()

    def _lose(self) -> None:
        """Take no further calls; those under way may still be answered."""
        was_open, self._lost = self.is_open, True
        self._close_if_idle()
        if was_open:
            self._changed()

    def _close_if_idle(self) -> None:
        if self._lost and not self._calls:
            self._stop.set()

    def _unreachable(self, seconds: float) -> str:
        said = self._reason if self._ended.is_set() else f"it gave no answer within {seconds:g} s"
        why = scrub(said, self._server.secrets)
        return f"{self._server} cannot be reached: {why}{self._noticed}; {self._server.cure}"


async def _unchecked(_: str, __: CallToolResult) -> None:
    """A result is what the server says: the model reads it either way."""


async def _noting(answer: HttpAnswer, asked: Coroutine[Any, Any, T]) -> T:
    """What was asked; how HTTP answered it is noted meanwhile."""
    http_answer.set(answer)
    return await asked


async def _first(*events: asyncio.Event, seconds: float | None = None) -> None:
    """Wait until one of them is set, or the time is up."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


async def _given_up(asked: asyncio.Task[Any]) -> None:
    if not asked.done():
        asked.cancel()
        await asyncio.wait({asked}, timeout=CANCEL_SECONDS)


async def _listed(client: Any) -> list[Definition]:
    """All pages of the list, within bounds that no honest server meets."""
    found: list[Definition] = []
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        found += page.tools
        cursor = page.next_cursor
        if not cursor or len(found) > 10 * MAX_TOOLS:
            break
    return found


def _hush() -> None:
    """The SDK logs what a server wrote, and the HTTP client every URL; both may hold secrets."""
    for name, level in (
        ("mcp", logging.CRITICAL),
        ("client", logging.CRITICAL),
        ("httpx2", logging.WARNING),
        ("httpcore2", logging.WARNING),
    ):
        logger = logging.getLogger(name)
        logger.setLevel(max(logger.level, level))
