"""LiveSources: remote sources that are opened, asked again until they answer, and listed again when they change."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field

from sayso.agent.tools.errors import ToolError
from sayso.agent.tools.tool import Tool
from sayso.agent.toolsets.base import Confirm, ToolProviderProtocol, pause_seconds, provided
from sayso.pending.concurrency import LoopThread

log = logging.getLogger(__name__)

#: Seconds before a source that failed is tried again; they double each time.
FIRST_PAUSE_SECONDS = 1.0
#: Seconds between two attempts at most.
LONGEST_PAUSE_SECONDS = 60.0
#: Seconds that a source must hold for its next failure to count as a first one.
STEADY_SECONDS = 60.0

#: Hears which tools a source has now, on a thread of its own. May raise ToolError, and then has changed nothing.
OnTools = Callable[[str, list[Tool]], None]


@dataclass(frozen=True, slots=True)
class LiveSource:
    """One remote source: `id` is how its tools are replaced together, `name` how it is spoken of."""

    id: str
    name: str
    provider: ToolProviderProtocol
    namespace: str = ""
    confirm: Confirm = "hints"

    async def tools(self) -> list[Tool]:
        """What it lists now. Raises ToolError."""
        return provided(self.provider, await self.provider.list_tools(), self.namespace, self.confirm)


class ToolsetRefresher:
    """Lives as long as its process. What cannot be reached never stops anybody: it is tried again and again.

    A source that was reached once keeps its tools when it is lost; their calls say what is wrong.
    """

    def __init__(
        self, sources: Sequence[LiveSource], on_tools: OnTools, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._sources = sources
        self._on_tools = on_tools
        self._clock = clock
        self._thread: LoopThread | None = None

    def open(self, seconds: float) -> dict[str, str]:
        """Begin, and wait so long at most for each source's first answer. Returns why not, by id."""
        self._thread = LoopThread(asyncio.new_event_loop(), "sayso-sources")
        kept = {source.id: _Kept(source, self._on_tools, self._clock) for source in self._sources}
        for each in kept.values():
            self._thread.submit(each.keep())
        wait([each.first for each in kept.values()], timeout=seconds)
        late = f"gave no answer within {seconds:g} s"
        told = {name: each.first.result() if each.first.done() else late for name, each in kept.items()}
        return {name: why for name, why in told.items() if why}

    def close(self) -> None:
        """End all of them. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.close()
            for source in self._sources:
                close: Callable[[], object] = getattr(source.provider, "close", lambda: None)
                close()


@dataclass(slots=True)
class _Kept:
    """One source on the loop. `first` becomes "" once it is listed, or why it could not be the first time."""

    source: LiveSource
    on_tools: OnTools
    clock: Callable[[], float]
    first: Future[str] = field(default_factory=Future)
    failures: int = 0
    is_there: bool = False

    async def keep(self) -> None:
        changed = asyncio.Event()
        while True:
            try:
                await self._round(changed)
            except Exception:  # whatever it was: a source that nobody keeps is never there again
                log.exception("source.failed", extra={"source": self.source.name})
            await asyncio.sleep(pause_seconds(self.failures, FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS))
            self.failures += 1

    async def _round(self, changed: asyncio.Event) -> None:
        """List it, and if that worked wait until it is to be listed again."""
        loop, since = asyncio.get_running_loop(), self.clock()
        watch: Callable[[Callable[[], object]], object] = getattr(self.source.provider, "watch", lambda _: None)
        changed.clear()
        watch(lambda: loop.call_soon_threadsafe(changed.set))
        if await self._listed():
            await changed.wait()
        if self.clock() - since >= STEADY_SECONDS:
            self.failures = 0

    async def _listed(self) -> bool:
        try:
            tools = await self.source.tools()
            self.on_tools(self.source.id, tools)
        except ToolError as exc:
            self._tell(str(exc))
            return False
        except (
            Exception,
            asyncio.CancelledError,
        ) as exc:  # a source is somebody else's code: it never stops the others
            if _is_to_end():
                raise
            log.exception("source.failed", extra={"source": self.source.name})
            self._tell(type(exc).__name__)
            return False
        log.info("source.listed", extra={"source": self.source.name, "tools": len(tools)})
        self.is_there = True
        self._answer("")
        return True

    def _tell(self, why: str) -> None:
        """One warning when it is lost; whoever opens it hears by `first` that it was never there."""
        if self.is_there:
            log.warning("source.unreachable", extra={"source": self.source.name, "why": why})
        self.is_there = False
        self._answer(why)

    def _answer(self, why: str) -> None:
        if not self.first.done():
            self.first.set_result(why)


def _is_to_end() -> bool:
    """Whether the present task was cancelled; else a CancelledError is of what the source waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
