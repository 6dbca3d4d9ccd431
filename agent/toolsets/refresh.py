"""ToolsetRefresher: opens remote sources of tools, and lists them again when they change."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass

from sayso.agent.tools.errors import ToolError
from sayso.agent.tools.tool import Tool
from sayso.agent.toolsets.base import Confirm, ToolProviderProtocol, provided
from sayso.infra.http import backoff_seconds
from sayso.infra.threads import LoopThread

log = logging.getLogger(__name__)
#: Pause before a source that failed is tried again, in seconds; it doubles each time.
FIRST_PAUSE_SECONDS = 1.0
#: Longest pause between two attempts, in seconds.
LONGEST_PAUSE_SECONDS = 60.0
#: How long a source must work for its next failure to count as a first one, in seconds.
STABLE_SECONDS = 60.0
#: Receives the id of a source and the tools it has now, on a thread of its own. Returns why other
#: sources lost their tools to it, by their ids: they are listed again. None is for no source. May
#: raise ToolError, and then must not have changed anything.
OnTools = Callable[[str, list[Tool]], Mapping[str, str] | None]


@dataclass(frozen=True, slots=True)
class LiveSource:
    """One remote source. Its tools are replaced together by its `id`; logs call it `name`."""

    id: str
    name: str
    provider: ToolProviderProtocol
    namespace: str = ""
    confirm: Confirm = "hints"


class ToolsetRefresher:
    """Keeps the tools of remote sources up to date. One per process.

    A source that cannot be reached never stops the others: it is tried again and again. A source
    that was reached once keeps its tools when it is lost; their calls then fail with the reason.
    """

    def __init__(self, sources: Sequence[LiveSource], on_tools: OnTools) -> None:
        self._sources = sources
        self._on_tools = on_tools
        self._thread: LoopThread | None = None
        #: Calls for another listing, by source.
        self._list_again: dict[str, Callable[[], object]] = {}
        #: Why sources lost their tools to others, by source, until they are listed again.
        self._losses: dict[str, str] = {}

    def open(self, seconds: float) -> dict[str, str]:
        """Start, and wait up to `seconds` for each source's first answer.

        Return why sources failed, by id.
        """
        self._thread = LoopThread(asyncio.new_event_loop(), "sayso-sources")
        first_results = {source.id: Future[str]() for source in self._sources}
        for source in self._sources:
            self._thread.submit(self._watch(source, first_results[source.id]))
        wait(first_results.values(), timeout=seconds)
        late = f"gave no answer within {seconds:g} s"
        results = {
            id_: each.result() if each.done() else late for id_, each in first_results.items()
        }
        return {id_: error for id_, error in (results | self._losses).items() if error}

    def left_out(self) -> dict[str, Mapping[str, str]]:
        """Return the tools that the last listing of each source left out, by the source's id.

        Each has its reason.
        """
        return {
            source.id: dict(getattr(source.provider, "left_out", {})) for source in self._sources
        }

    def missing(self) -> dict[str, Mapping[str, str]]:
        """Return what offered tools lack of their definitions.

        It is keyed by the source's id, then by the tool's name.
        """
        missing: dict[str, Mapping[str, str]] = {}
        for source in self._sources:
            missing[source.id] = dict(getattr(source.provider, "missing", {}))
        return missing

    def listed_names(self) -> dict[str, tuple[str, ...]]:
        """Return what each source called all its tools in its last listing, by the source's id."""
        names: dict[str, tuple[str, ...]] = {}
        for source in self._sources:
            names[source.id] = tuple(getattr(source.provider, "listed_names", ()))
        return names

    def close(self) -> None:
        """Stop, and close all sources. Idempotent."""
        thread = self._thread
        self._thread = None
        if thread is not None:
            thread.close()
            # In threads of their own, so that a server that does not end holds up none of the
            # others.
            closers = []
            for source in self._sources:
                closer = threading.Thread(target=_close, args=(source,), daemon=True)
                closers.append(closer)
                closer.start()
            for closer in closers:
                closer.join()

    async def _watch(self, source: LiveSource, first_result: Future[str]) -> None:
        """Pass a source's tools on whenever they change; after a failure, try again after a pause.

        `first_result` is set once the source is listed, to "", or to why that failed.
        """
        loop = asyncio.get_running_loop()
        changed = asyncio.Event()
        failures = 0
        is_reachable = False
        self._list_again[source.id] = changed.set
        while True:
            since = time.monotonic()
            changed.clear()
            error = await self._list(source, lambda: loop.call_soon_threadsafe(changed.set))
            # One warning; `first_result` tells of a source that was never reached.
            if error and is_reachable:
                log.warning("source.unreachable", extra={"source": source.name, "why": error})
            is_reachable = not error
            if not first_result.done():
                first_result.set_result(error)
            if not error:
                await changed.wait()
            seconds = time.monotonic() - since
            if seconds >= STABLE_SECONDS:
                failures = 1
            else:
                failures = failures + 1
            pause = backoff_seconds(
                failures,
                first=FIRST_PAUSE_SECONDS,
                longest=LONGEST_PAUSE_SECONDS,
            )
            # Tools that change now are listed at once, those that change all the time rarely.
            if not error:
                pause = max(0.0, pause - seconds)
            await asyncio.sleep(pause)

    async def _list(self, source: LiveSource, changed: Callable[[], object]) -> str:
        """Pass a source's tools on, and return why that failed, or "".

        It calls `changed` when it has other tools.
        """
        watch: Callable[[Callable[[], object]], object] = getattr(
            source.provider, "watch", lambda _: None
        )
        try:
            watch(changed)
            tools = provided(
                source.provider,
                await source.provider.list_tools(),
                source.namespace,
                source.confirm,
            )
            losses = self._on_tools(source.id, tools) or {}
        except ToolError as exc:
            return str(exc) or type(exc).__name__
        except (
            Exception,
            asyncio.CancelledError,
        ) as exc:
            # A source is third-party code: it must not stop the others.
            task = asyncio.current_task()
            # Else the CancelledError comes from inside the source.
            if task is not None and task.cancelling():
                raise
            log.exception("source.failed", extra={"source": source.name})
            return type(exc).__name__
        self._losses.pop(source.id, None)
        for loser, why in losses.items():
            self._losses[loser] = why
            self._list_again[
                loser
            ]()  # it is refused then, and tried again until its names are free
        log.info("source.listed", extra={"source": source.name, "tools": len(tools)})
        return ""


def _close(source: LiveSource) -> None:
    close: Callable[[], object] = getattr(source.provider, "close", lambda: None)
    try:
        close()
    except Exception:  # a source is third-party code: it must not hold the others
        log.exception("source.failed", extra={"source": source.name})
