"""ToolsetRefresher: opens remote sources of tools, retries those that fail, and lists them again when they change."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field

from sayso.agent.tools.errors import ToolError
from sayso.agent.tools.tool import Tool
from sayso.agent.toolsets.base import Confirm, ToolProviderProtocol, provided
from sayso.channels.http import backoff_seconds
from sayso.pending.threads import LoopThread

log = logging.getLogger(__name__)
#: Pause before a source that failed is tried again, in seconds; it doubles each time.
FIRST_PAUSE_SECONDS = 1.0
#: Longest pause between two attempts, in seconds.
LONGEST_PAUSE_SECONDS = 60.0
#: How long a source must work for its next failure to count as a first one, in seconds.
STABLE_SECONDS = 60.0
#: Receives the id of a source and the tools it has now, on a thread of its own. May raise ToolError, and then must not
#: have changed anything.
OnTools = Callable[[str, list[Tool]], None]


@dataclass(frozen=True, slots=True)
class LiveSource:
    """One remote source. Its tools are replaced together by its `id`; logs call it `name`."""

    id: str
    name: str
    provider: ToolProviderProtocol
    namespace: str = ""
    confirm: Confirm = "hints"

    async def tools(self) -> list[Tool]:
        """Return the tools that it lists now. Raises ToolError."""
        return provided(self.provider, await self.provider.list_tools(), self.namespace, self.confirm)


class ToolsetRefresher:
    """Keeps the tools of remote sources up to date. One per process.

    A source that cannot be reached never stops the others: it is tried again and again. A source that was reached once
    keeps its tools when it is lost; their calls then fail with the reason.
    """

    def __init__(
        self, sources: Sequence[LiveSource], on_tools: OnTools, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._sources = sources
        self._on_tools = on_tools
        self._clock = clock
        self._thread: LoopThread | None = None

    def open(self, seconds: float) -> dict[str, str]:
        """Start, wait up to `seconds` for each source's first answer, and return why sources failed, by id."""
        self._thread = LoopThread(asyncio.new_event_loop(), "sayso-sources")
        watchers = {source.id: _SourceWatcher(source, self._on_tools, self._clock) for source in self._sources}
        for watcher in watchers.values():
            self._thread.submit(watcher.run())
        wait([watcher.first_result for watcher in watchers.values()], timeout=seconds)
        late = f"gave no answer within {seconds:g} s"
        results = {
            id_: each.first_result.result() if each.first_result.done() else late for id_, each in watchers.items()
        }
        return {id_: error for id_, error in results.items() if error}

    def close(self) -> None:
        """Stop, and close all sources. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.close()
            for source in self._sources:
                close: Callable[[], object] = getattr(source.provider, "close", lambda: None)
                close()


@dataclass(slots=True)
class _SourceWatcher:
    """Watches one source on the refresher's loop. `first_result` is "" once it is listed, or why that failed."""

    source: LiveSource
    on_tools: OnTools
    clock: Callable[[], float]
    first_result: Future[str] = field(default_factory=Future)
    failures: int = 0
    is_reachable: bool = False

    async def run(self) -> None:
        changed = asyncio.Event()
        while True:
            try:
                await self._list_and_wait(changed)
            except Exception:  # any error: a source without a watcher would never come back
                log.exception("source.failed", extra={"source": self.source.name})
            self.failures += 1
            await asyncio.sleep(
                backoff_seconds(self.failures, first=FIRST_PAUSE_SECONDS, longest=LONGEST_PAUSE_SECONDS)
            )

    async def _list_and_wait(self, changed: asyncio.Event) -> None:
        """List the source's tools, and if that worked wait until they change."""
        loop, since = asyncio.get_running_loop(), self.clock()
        watch: Callable[[Callable[[], object]], object] = getattr(self.source.provider, "watch", lambda _: None)
        changed.clear()
        watch(lambda: loop.call_soon_threadsafe(changed.set))
        if await self._list():
            await changed.wait()
        if self.clock() - since >= STABLE_SECONDS:
            self.failures = 0

    async def _list(self) -> bool:
        """Pass the source's tools on, and return whether that worked."""
        try:
            tools = await self.source.tools()
            self.on_tools(self.source.id, tools)
        except ToolError as exc:
            self._set_result(str(exc))
            return False
        except (Exception, asyncio.CancelledError) as exc:  # a source is third-party code: it must not stop the others
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # else the CancelledError comes from inside the source
                raise
            log.exception("source.failed", extra={"source": self.source.name})
            self._set_result(type(exc).__name__)
            return False
        log.info("source.listed", extra={"source": self.source.name, "tools": len(tools)})
        self._set_result("")
        return True

    def _set_result(self, error: str) -> None:
        """Note whether it was listed. One warning is logged when it is lost; `first_result` has the first error."""
        if error and self.is_reachable:
            log.warning("source.unreachable", extra={"source": self.source.name, "why": error})
        self.is_reachable = not error
        if not self.first_result.done():
            self.first_result.set_result(error)
